/**
 * `episode task check`: whether a task file is valid and, with `--run`, whether it can be solved.
 */
import * as Args from "@effect/cli/Args"
import * as Command from "@effect/cli/Command"
import * as Options from "@effect/cli/Options"
import * as Effect from "effect/Effect"
import * as Encoding from "effect/Encoding"
import * as Option from "effect/Option"
import * as Ref from "effect/Ref"
import * as Grading from "../Grading.ts"
import type { Verdict } from "../Task.ts"
import * as Episodes from "./Episodes.ts"
import { NotMet, Usage } from "./Exit.ts"
import * as Files from "./Files.ts"
import * as Screens from "./Screen.ts"
import { visible } from "./Visible.ts"

const check = Command.make(
  "check",
  {
    file: Args.text({ name: "file" }).pipe(Args.withDescription("the task file")),
    run: Options.boolean("run").pipe(
      Options.withDescription("also run it: the program to repair must score 0, and the solution 1")
    ),
    provider: Episodes.source,
    json: Episodes.json,
    receipt: Episodes.receipt
  },
  (given) =>
    Effect.gen(function*() {
      if (!given.run && (given.json || Option.isSome(given.receipt))) {
        return yield* new Usage({ message: "--json and --receipt go with --run: without it no episode has a receipt" })
      }
      const { solution, task, visible: open } = yield* Files.readTask(given.file)
      const screen = yield* Screens.make(given)
      yield* screen.line(
        `${visible(given.file)}: a valid task, ${task.id}`
          + (given.run ? `; provider ${yield* Episodes.told(given.provider)}` : "")
      )
      if (!given.run) {
        return
      }
      if (Option.isNone(solution)) {
        return yield* new Usage({
          message: `${given.file} has no solution, and --run needs one to prove the task with`
        })
      }
      // In base 64, because a solution may hold anything that a shell would read as its own.
      const write = `printf %s ${Encoding.encodeBase64(solution.value)} | base64 -d >${task.submission}`
      yield* Episodes.perform(given, (stage) =>
        Effect.gen(function*() {
          yield* screen.line(screen.paint("bold", "\nThe program to repair"))
          const { outcome: starter } = yield* stage.run(task, ({ submit }) => submit)
          yield* screen.line(screen.paint("bold", "\nThe solution"))
          const shown = yield* Ref.make<Verdict | undefined>(undefined)
          const { outcome: solved } = yield* stage.run(task, (tools) =>
            Effect.gen(function*() {
              yield* tools.terminal(write)
              const { stdout } = yield* tools.terminal(`python3 -B ${task.submission}`)
              const expected = { _tag: "Totals", expected: open.expected } as const
              yield* Ref.set(shown, Grading.judge(expected, new TextEncoder().encode(stdout)))
              yield* tools.submit
            }))
          const onVisible = yield* Ref.get(shown)
          if (starter._tag === "Scored" && starter.score !== 0) {
            return yield* new NotMet({ message: "the program to repair isn't broken: it scores 1" })
          }
          if (solved._tag === "Scored" && solved.score !== 1) {
            return yield* new NotMet({ message: `the solution doesn't solve the task: ${solved.reason}` })
          }
          if (onVisible?.score !== 1) {
            return yield* new NotMet({
              message: "the task's `expected` isn't what the solution prints for its `input`: "
                + (onVisible?.detail ?? "it printed nothing")
            })
          }
        }))
    })
).pipe(Command.withDescription("Check a task file; with --run, prove it"))

export const task = Command.make("task").pipe(
  Command.withDescription("Work on task files"),
  Command.withSubcommands([check])
)

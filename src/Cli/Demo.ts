/**
 * `episode demo`: the shipped task twice, unrepaired and repaired.
 */
import * as Command from "@effect/cli/Command"
import * as Path from "@effect/platform/Path"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type { PolicyTools } from "../Episode.ts"
import { version } from "../internal/version.ts"
import * as Episodes from "./Episodes.ts"
import { NotMet } from "./Exit.ts"
import * as Files from "./Files.ts"

/** Where the package's own task.json is: the entry point knows. */
export class ShippedTask extends Context.Tag("episode/Cli/Demo/ShippedTask")<ShippedTask, URL>() {}

const program = "/home/user/work/report.py"
const run = `python3 ${program}`
const repair = `sed -i 's/= int(row\\["amount"\\])/= totals.get(row["region"], 0) + int(row["amount"])/' ${program}`

const inspect = ({ terminal }: PolicyTools) =>
  Effect.forEach([`cat ${program}`, "cat /home/user/work/sales.csv", run], terminal, { discard: true })

export const demo = Command.make(
  "demo",
  { provider: Episodes.source, json: Episodes.json, receipt: Episodes.receipt },
  (flags) =>
    Effect.gen(function*() {
      const { task } = yield* Files.readTask(
        yield* Effect.orDie(Effect.flatMap(Path.Path, (path) => Effect.flatMap(ShippedTask, path.fromFileUrl)))
      )
      yield* Episodes.perform(flags, ({ run: episode, screen }) =>
        Effect.gen(function*() {
          yield* screen.line(`episode ${version}, task ${task.id}, provider ${yield* Episodes.told(flags.provider)}`)
          yield* screen.line(screen.paint("bold", "\nEpisode 1 of 2: the program as it is"))
          const before = yield* episode(task, (tools) => Effect.zipRight(inspect(tools), tools.submit))
          yield* screen.line(screen.paint("bold", "\nEpisode 2 of 2: repaired by a script"))
          const after = yield* episode(
            task,
            (tools) => Effect.forEach([run, repair, run], tools.terminal).pipe(Effect.zipRight(tools.submit))
          )
          const rewards = [before, after].map(({ outcome }) => outcome._tag === "Scored" ? outcome.score : "none")
          if (rewards[0] !== 0 || rewards[1] !== 1) {
            return yield* new NotMet({ message: `expected the scores 0 and 1, got ${rewards.join(" and ")}` })
          }
        }))
    })
).pipe(Command.withDescription("Run the shipped task twice: as it is (scores 0), and repaired by a script (scores 1)"))

/**
 * `episode run`: one task, and a policy that is a script or a program.
 */
import * as Command from "@effect/cli/Command"
import * as Options from "@effect/cli/Options"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type { PolicyTools } from "../Episode.ts"
import * as Episodes from "./Episodes.ts"
import { NotMet, Usage } from "./Exit.ts"
import * as Files from "./Files.ts"
import * as PolicyCommand from "./PolicyCommand.ts"

const flags = {
  task: Options.text("task").pipe(
    Options.withPseudoName("file"),
    Options.withDescription("the task to solve; see `episode schema task`")
  ),
  script: Options.text("script").pipe(
    Options.withPseudoName("file"),
    Options.optional,
    Options.withDescription("the policy: a JSON array of shell commands, run one by one and then submitted")
  ),
  policyCommand: Options.text("policy-command").pipe(
    Options.withPseudoName("command"),
    Options.optional,
    Options.withDescription("the policy: a program that asks for tools in JSON lines on its standard output")
  ),
  noSubmit: Options.boolean("no-submit").pipe(
    Options.withDescription("end the script without submitting")
  ),
  minScore: Episodes.choice("min-score", ["0", "1"]).pipe(
    Options.map(Number),
    Options.optional,
    Options.withDescription("exit with 1 when the score is less")
  ),
  provider: Episodes.source,
  json: Episodes.json,
  receipt: Episodes.receipt
}

const policyOf = Effect.fnUntraced(function*(
  given: {
    readonly script: Option.Option<string>
    readonly policyCommand: Option.Option<string>
    readonly noSubmit: boolean
  },
  context: { readonly prompt: string; readonly taskId: string }
) {
  if (Option.isSome(given.script) === Option.isSome(given.policyCommand)) {
    return yield* new Usage({ message: "give the policy as either --script or --policy-command" })
  }
  if (Option.isSome(given.policyCommand)) {
    if (given.policyCommand.value.trim() === "") {
      return yield* new Usage({ message: "--policy-command is empty" })
    }
    if (given.noSubmit) {
      return yield* new Usage({ message: "--no-submit goes with --script: a policy command submits when it wants to" })
    }
    return PolicyCommand.policy(given.policyCommand.value, context)
  }
  const commands = yield* Files.readScript(Option.getOrThrow(given.script))
  return (tools: PolicyTools) =>
    Effect.forEach(commands, tools.terminal, { discard: true }).pipe(
      Effect.zipRight(given.noSubmit ? Effect.void : tools.submit)
    )
})

export const run = Command.make("run", flags, (given) =>
  Effect.gen(function*() {
    const { task } = yield* Files.readTask(given.task)
    const policy = yield* policyOf(given, { prompt: task.prompt, taskId: task.id })
    const from = yield* Episodes.told(given.provider)
    const { outcome } = yield* Episodes.perform(given, ({ run, screen }) =>
      Effect.zipRight(screen.line(`task ${task.id}, provider ${from}`), run(task, policy)))
    if (
      outcome._tag === "Scored" && Option.isSome(given.minScore) && outcome.score < given.minScore.value
    ) {
      return yield* new NotMet({ message: `the score is ${outcome.score}, less than ${given.minScore.value}` })
    }
  })).pipe(Command.withDescription("Run one episode of a task, with a script or a program as the policy"))

/**
 * The command line.
 */
import * as Args from "@effect/cli/Args"
import * as CliConfig from "@effect/cli/CliConfig"
import * as Command from "@effect/cli/Command"
import * as ValidationError from "@effect/cli/ValidationError"
import * as Cause from "effect/Cause"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import { task } from "./Cli/Check.ts"
import { demo } from "./Cli/Demo.ts"
import { doctor } from "./Cli/Doctor.ts"
import type { ExitCode, Failure } from "./Cli/Exit.ts"
import { codeOf, codes, describe, Usage } from "./Cli/Exit.ts"
import * as Help from "./Cli/Help.ts"
import { run } from "./Cli/Run.ts"
import { schema } from "./Cli/SchemaCommand.ts"
import { serve } from "./Cli/Serve.ts"
import * as Signals from "./Cli/Signals.ts"
import { visible } from "./Cli/Visible.ts"
import { version } from "./internal/version.ts"
import { Ledger } from "./Sandbox/Ledger.ts"

const completions = Command.make(
  "completions",
  {
    shell: Args.choice([["bash", "bash"], ["fish", "fish"], ["zsh", "zsh"]], { name: "shell" }).pipe(
      Args.withDescription("the shell to complete for")
    )
  },
  // Annotated, because the command it completes is the one it is a part of.
  ({ shell }): Effect.Effect<void> => Effect.flatMap(completionsOf(shell), (lines) => Console.log(lines.join("\n")))
).pipe(Command.withDescription("Print completions for a shell"))

const episode = Command.make("episode").pipe(
  Command.withDescription("Code-repair episodes in disposable sandboxes, with scores that can be trusted"),
  Command.withSubcommands([demo, run, task, schema, doctor, serve, completions])
)

const entries = [
  ...[Help.entry(demo), Help.entry(run), Help.entry(task), Help.entry(schema), Help.entry(doctor), Help.entry(serve)],
  Help.entry(completions)
]

const completionsOf = (shell: string): Effect.Effect<ReadonlyArray<string>> =>
  shell === "fish"
    ? Command.getFishCompletions(episode, "episode")
    : shell === "zsh"
    ? Command.getZshCompletions(episode, "episode")
    : Command.getBashCompletions(episode, "episode")

// What is wrong is said once, by `ofExit`: the parser's own words are for nobody, a command's are for people.
const parse = (argv: ReadonlyArray<string>) =>
  Effect.flatMap(
    Console.consoleWith(Effect.succeed),
    (console) =>
      Command.run(Command.transformHandler(episode, Effect.withConsole(console)), { name: "episode", version })(argv)
        .pipe(
          Effect.withConsole({ ...console, error: () => Effect.void })
        )
  )

const misuse = (argv: ReadonlyArray<string>) => (failure: ValidationError.ValidationError) => {
  const text = describe(failure)
  const meant = Help.suggestion(episode, argv)
  return new Usage({
    // The parser doesn't know of every flag, and where it does, it says the same.
    message: meant === "" ? text : /^Received unknown argument|^The flag /.test(text) ? meant : `${text}; ${meant}`
  })
}

const perform = Effect.fnUntraced(function*(argv: ReadonlyArray<string>) {
  const words = argv.slice(2)
  if (words.length === 1 && words[0] === "--version") {
    return yield* Console.log(version)
  }
  const help = words.length === 0 || (words.length === 1 && words[0] === "help")
    ? Option.some(Either.right(Help.overview))
    : Help.asked(entries, words)
  if (Option.isSome(help)) {
    return yield* Effect.flatMap(Effect.mapError(help.value, (message) => new Usage({ message })), Console.log)
  }
  const wrong = Help.wrongCommand(entries, words)
  if (Option.isSome(wrong)) {
    return yield* new Usage({ message: wrong.value })
  }
  yield* Effect.catchIf(Help.colourOnlyTerminals(parse(argv)), ValidationError.isValidationError, misuse(words))
})

// An argument, or a key of somebody's task file, can hold anything.
const tell = (text: string) => text === "" ? Effect.void : Console.error(`episode: ${visible(text)}`)

const ofExit = (exit: Exit.Exit<void, Failure>): Effect.Effect<ExitCode> => {
  if (Exit.isSuccess(exit)) {
    return Effect.succeed(codes.done)
  }
  const failure = Cause.failureOption(exit.cause)
  if (Option.isSome(failure)) {
    return Effect.as(tell(describe(failure.value)), codeOf(failure.value))
  }
  return Cause.isInterruptedOnly(exit.cause)
    ? Effect.succeed(codes.interrupted)
    : Effect.as(tell(`this is a bug:\n${Cause.pretty(exit.cause)}`), codes.infrastructure)
}

/**
 * Runs one command and gives its exit code, also after an interruption. Whatever it ends with, sandboxes that aren't
 * proved gone are listed.
 */
export const main = (argv: ReadonlyArray<string>, setExitCode: (code: ExitCode) => void) =>
  Effect.uninterruptibleMask((restore) =>
    Effect.gen(function*() {
      const isWritten = yield* Signals.watch
      const exit = yield* Effect.exit(restore(perform(argv)))
      const result = yield* ofExit(exit)
      // A result that nobody got isn't done.
      const code = result === codes.done && !(yield* isWritten) ? codes.interrupted : result
      const open = yield* Effect.flatMap(Ledger, (ledger) => ledger.open)
      if (open.length > 0) {
        yield* tell(`not proved gone:\n${Signals.listed(open).join("\n")}`)
      } else if (code === codes.interrupted) {
        yield* tell("every sandbox is deleted, absence confirmed")
      }
      // An interruption promises more than an error does: that nothing is left.
      const isLeft = open.some(({ state }) => state !== "uncertain" || code === codes.interrupted)
      setExitCode(isLeft ? codes.unresolved : code)
    })
  ).pipe(
    Effect.scoped,
    // Wizards and log levels aren't for users of this program.
    Effect.provide(CliConfig.layer({ showBuiltIns: false }))
  )

/**
 * What a stranger sees first, and what one who mistypes sees next.
 */
import * as CliConfig from "@effect/cli/CliConfig"
import * as Command from "@effect/cli/Command"
import * as HelpDoc from "@effect/cli/HelpDoc"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as HashMap from "effect/HashMap"
import { closest, distance } from "fastest-levenshtein"
import { stripVTControlCharacters } from "node:util"
import { version } from "../internal/version.ts"
import { isColoured } from "./Screen.ts"

/** The command line as a whole. Each command's own `--help` is made by the parser. */
export const overview =
  `episode ${version}: code-repair episodes in disposable sandboxes, with scores that can be trusted

  episode demo                       the shipped task twice: as it is (score 0), repaired (score 1)
  episode run --task FILE --script FILE
                                     one episode; the policy is a JSON array of shell commands
  episode run --task FILE --policy-command COMMAND
                                     one episode; the policy is a program that speaks JSON lines
  episode task check FILE [--run]    check a task file; with --run, prove that it can be solved
  episode schema receipt|task        the JSON Schema of what --json prints, or of a task file
  episode doctor [--provider NAME]   what a provider needs, and what is missing here
  episode serve e2b [--port N]       sandboxes of this machine, for every program that speaks E2B
  episode serve openenv [--port N]   episodes, for every program that speaks OpenEnv
  episode serve terminus [--port N]  bare terminals with verify commands, for the same programs
  episode completions bash|fish|zsh  completions for a shell

Every command has a --help of its own. Exit codes: 0 done, also with a score of 0; 1 not what was
expected; 2 wrong usage or an invalid task; 3 an error of the infrastructure; 4 a sandbox that is
known isn't proved gone; 130 interrupted, or the output was closed.

Sandboxes are local ones, or with --provider e2b those of E2B. --provider openenv lets a native
Terminus server at --openenv-url make those of policies.`

/** For a flag that no command knows: the one that was meant, if one is near. */
export const suggestion = <Name extends string, R, E, A>(
  command: Command.Command<Name, R, E, A>,
  argv: ReadonlyArray<string>
): string => {
  const text = HelpDoc.toAnsiText(Command.getHelp(command, CliConfig.defaultConfig))
  const known = [...new Set(stripVTControlCharacters(text).match(/--[a-z][a-z-]*/g)), "--help", "--version"]
  const unknown = argv.map((word) => word.split("=")[0] ?? "").find((word) =>
    word.startsWith("--") && word !== "--" && !known.includes(word)
  )
  if (unknown === undefined) {
    return ""
  }
  const nearest = closest(unknown, known)
  return distance(unknown, nearest) <= Math.max(2, unknown.length / 3)
    ? `unknown flag ${unknown}; did you mean ${nearest}?`
    : `unknown flag ${unknown}; see episode --help`
}

/** The parser takes no notice of a first word that it doesn't know where a `--help` comes after it. */
export const unknownCommand = <Name extends string, R, E, A>(
  command: Command.Command<Name, R, E, A>,
  argv: ReadonlyArray<string>
): string => {
  const [first = "-", ...rest] = argv
  return first.startsWith("-") || HashMap.has(Command.getSubcommands(command), first)
      || !(rest.includes("--help") || rest.includes("-h"))
    ? ""
    : `there is no command '${first}'; see episode --help`
}

/** The parser always colours what it prints. Here it does so only where a terminal shows it. */
export const colourOnlyTerminals = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.gen(function*() {
    const console = yield* Console.consoleWith(Effect.succeed)
    const colours = { log: yield* isColoured(process.stdout), error: yield* isColoured(process.stderr) }
    const plain = (words: ReadonlyArray<unknown>) =>
      words.map((word) => typeof word === "string" ? stripVTControlCharacters(word) : word)
    return yield* Effect.withConsole(effect, {
      ...console,
      log: (...words) => console.log(...colours.log ? words : plain(words)),
      error: (...words) => console.error(...colours.error ? words : plain(words))
    })
  })

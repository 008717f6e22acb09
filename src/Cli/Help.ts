/**
 * What a stranger sees first, and what one who mistypes sees next.
 */
import * as CliConfig from "@effect/cli/CliConfig"
import * as Command from "@effect/cli/Command"
import * as CommandDescriptor from "@effect/cli/CommandDescriptor"
import * as HelpDoc from "@effect/cli/HelpDoc"
import type * as Span from "@effect/cli/HelpDoc/Span"
import * as Usage from "@effect/cli/Usage"
import * as Arr from "effect/Array"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as HashMap from "effect/HashMap"
import * as Option from "effect/Option"
import * as Order from "effect/Order"
import { closest, distance } from "fastest-levenshtein"
import { stripVTControlCharacters } from "node:util"
import { version } from "../internal/version.ts"
import { isColoured } from "./Screen.ts"

/** The command line as a whole. */
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

/** What is said of a command, and of those below it. */
export interface Entry {
  readonly name: string
  readonly help: HelpDoc.HelpDoc
  readonly usage: Usage.Usage
  readonly below: ReadonlyArray<Entry>
}

const config = CliConfig.make({ showBuiltIns: false })

const byName = Order.mapInput(Order.string, ({ name }: Entry) => name)

/** A command as its help shows it. */
export const entry = <Name extends string, R, E, A>(command: Command.Command<Name, R, E, A>): Entry => {
  const [name = ""] = Command.getNames(command)
  const below = HashMap.toEntries(Command.getSubcommands(command)).map(([name, descriptor]): Entry => ({
    name,
    help: CommandDescriptor.getHelp(descriptor, config),
    usage: CommandDescriptor.getUsage(descriptor),
    below: []
  }))
  return {
    name,
    help: Command.getHelp(command, config),
    usage: Command.getUsage(command),
    // One that has none below it is told to be its own.
    below: Arr.sort(below.filter((entry) => entry.name !== name), byName)
  }
}

/** What a `--help` is about. */
interface Subject {
  readonly path: ReadonlyArray<string>
  readonly entry: Entry
}

// The parser takes no notice of a word that it doesn't know where a `--help` comes after it.
const lookUp = (
  within: ReadonlyArray<Entry>,
  words: ReadonlyArray<string>,
  path: ReadonlyArray<string> = []
): Either.Either<Option.Option<Subject>, string> => {
  const [word, ...rest] = words
  if (word === undefined || within.length === 0) {
    return Either.right(Option.none())
  }
  const here = [...path, word]
  return Option.match(Arr.findFirst(within, ({ name }) => name === word), {
    onNone: () => {
      const nearest = closest(word, within.map(({ name }) => name))
      return Either.left(
        `there is no command '${here.join(" ")}'; ${
          distance(word, nearest) <= 2 ? `did you mean ${nearest}?` : `see episode ${[...path, "--help"].join(" ")}`
        }`
      )
    },
    onSome: (entry) => Either.map(lookUp(entry.below, rest, here), Option.orElseSome(() => ({ path: here, entry })))
  })
}

const width = 100

// What stands in brackets stays on one line.
const wordsOf = (text: string): ReadonlyArray<string> => text.match(/\[[^\]]*\]|\S+/g) ?? []

const wrapped = (text: string, indent: number): string => {
  const lines = [""]
  for (const word of wordsOf(text)) {
    const line = lines.at(-1) ?? ""
    if (line !== "" && indent + line.length + 1 + word.length > width) {
      lines.push(word)
    } else {
      lines[lines.length - 1] = line === "" ? word : `${line} ${word}`
    }
  }
  return lines.join(`\n${" ".repeat(indent)}`)
}

const indent = 2
const longestTerm = 32

const table = (rows: ReadonlyArray<readonly [term: string, text: string]>): string => {
  const terms = rows.map(([term]) => term.length).filter((length) => length <= longestTerm)
  const column = indent + Math.max(0, ...terms) + 2
  return rows.map(([term, text]) =>
    `${" ".repeat(indent)}${
      term.length > longestTerm ? `${term}\n${" ".repeat(column)}` : term.padEnd(column - indent)
    }${wrapped(text, column)}`
  ).join("\n")
}

const plain = (span: Span.Span): string => stripVTControlCharacters(HelpDoc.toAnsiText(HelpDoc.p(span))).trim()

// What the parser says of every option, and what the line of its usage says already.
const empty =
  /^(?:A user-defined piece of text|A true or false value|This .* is optional|This .* may be repeated .*|One of the following: .*)\.?$/

const paragraphs = (doc: HelpDoc.HelpDoc): ReadonlyArray<string> =>
  HelpDoc.isSequence(doc)
    ? [...paragraphs(doc.left), ...paragraphs(doc.right)]
    : HelpDoc.isParagraph(doc)
    ? [plain(doc.value)].filter((text) => !empty.test(text))
    : []

const definitions = (doc: HelpDoc.HelpDoc): ReadonlyArray<readonly [term: string, text: string]> =>
  HelpDoc.isSequence(doc)
    ? [...definitions(doc.left), ...definitions(doc.right)]
    : HelpDoc.isDescriptionList(doc)
    ? doc.definitions.map(([term, text]) => [plain(term), paragraphs(text).join(" ")])
    : []

const page = ({ entry: { below, help, usage }, path }: Subject): string => {
  // A repeated option need not be there at all.
  const [line = ""] = Usage.enumerate(usage, config).map((line) => plain(line).replace(/--\S+ \S+\.{3}/g, "[$&]"))
  const words = ["episode", ...path.slice(0, -1), below.length === 0 ? line : `${path.at(-1)} COMMAND`]
  const rows = below.length === 0
    ? definitions(help)
    : below.map(({ help, name }) => [name, paragraphs(help).join(" ")] as const)
  return [wrapped(words.join(" "), 2 * indent), wrapped(paragraphs(help).join(" "), 0), table(rows)]
    .filter((part) => part !== "").join("\n\n")
}

/** What `--help` shows of a command, or that there is no such command; nothing where help isn't asked for. */
export const asked = (
  commands: ReadonlyArray<Entry>,
  argv: ReadonlyArray<string>
): Option.Option<Either.Either<string, string>> =>
  argv.includes("--help") || argv.includes("-h")
    ? Option.some(
      Either.map(
        lookUp(commands, argv.filter((word) => !word.startsWith("-"))),
        Option.match({ onNone: () => overview, onSome: page })
      )
    )
    : Option.none()

/** What is wrong with the words before the first flag: no command, or one that needs another word. */
export const wrongCommand = (commands: ReadonlyArray<Entry>, argv: ReadonlyArray<string>): Option.Option<string> =>
  Either.match(lookUp(commands, Arr.takeWhile(argv, (word) => !word.startsWith("-"))), {
    onLeft: Option.some,
    onRight: Option.flatMap(({ entry: { below, name } }) =>
      below.length === 0 ? Option.none() : Option.some(
        `${name} needs one of ${below.map(({ name }) => name).join(", ")}; see episode ${name} --help`
      )
    )
  })

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

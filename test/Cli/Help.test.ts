import * as Args from "@effect/cli/Args"
import * as Command from "@effect/cli/Command"
import * as Options from "@effect/cli/Options"
import { assert, describe, it } from "@effect/vitest"
import { Console, Effect, Either, Option } from "effect"
import { asked, colourOnlyTerminals, entry, overview, suggestion, wrongCommand } from "../../src/Cli/Help.ts"
import { capture } from "./console.ts"

const command = Command.make("tool").pipe(Command.withSubcommands([
  Command.make("run", { minScore: Options.integer("min-score"), task: Options.text("task") })
]))

describe("Help.suggestion", () => {
  it.each([
    [["run", "--min-scor", "1"], "unknown flag --min-scor; did you mean --min-score?"],
    [["run", "--tsak=x"], "unknown flag --tsak; did you mean --task?"],
    [["run", "--halp"], "unknown flag --halp; did you mean --help?"],
    [["run", "--something-else"], "unknown flag --something-else; see episode --help"],
    [["run", "--task", "x", "--min-score=1"], ""],
    [["run", "--", "word"], ""],
    [[], ""]
  ])("%j: %s", (argv, said) => {
    assert.strictEqual(suggestion(command, argv), said)
  })
})

const serve = Command.make("serve").pipe(
  Command.withDescription("Serve things"),
  Command.withSubcommands([
    Command.make("two"),
    Command.make("one", {
      hosts: Options.repeated(
        Options.text("host").pipe(Options.withPseudoName("address"), Options.withDescription("where to listen"))
      ),
      json: Options.boolean("json").pipe(
        Options.withDescription(`print JSON, ${"and nothing else, ".repeat(6)}and that is all`)
      ),
      kind: Args.choice([["a", "a"], ["b", "b"]], { name: "kind" }).pipe(Args.withDescription("which of them"))
    }).pipe(Command.withDescription("Serve the first"))
  ])
)

const entries = [entry(command), entry(serve), entry(Command.make("alone"))]

describe("Help.asked", () => {
  it.each([
    [["walk", "--help"], "there is no command 'walk'; see episode --help"],
    [["walk", "run", "-h"], "there is no command 'walk'; see episode --help"],
    [["serve", "three", "-h"], "there is no command 'serve three'; see episode serve --help"]
  ])("%j: %s", (argv, said) => {
    assert.deepStrictEqual(asked(entries, argv), Option.some(Either.left(said)))
  })

  it.each([[["walk"]], [["serve", "one", "--json"]], [[]]])("%j: nothing is asked for", (argv) => {
    assert.isTrue(Option.isNone(asked(entries, argv)))
  })

  it.each([
    [["--help"], overview],
    [["--json", "-h"], overview],
    [["alone", "--help", "anything"], "episode alone"],
    [["serve", "-h"], "episode serve COMMAND\n\nServe things\n\n  one  Serve the first\n  two  "],
    [
      ["serve", "one", "--help"],
      `episode serve one [--host address...] [--json] <kind> a | b

Serve the first

  <kind>             which of them
  --host address...  where to listen
  --json             print JSON, and nothing else, and nothing else, and nothing else, and nothing
                     else, and nothing else, and nothing else, and that is all`
    ]
  ])("%j", (argv, page) => {
    assert.deepStrictEqual(asked(entries, argv), Option.some(Either.right(page)))
  })
})

describe("Help.wrongCommand", () => {
  it.each([
    [["serve"], "serve needs one of one, two; see episode serve --help"],
    [["serve", "--json"], "serve needs one of one, two; see episode serve --help"],
    [["serve", "onw"], "there is no command 'serve onw'; did you mean one?"],
    [["serev"], "there is no command 'serev'; did you mean serve?"],
    [["nonesuch", "--json"], "there is no command 'nonesuch'; see episode --help"]
  ])("%j: %s", (argv, said) => {
    assert.deepStrictEqual(wrongCommand(entries, argv), Option.some(said))
  })

  it.each([[["alone"]], [["alone", "word"]], [["serve", "one", "a"]], [["--json", "nonesuch"]], [[]]])(
    "%j: none",
    (argv) => {
      assert.isTrue(Option.isNone(wrongCommand(entries, argv)))
    }
  )
})

describe("Help", () => {
  it("is narrow enough for a terminal", () => {
    assert.deepStrictEqual(overview.split("\n").filter((line) => line.length > 100), [])
  })

  it.effect("colours nothing where there is no terminal", () =>
    Effect.gen(function*() {
      const { console, stderr, stdout } = capture()
      yield* colourOnlyTerminals(Effect.zipRight(Console.log("\u001b[1mbold\u001b[0m"), Console.error("\u001b[31mred")))
        .pipe(
          Effect.withConsole(console)
        )
      assert.deepStrictEqual([stdout, stderr], [["bold"], ["red"]])
    }))
})

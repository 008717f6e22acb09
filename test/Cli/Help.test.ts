import * as Command from "@effect/cli/Command"
import * as Options from "@effect/cli/Options"
import { assert, describe, it } from "@effect/vitest"
import { Console, Effect } from "effect"
import { colourOnlyTerminals, overview, suggestion, unknownCommand } from "../../src/Cli/Help.ts"
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

describe("Help.unknownCommand", () => {
  it.each([
    [["walk", "--help"], "there is no command 'walk'; see episode --help"],
    [["walk", "run", "-h"], "there is no command 'walk'; see episode --help"],
    [["run", "--help"], ""],
    // The parser's own business.
    [["walk"], ""],
    [["--help"], ""],
    [[], ""]
  ])("%j: %s", (argv, said) => {
    assert.strictEqual(unknownCommand(command, argv), said)
  })
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

/** Every example, run as its first lines say. */
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as fs from "node:fs"
import * as path from "node:path"
import { assertNothingLeft, directory, environment, root, runProgram } from "./Cli/commandLine.ts"

const expected: Readonly<Record<string, ReadonlyArray<string | RegExp>>> = {
  "one-task.ts": ["totals[row[\"region\"]] = int(row[\"amount\"])", /score: 1, reason: 'correct'/],
  "many-episodes.ts": ["8 of 8 scored: 1 0 1 0 1 0 1 0\n"],
  "own-provider.ts": [/score: 1, reason: 'correct'/]
}

describe("examples", () => {
  it("all have a test", () => {
    assert.deepStrictEqual(fs.readdirSync(path.join(root, "examples")).toSorted(), Object.keys(expected).toSorted())
  })

  it.live.each(Object.entries(expected))("%s", ([name, words]) =>
    Effect.scoped(Effect.gen(function*() {
      const own = yield* directory
      const command = `npx tsx examples/${name}`
      assert.include(fs.readFileSync(path.join(root, "examples", name), "utf8"), `\`${command}\``)
      const { code, stderr, stdout } = yield* runProgram(["npx", "--no-install", "tsx", `examples/${name}`], {
        env: environment(own)
      })
      assert.deepStrictEqual([code, stderr], [0, ""])
      words.forEach((word) => typeof word === "string" ? assert.include(stdout, word) : assert.match(stdout, word))
      assertNothingLeft(own)
    })), 60_000)
})

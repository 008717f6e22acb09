import { assert, describe, it } from "@effect/vitest"
import { Arbitrary, FastCheck, Schema } from "effect"
import { spawnSync } from "node:child_process"
import * as fs from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { codeOf } from "../src/Cli/Exit.ts"
import { InfrastructureError, ScoreReason } from "../src/Episode/Outcome.ts"

const page = fs.readFileSync(new URL("../docs/outcomes.md", import.meta.url), "utf8")

const rows = page.split("\n").filter((line) => line.startsWith("| ") && line.includes("`")).map((line) =>
  line.split("|").slice(1, -1).map((cell) => cell.trim())
)
const scores = rows.filter(([first]) => first === "0" || first === "1")
const errors = rows.filter(([first]) => first?.startsWith("`"))

const root = fileURLToPath(new URL("..", import.meta.url))

// The names as vitest knows them, so that one made from a table counts too.
const namesOf = (files: ReadonlyArray<string>): ReadonlySet<string> => {
  const list = join(fs.mkdtempSync(join(tmpdir(), "episode-names-")), "list.json")
  const { status } = spawnSync(
    process.execPath,
    [join(root, "node_modules/vitest/vitest.mjs"), "list", `--json=${list}`, ...files.map((file) => `test/${file}`)],
    { cwd: root, stdio: "ignore" }
  )
  assert.strictEqual(status, 0)
  const tests: ReadonlyArray<{ readonly name: string; readonly file: string }> = JSON.parse(
    fs.readFileSync(list, "utf8")
  )
  fs.rmSync(join(list, ".."), { recursive: true })
  return new Set(tests.map(({ file, name }) => `${file.split("/test/").at(-1)}: ${name.split(" > ").at(-1)}`))
}

describe("docs/outcomes.md", () => {
  it("has every reason for a score, once", () => {
    assert.deepStrictEqual(
      scores.map(([, reason]) => reason).toSorted(),
      ScoreReason.literals.map((name) => `\`${name}\``).toSorted()
    )
    assert.deepStrictEqual(scores.filter(([score]) => score === "1").map(([, reason]) => reason), ["`correct`"])
  })

  it("has every error, once, with its exit code", () => {
    const documented = errors.map(([tag, code]) => [tag?.slice(1, -1), Number(code)])
    const samples = FastCheck.sample(Arbitrary.make(Schema.typeSchema(InfrastructureError)), { numRuns: 500, seed: 1 })
    const actual = new Map(samples.map((error) => [error._tag, codeOf(error)]))
    assert.strictEqual(actual.size, InfrastructureError.members.length)
    assert.sameDeepMembers(documented, [...actual])
  })

  it("names tests that are there", () => {
    const named = rows.map((cells) => cells.at(-1) ?? "")
    const names = namesOf([...new Set(named.map((name) => name.split(":")[0] ?? ""))])
    assert.deepStrictEqual(named.filter((name) => !names.has(name)), [])
  }, 60_000)
})

import { assert, describe, it } from "@effect/vitest"
import { ConfigProvider, Effect, FastCheck as fc } from "effect"
import * as Screens from "../../src/Cli/Screen.ts"
import { capture } from "./console.ts"

const cell = fc.string({ unit: fc.constantFrom("a", "b", "1", ".") })

describe("Screen.table", () => {
  it("sets columns as wide as their widest cell", () => {
    assert.deepStrictEqual(
      Screens.table([["episode", "role"], ["1", "verifier"], ["10", ""]]),
      ["episode  role", "1        verifier", "10"]
    )
  })

  it("has a line for every row, also for none", () => {
    assert.deepStrictEqual(Screens.table([]), [])
    assert.deepStrictEqual(Screens.table([[]]), [""])
  })

  it.prop(
    "starts every column of every row at the same place and ends no line in a blank",
    [fc.integer({ min: 1, max: 5 }).chain((n) => fc.array(fc.array(cell, { minLength: n, maxLength: n })))],
    ([rows]) => {
      const lines = Screens.table(rows)
      assert.strictEqual(lines.length, rows.length)
      const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)))
      lines.forEach((line, index) => {
        assert.strictEqual(line, line.trimEnd())
        let start = 0
        widths.forEach((width, column) => {
          assert.strictEqual(line.slice(start, start + width).trimEnd(), rows[index]?.[column])
          start += width + 2
        })
      })
    }
  )
})

describe("Screen", () => {
  it.effect("keeps standard output for the document under --json", () =>
    Effect.gen(function*() {
      const { console, stderr, stdout } = capture()
      const screen = yield* Screens.make({ json: true })
      yield* Effect.withConsole(
        Effect.zipRight(screen.line("told"), Effect.zipRight(screen.line(), screen.document("{}"))),
        console
      )
      assert.deepStrictEqual([stdout, stderr], [["{}"], ["told", ""]])
    }))

  it.effect("tells people on standard output otherwise", () =>
    Effect.gen(function*() {
      const { console, stderr, stdout } = capture()
      const screen = yield* Screens.make({ json: false })
      yield* Effect.withConsole(screen.line("told"), console)
      assert.deepStrictEqual([stdout, stderr], [["told"], []])
    }))

  // A stream's `isTTY` is Node's, so a terminal is pretended for the moment in which the screen is made.
  const onTerminal = <A>(make: Effect.Effect<A>) =>
    Effect.acquireUseRelease(
      Effect.sync(() => {
        const before = process.stdout.isTTY
        process.stdout.isTTY = true
        return before
      }),
      () => make,
      (before) =>
        Effect.sync(() => {
          process.stdout.isTTY = before
        })
    )

  it.effect("paints on a terminal, unless NO_COLOR is there", () =>
    Effect.gen(function*() {
      const painted = (environment: ReadonlyArray<readonly [string, string]>) =>
        onTerminal(Screens.make({ json: false })).pipe(
          Effect.withConfigProvider(ConfigProvider.fromMap(new Map(environment))),
          Effect.map((screen) => screen.paint("red", "words"))
        )
      assert.include(yield* painted([]), "\u001b[31m")
      assert.include(yield* painted([["NO_COLOR", ""]]), "\u001b[31m")
      assert.strictEqual(yield* painted([["NO_COLOR", "1"]]), "words")
      assert.strictEqual((yield* Screens.make({ json: false })).paint("red", "words"), "words")
    }))
})

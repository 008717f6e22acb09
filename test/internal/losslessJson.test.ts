import { assert, describe, it } from "@effect/vitest"
import { tokenize } from "@humanwhocodes/momoa"
import { Either, FastCheck as fc, Option } from "effect"
import * as LosslessJson from "../../src/internal/losslessJson.ts"
import { edited, json } from "../jsonText.ts"

const parsed = (text: string): Option.Option<unknown> => Option.liftThrowable(() => JSON.parse(text) as unknown)()

/** A tree with its integers and numbers made lossy, as V8 would have it. */
const lossy = (value: LosslessJson.Json): unknown =>
  typeof value === "bigint"
    ? Number(value)
    : value instanceof LosslessJson.OtherNumber
    ? Number(value.raw)
    : Array.isArray(value)
    ? value.map(lossy)
    : typeof value === "object" && value !== null
    ? Object.fromEntries(Object.entries(value).map(([key, each]) => [key, lossy(each)]))
    : value

const document = (text: string) => Either.getOrThrow(LosslessJson.read(text))

const fault = (text: string) => Option.getOrThrow(Either.getLeft(LosslessJson.read(text)))

const anyText = fc.oneof(json, edited(json), edited(edited(json)), fc.string({ unit: "binary" }))

describe("losslessJson", () => {
  it.prop("reads exactly what V8 reads", [anyText], ([text]) => {
    const expected = parsed(text)
    const found = LosslessJson.read(text)
    assert.strictEqual(Either.isRight(found), Option.isSome(expected))
    if (Either.isRight(found) && found.right.duplicates.length === 0) {
      assert.deepStrictEqual(Option.some(lossy(found.right.root)), expected)
    }
  }, { fastCheck: { numRuns: 2000 } })

  it.prop("has the lexemes of an independent tokenizer, at the same places", [json], ([text]) => {
    // That tokenizer takes a lone carriage return for a line.
    const unix = text.replaceAll("\r", " ")
    const strict = Option.getOrThrow(LosslessJson.strictly(unix))
    assert.deepStrictEqual(
      Array.from(LosslessJson.lexemes(strict)),
      tokenize(unix).map(({ loc }) => ({
        raw: unix.slice(loc.start.offset, loc.end.offset),
        line: loc.start.line,
        column: loc.start.column
      }))
    )
  }, { fastCheck: { numRuns: 500 } })

  it.prop(
    "knows a place for every text that isn't JSON",
    [anyText],
    ([text]) => Option.isSome(LosslessJson.locate(text)) === Option.isNone(parsed(text)),
    { fastCheck: { numRuns: 2000 } }
  )

  it.prop("keeps every digit of an integer", [fc.bigInt({ min: -(10n ** 400n), max: 10n ** 400n })], ([integer]) => {
    assert.deepStrictEqual(document(`[${integer}]`).root, [integer])
  })

  it("keeps the text of other numbers", () => {
    assert.deepStrictEqual(
      document("[15.0, 1.5e1, -0, 1e400]").root,
      ["15.0", "1.5e1", "-0", "1e400"].map((raw) => new LosslessJson.OtherNumber({ raw }))
    )
  })

  it("has the line and column of a syntax error", () => {
    const place = (text: string) => {
      const found = fault(text)
      return found._tag === "Syntax" ? Option.getOrNull(found.place) : undefined
    }
    assert.deepStrictEqual(place("{\n  \"a\": 1,\n  b: 2\n}"), { line: 3, column: 3 })
    assert.deepStrictEqual(place("{\"a\": 1,}"), { line: 1, column: 9 })
    assert.deepStrictEqual(place("{\"a\":\n\"raw\u0001control\"}"), { line: 2, column: 1 })
  })

  it("finds keys that are equal once decoded, with path and place", () => {
    const { duplicates, root } = document("{\"x\": [0, {\"a\": 1,\n  \"\\u0061\": {\"b\": 1, \"b\": 2}, \"a\": 3}]}")
    assert.deepStrictEqual(duplicates, [
      { path: ["x", 1, "a"], place: { line: 2, column: 3 } },
      { path: ["x", 1, "a", "b"], place: { line: 2, column: 22 } },
      { path: ["x", 1, "a"], place: { line: 2, column: 31 } }
    ])
    assert.deepStrictEqual(lossy(root), { x: [0, { a: 1 }] })
  })

  it("takes __proto__ for a key like any other", () => {
    const { duplicates, root } = document("{\"__proto__\": 1, \"__proto__\": 2, \"constructor\": 3}")
    assert.deepStrictEqual(Object.entries(root ?? {}), [["__proto__", 1n], ["constructor", 3n]])
    assert.deepStrictEqual(duplicates.map(({ path }) => path), [["__proto__"]])
  })

  it("isn't brought down by depth", () => {
    const nested = (depth: number): string => "[".repeat(depth) + "]".repeat(depth)
    assert.isTrue(Either.isRight(LosslessJson.read(nested(LosslessJson.maxDepth))))
    for (const depth of [LosslessJson.maxDepth + 1, 1_000_000]) {
      assert.deepStrictEqual(fault(nested(depth)), {
        _tag: "Depth",
        place: { line: 1, column: LosslessJson.maxDepth + 1 }
      })
    }
    const endless = fault("[".repeat(1_000_000))
    assert.isTrue(endless._tag === "Syntax" && Option.isNone(endless.place))
  })

  it("shows a path without letting it drive a terminal", () => {
    assert.strictEqual(LosslessJson.showPath(["verification", "expected", "north"]), "verification.expected.north")
    assert.strictEqual(LosslessJson.showPath(["expected", "New York"]), "expected[\"New York\"]")
    assert.strictEqual(LosslessJson.showPath(["expected", "Île-de-France", 0, ""]), "expected.Île-de-France[0][\"\"]")
    assert.strictEqual(LosslessJson.showPath(["a\n\u001b[2J\u009b\u202e"]), "[\"a\\n\\u001b[2J\\u{9b}\\u{202e}\"]")
  })
})

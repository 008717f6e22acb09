import { assert, describe, it } from "@effect/vitest"
import { Either, Option, Schema } from "effect"
import * as Wire from "../../src/OpenEnv/Wire.ts"

const why = (text: string, limit?: number) => Option.getOrUndefined(Either.getLeft(Wire.readJson(text, limit)))

describe("JSON that a stranger sent", () => {
  it("is read up to so many values, and no further", () => {
    const list = (length: number) => `[${Array.from({ length }, () => "{}").join(",")}]`
    const keys = (length: number) => `{${Array.from({ length }, (_, n) => `"${n}":0`).join(",")}}`
    assert.strictEqual(why(keys(Wire.maxValues - 1)), undefined)
    assert.strictEqual(why(keys(Wire.maxValues)), "values")
    // Not even looked at to its end: it isn't JSON there.
    assert.strictEqual(why(`${list(Wire.maxValues).slice(0, -1)}!`), "values")
    assert.strictEqual(why(list(20), 20), "values")
    assert.strictEqual(why(list(10), 40), undefined)
    assert.strictEqual(why(JSON.stringify("[{,\"".repeat(100_000))), undefined)
  })

  it.each([
    "{\"__proto__\":{}}",
    "{\"\\u005f_proto__\":null}",
    "[1,{\"a\":[{\"__proto__\":{\"command\":\"id\"}}]}]"
  ])("has no prototype: %s", (text) => assert.strictEqual(why(text), "prototype"))

  it("may speak of one", () =>
    assert.strictEqual(why("{\"a\":\"__proto__\",\"constructor\":{\"prototype\":1}}"), undefined))
})

describe("what is wrong with a value", () => {
  const decode = Wire.strict(Schema.Struct({ seed: Schema.NullOr(Schema.NonNegativeInt) }))
  const issues = (value: unknown) => Option.getOrThrow(Either.getLeft(decode(value)))
  const unknown = (length: number) => Object.fromEntries(Array.from({ length }, (_, n) => [`k${n}`, n]))

  it("is said of a small one up to 20 times, and of a large one once", () => {
    assert.lengthOf(issues({ seed: 1, ...unknown(3) }), 3)
    assert.lengthOf(issues({ seed: 1, ...unknown(500) }), 20)
    assert.lengthOf(issues({ seed: 1, ...unknown(5000) }), 1)
  })

  it("quotes the beginning of a value, and doesn't look at the rest", () => {
    let looks = 0
    const item = () =>
      Object.defineProperty({}, "x", {
        enumerable: true,
        get: () => {
          looks += 1
          return "y".repeat(1000)
        }
      })
    const [first] = issues({ seed: Array.from({ length: 20_000 }, item) })
    assert.match(first?.msg ?? "", /^Expected .*, actual \[\{"x":"y{100}/)
    assert.isBelow(looks, 4000)
  })

  it("quotes all of a short one", () => {
    const [first] = issues({ seed: { a: [1, "b", { c: null }] } })
    assert.include(first?.msg, "actual {\"a\":[1,\"b\",{\"c\":null}]}")
  })
})

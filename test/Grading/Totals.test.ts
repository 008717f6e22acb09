import { assert, describe, it } from "@effect/vitest"
import { FastCheck as fc } from "effect"
import { grade } from "../../src/Grading/Totals.ts"
import type { Verdict } from "../../src/Task.ts"
import { edited, json, key, space, written } from "../jsonText.ts"

// Where Python's json module disagrees, on purpose: it takes NaN and Infinity, lets the last of equal keys win, reads -0
// as 0, reads UTF-16 and UTF-32 bytes, and refuses integers of more than 4300 digits and deep nesting.

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text)

type Entries = ReadonlyArray<readonly [key: string, total: bigint]>

const total = fc.oneof(fc.bigInt({ min: -3n, max: 3n }), fc.bigInt({ min: -(10n ** 60n), max: 10n ** 60n }))

const entriesOf = (keys: fc.Arbitrary<string>): fc.Arbitrary<Entries> =>
  fc.uniqueArray(fc.tuple(keys, total), { maxLength: 6, selector: ([name]) => name })

const entries = entriesOf(key)

/** Every way to write the entries: any order, white space and escapes. */
const render = (of: Entries): fc.Arbitrary<string> =>
  fc.tuple(fc.shuffledSubarray([...of], { minLength: of.length }), fc.array(space, { minLength: 6, maxLength: 6 }))
    .chain(([shuffled, [a = "", b = "", c = "", d = "", e = "", f = ""]]) =>
      fc.tuple(...shuffled.map(([name, value]) => written(name).map((text) => `${a}${text}${b}:${c}${value}${d}`)))
        .map((members) => `${e}{${members.length === 0 ? a : members.join(",")}}${f}`)
    )

const reasonOf = (expected: Entries, output: string): Verdict["reason"] =>
  grade(new Map(expected))(bytes(output)).reason

/** Written apart from the grader: two lists are the same totals if they are the same once sorted. */
const sameTotals = (left: Entries, right: Entries): boolean => {
  const listed = (of: Entries): string => JSON.stringify(of.map(([name, value]) => [name, String(value)]).toSorted())
  return listed(left) === listed(right)
}

const isUtf8 = (output: Uint8Array): boolean => Buffer.from(Buffer.from(output).toString("utf8")).equals(output)

const expected: Entries = [["east", 15n], ["west", -7n], ["__proto__", 0n]]
const right = `{"east": 15, "west": -7, "__proto__": 0}`

describe("Totals.grade", () => {
  it.prop("the right totals are right in any order, white space and escaping", [
    entries.chain((of) => fc.tuple(fc.constant(of), render(of)))
  ], ([[of, output]]) => {
    assert.deepStrictEqual(grade(new Map(of))(bytes(output)), { score: 1, reason: "correct" })
  }, { fastCheck: { numRuns: 500 } })

  it.prop("agrees with an oracle on well-formed outputs", [
    fc.tuple(entriesOf(fc.constantFrom("a", "b", "c")), entriesOf(fc.constantFrom("a", "b", "c", "__proto__")))
      .chain(([of, stated]) => fc.tuple(fc.constant(of), fc.constant(stated), render(stated)))
  ], ([[of, stated, output]]) => {
    assert.strictEqual(reasonOf(of, output), sameTotals(of, stated) ? "correct" : "wrong-totals")
  }, { fastCheck: { numRuns: 1000 } })

  it.prop("any other total, key or number of keys is wrong", [
    entries.filter((of) => of.length > 0),
    fc.bigInt({ min: 1n, max: 10n ** 40n }),
    fc.nat()
  ], ([of, by, at]) => {
    const index = at % of.length
    const verdict = (stated: Entries) =>
      grade(new Map(of))(
        bytes(`{${stated.map(([name, value]) => `${JSON.stringify(name)}:${value}`).join(",")}}`)
      )
    const otherTotal: Verdict = {
      score: 0,
      reason: "wrong-totals",
      detail: "the right keys, a wrong total"
    }
    const otherKeys: Verdict = { score: 0, reason: "wrong-totals", detail: "not the right keys" }
    const fresh = `${of.map(([name]) => name).join("")}!`
    assert.deepStrictEqual(verdict(of.map(([name, value], i) => [name, i === index ? value + by : value])), otherTotal)
    assert.deepStrictEqual(verdict(of.map(([name, value], i) => [i === index ? fresh : name, value])), otherKeys)
    assert.deepStrictEqual(verdict(of.filter((_, i) => i !== index)), otherKeys)
    assert.deepStrictEqual(verdict([...of, [fresh, by]]), otherKeys)
  })

  it.prop("is total, and only says not-utf8 of what isn't UTF-8", [
    fc.oneof(
      fc.uint8Array({ maxLength: 64 }),
      fc.oneof(json, edited(json), edited(render(expected))).map(bytes),
      fc.tuple(render(expected).map(bytes), fc.nat(), fc.nat(255)).map(([output, at, byte]) => {
        const broken = Uint8Array.from(output)
        broken[at % broken.length] = byte
        return broken
      })
    )
  ], ([output]) => {
    const verdict = grade(new Map(expected))(output)
    assert.strictEqual(verdict.reason === "output-not-utf8", !isUtf8(output))
    assert.strictEqual(verdict.score, verdict.reason === "correct" ? 1 : 0)
  }, { fastCheck: { numRuns: 3000 } })

  it.prop("an edit that leaves the score leaves the meaning", [edited(fc.constant(right))], ([output]) => {
    if (reasonOf(expected, output) === "correct") {
      const value = JSON.parse(output) as Record<string, number>
      assert.isTrue(sameTotals(expected, Object.entries(value).map(([name, each]) => [name, BigInt(each)])))
    }
  }, { fastCheck: { numRuns: 3000 } })

  it.each([
    ["nothing", "", "line 1, column 1: not JSON"],
    ["white space only", " \n", undefined],
    ["a byte order mark", `\ufeff${right}`, "line 1, column 1: not JSON"],
    ["two objects", `${right}\n${right}`, "line 2, column 1: not JSON"],
    ["text before", `totals: ${right}`, undefined],
    ["text after", `${right} done`, undefined],
    ["a NUL after", `${right}\u0000`, undefined],
    ["white space that isn't JSON's", `\u00a0${right}`, undefined],
    ["a form feed", `${right}\f`, undefined],
    ["a trailing comma", `{"east": 15,}`, undefined],
    ["a comment", `{"east": 15} // totals`, undefined],
    ["a block comment", `{/* totals */"east": 15}`, undefined],
    ["single quotes", `{'east': 15}`, undefined],
    ["a bare key", `{east: 15}`, undefined],
    ["NaN", `{"east": NaN}`, undefined],
    ["Infinity", `{"east": -Infinity}`, undefined],
    ["a leading zero", `{"east": 015}`, undefined],
    ["a plus sign", `{"east": +15}`, undefined],
    ["hexadecimal", `{"east": 0xf}`, undefined],
    ["a raw control character in a key", `{"ea\u0001st": 15}`, "line 1, column 2: not JSON"],
    ["an array", `[15]`, "not an object"],
    ["a number", `15`, "not an object"],
    ["a string", JSON.stringify(right), "not an object"],
    ["null", `null`, "not an object"],
    ["a fraction", `{"east": 15.0}`, "the value of a key is not an integer as written"],
    ["an exponent", `{"east": 1.5e1}`, "the value of a key is not an integer as written"],
    ["a bare exponent", `{"east": 15e0}`, "the value of a key is not an integer as written"],
    ["minus zero", `{"east": 15, "west": -7, "__proto__": -0}`, "the value of a key is not an integer as written"],
    ["a string for a number", `{"east": "15"}`, "the value of a key is not an integer as written"],
    ["true", `{"east": true}`, "the value of a key is not an integer as written"],
    ["null for a number", `{"east": null}`, "the value of a key is not an integer as written"],
    ["an object for a number", `{"east": {}}`, "the value of a key is not an integer as written"],
    ["an array for a number", `{"east": [15]}`, "the value of a key is not an integer as written"],
    ["a key twice", `{"east": 15, "west": -7, "__proto__": 0, "east": 15}`, "a key occurs twice"],
    ["a key twice, once escaped", `{"east": 15, "west": -7, "__proto__": 0, "\\u0065ast": 15}`, "a key occurs twice"],
    ["__proto__ twice", `{"__proto__": 0, "east": 15, "west": -7, "__proto__": 0}`, "a key occurs twice"],
    ["a key twice in a wrong object", `{"a": 1, "\\u0061": 2}`, "a key occurs twice"]
  ])("malformed: %s", (_, output, detail) => {
    const verdict = grade(new Map(expected))(bytes(output))
    assert.strictEqual(verdict.score, 0)
    assert.strictEqual(verdict.reason, "output-malformed")
    assert.match(verdict.detail ?? "", /^(line \d+, column \d+: not JSON|not JSON|not an object|.* key .*)$/)
    if (detail !== undefined) {
      assert.strictEqual(verdict.detail, detail)
    }
  })

  it.each([
    ["a lone continuation byte", [0x80]],
    ["an overlong slash", [0xc0, 0xaf]],
    ["a surrogate", [0xed, 0xa0, 0x80]],
    ["beyond Unicode", [0xf4, 0x90, 0x80, 0x80]],
    ["a character cut short", [0xe2, 0x82]],
    ["UTF-16", [0xff, 0xfe, 0x7b, 0x00, 0x7d, 0x00]]
  ])("not UTF-8: %s", (_, output) => {
    for (const candidate of [Uint8Array.from(output), Uint8Array.from([...bytes(right), ...output])]) {
      assert.deepStrictEqual(grade(new Map(expected))(candidate), {
        score: 0,
        reason: "output-not-utf8",
        detail: "not UTF-8"
      })
    }
  })

  it("integers are exact where numbers are not", () => {
    const large = 2n ** 53n
    assert.strictEqual(reasonOf([["a", large]], `{"a": ${large}}`), "correct")
    assert.strictEqual(reasonOf([["a", large]], `{"a": ${large + 1n}}`), "wrong-totals")
    assert.strictEqual(reasonOf([["a", 10n ** 400n]], `{"a": 1${"0".repeat(400)}}`), "correct")
    assert.strictEqual(reasonOf([["a", 10n ** 400n]], `{"a": 1${"0".repeat(399)}1}`), "wrong-totals")
  })

  it("no expectation, no totals", () => {
    assert.strictEqual(reasonOf([], "{}"), "correct")
    assert.strictEqual(reasonOf([], right), "wrong-totals")
  })

  it("depth and size don't bring it down", () => {
    const deep = 1_000_000
    const long = "9".repeat(64 * 1024)
    assert.strictEqual(reasonOf(expected, "[".repeat(deep)), "output-malformed")
    assert.strictEqual(reasonOf(expected, "[".repeat(60_000)), "output-malformed")
    assert.strictEqual(reasonOf(expected, "[".repeat(deep) + "]".repeat(deep)), "output-malformed")
    assert.strictEqual(reasonOf(expected, `${"{\"a\":".repeat(deep)}1${"}".repeat(deep)}`), "output-malformed")
    assert.strictEqual(reasonOf([["a", BigInt(long)]], `{"a":${long}}`), "correct")
    assert.strictEqual(reasonOf([["a", BigInt(long)]], `{"a":-${long}}`), "wrong-totals")
    assert.strictEqual(reasonOf(expected, `{${"\"a\":1,".repeat(1_000_000)}"a":1}`), "output-malformed")
    assert.strictEqual(reasonOf([["\\".repeat(deep), 1n]], `{"${"\\\\".repeat(deep)}": 1}`), "correct")
  })

  it.each([
    "{\"SECRET\": 4711}",
    "{\"SECRET\": 1.5}",
    "{\"SECRET\": 1, \"SECRET\": 1}",
    "SECRET",
    "{\"HIDDEN\": 4712}"
  ])("a detail quotes neither output nor expectation: %s", (output) => {
    const { detail } = grade(new Map([["HIDDEN", 4711n]]))(bytes(output))
    assert.isDefined(detail)
    assert.notMatch(detail ?? "", /SECRET|HIDDEN|471/)
  })
})

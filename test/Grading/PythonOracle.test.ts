import { assert, describe, it } from "@effect/vitest"
import { FastCheck as fc } from "effect"
import { spawnSync } from "node:child_process"
import { grade } from "../../src/Grading/Totals.ts"
import { key, space, written } from "../jsonText.ts"

// Python's own reader, told to be strict, as the judge beside ours. `type(v) is int` tells 15 from 15.0 and from True.
const oracle = `
import base64, json, sys
getattr(sys, "set_int_max_str_digits", lambda _: None)(0)
def refuse(_): raise ValueError
def score(output, expected):
    try:
        pairs = json.loads(output.decode("utf-8"), object_pairs_hook=lambda found: ("object", found), parse_constant=refuse)
    except (ValueError, RecursionError):
        return 0
    if type(pairs) is not tuple: return 0
    found = pairs[1]
    if len({key for key, _ in found}) != len(found) or any(type(value) is not int for _, value in found): return 0
    return int(dict(found) == {key: int(value) for key, value in expected})
def plain(output):
    try: return type(json.loads(output)) is dict
    except ValueError: return False
for line in sys.stdin:
    output, expected = json.loads(line)
    output = base64.b64decode(output)
    print(score(output, expected), int(plain(output)))
`

interface Case {
  readonly output: Uint8Array
  readonly expected: ReadonlyMap<string, bigint>
}

const ask = (cases: ReadonlyArray<Case>) => {
  const input = cases.map(({ expected, output }) =>
    JSON.stringify([
      Buffer.from(output).toString("base64"),
      Array.from(expected, ([key, value]) => [key, String(value)])
    ])
  ).join("\n")
  const { status, stderr, stdout } = spawnSync("python3", ["-c", oracle], {
    input,
    encoding: "utf8",
    maxBuffer: 1 << 26
  })
  assert.strictEqual(status, 0, stderr)
  return stdout.trim().split("\n").map((line) => {
    const [score, accepted] = line.split(" ")
    return { score: Number(score), isPlainlyRead: accepted === "1" }
  })
}

const bytes = (text: string) => new TextEncoder().encode(text)

const totals = fc.uniqueArray(fc.tuple(key, fc.oneof(fc.bigInt(-99n, 99n), fc.bigInt())), {
  selector: ([name]) => name,
  maxLength: 4
})

// As a program may write them: in any order, with any white space, with or without escapes.
const object = (entries: ReadonlyArray<readonly [string, bigint]>) =>
  fc.tuple(
    fc.shuffledSubarray([...entries], { minLength: entries.length }).chain((order) =>
      fc.tuple(...order.map(([name, value]) => written(name).map((text) => [text, value] as const)))
    ),
    space
  ).map(([members, gap]) =>
    `${gap}{${gap}${members.map(([name, value]) => `${name}${gap}:${gap}${value}`).join(`${gap},${gap}`)}${gap}}${gap}`
  )

// Pieces that matter to a reader of JSON.
const piece = fc.oneof(
  fc.constantFrom(
    ..."{}[],:\"\\-+.0eE1 \n\t",
    "true",
    "null",
    "NaN",
    "Infinity",
    "-0",
    "00",
    "1.0",
    "1e1",
    "\\u0061",
    "/**/",
    "\ufeff"
  )
    .map(bytes),
  fc.uint8Array({ minLength: 1, maxLength: 2 })
)

const mutated = (text: string) =>
  fc.array(fc.tuple(fc.nat(), fc.nat({ max: 3 }), piece), { maxLength: 2 }).map((edits) =>
    edits.reduce((output, [where, length, what]) => {
      const at = where % (output.length + 1)
      return Uint8Array.from([...output.subarray(0, at), ...what, ...output.subarray(at + length)])
    }, bytes(text))
  )

const cases: fc.Arbitrary<Case> = totals.chain((entries) =>
  object(entries).chain(mutated).map((output) => ({ output, expected: new Map(entries) }))
)

// The one thing that Python's reader can't be told: it reads minus zero as zero.
const hasMinusZero = (output: Uint8Array) => /-0(?![0-9.eE])/.test(new TextDecoder().decode(output))

describe("Totals.grade and Python's json", () => {
  it("agree on generated and mutated outputs", () => {
    const samples = fc.sample(cases, { numRuns: 6000, seed: 20260801 }).filter(({ output }) => !hasMinusZero(output))
    const judged = ask(samples)
    const ours = samples.map(({ expected, output }) => grade(expected)(output).score)
    samples.forEach(({ output }, index) =>
      assert.strictEqual(ours[index], judged[index]?.score, JSON.stringify(new TextDecoder().decode(output)))
    )
    // Both answers are there, or this would say nothing.
    assert.isAbove(ours.filter((score) => score === 1).length, 500)
    assert.isAbove(ours.filter((score) => score === 0).length, 500)
  }, 60_000)

  it("differ on purpose where Python's json is lenient", () => {
    const expected = new Map([["a", 1n]])
    const lenient: ReadonlyArray<readonly [what: string, output: Uint8Array]> = [
      ["a byte order mark", bytes("\ufeff{\"a\": 1}")],
      ["UTF-16", new Uint8Array(Buffer.from("{\"a\": 1}", "utf16le"))],
      ["a key that occurs twice", bytes("{\"a\": 2, \"a\": 1}")],
      ["NaN", bytes("{\"a\": 1, \"b\": NaN}")],
      ["Infinity", bytes("{\"a\": -Infinity}")],
      ["minus zero", bytes("{\"a\": -0}")]
    ]
    const judged = ask(lenient.map(([, output]) => ({ output, expected })))
    lenient.forEach(([what, output], index) => {
      assert.isTrue(judged[index]?.isPlainlyRead, what)
      assert.strictEqual(grade(expected)(output).score, 0, what)
    })
    assert.strictEqual(grade(new Map([["a", 0n]]))(bytes("{\"a\": -0}")).reason, "output-malformed")
  })
})

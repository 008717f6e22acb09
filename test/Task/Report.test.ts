import { assert, describe, it } from "@effect/vitest"
import { Effect, Either, FastCheck as fc, JSONSchema, Option, Schema } from "effect"
import { createHash } from "node:crypto"
import { readFileSync } from "node:fs"
import { openVerification } from "../../src/internal/verification.ts"
import type { InvalidTask } from "../../src/Task.ts"
import * as Report from "../../src/Task/Report.ts"
import { key, written } from "../jsonText.ts"

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text)
const text = (utf8: Uint8Array | undefined): string => new TextDecoder().decode(utf8)

/** The parts of a good file, as JSON text. */
const good = {
  id: `"a-task"`,
  prompt: `"Repair it."`,
  input: `"region,amount\\neast,1\\n"`,
  expected: `{"east": 1}`,
  verification: `{"input": "region,amount\\nnorth,2\\n", "expected": {"north": 2}}`
}

/** A file with some fields changed; one that is undefined is left out. */
const fileWith = (changes: Readonly<Record<string, string | undefined>>): Uint8Array =>
  bytes(
    `{${
      Object.entries({ ...good, ...changes })
        .flatMap(([field, value]) => value === undefined ? [] : [`\n  ${JSON.stringify(field)}: ${value}`])
        .join(",")
    }\n}\n`
  )

const refusal = (file: Uint8Array): Effect.Effect<InvalidTask> =>
  Effect.map(Effect.either(Report.decode(file)), (decoded) => {
    assert(Either.isLeft(decoded), "the file was accepted")
    return decoded.left
  })

const issuesOf = (file: Uint8Array) => Effect.map(refusal(file), (error) => error.issues)

const verificationInput = (input: string, expected = `{"north": 2}`): string =>
  `{"input": ${input}, "expected": ${expected}}`

const paths = (file: Uint8Array) => Effect.map(issuesOf(file), (issues) => issues.map(({ path }) => path))

describe("Report.decode", () => {
  it.effect("makes the canonical task", () =>
    Effect.gen(function*() {
      const file = fileWith({ starter: `"print(1)"`, solution: `"print(2)"` })
      const { solution, starter, task, visible } = yield* Report.decode(file)
      assert.strictEqual(task.id, "a-task")
      assert.strictEqual(task.prompt, "Repair it.")
      assert.strictEqual(task.submission, "/home/user/work/report.py")
      assert.deepStrictEqual(task.workspace.map((each) => [each.path, text(each.bytes)]), [
        ["/home/user/work/report.py", "print(1)"],
        ["/home/user/work/sales.csv", "region,amount\neast,1\n"]
      ])
      assert.strictEqual(starter, "print(1)")
      assert.strictEqual(Option.getOrThrow(solution), "print(2)")
      assert.deepStrictEqual(visible.expected, new Map([["east", 1n]]))
      const held = openVerification(task.verification)
      assert.deepStrictEqual(held.files.map((each) => [each.path, text(each.bytes)]), [
        ["/home/user/work/sales.csv", "region,amount\nnorth,2\n"]
      ])
      assert.deepStrictEqual(held.command, ["python3", "-B", "/home/user/work/report.py"])
      assert.strictEqual(held.cwd, "/home/user/work")
      assert.deepStrictEqual(held.grader, { _tag: "Totals", expected: new Map([["north", 2n]]) })
    }))

  it.effect("names the exact version of the file by its digest", () =>
    Effect.gen(function*() {
      const file = fileWith({})
      const { task } = yield* Report.decode(file)
      assert.strictEqual(task.digest, createHash("sha256").update(file).digest("hex"))
      const respaced = yield* Report.decode(Uint8Array.from([...file, 0x0a]))
      assert.notStrictEqual(respaced.task.digest, task.digest)
    }))

  it.effect("has a starter and no solution where the file has none", () =>
    Effect.gen(function*() {
      const { solution, starter, task } = yield* Report.decode(fileWith({}))
      assert.strictEqual(starter, Report.defaultStarter)
      assert.strictEqual(text(task.workspace[0]?.bytes), Report.defaultStarter)
      assert.isTrue(Option.isNone(solution))
    }))

  it.effect.prop("keeps every region and every digit", [
    fc.uniqueArray(fc.tuple(key, fc.bigInt({ min: -(10n ** 100n), max: 10n ** 100n })), {
      selector: ([region]) => region
    }).chain((entries) =>
      fc.tuple(
        fc.constant(entries),
        fc.tuple(...entries.map(([region, total]) => written(region).map((name) => `${name}: ${total}`)))
      )
    )
  ], ([[entries, members]]) =>
    Effect.gen(function*() {
      const totals = `{${members.join(", ")}}`
      const { task, visible } = yield* Report.decode(
        fileWith({ expected: totals, verification: verificationInput(`"x"`, totals) })
      )
      assert.deepStrictEqual(visible.expected, new Map(entries))
      assert.deepStrictEqual(openVerification(task.verification).grader, {
        _tag: "Totals",
        expected: new Map(entries)
      })
    }))

  it.effect("takes carriage returns, NUL, Unicode and an empty object of totals as they are", () =>
    Effect.gen(function*() {
      const input = "region,amount\r\nÎle-de-France,-3\r\n東京,0\r\n\u0000😀,1\r\n"
      const { task } = yield* Report.decode(fileWith({ input: JSON.stringify(input), expected: "{}" }))
      assert.strictEqual(text(task.workspace[1]?.bytes), input)
    }))

  it.effect("takes texts up to their caps in bytes", () =>
    Effect.gen(function*() {
      const fill = (size: number) => JSON.stringify("é".repeat(size / 2))
      yield* Report.decode(fileWith({
        prompt: fill(64 * 1024),
        input: fill(1024 * 1024),
        verification: verificationInput(fill(1024 * 1024)),
        starter: fill(64 * 1024),
        solution: fill(64 * 1024)
      }))
    }))

  it.effect("reports every issue, each with its path", () =>
    Effect.gen(function*() {
      const found = yield* paths(bytes(`{
        "id": "A",
        "prompt": "",
        "input": 5,
        "expected": {"north": 1.5, "New York": "2", "south": -0, "__proto__": true, "east": 1, "east": 2},
        "verification": {"expected": [1], "held_out": ""},
        "starter": null,
        "solutions": "",
        "__proto__": {}
      }`))
      assert.sameMembers([...found], [
        "id",
        "prompt",
        "input",
        "expected.north",
        "expected[\"New York\"]",
        "expected.south",
        "expected.__proto__",
        "expected.east",
        "verification.input",
        "verification.expected",
        "verification.held_out",
        "starter",
        "solutions",
        "__proto__"
      ])
    }))

  it.effect.each(Object.keys(good))("says that %s is missing", (field) =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* issuesOf(fileWith({ [field]: undefined })), [
        { path: field, message: "is missing; add it" }
      ])
    }))

  it.effect.each(
    [
      ["id", `"a task"`],
      ["id", `""`],
      ["id", `5`],
      ["prompt", `""`],
      ["prompt", `["Repair it."]`],
      ["prompt", JSON.stringify("é".repeat(32 * 1024) + "x")],
      ["input", `""`],
      ["input", `null`],
      ["input", `"\\ud800"`],
      ["input", JSON.stringify("x".repeat(1024 * 1024 + 1))],
      ["expected", `[]`],
      ["expected", `"{}"`],
      ["expected", `null`],
      ["starter", `""`],
      ["starter", JSON.stringify("x".repeat(64 * 1024 + 1))],
      ["solution", `false`],
      ["solution", JSON.stringify("x".repeat(64 * 1024 + 1))],
      ["verification", `"north"`],
      ["verification", `[]`],
      ["unknown", `0`]
    ] as const
  )("refuses %s", ([field, value]) =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* paths(fileWith({ [field]: value })), [field])
    }))

  it.effect.each(["15.0", "1.5e1", "1e2", "-0", "\"15\"", "true", "null", "{}", "[15]"])(
    "refuses a total of %s",
    (total) =>
      Effect.gen(function*() {
        const issues = yield* issuesOf(fileWith({ verification: verificationInput(`"x"`, `{"north": ${total}}`) }))
        assert.deepStrictEqual(issues.map(({ path }) => path), ["verification.expected.north"])
        assert.include(issues[0].message, "is not an integer; write it in digits")
      })
  )

  it.effect("refuses keys that occur twice, with path and place, escaped or not", () =>
    Effect.gen(function*() {
      const issues = yield* issuesOf(
        bytes(`{"id": "a",\n "\\u0069d": "b", ${
          Object.entries(good).slice(1).map(([field, value]) => `${JSON.stringify(field)}: ${value}`).join(", ")
        }}`)
      )
      assert.deepStrictEqual(issues, [{
        path: "id",
        message: "occurs twice, again at line 2, column 2; keep one of them"
      }])
    }))

  it.effect.each(
    [
      ["nothing", bytes(""), "line 1, column 1: not JSON"],
      ["a trailing comma", bytes("{\n  \"id\": \"a\",\n}"), "line 3, column 1: not JSON"],
      ["a comment", bytes("{\n  // a task\n}"), "line 2, column 3: not JSON"],
      ["NaN", bytes("{\"expected\": {\"a\": NaN}}"), "line 1, column 20: not JSON"],
      ["depth", bytes("[".repeat(100_000) + "]".repeat(100_000)), "line 1, column 65: nested deeper"],
      ["unfinished depth", bytes("[".repeat(100_000)), "not JSON"],
      ["a byte order mark", bytes("\ufeff{}"), "the file starts with a byte order mark"],
      ["broken UTF-8", Uint8Array.of(0x7b, 0x80, 0x7d), "the file is not UTF-8"],
      ["size", new Uint8Array(4 * 1024 * 1024 + 1), "the file is longer than 4 MiB"],
      ["a list", bytes("[]"), "the file is not an object"],
      ["a number", bytes("1"), "the file is not an object"]
    ] as const
  )("refuses the file as a whole: %s", ([, file, message]) =>
    Effect.gen(function*() {
      const [issue, ...others] = yield* issuesOf(file)
      assert.deepStrictEqual(others, [])
      assert.strictEqual(issue.path, "")
      assert.include(issue.message, message)
    }))

  it.effect("tells the first hundred of mistakes without end, and how many more there are", () =>
    Effect.gen(function*() {
      const entries = Array.from({ length: 10_000 }, (_, key) => `"k${key}": 0.5`).join()
      const issues = yield* issuesOf(fileWith({ expected: `{${entries}}`, other: "1" }))
      assert.lengthOf(issues, 101)
      assert.deepStrictEqual(issues[100], { path: "", message: "and 9901 more mistakes; correct these first" })
    }))

  it.effect("has a message of one line an issue", () =>
    Effect.gen(function*() {
      const error = yield* refusal(
        fileWith({ prompt: `""`, expected: `{"a\\nb\\u001b[2J": 1.5}`, other: "1" })
      )
      assert.strictEqual(error.issues.length, 3)
      assert.strictEqual(error.message.split("\n").length, 3)
      assert.notMatch(error.message, /[^\n\u0020-\u{10ffff}]/u)
      assert.include(error.message, `expected["a\\nb\\u001b[2J"]: is not an integer`)
    }))

  it.effect.prop(
    "ends in a task or in issues on any bytes",
    [
      fc.oneof(
        fc.uint8Array(),
        fc.json().map(bytes),
        fc.tuple(fc.constantFrom(...Object.keys(good), "x"), fc.json()).map(
          ([field, value]) => fileWith({ [field]: value })
        )
      )
    ],
    ([file]) => Effect.asVoid(Effect.either(Report.decode(file))),
    { fastCheck: { numRuns: 500 } }
  )
})

describe("the shipped task", () => {
  const shipped = new Uint8Array(readFileSync(new URL("../../task.json", import.meta.url)))
  const defect = `totals[row["region"]] = int(row["amount"])`
  const repair = `totals[row["region"]] = totals.get(row["region"], 0) + int(row["amount"])`

  it.effect("is valid, and its repair is an edit of one line", () =>
    Effect.gen(function*() {
      const { solution, starter, task, visible } = yield* Report.decode(shipped)
      assert.strictEqual(task.id, "weekly-sales")
      assert.strictEqual(starter, Report.defaultStarter)
      assert.strictEqual(starter.split("\n").filter((line) => line.trim() === defect).length, 1)
      assert.strictEqual(Option.getOrThrow(solution), starter.replace(defect, repair))
      assert.deepStrictEqual(visible.expected, new Map([["east", 15n], ["west", 7n]]))
      assert.deepStrictEqual(openVerification(task.verification).grader, {
        _tag: "Totals",
        expected: new Map([["north", 11n], ["south", 5n]])
      })
    }))

  it.effect("tells the policy nothing of the held-out half or the totals", () =>
    Effect.gen(function*() {
      const { task } = yield* Report.decode(shipped)
      const told = [task.prompt, ...task.workspace.map((each) => text(each.bytes))].join("\n")
      assert.notMatch(told, /north|south|\b11\b|\b15\b/)
    }))
})

describe("Report.TaskFile", () => {
  it("describes the format to editors", () => {
    const totals = {
      type: "object",
      additionalProperties: { type: "integer" },
      description: "An integer of any size for each key that a right program prints."
    }
    const described = JSONSchema.make(Report.TaskFile)
    assert.deepInclude(described, {
      type: "object",
      required: ["id", "prompt", "input", "expected", "verification"],
      additionalProperties: false
    })
    assert.deepNestedInclude(described, {
      "properties.expected": totals,
      "properties.verification.properties.expected": totals,
      "properties.verification.additionalProperties": false
    })
  })

  it.effect("encodes what it decodes", () =>
    Effect.gen(function*() {
      const totals = Object.fromEntries([["__proto__", 10n ** 30n], ["north", -1n]])
      const file = {
        id: "a",
        prompt: "b",
        input: "c",
        expected: totals,
        verification: { input: "d", expected: totals }
      }
      const decoded = yield* Schema.decodeUnknown(Report.TaskFile)(file)
      assert.deepStrictEqual(decoded.expected, new Map(Object.entries(totals)))
      assert.deepStrictEqual(yield* Schema.encode(Report.TaskFile)(decoded), file)
    }))
})

/** Task files as people write them, by the program as it is built: refused with every reason, or proved to work. */
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { directory, episode, receiptOf, taskText, write } from "./commandLine.ts"

const check = (content: string | Uint8Array, ...flags: ReadonlyArray<string>) =>
  Effect.scoped(Effect.gen(function*() {
    const folder = yield* directory
    write(folder, "task.json", content)
    return yield* episode(["task", "check", "task.json", ...flags], { cwd: folder })
  }))

const csv = (rows: ReadonlyArray<readonly [region: string, amount: string]>, end = "\n") =>
  [["region", "amount"], ...rows].map((row) => `${row.join(",")}${end}`).join("")

// `JSON.stringify` can't write an integer of any size.
const totals = (of: Readonly<Record<string, string>>) =>
  `{${Object.entries(of).map(([region, total]) => `${JSON.stringify(region)}:${total}`).join(",")}}`

/** A file of the shipped task with other data; its totals are written as they are given. */
const dataTask = (options: {
  readonly input: string
  readonly expected: Readonly<Record<string, string>>
  readonly heldOut: string
  readonly heldOutExpected: Readonly<Record<string, string>>
}) =>
  taskText({
    input: options.input,
    expected: "@shown@",
    verification: { input: options.heldOut, expected: "@held out@" }
  }).replace("\"@shown@\"", totals(options.expected)).replace("\"@held out@\"", totals(options.heldOutExpected))

const huge = "123456789012345678901234567890"

describe("task check", () => {
  const invalid: ReadonlyArray<readonly [what: string, content: string | Uint8Array, words: ReadonlyArray<string>]> = [
    ["not UTF-8", Uint8Array.of(0x7b, 0xff, 0x7d), ["not UTF-8"]],
    ["with a byte order mark", `\ufeff${taskText({})}`, ["byte order mark"]],
    ["not JSON", taskText({}).replace("{", "{,"), ["line 1", "not JSON"]],
    ["of two documents", taskText({}).repeat(2), ["not JSON"]],
    ["no object", "[]", ["is not an object"]],
    ["with a key twice", taskText({}).replace("{", "{\"id\":\"twice\","), ["id: occurs twice"]],
    ["with an unknown field", taskText({ "\u001b[31m": 1 }), ["u001b[31m", "is unexpected"]],
    [
      "wrong in several ways at once",
      taskText({ id: "No Id", prompt: 7, verification: undefined }),
      ["id: is not an id", "prompt: is not a string", "verification: is missing"]
    ],
    ["with a fraction", taskText({}).replace("15", "15.0"), ["expected.east: is not an integer"]],
    ["with an exponent", taskText({}).replace("15", "1.5e1"), ["expected.east: is not an integer"]],
    ["with a minus zero", taskText({}).replace("15", "-0"), ["expected.east: is not an integer"]],
    ["with a string", taskText({ expected: { east: "15" } }), ["expected.east: is not an integer"]]
  ]

  it.live.each(invalid)(
    "refuses a file %s, and says why",
    ([, content, words]) =>
      Effect.map(check(content), ({ code, stderr, stdout }) => {
        assert.deepStrictEqual([code, stdout], [2, ""])
        assert.include(stderr, "task.json is not a valid task")
        assert.notInclude(stderr, "\u001b")
        words.forEach((word) => assert.include(stderr, word))
      })
  )

  it.live("accepts the shipped task", () =>
    Effect.map(check(taskText({})), ({ code, stderr, stdout }) => {
      assert.deepStrictEqual([code, stderr, stdout], [0, "", "task.json: a valid task, weekly-sales\n"])
    }))

  const solvable: ReadonlyArray<readonly [what: string, content: string]> = [
    [
      "negative, zero and huge totals, to the last digit",
      dataTask({
        input: csv([["a", "-7"], ["zero", "5"], ["zero", "-5"], ["a", "-8"]]),
        expected: { a: "-15", zero: "0" },
        heldOut: csv([["huge", huge], ["huge", "1"], ["less", `-${huge}`], ["less", "-1"]]),
        heldOutExpected: { huge: "123456789012345678901234567891", less: "-123456789012345678901234567891" }
      })
    ],
    [
      "regions of any script, and keys that are special elsewhere",
      dataTask({
        input: csv([["\u00e9", "1"], ["e\u0301", "2"], ["\u00e9", "3"], ["\ud83d\ude00", "4"]]),
        expected: { "\u00e9": "4", "e\u0301": "2", "\ud83d\ude00": "4" },
        heldOut: csv([["__proto__", "1"], ["__proto__", "2"], ["\u6771\u4eac", "3"], ["", "4"], [
          "\"a \"\"b\"\", c\"",
          "5"
        ]]),
        heldOutExpected: { "\u6771\u4eac": "3", "": "4", "a \"b\", c": "5", ["__proto__"]: "3" }
      })
    ],
    [
      "lines that end in CR LF",
      dataTask({
        input: csv([["a", "1"], ["a", "2"]], "\r\n"),
        expected: { a: "3" },
        heldOut: csv([["b", "1"], ["b", "2"]], "\r\n").trimEnd(),
        heldOutExpected: { b: "3" }
      })
    ]
  ]

  it.live.each(solvable)("proves a task with %s", ([, content]) =>
    Effect.gen(function*() {
      const { code, stderr, stdout } = yield* check(content, "--run", "--json")
      assert.strictEqual(code, 0, stderr)
      assert.deepStrictEqual((yield* receiptOf(stdout)).rewards, [0, 1])
    }))

  const unsolvable: ReadonlyArray<readonly [what: string, content: string, words: string]> = [
    [
      "whose held-out total is off by one in thirty digits",
      dataTask({
        input: csv([["a", "1"], ["a", "2"]]),
        expected: { a: "3" },
        heldOut: csv([["a", huge], ["a", "1"]]),
        heldOutExpected: { a: huge }
      }),
      "the solution doesn't solve the task: wrong-totals"
    ],
    [
      "whose program isn't broken",
      dataTask({
        input: csv([["a", "1"], ["a", "2"]]),
        expected: { a: "3" },
        heldOut: csv([["a", "1"]]),
        heldOutExpected: { a: "1" }
      }),
      "isn't broken"
    ],
    [
      "whose shown totals are wrong",
      taskText({ expected: { east: 16, west: 7 } }),
      "`expected` isn't what the solution"
    ]
  ]

  it.live.each(unsolvable)(
    "disproves a task %s",
    ([, content, words]) =>
      Effect.map(check(content, "--run"), ({ code, stderr }) => {
        assert.strictEqual(code, 1, stderr)
        assert.include(stderr, words)
      })
  )

  it.live("can't prove a task without a solution", () =>
    Effect.map(check(taskText({ solution: undefined }), "--run"), ({ code, stderr }) => {
      assert.strictEqual(code, 2)
      assert.include(stderr, "has no solution")
    }))
})

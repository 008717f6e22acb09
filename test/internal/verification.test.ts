import { assert, describe, it } from "@effect/vitest"
import { Cause, Effect, HashMap, Inspectable, Logger } from "effect"
import { inspect } from "node:util"
import { serialize } from "node:v8"
import { openVerification, SealedVerification } from "../../src/internal/verification.ts"
import { SandboxPath, verification } from "../../src/Task.ts"

const contents = {
  files: [{ path: SandboxPath.make("/home/held-out.csv"), bytes: new TextEncoder().encode("held-out") }],
  command: ["held-out"],
  cwd: SandboxPath.make("/home"),
  grader: { _tag: "Totals", expected: new Map([["held-out", 4711n]]) }
} as const

// Text, digits, and the bytes of the text as an inspector would list them.
const leak = /held-out|4711|104, ?101, ?108|68 65 6c/

const sealed = verification(contents)

const everywhere = { inspect: true, depth: Infinity, maxArrayLength: Infinity, getters: true } as const

describe("a sealed verification", () => {
  it("opens for the grading room", () => {
    assert.strictEqual(openVerification(sealed), contents)
  })

  it("can't be forged", () => {
    assert.throws(() => openVerification(new SealedVerification()), TypeError)
  })

  it.each([
    ["JSON", () => JSON.stringify({ task: { verification: sealed } })],
    ["String", () => String(sealed)],
    ["a template", () => `${sealed}`],
    ["an inspector", () => inspect({ verification: sealed }, everywhere)],
    ["an inspector that shows hidden parts", () => inspect({ sealed }, { ...everywhere, showHidden: true })],
    [
      "an inspector that ignores custom views",
      () => inspect({ sealed }, { ...everywhere, showHidden: true, customInspect: false })
    ],
    ["spreading", () => inspect({ ...sealed }, everywhere)],
    ["assigning", () => inspect(Object.assign({}, sealed), everywhere)],
    ["own and inherited keys", () => {
      const names: Array<PropertyKey> = []
      for (let each: unknown = sealed; typeof each === "object" && each !== null; each = Object.getPrototypeOf(each)) {
        names.push(...Reflect.ownKeys(each))
      }
      return names.map(String).join(", ")
    }],
    ["a structured clone", () => inspect(structuredClone(sealed), everywhere)],
    ["V8's serializer", () => serialize(sealed).toString("latin1")],
    ["Effect's inspection", () => Inspectable.toStringUnknown({ sealed })],
    ["an Effect collection", () => HashMap.make(["sealed", sealed]).toString()],
    ["a failure", () => Cause.pretty(Cause.fail({ sealed }))],
    ["a defect", () => inspect(Cause.die(sealed), everywhere)]
  ])("shows nothing to %s", (_, show) => {
    assert.notMatch(show(), leak)
  })

  it.effect.each(
    [
      ["json", Logger.jsonLogger],
      ["logfmt", Logger.logfmtLogger],
      ["string", Logger.stringLogger],
      ["structured", Logger.map(Logger.structuredLogger, (entry) => inspect(entry, everywhere))]
    ] as const
  )("shows nothing to the %s logger", ([, logger]) =>
    Effect.gen(function*() {
      const lines: Array<string> = []
      yield* Effect.log("a task", sealed, { verification: sealed }).pipe(
        Effect.annotateLogs({ verification: sealed }),
        Effect.withLogSpan("reset"),
        Effect.provide(Logger.replace(Logger.defaultLogger, Logger.map(logger, (line) => lines.push(line))))
      )
      assert.strictEqual(lines.length, 1)
      assert.notMatch(lines.join("\n"), leak)
    }))
})

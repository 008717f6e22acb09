import { assert, describe, it } from "@effect/vitest"
import { FastCheck as fc, Schema } from "effect"
import { finished, fromResult, Observation, render, submitted } from "../../src/Episode/Observation.ts"
import { collector } from "../../src/Sandbox/Output.ts"

const capture = (output: string | Uint8Array, cap = 1024) => {
  const collected = collector(cap)
  collected.push(typeof output === "string" ? new TextEncoder().encode(output) : output)
  return collected.result()
}

const observe = (stdout: string, stderr = "", exitCode = 0, killedAtLimit = false) =>
  fromResult({ stdout: capture(stdout), stderr: capture(stderr), exitCode, killedAtLimit })

describe("fromResult", () => {
  it.prop("keeps text that fits as it is", [fc.fullUnicodeString({ maxLength: 200 })], ([text]) => {
    const observation = observe(text)
    assert.strictEqual(observation.stdout, text)
    assert.isFalse(observation.truncated)
  })

  it.prop(
    "says how much it left out, and never shows half a character",
    [fc.fullUnicodeString({ minLength: 40, maxLength: 80 }), fc.integer({ min: 2, max: 30 })],
    ([text, cap]) => {
      const whole = new TextEncoder().encode(text)
      const { stdout, truncated } = fromResult({
        stdout: capture(whole, cap),
        stderr: capture(""),
        exitCode: 0,
        killedAtLimit: false
      })
      assert.isTrue(truncated)
      const mark = `\n[... ${whole.length - cap} of ${whole.length} bytes left out ...]\n`
      const at = stdout.indexOf(mark)
      assert.isTrue(at >= 0)
      // Both ends are the text's own: a broken character would have become another one.
      assert.isTrue(text.startsWith(stdout.slice(0, at)))
      assert.isTrue(text.endsWith(stdout.slice(at + mark.length)))
    }
  )

  it("replaces what isn't UTF-8", () => {
    const { stdout } = fromResult({
      stdout: capture(Uint8Array.of(0x61, 0xff, 0x62)),
      stderr: capture(""),
      exitCode: 0,
      killedAtLimit: false
    })
    assert.strictEqual(stdout, "a\ufffdb")
  })

  it.prop("can be written down", [fc.fullUnicodeString(), fc.integer({ min: 0, max: 255 })], ([text, exitCode]) => {
    const observation = observe(text, text, exitCode)
    assert.deepStrictEqual(Schema.decodeSync(Observation)(Schema.encodeSync(Observation)(observation)), observation)
  })
})

describe("render", () => {
  it("shows standard output, then standard error, then the end", () => {
    assert.strictEqual(render(observe("out", "err\n", 3)), "out\nerr\n[exit code 3]")
    assert.strictEqual(render(observe("out\n", "", 137, true)), "out\n[killed at the time limit]")
    assert.strictEqual(render(observe("out\n")), "out")
  })

  it("is never empty", () => {
    assert.strictEqual(render(observe("")), "(no output)")
    assert.strictEqual(render(observe("\n\n")), "(no output)")
    assert.strictEqual(render(finished), "The episode is finished; nothing was run.")
    assert.strictEqual(render(submitted), "Submitted. The episode is finished.")
  })
})

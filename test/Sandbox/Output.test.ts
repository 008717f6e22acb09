import { assert, describe, it } from "@effect/vitest"
import { FastCheck as fc } from "effect"
import { collector } from "../../src/Sandbox/Output.ts"

const chunks = fc.array(fc.uint8Array({ maxLength: 12 }), { maxLength: 12 })

const collect = (cap: number, pushed: ReadonlyArray<Uint8Array>) => {
  const output = collector(cap)
  pushed.forEach(output.push)
  return output.result()
}

describe("collector", () => {
  it.prop("keeps the same head and tail however a stream is cut", [chunks, fc.nat(40)], ([pushed, cap]) => {
    const whole = Uint8Array.from(pushed.flatMap((chunk) => [...chunk]))
    const headCap = Math.ceil(cap / 2)
    const head = whole.slice(0, headCap)
    assert.deepStrictEqual(collect(cap, pushed), {
      head,
      tail: whole.slice(Math.max(head.length, whole.length - (cap - headCap))),
      totalBytes: whole.length
    })
  }, { fastCheck: { numRuns: 2000 } })

  it.prop("loses nothing under the cap", [chunks, fc.nat(8)], ([pushed, spare]) => {
    const whole = pushed.flatMap((chunk) => [...chunk])
    const { head, tail } = collect(whole.length + spare, pushed)
    assert.deepStrictEqual([...head, ...tail], whole)
  })

  it.prop("can be asked in between, and its results don't change later", [chunks, fc.integer({ min: 1, max: 20 })], ([
    pushed,
    cap
  ]) => {
    const output = collector(cap)
    const results = pushed.map((chunk) => {
      output.push(chunk)
      return output.result()
    })
    results.forEach((result, index) => assert.deepStrictEqual(result, collect(cap, pushed.slice(0, index + 1))))
  })

  it("copies what it keeps: a reader may use its buffer again", () => {
    const output = collector(8)
    const buffer = new Uint8Array(6)
    for (const byte of [1, 2]) {
      output.push(buffer.fill(byte))
    }
    buffer.fill(9)
    assert.deepStrictEqual(output.result(), {
      head: Uint8Array.of(1, 1, 1, 1),
      tail: Uint8Array.of(2, 2, 2, 2),
      totalBytes: 12
    })
  })

  it("holds no more than the cap of a long stream", () => {
    const cap = 64 * 1024
    const output = collector(cap)
    const chunk = new Uint8Array(1024 * 1024)
    for (let index = 0; index < 1024; index++) {
      output.push(chunk)
    }
    const { head, tail, totalBytes } = output.result()
    assert.strictEqual(totalBytes, 1024 * chunk.length)
    assert.strictEqual(head.buffer.byteLength + tail.buffer.byteLength, cap)
  })
})

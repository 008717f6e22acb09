/**
 * Bounded memory for what comes out of a sandbox: head and tail are kept, the middle is counted and dropped.
 *
 * @since 0.1.0
 */
import type { CapturedOutput } from "../Sandbox.ts"

/**
 * Collects one stream under a cap. For providers: push every chunk as it is read, then take the result.
 *
 * @since 0.1.0
 * @category models
 */
export interface OutputCollector {
  readonly push: (chunk: Uint8Array) => void
  readonly result: () => CapturedOutput
}

/**
 * A collector that never holds more than `cap` bytes and a single chunk: the first half of the cap from the front, the
 * rest from the end.
 *
 * @since 0.1.0
 * @category constructors
 */
export const collector = (cap: number): OutputCollector => {
  const headCap = Math.ceil(cap / 2)
  const tailCap = cap - headCap
  // Both begin empty: most outputs are a few lines, and clearing the whole cap for each costs more than reading them.
  let head = new Uint8Array(0)
  let headed = 0
  // A ring: the newest `tailCap` bytes, `end` being where the next one goes.
  let ring = new Uint8Array(0)
  let end = 0
  let ringed = 0
  let totalBytes = 0
  return {
    push: (chunk) => {
      totalBytes += chunk.length
      const room = headCap - headed
      const front = chunk.subarray(0, room)
      if (headed + front.length > head.length) {
        const grown = new Uint8Array(Math.min(headCap, Math.max(2 * head.length, headed + front.length)))
        grown.set(head.subarray(0, headed))
        head = grown
      }
      head.set(front, headed)
      headed += front.length
      const rest = chunk.subarray(front.length)
      if (tailCap === 0 || rest.length === 0) {
        return
      }
      if (ring.length === 0) {
        ring = new Uint8Array(tailCap)
      }
      const kept = rest.subarray(Math.max(0, rest.length - tailCap))
      const first = kept.subarray(0, tailCap - end)
      ring.set(first, end)
      ring.set(kept.subarray(first.length), 0)
      end = (end + kept.length) % tailCap
      ringed = Math.min(tailCap, ringed + kept.length)
    },
    result: () => {
      const tail = new Uint8Array(ringed)
      const start = (end - ringed + tailCap) % Math.max(1, tailCap)
      const first = ring.subarray(start, Math.min(tailCap, start + ringed))
      tail.set(first)
      tail.set(ring.subarray(0, ringed - first.length), first.length)
      return { head: head.slice(0, headed), tail, totalBytes }
    }
  }
}

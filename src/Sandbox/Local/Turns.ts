/**
 * Turns of the event loop, for work that blocks it: done by many at once, it would hold up everybody else.
 */
import * as Effect from "effect/Effect"

/** Lets everything else that is due happen first. */
export const next: Effect.Effect<void> = Effect.async((resume) => {
  const immediate = setImmediate(() => resume(Effect.void))
  return Effect.sync(() => clearImmediate(immediate))
})

// What is held up by a few milliseconds doesn't notice.
const longest = 4

/** A queue in which those wait for the next turn who come when this one is used up, in the order in which they came. */
export const queue = (): Effect.Effect<void> => {
  let began = -Infinity
  const mine = Effect.suspend(() =>
    performance.now() - began < longest ? Effect.void : Effect.map(next, () => {
      began = performance.now()
    })
  )
  return Effect.unsafeMakeSemaphore(1).withPermits(1)(mine)
}

import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Runtime from "effect/Runtime"

/**
 * Starts an effect in a fiber of its own. It can be interrupted even where its starter can't, and only by its own name: no
 * interruption of the starter reaches it.
 *
 * Unlike a fork it begins at once, and returns when it has to wait for the first time. What never waits is over by then, and
 * whoever started it needs no timer and no race: that is what most of the time of a short request went into.
 */
export const start = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<Fiber.RuntimeFiber<A, E>, never, R> =>
  Effect.map(
    Effect.runtime<R>(),
    (runtime) =>
      // What it fails with is its starter's to handle, and not an unhandled error.
      Runtime.runFork(runtime)(Effect.withUnhandledErrorLogLevel(Effect.interruptible(effect), Option.none()))
  )

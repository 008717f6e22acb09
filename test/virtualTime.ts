import { Clock, Deferred, Duration, Effect } from "effect"

// Web Crypto works on another thread: its answer comes at a moment of real time. Virtual time stands still for it.
let computing = 0
const { subtle } = globalThis.crypto
const digest = subtle.digest.bind(subtle)
subtle.digest = (...args) => {
  computing += 1
  return digest(...args).finally(() => {
    computing -= 1
  })
}

interface Sleeper {
  readonly at: number
  readonly wake: () => void
}

// So many turns of the event loop without anything to do mean that nothing will ever happen again.
const patience = 50

const make = () => {
  let now = 0
  let sleepers: Array<Sleeper> = []
  const nanos = () => BigInt(Math.round(now * 1e6))
  const clock: Clock.Clock = {
    [Clock.ClockTypeId]: Clock.ClockTypeId,
    unsafeCurrentTimeMillis: () => now,
    unsafeCurrentTimeNanos: nanos,
    currentTimeMillis: Effect.sync(() => now),
    currentTimeNanos: Effect.sync(nanos),
    sleep: (duration) =>
      Effect.async<void>((resume) => {
        const millis = Duration.toMillis(duration)
        if (millis <= 0) {
          return resume(Effect.void)
        }
        const sleeper = { at: now + millis, wake: () => resume(Effect.void) }
        sleepers.push(sleeper)
        return Effect.sync(() => {
          sleepers = sleepers.filter((other) => other !== sleeper)
        })
      })
  }
  // Moves on to the next moment at which somebody wants to wake; false when nobody does.
  const advance = (): boolean => {
    const next = Math.min(...sleepers.map(({ at }) => at))
    if (!Number.isFinite(next)) {
      return false
    }
    now = next
    const due = sleepers.filter(({ at }) => at <= now)
    sleepers = sleepers.filter(({ at }) => at > now)
    due.forEach(({ wake }) => wake())
    return true
  }
  return { clock, advance }
}

/**
 * Runs an effect in a time of its own, which starts at zero and moves on by itself, from one wake-up to the next, whenever
 * every fiber waits. So a test is written with ordinary sleeps, takes no real time, and goes the same way each time.
 * An effect that waits for something that can never happen dies.
 */
export const virtually = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.gen(function*() {
    const { advance, clock } = make()
    const stuck = yield* Deferred.make<never>()
    yield* Effect.acquireRelease(
      Effect.sync(() => {
        let idle = 0
        const turn = { handle: setImmediate(step) }
        // An immediate runs when no fiber has anything left to do at this moment.
        function step() {
          idle = computing > 0 || advance() ? 0 : idle + 1
          if (idle === patience) {
            Deferred.unsafeDone(stuck, Effect.dieMessage("every fiber waits for something that can't happen any more"))
          }
          turn.handle = setImmediate(step)
        }
        return turn
      }),
      (turn) => Effect.sync(() => clearImmediate(turn.handle))
    )
    return yield* effect.pipe(
      Effect.withClock(clock),
      Effect.disconnect,
      Effect.raceFirst(Deferred.await(stuck))
    )
  }).pipe(Effect.scoped)

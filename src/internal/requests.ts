import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Detached from "./detached.ts"

/** Makes interruptible what the caller of a request lets be interrupted. */
export type Restore = <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>

/** The requests of one session, which is used by one client at a time and may end in the middle of one. */
export interface Requests {
  /** One request at a time. Only what is restored can be interrupted: the bookkeeping around it can't. */
  readonly inTurn: <A, E, R>(request: (restore: Restore) => Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
  /**
   * Does a request's work, in a fiber that is ended here and by nothing else. It is cut by its caller, unless that one has
   * shut interruptions out, and by the end of the session in any case; and is waited for, since it may have to delete.
   */
  readonly work: <A, E, R>(
    restore: Restore,
    work: Effect.Effect<A, E, R>
  ) => Effect.Effect<A, E | "closing", R>
  readonly isClosing: Effect.Effect<boolean>
  /** Cuts the request under way, and those that come. */
  readonly close: Effect.Effect<void>
}

const closed = Effect.fail("closing" as const)

export const make: Effect.Effect<Requests> = Effect.map(Effect.makeSemaphore(1), (turn) => {
  // Nothing else runs in between where these are looked at and changed.
  let isClosing = false
  let tell = () => {}

  const endOf = <A, E>(working: Fiber.RuntimeFiber<A, E>): Effect.Effect<A, E | "closing"> =>
    Effect.async((resume) => {
      working.addObserver(resume)
      tell = () => resume(closed)
      if (isClosing) {
        tell()
      }
    })

  return {
    inTurn: (request) => turn.withPermits(1)(Effect.uninterruptibleMask(request)),
    work: (restore, work) =>
      Effect.flatMap(
        Effect.suspend(() => isClosing ? closed : Detached.start(work)),
        (working) =>
          restore(working.unsafePoll() ?? endOf(working)).pipe(Effect.onError(() => Fiber.interrupt(working)))
      ),
    isClosing: Effect.sync(() => isClosing),
    close: Effect.sync(() => {
      isClosing = true
      tell()
    })
  }
})

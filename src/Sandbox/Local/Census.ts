/**
 * All processes of this machine by their pid namespace. One look serves everybody who asked before it began, and goes by
 * in slices, between which others have their turn.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as FiberId from "effect/FiberId"
import * as Proc from "./Proc.ts"
import { type HostFailed, io } from "./Spawn.ts"
import * as Turns from "./Turns.ts"

export interface Census {
  readonly members: ReadonlyMap<string, ReadonlyArray<number>>
  /** What the look took, without what others did meanwhile. */
  readonly milliseconds: number
}

// A slice of these takes less than a millisecond.
const slice = 50

/** Does something with each of many, in slices; how many milliseconds that took by itself. */
export const each = <A>(many: ReadonlyArray<A>, action: (one: A) => void): Effect.Effect<number, HostFailed> => {
  const from = (start: number, before: number): Effect.Effect<number, HostFailed> =>
    Effect.flatMap(
      io(() => {
        const began = performance.now()
        many.slice(start, start + slice).forEach(action)
        return before + performance.now() - began
      }),
      (spent) =>
        start + slice < many.length ? Effect.andThen(Turns.next, from(start + slice, spent)) : Effect.succeed(spent)
    )
  return from(0, 0)
}

const look: Effect.Effect<Census, HostFailed> = Effect.gen(function*() {
  const members = new Map<string, Array<number>>()
  const milliseconds = yield* each(yield* io(Proc.pids), (pid) => {
    const namespace = Proc.namespace(pid)
    if (namespace !== undefined) {
      const found = members.get(namespace)
      if (found === undefined) {
        members.set(namespace, [pid])
      } else {
        found.push(pid)
      }
    }
  })
  return { members, milliseconds }
})

const one = Effect.unsafeMakeSemaphore(1)

// The look that hasn't begun.
let next: Deferred.Deferred<Census, HostFailed> | undefined

/**
 * A look that begins after this was asked, and not before: what was killed by then and isn't in it is gone. It fails where
 * the host can't tell.
 */
export const take: Effect.Effect<Census, HostFailed> = Effect.suspend(() => {
  if (next !== undefined) {
    return Deferred.await(next)
  }
  const coming = Deferred.unsafeMake<Census, HostFailed>(FiberId.none)
  next = coming
  const begin = Effect.suspend(() => {
    next = undefined
    return look
  })
  // Not the asker's, who may be interrupted: others wait for it as well.
  return Turns.next.pipe(
    Effect.andThen(begin),
    one.withPermits(1),
    Effect.intoDeferred(coming),
    Effect.forkDaemon,
    Effect.andThen(Deferred.await(coming))
  )
})

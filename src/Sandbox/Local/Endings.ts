/**
 * The ends of sandboxes. One fiber looks after all that are ending: a round reads a line of each, and seldom more.
 *
 * The kernel lets the first process of a pid namespace die when everything else in it has ended and was collected, by
 * whomever, and lets nothing in any more. So the death of one that was seen alive proves that its sandbox is gone. Of one
 * that wasn't, as it had ended before or has another number here, a look at all processes does.
 */
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Absence from "./Absence.ts"
import * as Census from "./Census.ts"
import * as Kill from "./Kill.ts"
import * as Proc from "./Proc.ts"
import type { Place } from "./Recipe.ts"
import type { HostFailed } from "./Spawn.ts"

export interface Endings {
  /** Ends a sandbox; whether it is proven gone. */
  readonly end: (place: Place) => Effect.Effect<boolean>
}

interface Ending {
  readonly place: Place
  readonly settle: (gone: boolean) => void
  readonly deadline: number
  round: number
  /** Its first process was seen alive. */
  seen: boolean
}

const limit = Duration.toMillis("10 seconds")

// Most end at once.
const early = 5

// Ever more seldom: in most that take long there is nobody to continue.
const isStuck = ({ round }: Ending): boolean => Number.isInteger(Math.log2(round / early)) && round > early

/** Ends sandboxes until the scope closes. */
export const make: Effect.Effect<Endings, never, Scope.Scope> = Effect.gen(function*() {
  const endings = new Set<Ending>()
  const latch = yield* Effect.makeLatch()

  const kill = (ending: Ending) => {
    // Where the host can't tell, it is asked again in the next round.
    if (Proc.attempt(() => Absence.isAlive(ending.place)) === true) {
      ending.seen = true
      Proc.signal(ending.place.pid, "SIGKILL")
    }
  }

  const round: Effect.Effect<number, HostFailed> = Effect.gen(function*() {
    const unseen: Array<Ending> = []
    const stuck: Array<Ending> = []
    const spent = yield* Census.each([...endings], (ending) => {
      ending.round += 1
      kill(ending)
      const isThere = Proc.attempt(() => Absence.isThere(ending.place))
      if (isThere === false && ending.seen) {
        ending.settle(true)
      } else if (isThere === false) {
        unseen.push(ending)
      } else if (isStuck(ending)) {
        stuck.push(ending)
      }
    })
    if (unseen.length === 0 && stuck.length === 0) {
      return spent
    }
    const census = yield* Census.take
    const proving = yield* Census.each(unseen, (ending) => {
      if (Proc.attempt(() => Absence.isEmpty(census, ending.place)) === true) {
        ending.settle(true)
      }
    })
    const continuing = yield* Census.each(stuck, ({ place }) => Kill.continueParents(census, place))
    return spent + census.milliseconds + proving + continuing
  })

  const look = Effect.gen(function*() {
    const spent = yield* Effect.orElseSucceed(round, () => 0)
    const now = yield* Clock.currentTimeMillis
    for (const ending of endings) {
      if (ending.deadline <= now) {
        ending.settle(false)
      }
    }
    if (endings.size === 0) {
      // At once: nothing may come in between.
      latch.unsafeClose()
      return
    }
    // Half of its time is everybody else's.
    const pause = [...endings].some((ending) => ending.round <= early) ? 1 : 10
    yield* Effect.sleep(Math.max(pause, spent))
  })

  yield* Effect.forkScoped(Effect.interruptible(Effect.forever(latch.whenOpen(look))))
  return {
    end: (place) =>
      Effect.flatMap(Clock.currentTimeMillis, (now) =>
        Effect.async<boolean>((resume) => {
          const ending: Ending = {
            place,
            deadline: now + limit,
            round: 0,
            seen: false,
            settle: (gone) => {
              endings.delete(ending)
              resume(Effect.succeed(gone))
            }
          }
          kill(ending)
          endings.add(ending)
          latch.unsafeOpen()
          return Effect.sync(() => endings.delete(ending))
        }))
  }
})

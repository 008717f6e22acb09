/**
 * Ending a call, or everything in a sandbox but its first process: from outside, whatever the guest does.
 */
import * as Effect from "effect/Effect"
import * as Absence from "./Absence.ts"
import * as Census from "./Census.ts"
import * as Proc from "./Proc.ts"
import { killAllArguments, type Place } from "./Recipe.ts"
import * as Spawn from "./Spawn.ts"

const pause = Effect.sleep("10 millis")

// Where the host can't tell, it is asked again in the next round.
const tryTo = <A>(action: () => A): Effect.Effect<A | undefined> =>
  Effect.orElseSucceed(Spawn.io(action), () => undefined)

/**
 * Goes on with what waits for processes of a sandbox. An nsenter stops itself when its child stops, and a child that isn't
 * collected keeps its namespace from ending.
 */
export const continueParents = (census: Census.Census, { namespace }: Place): void => {
  for (const member of Absence.membersIn(census, namespace)) {
    const parent = Proc.status(member)?.parent
    if (parent !== undefined && parent > 1 && Proc.namespace(parent) !== namespace) {
      Proc.signal(parent, "SIGCONT")
    }
  }
}

interface Known {
  readonly pid: number
  readonly start: string | undefined
}

const guestsOf = (place: Place): Effect.Effect<ReadonlyArray<Known>, Spawn.HostFailed> =>
  Effect.flatMap(
    Census.take,
    (census) =>
      Spawn.io(() =>
        Absence.membersIn(census, place.namespace).filter((pid) => pid !== place.pid).map((pid) => ({
          pid,
          start: Proc.status(pid)?.start
        }))
      )
  )

const isLeft = ({ pid, start }: Known): boolean => {
  const found = Proc.status(pid)
  return !Proc.isDead(found) && found?.start === start
}

// The end of a large process takes a while, and a second kill meanwhile would hit whatever came after it.
const areGone = (known: ReadonlyArray<Known>, rounds: number): Effect.Effect<boolean, Spawn.HostFailed> =>
  Effect.flatMap(
    Spawn.io(() => known.some(isLeft)),
    (some) =>
      !some
        ? Effect.succeed(true)
        : rounds === 0
        ? Effect.succeed(false)
        : Effect.andThen(pause, areGone(known, rounds - 1))
  )

/**
 * Kills all processes of a sandbox but the first. What that does to a command is its result. Those that come later are
 * left alone.
 */
export const guests = (place: Place): Effect.Effect<void> => {
  const loop = (known: ReadonlyArray<Known>, attempts: number): Effect.Effect<void, Spawn.HostFailed> =>
    Effect.gen(function*() {
      yield* Spawn.run(killAllArguments(process.pid, place), { limit: "5 seconds" })
      yield* Effect.ignore(
        Effect.flatMap(Census.take, (census) => Spawn.io(() => continueParents(census, place)))
      )
      // A guest may have killed what was to kill it.
      if (!(yield* areGone(known, 50)) && attempts > 1) {
        yield* loop(known, attempts - 1)
      }
    })
  return guestsOf(place).pipe(
    Effect.flatMap((known) => loop(known, 5)),
    Effect.catchAll(({ detail }) => Effect.logWarning("could not end the processes of a sandbox", detail))
  )
}

const killSession = (child: Spawn.Child, place: Place): Effect.Effect<void, Spawn.HostFailed> =>
  Effect.gen(function*() {
    const leaders = yield* Spawn.io(() => Proc.children(child.pid))
    for (const leader of leaders) {
      Proc.signal(-leader, "SIGKILL")
      Proc.signal(leader, "SIGKILL")
    }
    // What has left the leader's process group is still of its session.
    if (leaders.length > 0) {
      const census = yield* Census.take
      yield* Spawn.io(() => {
        for (const pid of Absence.membersIn(census, place.namespace)) {
          if (leaders.includes(Proc.status(pid)?.session ?? -1)) {
            Proc.signal(pid, "SIGKILL")
          }
        }
      })
    }
    Proc.signal(child.pid, "SIGCONT")
  })

/**
 * Lets a call go on whose program was stopped and goes on. With its child an nsenter stops itself, and nobody in the
 * sandbox can reach that.
 */
export const keepGoing = (child: Spawn.Child): Effect.Effect<void> =>
  Effect.flatMap(Effect.delay(child.hasEnded, "500 millis"), (hasEnded) =>
    // Its pid may be another's by then.
    hasEnded ? Effect.void : Effect.zipRight(
      tryTo(() => {
        const [leader] = Proc.status(child.pid)?.state === "T" ? Proc.children(child.pid) : []
        if (leader !== undefined && Proc.status(leader)?.state !== "T") {
          Proc.signal(child.pid, "SIGCONT")
        }
      }),
      keepGoing(child)
    ))

/**
 * Ends one call with everything in its session. Never its nsenter first: the child would go to the host's first process,
 * and until that one collects it the sandbox can't end.
 */
export const call = (child: Spawn.Child, place: Place): Effect.Effect<void> => {
  const loop = (round: number): Effect.Effect<void> =>
    Effect.gen(function*() {
      yield* Effect.ignore(killSession(child, place))
      // It may not have forked yet.
      if (yield* Spawn.endsWithin(child, "10 millis")) {
        return
      }
      if (round === 25) {
        // A leader that a guest traces isn't collected until its tracer is dead.
        yield* guests(place)
      }
      if (round < 200) {
        return yield* loop(round + 1)
      }
      Proc.signal(child.pid, "SIGKILL")
      yield* Spawn.endsWithin(child, "1 second")
    })
  return Effect.asVoid(Effect.unlessEffect(loop(1), child.hasEnded))
}

/** Ends the processes that make a sandbox: its first process where it has come to that, else the chain before it. */
export const chain = (child: Spawn.Child): Effect.Effect<void> => {
  const loop = (round: number): Effect.Effect<void> =>
    Effect.gen(function*() {
      const below = (yield* tryTo(() => Proc.children(child.pid))) ?? []
      for (const pid of below.length > 0 && round < 100 ? below : [child.pid]) {
        Proc.signal(pid, "SIGKILL")
      }
      if (!(yield* Spawn.endsWithin(child, "10 millis")) && round < 200) {
        yield* loop(round + 1)
      }
    })
  return Effect.asVoid(Effect.unlessEffect(loop(1), child.hasEnded))
}

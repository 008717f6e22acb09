/**
 * Whether a sandbox's processes are there, and the proof that they aren't.
 *
 * These fail where the host can't tell, for want of a descriptor for example.
 */
import * as Effect from "effect/Effect"
import * as Census from "./Census.ts"
import * as Proc from "./Proc.ts"
import type { Place } from "./Recipe.ts"
import { type HostFailed, io } from "./Spawn.ts"

type Identity = Pick<Place, "pid" | "start" | "namespace">

/** Whether the first process of a sandbox lives: that very one, not a later one with its pid. */
export const isAlive = (place: Identity): boolean => {
  const found = Proc.status(place.pid)
  return !Proc.isDead(found) && found?.isEnding === false && found.start === place.start
    && Proc.namespace(place.pid) === place.namespace
}

/** Every process, collected or not, in the pid namespace of a sandbox. A number that a look found may be another's by now. */
export const membersIn = (census: Census.Census, namespace: string): ReadonlyArray<number> =>
  (census.members.get(namespace) ?? []).filter((pid) => Proc.namespace(pid) === namespace)

/**
 * Whether the first process lives or is on its way out. The kernel lets it die when everything else in its namespace was
 * collected, so while it is there nobody has to look at all the others.
 */
export const isThere = (place: Identity): boolean => {
  const found = Proc.status(place.pid)
  return !Proc.isDead(found) && found?.start === place.start
    && (Proc.namespace(place.pid) ?? place.namespace) === place.namespace
}

/**
 * Whether nothing of a sandbox whose first process isn't there is left, by a look that began after that was found. The
 * kernel gives a number to another namespace once it is free: then its first process is another one.
 *
 * The first process is looked for under any number: one of another pid namespace than ours has another one here.
 */
export const isEmpty = (census: Census.Census, place: Identity): boolean => {
  const left = membersIn(census, place.namespace).filter((pid) => !Proc.isDead(Proc.status(pid)))
  return left.length === 0 || left.some((pid) => Proc.isInit(pid) && Proc.status(pid)?.start !== place.start)
}

/** The first process is gone and its namespace is empty. */
export const isGone = (place: Identity): Effect.Effect<boolean, HostFailed> =>
  Effect.flatMap(io(() => isThere(place)), (there) =>
    there
      ? Effect.succeed(false)
      : Effect.flatMap(Census.take, (census) => io(() => isEmpty(census, place))))

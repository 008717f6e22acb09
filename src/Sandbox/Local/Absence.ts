/**
 * Whether a sandbox's processes are there, and the proof that they aren't.
 *
 * These throw where the host can't tell, for want of a descriptor for example.
 */
import * as Proc from "./Proc.ts"
import type { Place } from "./Recipe.ts"

type Identity = Pick<Place, "pid" | "start" | "namespace">

/** Whether the first process of a sandbox lives: that very one, not a later one with its pid. */
export const isAlive = (place: Identity): boolean => {
  const found = Proc.status(place.pid)
  return !Proc.isDead(found) && found?.isEnding === false && found.start === place.start
    && Proc.namespace(place.pid) === place.namespace
}

/** Every process, collected or not, in the pid namespace of a sandbox. */
export const members = (namespace: string): ReadonlyArray<number> =>
  Proc.pids().filter((pid) => Proc.namespace(pid) === namespace)

/**
 * The first process is gone and its namespace is empty. The kernel gives a number to another namespace once it is free:
 * then its first process is another one.
 */
export const isGone = (place: Identity): boolean => {
  if (isAlive(place)) {
    return false
  }
  const left = members(place.namespace).filter((pid) => !Proc.isDead(Proc.status(pid)))
  return left.length === 0 || left.some((pid) => Proc.isInit(pid) && Proc.status(pid)?.start !== place.start)
}

/**
 * The memory of whole sandboxes. One look at all processes serves every sandbox of the layer, and there is none while no
 * sandbox lives.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as fs from "node:fs"
import * as Kill from "./Kill.ts"
import * as Proc from "./Proc.ts"
import type { Place } from "./Recipe.ts"

export interface Watchdog {
  /** Watches a sandbox until the scope closes. */
  readonly watch: (place: Place) => Effect.Effect<void, never, Scope.Scope>
}

const period = 200

/** It never takes more than a twentieth of a core, however many processes there are. */
const share = 20

const KIB = 1024

const line = (status: string, field: string): number =>
  Number(new RegExp(`^${field}:\\s+([0-9]+)`, "m").exec(status)?.[1] ?? 0)

// Anonymous and mapped shared memory; pages of programs and libraries are the host's own.
const residentBytes = (pid: number): number => {
  const status = Proc.attempt(() => fs.readFileSync(`/proc/${pid}/status`, "utf8")) ?? ""
  return (line(status, "RssAnon") + line(status, "RssShmem")) * KIB
}

const storedBytes = (place: Place): number => {
  const used = Proc.attempt(() => fs.statfsSync(`/proc/${place.pid}/root/tmp/.`))
  return used === undefined ? 0 : (used.blocks - used.bfree) * used.bsize
}

const excessive = (places: Iterable<Place>): ReadonlyArray<Place> => {
  const used = new Map(Array.from(places, (place) => [place.namespace, { place, bytes: storedBytes(place) }]))
  for (const pid of Proc.attempt(Proc.pids) ?? []) {
    const namespace = Proc.attempt(() => Proc.namespace(pid))
    const sandbox = namespace === undefined ? undefined : used.get(namespace)
    if (sandbox !== undefined) {
      sandbox.bytes += residentBytes(pid)
    }
  }
  return [...used.values()].filter(({ bytes, place }) => bytes > place.memoryMiB * KIB * KIB)
    .map(({ place }) => place)
}

/** A watchdog that works until the scope closes. */
export const make: Effect.Effect<Watchdog, never, Scope.Scope> = Effect.gen(function*() {
  const watched = new Set<Place>()
  const latch = yield* Effect.makeLatch()
  const look = Effect.gen(function*() {
    const before = yield* Clock.currentTimeMillis
    const over = excessive(watched)
    const took = (yield* Clock.currentTimeMillis) - before
    yield* Effect.forEach(over, Kill.guests, { concurrency: 4, discard: true })
    yield* Effect.sleep(Math.max(period, took * share))
  })
  yield* Effect.forkScoped(Effect.interruptible(Effect.forever(latch.whenOpen(look))))
  return {
    watch: (place) =>
      Effect.asVoid(Effect.acquireRelease(
        Effect.suspend(() => {
          watched.add(place)
          return latch.open
        }),
        () =>
          Effect.suspend(() => {
            watched.delete(place)
            return watched.size === 0 ? latch.close : Effect.void
          })
      ))
  }
})

/**
 * The memory of whole sandboxes. One look at all processes serves every sandbox of the layer, and there is none while no
 * sandbox lives.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as fs from "node:fs"
import * as Census from "./Census.ts"
import * as Kill from "./Kill.ts"
import * as Proc from "./Proc.ts"
import type { Place } from "./Recipe.ts"
import type { HostFailed } from "./Spawn.ts"

export interface Watchdog {
  /** Watches a sandbox until the scope closes. */
  readonly watch: (place: Place) => Effect.Effect<void, never, Scope.Scope>
  /** How often the processes of a sandbox were killed, as far as it is watched. */
  readonly kills: (place: Pick<Place, "namespace">) => number
}

const period = 200

/** It never takes more than a twentieth of a core, however many processes there are. */
const share = 20

const KIB = 1024

const residentBytes = (pid: number): number =>
  Proc.memoryBytes(Proc.attempt(() => fs.readFileSync(`/proc/${pid}/status`, "utf8")) ?? "")

const storedBytes = (place: Place): number => {
  const used = Proc.attempt(() => fs.statfsSync(`/proc/${place.pid}/root/tmp/.`))
  return used === undefined ? 0 : (used.blocks - used.bfree) * used.bsize
}

interface Look {
  readonly excessive: ReadonlyArray<Place>
  readonly milliseconds: number
}

const look = (places: ReadonlyArray<Place>): Effect.Effect<Look, HostFailed> =>
  Effect.gen(function*() {
    const census = yield* Census.take
    const used = new Map<Place, number>()
    const add = (place: Place, bytes: number) => used.set(place, (used.get(place) ?? 0) + bytes)
    const stored = yield* Census.each(places, (place) => add(place, storedBytes(place)))
    const processes = places.flatMap((place) =>
      (census.members.get(place.namespace) ?? []).map((pid) => ({ place, pid }))
    )
    const resident = yield* Census.each(processes, ({ pid, place }) => {
      // Its number may be another's by now.
      if (Proc.namespace(pid) === place.namespace) {
        add(place, residentBytes(pid))
      }
    })
    return {
      excessive: places.filter((place) => (used.get(place) ?? 0) > place.memoryMiB * KIB * KIB),
      milliseconds: census.milliseconds + stored + resident
    }
  })

/** A watchdog that works until the scope closes. */
export const make: Effect.Effect<Watchdog, never, Scope.Scope> = Effect.gen(function*() {
  const watched = new Set<Place>()
  const killed = new Map<string, number>()
  const killsOf = ({ namespace }: Pick<Place, "namespace">): number => killed.get(namespace) ?? 0
  const latch = yield* Effect.makeLatch()
  const watch = Effect.gen(function*() {
    // Where the host can't tell, it is asked again.
    const { excessive, milliseconds } = yield* Effect.orElseSucceed(
      Effect.suspend(() => look([...watched])),
      (): Look => ({ excessive: [], milliseconds: 0 })
    )
    // Counted first: a call that ends by it finds it counted.
    excessive.forEach((place) => killed.set(place.namespace, killsOf(place) + 1))
    yield* Effect.forEach(excessive, Kill.guests, { concurrency: 4, discard: true })
    yield* Effect.sleep(Math.max(period, milliseconds * share))
  })
  yield* Effect.forkScoped(Effect.interruptible(Effect.forever(latch.whenOpen(watch))))
  return {
    kills: killsOf,
    watch: (place) =>
      Effect.asVoid(Effect.acquireRelease(
        Effect.suspend(() => {
          watched.add(place)
          return latch.open
        }),
        () =>
          Effect.suspend(() => {
            watched.delete(place)
            killed.delete(place.namespace)
            return watched.size === 0 ? latch.close : Effect.void
          })
      ))
  }
})

/** Many sandboxes in one server and one client process, whose connections are fewer than the commands that run. */
import { assert, layer as withLayer } from "@effect/vitest"
import { Duration, Effect, Either, Fiber, Layer, Option } from "effect"
import { randomUUID } from "node:crypto"
import * as fs from "node:fs"
import * as Budgets from "../src/Budgets.ts"
import { SandboxProvider } from "../src/Sandbox.ts"
import { straight } from "../test/Sandbox/E2b/served.ts"
import { policy } from "../test/Sandbox/providerContract.ts"

const count = 200

// What runs at the same time: the pool of the SDK, less what the provider keeps free for kills.
const lanes = 192

const timed = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.timed(effect), ([duration]) => Duration.toMillis(duration))

const highest = (samples: ReadonlyArray<number>): string => `${Math.round(Math.max(...samples))} ms at most`

// The processes of this machine that were started under a name of their own.
const named = (name: string) =>
  Effect.sync(() =>
    fs.readdirSync("/proc").filter((pid) => {
      try {
        return /^[0-9]+$/.test(pid) && fs.readFileSync(`/proc/${pid}/cmdline`, "latin1").startsWith(`${name}\0`)
      } catch {
        // It is gone.
        return false
      }
    }).map(Number)
  )

const until = <A>(ask: Effect.Effect<A>, isSo: (answer: A) => boolean): Effect.Effect<A> =>
  Effect.repeat(Effect.delay(ask, "200 millis"), { until: isSo })

const end = (pids: ReadonlyArray<number>) =>
  Effect.sync(() => {
    for (const pid of pids) {
      try {
        process.kill(pid, "SIGTERM")
      } catch {
        // It is gone.
      }
    }
  })

// Two cores take their time to start that many. What has to be quick, health and deletion, keeps its budgets.
const budgets = Budgets.layer({ commandResponse: "8 minutes" })

withLayer(Layer.provide(straight, budgets), { excludeTestServices: true, timeout: 60_000 })(
  `${count} sandboxes of E2B`,
  (it) => {
    it.scoped("each run a command, and are looked after and deleted meanwhile", () =>
      Effect.gen(function*() {
        const provider = yield* SandboxProvider
        const machines = yield* Effect.forEach(
          Array.from({ length: count }),
          () =>
            Effect.acquireRelease(
              provider.create({ ...policy, lifetime: Duration.minutes(15), labels: { "episode.test": "many" } }),
              ({ id }) => Effect.ignore(provider.destroy(id))
            ),
          { concurrency: 8 }
        )
        const limits = { timeLimit: Duration.minutes(7), outputCap: 100 }
        const all = (name: string) =>
          Effect.forEach(
            machines,
            (machine) => Effect.either(machine.exec(`(exec -a ${name} sleep 600); exit 3`, limits)),
            { concurrency: "unbounded" }
          )
        const ends = (
          results: ReadonlyArray<Either.Either<{ readonly exitCode: number }, { readonly _tag: string }>>
        ) => [
          ...new Set(results.map(Either.match({ onLeft: ({ _tag }) => _tag, onRight: ({ exitCode }) => exitCode })))
        ]
        const first = `episode-test-${randomUUID()}`
        const running = yield* Effect.fork(all(first))
        yield* until(named(first), ({ length }) => length === lanes)
        const asked = yield* Effect.forEach(machines, ({ health }) => timed(health), { concurrency: 20 })
        const extended = yield* Effect.forEach(machines, ({ extend }) => timed(extend(Duration.minutes(15))), {
          concurrency: 20
        })
        assert.isTrue(Option.isNone(yield* Fiber.poll(running)))
        assert.lengthOf(yield* named(first), lanes)
        // Those that had to wait get their turn when the others end.
        yield* until(Effect.zipRight(Effect.flatMap(named(first), end), Fiber.poll(running)), Option.isSome)
        assert.deepStrictEqual(ends(yield* Fiber.join(running)), [3])
        const second = `episode-test-${randomUUID()}`
        const again = yield* Effect.fork(all(second))
        yield* until(named(second), ({ length }) => length === lanes)
        // A command that waits for its end doesn't hold up that of its sandbox.
        const killed = yield* Effect.forEach(machines, ({ id }) => timed(provider.destroy(id)), { concurrency: 4 })
        assert.deepStrictEqual(ends(yield* Fiber.join(again)), ["SandboxLost"])
        assert.deepStrictEqual(yield* named(second), [])
        assert.deepStrictEqual(yield* provider.find({ "episode.test": "many" }), [])
        console.log(`health: ${highest(asked)}, extend: ${highest(extended)}, kill: ${highest(killed)}`)
      }), 900_000)
  }
)

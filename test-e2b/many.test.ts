/** Many sandboxes in one server and one client process, whose connections are fewer than the commands that run. */
import { assert, layer as withLayer } from "@effect/vitest"
import { Duration, Effect, Either, Fiber, Option } from "effect"
import { SandboxProvider } from "../src/Sandbox.ts"
import { straight } from "../test/Sandbox/E2b/served.ts"
import { policy } from "../test/Sandbox/providerContract.ts"

const count = 200

const timed = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.timed(effect), ([duration]) => Duration.toMillis(duration))

const highest = (samples: ReadonlyArray<number>): string => `${Math.round(Math.max(...samples))} ms at most`

withLayer(straight, { excludeTestServices: true, timeout: 60_000 })(`${count} sandboxes of E2B`, (it) => {
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
      // So long that all that can run at once do, and started so slowly that two cores can start them.
      const limits = { timeLimit: Duration.minutes(3), outputCap: 100 }
      const all = (command: string) =>
        Effect.forEach(
          machines,
          (machine, index) => Effect.delay(Effect.either(machine.exec(command, limits)), index * 150),
          { concurrency: "unbounded" }
        )
      const running = yield* Effect.fork(all("sleep 75; exit 3"))
      yield* Effect.sleep(count * 150 + 5000)
      const asked = yield* Effect.forEach(machines, ({ health }) => timed(health), { concurrency: 20 })
      const extended = yield* Effect.forEach(machines, ({ extend }) => timed(extend(Duration.minutes(15))), {
        concurrency: 20
      })
      assert.isTrue(Option.isNone(yield* Fiber.poll(running)))
      const results = yield* Fiber.join(running)
      assert.deepStrictEqual([
        ...new Set(results.map(Either.match({ onLeft: ({ _tag }) => _tag, onRight: ({ exitCode }) => exitCode })))
      ], [
        3
      ])
      // A command that waits for its end doesn't hold up that of its sandbox.
      const again = yield* Effect.fork(all("sleep 150"))
      yield* Effect.sleep(count * 150 + 5000)
      const killed = yield* Effect.forEach(machines, ({ id }) => timed(provider.destroy(id)), { concurrency: 4 })
      const faults = yield* Fiber.join(again)
      assert.deepStrictEqual([
        ...new Set(faults.map(Either.match({ onLeft: ({ _tag }) => _tag, onRight: ({ exitCode }) => exitCode })))
      ], [
        "SandboxLost"
      ])
      assert.deepStrictEqual(yield* provider.find({ "episode.test": "many" }), [])
      console.log(`health: ${highest(asked)}, extend: ${highest(extended)}, kill: ${highest(killed)}`)
    }), 600_000)
})

/** Nobody is told that a sandbox is gone before that is proved, and what can't be proved is tried again. */
import { assert, describe, it } from "@effect/vitest"
import { E2B, SandboxError, SandboxNotFoundError, ServiceBusyError } from "e2b"
import * as Context from "effect/Context"
import * as DateTime from "effect/DateTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Scope from "effect/Scope"
import * as Budgets from "../../src/Budgets.ts"
import * as E2bServer from "../../src/E2bServer.ts"
import * as Fleet from "../../src/E2bServer/Fleet.ts"
import { SandboxProvider } from "../../src/Sandbox.ts"
import * as E2b from "../../src/Sandbox/E2b.ts"
import * as Ledger from "../../src/Sandbox/Ledger.ts"
import * as Sandboxes from "../../src/Sandbox/Sandboxes.ts"
import * as Simulated from "../../src/Sandbox/Simulated.ts"
import { virtually } from "../virtualTime.ts"
import { ask, failure } from "./fixture.ts"

const { Fault, World } = Simulated

// A deletion that failed is logged, and here most do.
const quiet = Logger.remove(Logger.defaultLogger)

const budgets = Layer.orDie(Budgets.layer({ cleanupPause: "1 milli" }))

/** Whether what is asked to be deleted is. */
const machines = () => {
  const state = { deletes: false }
  const faults = ({ operation }: Simulated.Call) =>
    operation === "destroy" && !state.deletes ? Fault.NotDone() : undefined
  return { state, faults }
}

/** A server over a world, for as long as `close` isn't run, and clients of it. */
const serving = (simulation: Simulated.Options, options?: E2bServer.Options) =>
  Effect.gen(function*() {
    const scope = yield* Scope.make()
    const services = yield* Layer.buildWithScope(
      E2bServer.layer(options).pipe(Layer.provide(budgets), Layer.provideMerge(world(simulation))),
      scope
    )
    const close = Scope.close(scope, Exit.void)
    yield* Effect.addFinalizer(() => close)
    const { apiKey, urls: [url] } = Context.get(services, E2bServer.E2bServer)
    const { Sandbox } = new E2B({ apiKey: Redacted.value(apiKey), apiUrl: url, sandboxUrl: url })
    const control = (method: string, path: string) =>
      ask(async () => {
        const headers = { "x-api-key": Redacted.value(apiKey) }
        const reply = await fetch(url + path, { method, headers })
        return [reply.status, await reply.text()] as const
      })
    const status = (method: string, path: string) => Effect.map(control(method, path), ([code]) => code)
    const envd = (id: string) =>
      ask(async () => {
        const headers = { "e2b-sandbox-id": id, "e2b-sandbox-port": "49983" }
        return (await fetch(`${url}/health`, { headers })).status
      })
    const listed = Effect.map(
      ask(() => Sandbox.list().nextItems()),
      (found) => found.map(({ sandboxId }) => sandboxId)
    )
    const { running } = Context.get(services, World)
    const { open } = Context.get(services, Ledger.Ledger)
    const { lose } = Context.get(services, World)
    const created = ask(() => Sandbox.create({ timeoutMs: 60_000 }))
    return { Sandbox, apiKey, close, created, envd, listed, lose, open, running, status, url }
  })

const world = (simulation: Simulated.Options) => Layer.mergeAll(Simulated.layer(simulation), Ledger.layerMemory, quiet)

describe("E2bServer: a sandbox that can't be deleted", () => {
  it.scopedLive("is dead and not absent, until a later deletion has its proof", () =>
    Effect.gen(function*() {
      const { faults, state } = machines()
      const { Sandbox, created, envd, listed, open, running, status } = yield* serving({ faults }, { maxSandboxes: 1 })
      const made = yield* created
      const path = `/sandboxes/${made.sandboxId}`
      for (let n = 0; n < 2; n++) {
        assert.instanceOf(yield* failure(() => made.kill()), ServiceBusyError)
        assert.instanceOf(yield* failure(() => made.getInfo()), ServiceBusyError)
        assert.instanceOf(yield* failure(() => Sandbox.connect(made.sandboxId)), ServiceBusyError)
        assert.strictEqual(yield* status("GET", `${path}/metrics`), 503)
        assert.deepStrictEqual(yield* listed, [made.sandboxId])
        assert.strictEqual(yield* envd(made.sandboxId), 502)
        assert.strictEqual((yield* running).length, 1)
        assert.deepStrictEqual((yield* open).map(({ state }) => state), ["unresolved"])
        // It has its place still.
        assert.strictEqual(yield* status("POST", "/sandboxes"), 400)
        assert.match((yield* failure(() => Sandbox.create())).message, /as many as there may be/)
      }
      state.deletes = true
      assert.isTrue(yield* ask(() => made.kill()))
      assert.deepStrictEqual([yield* running, yield* open, yield* listed], [[], [], []])
      assert.isFalse(yield* ask(() => made.kill()))
      assert.instanceOf(yield* failure(() => made.getInfo()), SandboxNotFoundError)
      yield* created
    }))

  it.scopedLive("isn't proved absent to a provider of ours, either", () =>
    Effect.gen(function*() {
      const { faults, state } = machines()
      const { apiKey, open, running, url } = yield* serving({ faults })
      const acquired = Effect.flatMap(Sandboxes.Sandboxes, ({ acquire }) =>
        Effect.flatMap(
          acquire({
            role: "policy",
            lifetime: Duration.minutes(5),
            network: "default",
            phases: { create: "reset", cleanup: "policy-cleanup" }
          }),
          ({ discard }) => Effect.exit(discard)
        ))
      const client = Layer.fresh(Sandboxes.layer).pipe(
        Layer.provide(E2b.layer({ apiKey, apiUrl: url, sandboxUrl: url })),
        Layer.provide(budgets),
        Layer.provide(Ledger.layerMemory)
      )
      const discarded = yield* Effect.scoped(Effect.provide(acquired, client))
      assert.strictEqual((yield* running).length, 1)
      assert.isTrue(Exit.isFailure(discarded))
      state.deletes = true
      // The next time it is.
      assert.isTrue(Exit.isSuccess(yield* Effect.scoped(Effect.provide(acquired, client))))
      assert.deepStrictEqual((yield* running).length, 1)
      assert.deepStrictEqual((yield* open).length, 1)
    }))

  it.scopedLive("isn't absent because it doesn't answer", () =>
    Effect.gen(function*() {
      const { faults } = machines()
      const { created, listed, lose, running, status } = yield* serving({ faults })
      const made = yield* created
      const [{ id } = { id: undefined }] = yield* running
      assert.isDefined(id)
      yield* lose(id, "unhealthy")
      assert.strictEqual(yield* status("GET", `/sandboxes/${made.sandboxId}`), 503)
      assert.deepStrictEqual(yield* listed, [made.sandboxId])
    }))

  it.scopedLive("is deleted at the end of the server", () =>
    Effect.gen(function*() {
      const { faults, state } = machines()
      const { close, created, open, running } = yield* serving({ faults })
      const made = yield* created
      assert.instanceOf(yield* failure(() => made.kill()), ServiceBusyError)
      state.deletes = true
      yield* close
      assert.deepStrictEqual([yield* running, yield* open], [[], []])
    }))
})

describe("E2bServer: a deletion under way", () => {
  it.scopedLive("is waited for by whoever asks", () =>
    Effect.gen(function*() {
      const begun = yield* Deferred.make<void>()
      const release = yield* Deferred.make<void>()
      const { created, envd, listed, running, status } = yield* serving({
        onCall: ({ operation }) =>
          operation === "destroy"
            ? Effect.zipRight(Deferred.succeed(begun, undefined), Deferred.await(release))
            : Effect.void
      })
      const made = yield* created
      const answer = (method: string) =>
        Effect.zip(status(method, `/sandboxes/${made.sandboxId}`), Effect.map(running, ({ length }) => length))
      const first = yield* Effect.fork(answer("DELETE"))
      yield* Deferred.await(begun)
      const others = yield* Effect.fork(Effect.all([answer("DELETE"), answer("GET")], { concurrency: 2 }))
      assert.strictEqual(yield* envd(made.sandboxId), 502)
      assert.deepStrictEqual(yield* listed, [made.sandboxId])
      yield* Deferred.succeed(release, undefined)
      assert.deepStrictEqual(yield* Fiber.join(first), [204, 0])
      assert.deepStrictEqual(yield* Fiber.join(others), [[404, 0], [404, 0]])
    }))
})

describe("E2bServer: a create under way", () => {
  it.scopedLive("is waited for at the end of the server, and what it brings is deleted", () =>
    Effect.gen(function*() {
      const begun = yield* Deferred.make<void>()
      const release = yield* Deferred.make<void>()
      const happened: Array<string> = []
      const slow = Layer.effect(
        SandboxProvider,
        Effect.map(SandboxProvider, (provider) =>
          SandboxProvider.of({
            ...provider,
            create: (spec) =>
              provider.create(spec).pipe(
                Effect.zipLeft(Deferred.succeed(begun, undefined)),
                Effect.zipLeft(Deferred.await(release)),
                Effect.uninterruptible
              )
          }))
      )
      const scope = yield* Scope.make()
      const services = yield* Layer.buildWithScope(
        E2bServer.layer().pipe(
          Layer.provide(slow),
          Layer.provide(budgets),
          Layer.provideMerge(world({}))
        ),
        scope
      )
      const { apiKey, urls: [url] } = Context.get(services, E2bServer.E2bServer)
      const { Sandbox } = new E2B({ apiKey: Redacted.value(apiKey), apiUrl: url, sandboxUrl: url })
      const creating = yield* Effect.fork(failure(() => Sandbox.create()))
      yield* Deferred.await(begun)
      const closing = yield* Effect.fork(
        Effect.zipLeft(Scope.close(scope, Exit.void), Effect.sync(() => happened.push("end")))
      )
      // The connection is broken, so the end has begun.
      assert.notInstanceOf(yield* Fiber.join(creating), SandboxError)
      happened.push("release")
      yield* Deferred.succeed(release, undefined)
      yield* Fiber.join(closing)
      assert.deepStrictEqual(happened, ["release", "end"])
      assert.deepStrictEqual(yield* Context.get(services, World).running, [])
      assert.deepStrictEqual(yield* Context.get(services, Ledger.Ledger).open, [])
    }))
})

// ----------------------------------------------------------------------------
// the fleet itself, with time
// ----------------------------------------------------------------------------

const fleetOf = (simulation: Simulated.Options) =>
  Effect.map(
    Layer.build(
      Fleet.layer({ sandboxes: 10, lifetime: Duration.hours(1) }).pipe(
        Layer.provide(Sandboxes.layer),
        Layer.provide(budgets),
        Layer.provideMerge(world(simulation))
      )
    ),
    (services) => ({ fleet: Context.get(services, Fleet.Fleet), running: Context.get(services, World).running })
  )

const asked: Fleet.CreateOptions = {
  templateId: "base",
  lifetime: Duration.minutes(1),
  metadata: {},
  environment: {},
  allowInternetAccess: true
}

describe("Fleet", () => {
  it.effect("a sandbox whose time is over is deleted again after a while, where that failed", () =>
    virtually(Effect.scoped(Effect.gen(function*() {
      const { faults, state } = machines()
      let extended = 0
      const onCall = ({ operation }: Simulated.Call) =>
        Effect.sync(() => {
          extended += operation === "extend" ? 1 : 0
        })
      const { fleet, running } = yield* fleetOf({ faults, onCall })
      const made = yield* fleet.create(asked)
      yield* fleet.endAt(made, DateTime.addDuration(made.startedAt, "10 seconds"))
      yield* Effect.sleep("11 seconds")
      assert.isTrue(Option.isNone(fleet.find(made.id)))
      assert.isFalse(yield* fleet.isAbsent(made.id))
      assert.strictEqual((yield* running).length, 1)
      // A new end of its time is none, now.
      yield* fleet.endAt(made, DateTime.addDuration(made.startedAt, "1 hour"))
      assert.strictEqual(extended, 1)
      state.deletes = true
      yield* Effect.sleep("30 seconds")
      assert.isTrue(yield* fleet.isAbsent(made.id))
      assert.deepStrictEqual([yield* fleet.members, yield* running], [[], []])
    }))))

  it.effect("waits a little for a proof of absence, and no longer", () =>
    virtually(Effect.scoped(Effect.gen(function*() {
      const { fleet } = yield* fleetOf({
        faults: ({ operation }) =>
          operation === "destroy" ? Fault.Hangs({ effect: false, interruptible: true }) : undefined
      })
      const made = yield* fleet.create(asked)
      const deleting = yield* Effect.fork(fleet.end(made.id))
      yield* Effect.sleep("1 second")
      assert.isFalse(yield* fleet.isAbsent(made.id))
      assert.isTrue(Option.isNone(yield* Fiber.poll(deleting)))
      assert.isTrue(Exit.isFailure(yield* Fiber.await(deleting)))
      assert.isFalse(yield* fleet.isAbsent(made.id))
    }))))

  it.effect("deletes a sandbox to the end, whoever goes away meanwhile", () =>
    virtually(Effect.scoped(Effect.gen(function*() {
      const { fleet, running } = yield* fleetOf({ latency: "2 seconds" })
      const made = yield* fleet.create(asked)
      const deleting = yield* Effect.fork(fleet.end(made.id))
      yield* Effect.sleep("1 second")
      yield* Fiber.interrupt(deleting)
      assert.strictEqual((yield* fleet.members).length, 1)
      assert.isTrue(yield* fleet.isAbsent(made.id))
      assert.deepStrictEqual(yield* running, [])
    }))))

  it.effect("breaks connections before it deletes anything", () =>
    virtually(Effect.scoped(Effect.gen(function*() {
      const happened: Array<string> = []
      const note = (what: string) => Effect.sync(() => void happened.push(what))
      const { fleet } = yield* fleetOf({
        onCall: ({ operation }) => operation === "destroy" ? note("destroy") : Effect.void
      })
      const made = yield* fleet.create(asked)
      yield* made.breaks(note("open"))
      yield* Effect.scoped(made.breaks(note("closed")))
      assert.isTrue(yield* fleet.end(made.id))
      yield* made.breaks(note("late"))
      assert.deepStrictEqual(happened, ["open", "destroy", "late"])
    }))))

  it.effect("doesn't keep what was made for somebody who went away", () =>
    virtually(Effect.scoped(Effect.gen(function*() {
      const { fleet, running } = yield* fleetOf({ latency: "2 seconds" })
      const creating = yield* Effect.fork(fleet.create(asked))
      yield* Effect.sleep("1500 millis")
      assert.strictEqual((yield* running).length, 1)
      yield* Fiber.interrupt(creating)
      yield* Effect.sleep("1 minute")
      assert.deepStrictEqual([yield* fleet.members, yield* running], [[], []])
    }))))
})

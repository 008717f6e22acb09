import { assert, layer as withLayer } from "@effect/vitest"
import { AuthenticationError, E2B, RateLimitError, SandboxError, SandboxNotFoundError } from "e2b"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { randomUUID } from "node:crypto"
import * as fs from "node:fs"
import { Ledger } from "../../src/Sandbox/Ledger.ts"
import { ask, Client, failure, layer, layerWith, sandbox } from "./fixture.ts"

const timeout = 30_000

withLayer(layer, { excludeTestServices: true, timeout })("E2bServer: the control plane", (it) => {
  it.scoped("creates what it is asked for, and says so", () =>
    Effect.gen(function*() {
      const { Sandbox } = yield* Client
      const metadata = { "a key": "ä=&%", plain: "x" }
      const made = yield* sandbox({ metadata, envs: { FOO: "bar" }, timeoutMs: 90_000 })
      const info = yield* ask(() => made.getInfo())
      assert.match(made.sandboxId, /^i[a-z0-9]{20}$/)
      assert.deepStrictEqual(info.metadata, metadata)
      assert.strictEqual(info.state, "running")
      assert.strictEqual(info.templateId, "base")
      assert.strictEqual(info.envdVersion, "0.6.13")
      assert.strictEqual(info.endAt.getTime() - info.startedAt.getTime(), 90_000)
      assert.isTrue(yield* ask(() => made.isRunning()))
      const result = yield* ask(() => made.commands.run("echo $FOO; whoami; pwd; shopt -q login_shell && echo login"))
      assert.strictEqual(result.stdout, "bar\nuser\n/home/user\nlogin\n")
      const connected = yield* ask(() => Sandbox.connect(made.sandboxId))
      assert.strictEqual((yield* ask(() => connected.commands.run("echo again"))).stdout, "again\n")
    }), timeout)

  it.scoped("kills once, and proves it", () =>
    Effect.gen(function*() {
      const { Sandbox } = yield* Client
      const made = yield* sandbox()
      assert.isTrue(yield* ask(() => made.kill()))
      assert.isFalse(yield* ask(() => made.kill()))
      assert.isFalse(yield* ask(() => Sandbox.kill("inever0was1here")))
      assert.isFalse(yield* ask(() => made.isRunning()))
      assert.instanceOf(yield* failure(() => made.getInfo()), SandboxNotFoundError)
      assert.instanceOf(yield* failure(() => made.setTimeout(1000)), SandboxNotFoundError)
      assert.instanceOf(yield* failure(() => made.getMetrics()), SandboxNotFoundError)
      assert.instanceOf(yield* failure(() => Sandbox.connect(made.sandboxId)), SandboxNotFoundError)
    }), timeout)

  it.scoped("sets a timeout as it is told, and connecting only ever adds to it", () =>
    Effect.gen(function*() {
      const { Sandbox } = yield* Client
      const made = yield* sandbox({ timeoutMs: 100_000 })
      const endAt = Effect.map(ask(() => made.getInfo()), (info) => info.endAt.getTime())
      const first = yield* endAt
      yield* ask(() => Sandbox.connect(made.sandboxId, { timeoutMs: 5000 }))
      assert.strictEqual(yield* endAt, first)
      yield* ask(() => Sandbox.connect(made.sandboxId, { timeoutMs: 500_000 }))
      const second = yield* endAt
      assert.isAbove(second, first + 300_000)
      yield* ask(() => made.setTimeout(20_000))
      assert.isBelow(yield* endAt, first)
      assert.instanceOf(yield* failure(() => made.setTimeout(48 * 3600 * 1000)), SandboxError)
    }), timeout)

  it.scoped("ends a sandbox with its time, in the middle of a command", () =>
    Effect.gen(function*() {
      const made = yield* sandbox()
      const command = yield* ask(() => made.commands.run("sleep 60", { background: true, timeoutMs: 0 }))
      yield* ask(() => made.setTimeout(1000))
      const error = yield* failure(() => command.wait())
      assert.strictEqual(error.name, "TimeoutError")
      assert.include(error.message, "killed or reached its end of life")
      assert.isFalse(yield* ask(() => made.isRunning()))
      assert.isFalse(yield* ask(() => made.kill()))
    }), timeout)

  it.scoped("lists by metadata, state, time and template, in order and by pages", () =>
    Effect.gen(function*() {
      const { Sandbox } = yield* Client
      const metadata = { group: `${randomUUID()} &=ü` }
      const made = []
      for (let n = 0; n < 3; n++) {
        made.push(yield* sandbox({ metadata: { ...metadata, n: String(n) } }))
      }
      const ids = made.map(({ sandboxId }) => sandboxId)
      const page = (options: Parameters<typeof Sandbox.list>[0]) =>
        Effect.map(ask(() => Sandbox.list(options).nextItems()), (found) => found.map(({ sandboxId }) => sandboxId))
      assert.deepStrictEqual(yield* page({ query: { metadata } }), ids.toReversed())
      assert.deepStrictEqual(yield* page({ query: { metadata }, order: "asc" }), ids)
      assert.deepStrictEqual(yield* page({ query: { metadata: { ...metadata, n: "1" } } }), ids.slice(1, 2))
      assert.deepStrictEqual(yield* page({ query: { metadata, state: ["paused"] } }), [])
      assert.deepStrictEqual(yield* page({ query: { metadata, template: "other" } }), [])
      assert.deepStrictEqual(yield* page({ query: { metadata, startedAfter: new Date(Date.now() + 60_000) } }), [])
      const paginator = Sandbox.list({ query: { metadata }, order: "asc", limit: 2 })
      const pages: Array<ReadonlyArray<string>> = []
      while (paginator.hasNext) {
        pages.push((yield* ask(() => paginator.nextItems())).map(({ sandboxId }) => sandboxId))
      }
      assert.deepStrictEqual(pages, [ids.slice(0, 2), ids.slice(2)])
      const first = Sandbox.list({ query: { metadata }, order: "asc", limit: 1 })
      yield* ask(() => first.nextItems())
      const replayed = Sandbox.list({ query: { metadata }, order: "desc", nextToken: first.nextToken ?? "" })
      assert.instanceOf(yield* failure(() => replayed.nextItems()), SandboxError)
    }), timeout)

  it.scoped("measures a sandbox when it is asked", () =>
    Effect.gen(function*() {
      const made = yield* sandbox()
      const [metric] = yield* ask(() => made.getMetrics())
      assert.isAbove(metric?.memTotal ?? 0, metric?.memUsed ?? Infinity)
      assert.isAbove(metric?.diskTotal ?? 0, metric?.diskUsed ?? Infinity)
      assert.strictEqual(
        (yield* ask(() => made.getMetrics({ start: new Date(0), end: new Date(Date.now() - 3600_000) }))).length,
        0
      )
    }), timeout)

  it.scoped("refuses what it doesn't have, and never pretends", () =>
    Effect.gen(function*() {
      const { Sandbox } = yield* Client
      const made = yield* sandbox()
      for (
        const request of [
          () => made.pause(),
          () => made.createSnapshot(),
          () => Sandbox.create({ network: { denyOut: ["1.1.1.1"] } }),
          () => Sandbox.create({ lifecycle: { onTimeout: "pause" } }),
          () => Sandbox.create({ volumeMounts: { "/mnt": "volume" } })
        ]
      ) {
        const error = yield* failure(request)
        assert.instanceOf(error, SandboxError)
        assert.match(error.message, /^501: unimplemented/)
      }
      const unknown = yield* failure(() => Sandbox.create("nonesuch"))
      assert.instanceOf(unknown, SandboxError)
      assert.include(unknown.message, "404: template 'nonesuch' not found")
    }), timeout)

  it.scoped("keeps a sandbox off the network", () =>
    Effect.gen(function*() {
      const made = yield* sandbox({ allowInternetAccess: false })
      assert.isFalse((yield* ask(() => made.getInfo())).allowInternetAccess)
      const { stdout } = yield* ask(() => made.commands.run("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"))
      assert.strictEqual(stdout, "lo\n")
    }), timeout)
})

withLayer(layerWith({ maxSandboxes: 1 }), { excludeTestServices: true, timeout })("E2bServer: limits", (it) => {
  it.scoped("there are no more sandboxes than there may be", () =>
    Effect.gen(function*() {
      const { Sandbox } = yield* Client
      const made = yield* sandbox()
      assert.instanceOf(yield* failure(() => Sandbox.create()), RateLimitError)
      yield* ask(() => made.kill())
      yield* sandbox()
    }), timeout)
})

withLayer(Layer.empty, { excludeTestServices: true, timeout })("E2bServer: its end", (it) => {
  it.scoped("ends every sandbox, proves it, and breaks connections", () =>
    Effect.gen(function*() {
      const scope = yield* Scope.make()
      const context = yield* Layer.buildWithScope(layer, scope)
      const { directory, made } = yield* Effect.provide(
        Effect.gen(function*() {
          const { Sandbox, directory } = yield* Client
          const made = yield* Effect.forEach([1, 2, 3], () => ask(() => Sandbox.create({ timeoutMs: 60_000 })))
          assert.strictEqual((yield* Effect.flatMap(Ledger, ({ open }) => open)).length, 3)
          return { directory, made }
        }),
        context
      )
      const running = made.map((one) => one.commands.run("sleep 60", { timeoutMs: 0 }))
      const failures = Effect.forEach(running, (one) => failure(() => one), { concurrency: 3 })
      yield* ask(async () => made[2]?.commands.run("true"))
      yield* Effect.all([
        failures,
        Effect.sync(() => fs.readdirSync(directory).filter((name) => name.endsWith(".json")).length).pipe(
          Effect.tap((left) => Effect.sync(() => assert.strictEqual(left, 3))),
          Effect.zipRight(Scope.close(scope, Exit.void))
        )
      ], { concurrency: 2 })
      assert.isFalse(fs.existsSync(directory))
      assert.deepStrictEqual(yield* Effect.provide(Effect.flatMap(Ledger, ({ open }) => open), context), [])
      assert.instanceOf(yield* failure(() => made[0]?.getInfo() ?? Promise.resolve()), TypeError)
    }), timeout)
})

withLayer(layer, { excludeTestServices: true, timeout })("E2bServer: keys", (it) => {
  it.effect("a caller without the key gets nowhere", () =>
    Effect.gen(function*() {
      const { url } = yield* Client
      for (const apiKey of ["e2b_wrong", `e2b_${"0".repeat(40)}`]) {
        assert.instanceOf(
          yield* failure(() => new E2B({ apiKey, apiUrl: url }).Sandbox.list().nextItems()),
          AuthenticationError
        )
      }
    }), timeout)
})

withLayer(layerWith({ narrow: true }), { excludeTestServices: true, timeout })("E2bServer: a narrow provider", (it) => {
  it.scoped("has sandboxes, and says that they have no inside", () =>
    Effect.gen(function*() {
      const made = yield* sandbox()
      assert.isTrue(yield* ask(() => made.isRunning()))
      for (
        const request of [
          () => made.commands.run("true"),
          () => made.commands.list(),
          () => made.files.read("x"),
          () => made.files.write("x", ""),
          () => made.files.list("/"),
          () => made.files.watchDir("/", () => {}),
          () => made.getMetrics()
        ]
      ) {
        assert.include((yield* failure(request)).message, "unimplemented")
      }
    }), timeout)
})

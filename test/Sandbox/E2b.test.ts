import { assert, describe, it, layer as withLayer } from "@effect/vitest"
import { ConfigProvider, Duration, Effect, FastCheck, Layer, Option, Redacted, Schedule, Tracer } from "effect"
import * as Budgets from "../../src/Budgets.ts"
import {
  type CreateFault,
  CurrentWaits,
  FileRead,
  type Provider,
  type Sandbox,
  type SandboxFault,
  SandboxProvider,
  SandboxUnavailable,
  TransportFailed,
  type Wait
} from "../../src/Sandbox.ts"
import * as E2b from "../../src/Sandbox/E2b.ts"
import { checks } from "../../src/Sandbox/E2b/Doctor.ts"
import * as Guest from "../../src/Sandbox/Guest.ts"
import { Fault, type Kind } from "./E2b/faultyProxy.ts"
import { provider, truth, Wire, wire } from "./E2b/served.ts"
import { at, limits, policy, read, sandbox, sh, utf8 } from "./providerContract.ts"

const timeout = 30_000

describe("what a program in a sandbox replies", () => {
  const exec = { timeLimit: Duration.seconds(1), outputCap: 4 }
  const saying = (...lines: ReadonlyArray<string>) =>
    Guest.replyIn("mark", lines.map((line) => `mark:${line}\n`).join(""))
  const endOf = (line: string) => Guest.endIn(saying(line), exec)

  it("is found among whatever else is printed", () => {
    const reply = Guest.replyIn("mark", "hello\nother:end\nmark:ready\nnoise\nmark:end:0:0\nmark:cut o")
    assert.isTrue(reply.isReady)
    assert.deepStrictEqual(reply.candidates, [["ready"], ["end", "0", "0"]])
    assert.isFalse(Guest.replyIn("mark", "mark:ready").isReady)
    assert.deepStrictEqual(Guest.replyIn("mark", "mark:ready\nmark:end").candidates, [["ready"]])
    // A guest that knows the mark gets no further than to add lines.
    assert.isTrue(Option.isSome(Guest.endIn(saying("ready", "JUNK", "end:0:0", "end:255:1:9:YWI=:YWI=:0::"), exec)))
  })

  it("holds no more than was asked for, and what can be true", () => {
    assert.isTrue(Option.isSome(endOf("end:255:1:9:YWI=:YWI=:0::")))
    const wrong = [
      "end:256:0:0:::0::",
      "end:-1:0:0:::0::",
      "end:0:2:0:::0::",
      "end:0:0:1:YWI=::0::",
      "end:0:0:9:YWJj:YWI=:0::",
      "end:0:0:9:YWI=:YWJj:0::",
      "end:0:0:0:::0:",
      "end:0:0:0:::0:::",
      "end:0:0:0:!:::0::",
      "end:0:0:1e999:::0::",
      "start:0:0:0:::0::",
      ""
    ]
    for (const line of wrong) {
      assert.isTrue(Option.isNone(endOf(line)), line)
    }
    const found = (line: string) => Guest.foundIn(saying(line), { maxBytes: 2 })
    assert.deepStrictEqual(Option.getOrThrow(found("Bytes:YWI=")), FileRead.Bytes({ bytes: utf8("ab") }))
    assert.deepStrictEqual(Option.getOrThrow(found("Bytes:YWJj")), FileRead.TooLarge())
    assert.deepStrictEqual(Option.getOrThrow(found("Unreadable")), FileRead.Unreadable())
    for (const line of ["Bytes", "Bytes:*", "Missing:x", "Lost", ""]) {
      assert.isTrue(Option.isNone(found(line)), line)
    }
  })

  it("may be anything", () => {
    FastCheck.assert(FastCheck.property(FastCheck.string(), FastCheck.array(FastCheck.string()), (output, fields) => {
      Guest.replyIn("mark", `mark:${output}\n`)
      Guest.endIn({ isReady: true, candidates: [["end", ...fields]] }, exec)
      Guest.foundIn({ isReady: true, candidates: [["Bytes", ...fields]] }, { maxBytes: 2 })
    }))
  })

  it("is asked for in strings that fit into an environment", () => {
    const launch = Option.getOrThrow(Guest.run("mark", "x".repeat(1024 * 1024), exec))
    assert.isBelow(Math.max(...Object.values(launch.environment).map((value) => value.length)), 128 * 1024)
    assert.isBelow(launch.line.length, 64 * 1024)
    assert.isTrue(Option.isNone(Guest.run("mark", "x".repeat(1024 * 1024 + 1), exec)))
  })
})

describe("settings", () => {
  const from = (environment: Record<string, string>) =>
    Effect.withConfigProvider(E2b.config, ConfigProvider.fromMap(new Map(Object.entries(environment))))

  it.effect("come from the environment", () =>
    Effect.gen(function*() {
      const found = yield* from({ E2B_API_KEY: "e2b_1", E2B_API_URL: "http://127.0.0.1:1", EPISODE_E2B_TEMPLATE: "t" })
      assert.deepStrictEqual({ ...found, apiKey: Redacted.value(found.apiKey) }, {
        apiKey: "e2b_1",
        template: "t",
        domain: undefined,
        apiUrl: "http://127.0.0.1:1",
        sandboxUrl: undefined
      })
    }))

  it.effect("that can't be are refused, and a key is never shown", () =>
    Effect.gen(function*() {
      for (
        const [environment, says] of [
          [{}, "E2B_API_KEY"],
          [{ E2B_API_KEY: "" }, "E2B_API_KEY"],
          [{ E2B_API_KEY: "hunter2\nhunter2" }, "E2B_API_KEY"],
          [{ E2B_API_KEY: "hunter2", E2B_API_URL: "127.0.0.1:1" }, "E2B_API_URL"],
          [{ E2B_API_KEY: "hunter2", E2B_SANDBOX_URL: "ftp://x" }, "E2B_SANDBOX_URL"]
        ] as const
      ) {
        const error = String(yield* Effect.flip(from(environment)))
        assert.include(error, says)
        assert.notInclude(error, "hunter2")
      }
    }))
})

describe("a layer", () => {
  const key = Redacted.make("e2b_1")
  const nowhere = "http://127.0.0.1:2"

  /** What the first request fails with. */
  const failing = <E>(
    layer: Layer.Layer<SandboxProvider, E>,
    environment: Record<string, string>,
    request: (provider: Provider) => Effect.Effect<unknown, CreateFault>
  ) =>
    Effect.flatMap(SandboxProvider, (provider) => Effect.flip(request(provider))).pipe(
      Effect.provide(layer),
      Effect.withConfigProvider(ConfigProvider.fromMap(new Map(Object.entries(environment)))),
      Effect.map(({ message }) => message)
    )

  it.live("takes from the environment what isn't given in code, and nothing else", () =>
    Effect.gen(function*() {
      const listed = (options: Partial<E2b.Options>, environment: Record<string, string>) =>
        failing(E2b.layerFromEnv(options), environment, ({ find }) => find({}))
      assert.include(yield* listed({ apiKey: key, apiUrl: nowhere }, {}), "no connection to the E2B API at 127.0.0.1:2")
      const environment = { E2B_API_KEY: "e2b_1", E2B_API_URL: nowhere, E2B_DOMAIN: "e2b.invalid" }
      for (const options of [{}, { apiUrl: undefined, domain: undefined }, { domain: "example.invalid" }]) {
        assert.include(yield* listed(options, environment), "the E2B API at 127.0.0.1:2")
      }
      assert.include(yield* listed({ apiUrl: "http://localhost:2" }, environment), "the E2B API at localhost:2")
      const missing = yield* Effect.flip(listed({ apiUrl: nowhere }, {}))
      assert.include(String(missing), "E2B_API_KEY")
    }), timeout)

  it.live("says what to correct by the name that it was given under", () =>
    Effect.gen(function*() {
      const made = <E>(layer: Layer.Layer<SandboxProvider, E>, environment: Record<string, string> = {}) =>
        failing(layer, environment, ({ create }) => create(policy))
      const options = { apiKey: key, apiUrl: nowhere }
      assert.include(yield* made(E2b.layer(options)), "check the network, `apiUrl` and `domain`")
      assert.include(yield* made(E2b.layerFromEnv(options)), "check the network, `apiUrl` and E2B_DOMAIN")
      assert.include(
        yield* made(E2b.layerFromEnv(), { E2B_API_KEY: "e2b_1", E2B_API_URL: nowhere }),
        "check the network, E2B_API_URL and E2B_DOMAIN"
      )
    }), timeout)

  it.scoped("has no error of its own where all is given in code", () =>
    Effect.gen(function*() {
      yield* Effect.acquireRelease(
        Effect.sync(() => {
          process.env["E2B_ENVD_RPC_CONNECTIONS"] = "0"
        }),
        () =>
          Effect.sync(() => {
            delete process.env["E2B_ENVD_RPC_CONNECTIONS"]
          })
      )
      const inCode: Layer.Layer<SandboxProvider> = E2b.layer({ apiKey: key })
      const defect = yield* Layer.build(inCode).pipe(Effect.scoped, Effect.catchAllDefect(Effect.succeed))
      assert.include(String(defect), "not a whole number above 0")
      const error = yield* Layer.build(E2b.layerFromEnv({ apiKey: key })).pipe(Effect.scoped, Effect.flip)
      assert.include(String(error), "E2B_ENVD_RPC_CONNECTIONS")
    }))
})

const isSafe = (error: { readonly message: string }, apiKey: Redacted.Redacted): void => {
  assert.notInclude(error.message, "SECRET")
  assert.notInclude(error.message, Redacted.value(apiKey))
  assert.notInclude(error.message, "echo")
}

withLayer(Layer.provideMerge(provider, wire()), { excludeTestServices: true, timeout })("E2b over a bad wire", (it) => {
  // What a request fails with when the first call of a kind goes wrong.
  const failing = <A, E extends { readonly message: string }, R>(
    kind: Kind,
    fault: Fault,
    effect: Effect.Effect<A, E, R>
  ) =>
    Effect.gen(function*() {
      const { apiKey, proxy } = yield* Wire
      proxy.set((call) => call.kind === kind && call.nth === 1 ? fault : undefined)
      const error = yield* Effect.flip(effect)
      proxy.set(() => undefined)
      isSafe(error, apiKey)
      return error
    })

  const answered = (status: number, more: Partial<Parameters<typeof Fault.Answered>[0]> = {}) =>
    Fault.Answered({ status, effect: false, ...more })

  it.scoped(
    "a create is refused for a reason, or may have had its effect",
    () =>
      Effect.gen(function*() {
        const { create, find } = yield* SandboxProvider
        const { destroy, find: findAll } = yield* truth
        const labels = { "episode.allocation": "wire" }
        const fails = (fault: Fault) => failing("create", fault, create({ ...policy, labels }))
        const refusals: ReadonlyArray<readonly [Fault, SandboxUnavailable["reason"]]> = [
          [answered(401), "unauthorized"],
          [answered(403), "unauthorized"],
          [answered(404), "template"],
          [answered(400), "refused"],
          [answered(429), "quota"],
          [answered(429, { retryAfter: "3600" }), "quota"]
        ]
        for (const [fault, reason] of refusals) {
          const error: CreateFault = yield* fails(fault)
          assert.instanceOf(error, SandboxUnavailable)
          assert.strictEqual(error.reason, reason)
        }
        assert.deepStrictEqual(yield* findAll({}), [])
        const uncertain: ReadonlyArray<readonly [Fault, "TransportFailed" | "ProtocolViolation", number]> = [
          [answered(500), "TransportFailed", 0],
          [answered(503, { effect: true }), "TransportFailed", 1],
          [answered(504, { effect: true, json: false }), "TransportFailed", 1],
          [Fault.Dropped({ effect: false }), "TransportFailed", 0],
          [Fault.Dropped({ effect: true }), "TransportFailed", 1],
          [Fault.ResetInBody(), "TransportFailed", 1],
          [Fault.Truncated(), "ProtocolViolation", 1],
          [Fault.Malformed({ body: "{}" }), "ProtocolViolation", 1],
          [Fault.Malformed({ body: "null" }), "ProtocolViolation", 1],
          [Fault.Malformed({ body: "{\"sandboxID\":\"../x\",\"envdVersion\":\"0.6.13\"}" }), "ProtocolViolation", 1]
        ]
        for (const [fault, tag, made] of uncertain) {
          const error: CreateFault = yield* fails(fault)
          assert.strictEqual(error._tag, tag, JSON.stringify(fault))
          // What was made has its label.
          const found = yield* find(labels).pipe(
            Effect.repeat({
              until: ({ length }) => length === made,
              schedule: Schedule.intersect(Schedule.spaced("50 millis"), Schedule.recurs(100))
            }),
            Effect.zipRight(find(labels))
          )
          assert.strictEqual(found.length, made, JSON.stringify(fault))
          yield* Effect.forEach(found, ({ id }) => destroy(id))
        }
      }),
    timeout
  )

  it.scoped("a 429 that says how long is waited out, and that is in the trace", () =>
    Effect.gen(function*() {
      const { proxy } = yield* Wire
      const spans: Array<Tracer.Span> = []
      const native = yield* Effect.tracer
      const tracer = Tracer.make({
        ...native,
        span: (name, parent, context, links, startTime, kind) => {
          const span = native.span(name, parent, context, links, startTime, kind)
          spans.push(span)
          return span
        }
      })
      proxy.set(({ kind, nth }) => kind === "create" && nth <= 2 ? answered(429, { retryAfter: "0" }) : undefined)
      const waits: Array<Wait> = []
      yield* Effect.withTracer(sandbox(), tracer).pipe(
        Effect.provideService(CurrentWaits, { add: (wait) => Effect.sync(() => waits.push(wait)) })
      )
      assert.strictEqual(proxy.calls().filter(({ kind }) => kind === "create").length, 3)
      const create = spans.find(({ name }) => name === "E2b.create")
      assert.strictEqual(create?.attributes.get("e2b.rateLimited"), 2)
      assert.deepStrictEqual(create?.attributes.get("e2b.retryAfterSeconds"), [0, 0])
      assert.deepStrictEqual(waits.map(({ reason }) => reason), ["rate-limited", "rate-limited"])
    }), timeout)

  it.scoped(
    "a request to a living sandbox fails as what it is, and never as a lost sandbox",
    () =>
      Effect.gen(function*() {
        const machine = yield* sandbox()
        yield* sh(machine, "printf secret >file")
        const requests: ReadonlyArray<readonly [Kind, string, Effect.Effect<unknown, SandboxFault>]> = [
          ["start", "exec", machine.exec("echo SECRET", limits)],
          ["start", "readFile", read(machine, "/home/user/file")],
          ["upload", "writeFiles", machine.writeFiles([{ path: at("/home/user/x"), bytes: utf8("SECRET") }])],
          ["health", "health", machine.health],
          ["extend", "extend", machine.extend(Duration.minutes(2))]
        ]
        for (const [kind, operation, request] of requests) {
          const transport = [
            Fault.Dropped({ effect: false }),
            Fault.Dropped({ effect: true }),
            answered(429),
            answered(500),
            answered(503),
            answered(504),
            answered(403),
            ...(kind === "health" || kind === "extend" ? [] : [answered(502, { json: false }), Fault.ResetInBody()])
          ]
          for (const fault of transport) {
            const error = yield* failing(kind, fault, request)
            assert.strictEqual(error._tag, "TransportFailed", `${operation} ${JSON.stringify(fault)}: ${error.message}`)
            assert.strictEqual(error.operation, operation)
            assert.strictEqual(error.sandboxId, machine.id)
          }
          const malformed = kind === "health" || kind === "extend"
            ? []
            : [
              Fault.Malformed({ body: "{" }),
              Fault.Malformed({ body: "null" }),
              Fault.Malformed({ body: "\0\0\0\0\u0002{}" })
            ]
          for (const fault of malformed) {
            const error = yield* failing(kind, fault, request)
            assert.strictEqual(
              error._tag,
              "ProtocolViolation",
              `${operation} ${JSON.stringify(fault)}: ${error.message}`
            )
          }
        }
        // One that is there and doesn't answer.
        const error = yield* failing("health", answered(502), machine.health)
        assert.deepInclude(error, { _tag: "SandboxLost", reason: "unhealthy" })
        yield* machine.health
      }),
    timeout
  )

  it.scoped("only the API's own answer proves an absence", () =>
    Effect.gen(function*() {
      const { inspect } = yield* SandboxProvider
      const machine: Sandbox = yield* sandbox()
      yield* machine.health
      const inspected = inspect(machine.id)
      for (
        const fault of [
          answered(404, { json: false }),
          answered(500),
          answered(429),
          Fault.Malformed({ body: "{}" }),
          Fault.Malformed({ body: "{\"code\":404}" }),
          Fault.Truncated(),
          Fault.Dropped({ effect: true })
        ]
      ) {
        const error = yield* failing("info", fault, inspected)
        assert.include(["TransportFailed", "ProtocolViolation"], error._tag, JSON.stringify(fault))
      }
      assert.strictEqual(yield* inspected, "running")
    }), timeout)

  it.scoped(
    "another one's sandbox is neither used for long nor deleted, whatever the API calls it",
    () =>
      Effect.gen(function*() {
        const { proxy } = yield* Wire
        const provider = yield* SandboxProvider
        const { inspect } = yield* truth
        const victim = yield* Effect.provideServiceEffect(
          sandbox({ labels: { owner: "another" } }),
          SandboxProvider,
          truth
        )
        const body = JSON.stringify({
          sandboxID: victim.id,
          templateID: "base",
          clientID: "local",
          envdVersion: "0.5.0",
          envdAccessToken: "token",
          domain: null
        })
        const labels = { "episode.allocation": "stray" }
        proxy.set(({ kind }) => kind === "create" ? Fault.Malformed({ body }) : undefined)
        const made = yield* provider.create({ ...policy, labels })
        assert.strictEqual(made.id, victim.id)
        assert.strictEqual((yield* Effect.flip(made.extend(Duration.minutes(1))))._tag, "ProtocolViolation")
        assert.strictEqual((yield* Effect.flip(provider.destroy(made.id)))._tag, "ProtocolViolation")
        assert.strictEqual(yield* inspect(victim.id), "running")
        // The one that was really made has its label.
        proxy.set(() => undefined)
        const strays = yield* provider.find(labels)
        assert.lengthOf(strays, 1)
        yield* Effect.forEach(strays, ({ id }) => provider.destroy(id))
      }),
    timeout
  )

  it.scoped("a request waits no longer than the budgets of whoever makes it say", () =>
    Effect.gen(function*() {
      const { proxy } = yield* Wire
      proxy.set(() => undefined)
      const { attach, create, destroy, find } = yield* SandboxProvider
      const { id } = yield* sandbox()
      const budgets = yield* Budgets.make({ control: "1 millis", allocation: "1 millis" })
      proxy.set(({ kind }) =>
        ["create", "connect", "kill", "list"].includes(kind) ? Fault.Stalled({ effect: false }) : undefined
      )
      const requests: ReadonlyArray<Effect.Effect<unknown, CreateFault>> = [
        create(policy),
        attach(id, "policy"),
        destroy(id),
        find({})
      ]
      const failures = yield* Effect.forEach(requests, Effect.flip, { concurrency: "unbounded" }).pipe(
        Effect.provideService(Budgets.CurrentBudgets, budgets),
        // Well before the defaults are over.
        Effect.timeout("8 seconds"),
        Effect.ensuring(Effect.sync(() => proxy.set(() => undefined)))
      )
      assert.deepStrictEqual(failures.map(({ _tag }) => _tag), Array.from(requests, () => "TransportFailed"))
    }), timeout)

  it.scoped("what the sandbox is made of is known with the first request on it", () =>
    Effect.gen(function*() {
      const { proxy } = yield* Wire
      proxy.set(() => undefined)
      const machine = yield* sandbox()
      yield* machine.extend(Duration.minutes(1))
      const { find } = yield* truth
      assert.isAbove((yield* find({})).length, 0)
      assert.strictEqual(proxy.calls().filter(({ kind }) => kind === "info").length, 1)
      yield* machine.health
      assert.strictEqual(proxy.calls().filter(({ kind }) => kind === "info").length, 1)
      // Where it can't be known, the request fails: no receipt holds a guess.
      proxy.set(({ kind }) => kind === "info" ? answered(500) : undefined)
      const other = yield* sandbox()
      assert.instanceOf(yield* Effect.flip(other.extend(Duration.minutes(1))), TransportFailed)
      proxy.set(() => undefined)
    }), timeout)

  it.scoped("the doctor creates nothing and says what is wrong", () =>
    Effect.gen(function*() {
      const { apiKey, direct, proxy } = yield* Wire
      const checked = (environment: Record<string, string>) =>
        Effect.withConfigProvider(checks, ConfigProvider.fromMap(new Map(Object.entries(environment))))
      const look = (environment: Record<string, string>) =>
        Effect.map(checked(environment), (found) => found.map(({ id, status }) => `${id} ${status}`))
      const key = Redacted.value(apiKey)
      proxy.set(() => undefined)
      assert.deepStrictEqual(yield* look({}), ["key failed", "api failed"])
      const both = (url: string) => ({ E2B_API_URL: url, E2B_SANDBOX_URL: url })
      assert.deepStrictEqual(yield* look({ E2B_API_KEY: "e2b_wrong", ...both(direct) }), ["key ok", "api failed"])
      assert.deepStrictEqual(yield* look({ E2B_API_KEY: key, ...both(proxy.url) }), ["key ok", "api ok"])
      assert.deepStrictEqual(proxy.calls().map(({ kind }) => kind), ["list"])
      const nobody = yield* checked({ E2B_API_KEY: key, E2B_API_URL: "http://127.0.0.1:2" })
      assert.deepStrictEqual(nobody.map(({ id, status }) => `${id} ${status}`), [
        "key ok",
        "sandbox-url warning",
        "api failed"
      ])
      assert.include(nobody.map(({ found }) => found).join(), "no connection to the E2B API at 127.0.0.1:2")
      const wrong = yield* checked({ E2B_API_KEY: "hunter2 hunter2", E2B_API_URL: "127.0.0.1:3100" })
      assert.deepStrictEqual(wrong.map(({ id, status, title }) => `${id} ${title} ${status}`).slice(0, 2), [
        "key E2B_API_KEY failed",
        "setting E2B_API_URL failed"
      ])
      assert.match(wrong.map(({ todo }) => todo).join(), /no spaces.*not an http or https URL/)
      assert.notInclude(JSON.stringify([nobody, wrong]), "hunter2")
    }), timeout)
})

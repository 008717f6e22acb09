import { assert, describe, it } from "@effect/vitest"
import { Clock, Context, DateTime, Duration, Effect, Exit, Fiber, Layer, Scope } from "effect"
import * as Budgets from "../../src/Budgets.ts"
import { SandboxProvider, type SandboxSpec } from "../../src/Sandbox.ts"
import * as Ledger from "../../src/Sandbox/Ledger.ts"
import type { AcquireOptions } from "../../src/Sandbox/Sandboxes.ts"
import * as Sandboxes from "../../src/Sandbox/Sandboxes.ts"
import type { Call } from "../../src/Sandbox/Simulated.ts"
import * as Simulated from "../../src/Sandbox/Simulated.ts"
import { virtually } from "../virtualTime.ts"

const { Fault, World } = Simulated

const options: AcquireOptions = {
  role: "policy",
  lifetime: Duration.minutes(5),
  network: "default",
  phases: { create: "reset", cleanup: "policy-cleanup" }
}

interface Setting extends Simulated.Options {
  readonly budgets?: Budgets.Overrides
}

/**
 * A test over a new world. It closes the layer itself, where that is of interest; what it did is looked at afterwards.
 */
const over = <A, E>(
  { budgets, ...simulation }: Setting,
  test: (
    sandboxes: Context.Tag.Service<Sandboxes.Sandboxes>,
    close: Effect.Effect<void>
  ) => Effect.Effect<A, E, Simulated.World | Ledger.Ledger | Scope.Scope>
): Effect.Effect<A, E> =>
  Effect.gen(function*() {
    const layerScope = yield* Scope.make()
    const services = yield* Layer.buildWithScope(
      Sandboxes.layer.pipe(Layer.provide(Layer.orDie(Budgets.layer(budgets)))),
      layerScope
    )
    const close = Scope.close(layerScope, Exit.void)
    return yield* Effect.ensuring(test(Context.get(services, Sandboxes.Sandboxes), close), close)
  }).pipe(
    Effect.scoped,
    Effect.provide(Layer.merge(
      Simulated.layer({ latency: "100 millis", ...simulation }),
      Ledger.layerMemory
    )),
    virtually
  )

const at = (operation: Call["operation"], fault: Simulated.Fault, nth = 1): Setting => ({
  faults: (call) => call.operation === operation && call.nth === nth ? fault : undefined
})

const always = (operation: Call["operation"], fault: Simulated.Fault): Setting => ({
  faults: (call) => call.operation === operation ? fault : undefined
})

const states = Effect.flatMap(
  Ledger.Ledger,
  ({ open }) =>
    Effect.map(
      open,
      (entries) => entries.map(({ sandboxId, state }): ReadonlyArray<string | undefined> => [state, sandboxId])
    )
)

const running = Effect.flatMap(World, (world) => Effect.map(world.running, (all) => all.length))

const startsOf = (operation: Call["operation"]) =>
  Effect.flatMap(
    World,
    (world) =>
      Effect.map(world.calls, (calls) =>
        calls.filter((call) =>
          call.operation === operation
        ).map(({ startedAt }) => DateTime.toEpochMillis(startedAt)))
  )

const timed = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function*() {
    const from = yield* Clock.currentTimeMillis
    const exit = yield* Effect.exit(effect)
    return { exit, millis: (yield* Clock.currentTimeMillis) - from }
  })

const tagOf = <A, E extends { readonly _tag: string }>(effect: Effect.Effect<A, E, Scope.Scope>) =>
  Effect.scoped(effect).pipe(Effect.flip, Effect.map(({ _tag }) => _tag), Effect.orDieWith(() => "no error"))

describe("a sandbox with an owner", () => {
  it.effect("is in the ledger from before its create to the proof of its absence", () => {
    const seen: Array<unknown> = []
    return virtually(
      Effect.gen(function*() {
        const ledger = yield* Ledger.Ledger
        const look = (call: Call) =>
          Effect.map(ledger.open, (entries) => {
            seen.push([call.operation, ...entries.flatMap(({ sandboxId, state }) => [state, sandboxId])])
          })
        yield* Effect.gen(function*() {
          const { acquire } = yield* Sandboxes.Sandboxes
          const { sandbox } = yield* acquire(options)
          yield* sandbox.health
        }).pipe(Effect.scoped, Effect.provide(Sandboxes.layer.pipe(Layer.provide(Simulated.layer({ onCall: look })))))
        assert.deepStrictEqual(yield* ledger.open, [])
      }).pipe(Effect.provide(Ledger.layerMemory))
    ).pipe(Effect.tap(() =>
      assert.deepStrictEqual(seen, [
        ["create", "creating", undefined],
        ["health", "held", "sim-1"],
        ["destroy", "deleting", "sim-1"],
        ["inspect", "deleting", "sim-1"]
      ])
    ))
  })

  it.effect("is gone at the end of its scope", () =>
    over({}, ({ acquire }) =>
      Effect.gen(function*() {
        yield* Effect.scoped(Effect.zipRight(acquire(options), Effect.map(running, (n) => assert.strictEqual(n, 1))))
        assert.strictEqual(yield* running, 0)
        assert.deepStrictEqual(yield* states, [])
      })))

  it.effect("is discarded once, however often and from wherever that is asked for", () =>
    over({}, ({ acquire }) =>
      Effect.gen(function*() {
        yield* Effect.scoped(Effect.gen(function*() {
          const { discard } = yield* acquire(options)
          const [first, second] = yield* Effect.all([discard, discard], { concurrency: 2 })
          assert.strictEqual(first, second)
          assert.strictEqual(first.attempts, 1)
          assert.strictEqual(yield* discard, first)
        }))
        assert.strictEqual((yield* startsOf("destroy")).length, 1)
      })))

  it.effect("is discarded for everybody when the first to ask goes away", () =>
    over({}, ({ acquire }) =>
      Effect.scoped(Effect.gen(function*() {
        const { discard } = yield* acquire(options)
        const first = yield* Effect.fork(discard)
        yield* Effect.sleep("50 millis")
        const { exit } = yield* timed(Fiber.interrupt(first))
        assert.isTrue(Exit.isSuccess(exit))
        const absent = yield* discard
        assert.strictEqual(absent.attempts, 1)
        assert.strictEqual(yield* running, 0)
        // What the interrupted one left behind must not reach this fiber.
        yield* Effect.yieldNow()
      }))))

  it.effect("is kept under the label of its allocation", () =>
    over({}, ({ acquire }) =>
      Effect.scoped(Effect.gen(function*() {
        yield* acquire({ ...options, labels: { "episode.task": "t" } })
        const [sandbox] = yield* (yield* World).sandboxes
        const [entry] = yield* (yield* Ledger.Ledger).open
        assert.deepStrictEqual(sandbox?.labels, {
          "episode.task": "t",
          "episode.allocation": entry?.allocation ?? ""
        })
      }))))
})

describe("a deletion", () => {
  it.effect("is tried three times, with growing pauses", () =>
    over({ ...always("destroy", Fault.NotDone()), latency: undefined }, ({ acquire }) =>
      Effect.gen(function*() {
        const error = yield* Effect.scoped(
          Effect.flatMap(acquire(options), ({ discard }) => Effect.flip(discard))
        )
        assert.deepInclude(error, { _tag: "CleanupUnresolved", phase: "policy-cleanup" })
        assert.deepStrictEqual(yield* startsOf("destroy"), [0, 250, 1250])
        assert.deepStrictEqual(yield* startsOf("inspect"), [0, 250, 1250])
        assert.deepStrictEqual(yield* states, [["unresolved", "sim-1"]])
      })))

  const survived: ReadonlyArray<readonly [string, Setting]> = [
    ["refused", at("destroy", Fault.Refused())],
    ["lost on its way", at("destroy", Fault.ReplyLost({ effect: false }))],
    ["done, but the reply lost", at("destroy", Fault.ReplyLost({ effect: true }))],
    ["accepted, but not done", at("destroy", Fault.NotDone())],
    ["never answered", at("destroy", Fault.Hangs({ effect: false, interruptible: false }))],
    ["a bug", at("destroy", Fault.Dies({ effect: false }))],
    ["done, and the proof lost", at("inspect", Fault.ReplyLost({ effect: true }))],
    ["done, and the proof malformed", at("inspect", Fault.Malformed())],
    ["done, and the proof never given", at("inspect", Fault.Hangs({ effect: true, interruptible: false }))]
  ]
  for (const [what, setting] of survived) {
    it.effect(`${what}: proved all the same`, () =>
      over(setting, ({ acquire }) =>
        Effect.gen(function*() {
          const { discard } = yield* acquire(options)
          const absent = yield* discard
          assert.isAtMost(absent.attempts, 2)
          assert.strictEqual(yield* running, 0)
          assert.deepStrictEqual(yield* states, [])
        })))
  }

  it.effect("is bounded, and its id kept, when nothing is answered any more", () =>
    over(
      {
        faults: ({ operation }) =>
          operation === "create" ? undefined : Fault.Hangs({ effect: false, interruptible: false })
      },
      ({ acquire }, close) =>
        Effect.gen(function*() {
          const { discard } = yield* acquire(options)
          const { exit, millis } = yield* timed(discard)
          assert.isTrue(Exit.isFailure(exit))
          assert.strictEqual(millis, 30_000)
          assert.deepStrictEqual(yield* states, [["unresolved", "sim-1"]])
          assert.strictEqual((yield* timed(close)).millis, 0)
        })
    ))

  it.effect("isn't held up by an expired sandbox", () =>
    over({}, ({ acquire }) =>
      Effect.gen(function*() {
        const { discard } = yield* acquire(options)
        yield* Effect.sleep("6 minutes")
        assert.strictEqual((yield* discard).attempts, 1)
      })))
})

describe("a create", () => {
  it.effect("that is refused leaves nothing", () =>
    over(at("create", Fault.Refused()), ({ acquire }) =>
      Effect.gen(function*() {
        assert.strictEqual(yield* tagOf(acquire(options)), "SandboxUnavailable")
        assert.deepStrictEqual(yield* states, [])
      })))

  for (
    const fault of [
      Fault.ReplyLost({ effect: true }),
      Fault.Malformed(),
      Fault.Hangs({ effect: true, interruptible: false })
    ]
  ) {
    it.effect(`whose reply is lost is found by its label and deleted: ${fault._tag}`, () =>
      over(at("create", fault), ({ acquire }) =>
        Effect.gen(function*() {
          yield* tagOf(acquire(options))
          assert.strictEqual((yield* (yield* World).sandboxes).length, 1)
          assert.strictEqual(yield* running, 0)
          assert.deepStrictEqual(yield* states, [])
        })))
  }

  it.effect("whose reply is lost and whose sandbox can't be found is uncertain, and the label is told", () =>
    over(
      {
        faults: ({ operation }) =>
          operation === "create" ? Fault.ReplyLost({ effect: true }) : Fault.ReplyLost({ effect: true })
      },
      ({ acquire }) =>
        Effect.gen(function*() {
          const error = yield* Effect.flip(Effect.scoped(acquire(options)))
          const [sandbox] = yield* (yield* World).running
          assert.strictEqual(error._tag, "AllocationUncertain")
          assert.include(error.message, `episode.allocation=${sandbox?.labels[Sandboxes.allocationLabel]}`)
          assert.deepStrictEqual(yield* states, [["uncertain", undefined]])
          assert.strictEqual((yield* startsOf("find")).length, 3)
        })
    ))

  it.effect("whose sandbox is found but can't be deleted is unresolved, by its id", () =>
    over(
      {
        faults: ({ operation }) =>
          operation === "create"
            ? Fault.ReplyLost({ effect: true })
            : operation === "find"
            ? undefined
            : Fault.Hangs({ effect: false, interruptible: true })
      },
      ({ acquire }) =>
        Effect.gen(function*() {
          const { millis } = yield* timed(Effect.scoped(acquire(options)))
          assert.deepStrictEqual(yield* states, [["unresolved", "sim-1"]])
          assert.isAtMost(millis, 30_200)
        })
    ))

  it.effect("that is found late keeps its id, also when the time for cleanup is up in the middle of its deletion", () =>
    over(
      {
        faults: ({ nth, operation }) =>
          operation === "create" || (operation === "find" && nth === 1)
            ? Fault.Hangs({ effect: true, interruptible: true })
            : operation === "find"
            ? undefined
            : Fault.Hangs({ effect: false, interruptible: true })
      },
      ({ acquire }) =>
        Effect.gen(function*() {
          yield* Effect.exit(Effect.scoped(acquire(options)))
          assert.deepStrictEqual(yield* states, [["unresolved", "sim-1"]])
        })
    ))

  it.effect("that comes late is discarded", () =>
    over(at("create", Fault.Late({ by: "65 seconds" })), ({ acquire }) =>
      Effect.gen(function*() {
        assert.strictEqual(yield* tagOf(acquire(options)), "ResponseTimedOut")
        assert.strictEqual(yield* running, 0)
        assert.deepStrictEqual(yield* states, [])
      })))

  it.effect("that dies of a bug dies, and what it made is deleted", () =>
    over(at("create", Fault.Dies({ effect: true })), ({ acquire }, close) =>
      Effect.gen(function*() {
        const exit = yield* Effect.exit(Effect.scoped(acquire(options)))
        assert.deepStrictEqual(
          exit,
          Exit.die(exit._tag === "Failure" && exit.cause._tag === "Die" ? exit.cause.defect : 0)
        )
        yield* close
        assert.strictEqual(yield* running, 0)
        assert.deepStrictEqual(yield* states, [])
      })))
})

describe("an interrupted create", () => {
  const interrupted = (delay: Duration.DurationInput, setting: Setting) =>
    over(setting, ({ acquire }, close) =>
      Effect.gen(function*() {
        const fiber = yield* Effect.fork(Effect.scoped(acquire(options)))
        yield* Effect.sleep(delay)
        const interruption = yield* timed(Fiber.interrupt(fiber))
        const closing = yield* timed(close)
        return { held: interruption.millis, closing: closing.millis, left: yield* running, states: yield* states }
      }))

  for (const delay of [1, 49, 50, 51, 99, 150, 201]) {
    it.effect(`after ${delay} ms: holds nobody up, and leaves nothing`, () =>
      Effect.gen(function*() {
        const { closing, held, left, states } = yield* interrupted(delay, { latency: "200 millis" })
        assert.isAtMost(held, delay < 200 ? 0 : 400)
        assert.isAtMost(closing, 800)
        assert.strictEqual(left, 0)
        assert.deepStrictEqual(states, [])
      }))
  }

  it.effect("the end of the layer waits for the stray's deletion", () =>
    Effect.gen(function*() {
      const { closing, held, left, states } = yield* interrupted(
        "1 second",
        at("create", Fault.Late({ by: "5 seconds" }))
      )
      assert.strictEqual(held, 0)
      assert.isAbove(closing, 4_000)
      assert.strictEqual(left, 0)
      assert.deepStrictEqual(states, [])
    }))

  it.effect("the end of the layer isn't held up by a create that can't be interrupted", () =>
    Effect.gen(function*() {
      const { closing, states } = yield* interrupted(
        "1 second",
        at("create", Fault.Hangs({ effect: false, interruptible: false }))
      )
      assert.isAtMost(closing, 30_000)
      assert.deepStrictEqual(states, [["uncertain", undefined]])
    }))
})

describe("pacing", () => {
  const fourAtOnce = (setting: Setting) =>
    over(setting, ({ acquire }) =>
      Effect.gen(function*() {
        yield* Effect.all(Array.from({ length: 4 }, () => acquire(options)), { concurrency: "unbounded" })
        return yield* startsOf("create")
      }))

  it.effect("keeps creates apart as the provider asks", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* fourAtOnce({ allocationPacing: "1100 millis" }), [0, 1100, 2200, 3300])
    }))

  it.effect("or as the budgets say", () =>
    Effect.gen(function*() {
      const starts = yield* fourAtOnce({ allocationPacing: "1100 millis", budgets: { allocationPacing: "2 seconds" } })
      assert.deepStrictEqual(starts, [0, 2000, 4000, 6000])
    }))

  it.effect("or not at all", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* fourAtOnce({}), [0, 0, 0, 0])
    }))

  it.effect("counts against a deadline, and one that gives up makes nothing", () =>
    over({ allocationPacing: "10 seconds" }, ({ acquire }) =>
      Effect.gen(function*() {
        yield* acquire(options)
        const deadline = yield* Budgets.startDeadline("episodeDeadline", Duration.seconds(3))
        const error = yield* Effect.flip(acquire({ ...options, enclosing: [deadline] }))
        assert.deepInclude(error, { _tag: "BudgetExceeded", budget: "episodeDeadline" })
        assert.strictEqual((yield* startsOf("create")).length, 1)
        assert.strictEqual((yield* states).length, 1)
      })))
})

describe("what goes wrong beside a sandbox leaves none", () => {
  const dying = (state: Ledger.LedgerEntry["state"]) =>
    Effect.map(Ledger.Ledger, (ledger): Context.Tag.Service<Ledger.Ledger> => ({
      ...ledger,
      put: (entry) => entry.state === state ? Effect.dieMessage("the disk is full") : ledger.put(entry)
    }))

  const acquiring = Effect.scoped(Effect.flatMap(Sandboxes.Sandboxes, ({ acquire }) => acquire(options)))

  it.effect.each(["held", "deleting"] as const)("a ledger that dies at %s", (state) =>
    virtually(
      Effect.gen(function*() {
        const exit = yield* Effect.exit(acquiring).pipe(
          Effect.provide(Layer.provide(Layer.fresh(Sandboxes.layer), Layer.effect(Ledger.Ledger, dying(state))))
        )
        // What is used has to be written down; that it is deleted doesn't depend on that.
        assert.strictEqual(Exit.isSuccess(exit), state === "deleting")
        assert.strictEqual(yield* running, 0)
        assert.lengthOf(yield* startsOf("destroy"), 1)
        assert.deepStrictEqual(yield* states, [])
      }).pipe(Effect.provide(Layer.merge(Simulated.layer(), Ledger.layerMemory)))
    ))

  it.effect("a provider whose sandboxes have resources that can't be", () =>
    virtually(
      Effect.gen(function*() {
        const wrong = Layer.effect(
          SandboxProvider,
          Effect.map(SandboxProvider, (provider) => ({
            ...provider,
            create: (spec: SandboxSpec) =>
              Effect.map(provider.create(spec), (sandbox) => ({
                ...sandbox,
                resources: { ...sandbox.resources, templateId: "" }
              }))
          }))
        )
        const error = yield* Effect.flip(acquiring).pipe(
          Effect.provide(Layer.provide(Layer.fresh(Sandboxes.layer), wrong))
        )
        assert.strictEqual(error._tag, "ProtocolViolation")
        assert.include(error.message, "sim-1")
        assert.strictEqual(yield* running, 0)
        assert.deepStrictEqual(yield* states, [])
      }).pipe(Effect.provide(Layer.merge(Simulated.layer(), Ledger.layerMemory)))
    ))

  it.effect("an acquisition that goes on after the layer's end, and is interrupted", () =>
    over({}, ({ acquire }, close) =>
      Effect.gen(function*() {
        const fiber = yield* Effect.forkDaemon(Effect.scoped(acquire(options)))
        yield* Effect.sleep("50 millis")
        yield* close
        yield* Fiber.interrupt(fiber)
        yield* Effect.sleep("1 second")
        assert.strictEqual(yield* running, 0)
        assert.deepStrictEqual(yield* states, [])
      })))
})

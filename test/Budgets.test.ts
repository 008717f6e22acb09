import { assert, describe, it } from "@effect/vitest"
import {
  ConfigError,
  ConfigProvider,
  Duration,
  Effect,
  Either,
  Exit,
  FastCheck as fc,
  Fiber,
  Option,
  Ref,
  TestClock
} from "effect"
import * as Budgets from "../src/Budgets.ts"

const durations = [
  "policyLifetimeAtCreate",
  "policyLifetime",
  "policyWindow",
  "episodeDeadline",
  "commandLimit",
  "commandResponse",
  "verifierLifetime",
  "verifierResponse",
  "fileTransfer",
  "allocation",
  "control",
  "cleanup",
  "cleanupPause",
  "allocationPacing"
] as const

const contradictions = [
  ["commandLimit", "commandResponse"],
  ["commandLimit", "verifierResponse"],
  ["commandLimit", "policyWindow"],
  ["policyWindow", "policyLifetime"],
  ["policyWindow", "episodeDeadline"],
  ["verifierResponse", "verifierLifetime"],
  ["control", "cleanup"]
] as const

const refusedFields = (overrides: Budgets.Overrides): ReadonlyArray<string> =>
  Either.match(Budgets.make(overrides), {
    onLeft: (error) => error.issues.map((issue) => issue.field),
    onRight: () => []
  })

/** Lengths in growing order, so that none contradicts another. */
const consistent = fc.uniqueArray(fc.integer({ min: 1, max: 24 * 60 * 60 * 1000 }), { minLength: 5, maxLength: 5 }).map(
  (lengths): Budgets.Overrides => {
    const [a, b, c, d, e] = lengths.toSorted((x, y) => x - y).map((length) => Duration.millis(length))
    return {
      commandLimit: a,
      commandResponse: b,
      policyWindow: c,
      policyLifetime: d,
      episodeDeadline: e,
      verifierResponse: b,
      verifierLifetime: c,
      control: a,
      cleanup: b
    }
  }
)

describe("Budgets.make", () => {
  it("has the documented defaults", () => {
    const budgets = Either.getOrThrow(Budgets.make())
    assert.deepStrictEqual(budgets, Budgets.defaults)
    assert.deepStrictEqual(Duration.toSeconds(budgets.policyWindow), 120)
    assert.deepStrictEqual(Duration.toSeconds(budgets.episodeDeadline), 600)
    assert.strictEqual(budgets.fileCap, 65_536)
  })

  it.prop("accepts what doesn't contradict itself", [consistent, fc.integer({ min: 1, max: 16 * 1024 * 1024 })], ([
    overrides,
    fileCap
  ]) => {
    const budgets = Either.getOrThrow(Budgets.make({ ...overrides, fileCap }))
    assert.strictEqual(budgets.fileCap, fileCap)
    for (const field of durations) {
      const asked = overrides[field]
      if (asked !== undefined) {
        assert.deepStrictEqual(budgets[field], asked)
      }
    }
  })

  it.each(
    durations.flatMap((field) =>
      [0, -1, Number.NaN, Infinity, -Infinity, "0 millis", "-5 seconds", "25 days", Duration.infinity].map((length) =>
        [field, length] as const
      )
    )
  )("refuses %s = %s and names the field", (field, length) => {
    // A string of the table is a duration as users write it, and its type is only `string` here.
    assert.include(refusedFields({ [field]: length as Duration.DurationInput }), field)
  })

  it.each(
    (["fileCap", "observationCap", "cleanupAttempts"] as const).flatMap((field) =>
      [0, -1, 1.5, Number.NaN, Infinity, 2 ** 31].map((size) => [field, size] as const)
    )
  )("refuses %s = %s and names the field", (field, size) => {
    assert.deepStrictEqual(refusedFields({ [field]: size }), [field])
  })

  it("reports every mistake, not only the first", () => {
    assert.sameMembers([...refusedFields({ policyWindow: 0, fileCap: -1, control: Infinity })], [
      "policyWindow",
      "fileCap",
      "control"
    ])
  })

  it.prop("refuses a wait that isn't shorter than the one around it", [
    fc.constantFrom(...contradictions),
    fc.integer({ min: 0, max: 1000 })
  ], ([[inner, outer], beyond]) => {
    const length = Duration.sum(Budgets.defaults[outer], Duration.millis(beyond))
    const refused = Option.getOrThrow(Either.getLeft(Budgets.make({ [inner]: length })))
    assert.include(refused.issues.map((issue) => issue.field), inner)
    assert.include(refused.message, `must be shorter than ${outer}`)
  })

  it("can't be made invalid by its constructor either", () => {
    assert.throws(() => new Budgets.Budgets({ ...Budgets.defaults, policyWindow: Duration.zero }))
    assert.throws(() => new Budgets.Budgets({ ...Budgets.defaults, commandLimit: Duration.seconds(25) }))
  })
})

describe("Budgets.layerFromEnv", () => {
  const inForce = (environment: Readonly<Record<string, string>>, overrides?: Budgets.Overrides) =>
    Budgets.CurrentBudgets.pipe(
      Effect.provide(Budgets.layerFromEnv(overrides)),
      Effect.withConfigProvider(ConfigProvider.fromMap(new Map(Object.entries(environment))))
    )

  it.effect("is the defaults where nothing is set", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* inForce({}), Budgets.defaults)
      assert.deepStrictEqual(yield* Budgets.CurrentBudgets, Budgets.defaults)
    }))

  it.effect("reads durations and sizes", () =>
    Effect.gen(function*() {
      const budgets = yield* inForce({ EPISODE_POLICY_WINDOW: "5 minutes", EPISODE_FILE_CAP: "131072" })
      assert.deepStrictEqual(budgets.policyWindow, Duration.minutes(5))
      assert.strictEqual(budgets.fileCap, 131_072)
    }))

  it.effect("lets code have the last word, if it says anything", () =>
    Effect.gen(function*() {
      const environment = { EPISODE_POLICY_WINDOW: "5 minutes" }
      const changed = yield* inForce(environment, { policyWindow: "4 minutes" })
      assert.deepStrictEqual(changed.policyWindow, Duration.minutes(4))
      const silent = yield* inForce(environment, { policyWindow: undefined })
      assert.deepStrictEqual(silent.policyWindow, Duration.minutes(5))
    }))

  it.effect.each(["0 seconds", "-5 seconds", "25 days", "600 seconds"])(
    "refuses a window of %s",
    (window) =>
      Effect.gen(function*() {
        const refused = yield* Effect.flip(inForce({ EPISODE_POLICY_WINDOW: window }))
        assert.instanceOf(refused, Budgets.InvalidBudgets)
        assert.include(refused.message, "policyWindow")
      })
  )

  it.effect.each(
    [["EPISODE_POLICY_WINDOW", "soon"], ["EPISODE_POLICY_WINDOW", "Infinity"], ["EPISODE_FILE_CAP", "64 KiB"], [
      "EPISODE_FILE_CAP",
      "1.5"
    ]] as const
  )(
    "names the variable that can't be read: %s",
    ([variable, value]) =>
      Effect.gen(function*() {
        const refused = yield* Effect.flip(inForce({ [variable]: value }))
        assert.isTrue(ConfigError.isConfigError(refused))
        assert.include(String(refused), variable)
      })
  )
})

describe("Budgets.within", () => {
  const own = { budget: "commandResponse", limit: Duration.seconds(25) } as const

  it.effect("lets a result and a failure through", () =>
    Effect.gen(function*() {
      assert.strictEqual(yield* Budgets.within(Effect.succeed(1), own), 1)
      assert.strictEqual(yield* Effect.fail("no").pipe(Budgets.within(own), Effect.flip), "no")
    }))

  it.effect("fires at its limit and not before", () =>
    Effect.gen(function*() {
      const fiber = yield* Effect.fork(Effect.flip(Budgets.within(Effect.never, own)))
      yield* TestClock.adjust(Duration.millis(24_999))
      assert.isTrue(Option.isNone(yield* Fiber.poll(fiber)))
      yield* TestClock.adjust(Duration.millis(1))
      assert.deepStrictEqual(yield* Fiber.join(fiber), new Budgets.BudgetExceeded(own))
    }))

  it.effect.prop("names the budget that ends first, and the outer one of two that end together", [
    fc.integer({ min: 1, max: 5 }),
    fc.integer({ min: 1, max: 5 }),
    fc.integer({ min: 0, max: 3 })
  ], ([limit, window, spent]) =>
    Effect.gen(function*() {
      const enclosing = yield* Budgets.startDeadline("policyWindow", Duration.seconds(window))
      const far = yield* Budgets.startDeadline("episodeDeadline", Duration.seconds(60))
      yield* TestClock.adjust(Duration.seconds(spent))
      const left = Math.max(0, window - spent)
      const fiber = yield* Budgets.within(Effect.never, {
        budget: "control",
        limit: Duration.seconds(limit),
        enclosing: [far, enclosing]
      }).pipe(Effect.flip, Effect.fork)
      yield* TestClock.adjust(Duration.seconds(Math.min(limit, left)))
      assert.deepStrictEqual(
        yield* Fiber.join(fiber),
        limit < left
          ? new Budgets.BudgetExceeded({ budget: "control", limit: Duration.seconds(limit) })
          // The whole budget, also when a part of it was spent before.
          : new Budgets.BudgetExceeded({ budget: "policyWindow", limit: Duration.seconds(window) })
      )
    }), { fastCheck: { numRuns: 50 } })

  it.effect.each([0, 1])("doesn't start under a deadline that passed %s s ago", (ago) =>
    Effect.gen(function*() {
      const passed = yield* Budgets.startDeadline("episodeDeadline", Duration.seconds(1))
      yield* TestClock.adjust(Duration.seconds(1 + ago))
      assert.deepStrictEqual(yield* Budgets.remaining(passed), Duration.zero)
      const started = yield* Ref.make(false)
      const refused = yield* Ref.set(started, true).pipe(
        Budgets.within({ ...own, enclosing: [passed] }),
        Effect.flip
      )
      assert.strictEqual(refused.budget, "episodeDeadline")
      assert.isFalse(yield* Ref.get(started))
    }))

  it.effect("ends on time when the effect can't be interrupted; that goes on in the background", () =>
    Effect.gen(function*() {
      const ended = yield* Ref.make(false)
      const fiber = yield* Effect.sleep("60 seconds").pipe(
        Effect.zipRight(Ref.set(ended, true)),
        Effect.uninterruptible,
        Budgets.within(own),
        Effect.flip,
        Effect.fork
      )
      yield* TestClock.adjust(own.limit)
      assert.strictEqual((yield* Fiber.join(fiber)).budget, own.budget)
      assert.isFalse(yield* Ref.get(ended))
      yield* TestClock.adjust("60 seconds")
      assert.isTrue(yield* Ref.get(ended))
    }))

  it.effect("ends on time in an uninterruptible region, such as a release", () =>
    Effect.gen(function*() {
      const fiber = yield* Effect.never.pipe(Budgets.within(own), Effect.flip, Effect.uninterruptible, Effect.fork)
      yield* TestClock.adjust(own.limit)
      assert.strictEqual((yield* Fiber.join(fiber)).budget, own.budget)
    }))

  it.effect("ends on time in the release of an interrupted fiber, and no sooner", () =>
    Effect.gen(function*() {
      const exit = yield* Ref.make<Exit.Exit<void, Budgets.BudgetExceeded>>(Exit.void)
      const fiber = yield* Effect.never.pipe(
        Effect.onInterrupt(() =>
          Effect.never.pipe(Budgets.within(own), Effect.exit, Effect.flatMap((end) => Ref.set(exit, end)))
        ),
        Effect.fork
      )
      yield* TestClock.adjust("1 seconds")
      const interrupting = yield* Effect.fork(Fiber.interrupt(fiber))
      yield* TestClock.adjust(Duration.millis(24_999))
      assert.isTrue(Option.isNone(yield* Fiber.poll(interrupting)))
      yield* TestClock.adjust(Duration.millis(1))
      yield* Fiber.join(interrupting)
      assert.deepStrictEqual(yield* Ref.get(exit), Exit.fail(new Budgets.BudgetExceeded(own)))
    }))

  it.effect("is a part of its caller's end: what that interrupts is waited for, two seconds at most", () =>
    Effect.gen(function*() {
      const ending = (duration: Duration.DurationInput) =>
        Effect.gen(function*() {
          const wait = Effect.never.pipe(Effect.onInterrupt(() => Effect.sleep(duration)), Budgets.within(own))
          const fiber = yield* Effect.fork(wait)
          yield* TestClock.adjust("1 seconds")
          return yield* Effect.fork(Fiber.interrupt(fiber))
        })
      const short = yield* ending("1500 millis")
      yield* TestClock.adjust(Duration.millis(1499))
      assert.isTrue(Option.isNone(yield* Fiber.poll(short)))
      yield* TestClock.adjust(Duration.millis(1))
      yield* Fiber.join(short)
      const long = yield* ending("60 seconds")
      yield* TestClock.adjust(Duration.millis(1999))
      assert.isTrue(Option.isNone(yield* Fiber.poll(long)))
      yield* TestClock.adjust(Duration.millis(1))
      yield* Fiber.join(long)
    }))

  it.effect("interrupts the effect when its limit or its caller ends it", () =>
    Effect.gen(function*() {
      const interrupted = yield* Ref.make(0)
      const wait = Effect.never.pipe(
        Effect.onInterrupt(() => Ref.update(interrupted, (n) => n + 1)),
        Budgets.within(own)
      )
      const late = yield* Effect.fork(Effect.exit(wait))
      const stopped = yield* Effect.fork(wait)
      yield* TestClock.adjust("1 seconds")
      yield* Fiber.interrupt(stopped)
      yield* TestClock.adjust(own.limit)
      yield* Fiber.join(late)
      assert.strictEqual(yield* Ref.get(interrupted), 2)
    }))
})

describe("Budgets.until", () => {
  it.effect("doesn't bound a wait under no deadline", () =>
    Effect.gen(function*() {
      const fiber = yield* Effect.sleep("1 days").pipe(Budgets.until([]), Effect.fork)
      yield* TestClock.adjust("1 days")
      yield* Fiber.join(fiber)
    }))

  it.effect("fires at the nearest deadline", () =>
    Effect.gen(function*() {
      const deadlines = [
        yield* Budgets.startDeadline("episodeDeadline", Duration.seconds(2)),
        yield* Budgets.startDeadline("policyWindow", Duration.seconds(1))
      ]
      const fiber = yield* Effect.never.pipe(Budgets.until(deadlines), Effect.flip, Effect.fork)
      yield* TestClock.adjust("1 seconds")
      assert.strictEqual((yield* Fiber.join(fiber)).budget, "policyWindow")
    }))
})

import { assert, describe, it } from "@effect/vitest"
import { Arbitrary, Array as Arr, DateTime, Effect, FastCheck as fc, Schema } from "effect"
import { Outcome } from "../../src/Episode/Outcome.ts"
import { EpisodeReceipt, fromEpisodes, Rates, Receipt, usage } from "../../src/Episode/Receipt.ts"
import { SandboxId } from "../../src/Sandbox.ts"
import { ResourceRecord } from "../../src/Sandbox/Journal.ts"
import { Fault } from "../../src/Sandbox/Simulated.ts"
import { edit, play, solution, starter, task } from "./fixture.ts"

const episode = (source: string, fault?: Fault) =>
  Effect.map(
    play(
      { latency: "100 millis", faults: ({ nth, operation }) => operation === "exec" && nth === 2 ? fault : undefined },
      (session) => Effect.all([session.reset(task), session.terminal(edit(source)), session.submit])
    ),
    ({ receipts: [receipt] }) => receipt ?? assert.fail("no receipt")
  )

const episodes = Effect.all([
  episode(solution),
  episode(starter),
  episode(solution, Fault.Malformed()),
  episode(solution, Fault.Late({ by: "1 minute" }))
])

// JSON has no endless durations, and no budget is one.
const outcome = Arbitrary.make(Outcome).filter((one) => !/:null/.test(JSON.stringify(Schema.encodeSync(Outcome)(one))))

const at = (seconds: number) => DateTime.unsafeMake(seconds * 1000)

const resource = (from: number, to: number | null, cpuCount = 2, memoryMiB = 512) =>
  new ResourceRecord({
    id: SandboxId.make("a"),
    role: "policy",
    cpuCount,
    memoryMiB,
    templateId: "base",
    startedAt: at(from),
    deleteAttempts: 1,
    confirmedAbsentAt: to === null ? null : at(to)
  })

const rates = new Rates({ usdPerVcpuSecond: 0.25, usdPerGibSecond: 0.5, asOf: "2026-08" })

describe("Receipt", () => {
  it.effect("can be written down and read again", () =>
    Effect.gen(function*() {
      const receipt = fromEpisodes(yield* episodes, 12.5)
      const written = yield* Schema.encode(Schema.parseJson(Receipt))(receipt)
      const read = yield* Schema.decode(Schema.parseJson(Receipt))(written)
      assert.strictEqual(yield* Schema.encode(Schema.parseJson(Receipt))(read), written)
    }))

  it.effect("holds null, and no zero, for an episode without a score", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(fromEpisodes(yield* episodes, 1).rewards, [1, 0, null, null])
    }))

  it.effect.prop(
    "whatever the outcomes",
    [fc.array(outcome, { maxLength: 4 })],
    ([outcomes]) =>
      Effect.gen(function*() {
        const some = yield* episode(solution)
        const receipt = fromEpisodes(outcomes.map((outcome) => new EpisodeReceipt({ ...some, outcome })), 1)
        assert.deepStrictEqual(
          receipt.rewards,
          outcomes.map((outcome) => outcome._tag === "Scored" ? outcome.score : null)
        )
        const written = yield* Schema.encode(Schema.parseJson(Receipt))(receipt)
        assert.deepStrictEqual((yield* Schema.decode(Schema.parseJson(Receipt))(written)).rewards, receipt.rewards)
      }),
    { fastCheck: { numRuns: 30 } }
  )

  it.effect("says what was done, when, and to which sandbox", () =>
    Effect.gen(function*() {
      const receipt = yield* episode(solution)
      assert.deepStrictEqual(
        receipt.operations.map(({ milliseconds, name, phase, sandboxId }): ReadonlyArray<unknown> => [
          name,
          phase,
          sandboxId,
          milliseconds
        ]),
        [
          ["create", "reset", "sim-1", 100],
          ["extend", "reset", "sim-1", 100],
          ["writeFiles", "reset", "sim-1", 100],
          ["exec", "policy", "sim-1", 100],
          ["readFile", "export", "sim-1", 100],
          ["destroy", "policy-cleanup", "sim-1", 100],
          ["inspect", "policy-cleanup", "sim-1", 100],
          ["create", "verifier-create", "sim-2", 100],
          ["writeFiles", "verify", "sim-2", 100],
          ["exec", "verify", "sim-2", 130],
          ["readFile", "verify", "sim-2", 100],
          ["destroy", "verifier-cleanup", "sim-2", 100],
          ["inspect", "verifier-cleanup", "sim-2", 100]
        ]
      )
      assert.strictEqual(receipt.totalSeconds, 1.23)
      assert.deepStrictEqual(receipt.resources.map(({ deleteAttempts, role }) => [role, deleteAttempts]), [
        ["policy", 1],
        ["verifier", 1]
      ])
    }))
})

describe("usage", () => {
  it("adds up what each sandbox was and how long it lived", () => {
    assert.deepStrictEqual(usage([resource(0, 10), resource(4, 8, 1, 1024)], rates, at(99)), {
      sandboxSeconds: 14,
      estimatedCostUsd: 10 * (2 * 0.25 + 0.5 * 0.5) + 4 * (0.25 + 0.5)
    })
  })

  it("counts one that isn't proved gone until now", () =>
    assert.strictEqual(usage([resource(5, null)], rates, at(25)).sandboxSeconds, 20))

  it("is nothing for no sandbox, and never negative", () => {
    assert.deepStrictEqual(usage([], rates, at(1)), { sandboxSeconds: 0, estimatedCostUsd: 0 })
    assert.strictEqual(usage([resource(9, 3)], rates, at(1)).sandboxSeconds, 0)
  })

  it.prop("of a whole is the sum of its parts", [fc.array(fc.tuple(fc.nat(1000), fc.nat(1000)))], ([spans]) => {
    const resources = spans.map(([from, length]) => resource(from, from + length))
    const parts = resources.map((one) => usage([one], rates, at(0)))
    const whole = usage(resources, rates, at(0))
    assert.strictEqual(whole.sandboxSeconds, Arr.reduce(parts, 0, (sum, part) => sum + part.sandboxSeconds))
    assert.strictEqual(whole.estimatedCostUsd, Arr.reduce(parts, 0, (sum, part) => sum + part.estimatedCostUsd))
  })
})

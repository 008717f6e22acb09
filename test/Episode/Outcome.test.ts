import { assert, describe, it } from "@effect/vitest"
import { Arbitrary, DateTime, FastCheck as fc, Schema } from "effect"
import type { Facts } from "../../src/Episode/Outcome.ts"
import {
  decide,
  Ending,
  EpisodeDeadlineExceeded,
  EpisodeInterrupted,
  InfrastructureError,
  Outcome
} from "../../src/Episode/Outcome.ts"
import { GradingReason } from "../../src/Grading.ts"
import { Role, SandboxId } from "../../src/Sandbox.ts"

const some = Arbitrary.make

const late = fc.option(some(EpisodeDeadlineExceeded), { nil: undefined })

const resource = fc.record({
  id: some(SandboxId),
  role: some(Role),
  deleteAttempts: fc.integer({ min: 0, max: 3 }),
  confirmedAbsentAt: fc.option(fc.integer({ min: 0, max: 1e12 }).map((millis) => DateTime.unsafeMake(millis)))
})

const absent = resource.map((one) => ({ ...one, confirmedAbsentAt: one.confirmedAbsentAt ?? DateTime.unsafeMake(0) }))

const policyMade: fc.Arbitrary<Ending> = fc.oneof(
  fc.constant(Ending.NotSubmitted()),
  fc.constant(Ending.WindowExhausted()),
  fc.constantFrom("Missing" as const, "NotRegular" as const, "TooLarge" as const, "Unreadable" as const).map((found) =>
    Ending.NothingExported({ found })
  ),
  some(GradingReason).map((reason) =>
    Ending.Graded({ grade: reason === "correct" ? { score: 1, reason } : { score: 0, reason } })
  )
)

const notPolicyMade: fc.Arbitrary<Ending> = fc.oneof(
  some(InfrastructureError).map((error) => Ending.Failed({ error })),
  some(EpisodeInterrupted).map((error) => Ending.Interrupted({ error }))
)

const anything: fc.Arbitrary<Facts> = fc.record({
  ending: fc.oneof(policyMade, notPolicyMade),
  resources: fc.array(resource, { maxLength: 3 }),
  late
})

const runs = { fastCheck: { numRuns: 500 } }

describe("decide", () => {
  it.prop("has an answer to everything, and the answer can be written down", [anything], ([facts]) => {
    const outcome = decide(facts)
    const written = Schema.encodeSync(Outcome)(outcome)
    assert.deepStrictEqual(Schema.encodeSync(Outcome)(Schema.decodeSync(Outcome)(written)), written)
  }, runs)

  it.prop(
    "gives no score for what isn't the policy's doing",
    [fc.record({ ending: notPolicyMade, resources: fc.array(resource, { maxLength: 3 }), late })],
    ([facts]) => assert.strictEqual(decide(facts)._tag, "Aborted"),
    runs
  )

  it.prop(
    "gives no score while a sandbox isn't proved gone, and names all of those",
    [policyMade, fc.array(resource, { maxLength: 3 }), resource, late],
    ([ending, others, one, tooLate]) => {
      const resources = [...others, { ...one, confirmedAbsentAt: null }]
      const outcome = decide({ ending, resources, late: tooLate })
      assert.isTrue(outcome._tag === "Aborted" && outcome.error._tag === "CleanupUnresolved")
      if (outcome._tag === "Aborted" && outcome.error._tag === "CleanupUnresolved") {
        assert.deepStrictEqual(
          outcome.error.sandboxes.map(({ sandboxId }) => sandboxId),
          resources.filter(({ confirmedAbsentAt }) => confirmedAbsentAt === null).map(({ id }) => id)
        )
      }
    },
    runs
  )

  it.prop(
    "gives no score for what came too late",
    [policyMade, fc.array(absent, { maxLength: 3 }), some(EpisodeDeadlineExceeded)],
    ([ending, resources, tooLate]) => {
      const outcome = decide({ ending, resources, late: tooLate })
      assert.isTrue(outcome._tag === "Aborted" && outcome.error._tag === "EpisodeDeadlineExceeded")
    },
    runs
  )

  it.prop(
    "gives a score for everything that is the policy's doing, and 1 for nothing but what is correct",
    [policyMade, fc.array(absent, { maxLength: 3 })],
    ([ending, resources]) => {
      const outcome = decide({ ending, resources })
      assert.strictEqual(outcome._tag, "Scored")
      if (outcome._tag === "Scored") {
        assert.strictEqual(outcome.score === 1, outcome.reason === "correct")
        assert.strictEqual(outcome.score === 1, ending._tag === "Graded" && ending.grade.reason === "correct")
      }
    },
    runs
  )

  it.prop(
    "names what an interruption left behind, and else the interruption",
    [some(EpisodeInterrupted), fc.array(resource, { maxLength: 3 }), late],
    ([error, resources, tooLate]) => {
      const outcome = decide({ ending: Ending.Interrupted({ error }), resources, late: tooLate })
      assert.strictEqual(
        outcome._tag === "Aborted" ? outcome.error._tag : "a score",
        resources.some(({ confirmedAbsentAt }) => confirmedAbsentAt === null)
          ? "CleanupUnresolved"
          : "EpisodeInterrupted"
      )
    },
    runs
  )
})

import { assert, describe, it } from "@effect/vitest"
import { Effect, FastCheck as fc } from "effect"
import type { Call } from "../src/Sandbox/Simulated.ts"
import { Fault } from "../src/Sandbox/Simulated.ts"
import { checkTroubles, faults } from "../test/Episode/sweep/Model.ts"
import type { Interruption, Run, Scenario } from "../test/Episode/sweep/Scenario.ts"
import { run, scenarios } from "../test/Episode/sweep/Scenario.ts"

const number = (name: string, otherwise: number): number => {
  const given = Number(process.env[name] ?? otherwise)
  return Number.isSafeInteger(given) ? given : assert.fail(`${name} is no integer`)
}

// `npm run sweep -- --seed N --pairs N` sets these.
const seed = number("SWEEP_SEED", 20260801)
const pairs = number("SWEEP_PAIRS", 2000)

/** From a call on, everything goes wrong: the network is down, or the provider. */
const outages: ReadonlyArray<readonly [what: string, (from: number) => (call: Call) => Fault | undefined]> = [
  ["every request is refused", (from) => ({ number }) => number >= from ? Fault.Refused() : undefined],
  [
    "every reply is lost",
    (from) => ({ number }) => number >= from ? Fault.ReplyLost({ effect: true }) : undefined
  ],
  [
    "nothing is answered",
    (from) => ({ number }) => number >= from ? Fault.Hangs({ effect: false, interruptible: false }) : undefined
  ],
  [
    "nothing is deleted",
    (from) => ({ number, operation }) => number >= from && operation === "destroy" ? Fault.NotDone() : undefined
  ],
  [
    "nothing can be proved",
    (from) => ({ number, operation }) => number >= from && operation === "inspect" ? Fault.Malformed() : undefined
  ]
]

interface Trouble {
  readonly at: number
  readonly what: Fault | Omit<Interruption, "at">
}

const trouble: fc.Arbitrary<Trouble> = fc.record({
  at: fc.nat(99),
  what: fc.oneof(
    { weight: 6, arbitrary: fc.constantFrom(...faults) },
    { weight: 1, arbitrary: fc.boolean().map((afterEffect) => ({ afterEffect })) }
  )
})

interface Pair {
  readonly scenario: Scenario
  readonly troubles: readonly [Trouble, Trouble]
}

const pair: fc.Arbitrary<Pair> = fc.record({
  scenario: fc.constantFrom(...scenarios),
  troubles: fc.tuple(trouble, trouble)
})

// What cleanup does again makes a run longer than its untroubled self.
const further = 6

const troubled = (usual: Run, { scenario, troubles }: Pair) => {
  const within = ({ at }: Trouble) => 1 + at % (usual.played.calls.length + further)
  return run(scenario, {
    faults: ({ number }) =>
      troubles.flatMap((one) => within(one) === number && "_tag" in one.what ? [one.what] : []).at(0),
    interruption: troubles.flatMap((one) => "_tag" in one.what ? [] : [{ at: within(one), ...one.what }]).at(0)
  })
}

const usually = Effect.map(
  Effect.forEach(scenarios, (scenario) => Effect.map(run(scenario), (usual) => [scenario, usual] as const)),
  (all) => new Map(all)
)

const usualOf = (all: ReadonlyMap<Scenario, Run>, scenario: Scenario): Run =>
  all.get(scenario) ?? assert.fail("no such scenario")

describe("more than one fault", () => {
  it.effect("an outage from any call on", () =>
    Effect.gen(function*() {
      const all = yield* usually
      const problems: Array<string> = []
      let runs = 0
      for (const scenario of scenarios) {
        const usual = usualOf(all, scenario)
        for (const { number } of usual.played.calls) {
          for (const [what, from] of outages) {
            runs += 1
            const outage = yield* run(scenario, { faults: from(number) })
            problems.push(
              ...checkTroubles(outage, usual, 4).map((problem) =>
                `${scenario.name}, ${what} from ${number}: ${problem}`
              )
            )
          }
        }
      }
      console.info(`outages: ${runs} runs`)
      assert.deepStrictEqual(problems, [])
    }), 600_000)

  it.effect("pairs", () =>
    Effect.gen(function*() {
      const all = yield* usually
      const problems: Array<string> = []
      for (const one of fc.sample(pair, { seed, numRuns: pairs })) {
        const usual = usualOf(all, one.scenario)
        const found = checkTroubles(yield* troubled(usual, one), usual, 2)
        problems.push(...found.map((problem) => `${one.scenario.name}, ${JSON.stringify(one.troubles)}: ${problem}`))
      }
      console.info(`pairs: ${pairs} runs, seed ${seed}`)
      assert.deepStrictEqual(problems, [], `seed ${seed}`)
    }), 600_000)
})

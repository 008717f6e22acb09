import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { atCalls } from "../../../src/Sandbox/Simulated.ts"
import { checkFault, checkInterruption, faults } from "./Model.ts"
import { run, scenarios } from "./Scenario.ts"

// Every call of every scenario, with every fault, and with a caller that goes away: nothing is left out.
describe("every single fault", () => {
  for (const scenario of scenarios) {
    it.effect(
      scenario.name,
      () =>
        Effect.gen(function*() {
          const usual = yield* run(scenario)
          const problems: Array<string> = []
          let runs = 0
          for (const call of usual.played.calls) {
            const where = `call ${call.number}, ${call.operation} of ${call.role}`
            for (const fault of faults) {
              runs += 1
              const troubled = yield* run(scenario, { faults: atCalls({ [call.number]: fault }) })
              problems.push(
                ...checkFault(troubled, usual, call, fault).map((what) => `${where}, ${JSON.stringify(fault)}: ${what}`)
              )
            }
            for (const afterEffect of [false, true]) {
              runs += 1
              const troubled = yield* run(scenario, { interruption: { at: call.number, afterEffect } })
              problems.push(
                ...checkInterruption(troubled, usual, call).map((what) =>
                  `${where}, interrupted ${afterEffect ? "after" : "before"} its effect: ${what}`
                )
              )
            }
          }
          console.info(`${scenario.name}: ${runs} runs`)
          assert.deepStrictEqual(problems, [])
        }),
      600_000
    )
  }
})

/**
 * Deleting a sandbox once more.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { CurrentBudgets } from "../Budgets.ts"
import { type CleanupUnresolved, type SandboxId, SandboxProvider } from "../Sandbox.ts"
import { call } from "../Sandbox/Call.ts"
import { Ledger } from "../Sandbox/Ledger.ts"

/**
 * Once more after the owner's own deletion came to this error, for that is made once: a request and the proof, in the same
 * way. The same error where there is none yet.
 */
export const again: Effect.Effect<
  (sandboxId: SandboxId, unresolved: CleanupUnresolved) => Effect.Effect<void, CleanupUnresolved>,
  never,
  SandboxProvider | Ledger
> = Effect.gen(function*() {
  const provider = yield* SandboxProvider
  const ledger = yield* Ledger
  const { control: limit } = yield* CurrentBudgets
  return (sandboxId, unresolved) =>
    Effect.gen(function*() {
      const request = { phase: "policy-cleanup", sandboxId, budget: "control", limit } as const
      // What becomes of the request is of no interest, be it a bug: the proof alone is.
      yield* Effect.exit(call({ ...request, operation: "destroy" })(provider.destroy(sandboxId)))
      const state = yield* Effect.exit(call({ ...request, operation: "inspect" })(provider.inspect(sandboxId)))
      if (!Exit.isSuccess(state) || state.value !== "absent") {
        return yield* unresolved
      }
      const entries = yield* ledger.open
      yield* Effect.forEach(
        entries.filter((entry) => entry.provider === provider.name && entry.sandboxId === sandboxId),
        ({ allocation }) => ledger.remove(allocation),
        { discard: true }
      )
    })
})

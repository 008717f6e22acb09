/**
 * One request to a sandbox as an episode makes it: bounded, written down, and with its phase in the error.
 *
 * @since 0.1.0
 */
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type { BudgetName, Deadline } from "../Budgets.ts"
import { BudgetExceeded, within } from "../Budgets.ts"
import type { CreateFault, Operation, Phase, Sandbox, SandboxFault, SandboxId, Wait } from "../Sandbox.ts"
import { ResponseTimedOut } from "../Sandbox.ts"
import { CurrentJournal } from "./Journal.ts"

/**
 * @since 0.1.0
 * @category models
 */
export interface CallOptions {
  readonly operation: Operation
  readonly phase: Phase
  readonly sandboxId?: SandboxId
  readonly budget: BudgetName
  readonly limit: Duration.Duration
  /** Deadlines around this request, such as the episode's. */
  readonly enclosing?: ReadonlyArray<Deadline>
  /** How long pacing put it off, if it did. */
  readonly paced?: Wait | undefined
}

/**
 * Makes the request. When its own budget runs out that is a `ResponseTimedOut`; when one around it does, the
 * `BudgetExceeded` names it, and what that means is the caller's to say.
 *
 * @since 0.1.0
 * @category combinators
 */
export const call: {
  (
    options: CallOptions
  ): <A, R>(effect: Effect.Effect<A, SandboxFault, R>) => Effect.Effect<A, SandboxFault | BudgetExceeded, R>
} = (options) => (effect) =>
  bounded(options, () => options.sandboxId, Effect.mapError(effect, (fault): SandboxFault => fault.at(options.phase)))

/**
 * The same for a create.
 *
 * @since 0.1.0
 * @category combinators
 */
export const callCreate =
  (options: CallOptions) =>
  <R>(effect: Effect.Effect<Sandbox, CreateFault, R>): Effect.Effect<Sandbox, CreateFault | BudgetExceeded, R> =>
    bounded(
      options,
      (created) => Option.getOrUndefined(created)?.id,
      Effect.mapError(effect, (fault): CreateFault => fault.at(options.phase))
    )

const bounded = <A, E, R>(
  options: CallOptions,
  sandboxId: (answer: Option.Option<A>) => SandboxId | undefined,
  effect: Effect.Effect<A, E, R>
): Effect.Effect<A, E | ResponseTimedOut | BudgetExceeded, R> =>
  Effect.flatMap(CurrentJournal, (journal) =>
    within(effect, options).pipe(
      journal.operation(options.operation, options.phase, sandboxId, options.paced),
      Effect.mapError((error) =>
        error instanceof BudgetExceeded && error.budget === options.budget
          ? new ResponseTimedOut({
            operation: options.operation,
            phase: options.phase,
            ...(options.sandboxId === undefined ? {} : { sandboxId: options.sandboxId }),
            budget: error.budget,
            limit: error.limit
          })
          : error
      )
    ))

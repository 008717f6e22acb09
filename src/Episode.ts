/**
 * Code-repair episodes: a policy works in a disposable sandbox, and what it submits gets a score that can be trusted.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import { CurrentBudgets } from "./Budgets.ts"
import type { Observation } from "./Episode/Observation.ts"
import type { InfrastructureError } from "./Episode/Outcome.ts"
import type { EpisodeReceipt, Rates } from "./Episode/Receipt.ts"
import { defaultRates } from "./Episode/Receipt.ts"
import type { Session } from "./Episode/Session.ts"
import * as Sessions from "./Episode/Session.ts"
import type { SandboxProvider } from "./Sandbox.ts"
import * as Ledger from "./Sandbox/Ledger.ts"
import * as Sandboxes from "./Sandbox/Sandboxes.ts"
import type { Task } from "./Task.ts"

export type { InfrastructureError, Observation, Session }

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * What a policy has to work with.
 *
 * @since 0.1.0
 * @category models
 */
export interface PolicyTools {
  /** Runs one command line in a fresh shell. Whatever it does is an observation. */
  readonly terminal: (command: string) => Effect.Effect<Observation, InfrastructureError>
  /** Hands in the task's file and ends the episode. */
  readonly submit: Effect.Effect<Observation, InfrastructureError>
}

// ----------------------------------------------------------------------------
// tag
// ----------------------------------------------------------------------------

/**
 * Runs episodes.
 *
 * @example
 * ```ts
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import * as Episode from "episode/Episode"
 * import * as Local from "episode/Sandbox/Local"
 * import type { Task } from "episode/Task"
 *
 * declare const task: Task
 *
 * const program = Effect.gen(function*() {
 *   const episodes = yield* Episode.Episode
 *   const receipt = yield* episodes.run(task, ({ submit, terminal }) =>
 *     terminal("cat report.py").pipe(Effect.zipRight(submit)))
 *   return receipt.outcome
 * })
 *
 * program.pipe(Effect.provide(Episode.layer.pipe(Layer.provide(Local.layer()))))
 * ```
 *
 * @since 0.1.0
 * @category tags
 */
export class Episode extends Context.Tag("episode/Episode")<Episode, {
  /**
   * One whole episode. The policy has the policy window to work and submit; it is interrupted when that is over. What it
   * returns is of no interest. The receipt always holds a score: an episode without one
   * fails with what went wrong.
   *
   * An error of the policy itself comes out as it is, unless the episode has ended before: then it is only logged.
   */
  readonly run: <E, R>(
    task: Task,
    policy: (tools: PolicyTools) => Effect.Effect<unknown, E, R>
  ) => Effect.Effect<EpisodeReceipt, InfrastructureError | E, R>
  /** The same, but an episode without a score is a receipt too: its outcome holds the error. */
  readonly record: <E, R>(
    task: Task,
    policy: (tools: PolicyTools) => Effect.Effect<unknown, E, R>
  ) => Effect.Effect<EpisodeReceipt, E, R>
  /** Episodes step by step, for a policy that is driven from outside. Allocates nothing. */
  readonly open: Effect.Effect<Session, never, Scope.Scope>
}>() {}

// ----------------------------------------------------------------------------
// layers
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /** What the cost estimate is made with. Default: E2B's list prices, see `Receipt.defaultRates`. */
  readonly rates?: Rates | undefined
}

const toolsOf = (session: Session): PolicyTools => ({
  // Misuse is a request before reset; these tools exist only after it.
  terminal: (command) => Effect.catchTag(session.terminal(command), "EpisodeMisuse", Effect.die),
  submit: Effect.catchTag(session.submit, "EpisodeMisuse", Effect.die)
})

const make = (options: Options) =>
  Effect.gen(function*() {
    const sandboxes = yield* Sandboxes.Sandboxes
    const budgets = yield* CurrentBudgets
    const drive = Sessions.make(options.rates ?? defaultRates).pipe(
      Effect.provideService(Sandboxes.Sandboxes, sandboxes),
      Effect.provideService(CurrentBudgets, budgets)
    )

    const record = Effect.fn("Episode.record")(
      function*<E, R>(task: Task, policy: (tools: PolicyTools) => Effect.Effect<unknown, E, R>) {
        const { policyOver, session } = yield* drive
        if (Either.isRight(yield* Effect.either(session.reset(task)))) {
          const exit = yield* policy(toolsOf(session)).pipe(
            // Neither a policy that can't be interrupted nor a caller that isn't must hold up the end of the window.
            Effect.disconnect,
            Effect.interruptible,
            Effect.raceFirst(Effect.interruptible(policyOver)),
            Effect.exit
          )
          if (Exit.isFailure(exit)) {
            const state = yield* session.state
            if (state._tag !== "Finished" || !Cause.isFailure(exit.cause)) {
              return yield* Effect.failCause(exit.cause)
            }
            // The infrastructure failed first, or the score is committed: nothing that a policy does later changes that.
            if (state.receipt.outcome._tag === "Scored") {
              yield* Effect.logWarning("the policy failed after its episode had ended", exit.cause)
            }
          }
        }
        // Ends an episode that wasn't submitted. An error stands in the receipt.
        yield* Effect.ignore(session.reward)
        const ended = yield* session.state
        return ended._tag === "Finished" ? ended.receipt : yield* Effect.dieMessage("a reward without an end")
      },
      Effect.scoped
    )

    const run = <E, R>(task: Task, policy: (tools: PolicyTools) => Effect.Effect<unknown, E, R>) =>
      Effect.flatMap(record(task, policy), (receipt) =>
        receipt.outcome._tag === "Aborted" ? Effect.fail(receipt.outcome.error) : Effect.succeed(receipt))

    return {
      run,
      record,
      open: Effect.map(drive, ({ session }) =>
        session)
    }
  })

/**
 * Episodes over a provider, with a ledger of your own: for a program that wants to see what it holds.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerWithLedger = (
  options: Options = {}
): Layer.Layer<Episode, never, SandboxProvider | Ledger.Ledger> =>
  Layer.effect(Episode, make(options)).pipe(Layer.provide(Sandboxes.layer))

/**
 * Episodes over a provider.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer: Layer.Layer<Episode, never, SandboxProvider> = layerWithLedger().pipe(
  Layer.provide(Ledger.layerMemory)
)

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
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Ref from "effect/Ref"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { CurrentBudgets, within } from "./Budgets.ts"
import type { Observation } from "./Episode/Observation.ts"
import { InfrastructureError } from "./Episode/Outcome.ts"
import type { EpisodeReceipt } from "./Episode/Receipt.ts"
import { defaultRates, Rates } from "./Episode/Receipt.ts"
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
  /** Sandboxes of these episodes, and of whatever else shares their ledger, that aren't proved gone. */
  readonly held: Effect.Effect<ReadonlyArray<Ledger.LedgerEntry>>
}>() {}

// ----------------------------------------------------------------------------
// layers
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /**
   * What the cost estimate is made with. Default: E2B's list prices, see `Receipt.defaultRates`. Rates that can't be, such
   * as negative ones, are a defect when the layer is built.
   */
  readonly rates?: ConstructorParameters<typeof Rates>[0] | undefined
}

const toolsOf = (session: Session): PolicyTools => ({
  // Misuse is a request before reset; these tools exist only after it.
  terminal: (command) => Effect.catchTag(session.terminal(command), "EpisodeMisuse", Effect.die),
  submit: Effect.catchTag(session.submit, "EpisodeMisuse", Effect.die)
})

// Neither an interruption nor an error that its tools gave it.
const isOwn = (cause: Cause.Cause<unknown>): boolean =>
  !Cause.isInterruptedOnly(cause) && !Option.exists(Cause.failureOption(cause), Schema.is(InfrastructureError))

const make = (options: Options) =>
  Effect.gen(function*() {
    const sandboxes = yield* Sandboxes.Sandboxes
    const budgets = yield* CurrentBudgets
    const rates = options.rates === undefined ? defaultRates : new Rates(options.rates)
    const drive = Sessions.make(rates).pipe(
      Effect.provideService(Sandboxes.Sandboxes, sandboxes),
      Effect.provideService(CurrentBudgets, budgets)
    )

    // Not for ever: a policy need not be one that can be interrupted.
    const endOf = Option.match({
      onNone: () => Effect.void,
      onSome: (fiber: Fiber.Fiber<unknown, unknown>) =>
        Fiber.await(fiber).pipe(
          within({ budget: "control", limit: budgets.control }),
          Effect.matchEffect({
            onFailure: ({ message }) => Effect.logWarning("a policy goes on after its episode", message),
            onSuccess: (exit) =>
              Exit.isFailure(exit) && isOwn(exit.cause)
                ? Effect.logWarning("a policy failed after its episode had ended", exit.cause)
                : Effect.void
          })
        )
    })

    const record = Effect.fn("Episode.record")(
      function*<E, R>(task: Task, policy: (tools: PolicyTools) => Effect.Effect<unknown, E, R>) {
        const working = yield* Ref.make(Option.none<Fiber.Fiber<unknown, unknown>>())
        // At the very end: a policy that takes its time to end holds up neither deletions nor the score.
        yield* Effect.addFinalizer(() => Effect.flatMap(Ref.get(working), endOf))
        const { policyOver, session } = yield* drive
        if (Either.isRight(yield* Effect.either(session.reset(task)))) {
          const fiber = yield* Effect.acquireRelease(
            // Not a child, whose end nobody would wait for.
            Effect.tap(Effect.forkDaemon(Effect.interruptible(policy(toolsOf(session)))), (fiber) =>
              Ref.set(working, Option.some(fiber))),
            (fiber) =>
              Fiber.interruptFork(fiber)
          )
          const exit = yield* Fiber.join(fiber).pipe(
            // A caller that can't be interrupted must not hold up the end of the window.
            Effect.interruptible,
            Effect.raceFirst(Effect.interruptible(policyOver)),
            Effect.exit
          )
          yield* Fiber.interruptFork(fiber)
          // When the infrastructure has failed, or the score is committed, nothing that a policy does changes that.
          if (Exit.isFailure(exit)) {
            const state = yield* session.state
            if (state._tag !== "Finished" || !Cause.isFailure(exit.cause)) {
              if (isOwn(exit.cause)) {
                // It is told, and need not be logged.
                yield* Ref.set(working, Option.none())
              }
              return yield* Effect.failCause(exit.cause)
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
      Effect.flatMap(
        record(task, policy),
        (receipt) => receipt.outcome._tag === "Aborted" ? Effect.fail(receipt.outcome.error) : Effect.succeed(receipt)
      )

    return {
      run,
      record,
      open: Effect.map(drive, ({ session }) => session),
      held: sandboxes.held
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
  // Fresh: where a program has several providers, each has its own.
  Layer.effect(Episode, make(options)).pipe(Layer.provide(Layer.fresh(Sandboxes.layer)))

/**
 * Episodes over a provider. Each use of it is one of its own, over the provider that it is given there.
 *
 * @since 0.1.0
 * @category layers
 */
export const layer: Layer.Layer<Episode, never, SandboxProvider> = Layer.fresh(
  Layer.provide(layerWithLedger(), Ledger.layerMemory)
)

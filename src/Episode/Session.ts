/**
 * One policy at a time, one episode after another: the state machine behind every way to drive an episode.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as DateTime from "effect/DateTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Ref from "effect/Ref"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import type { BudgetExceeded, Deadline } from "../Budgets.ts"
import { CurrentBudgets, remaining, startDeadline } from "../Budgets.ts"
import * as Grading from "../Grading.ts"
import type { Restore } from "../internal/requests.ts"
import * as Requests from "../internal/requests.ts"
import { sha256 } from "../internal/sha256.ts"
import { type Phase, TransportFailed } from "../Sandbox.ts"
import { call } from "../Sandbox/Call.ts"
import * as Journal from "../Sandbox/Journal.ts"
import type { OwnedSandbox } from "../Sandbox/Sandboxes.ts"
import { Sandboxes } from "../Sandbox/Sandboxes.ts"
import type { Task, TaskId } from "../Task.ts"
import * as Observation from "./Observation.ts"
import type { InfrastructureError, Outcome } from "./Outcome.ts"
import { decide, Ending, EpisodeDeadlineExceeded, EpisodeInterrupted } from "./Outcome.ts"
import type { Rates } from "./Receipt.ts"
import { EpisodeId, EpisodeReceipt, usage } from "./Receipt.ts"

// ----------------------------------------------------------------------------
// errors
// ----------------------------------------------------------------------------

/**
 * A session was asked for something before its first `reset`. A mistake of the caller, not of the infrastructure; the
 * session is as it was.
 *
 * @since 0.1.0
 * @category errors
 */
export class EpisodeMisuse extends Schema.TaggedError<EpisodeMisuse>("episode/EpisodeMisuse")("EpisodeMisuse", {
  operation: Schema.Literal("terminal", "submit", "reward")
}) {
  override get message(): string {
    return `${this.operation} before reset: reset starts an episode`
  }
}

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * A policy sandbox is ready, and the policy window has begun.
 *
 * @since 0.1.0
 * @category models
 */
export interface Ready {
  readonly episodeId: EpisodeId
  readonly prompt: string
}

/**
 * Safe to show to a policy: it holds neither expectations nor held-out input.
 *
 * @since 0.1.0
 * @category models
 */
export type SessionState =
  | { readonly _tag: "Idle" }
  | {
    readonly _tag: "Active"
    readonly episodeId: EpisodeId
    readonly taskId: TaskId
    /** Until `submit`. */
    readonly windowLeft: Duration.Duration
    readonly deadlineLeft: Duration.Duration
  }
  | { readonly _tag: "Finished"; readonly receipt: EpisodeReceipt }

/**
 * Episodes one after another, for one policy at a time. Requests are taken one by one: a second one waits.
 *
 * A request that is interrupted while it is under way ends the episode, because what it did isn't known.
 *
 * @since 0.1.0
 * @category models
 */
export interface Session {
  /**
   * Ends and cleans up the episode before, then makes a policy sandbox with the task's files. After an error every
   * request gives the same error, until the next reset.
   */
  readonly reset: (task: Task) => Effect.Effect<Ready, InfrastructureError>
  /** Runs one command line in a fresh shell of the policy sandbox. */
  readonly terminal: (
    command: string
  ) => Effect.Effect<Observation.Observation, InfrastructureError | EpisodeMisuse>
  /**
   * Exports the task's file, deletes the policy sandbox, runs the file in a verifier, deletes that, and commits the
   * score. It can be read from `reward` when this has succeeded; the answer says nothing about it.
   */
  readonly submit: Effect.Effect<Observation.Observation, InfrastructureError | EpisodeMisuse>
  /** The score. Ends an episode that wasn't submitted. However often it is read, it says the same. */
  readonly reward: Effect.Effect<0 | 1, InfrastructureError | EpisodeMisuse>
  readonly state: Effect.Effect<SessionState>
}

/**
 * A session, and what `Episode.run` has to know beyond it.
 *
 * @since 0.1.0
 * @category models
 */
export interface DrivenSession {
  readonly session: Session
  /** Waits until a policy has nothing more to do: at once after an error, else at the end of its window,
   * or a little later when it submitted just before that. */
  readonly policyOver: Effect.Effect<void>
}

interface Running {
  readonly episodeId: EpisodeId
  readonly task: Task
  readonly startedAt: DateTime.Utc
  readonly deadline: Deadline
  readonly journal: Journal.Journal
  /** What its requests are made with. */
  readonly context: Context.Context<Sandboxes>
  readonly scope: Scope.CloseableScope
  readonly submissionDigest: Ref.Ref<string | null>
  readonly end: Deferred.Deferred<Ended>
}

interface Active extends Running {
  readonly policy: OwnedSandbox
  readonly window: Deadline
}

interface Ended {
  readonly outcome: Outcome
  readonly receipt: EpisodeReceipt
}

type State =
  | { readonly _tag: "Idle" }
  | { readonly _tag: "Active"; readonly episode: Active }
  | { readonly _tag: "Finished"; readonly ended: Ended }

type Fault = InfrastructureError | BudgetExceeded

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

/**
 * A session that allocates nothing until it is reset, and ends what it holds when the scope ends.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = Effect.fnUntraced(function*(rates: Rates) {
  const sandboxes = yield* Sandboxes
  const budgets = yield* CurrentBudgets
  const state = yield* Ref.make<State>({ _tag: "Idle" })
  const requests = yield* Requests.make
  const { inTurn } = requests

  // The only way to an outcome: everything is deleted first, and the table decides what that is worth.
  const finish = Effect.fn("Session.finish")(function*(episode: Running, ending: Ending) {
    yield* Scope.close(episode.scope, Exit.void)
    const now = yield* DateTime.now
    const resources = yield* episode.journal.resources
    const late = Duration.equals(yield* remaining(episode.deadline), Duration.zero)
    const outcome = decide({
      ending,
      resources,
      late: late ? yield* deadlineExceeded(episode) : undefined
    })
    const receipt = new EpisodeReceipt({
      episodeId: episode.episodeId,
      taskId: episode.task.id,
      taskDigest: episode.task.digest,
      provider: sandboxes.provider,
      outcome,
      submissionDigest: yield* Ref.get(episode.submissionDigest),
      startedAt: episode.startedAt,
      totalSeconds: Math.max(0, DateTime.distance(episode.startedAt, now) / 1000),
      operations: yield* episode.journal.operations,
      resources,
      ...usage(resources, rates, now),
      rates,
      budgets
    })
    yield* Ref.set(state, { _tag: "Finished", ended: { outcome, receipt } })
    yield* Deferred.succeed(episode.end, { outcome, receipt })
    return outcome
  }, (finishing, episode) =>
    // Whoever waits for the end hears of it, also where a bug came in between.
    Effect.onError(finishing, (cause) => Deferred.failCause(episode.end, Cause.stripFailures(cause))))

  const abort = (episode: Running, ending: Ending & { readonly error: InfrastructureError }) =>
    // What has an error has no score.
    finish(episode, ending).pipe(Effect.flatMap(scoreOf), Effect.flip, Effect.orDie)

  // Runs a request's work. When it doesn't succeed, for whatever reason, the episode is over: what was done isn't known.
  const attempt = <A>(
    episode: Running,
    restore: Restore,
    work: Effect.Effect<A, Fault, Sandboxes>
  ): Effect.Effect<A, InfrastructureError> =>
    requests.work(restore, Effect.provide(work, episode.context)).pipe(
      Effect.catchAllCause((cause) =>
        Effect.gen(function*() {
          const fault = Option.getOrUndefined(Cause.failureOption(cause))
          const error = yield* abort(
            episode,
            fault === undefined && Cause.isDie(cause)
              ? Ending.Failed({
                error: new TransportFailed({
                  operation: "create",
                  ...(yield* lastRequest(episode)),
                  detail: "a bug, in the sandbox provider or in the grader"
                })
              })
              : fault === undefined || fault === "closing"
              ? Ending.Interrupted({ error: new EpisodeInterrupted(yield* lastRequest(episode)) })
              : Ending.Failed({ error: fault._tag === "BudgetExceeded" ? yield* deadlineExceeded(episode) : fault })
          )
          // An interruption, or a bug, goes on as what it is.
          return yield* fault === undefined ? Effect.failCause(Cause.stripFailures(cause)) : Effect.fail(error)
        })
      )
    )

  const request = (episode: Active, phase: Phase) =>
    ({ phase, sandboxId: episode.policy.sandbox.id, enclosing: [episode.deadline] }) as const

  // Owed before a zero is accepted without a verifier: a sandbox that doesn't answer isn't the policy's doing.
  const finishIfHealthy = (episode: Active, restore: Restore, phase: Phase, ending: Ending) =>
    attempt(
      episode,
      restore,
      episode.policy.sandbox.health.pipe(
        call({ ...request(episode, phase), operation: "health", budget: "control", limit: budgets.control })
      )
    ).pipe(Effect.zipRight(finish(episode, ending)), Effect.flatMap(scoreOf))

  const exhaust = (episode: Active, restore: Restore) =>
    finishIfHealthy(episode, restore, "policy", Ending.WindowExhausted())

  const isExhausted = (episode: Active) =>
    Effect.map(remaining(episode.window), (left) => Duration.equals(left, Duration.zero))

  // A request on the current episode, or the answer to one that comes after its end.
  const onEpisode = <A>(
    operation: EpisodeMisuse["operation"],
    on: {
      readonly active: (episode: Active, restore: Restore) => Effect.Effect<A, InfrastructureError>
      readonly scored: (score: 0 | 1) => A
    }
  ): Effect.Effect<A, InfrastructureError | EpisodeMisuse> =>
    inTurn((restore) =>
      Effect.gen(function*() {
        const current = yield* Ref.get(state)
        switch (current._tag) {
          case "Idle":
            return yield* new EpisodeMisuse({ operation })
          case "Finished":
            return on.scored(yield* scoreOf(current.ended.outcome))
          case "Active":
            return (yield* isExhausted(current.episode))
              ? on.scored(yield* exhaust(current.episode, restore))
              : yield* on.active(current.episode, restore)
        }
      })
    )

  const terminal = (command: string) =>
    onEpisode("terminal", {
      scored: () => Observation.finished,
      active: (episode, restore) =>
        Effect.gen(function*() {
          const { sandbox } = episode.policy
          const result = yield* attempt(
            episode,
            restore,
            sandbox.exec(command, { timeLimit: budgets.commandLimit, outputCap: budgets.observationCap }).pipe(
              call({
                ...request(episode, "policy"),
                operation: "exec",
                budget: "commandResponse",
                limit: budgets.commandResponse,
                enclosing: [episode.deadline, episode.window]
              }),
              Effect.asSome,
              // The policy's time is over. That is its own doing, so it isn't a fault of the command.
              Effect.catchIf(
                (fault) => fault._tag === "BudgetExceeded" && fault.budget === "policyWindow",
                () => Effect.succeedNone
              )
            )
          )
          if (Option.isSome(result)) {
            return Observation.fromResult(result.value)
          }
          yield* exhaust(episode, restore)
          return Observation.finished
        })
    })

  const submit = onEpisode("submit", {
    scored: () => Observation.finished,
    active: (episode, restore) =>
      Effect.gen(function*() {
        const { discard, sandbox } = episode.policy
        const found = yield* attempt(
          episode,
          restore,
          sandbox.readFile(episode.task.submission, { maxBytes: budgets.fileCap }).pipe(
            call({
              ...request(episode, "export"),
              operation: "readFile",
              budget: "fileTransfer",
              limit: budgets.fileTransfer
            })
          )
        )
        if (found._tag !== "Bytes") {
          yield* finishIfHealthy(episode, restore, "export", Ending.NothingExported({ found: found._tag }))
          return Observation.submitted
        }
        yield* Ref.set(episode.submissionDigest, yield* sha256(found.bytes))
        const { grade } = yield* attempt(
          episode,
          restore,
          Effect.flatMap(discard, (policy) =>
            Grading.verify({
              task: episode.task,
              submission: found.bytes,
              policy,
              templateId: sandbox.resources.templateId,
              labels: labelsOf(episode),
              deadline: episode.deadline
            }))
        )
        yield* scoreOf(yield* finish(episode, Ending.Graded({ grade })))
        return Observation.submitted
      })
  })

  const reward = onEpisode("reward", {
    scored: (score) => score,
    active: (episode, restore) => finishIfHealthy(episode, restore, "reward", Ending.NotSubmitted())
  })

  const start = Effect.fnUntraced(function*(task: Task, restore: Restore) {
    const journal = yield* Journal.make
    const running: Running = {
      episodeId: yield* Effect.sync(() => EpisodeId.make(`ep-${globalThis.crypto.randomUUID()}`)),
      task,
      startedAt: yield* DateTime.now,
      deadline: yield* startDeadline("episodeDeadline", budgets.episodeDeadline),
      journal,
      context: Context.make(Sandboxes, sandboxes).pipe(
        Context.add(CurrentBudgets, budgets),
        Context.add(Journal.CurrentJournal, journal)
      ),
      scope: yield* Scope.make(),
      submissionDigest: yield* Ref.make<string | null>(null),
      end: yield* Deferred.make<Ended>()
    }
    const enclosing = [running.deadline]
    const policy = yield* attempt(
      running,
      restore,
      Effect.gen(function*() {
        // Short-lived until its id is known here, so that a create whose reply is lost costs less.
        const owned = yield* sandboxes.acquire({
          role: "policy",
          lifetime: budgets.policyLifetimeAtCreate,
          network: "default",
          labels: labelsOf(running),
          phases: { create: "reset", cleanup: "policy-cleanup" },
          enclosing
        }).pipe(Scope.extend(running.scope))
        const { sandbox } = owned
        const to = { phase: "reset", sandboxId: sandbox.id, enclosing } as const
        yield* Effect.all([
          sandbox.extend(budgets.policyLifetime).pipe(
            call({ ...to, operation: "extend", budget: "control", limit: budgets.control })
          ),
          sandbox.writeFiles(task.workspace).pipe(
            call({ ...to, operation: "writeFiles", budget: "fileTransfer", limit: budgets.fileTransfer })
          )
        ], { concurrency: 2, discard: true })
        return owned
      })
    )
    const window = yield* startDeadline("policyWindow", budgets.policyWindow)
    const episode: Active = { ...running, policy, window }
    yield* Ref.set(state, { _tag: "Active", episode })
    // A sandbox whose window is over is given back at once, not when somebody next asks for it. What comes of it is in
    // the state, where the next request finds it.
    yield* Effect.sleep(budgets.policyWindow).pipe(
      Effect.zipRight(
        inTurn((restore) =>
          Effect.flatMap(Ref.get(state), (current) =>
            current._tag === "Active" && current.episode === episode
              ? Effect.ignore(exhaust(episode, restore))
              : Effect.void)
        )
      ),
      Effect.interruptible,
      Effect.forkIn(episode.scope)
    )
    return { episodeId: episode.episodeId, prompt: task.prompt }
  })

  const abandon = (episode: Running) =>
    Effect.flatMap(
      lastRequest(episode),
      (last) => abort(episode, Ending.Interrupted({ error: new EpisodeInterrupted(last) }))
    )

  const reset = Effect.fn("Session.reset")((task: Task) =>
    inTurn((restore) =>
      Effect.gen(function*() {
        if (yield* requests.isClosing) {
          return yield* new EpisodeInterrupted({ phase: "reset" })
        }
        const before = yield* Ref.get(state)
        if (before._tag === "Active") {
          const error = yield* abandon(before.episode)
          if (error._tag === "CleanupUnresolved") {
            return yield* error
          }
        }
        return yield* start(task, restore)
      })
    )
  )

  const describe = Effect.flatMap(Ref.get(state), (current): Effect.Effect<SessionState> => {
    switch (current._tag) {
      case "Idle":
        return Effect.succeed(current)
      case "Finished":
        return Effect.succeed({ _tag: "Finished", receipt: current.ended.receipt })
      case "Active": {
        const { deadline, episodeId, task, window } = current.episode
        return Effect.zipWith(remaining(window), remaining(deadline), (windowLeft, deadlineLeft) => ({
          _tag: "Active",
          episodeId,
          taskId: task.id,
          windowLeft,
          deadlineLeft
        }))
      }
    }
  })

  const policyOver = Effect.flatMap(Ref.get(state), (current) =>
    current._tag === "Active"
      ? Effect.flatMap(Deferred.await(current.episode.end), ({ outcome }) =>
        outcome._tag === "Aborted" || outcome.reason === "policy-window-exhausted"
          ? Effect.void
          // Time to read the last answer and to leave, also for a submission at the very end of the window.
          : Effect.flatMap(remaining(current.episode.window), (left) =>
            Effect.sleep(Duration.max(left, budgets.control))))
      : Effect.void)

  yield* Effect.addFinalizer(() =>
    Effect.zipRight(
      requests.close,
      inTurn(() =>
        Effect.flatMap(Ref.get(state), (current) => current._tag === "Active" ? abandon(current.episode) : Effect.void)
      )
    )
  )

  return { session: { reset, terminal, submit, reward, state: describe }, policyOver } satisfies DrivenSession
})

const scoreOf = (outcome: Outcome): Effect.Effect<0 | 1, InfrastructureError> =>
  outcome._tag === "Scored" ? Effect.succeed(outcome.score) : Effect.fail(outcome.error)

const labelsOf = ({ episodeId, task }: Running) => ({ "episode.id": episodeId, "episode.task": task.id })

// Where an episode was: the request that failed last, else the last one.
const lastRequest = (episode: Running) =>
  Effect.map(episode.journal.operations, (operations) => {
    const last = operations.findLast((operation) => operation.result !== "ok") ?? operations.at(-1)
    return {
      phase: last?.phase ?? "reset",
      ...(last === undefined ? {} : { operation: last.name }),
      ...(last?.sandboxId === undefined ? {} : { sandboxId: last.sandboxId })
    }
  })

const deadlineExceeded = (episode: Running) =>
  Effect.map(
    lastRequest(episode),
    (last) => new EpisodeDeadlineExceeded({ ...last, budget: "episodeDeadline", limit: episode.deadline.limit })
  )

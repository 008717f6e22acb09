/**
 * Ownership: a sandbox that was acquired here is deleted and proved gone, whatever happens.
 *
 * @since 0.1.0
 */
import * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as DateTime from "effect/DateTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Ref from "effect/Ref"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import type { BudgetExceeded, Budgets, Deadline } from "../Budgets.ts"
import { CurrentBudgets, startDeadline, until, within } from "../Budgets.ts"
import type { CreateFault, Labels, Phase, Provider, Role, Sandbox, SandboxId, SandboxSpec } from "../Sandbox.ts"
import {
  AllocationUncertain,
  CleanupUnresolved,
  CurrentWaits,
  ProtocolViolation,
  SandboxProvider,
  TransportFailed,
  Wait
} from "../Sandbox.ts"
import { call, callCreate } from "./Call.ts"
import type { Journal } from "./Journal.ts"
import { CurrentJournal, ResourceRecord } from "./Journal.ts"
import { Ledger, LedgerEntry } from "./Ledger.ts"

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * The proof that a sandbox is gone. Only this module can make one, so whatever asks for it can't be had before.
 *
 * @since 0.1.0
 * @category models
 */
export interface ConfirmedAbsent {
  readonly [proof]: true
  readonly sandboxId: SandboxId
  readonly role: Role
  readonly confirmedAt: DateTime.Utc
  readonly attempts: number
}

// Not exported: that is what makes the proof unforgeable.
const proof: unique symbol = Symbol("episode/Sandbox/ConfirmedAbsent")

/**
 * A sandbox and its one way out.
 *
 * @since 0.1.0
 * @category models
 */
export interface OwnedSandbox {
  readonly sandbox: Sandbox
  /**
   * Deletes the sandbox and proves it gone: up to `cleanupAttempts` times, within the `cleanup` budget, uninterruptible.
   * Runs once however often it is called; the end of the scope calls it too.
   */
  readonly discard: Effect.Effect<ConfirmedAbsent, CleanupUnresolved>
  /** The same anew, each time: for an owner who outlives a `discard` that couldn't prove it. */
  readonly discardAgain: Effect.Effect<ConfirmedAbsent, CleanupUnresolved>
}

/**
 * @since 0.1.0
 * @category models
 */
export interface AcquireOptions {
  readonly role: Role
  readonly templateId?: string | undefined
  readonly lifetime: Duration.Duration
  readonly network: SandboxSpec["network"]
  readonly labels?: Labels | undefined
  /** The phases that creating and deleting it stand for, in errors and in the journal. */
  readonly phases: { readonly create: Phase; readonly cleanup: Phase }
  readonly enclosing?: ReadonlyArray<Deadline> | undefined
}

/**
 * Sandboxes with an owner.
 *
 * @since 0.1.0
 * @category tags
 */
export class Sandboxes extends Context.Tag("episode/Sandbox/Sandboxes")<Sandboxes, {
  /** The provider's name. */
  readonly provider: string
  /** What was acquired here and isn't proved gone, as its ledger has it. */
  readonly held: Effect.Effect<ReadonlyArray<LedgerEntry>>
  /**
   * Creates a sandbox that lives until it is discarded, at the latest until the scope ends. Its id is in the ledger
   * before anything else is done with it.
   *
   * An interruption isn't held up by a create under way: the sandbox that it brings is discarded in the background, and
   * the end of this layer waits for that. After a create whose effect isn't known, the provider is asked for the
   * sandbox's label, and what it finds is discarded before the error is given.
   */
  readonly acquire: (
    options: AcquireOptions
  ) => Effect.Effect<OwnedSandbox, CreateFault | CleanupUnresolved | BudgetExceeded, Scope.Scope>
}>() {}

/**
 * The label that names an allocation: unique for every create, so a create whose reply was lost can be looked up.
 *
 * @since 0.1.0
 * @category models
 */
export const allocationLabel = "episode.allocation"

// ----------------------------------------------------------------------------
// layers
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category layers
 */
export const layer: Layer.Layer<Sandboxes, never, SandboxProvider | Ledger> = Layer.scoped(
  Sandboxes,
  Effect.gen(function*() {
    const ledger = yield* Ledger
    const budgets = yield* CurrentBudgets
    const provider = bounded(yield* SandboxProvider, budgets)
    const settling = new Set<Fiber.RuntimeFiber<unknown, unknown>>()
    yield* Effect.addFinalizer(() =>
      Effect.suspend(() => Fiber.awaitAll([...settling])).pipe(Effect.repeat({ until: () => settling.size === 0 }))
    )
    const pace = yield* makePacer(budgets.allocationPacing ?? provider.allocationPacing)

    // Deletion is a request; `inspect` alone is the proof (R5). So what `destroy` says is of no interest here: an error
    // of it may hide a deletion that worked, and a success one that didn't.
    const deleteAndProve = (sandboxId: SandboxId, phase: Phase) => {
      const control = { phase, sandboxId, budget: "control", limit: budgets.control } as const
      return provider.destroy(sandboxId).pipe(
        call({ ...control, operation: "destroy" }),
        bugAsFailure,
        Effect.ignore,
        Effect.zipRight(provider.inspect(sandboxId).pipe(call({ ...control, operation: "inspect" }), bugAsFailure)),
        Effect.filterOrFail((state) => state === "absent", () => "still there" as const),
        Effect.zipRight(DateTime.now)
      )
    }

    const retries = Schedule.exponential(budgets.cleanupPause, 4).pipe(
      Schedule.intersect(Schedule.recurs(budgets.cleanupAttempts - 1))
    )

    const startCleanup = startDeadline("cleanup", budgets.cleanup)

    const discard = Effect.fn("Sandboxes.discard")(function*(options: {
      readonly entry: LedgerEntry
      readonly sandboxId: SandboxId
      readonly phase: Phase
      readonly record: (fate: Fate) => Effect.Effect<void>
      readonly deadline?: Deadline
    }) {
      const { entry, phase, sandboxId } = options
      const attempts = yield* Ref.make(0)
      yield* noted(ledger.put(new LedgerEntry({ ...entry, sandboxId, state: "deleting" })))
      const deadline = options.deadline ?? (yield* startCleanup)
      const confirmedAt = yield* Ref.update(attempts, (n) => n + 1).pipe(
        Effect.zipRight(deleteAndProve(sandboxId, phase)),
        Effect.retry(retries),
        until([deadline]),
        Effect.option
      )
      const deleteAttempts = yield* Ref.get(attempts)
      yield* noted(options.record({ deleteAttempts, confirmedAbsentAt: Option.getOrNull(confirmedAt) }))
      if (Option.isNone(confirmedAt)) {
        yield* noted(ledger.put(new LedgerEntry({ ...entry, sandboxId, state: "unresolved" })))
        return yield* new CleanupUnresolved({
          operation: "destroy",
          phase,
          sandboxes: [{ sandboxId, role: entry.role, attempts: deleteAttempts }]
        })
      }
      yield* noted(ledger.remove(entry.allocation))
      const absent: ConfirmedAbsent = {
        [proof]: true,
        sandboxId,
        role: entry.role,
        confirmedAt: confirmedAt.value,
        attempts: deleteAttempts
      }
      return absent
    }, Effect.uninterruptible)

    const own = Effect.fnUntraced(function*(sandbox: Sandbox, entry: LedgerEntry, phases: AcquireOptions["phases"]) {
      const journal = yield* CurrentJournal
      const record = recordIn(journal, sandbox)
      const absent = yield* Deferred.make<ConfirmedAbsent, CleanupUnresolved>()
      const discardAgain = discard({ entry, sandboxId: sandbox.id, phase: phases.cleanup, record }).pipe(
        // Whoever closes the scope, the deletion belongs to the episode that acquired the sandbox.
        Effect.provideService(CurrentJournal, journal)
      )
      const once = yield* Effect.once(Effect.intoDeferred(discardAgain, absent))
      // Not `Effect.cached`: that hands on the first caller's fiber refs too, and with them its interruption.
      const owned = {
        sandbox,
        discard: Effect.uninterruptible(Effect.zipRight(once, Deferred.await(absent))),
        discardAgain
      }
      // Before anything that could go wrong. What couldn't be resolved stands in the ledger and in the journal: a finalizer
      // has nobody to tell.
      yield* Effect.addFinalizer(() => Effect.ignore(owned.discard))
      yield* ledger.put(new LedgerEntry({ ...entry, sandboxId: sandbox.id, state: "held" }))
      yield* Effect.catchAllDefect(record({ deleteAttempts: 0, confirmedAbsentAt: null }), () =>
        new ProtocolViolation({
          operation: "create",
          phase: phases.create,
          sandboxId: sandbox.id,
          detail: "what the provider says of the sandbox's resources can't be"
        }))
      return owned
    })

    // After a create whose effect isn't known: what it made after all, or what carries its label.
    const lookFor = (allocation: string, creating: Fiber.Fiber<Sandbox, CreateFault>, phase: Phase) =>
      Fiber.await(creating).pipe(
        within({ budget: "control", limit: budgets.control }),
        Effect.flatten,
        Effect.matchCauseEffect({
          onSuccess: (sandbox) =>
            Effect.map(CurrentJournal, (journal) => Option.some(strayOf(sandbox.id, recordIn(journal, sandbox)))),
          // Refused, failed, a bug, or still on its way: none of that says that there is no sandbox.
          onFailure: () =>
            Effect.zipRight(
              Fiber.interruptFork(creating),
              provider.find({ [allocationLabel]: allocation }).pipe(
                call({ operation: "find", phase, budget: "control", limit: budgets.control }),
                bugAsFailure,
                Effect.flatMap(Arr.head),
                Effect.retry(retries),
                Effect.map(({ id }) => strayOf(id)),
                // No list, or an empty one, is no proof of absence.
                Effect.option
              )
            )
        })
      )

    // True when the sandbox that was made was found and proved gone. One cleanup budget for all of it.
    const settle = Effect.fn("Sandboxes.settle")(function*(
      entry: LedgerEntry,
      creating: Fiber.Fiber<Sandbox, CreateFault>,
      phase: Phase
    ) {
      const deadline = yield* startCleanup
      const found = yield* lookFor(entry.allocation, creating, phase).pipe(
        until([deadline]),
        Effect.orElseSucceed(Option.none)
      )
      if (Option.isNone(found)) {
        yield* noted(ledger.put(new LedgerEntry({ ...entry, state: "uncertain" })))
        return false
      }
      yield* discard({ entry, ...found.value, phase, deadline })
      return true
    })

    const acquire = Effect.fn("Sandboxes.acquire")(function*(options: AcquireOptions) {
      const { cleanup, create } = options.phases
      const enclosing = options.enclosing ?? []
      const paced = yield* until(Effect.withSpan(pace, "Sandboxes.pace"), enclosing)
      const allocation = yield* Effect.sync(() => globalThis.crypto.randomUUID())
      const entry = new LedgerEntry({ allocation, provider: provider.name, role: options.role, state: "creating" })
      return yield* Effect.uninterruptibleMask((restore) =>
        Effect.gen(function*() {
          yield* ledger.put(entry)
          let waits: typeof CurrentWaits.Service = { add: () => Effect.void }
          const creating = yield* provider.create({
            role: options.role,
            templateId: options.templateId,
            lifetime: options.lifetime,
            network: options.network,
            labels: { ...options.labels, [allocationLabel]: allocation }
          }).pipe(
            // Its waits belong to the request that is made of it here.
            Effect.provideService(CurrentWaits, { add: (wait) => Effect.suspend(() => waits.add(wait)) }),
            Effect.interruptible,
            // It has an owner until its end: whoever joins it here, or `settle`. The layer's scope is none, because a
            // create that can't be interrupted must not hold up its close.
            Effect.forkDaemon
          )
          const exit = yield* Effect.flatMap(CurrentWaits, (own) => {
            waits = own
            return Fiber.join(creating)
          }).pipe(
            callCreate({
              operation: "create",
              phase: create,
              budget: "allocation",
              limit: budgets.allocation,
              enclosing,
              paced: Option.getOrUndefined(paced)
            }),
            restore,
            Effect.exit
          )
          if (Exit.isSuccess(exit)) {
            return yield* own(exit.value, entry, options.phases)
          }
          const fault = Cause.failureOption(exit.cause)
          if (Option.isNone(fault)) {
            // Interrupted, or a bug of the provider. Nobody waits here for what may still come; the layer's end does.
            const settled = yield* Effect.forkDaemon(settle(entry, creating, cleanup))
            settling.add(settled)
            settled.addObserver(() => settling.delete(settled))
            return yield* Effect.failCause(exit.cause)
          }
          if (fault.value._tag === "SandboxUnavailable") {
            yield* noted(ledger.remove(allocation))
            return yield* fault.value
          }
          const settled = yield* settle(entry, creating, cleanup)
          if (settled && fault.value._tag === "AllocationUncertain") {
            return yield* new TransportFailed({
              operation: "create",
              phase: create,
              detail: "the reply was lost; the sandbox that had been made was found by its label and deleted"
            })
          }
          return yield* settled || fault.value._tag === "BudgetExceeded" ? fault.value : new AllocationUncertain({
            operation: "create",
            phase: create,
            role: options.role,
            allocation,
            lifetime: options.lifetime,
            ...("detail" in fault.value && fault.value.detail !== undefined ? { detail: fault.value.detail } : {})
          })
        })
      )
    })

    return { provider: provider.name, held: ledger.open, acquire }
  })
)

// A provider goes by the budgets of the fiber that asks it, and here that need not be one with these.
const bounded = (provider: Provider, budgets: Budgets): Pick<Provider, "name" | "allocationPacing" | Asked> => {
  const within = Effect.provideService(CurrentBudgets, budgets)
  return {
    name: provider.name,
    allocationPacing: provider.allocationPacing,
    create: (spec) => within(provider.create(spec)),
    destroy: (sandboxId) => within(provider.destroy(sandboxId)),
    inspect: (sandboxId) => within(provider.inspect(sandboxId)),
    find: (labels) => within(provider.find(labels))
  }
}

type Asked = "create" | "destroy" | "inspect" | "find"

// A bug in a provider is no reason to leave a sandbox behind: in cleanup it is one more failure, and tried again.
const bugAsFailure = <A, E>(request: Effect.Effect<A, E>): Effect.Effect<A, E | "bug"> =>
  Effect.catchAllDefect(request, (defect) =>
    Effect.zipRight(
      Effect.logWarning("a bug in the sandbox provider, during cleanup", defect),
      Effect.fail("bug" as const)
    ))

// Nor is one in what keeps the books.
const noted = (write: Effect.Effect<void>): Effect.Effect<void> =>
  Effect.catchAllDefect(write, (defect) => Effect.logWarning("a sandbox's fate could not be written down", defect))

// Its resources are read anew each time: a provider may know them only after the first request.
const recordIn = (journal: Journal, sandbox: Sandbox) => (fate: Fate): Effect.Effect<void> =>
  Effect.suspend(() =>
    journal.resource(new ResourceRecord({ id: sandbox.id, role: sandbox.role, ...sandbox.resources, ...fate }))
  )

type Fate = Pick<ResourceRecord, "deleteAttempts" | "confirmedAbsentAt">

// What is known of a sandbox that nobody waits for any more. Of one that was found by its label nothing can be recorded.
const strayOf = (sandboxId: SandboxId, record: (fate: Fate) => Effect.Effect<void> = () => Effect.void) => ({
  sandboxId,
  record
})

// Creates one after another, each at least `interval` after the one before. How long it held one up, if it did.
const makePacer = (interval: Duration.Duration): Effect.Effect<Effect.Effect<Option.Option<Wait>>> =>
  Duration.equals(interval, Duration.zero)
    ? Effect.succeed(Effect.succeedNone)
    : Effect.zipWith(Effect.makeSemaphore(1), Ref.make(0), (turn, next) =>
      Effect.gen(function*() {
        const asked = yield* Clock.currentTimeMillis
        const begun = yield* turn.withPermits(1)(Effect.gen(function*() {
          const wait = (yield* Ref.get(next)) - (yield* Clock.currentTimeMillis)
          yield* Effect.sleep(Duration.millis(Math.max(0, wait)))
          const now = yield* Clock.currentTimeMillis
          yield* Ref.set(next, now + Duration.toMillis(interval))
          return now
        }))
        return begun > asked
          ? Option.some(new Wait({ reason: "pacing", milliseconds: begun - asked }))
          : Option.none()
      }))

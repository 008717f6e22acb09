/**
 * What was done with sandboxes on behalf of one episode: every request with its time, and every sandbox with its fate.
 *
 * @since 0.1.0
 */
import * as Chunk from "effect/Chunk"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as DateTime from "effect/DateTime"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as HashMap from "effect/HashMap"
import * as Option from "effect/Option"
import * as Ref from "effect/Ref"
import * as Schema from "effect/Schema"
import { CurrentWaits, Operation, Phase, Resources, Role, SandboxId, Wait } from "../Sandbox.ts"

/**
 * One request to a provider.
 *
 * @since 0.1.0
 * @category models
 */
export class OperationRecord extends Schema.Class<OperationRecord>("episode/OperationRecord")({
  name: Operation,
  phase: Phase,
  /** Absent for a create that brought no sandbox. */
  sandboxId: Schema.optionalWith(SandboxId, { exact: true }),
  startedAt: Schema.DateTimeUtc,
  milliseconds: Schema.NonNegative,
  /** Where it was put off: before it began by pacing, and within its time where the provider asked for that. */
  waits: Schema.optionalWith(Schema.Array(Wait), { exact: true }),
  /** `failed` also stands for a wait that ran out. */
  result: Schema.Literal("ok", "failed", "interrupted")
}) {}

/**
 * One sandbox, from its creation to its end.
 *
 * @since 0.1.0
 * @category models
 */
export class ResourceRecord extends Schema.Class<ResourceRecord>("episode/ResourceRecord")({
  id: SandboxId,
  role: Role,
  ...Resources.fields,
  deleteAttempts: Schema.NonNegativeInt,
  /** When its absence was proved; null while it exists, and for good where that proof failed. */
  confirmedAbsentAt: Schema.NullOr(Schema.DateTimeUtc)
}) {}

/**
 * @since 0.1.0
 * @category models
 */
export interface Journal {
  /** Times a request and writes it down, whatever its end. The sandbox is known before, or by the answer. */
  readonly operation: <A>(
    name: Operation,
    phase: Phase,
    sandboxId: (answer: Option.Option<A>) => SandboxId | undefined,
    paced?: Wait | undefined
  ) => <E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
  /** Adds a sandbox, or replaces what is known of it. */
  readonly resource: (record: ResourceRecord) => Effect.Effect<void>
  /** In the order in which they ended. */
  readonly operations: Effect.Effect<ReadonlyArray<OperationRecord>>
  /** In the order in which they were acquired. */
  readonly resources: Effect.Effect<ReadonlyArray<ResourceRecord>>
}

// A clock that is set back during a request must not make its record invalid.
const millisBetween = (from: bigint, to: bigint): number => Math.max(0, Number(to - from) / 1e6)

/**
 * @since 0.1.0
 * @category constructors
 */
export const make: Effect.Effect<Journal> = Effect.gen(function*() {
  // An array that grows: a record takes less of the memory of a session than the nodes that would hold it in a `Chunk`.
  const operations: Array<OperationRecord> = []
  const resources = yield* Ref.make({
    order: Chunk.empty<SandboxId>(),
    byId: HashMap.empty<SandboxId, ResourceRecord>()
  })
  return {
    operation: <A>(
      name: Operation,
      phase: Phase,
      sandboxId: (answer: Option.Option<A>) => SandboxId | undefined,
      paced?: Wait | undefined
    ) =>
    <E, R>(effect: Effect.Effect<A, E, R>) =>
      Effect.flatMap(DateTime.now, (startedAt) =>
        Effect.flatMap(Clock.currentTimeNanos, (started) => {
          const told: Array<{ readonly wait: Wait; readonly at: bigint }> = []
          const observed = Effect.provideService(effect, CurrentWaits, {
            add: (wait) => Effect.map(Clock.currentTimeNanos, (at) => told.push({ wait, at }))
          })
          return Effect.onExit(observed, (exit) =>
            Effect.map(Clock.currentTimeNanos, (ended) => {
              const id = sandboxId(Exit.isSuccess(exit) ? Option.some(exit.value) : Option.none())
              // One that the end of the request cut short counts as what it lasted.
              const waits = told.map(({ at, wait: { milliseconds, reason } }) =>
                new Wait({ reason, milliseconds: Math.min(milliseconds, millisBetween(at, ended)) })
              )
              const all = paced === undefined ? waits : [paced, ...waits]
              operations.push(
                new OperationRecord({
                  name,
                  phase,
                  ...(id === undefined ? {} : { sandboxId: id }),
                  startedAt,
                  milliseconds: millisBetween(started, ended),
                  ...(all.length === 0 ? {} : { waits: all }),
                  result: Exit.isSuccess(exit) ? "ok" : Exit.isInterrupted(exit) ? "interrupted" : "failed"
                  // Valid by its making. A check compiles the schema of a date anew: a tenth of what a short request allocates.
                }, { disableValidation: true })
              )
            }))
        })),
    resource: (record) =>
      Ref.update(resources, ({ byId, order }) => ({
        order: HashMap.has(byId, record.id) ? order : Chunk.append(order, record.id),
        byId: HashMap.set(byId, record.id, record)
      })),
    operations: Effect.sync(() => [...operations]),
    resources: Effect.map(
      Ref.get(resources),
      ({ byId, order }) => Chunk.toReadonlyArray(Chunk.filterMap(order, (id) => HashMap.get(byId, id)))
    )
  }
})

/**
 * The journal of the episode that the fiber works for; one that forgets everything outside of an episode.
 *
 * @since 0.1.0
 * @category context
 */
export class CurrentJournal extends Context.Reference<CurrentJournal>()("episode/Sandbox/CurrentJournal", {
  defaultValue: (): Journal => ({
    operation: () => (effect) => effect,
    resource: () => Effect.void,
    operations: Effect.succeed([]),
    resources: Effect.succeed([])
  })
}) {}

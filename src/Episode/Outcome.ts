/**
 * The outcome table: what an episode's end is worth. Pure and total, and the only place where a score is made.
 *
 * @since 0.1.0
 */
import * as Arr from "effect/Array"
import * as Data from "effect/Data"
import * as Duration from "effect/Duration"
import * as Match from "effect/Match"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type { Grade } from "../Grading.ts"
import { GradingReason } from "../Grading.ts"
import { CleanupUnresolved, CreateFault, type FileRead, Operation, Phase, SandboxId } from "../Sandbox.ts"
import type { ResourceRecord } from "../Sandbox/Journal.ts"

// ----------------------------------------------------------------------------
// errors
// ----------------------------------------------------------------------------

/**
 * The whole episode took too long.
 *
 * @since 0.1.0
 * @category errors
 */
export class EpisodeDeadlineExceeded extends Schema.TaggedError<EpisodeDeadlineExceeded>(
  "episode/EpisodeDeadlineExceeded"
)("EpisodeDeadlineExceeded", {
  phase: Phase,
  operation: Schema.optionalWith(Operation, { exact: true }),
  sandboxId: Schema.optionalWith(SandboxId, { exact: true }),
  budget: Schema.Literal("episodeDeadline"),
  limit: Schema.DurationFromMillis
}) {
  override get message(): string {
    return `the ${this.budget} budget of ${Duration.format(this.limit)} ran out in phase ${this.phase}; `
      + "the episode has no score, run it again or give it more time"
  }
}

/**
 * The caller went away while a request was under way, closed the session, or reset it. What the request did isn't known.
 *
 * @since 0.1.0
 * @category errors
 */
export class EpisodeInterrupted extends Schema.TaggedError<EpisodeInterrupted>("episode/EpisodeInterrupted")(
  "EpisodeInterrupted",
  { phase: Phase, sandboxId: Schema.optionalWith(SandboxId, { exact: true }) }
) {
  override get message(): string {
    return `the episode was interrupted in phase ${this.phase}; it has no score`
  }
}

/**
 * Why an episode has no score. Never the policy's doing.
 *
 * @since 0.1.0
 * @category errors
 */
export const InfrastructureError = Schema.Union(
  ...CreateFault.members,
  CleanupUnresolved,
  EpisodeDeadlineExceeded,
  EpisodeInterrupted
)

/**
 * @since 0.1.0
 * @category errors
 */
export type InfrastructureError = typeof InfrastructureError.Type

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * Why an episode has the score it has.
 *
 * @since 0.1.0
 * @category models
 */
export const ScoreReason = Schema.Literal(
  ...GradingReason.literals,
  "submission-missing",
  "submission-not-regular",
  "submission-too-large",
  "submission-unreadable",
  "not-submitted",
  "policy-window-exhausted"
)

/**
 * @since 0.1.0
 * @category models
 */
export type ScoreReason = typeof ScoreReason.Type

/**
 * The policy's own doing. Final.
 *
 * @since 0.1.0
 * @category models
 */
export class Scored extends Schema.TaggedClass<Scored>("episode/Scored")("Scored", {
  score: Schema.Literal(0, 1),
  reason: ScoreReason,
  detail: Schema.optionalWith(Schema.String, { exact: true })
}) {}

/**
 * Not the policy's doing: there is no score, and there won't be one.
 *
 * @since 0.1.0
 * @category models
 */
export class Aborted extends Schema.TaggedClass<Aborted>("episode/Aborted")("Aborted", {
  error: InfrastructureError
}) {}

/**
 * @since 0.1.0
 * @category models
 */
export const Outcome = Schema.Union(Scored, Aborted)

/**
 * @since 0.1.0
 * @category models
 */
export type Outcome = typeof Outcome.Type

/**
 * How an episode came to its end.
 *
 * @since 0.1.0
 * @category models
 */
export type Ending = Data.TaggedEnum<{
  /** Something of the infrastructure was lost, late, broken, malformed or refused. */
  Failed: { readonly error: InfrastructureError }
  /** The caller went away. */
  Interrupted: { readonly error: EpisodeInterrupted }
  /** The reward was asked for without a submission, and the sandbox answered a health check. */
  NotSubmitted: {}
  /** The policy window ran out, and the sandbox answered a health check. */
  WindowExhausted: {}
  /** There was no file to export, and the sandbox answered a health check. */
  NothingExported: { readonly found: Exclude<FileRead["_tag"], "Bytes"> }
  Graded: { readonly grade: Grade }
}>

/**
 * @since 0.1.0
 * @category constructors
 */
export const Ending = Data.taggedEnum<Ending>()

/**
 * All that an outcome depends on.
 *
 * @since 0.1.0
 * @category models
 */
export interface Facts {
  readonly ending: Ending
  /** Every sandbox of the episode, after cleanup. */
  readonly resources: ReadonlyArray<Pick<ResourceRecord, "id" | "role" | "confirmedAbsentAt" | "deleteAttempts">>
  /** Set when the episode, cleanup included, ended after its deadline. */
  readonly late?: EpisodeDeadlineExceeded | undefined
}

const unexported: Record<Exclude<FileRead["_tag"], "Bytes">, ScoreReason> = {
  Missing: "submission-missing",
  NotRegular: "submission-not-regular",
  TooLarge: "submission-too-large",
  Unreadable: "submission-unreadable"
}

const scored = Match.type<Exclude<Ending, { readonly _tag: "Failed" | "Interrupted" }>>().pipe(Match.tagsExhaustive({
  NotSubmitted: () => new Scored({ score: 0, reason: "not-submitted" }),
  WindowExhausted: () => new Scored({ score: 0, reason: "policy-window-exhausted" }),
  NothingExported: ({ found }) => new Scored({ score: 0, reason: unexported[found] }),
  Graded: ({ grade: { detail, reason, score } }) =>
    new Scored({ score, reason, ...(detail === undefined ? {} : { detail }) })
}))

/**
 * The error for sandboxes that weren't proved gone; none when all were.
 *
 * @since 0.1.0
 * @category combinators
 */
export const unresolved = (resources: Facts["resources"]): Option.Option<CleanupUnresolved> => {
  const left = resources.filter((resource) => resource.confirmedAbsentAt === null)
  return Arr.isNonEmptyReadonlyArray(left)
    ? Option.some(
      new CleanupUnresolved({
        operation: "destroy",
        phase: "reward",
        sandboxes: Arr.map(left, ({ deleteAttempts, id, role }) => ({ sandboxId: id, role, attempts: deleteAttempts }))
      })
    )
    : Option.none()
}

/**
 * Decides. A score needs an ending that is the policy's own, the proof that every sandbox is gone, and all of it in time;
 * anything less is an error, and the first thing that went wrong is the one that is named. An interruption went as it should,
 * so what it left behind comes before it.
 *
 * @since 0.1.0
 * @category combinators
 */
export const decide = ({ ending, late, resources }: Facts): Outcome => {
  if (ending._tag === "Failed") {
    return new Aborted({ error: ending.error })
  }
  const left = unresolved(resources)
  if (Option.isSome(left)) {
    return new Aborted({ error: left.value })
  }
  if (ending._tag === "Interrupted") {
    return new Aborted({ error: ending.error })
  }
  return late === undefined ? scored(ending) : new Aborted({ error: late })
}

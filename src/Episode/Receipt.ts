/**
 * What an episode leaves behind for people and programs: its outcome and how it came to it. The JSON form is versioned.
 *
 * @since 0.1.0
 */
import * as Arr from "effect/Array"
import * as DateTime from "effect/DateTime"
import * as Schema from "effect/Schema"
import { Budgets } from "../Budgets.ts"
import { OperationRecord, ResourceRecord } from "../Sandbox/Journal.ts"
import { TaskId } from "../Task.ts"
import { Outcome } from "./Outcome.ts"

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category models
 */
export const EpisodeId = Schema.String.pipe(Schema.pattern(/^ep-[0-9a-f-]{36}$/), Schema.brand("EpisodeId"))

/**
 * @since 0.1.0
 * @category models
 */
export type EpisodeId = typeof EpisodeId.Type

/**
 * What a sandbox costs, and when that was so.
 *
 * @since 0.1.0
 * @category models
 */
export class Rates extends Schema.Class<Rates>("episode/Rates")({
  usdPerVcpuSecond: Schema.NonNegative.pipe(Schema.finite()),
  usdPerGibSecond: Schema.NonNegative.pipe(Schema.finite()),
  /** The month of the price list, such as `2026-08`. */
  asOf: Schema.String.pipe(Schema.pattern(/^\d{4}-\d{2}$/))
}) {}

/**
 * E2B's list prices of August 2026. An estimate at these rates says what an episode would cost there, wherever it ran.
 *
 * @since 0.1.0
 * @category defaults
 */
export const defaultRates: Rates = new Rates({
  usdPerVcpuSecond: 0.000_014,
  usdPerGibSecond: 0.000_004_5,
  asOf: "2026-08"
})

/**
 * One episode, from its reset to its end.
 *
 * @since 0.1.0
 * @category models
 */
export class EpisodeReceipt extends Schema.Class<EpisodeReceipt>("episode/EpisodeReceipt")({
  episodeId: EpisodeId,
  taskId: TaskId,
  /** SHA-256 of the task's file, in hexadecimal. */
  taskDigest: Schema.String,
  provider: Schema.String,
  outcome: Outcome,
  /** SHA-256 of the exported file, in hexadecimal; null when nothing was exported. */
  submissionDigest: Schema.NullOr(Schema.String),
  startedAt: Schema.DateTimeUtc,
  totalSeconds: Schema.NonNegative,
  operations: Schema.Array(OperationRecord),
  resources: Schema.Array(ResourceRecord),
  /** How long sandboxes existed, added up; those that weren't proved gone count until the episode's end. */
  sandboxSeconds: Schema.NonNegative,
  estimatedCostUsd: Schema.NonNegative,
  rates: Rates,
  /** The budgets in force; times in milliseconds, sizes in bytes. */
  budgets: Budgets
}) {}

/**
 * The document that `episode demo --json` and `episode run --json` print.
 *
 * @since 0.1.0
 * @category models
 */
export class Receipt extends Schema.Class<Receipt>("episode/Receipt")({
  version: Schema.Literal(1),
  /** One for each episode, in order. Null where there is no score: that isn't a zero. */
  rewards: Schema.Array(Schema.NullOr(Schema.Literal(0, 1))),
  totalSeconds: Schema.NonNegative,
  episodes: Schema.Array(EpisodeReceipt)
}) {}

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category constructors
 */
export const fromEpisodes = (episodes: ReadonlyArray<EpisodeReceipt>, totalSeconds: number): Receipt =>
  new Receipt({
    version: 1,
    rewards: Arr.map(episodes, ({ outcome }) => outcome._tag === "Scored" ? outcome.score : null),
    totalSeconds,
    episodes
  })

const seconds = (resource: ResourceRecord, now: DateTime.Utc): number =>
  Math.max(0, DateTime.distance(resource.startedAt, resource.confirmedAbsentAt ?? now) / 1000)

/**
 * Sandbox time, and what it costs at given rates.
 *
 * @since 0.1.0
 * @category combinators
 */
export const usage = (
  resources: ReadonlyArray<ResourceRecord>,
  rates: Rates,
  now: DateTime.Utc
): Pick<EpisodeReceipt, "sandboxSeconds" | "estimatedCostUsd"> => ({
  sandboxSeconds: Arr.reduce(resources, 0, (sum, resource) => sum + seconds(resource, now)),
  estimatedCostUsd: Arr.reduce(resources, 0, (sum, resource) =>
    sum + seconds(resource, now) * (
        resource.cpuCount * rates.usdPerVcpuSecond + resource.memoryMiB / 1024 * rates.usdPerGibSecond
      ))
})

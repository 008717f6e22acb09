/**
 * A disposable machine: what every provider offers, and nothing about how.
 *
 * A provider is a service of five requests. Users don't call them: a sandbox is acquired through {@link Sandboxes}
 * (`Sandbox/Sandboxes`), which owns it, deletes it and proves it gone.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { BudgetName } from "./Budgets.ts"
import type { SandboxFile, SandboxPath } from "./Task.ts"

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category models
 */
export const SandboxId = Schema.String.pipe(
  Schema.pattern(/^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$/),
  Schema.brand("SandboxId")
)

/**
 * @since 0.1.0
 * @category models
 */
export type SandboxId = typeof SandboxId.Type

/**
 * `policy`: where the policy repairs the program. `verifier`: where the submission runs on held-out input.
 *
 * @since 0.1.0
 * @category models
 */
export const Role = Schema.Literal("policy", "verifier")

/**
 * @since 0.1.0
 * @category models
 */
export type Role = typeof Role.Type

/**
 * Words that a sandbox carries at its provider, by which it can be found again.
 *
 * @since 0.1.0
 * @category models
 */
export const Labels = Schema.Record({ key: Schema.String, value: Schema.String })

/**
 * @since 0.1.0
 * @category models
 */
export type Labels = typeof Labels.Type

/**
 * A request to a provider.
 *
 * @since 0.1.0
 * @category models
 */
export const Operation = Schema.Literal(
  "create",
  "attach",
  "extend",
  "health",
  "exec",
  "writeFiles",
  "readFile",
  "destroy",
  "inspect",
  "find"
)

/**
 * @since 0.1.0
 * @category models
 */
export type Operation = typeof Operation.Type

/**
 * Time in which a request was put off, and not made.
 *
 * - `pacing`: creates follow one another no faster than the budget `allocationPacing` says
 * - `rate-limited`: the provider asked for as much
 *
 * @since 0.1.0
 * @category models
 */
export class Wait extends Schema.Class<Wait>("episode/Sandbox/Wait")({
  reason: Schema.Literal("pacing", "rate-limited"),
  milliseconds: Schema.NonNegative
}) {}

/**
 * Where a provider tells of the waits of the request that it is making, each when it begins: one that the request doesn't
 * outlast counts as long as that lasted.
 *
 * @since 0.1.0
 * @category context
 */
export class CurrentWaits extends Context.Reference<CurrentWaits>()("episode/Sandbox/CurrentWaits", {
  defaultValue: (): { readonly add: (wait: Wait) => Effect.Effect<void> } => ({ add: () => Effect.void })
}) {}

/**
 * The part of an episode in which something happened.
 *
 * @since 0.1.0
 * @category models
 */
export const Phase = Schema.Literal(
  "reset",
  "policy",
  "export",
  "policy-cleanup",
  "verifier-create",
  "verify",
  "verifier-cleanup",
  "reward"
)

/**
 * @since 0.1.0
 * @category models
 */
export type Phase = typeof Phase.Type

// ----------------------------------------------------------------------------
// errors: what can go wrong that isn't the doing of the program inside
// ----------------------------------------------------------------------------

// Every fault says what was asked for, of which sandbox, and what to do next. None holds a request's body, a key, or
// anything that came out of a sandbox.
const context = {
  operation: Operation,
  sandboxId: Schema.optionalWith(SandboxId, { exact: true }),
  /** Set by the episode: a provider doesn't know it. */
  phase: Schema.optionalWith(Phase, { exact: true })
}

const at = (fault: { readonly operation: Operation; readonly sandboxId?: SandboxId; readonly phase?: Phase }): string =>
  `${fault.operation}${fault.sandboxId === undefined ? "" : ` of sandbox ${fault.sandboxId}`}${
    fault.phase === undefined ? "" : `, in phase ${fault.phase}`
  }`

/**
 * The provider refused to create a sandbox; nothing was allocated.
 *
 * @since 0.1.0
 * @category errors
 */
export class SandboxUnavailable extends Schema.TaggedError<SandboxUnavailable>("episode/SandboxUnavailable")(
  "SandboxUnavailable",
  {
    ...context,
    reason: Schema.Literal("unauthorized", "quota", "template", "unsupported", "refused"),
    /** What to do, in the provider's terms. */
    detail: Schema.String
  }
) {
  at(phase: Phase): SandboxUnavailable {
    return new SandboxUnavailable({ ...this, phase })
  }
  override get message(): string {
    return `no sandbox could be had (${this.reason}; ${at(this)}): ${this.detail}`
  }
}

/**
 * The reply to a create was lost: a sandbox may or may not exist. It carries the label, and its lifetime ends it.
 *
 * @since 0.1.0
 * @category errors
 */
export class AllocationUncertain extends Schema.TaggedError<AllocationUncertain>("episode/AllocationUncertain")(
  "AllocationUncertain",
  {
    ...context,
    role: Role,
    /** The value of the `episode.allocation` label. */
    allocation: Schema.String,
    lifetime: Schema.DurationFromMillis,
    /** What is known of the reason. */
    detail: Schema.optionalWith(Schema.String, { exact: true })
  }
) {
  at(phase: Phase): AllocationUncertain {
    return new AllocationUncertain({ ...this, phase })
  }
  override get message(): string {
    return `it isn't known whether a ${this.role} sandbox was created (${at(this)}); if so it carries the label `
      + `episode.allocation=${this.allocation} and ends by itself within ${Duration.format(this.lifetime)}`
      + (this.detail === undefined ? "" : `: ${this.detail}`)
  }
}

/**
 * A sandbox that should have been there is gone or doesn't answer any more.
 *
 * @since 0.1.0
 * @category errors
 */
export class SandboxLost extends Schema.TaggedError<SandboxLost>("episode/SandboxLost")("SandboxLost", {
  ...context,
  reason: Schema.Literal("absent", "expired", "unhealthy")
}) {
  at(phase: Phase): SandboxLost {
    return new SandboxLost({ ...this, phase })
  }
  override get message(): string {
    return `the sandbox was lost (${this.reason}; ${at(this)}); the episode has no score, run it again`
  }
}

/**
 * A request didn't reach the sandbox, or its reply didn't reach us.
 *
 * @since 0.1.0
 * @category errors
 */
export class TransportFailed extends Schema.TaggedError<TransportFailed>("episode/TransportFailed")("TransportFailed", {
  ...context,
  detail: Schema.String
}) {
  at(phase: Phase): TransportFailed {
    return new TransportFailed({ ...this, phase })
  }
  override get message(): string {
    return `the way to the sandbox failed (${at(this)}): ${this.detail}`
  }
}

/**
 * No reply in time: whether the request had its effect isn't known.
 *
 * @since 0.1.0
 * @category errors
 */
export class ResponseTimedOut extends Schema.TaggedError<ResponseTimedOut>("episode/ResponseTimedOut")(
  "ResponseTimedOut",
  { ...context, budget: BudgetName, limit: Schema.DurationFromMillis }
) {
  at(phase: Phase): ResponseTimedOut {
    return new ResponseTimedOut({ ...this, phase })
  }
  override get message(): string {
    return `no reply within the ${this.budget} budget of ${Duration.format(this.limit)} (${at(this)}); `
      + "what it did isn't known, so the episode has no score"
  }
}

/**
 * A reply that no provider should give.
 *
 * @since 0.1.0
 * @category errors
 */
export class ProtocolViolation extends Schema.TaggedError<ProtocolViolation>("episode/ProtocolViolation")(
  "ProtocolViolation",
  { ...context, detail: Schema.String }
) {
  at(phase: Phase): ProtocolViolation {
    return new ProtocolViolation({ ...this, phase })
  }
  override get message(): string {
    return `a malformed reply (${at(this)}): ${this.detail}`
  }
}

/**
 * Sandboxes that couldn't be proved gone. Each ends by itself when its lifetime is over; until then it may cost money.
 *
 * @since 0.1.0
 * @category errors
 */
export class CleanupUnresolved extends Schema.TaggedError<CleanupUnresolved>("episode/CleanupUnresolved")(
  "CleanupUnresolved",
  {
    operation: Schema.Literal("destroy"),
    phase: Schema.optionalWith(Phase, { exact: true }),
    sandboxes: Schema.NonEmptyArray(Schema.Struct({
      sandboxId: SandboxId,
      role: Role,
      attempts: Schema.NonNegativeInt
    }))
  }
) {
  override get message(): string {
    const which = this.sandboxes.map(({ attempts, role, sandboxId }) =>
      `${role} sandbox ${sandboxId} (${attempts} ${attempts === 1 ? "attempt" : "attempts"})`
    )
    return `not proved gone: ${which.join(", ")}; delete it by hand, or wait for the end of its lifetime`
  }
}

/**
 * What a request to a sandbox can fail with.
 *
 * @since 0.1.0
 * @category errors
 */
export const SandboxFault = Schema.Union(SandboxLost, TransportFailed, ResponseTimedOut, ProtocolViolation)

/**
 * @since 0.1.0
 * @category errors
 */
export type SandboxFault = typeof SandboxFault.Type

/**
 * What a create can fail with. After any but `SandboxUnavailable` it isn't known whether a sandbox exists.
 *
 * @since 0.1.0
 * @category errors
 */
export const CreateFault = Schema.Union(SandboxUnavailable, AllocationUncertain, ...SandboxFault.members)

/**
 * @since 0.1.0
 * @category errors
 */
export type CreateFault = typeof CreateFault.Type

// ----------------------------------------------------------------------------
// the handle
// ----------------------------------------------------------------------------

/**
 * What a sandbox was given, as the provider reports it.
 *
 * @since 0.1.0
 * @category models
 */
export class Resources extends Schema.Class<Resources>("episode/Sandbox/Resources")({
  cpuCount: Schema.Positive,
  memoryMiB: Schema.Positive,
  templateId: Schema.NonEmptyString,
  startedAt: Schema.DateTimeUtc
}) {}

/**
 * What to create.
 *
 * @since 0.1.0
 * @category models
 */
export interface SandboxSpec {
  readonly role: Role
  /** The provider's own default unless given. */
  readonly templateId?: string | undefined
  /** After this long the provider ends the sandbox by itself. */
  readonly lifetime: Duration.Duration
  /** `offline`: loopback only, whatever the provider is set to. `default`: what the provider is set to. */
  readonly network: "offline" | "default"
  readonly labels: Labels
}

/**
 * @since 0.1.0
 * @category models
 */
export interface ExecLimits {
  /** The command and everything it started in its session are killed after this long. */
  readonly timeLimit: Duration.Duration
  /** The most that is kept of each stream; the rest is read and thrown away. */
  readonly outputCap: number
}

/**
 * One stream of a command, bounded while it was read. The middle is missing where `totalBytes` is more than head and
 * tail hold.
 *
 * @since 0.1.0
 * @category models
 */
export interface CapturedOutput {
  readonly head: Uint8Array
  readonly tail: Uint8Array
  readonly totalBytes: number
}

/**
 * A command's end. Whatever a command does is a result and never an error.
 *
 * @since 0.1.0
 * @category models
 */
export interface ExecResult {
  readonly stdout: CapturedOutput
  readonly stderr: CapturedOutput
  /** As a shell reports it: 128 + n for a process ended by signal n. */
  readonly exitCode: number
  readonly killedAtLimit: boolean
}

/**
 * @since 0.1.0
 * @category models
 */
export interface FileLimits {
  /** A larger file is `TooLarge`; no more than one byte over is ever read. */
  readonly maxBytes: number
}

/**
 * What was found at a path. Whatever a policy puts there is an answer and never an error. Symbolic links aren't
 * followed, at the end or on the way: they are `NotRegular`.
 *
 * @since 0.1.0
 * @category models
 */
export type FileRead = Data.TaggedEnum<{
  Bytes: { readonly bytes: Uint8Array }
  Missing: {}
  /** A directory, link, device, FIFO or socket. */
  NotRegular: {}
  TooLarge: {}
  /** The sandbox's own user may not read it. */
  Unreadable: {}
}>

/**
 * @since 0.1.0
 * @category constructors
 */
export const FileRead = Data.taggedEnum<FileRead>()

/**
 * A running sandbox.
 *
 * @since 0.1.0
 * @category models
 */
export interface Sandbox {
  readonly id: SandboxId
  readonly role: Role
  readonly resources: Resources
  /** Runs one command line in a fresh bash, in `/home/user`, with an empty standard input. */
  readonly exec: (command: string, limits: ExecLimits) => Effect.Effect<ExecResult, SandboxFault>
  readonly readFile: (path: SandboxPath, limits: FileLimits) => Effect.Effect<FileRead, SandboxFault>
  /** Creates or replaces files and makes their parent directories, in one request. */
  readonly writeFiles: (files: ReadonlyArray<SandboxFile>) => Effect.Effect<void, SandboxFault>
  /** Succeeds when the sandbox lives and answers. */
  readonly health: Effect.Effect<void, SandboxFault>
  /** From now on the sandbox lives this long. */
  readonly extend: (lifetime: Duration.Duration) => Effect.Effect<void, SandboxFault>
}

/**
 * @since 0.1.0
 * @category models
 */
export interface SandboxSummary {
  readonly id: SandboxId
  readonly labels: Labels
}

/**
 * What a provider offers. Every request may be interrupted at any time.
 *
 * @since 0.1.0
 * @category models
 */
export interface Provider {
  /** Short and stable, such as `local`: it stands in receipts. */
  readonly name: string
  /** The least time that the provider wants between two creates. */
  readonly allocationPacing: Duration.Duration
  readonly create: (spec: SandboxSpec) => Effect.Effect<Sandbox, CreateFault>
  /** A handle on a running sandbox that this provider, perhaps in another process, created. */
  readonly attach: (id: SandboxId, role: Role) => Effect.Effect<Sandbox, SandboxFault>
  /** Asks for deletion. Success is not a proof of absence, and a sandbox that isn't there is a success. */
  readonly destroy: (id: SandboxId) => Effect.Effect<void, SandboxFault>
  /** The proof. */
  readonly inspect: (id: SandboxId) => Effect.Effect<"running" | "absent", SandboxFault>
  /** Running sandboxes that carry all of these labels. */
  readonly find: (labels: Labels) => Effect.Effect<ReadonlyArray<SandboxSummary>, SandboxFault>
}

// ----------------------------------------------------------------------------
// tag
// ----------------------------------------------------------------------------

/**
 * Where sandboxes come from: `Sandbox/Local`, or a provider of your own.
 *
 * @since 0.1.0
 * @category tags
 */
export class SandboxProvider extends Context.Tag("episode/Sandbox/SandboxProvider")<SandboxProvider, Provider>() {}

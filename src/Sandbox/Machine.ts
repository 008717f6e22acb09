/**
 * What a sandbox can do beyond a provider's requests: programs that run for as long as they like, with streams and
 * signals. Only a server of sandboxes needs it, so a provider may leave it out.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import type * as Stream from "effect/Stream"
import type { SandboxFault } from "../Sandbox.ts"
import { SandboxId } from "../Sandbox.ts"

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * Whom a program runs as: the sandbox's own user, whose home is `/home/user`, or its superuser, who has no power outside
 * of it.
 *
 * @since 0.1.0
 * @category models
 */
export const User = Schema.Literal("user", "root")

/**
 * @since 0.1.0
 * @category models
 */
export type User = typeof User.Type

/**
 * The home directory of a user.
 *
 * @since 0.1.0
 * @category models
 */
export const homeOf = (user: User): string => user === "root" ? "/root" : "/home/user"

/**
 * What to run.
 *
 * @since 0.1.0
 * @category models
 */
export interface Program {
  readonly argv: readonly [file: string, ...arguments: ReadonlyArray<string>]
  readonly user: User
  /** On top of what every program there gets: PATH, HOME, USER, LOGNAME, SHELL, LANG, TERM. */
  readonly environment: Readonly<Record<string, string>>
  /** Where it begins. A path that isn't absolute begins at the user's home. */
  readonly directory: string
  /** `system`: its file is looked for only where no guest can put one. Default: on the user's PATH. */
  readonly search?: "system" | undefined
  /** `closed`: an empty standard input. */
  readonly stdin: "open" | "closed"
  /** `writers`: its streams end when nobody can write to them any more, or at `letGo`. Default: with the program. */
  readonly outputs?: "program" | "writers" | undefined
}

/**
 * The end of a program: one of both is there.
 *
 * @since 0.1.0
 * @category models
 */
export interface Ended {
  readonly exitCode: number | undefined
  /** Such as `SIGKILL`. */
  readonly signal: string | undefined
}

/**
 * A running program. Its streams are pipes that hold it up when they aren't read, and each can be read once. A stream
 * ends with the program: what that leaves in the background may hold a pipe open, which isn't waited for.
 *
 * @since 0.1.0
 * @category models
 */
export interface Running {
  /** As processes in the sandbox know it. It leads a session and a process group of its own. */
  readonly pid: number
  readonly stdout: Stream.Stream<Uint8Array>
  readonly stderr: Stream.Stream<Uint8Array>
  /** Waits until it is taken. False where nobody reads any more, or the input was closed. */
  readonly write: (bytes: Uint8Array) => Effect.Effect<boolean>
  readonly closeStdin: Effect.Effect<void>
  /** SIGKILL goes to its whole session and is waited for; SIGTERM goes to its process group. */
  readonly signal: (name: "SIGTERM" | "SIGKILL") => Effect.Effect<void>
  readonly ended: Effect.Effect<Ended>
  /** From now on the streams end with the program, whoever holds them. */
  readonly letGo: Effect.Effect<void>
}

/**
 * What a sandbox uses at the moment.
 *
 * @since 0.1.0
 * @category models
 */
export interface Usage {
  /** Processor time of the programs that live, in seconds. */
  readonly cpuSeconds: number
  readonly memoryBytes: number
  readonly memoryLimitBytes: number
  readonly diskBytes: number
  readonly diskLimitBytes: number
}

// ----------------------------------------------------------------------------
// errors
// ----------------------------------------------------------------------------

/**
 * A program that can't be started as it was given.
 *
 * - `user`: this machine has no such user to offer
 * - `arguments`: too long, or with a NUL
 * - `directory`: the user can't be in the directory
 * - `ended`: it was ended before it had begun, as a guest may end what comes near it
 *
 * @since 0.1.0
 * @category errors
 */
export class ProgramRefused extends Schema.TaggedError<ProgramRefused>("episode/ProgramRefused")("ProgramRefused", {
  sandboxId: SandboxId,
  reason: Schema.Literal("user", "arguments", "directory", "ended"),
  detail: Schema.String
}) {
  override get message(): string {
    return `the program can't be started in sandbox ${this.sandboxId}: ${this.detail}`
  }
}

// ----------------------------------------------------------------------------
// tag
// ----------------------------------------------------------------------------

/**
 * Running programs in the sandboxes of a provider. `Sandbox/Local` has one.
 *
 * @since 0.1.0
 * @category tags
 */
export class MachineProvider extends Context.Tag("episode/Sandbox/Machine/MachineProvider")<MachineProvider, {
  /** Starts a program. The end of the scope kills it with its session. */
  readonly spawn: (
    sandboxId: SandboxId,
    program: Program
  ) => Effect.Effect<Running, SandboxFault | ProgramRefused, Scope.Scope>
  readonly usage: (sandboxId: SandboxId) => Effect.Effect<Usage, SandboxFault>
}>() {}

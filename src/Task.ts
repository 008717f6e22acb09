/**
 * What to solve: the canonical task that every other room works with.
 *
 * A task has two halves. The open half (prompt, workspace, where the submission lies) goes into the policy sandbox. The
 * verification half is sealed: it can be passed around but only the grader can open it.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import { type SealedVerification, sealVerification, type VerificationContents } from "./internal/verification.ts"

/**
 * A file's place in a sandbox: absolute, normalised, without `..`, NUL or a trailing slash.
 *
 * @since 0.1.0
 * @category models
 */
export const SandboxPath = Schema.String.pipe(
  Schema.pattern(/^(?:\/[^/\0]+)+$/u, { message: () => "a sandbox path is absolute and has no empty part" }),
  Schema.filter((path) => !path.split("/").some((part) => part === "." || part === ".."), {
    message: () => "a sandbox path has no '.' or '..' part"
  }),
  Schema.maxLength(4096),
  Schema.brand("SandboxPath")
)

/**
 * @since 0.1.0
 * @category models
 */
export type SandboxPath = typeof SandboxPath.Type

/**
 * A file to put into a sandbox.
 *
 * @since 0.1.0
 * @category models
 */
export interface SandboxFile {
  readonly path: SandboxPath
  readonly bytes: Uint8Array
  /** Permission bits; 0o644 unless given. */
  readonly mode?: number | undefined
}

/**
 * @since 0.1.0
 * @category models
 */
export const TaskId = Schema.String.pipe(
  Schema.pattern(/^[a-z0-9][a-z0-9._-]{0,63}$/, {
    message: () => "an id is 1 to 64 of a-z, 0-9, '.', '_' and '-', and starts with a letter or digit"
  }),
  Schema.brand("TaskId")
)

/**
 * @since 0.1.0
 * @category models
 */
export type TaskId = typeof TaskId.Type

/**
 * The held-out half of a task. It has no readable part: it prints as `<sealed>`, has no own fields, and what it holds can
 * only be reached by the grading room. So it can't be put into a policy sandbox, a log or an observation by mistake.
 *
 * @since 0.1.0
 * @category models
 */
export interface Verification extends SealedVerification {}

/**
 * Seals the held-out half of a task.
 *
 * @since 0.1.0
 * @category constructors
 */
export const verification: (contents: VerificationContents) => Verification = sealVerification

/**
 * Why a grader gave the verdict it gave.
 *
 * @since 0.1.0
 * @category models
 */
export type { GradedReason, Grader, Verdict, VerificationContents } from "./internal/verification.ts"

/**
 * A task in the one form that episodes know. Formats such as `Task/Report` decode into it.
 *
 * @since 0.1.0
 * @category models
 */
export interface Task {
  readonly id: TaskId
  /** SHA-256 of the file the task was read from, in hexadecimal: it names the task's exact version in a receipt. */
  readonly digest: string
  /** What the policy is told. */
  readonly prompt: string
  /** Files that are put into the policy sandbox before the policy starts. */
  readonly workspace: ReadonlyArray<SandboxFile>
  /** The one file that leaves the policy sandbox. Its size cap is the `fileCap` budget. */
  readonly submission: SandboxPath
  readonly verification: Verification
}

/**
 * A task file that can't be used: everything that is wrong with it, and what to do about it. A mistake of the file's
 * author, not of the infrastructure.
 *
 * @since 0.1.0
 * @category errors
 */
export class InvalidTask extends Schema.TaggedError<InvalidTask>("episode/InvalidTask")("InvalidTask", {
  issues: Schema.NonEmptyArray(Schema.Struct({
    /** The field, such as `verification.expected.north`; empty for the file as a whole. */
    path: Schema.String,
    message: Schema.String
  }))
}) {
  /** One line for each issue. */
  override get message(): string {
    return this.issues.map(({ message, path }) => path === "" ? message : `${path}: ${message}`).join("\n")
  }
}

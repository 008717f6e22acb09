/**
 * What a submission is worth: it runs on held-out input in a fresh offline sandbox, and the host judges what it printed.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type { BudgetExceeded, Deadline } from "./Budgets.ts"
import { CurrentBudgets } from "./Budgets.ts"
import * as Totals from "./Grading/Totals.ts"
import { openVerification } from "./internal/verification.ts"
import type { CleanupUnresolved, CreateFault, FileRead, Labels, SandboxFault } from "./Sandbox.ts"
import { call } from "./Sandbox/Call.ts"
import type { ConfirmedAbsent } from "./Sandbox/Sandboxes.ts"
import { Sandboxes } from "./Sandbox/Sandboxes.ts"
import { type Grader, SandboxPath, type Task, type Verdict } from "./Task.ts"

/**
 * Why a submission that ran got its score.
 *
 * @since 0.1.0
 * @category models
 */
export const GradingReason = Schema.Literal(
  "correct",
  "candidate-failed",
  "candidate-killed-at-limit",
  "output-missing",
  "output-not-regular",
  "output-unreadable",
  "output-too-large",
  "output-not-utf8",
  "output-malformed",
  "wrong-totals"
)

/**
 * @since 0.1.0
 * @category models
 */
export type GradingReason = typeof GradingReason.Type

/**
 * A score and its reason. The detail is for people, and holds neither an expectation nor what was printed.
 *
 * @since 0.1.0
 * @category models
 */
export type Grade =
  | { readonly score: 1; readonly reason: "correct"; readonly detail?: string | undefined }
  | { readonly score: 0; readonly reason: Exclude<GradingReason, "correct">; readonly detail?: string | undefined }

/**
 * Judges what a candidate printed. Pure and total.
 *
 * @since 0.1.0
 * @category combinators
 */
export const judge = (grader: Grader, output: Uint8Array): Verdict =>
  grader._tag === "Totals" ? Totals.grade(grader.expected)(output) : grader.grade(output)

const stdout = SandboxPath.make("/tmp/candidate.stdout")
const stderr = SandboxPath.make("/tmp/candidate.stderr")

const quote = (word: string): string => `'${word.replaceAll("'", "'\\''")}'`

const ofFile = (read: Exclude<FileRead, { readonly _tag: "Bytes" }>): Grade => {
  switch (read._tag) {
    case "Missing":
      return { score: 0, reason: "output-missing" }
    case "NotRegular":
      return { score: 0, reason: "output-not-regular" }
    case "TooLarge":
      return { score: 0, reason: "output-too-large" }
    case "Unreadable":
      return { score: 0, reason: "output-unreadable" }
  }
}

/**
 * @since 0.1.0
 * @category models
 */
export interface VerifyOptions {
  readonly task: Task
  /** What was exported from the policy sandbox. */
  readonly submission: Uint8Array
  /** No verifier without the proof that the policy sandbox is gone (R2). */
  readonly policy: ConfirmedAbsent
  /** The template that the policy sandbox really had. */
  readonly templateId: string
  readonly labels: Labels
  readonly deadline: Deadline
}

/**
 * Runs a submission on the held-out input and grades it. The verifier is gone when this succeeds, and proved to be.
 *
 * Whatever the candidate does is a grade; an error is always the infrastructure's.
 *
 * @since 0.1.0
 * @category combinators
 */
export const verify: (
  options: VerifyOptions
) => Effect.Effect<
  { readonly grade: Grade; readonly verifier: ConfirmedAbsent },
  SandboxFault | CreateFault | CleanupUnresolved | BudgetExceeded,
  Sandboxes
> = Effect.fn("Grading.verify")(function*({ deadline, labels, submission, task, templateId }: VerifyOptions) {
  const budgets = yield* CurrentBudgets
  const sandboxes = yield* Sandboxes
  const held = openVerification(task.verification)
  const { discard, sandbox } = yield* sandboxes.acquire({
    role: "verifier",
    templateId,
    lifetime: budgets.verifierLifetime,
    network: "offline",
    labels,
    phases: { create: "verifier-create", cleanup: "verifier-cleanup" },
    enclosing: [deadline]
  })
  const request = { phase: "verify", sandboxId: sandbox.id, enclosing: [deadline] } as const
  const transfer = { ...request, budget: "fileTransfer", limit: budgets.fileTransfer } as const

  yield* sandbox.writeFiles([{ path: task.submission, bytes: submission }, ...held.files]).pipe(
    call({ ...transfer, operation: "writeFiles" })
  )
  // The output goes to files in the sandbox and is read under a cap: a daemon that keeps a stream open holds nothing up.
  const words = held.command.map(quote).join(" ")
  const run = yield* sandbox.exec(
    `cd ${quote(held.cwd)} && exec ${words} </dev/null >${stdout} 2>${stderr}`,
    { timeLimit: budgets.commandLimit, outputCap: 1 }
  ).pipe(
    call({ ...request, operation: "exec", budget: "verifierResponse", limit: budgets.verifierResponse })
  )
  const grade = yield* Effect.gen(function*() {
    if (run.killedAtLimit) {
      return { score: 0, reason: "candidate-killed-at-limit" } as const
    }
    if (run.exitCode !== 0) {
      return { score: 0, reason: "candidate-failed", detail: `exit code ${run.exitCode}` } as const
    }
    const output = yield* sandbox.readFile(stdout, { maxBytes: budgets.fileCap }).pipe(
      call({ ...transfer, operation: "readFile" })
    )
    return output._tag === "Bytes" ? judge(held.grader, output.bytes) : ofFile(output)
  })
  return { grade, verifier: yield* discard }
}, Effect.scoped)

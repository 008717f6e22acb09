import type { SandboxFile, SandboxPath } from "../Task.ts"

/** Reasons that come from looking at a candidate's output. */
export type GradedReason = "correct" | "output-not-utf8" | "output-malformed" | "wrong-totals"

/**
 * What a grader says about a candidate's output. The detail is for people, and holds neither an expectation nor what was
 * printed.
 */
export type Verdict =
  | { readonly score: 1; readonly reason: "correct"; readonly detail?: string | undefined }
  | { readonly score: 0; readonly reason: Exclude<GradedReason, "correct">; readonly detail?: string | undefined }

/** How a candidate's standard output is judged. Data, not code, so that a task stays a value; `Grading` knows what it means. */
export type Grader =
  /** One strict JSON object with exactly these integer totals. */
  | { readonly _tag: "Totals"; readonly expected: ReadonlyMap<string, bigint> }
  /** A judge of the embedding program's own: pure, total and bounded. */
  | { readonly _tag: "Custom"; readonly grade: (output: Uint8Array) => Verdict }

/** The held-out half of a task: what enters the verifier beside the submission, and the judge that never leaves the host. */
export interface VerificationContents {
  /** Held-out input; put into the verifier sandbox only. */
  readonly files: ReadonlyArray<SandboxFile>
  /** The one command that the verifier runs, as words: no shell reads it. */
  readonly command: readonly [string, ...ReadonlyArray<string>]
  /** Where the command is started. */
  readonly cwd: SandboxPath
  readonly grader: Grader
}

const contentsOf = new WeakMap<SealedVerification, VerificationContents>()

export class SealedVerification {
  // A private member makes the type nominal: no other object can stand in for a sealed one.
  readonly #sealed = "<sealed>"

  toJSON(): string {
    return this.#sealed
  }
  toString(): string {
    return this.#sealed
  }
  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.#sealed
  }
}

export const sealVerification = (contents: VerificationContents): SealedVerification => {
  const sealed = new SealedVerification()
  contentsOf.set(sealed, contents)
  return sealed
}

/** Opens the seal. Only `src/Grading` may import this: the linter refuses it elsewhere. */
export const openVerification = (sealed: SealedVerification): VerificationContents => {
  const contents = contentsOf.get(sealed)
  if (contents === undefined) {
    throw new TypeError("a Verification is made by Task.verification")
  }
  return contents
}

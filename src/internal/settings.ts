/**
 * What is wrong with settings, in words for people.
 */
import type { ConfigError } from "effect/ConfigError"

export interface Problem {
  /** The variable. */
  readonly name: string
  readonly isMissing: boolean
  /** What is wrong, without the variable's name. */
  readonly reason: string
  readonly todo: string
}

const missing = (name: string): Problem => ({
  name,
  isMissing: true,
  reason: "isn't set",
  todo: name === "E2B_API_KEY"
    ? "get a key at https://e2b.dev/dashboard?tab=keys and put it into the environment, or into .env"
    : "put it into the environment, or into .env"
})

/** One for each variable. */
export const problemsOf = (error: ConfigError): ReadonlyArray<Problem> => {
  if (error._op === "And" || error._op === "Or") {
    return [...problemsOf(error.left), ...problemsOf(error.right)]
  }
  const name = error.path.join(".")
  return [
    // The library's own words for it are those of a programmer.
    error._op === "MissingData" ? missing(name) : { name, isMissing: false, reason: error.message, todo: error.message }
  ]
}

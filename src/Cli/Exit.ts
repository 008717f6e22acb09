/**
 * Exit codes: what a script can tell from the end of a command.
 */
import * as HelpDoc from "@effect/cli/HelpDoc"
import type { ValidationError } from "@effect/cli/ValidationError"
import * as ValidationErrors from "@effect/cli/ValidationError"
import type { ConfigError } from "effect/ConfigError"
import * as ConfigErrors from "effect/ConfigError"
import * as Schema from "effect/Schema"
import { stripVTControlCharacters } from "node:util"
import type { InvalidBudgets } from "../Budgets.ts"
import type { InfrastructureError } from "../Episode/Outcome.ts"
import { problemsOf } from "../internal/settings.ts"
import type { InvalidTask } from "../Task.ts"

/** The command ran, but what was asked of it didn't come true. */
export class NotMet extends Schema.TaggedError<NotMet>("episode/Cli/NotMet")("NotMet", { message: Schema.String }) {}

/** The command can't be run as it was given. */
export class Usage extends Schema.TaggedError<Usage>("episode/Cli/Usage")("Usage", { message: Schema.String }) {}

/** The machine lacks something. */
export class NotReady extends Schema.TaggedError<NotReady>("episode/Cli/NotReady")("NotReady", {
  message: Schema.String
}) {}

/** Every way in which a command can fail. */
export type Failure =
  | NotMet
  | NotReady
  | Usage
  | InvalidTask
  | InvalidBudgets
  | InfrastructureError
  | ConfigError
  | ValidationError

export const codes = { done: 0, notMet: 1, usage: 2, infrastructure: 3, unresolved: 4, interrupted: 130 } as const

export type ExitCode = typeof codes[keyof typeof codes]

export const codeOf = (failure: Failure): ExitCode => {
  if (ValidationErrors.isValidationError(failure) || ConfigErrors.isConfigError(failure)) {
    return codes.usage
  }
  switch (failure._tag) {
    case "NotMet":
      return codes.notMet
    case "Usage":
    case "InvalidTask":
    case "InvalidBudgets":
      return codes.usage
    case "CleanupUnresolved":
      return codes.unresolved
    default:
      return codes.infrastructure
  }
}

const ofEnvironment = (error: ConfigError): string =>
  problemsOf(error).map(({ isMissing, name, reason, todo }) =>
    isMissing ? `${name} ${reason}: ${todo}` : `the environment: ${name}: ${reason}`
  ).join("; ")

/** What to print. */
export const describe = (failure: Failure): string =>
  ValidationErrors.isValidationError(failure)
    ? stripVTControlCharacters(HelpDoc.toAnsiText(failure.error)).trim()
    : ConfigErrors.isConfigError(failure)
    ? ofEnvironment(failure)
    : failure.message

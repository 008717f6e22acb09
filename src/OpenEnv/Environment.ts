/**
 * What a server serves: one kind of environment, of which every session has one. Sockets, HTTP and MCP know no more of it
 * than this.
 *
 * @since 0.1.0
 */
import type * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import type * as Effect from "effect/Effect"
import type * as Either from "effect/Either"
import type * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import type { InfrastructureError } from "../Episode/Outcome.ts"
import * as Wire from "./Wire.ts"

// ----------------------------------------------------------------------------
// errors
// ----------------------------------------------------------------------------

/**
 * A request that was refused, and changed nothing. The client's mistake.
 *
 * @since 0.1.0
 * @category errors
 */
export class RequestRefused extends Schema.TaggedError<RequestRefused>("episode/OpenEnv/RequestRefused")(
  "RequestRefused",
  {
    code: Schema.Literal("VALIDATION_ERROR", "EXECUTION_ERROR"),
    message: Schema.String,
    issues: Schema.Array(Wire.Issue)
  }
) {}

/**
 * @since 0.1.0
 * @category errors
 */
export const refused = (message: string, issues: ReadonlyArray<Wire.Issue>): RequestRefused =>
  new RequestRefused({ code: "VALIDATION_ERROR", message, issues })

/**
 * Why a request has no answer.
 *
 * @since 0.1.0
 * @category errors
 */
export type EnvironmentError = RequestRefused | InfrastructureError

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * What came of a tool call: a result, or why the tool wasn't called.
 *
 * @since 0.1.0
 * @category models
 */
export type ToolOutcome = Either.Either<Wire.CallToolResult, Wire.ToolError>

/**
 * One session's environment. Requests that overlap wait for each other in it.
 *
 * @since 0.1.0
 * @category models
 */
export interface Environment {
  /** `frame` is the text that the arguments were read from: a task's numbers count as they are written there. */
  readonly reset: (
    args: Readonly<Record<string, unknown>>,
    frame: string
  ) => Effect.Effect<Wire.StepResult, EnvironmentError>
  readonly step: (action: Wire.Action) => Effect.Effect<Wire.StepResult, EnvironmentError>
  /** A tool call that is no step: the result alone. */
  readonly call: (
    name: string,
    args: Readonly<Record<string, unknown>>
  ) => Effect.Effect<ToolOutcome, EnvironmentError>
  readonly state: Effect.Effect<Wire.State>
}

/**
 * A kind of environment: how a session gets its own, and what is said of it to whoever asks.
 *
 * @since 0.1.0
 * @category models
 */
export interface Kind {
  readonly name: string
  readonly description: string
  /** The tools, all of them. */
  readonly tools: ReadonlyArray<typeof Wire.Tool.Type>
  /** The JSON Schemas of its actions, observations and states. */
  readonly schemas: typeof Wire.Schemas.Type
  /** What `reset` takes: its JSON Schema, and what is wrong with something else. */
  readonly reset: {
    readonly schema: Readonly<Record<string, unknown>>
    readonly decode: (input: unknown) => Either.Either<unknown, ReadonlyArray<Wire.Issue>>
  }
  /** The state of an environment that has never been reset. */
  readonly idle: Wire.State
  /** The page for people, if it has one. */
  readonly page: Option.Option<HttpServerResponse.HttpServerResponse>
  /** An environment that holds nothing until it is reset, and gives back what it holds when the scope ends. */
  readonly open: Effect.Effect<Environment, never, Scope.Scope>
}

// ----------------------------------------------------------------------------
// arguments
// ----------------------------------------------------------------------------

/**
 * What is wrong with a value, in one sentence.
 *
 * @since 0.1.0
 * @category arguments
 */
export const said = (issues: ReadonlyArray<Wire.Issue>): string =>
  issues.map(({ loc, msg }) => loc.length === 0 ? msg : `${loc.join(".")}: ${msg}`).join("; ")

/**
 * One issue for each argument that isn't known.
 *
 * @since 0.1.0
 * @category arguments
 */
export const unknownArguments = (
  args: Readonly<Record<string, unknown>>,
  known: ReadonlySet<string>
): ReadonlyArray<Wire.Issue> =>
  Object.keys(args).filter((name) => !known.has(name)).slice(0, 20).map((name) => ({
    type: "extra_forbidden",
    loc: [name.slice(0, 64)],
    msg: `reset takes ${[...known].join(", ")}`
  }))

const encoder = new TextEncoder()

/**
 * Half of a surrogate pair has no UTF-8.
 *
 * @since 0.1.0
 * @category arguments
 */
export const hasLoneSurrogate = (text: string): boolean => /\p{Surrogate}/u.test(text)

/**
 * Why a text can't be run as a command; undefined for one that can.
 *
 * @since 0.1.0
 * @category arguments
 */
export const commandIssue = (command: string, maxBytes: number): string | undefined =>
  command.includes("\0")
    ? "a command can't hold a NUL character"
    : hasLoneSurrogate(command)
    ? "a command can't hold half of a surrogate pair, which has no UTF-8"
    : encoder.encode(command).length > maxBytes
    ? `a command is at most ${maxBytes} bytes long`
    : undefined

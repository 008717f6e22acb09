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
 * A request that isn't valid, and why.
 *
 * @since 0.1.0
 * @category errors
 */
export const refused = (message: string, issues: ReadonlyArray<Wire.Issue>): RequestRefused =>
  new RequestRefused({ code: "VALIDATION_ERROR", message: Wire.withFirst(message, issues), issues })

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
 * How a session is reset whose tools are called over MCP, which has no reset.
 *
 * @since 0.1.0
 * @category models
 */
export const resetOverMcp =
  "over MCP: open a socket at /ws?session_id=ID, with the id that openenv/session/create gave "
  + "to POST /mcp, and send {\"type\":\"reset\"} there"

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
// texts
// ----------------------------------------------------------------------------

const encoder = new TextEncoder()

const quoted = Wire.write(Schema.String)

// In bytes, as it stands in a reply: there a control character takes six.
const sizeOf = (text: string): number => encoder.encode(quoted(text)).length - 2

// Half of a surrogate pair, left where a pair was cut in two.
const halves = /\p{Surrogate}/gu

// A cut leaves a multiple of so many characters.
const step = 64

// How many characters are as good as so many bytes, where `pieceAt` gives the text piece by piece.
const lengthOf = (pieceAt: (start: number) => string, maxBytes: number): number => {
  let length = 0
  for (let left = maxBytes - sizeOf(pieceAt(0)); left >= 0; left -= sizeOf(pieceAt(length))) {
    length += step
  }
  return length
}

/**
 * A text that takes about so many bytes of a reply at most: of a longer one head and tail, and how much is missing.
 *
 * @since 0.1.0
 * @category texts
 */
export const excerpt = (text: string, maxBytes: number): string => {
  // A character takes one at least, and six at most.
  if (text.length * 6 <= maxBytes || (text.length <= maxBytes && sizeOf(text) <= maxBytes)) {
    return text
  }
  // Together they are shorter than the text, so neither reaches its other end.
  const head = text.slice(0, lengthOf((start) => text.slice(start, start + step), maxBytes / 2))
  const tail = text.slice(
    text.length - lengthOf((start) => text.slice(text.length - start - step, text.length - start), maxBytes / 2)
  )
  const left = text.length - head.length - tail.length
  return `${head.replace(halves, "")}\n[... ${left} of ${text.length} characters left out ...]\n${
    tail.replace(halves, "")
  }`
}

// A result holds its text three times, and there is something beside it. Two whole streams of 1 MiB have a place in it.
const maxTextBytes = Math.floor(Wire.maxReplyBytes * 0.3)

/**
 * What a tool said, as a result: small enough for a reply.
 *
 * @since 0.1.0
 * @category texts
 */
export const toResult = (said: string, meta: Wire.CallToolResult["meta"]): Wire.CallToolResult => {
  const text = excerpt(said, maxTextBytes)
  return {
    content: [{ type: "text", text }],
    structured_content: { result: text },
    meta: meta !== null && text !== said ? { ...meta, truncated: true } : meta,
    data: text,
    is_error: false
  }
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
export const said = (issues: ReadonlyArray<Wire.Issue>): string => issues.map(Wire.sentence).join("; ")

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
    loc: [Wire.shortened(name, 64)],
    msg: `reset takes ${[...known].join(", ")}`
  }))

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

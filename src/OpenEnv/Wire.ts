/**
 * The OpenEnv wire: every frame, request and reply, once, for both sides.
 *
 * It is the wire of OpenEnv 0.8 to 0.10, and clients of 0.3 are served by it too: they read metadata from `state`, since
 * they drop it elsewhere. What a server takes is strict, and what a client takes is lenient: later servers may say more.
 *
 * @since 0.1.0
 */
import * as Arr from "effect/Array"
import * as Either from "effect/Either"
import * as ParseResult from "effect/ParseResult"
import * as Schema from "effect/Schema"
import * as ForeignJson from "../internal/foreignJson.ts"

const exact = { exact: true } as const

/**
 * An object of anything.
 *
 * @since 0.1.0
 * @category models
 */
export const Anything = Schema.Record({ key: Schema.String, value: Schema.Unknown })

/**
 * A client's own name for an episode. It is given back, and put on sandboxes.
 *
 * @since 0.1.0
 * @category models
 */
export const EpisodeName = Schema.String.pipe(
  Schema.maxLength(255),
  Schema.filter(
    (name) => !/[\0\p{Surrogate}]/u.test(name) || "can't hold a NUL character or half of a surrogate pair",
    { jsonSchema: {} }
  )
)

const Finite = Schema.Number.pipe(Schema.finite())

// ----------------------------------------------------------------------------
// actions and observations
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category actions
 */
export const ListTools = Schema.Struct({
  type: Schema.Literal("list_tools"),
  metadata: Schema.optionalWith(Anything, exact)
})

/**
 * @since 0.1.0
 * @category actions
 */
export const CallTool = Schema.Struct({
  type: Schema.Literal("call_tool"),
  tool_name: Schema.String,
  arguments: Schema.optionalWith(Anything, exact),
  metadata: Schema.optionalWith(Anything, exact)
})

/**
 * What `step` takes.
 *
 * @since 0.1.0
 * @category actions
 */
export const Action = Schema.Union(ListTools, CallTool)

/**
 * @since 0.1.0
 * @category actions
 */
export type Action = typeof Action.Type

/**
 * The arguments of an episode's `reset` that mean something. What else a request holds is in the index signature.
 *
 * @since 0.1.0
 * @category actions
 */
export const ResetArguments = Schema.Struct(
  {
    /** A task in the `task.json` format, as an object or as its JSON text. */
    task: Schema.optionalWith(Schema.NullOr(Schema.Union(Schema.String, Anything)), exact),
    /** Taken and not used: an episode has no randomness of its own. */
    seed: Schema.optionalWith(Schema.NullOr(Schema.NonNegativeInt), exact),
    /** A name of the client's own for the episode; an empty one is none. */
    episode_id: Schema.optionalWith(Schema.NullOr(EpisodeName), exact)
  },
  { key: Schema.String, value: Schema.Unknown }
)

/**
 * @since 0.1.0
 * @category actions
 */
export type ResetArguments = typeof ResetArguments.Type

/**
 * A tool, as `list_tools` shows it.
 *
 * @since 0.1.0
 * @category observations
 */
export const Tool = Schema.Struct({
  name: Schema.String,
  description: Schema.String,
  input_schema: Anything
})

/**
 * What a tool gave. MCP's result in snake case, as OpenEnv writes it.
 *
 * @since 0.1.0
 * @category observations
 */
export const CallToolResult = Schema.Struct({
  content: Schema.Array(Schema.Struct({ type: Schema.Literal("text"), text: Schema.String })),
  structured_content: Schema.Struct({ result: Schema.String }),
  meta: Schema.NullOr(Anything),
  data: Schema.String,
  is_error: Schema.Boolean
})

/**
 * @since 0.1.0
 * @category observations
 */
export type CallToolResult = typeof CallToolResult.Type

/**
 * Why a tool wasn't called.
 *
 * @since 0.1.0
 * @category observations
 */
export const ToolError = Schema.Struct({
  error_type: Schema.Literal("execution_error", "invalid_args", "transport_error", "tool_not_found", "timeout"),
  message: Schema.String
})

/**
 * @since 0.1.0
 * @category observations
 */
export type ToolError = typeof ToolError.Type

/**
 * The sandboxes of an episode that has ended, and the proof that each is gone.
 *
 * @since 0.1.0
 * @category observations
 */
export const CleanupRecord = Schema.Struct({
  sandbox_id: Schema.String,
  role: Schema.Literal("policy", "verifier"),
  delete_attempts: Schema.NonNegativeInt,
  /** Null where the proof failed. */
  confirmed_absent_at: Schema.NullOr(Schema.String)
})

/**
 * @since 0.1.0
 * @category observations
 */
export type CleanupRecord = typeof CleanupRecord.Type

/**
 * Beside every observation. `graded` says whether the reward is the episode's score.
 *
 * @since 0.1.0
 * @category observations
 */
export const EpisodeMetadata = Schema.Struct({
  status: Schema.Literal("idle", "ready", "active", "finished"),
  graded: Schema.Boolean,
  episode_id: Schema.optionalWith(Schema.String, exact),
  task_id: Schema.optionalWith(Schema.String, exact),
  /** Until the policy has to submit. */
  window_seconds_left: Schema.optionalWith(Schema.NonNegative, exact),
  /** Until the whole episode, its verification and its cleanup have to be over. */
  deadline_seconds_left: Schema.optionalWith(Schema.NonNegative, exact),
  /** Why the score is what it is. */
  reason: Schema.optionalWith(Schema.String, exact),
  detail: Schema.optionalWith(Schema.String, exact),
  /** The episode's id in receipts and sandbox labels. */
  receipt_id: Schema.optionalWith(Schema.String, exact),
  cleanup: Schema.optionalWith(Schema.Array(CleanupRecord), exact),
  total_seconds: Schema.optionalWith(Schema.NonNegative, exact),
  sandbox_seconds: Schema.optionalWith(Schema.NonNegative, exact),
  estimated_cost_usd: Schema.optionalWith(Schema.NonNegative, exact)
})

/**
 * @since 0.1.0
 * @category observations
 */
export type EpisodeMetadata = typeof EpisodeMetadata.Type

/**
 * The answer to `reset`.
 *
 * @since 0.1.0
 * @category observations
 */
export const ResetObservation = Schema.Struct({
  prompt: Schema.String,
  metadata: EpisodeMetadata
})

/**
 * The answer to `step`: to `list_tools` the first, to `call_tool` the second.
 *
 * @since 0.1.0
 * @category observations
 */
export const StepObservation = Schema.Union(
  Schema.Struct({ tools: Schema.Array(Tool), metadata: EpisodeMetadata }),
  Schema.Struct({
    tool_name: Schema.String,
    result: Schema.NullOr(CallToolResult),
    error: Schema.NullOr(ToolError),
    metadata: EpisodeMetadata
  })
)

/**
 * The envelope of an observation. Metadata stands in it, and in the observation once more: clients differ in where they
 * look.
 *
 * @since 0.1.0
 * @category observations
 */
export const StepResult = Schema.Struct({
  observation: Anything,
  reward: Schema.NullOr(Finite),
  done: Schema.Boolean,
  metadata: Schema.optionalWith(Schema.NullOr(Anything), exact)
})

/**
 * @since 0.1.0
 * @category observations
 */
export type StepResult = typeof StepResult.Type

/**
 * What this server says of an episode. It holds nothing of the task's held-out half.
 *
 * @since 0.1.0
 * @category observations
 */
export const EpisodeState = Schema.Struct({
  episode_id: Schema.NullOr(Schema.String),
  step_count: Schema.NonNegativeInt,
  status: Schema.Literal("idle", "active", "finished", "aborted"),
  graded: Schema.Boolean,
  /** The score. Null while there is none, and for good where the infrastructure failed. */
  reward: Schema.NullOr(Schema.Literal(0, 1)),
  reason: Schema.NullOr(Schema.String),
  /** Why there is no score and won't be one. */
  error: Schema.NullOr(Schema.Struct({ error: Schema.String, message: Schema.String })),
  task_id: Schema.NullOr(Schema.String),
  window_seconds_left: Schema.NullOr(Schema.NonNegative),
  deadline_seconds_left: Schema.NullOr(Schema.NonNegative),
  sandboxes: Schema.Array(Schema.Struct({
    role: CleanupRecord.fields.role,
    state: Schema.Literal("running", "confirmed-absent", "not-proved-gone")
  })),
  cleanup: Schema.Array(CleanupRecord)
})

/**
 * @since 0.1.0
 * @category observations
 */
export type EpisodeState = typeof EpisodeState.Type

/**
 * The state of any environment, as a client takes it.
 *
 * @since 0.1.0
 * @category observations
 */
export const State = Schema.Struct(
  {
    episode_id: Schema.optionalWith(Schema.NullOr(Schema.String), exact),
    step_count: Schema.optionalWith(Schema.NonNegativeInt, { exact: true, default: () => 0 })
  },
  { key: Schema.String, value: Schema.Unknown }
)

/**
 * @since 0.1.0
 * @category observations
 */
export type State = typeof State.Type

// ----------------------------------------------------------------------------
// errors
// ----------------------------------------------------------------------------

/**
 * The codes of error frames.
 *
 * - `INVALID_JSON`, `UNKNOWN_TYPE`, `VALIDATION_ERROR`: the frame was at fault; nothing was done
 * - `EXECUTION_ERROR`: out of order, such as a step before a reset; nothing was done
 * - `INFRASTRUCTURE_ERROR`: the episode has no score and won't have one; `error` names the failure. Our own code: upstream
 *   has no word for it
 * - `CAPACITY_REACHED`, `SESSION_ERROR`: there is no session, and the socket is closed
 * - `FACTORY_ERROR`: upstream's word for an environment that can't be made; never said here
 *
 * @since 0.1.0
 * @category errors
 */
export const ErrorCode = Schema.Literal(
  "INVALID_JSON",
  "UNKNOWN_TYPE",
  "VALIDATION_ERROR",
  "EXECUTION_ERROR",
  "INFRASTRUCTURE_ERROR",
  "CAPACITY_REACHED",
  "FACTORY_ERROR",
  "SESSION_ERROR"
)

/**
 * @since 0.1.0
 * @category errors
 */
export type ErrorCode = typeof ErrorCode.Type

/**
 * One thing that is wrong with a request, in the form of pydantic.
 *
 * @since 0.1.0
 * @category errors
 */
export const Issue = Schema.Struct({
  type: Schema.String,
  loc: Schema.Array(Schema.Union(Schema.String, Schema.Number)),
  msg: Schema.String
})

/**
 * @since 0.1.0
 * @category errors
 */
export type Issue = typeof Issue.Type

/**
 * @since 0.1.0
 * @category errors
 */
export const ErrorData = Schema.Struct({
  message: Schema.String,
  /** A string, since other servers have codes of their own. */
  code: Schema.String,
  errors: Schema.optionalWith(Schema.Array(Schema.Unknown), exact),
  active_sessions: Schema.optionalWith(Schema.Number, exact),
  max_sessions: Schema.optionalWith(Schema.Number, exact),
  /** With `INFRASTRUCTURE_ERROR`: the tag of the error, such as `SandboxLost`, and where it happened. */
  error: Schema.optionalWith(Schema.String, exact),
  phase: Schema.optionalWith(Schema.String, exact)
})

/**
 * @since 0.1.0
 * @category errors
 */
export interface ErrorData extends Schema.Schema.Type<typeof ErrorData> {}

// ----------------------------------------------------------------------------
// MCP
// ----------------------------------------------------------------------------

/**
 * Every reply has it once more, so it isn't a long one.
 *
 * @since 0.1.0
 * @category mcp
 */
export const RpcId = Schema.NullOr(Schema.Union(Schema.String.pipe(Schema.maxLength(1024)), Schema.Int))

/**
 * @since 0.1.0
 * @category mcp
 */
export type RpcId = typeof RpcId.Type

/**
 * @since 0.1.0
 * @category mcp
 */
export const RpcRequest = Schema.Struct({
  jsonrpc: Schema.Literal("2.0"),
  method: Schema.String,
  params: Schema.optionalWith(Anything, exact),
  id: Schema.optionalWith(RpcId, exact)
})

/**
 * @since 0.1.0
 * @category mcp
 */
export type RpcRequest = typeof RpcRequest.Type

/**
 * JSON-RPC's codes, and what they stand for here.
 *
 * @since 0.1.0
 * @category mcp
 */
export const rpcCodes = {
  parseError: -32700,
  /** Also: this session can't be closed now. */
  invalidRequest: -32600,
  methodNotFound: -32601,
  /** Also: an unknown session, or an unknown tool. */
  invalidParams: -32602,
  /** Out of order, such as a tool call before a reset. */
  internalError: -32603,
  /** Capacity, with both counts; or the infrastructure, with the error's tag. */
  serverError: -32000
} as const

/**
 * @since 0.1.0
 * @category mcp
 */
export const RpcReply = Schema.Union(
  // First, because anything is a result, also none.
  Schema.Struct({
    jsonrpc: Schema.Literal("2.0"),
    id: RpcId,
    error: Schema.Struct({
      code: Schema.Int,
      message: Schema.String,
      data: Schema.optionalWith(Schema.Unknown, exact)
    })
  }),
  Schema.Struct({ jsonrpc: Schema.Literal("2.0"), id: RpcId, result: Schema.Unknown })
)

/**
 * @since 0.1.0
 * @category mcp
 */
export type RpcReply = typeof RpcReply.Type

/**
 * @since 0.1.0
 * @category mcp
 */
export const ToolsCallParams = Schema.Struct({
  name: Schema.String,
  arguments: Schema.optionalWith(Schema.NullOr(Anything), exact),
  session_id: Schema.optionalWith(Schema.String, exact)
})

/**
 * @since 0.1.0
 * @category mcp
 */
export const SessionParams = Schema.Struct({ session_id: Schema.String })

/**
 * A tool, as MCP shows it.
 *
 * @since 0.1.0
 * @category mcp
 */
export const McpTool = Schema.Struct({
  name: Schema.String,
  description: Schema.String,
  inputSchema: Anything
})

/**
 * @since 0.1.0
 * @category mcp
 */
export const ToolsListResult = Schema.Struct({ tools: Schema.Array(McpTool) })

/**
 * @since 0.1.0
 * @category mcp
 */
export const SessionCreateResult = Schema.Struct({ session_id: Schema.String })

/**
 * @since 0.1.0
 * @category mcp
 */
export const SessionCloseResult = Schema.Struct({
  session_id: Schema.String,
  closed: Schema.Boolean,
  /** A socket is attached: the session is closed when it goes. */
  closing: Schema.optionalWith(Schema.Boolean, exact)
})

// ----------------------------------------------------------------------------
// frames of /ws
// ----------------------------------------------------------------------------

/**
 * What the arguments are is the environment's to say.
 *
 * @since 0.1.0
 * @category frames
 */
export const ResetFrame = Schema.Struct({
  type: Schema.Literal("reset"),
  data: Schema.optionalWith(Anything, exact)
})

/**
 * @since 0.1.0
 * @category frames
 */
export const StepFrame = Schema.Struct({ type: Schema.Literal("step"), data: Action })

/**
 * @since 0.1.0
 * @category frames
 */
export const StateFrame = Schema.Struct({ type: Schema.Literal("state") })

/**
 * The payload is a JSON-RPC request; what is wrong with one is said in JSON-RPC.
 *
 * @since 0.1.0
 * @category frames
 */
export const McpFrame = Schema.Struct({ type: Schema.Literal("mcp"), data: Anything })

/**
 * @since 0.1.0
 * @category frames
 */
export const CloseFrame = Schema.Struct({ type: Schema.Literal("close") })

/**
 * What a client sends. Each but `close` has exactly one reply, and the replies come in the order of the requests.
 *
 * @since 0.1.0
 * @category frames
 */
export const ClientFrame = Schema.Union(ResetFrame, StepFrame, StateFrame, McpFrame, CloseFrame)

/**
 * @since 0.1.0
 * @category frames
 */
export type ClientFrame = typeof ClientFrame.Type

/**
 * @since 0.1.0
 * @category frames
 */
export const ObservationFrame = Schema.Struct({ type: Schema.Literal("observation"), data: StepResult })

/**
 * @since 0.1.0
 * @category frames
 */
export const StateReplyFrame = Schema.Struct({ type: Schema.Literal("state"), data: State })

/**
 * @since 0.1.0
 * @category frames
 */
export const McpReplyFrame = Schema.Struct({ type: Schema.Literal("mcp"), data: RpcReply })

/**
 * @since 0.1.0
 * @category frames
 */
export const ErrorFrame = Schema.Struct({ type: Schema.Literal("error"), data: ErrorData })

/**
 * What a server sends.
 *
 * @since 0.1.0
 * @category frames
 */
export const ServerFrame = Schema.Union(ObservationFrame, StateReplyFrame, McpReplyFrame, ErrorFrame)

/**
 * @since 0.1.0
 * @category frames
 */
export type ServerFrame = typeof ServerFrame.Type

// ----------------------------------------------------------------------------
// HTTP
// ----------------------------------------------------------------------------

/**
 * `GET /health`. Degraded: a sandbox isn't proved gone.
 *
 * @since 0.1.0
 * @category http
 */
export const Health = Schema.Struct({ status: Schema.Literal("healthy", "unhealthy", "degraded") })

/**
 * `GET /metadata`.
 *
 * @since 0.1.0
 * @category http
 */
export const Metadata = Schema.Struct({
  name: Schema.String,
  description: Schema.String,
  readme_content: Schema.NullOr(Schema.String),
  version: Schema.NullOr(Schema.String),
  author: Schema.NullOr(Schema.String),
  documentation_url: Schema.NullOr(Schema.String)
})

/**
 * `GET /schema`.
 *
 * @since 0.1.0
 * @category http
 */
export const Schemas = Schema.Struct({
  action: Anything,
  observation: Anything,
  state: Anything,
  reset_observation: Schema.optionalWith(Anything, exact)
})

/**
 * `POST /step`.
 *
 * @since 0.1.0
 * @category http
 */
export const StepRequest = Schema.Struct(
  {
    action: Action,
    timeout_s: Schema.optionalWith(Schema.NullOr(Schema.Positive), exact),
    request_id: Schema.optionalWith(Schema.NullOr(Schema.String.pipe(Schema.maxLength(255))), exact)
  },
  { key: Schema.String, value: Schema.Unknown }
)

/**
 * An HTTP error, in the form of FastAPI.
 *
 * @since 0.1.0
 * @category http
 */
export const Problem = Schema.Struct({ detail: Schema.Union(Schema.String, Schema.Array(Issue)) })

// ----------------------------------------------------------------------------
// reading and writing
// ----------------------------------------------------------------------------

/**
 * How deep a frame may be nested: more than any of ours, and little enough for everything that recurses.
 *
 * @since 0.1.0
 * @category limits
 */
export const maxDepth: number = ForeignJson.maxDepth

/**
 * The largest reply of a server, in bytes, whatever comes out of a sandbox. Only what a client itself has sent, and is
 * given back, can make one larger. Our clients take frames of twice that.
 *
 * @since 0.1.0
 * @category limits
 */
export const maxReplyBytes = 8 * 1024 * 1024

/**
 * How many values a request may hold: more than any of ours, and few enough to look at each of them. A task that is given
 * as text is one.
 *
 * @since 0.1.0
 * @category limits
 */
export const maxValues: number = ForeignJson.maxValues

/**
 * Why a text wasn't read.
 *
 * @since 0.1.0
 * @category reading
 */
export type Unread = ForeignJson.Unread

/**
 * The same in words, to be put behind what was to be read.
 *
 * @since 0.1.0
 * @category reading
 */
export const unread: Readonly<Record<Unread, string>> = ForeignJson.unread

/**
 * Reads JSON text that a stranger sent. None for what isn't JSON, is nested deeper than {@link maxDepth}, holds more than
 * so many values, or has a key `__proto__`.
 *
 * @since 0.1.0
 * @category reading
 */
export const readJson: (text: string, limit?: number) => Either.Either<unknown, Unread> = ForeignJson.read

/**
 * A text that quotes what was given, which can be as long as a frame. Half of a surrogate pair, given or left by the cut,
 * would be an error to a client that prints it.
 *
 * @since 0.1.0
 * @category reading
 */
export const shortened: (text: string, length?: number) => string = ForeignJson.shortened

/**
 * What is wrong with a value, one entry each.
 *
 * @since 0.1.0
 * @category reading
 */
export const issuesOf = (error: ParseResult.ParseIssue): ReadonlyArray<Issue> =>
  Arr.map(ForeignJson.issuesOf(error), ({ _tag, message, path }) => ({
    type: _tag === "Missing" ? "missing" : _tag === "Unexpected" ? "extra_forbidden" : "value_error",
    loc: path.map((part) => typeof part === "number" ? part : shortened(String(part))),
    msg: message
  }))

/**
 * One issue, in a sentence.
 *
 * @since 0.1.0
 * @category reading
 */
export const sentence = ({ loc, msg }: Issue): string => loc.length === 0 ? msg : `${loc.join(".")}: ${msg}`

/**
 * A message with the first of the issues behind it. Clients of upstream show nothing else of an error.
 *
 * @since 0.1.0
 * @category reading
 */
export const withFirst = (message: string, issues: ReadonlyArray<Issue>): string => {
  const [first] = issues
  // Where a value can be of several kinds, there is an issue for each of them.
  const more = new Set(issues.map(({ loc }) => loc.join("."))).size - 1
  return first === undefined
    ? message
    // One line, whatever it quotes.
    : `${message}: ${shortened(sentence(first).replace(/\p{Cc}+/gu, " "))}${more === 0 ? "" : ` (and ${more} more)`}`
}

/**
 * A strict decoder: a field that isn't known is an issue. Of a large value only the first issue is looked for.
 *
 * @since 0.1.0
 * @category reading
 */
export const strict = <A, I>(
  schema: Schema.Schema<A, I>
): (input: unknown) => Either.Either<A, ReadonlyArray<Issue>> => {
  const decode = ParseResult.decodeUnknownEither(schema, { onExcessProperty: "error" })
  return (input) =>
    Either.mapLeft(
      Either.orElse(decode(input), (error) =>
        ForeignJson.isSmall(input) ? decode(input, { errors: "all" }) : Either.left(error)),
      issuesOf
    )
}

/**
 * Writes what this program made itself, so it can't fail.
 *
 * @since 0.1.0
 * @category writing
 */
export const write = <A, I>(schema: Schema.Schema<A, I>): (value: A) => string =>
  Schema.encodeSync(Schema.parseJson(schema))

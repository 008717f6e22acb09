/**
 * The part of MCP that OpenEnv speaks, over JSON-RPC: tools and sessions, and nothing else.
 *
 * A tool is only ever called in a session that exists: a call without one is refused, and never allocates.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Option from "effect/Option"
import * as Predicate from "effect/Predicate"
import * as Schema from "effect/Schema"
import type { EnvironmentError } from "./Environment.ts"
import type { CapacityReached, Held, SessionRefused, Sessions } from "./Sessions.ts"
import * as Wire from "./Wire.ts"

const reply = (id: Wire.RpcId, result: unknown): Wire.RpcReply => ({ jsonrpc: "2.0", id, result })

/**
 * @since 0.1.0
 * @category replies
 */
export const failure = (
  id: Wire.RpcId,
  code: keyof typeof Wire.rpcCodes,
  message: string,
  data?: Readonly<Record<string, unknown>>
): Wire.RpcReply => ({
  jsonrpc: "2.0",
  id,
  error: { code: Wire.rpcCodes[code], message, ...(data === undefined ? {} : { data }) }
})

const request = Wire.strict(Wire.RpcRequest)
const toolsCall = Wire.strict(Wire.ToolsCallParams)
const sessionParams = Wire.strict(Wire.SessionParams)

const isId = Schema.is(Wire.RpcId)

// The id of a request that is otherwise no request, for the client to find it by.
const idOf = (value: unknown): Wire.RpcId => Predicate.hasProperty(value, "id") && isId(value.id) ? value.id : null

const toolsList = ({ tools }: Sessions): typeof Wire.ToolsListResult.Type => ({
  tools: tools.map(({ description, input_schema, name }) => ({ name, description, inputSchema: input_schema }))
})

/**
 * @since 0.1.0
 * @category replies
 */
export const explain = (
  id: Wire.RpcId,
  error: CapacityReached | SessionRefused | EnvironmentError
): Wire.RpcReply => {
  switch (error._tag) {
    case "CapacityReached":
      return failure(id, "serverError", error.message, { active_sessions: error.active, max_sessions: error.max })
    case "SessionRefused":
      return failure(
        id,
        error.reason === "unknown" ? "invalidParams" : error.reason === "stopping" ? "serverError" : "invalidRequest",
        error.message
      )
    case "RequestRefused":
      return failure(id, "internalError", error.message)
    default:
      return failure(id, "serverError", error.message, {
        code: "INFRASTRUCTURE_ERROR",
        error: error._tag,
        ...(error.phase === undefined ? {} : { phase: error.phase })
      })
  }
}

/**
 * Answers one JSON-RPC request. `socket` is the session of the socket that it came by, if it came by one.
 *
 * @since 0.1.0
 * @category handlers
 */
export const handle = (
  sessions: Sessions,
  socket: Option.Option<Held>,
  input: Either.Either<unknown, Wire.Unread>
): Effect.Effect<Wire.RpcReply> => {
  if (Either.isLeft(input)) {
    const code = input.left === "syntax" ? "parseError" : "invalidRequest"
    return Effect.succeed(failure(null, code, `the request ${Wire.unread[input.left]}`))
  }
  const decoded = request(input.right)
  if (Either.isLeft(decoded)) {
    const errors = decoded.left
    const message = Wire.withFirst("not a JSON-RPC 2.0 request", errors)
    return Effect.succeed(failure(idOf(input.right), "invalidRequest", message, { errors }))
  }
  const { id = null, method, params = {} } = decoded.right

  const invalid = (message: string, errors: ReadonlyArray<Wire.Issue>) =>
    Effect.succeed(failure(id, "invalidParams", message, { errors }))

  switch (method) {
    case "tools/list":
      return Effect.succeed(reply(id, toolsList(sessions)))
    case "tools/call": {
      const call = toolsCall(params)
      if (Either.isLeft(call)) {
        return invalid(Wire.withFirst("tools/call takes name, arguments and session_id", call.left), call.left)
      }
      const { arguments: args, name, session_id } = call.right
      const session = session_id === undefined
        ? Option.map(socket, Effect.succeed)
        : Option.some(sessions.find(session_id))
      if (Option.isNone(session)) {
        return invalid("session_id is missing; openenv/session/create gives one", [
          { type: "missing", loc: ["session_id"], msg: "is missing" }
        ])
      }
      return session.value.pipe(
        Effect.flatMap((held) => held.inUse(held.environment.call(name, args ?? {}))),
        Effect.match({
          onSuccess: Either.match({
            onLeft: ({ error_type, message }) => failure(id, "invalidParams", message, { error_type }),
            onRight: (result) => reply(id, result)
          }),
          onFailure: (error) => explain(id, error)
        })
      )
    }
    case "openenv/session/create":
      return Effect.match(Option.match(socket, { onNone: () => sessions.create, onSome: Effect.succeed }), {
        onSuccess: (held) => reply(id, { session_id: held.id }),
        onFailure: (error) => explain(id, error)
      })
    case "openenv/session/close": {
      const given = sessionParams(params)
      if (Either.isLeft(given)) {
        return invalid(Wire.withFirst("openenv/session/close takes session_id", given.left), given.left)
      }
      const { session_id } = given.right
      return Effect.match(sessions.close(session_id, Option.map(socket, (held) => held.id)), {
        onSuccess: (closed) => reply(id, closed ? { session_id, closed } : { session_id, closed, closing: true }),
        onFailure: (error) => explain(id, error)
      })
    }
    default:
      return Effect.succeed(failure(id, "methodNotFound", "no such method"))
  }
}

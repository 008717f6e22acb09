/**
 * One WebSocket: the session behind it, one request at a time, one reply to each, and an end.
 *
 * @since 0.1.0
 */
import * as Arr from "effect/Array"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Option from "effect/Option"
import * as Predicate from "effect/Predicate"
import type * as Scope from "effect/Scope"
import type { EnvironmentError } from "./Environment.ts"
import * as Mcp from "./Mcp.ts"
import type { CapacityReached, Held, SessionRefused, Sessions } from "./Sessions.ts"
import type { Peer } from "./Transport.ts"
import { PeerGone } from "./Transport.ts"
import * as Wire from "./Wire.ts"

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  readonly sessions: Sessions
  /** How often a peer is asked for a sign of life. */
  readonly pingInterval: Duration.Duration
  /** How long it may take to give one. */
  readonly pingTimeout: Duration.Duration
}

// ----------------------------------------------------------------------------
// replies
// ----------------------------------------------------------------------------

const error = (code: Wire.ErrorCode, message: string, more: Partial<Wire.ErrorData> = {}): Wire.ServerFrame => ({
  type: "error",
  data: { message, code, ...more }
})

const ofEnvironment = (failure: EnvironmentError): Wire.ServerFrame =>
  failure._tag === "RequestRefused"
    ? error(failure.code, failure.message, failure.issues.length === 0 ? {} : { errors: failure.issues })
    : error("INFRASTRUCTURE_ERROR", failure.message, {
      error: failure._tag,
      ...(failure.phase === undefined ? {} : { phase: failure.phase })
    })

const ofSession = (failure: CapacityReached | SessionRefused): Wire.ServerFrame =>
  failure._tag === "CapacityReached"
    ? error("CAPACITY_REACHED", failure.message, { active_sessions: failure.active, max_sessions: failure.max })
    : error("SESSION_ERROR", failure.message)

const writeFrame = Wire.write(Wire.ServerFrame)
const writeRpc = Wire.write(Wire.RpcReply)

// ----------------------------------------------------------------------------
// requests
// ----------------------------------------------------------------------------

const frames = {
  reset: Wire.strict(Wire.ResetFrame),
  step: Wire.strict(Wire.StepFrame),
  state: Wire.strict(Wire.StateFrame),
  mcp: Wire.strict(Wire.McpFrame),
  close: Wire.strict(Wire.CloseFrame)
}

const isFrameType = (type: unknown): type is keyof typeof frames =>
  Predicate.isString(type) && Object.hasOwn(frames, type)

/** A frame, or the reply to what isn't one. */
const readFrame = (message: string): Either.Either<Wire.ClientFrame, Wire.ServerFrame> => {
  const json = Wire.readJson(message)
  if (Either.isLeft(json)) {
    const code = json.left === "syntax" ? "INVALID_JSON" : "VALIDATION_ERROR"
    return Either.left(error(code, `the frame ${Wire.unread[json.left]}`))
  }
  const frame = json.right
  if (!Predicate.isRecord(frame)) {
    return Either.left(error("VALIDATION_ERROR", "the frame is not an object"))
  }
  if (!isFrameType(frame["type"])) {
    return Either.left(error("UNKNOWN_TYPE", `the type of a frame is ${Object.keys(frames).join(", ")}`))
  }
  return Either.mapLeft<ReadonlyArray<Wire.Issue>, Wire.ServerFrame>(
    (errors) => error("VALIDATION_ERROR", Wire.withFirst("the frame is not valid", errors), { errors })
  )<Wire.ClientFrame>(frames[frame["type"]](frame))
}

const observation = (data: Wire.StepResult): Wire.ServerFrame => ({ type: "observation", data })

/** The reply to a message; none to a `close`. */
const answer = (
  sessions: Sessions,
  held: Held,
  message: string | Uint8Array
): Effect.Effect<Option.Option<Wire.ServerFrame>> => {
  if (typeof message !== "string") {
    return Effect.succeedSome(error("INVALID_JSON", "a binary message; frames are JSON text"))
  }
  const frame = readFrame(message)
  if (Either.isLeft(frame)) {
    return Effect.succeedSome(frame.left)
  }
  const { environment } = held
  const framed = (request: Effect.Effect<Wire.StepResult, EnvironmentError>) =>
    Effect.asSome(Effect.match(request, { onSuccess: observation, onFailure: ofEnvironment }))
  switch (frame.right.type) {
    case "reset":
      return framed(environment.reset(frame.right.data ?? {}, message))
    case "step":
      return framed(environment.step(frame.right.data))
    case "state":
      return Effect.asSome(Effect.map(environment.state, (data): Wire.ServerFrame => ({ type: "state", data })))
    case "mcp":
      return Mcp.handle(sessions, Option.some(held), Either.right(frame.right.data)).pipe(
        Effect.map((data): Wire.ServerFrame => ({ type: "mcp", data })),
        Effect.asSome
      )
    case "close":
      return Effect.succeedNone
  }
}

// ----------------------------------------------------------------------------
// sockets
// ----------------------------------------------------------------------------

interface Protocol {
  /** The reply to a message; none ends the socket. */
  readonly answer: (held: Held, message: string | Uint8Array) => Effect.Effect<Option.Option<string>>
  /** What is said instead of the first reply where there is no session. */
  readonly refusal: (failure: CapacityReached | SessionRefused) => string
  /** What is said when the session ends before the socket does. */
  readonly over: string
  /** What is said when a request runs into a bug of ours. */
  readonly bug: string
}

const frameProtocol = (sessions: Sessions): Protocol => ({
  answer: (held, message) => Effect.map(answer(sessions, held, message), Option.map(writeFrame)),
  refusal: (failure) => writeFrame(ofSession(failure)),
  over: writeFrame(
    error("SESSION_ERROR", "the session has ended: it was idle for too long, was closed, or the server is stopping")
  ),
  bug: writeFrame(error("SESSION_ERROR", "the server has a bug; the session is over"))
})

const rpcProtocol = (sessions: Sessions): Protocol => ({
  answer: (held, message) =>
    Mcp.handle(
      sessions,
      Option.some(held),
      typeof message === "string" ? Wire.readJson(message) : Either.left("syntax")
    ).pipe(Effect.map(writeRpc), Effect.asSome),
  refusal: (failure) => writeRpc(Mcp.explain(null, failure)),
  over: writeRpc(Mcp.failure(null, "serverError", "the session has ended")),
  bug: writeRpc(Mcp.failure(null, "serverError", "the server has a bug; the session is over"))
})

// One race of them all: a pair of pairs would be three more fibers for every socket, as long as it is open.
const firstOf = <A, E>(effects: ReadonlyArray<Effect.Effect<A, E>>): Effect.Effect<A, E> =>
  Effect.flatten(Effect.raceAll(Arr.map(effects, Effect.exit)))

const serve = (
  options: Options,
  protocol: Protocol,
  session: Effect.Effect<Held, CapacityReached | SessionRefused, Scope.Scope>
) =>
(peer: Peer): Effect.Effect<void> => {
  const exchange = (held: Held): Effect.Effect<boolean, PeerGone> =>
    Effect.flatMap(peer.receive, (message) =>
      held.inUse(protocol.answer(held, message)).pipe(
        Effect.flatMap(Option.match({
          onNone: () => Effect.succeed(false),
          onSome: (reply) => Effect.as(peer.send(reply), true)
        }))
      ))
  const talk = (held: Held): Effect.Effect<void, PeerGone> =>
    Effect.flatMap(exchange(held), (goesOn) => goesOn ? talk(held) : Effect.void)
  // A peer that is cut off says nothing, and TCP may not tell for hours: it is asked.
  const deaf = peer.ping.pipe(
    Effect.timeoutFail({ duration: options.pingTimeout, onTimeout: () => new PeerGone() }),
    Effect.delay(options.pingInterval),
    Effect.forever
  )
  // A peer that doesn't read isn't waited for, now that nobody asks for its sign of life.
  const sayAtLast = (text: string) =>
    Effect.asVoid(Effect.timeoutOption(Effect.ignore(peer.send(text)), options.pingTimeout))
  return session.pipe(
    Effect.matchEffect({
      onFailure: (failure) => sayAtLast(protocol.refusal(failure)),
      onSuccess: (held) =>
        firstOf([
          talk(held),
          // A client that goes away in the middle of a request interrupts it, and so ends its episode.
          peer.gone,
          deaf,
          Effect.zipRight(held.over, peer.send(protocol.over))
        ])
    }),
    Effect.scoped,
    Effect.catchAll(() => Effect.void),
    Effect.catchAllDefect((defect) =>
      Effect.logError("a bug in the OpenEnv server; the session is ended", defect).pipe(
        Effect.zipRight(sayAtLast(protocol.bug))
      )
    )
  )
}

/**
 * A `/ws` socket: with the id of a session, that one; else one of its own.
 *
 * @since 0.1.0
 * @category handlers
 */
export const frameSocket = (options: Options, sessionId: Option.Option<string>): (peer: Peer) => Effect.Effect<void> =>
  serve(
    options,
    frameProtocol(options.sessions),
    Option.match(sessionId, { onNone: () => options.sessions.own, onSome: options.sessions.attach })
  )

/**
 * A `/mcp` socket: raw JSON-RPC, in a session of its own.
 *
 * @since 0.1.0
 * @category handlers
 */
export const rpcSocket = (options: Options): (peer: Peer) => Effect.Effect<void> =>
  serve(options, rpcProtocol(options.sessions), options.sessions.own)

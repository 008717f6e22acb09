/**
 * The client side of the wire: one WebSocket, one episode after another.
 *
 * OpenEnv has no request ids, so a reply belongs to a request by its order alone. A client that stopped to wait for one reply
 * would take it for the next. So one request is in flight at a time, and a connection on which a request had no proper end
 * is never used again: it isn't reopened, since that would be another session, and nothing is sent twice.
 *
 * @since 0.1.0
 */
import * as Socket from "@effect/platform/Socket"
import * as Url from "@effect/platform/Url"
import * as Cause from "effect/Cause"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Mailbox from "effect/Mailbox"
import * as Option from "effect/Option"
import * as Predicate from "effect/Predicate"
import * as Ref from "effect/Ref"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Wire from "./Wire.ts"

// ----------------------------------------------------------------------------
// errors
// ----------------------------------------------------------------------------

/**
 * What a client was doing.
 *
 * @since 0.1.0
 * @category models
 */
export const Request = Schema.Literal("connect", "reset", "step", "state", "mcp")

/**
 * @since 0.1.0
 * @category models
 */
export type Request = typeof Request.Type

/**
 * There is no connection, or there is none any more. What a request under way did isn't known.
 *
 * @since 0.1.0
 * @category errors
 */
export class ConnectionLost extends Schema.TaggedError<ConnectionLost>("episode/OpenEnv/ConnectionLost")(
  "ConnectionLost",
  {
    request: Request,
    /** Only of one that is lost it isn't known what a request did: otherwise there has never been a connection. */
    reason: Schema.Literal("invalid-url", "unreachable", "refused", "lost"),
    /** The HTTP status of a server that answered the handshake with a refusal, where it is known. */
    status: Schema.optionalWith(Schema.Int, { exact: true }),
    /** What is known of why, such as the operating system's code. Nothing of what was sent or of a URL but its host. */
    detail: Schema.optionalWith(Schema.String, { exact: true })
  }
) {
  override get message(): string {
    const what = {
      "invalid-url": "the URL of the environment can't be used",
      unreachable: "couldn't connect to the environment",
      refused: "the server of the environment refused the connection",
      lost: "the connection to the environment was lost"
    }[this.reason]
    const status = this.status === undefined ? "" : `, HTTP ${this.status}`
    return `${what} (${this.request}${status})` + (this.detail === undefined ? "" : `: ${this.detail}`)
  }
}

/**
 * No reply in time, or nobody waited for it to the end. What the request did isn't known.
 *
 * @since 0.1.0
 * @category errors
 */
export class ReplyMissed extends Schema.TaggedError<ReplyMissed>("episode/OpenEnv/ReplyMissed")("ReplyMissed", {
  request: Request,
  reason: Schema.Literal("timeout", "interrupted")
}) {
  override get message(): string {
    return `the reply of the environment was not waited for (${this.request}, ${this.reason}); `
      + "the connection can't be used any more"
  }
}

/**
 * Not a frame, or not one that was due.
 *
 * @since 0.1.0
 * @category errors
 */
export class ProtocolViolation extends Schema.TaggedError<ProtocolViolation>("episode/OpenEnv/ProtocolViolation")(
  "ProtocolViolation",
  { request: Request, detail: Schema.String }
) {
  override get message(): string {
    return `the environment broke the protocol (${this.request}): ${this.detail}`
  }
}

/**
 * The environment answered with an error frame.
 *
 * @since 0.1.0
 * @category errors
 */
export class EnvironmentRefused extends Schema.TaggedError<EnvironmentRefused>("episode/OpenEnv/EnvironmentRefused")(
  "EnvironmentRefused",
  { request: Request, ...Wire.ErrorData.fields, message: Schema.String }
) {}

/**
 * @since 0.1.0
 * @category errors
 */
export type ClientError = ConnectionLost | ReplyMissed | ProtocolViolation | EnvironmentRefused

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * An observation, with its metadata from wherever the server put it.
 *
 * @since 0.1.0
 * @category models
 */
export interface Observed {
  readonly observation: Readonly<Record<string, unknown>>
  readonly reward: number | null
  readonly done: boolean
  readonly metadata: Readonly<Record<string, unknown>>
}

/**
 * A session on a server. After an error other than `EnvironmentRefused` every request gives that error; after a refusal
 * only when it ended the session.
 *
 * @since 0.1.0
 * @category models
 */
export interface Client {
  readonly reset: (args?: Readonly<Record<string, unknown>>) => Effect.Effect<Observed, ClientError>
  readonly step: (action: Readonly<Record<string, unknown>>) => Effect.Effect<Observed, ClientError>
  /** A step that calls a tool. */
  readonly callTool: (
    name: string,
    args?: Readonly<Record<string, unknown>>
  ) => Effect.Effect<Observed, ClientError>
  /** Servers of 0.3 say here what they leave out of an observation, such as the id of a sandbox. */
  readonly state: Effect.Effect<Wire.State, ClientError>
  /** One JSON-RPC request over the same socket. */
  readonly mcp: (
    method: string,
    params?: Readonly<Record<string, unknown>>
  ) => Effect.Effect<Wire.RpcReply, ClientError>
}

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /** The base URL, with `http`, `https`, `ws` or `wss` and no fragment; the session is opened at `/ws` under it. */
  readonly url: string
  /** A session that was made with `openenv/session/create`. Default: one that ends with the socket. */
  readonly sessionId?: string | undefined
  /** Default 10 seconds. */
  readonly connectTimeout?: Duration.DurationInput | undefined
  /** For each reply. Default 60 seconds. */
  readonly replyTimeout?: Duration.DurationInput | undefined
}

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

// What this client sends is made of what its user gives: an environment may know other actions than ours.
const Sent = Schema.parseJson(
  Schema.Struct({ type: Request, data: Schema.optionalWith(Schema.Unknown, { exact: true }) })
)

const encode = Schema.encode(Sent)

// Other environments show more than ours: a picture is a value for each of its points.
const maxValues = 500_000

const decodeFrame = Schema.decodeUnknownEither(Wire.ServerFrame)

const decode = (text: string) => Either.flatMap(Wire.readJson(text, maxValues), decodeFrame)

// What is kept of an error, for as long as somebody holds it.
const maxErrors = 20
const maxMessage = 4096

// After these a server closes the socket.
const isFinal = (code: string): boolean =>
  code === "CAPACITY_REACHED" || code === "FACTORY_ERROR" || code === "SESSION_ERROR"

const protocols: Readonly<Record<string, string>> = { "http:": "ws:", "https:": "wss:", "ws:": "ws:", "wss:": "wss:" }

// What is wrong with a URL is said without it: it may hold a password.
const invalidUrl = (detail: string) => new ConnectionLost({ request: "connect", reason: "invalid-url", detail })

const urlOf = ({ sessionId, url }: Options): Either.Either<URL, ConnectionLost> =>
  Either.flatMap(Either.mapLeft(Url.fromString(url), () => invalidUrl("it isn't an absolute URL")), (parsed) => {
    const protocol = protocols[parsed.protocol]
    if (protocol === undefined) {
      return Either.left(invalidUrl("it is none with http, https, ws or wss"))
    }
    if (url.includes("#")) {
      return Either.left(invalidUrl("it has a fragment"))
    }
    parsed.protocol = protocol
    parsed.pathname = `${parsed.pathname.replace(/\/+$/, "")}/ws`
    if (sessionId !== undefined) {
      const session = new URLSearchParams({ session_id: sessionId })
      parsed.search = parsed.search === "" ? `?${session}` : `${parsed.search}&${session}`
    }
    return Either.right(parsed)
  })

/** Why there is no connection, as far as it can be told to anybody. */
interface Ending {
  readonly status?: number
  readonly detail?: string
}

const overdue: Ending = { detail: "no answer in time" }

// Events hold the whole socket, with the headers it was opened with: of them nothing is told but this.
const textOf = (event: unknown): string => Predicate.hasProperty(event, "message") ? String(event.message) : ""

const codeOf = (error: unknown): string | undefined =>
  Predicate.hasProperty(error, "code") && /^[A-Z][A-Z0-9_]{1,60}$/.test(String(error.code))
    ? String(error.code)
    : undefined

// Node's `ws` has the status in a text alone, and browsers have none.
const endingOf = (error: Socket.SocketError): Ending => {
  switch (error.reason) {
    case "Close":
      return { detail: error.code === 1006 ? "it broke off" : `the server closed it with code ${error.code}` }
    case "OpenTimeout":
      return overdue
    default: {
      const [, status] = /^Unexpected server response: ([0-9]{3})$/.exec(textOf(error.cause)) ?? []
      const code = Predicate.hasProperty(error.cause, "error") ? codeOf(error.cause.error) : undefined
      return status === undefined ? code === undefined ? {} : { detail: code } : { status: Number(status) }
    }
  }
}

const unexpected = (text: string) => Effect.logDebug("the WebSocket of an OpenEnv client failed", text)

const unconnected = ({ detail, status }: Ending, host: string): ConnectionLost =>
  new ConnectionLost({
    request: "connect",
    ...(status === undefined ? { reason: "unreachable" } : { reason: "refused", status }),
    detail: detail === undefined ? host : `${detail} (${host})`
  })

const lost = (request: Request, { detail }: Ending): ConnectionLost =>
  new ConnectionLost({ request, reason: "lost", ...(detail === undefined ? {} : { detail }) })

const observed = ({ done, metadata, observation, reward }: Wire.StepResult): Observed => {
  const nested = observation["metadata"]
  return {
    observation,
    reward,
    done,
    metadata: metadata ?? (Schema.is(Wire.Anything)(nested) ? nested : {})
  }
}

/**
 * Connects. The end of the scope closes the socket, and with it a session of its own.
 *
 * A server that has no place left takes the connection and then says so: that error is the answer to the first request.
 *
 * @since 0.1.0
 * @category constructors
 */
export const connect = (
  options: Options
): Effect.Effect<Client, ClientError, Scope.Scope | Socket.WebSocketConstructor> =>
  Effect.gen(function*() {
    const replyTimeout = Duration.decode(options.replyTimeout ?? Duration.seconds(60))
    const connectTimeout = Duration.decode(options.connectTimeout ?? Duration.seconds(10))
    const { host, href } = yield* urlOf(options)
    const socket = yield* Socket.makeWebSocket(href, { openTimeout: connectTimeout, closeCodeIsError: () => true })
    const write = yield* socket.writer
    const opened = yield* Deferred.make<void, ConnectionLost>()
    // More than one frame that isn't due is as wrong as one, so the rest needn't be kept.
    const inbox = yield* Mailbox.make<string | Uint8Array>({ capacity: 4, strategy: "dropping" })
    const closed = yield* Deferred.make<Ending>()
    const reading = yield* socket.runRaw((message) => Effect.asVoid(inbox.offer(message)), {
      onOpen: Effect.asVoid(Deferred.succeed(opened, undefined))
    }).pipe(
      Effect.matchCauseEffect({
        onSuccess: () => Effect.succeed<Ending>({}),
        onFailure: (cause) =>
          Either.match(Cause.failureOrCause(cause), {
            onLeft: (error) => {
              const ending = endingOf(error)
              return ending.detail === undefined && ending.status === undefined
                ? Effect.as(unexpected(error.reason === "Close" ? "" : textOf(error.cause)), ending)
                : Effect.succeed(ending)
            },
            // Such as headers that can't be sent.
            onRight: (bug) =>
              Effect.as(
                unexpected(Cause.pretty(bug)),
                Option.match(Option.flatMapNullable(Cause.dieOption(bug), codeOf), {
                  onNone: (): Ending => ({}),
                  onSome: (detail): Ending => ({ detail })
                })
              )
          })
      }),
      Effect.tap((ending) =>
        Deferred.succeed(closed, ending).pipe(
          Effect.zipRight(inbox.end),
          Effect.zipRight(Deferred.fail(opened, unconnected(ending, host)))
        )
      ),
      Effect.ensuring(Deferred.succeed(closed, {})),
      Effect.forkScoped
    )
    yield* Deferred.await(opened).pipe(
      Effect.timeoutFail({ duration: connectTimeout, onTimeout: () => unconnected(overdue, host) })
    )

    const turn = yield* Effect.makeSemaphore(1)
    const broken = yield* Ref.make(Option.none<ClientError>())
    const poison = (error: ClientError) =>
      Ref.update(broken, Option.orElseSome(() => error)).pipe(
        // The socket is closed by the end of its reader.
        Effect.zipRight(reading.interruptAsFork(reading.id()))
      )

    const read = (request: Request, message: string | Uint8Array): Either.Either<Wire.ServerFrame, ProtocolViolation> =>
      typeof message === "string"
        ? Either.mapLeft(decode(message), () => new ProtocolViolation({ request, detail: "not a frame of OpenEnv" }))
        : Either.left(new ProtocolViolation({ request, detail: "a binary message" }))

    const refusal = (request: Request, { data }: typeof Wire.ErrorFrame.Type) =>
      new EnvironmentRefused({
        request,
        ...data,
        message: Wire.shortened(data.message, maxMessage),
        ...(data.errors === undefined ? {} : { errors: data.errors.slice(0, maxErrors) })
      })

    const gone = (request: Request) => Effect.flatMap(Deferred.await(closed), (ending) => lost(request, ending))

    const take = (request: Request) =>
      Effect.flatMap(
        Effect.catchAll(inbox.take, () => gone(request)),
        (message) => read(request, message)
      )

    // What came without being asked for: an error that ends the session, or something that shouldn't be.
    const unasked = Effect.fnUntraced(function*(request: Request) {
      const waiting = Option.getOrElse(yield* inbox.size, () => 0)
      if (waiting > 0) {
        const frame = yield* take(request)
        return yield* frame.type === "error"
          ? refusal(request, frame)
          : new ProtocolViolation({ request, detail: "a frame that nobody asked for" })
      }
    })

    const exchange = (request: Request, data?: unknown) =>
      Effect.gen(function*() {
        yield* unasked(request)
        const text = yield* Effect.mapError(
          encode({ type: request, ...(data === undefined ? {} : { data }) }),
          () => new ProtocolViolation({ request, detail: "what was given can't be written as JSON" })
        )
        yield* Effect.mapError(write(text), (error) => lost(request, endingOf(error))).pipe(
          // On a socket that is closed a write waits for it to be opened again, which it never is.
          Effect.raceFirst(gone(request))
        )
        const frame = yield* take(request)
        return frame.type === "error" ? yield* refusal(request, frame) : frame
      }).pipe(
        Effect.timeoutFail({
          duration: replyTimeout,
          onTimeout: () => new ReplyMissed({ request, reason: "timeout" })
        }),
        Effect.tapError((error) =>
          error._tag === "EnvironmentRefused" && !isFinal(error.code) ? Effect.void : poison(error)
        ),
        Effect.onInterrupt(() => poison(new ReplyMissed({ request, reason: "interrupted" })))
      )

    const ask = <Type extends Wire.ServerFrame["type"]>(request: Request, due: Type, data?: unknown) =>
      turn.withPermits(1)(
        Effect.flatMap(
          Ref.get(broken),
          Option.match({
            onSome: Effect.fail,
            onNone: () =>
              Effect.flatMap(exchange(request, data), (frame) => {
                if (isOfType(frame, due)) {
                  return Effect.succeed(frame)
                }
                const violation = new ProtocolViolation({ request, detail: `a frame of type ${frame.type}` })
                return Effect.zipRight(poison(violation), violation)
              })
          })
        )
      )

    const step = (action: Readonly<Record<string, unknown>>) =>
      Effect.map(ask("step", "observation", action), ({ data }) => observed(data))

    let rpcId = 0
    const client: Client = {
      reset: (args = {}) => Effect.map(ask("reset", "observation", args), ({ data }) => observed(data)),
      step,
      callTool: (name, args = {}) => step({ type: "call_tool", tool_name: name, arguments: args }),
      state: Effect.map(ask("state", "state"), ({ data }) => data),
      mcp: (method, params = {}) =>
        Effect.suspend(() => {
          rpcId += 1
          const id = rpcId
          return Effect.flatMap(ask("mcp", "mcp", { jsonrpc: "2.0", method, params, id }), ({ data }) => {
            if (data.id === id) {
              return Effect.succeed(data)
            }
            const violation = new ProtocolViolation({ request: "mcp", detail: "the reply to another request" })
            return Effect.zipRight(poison(violation), violation)
          })
        })
    }
    return client
  })

const isOfType = <Type extends Wire.ServerFrame["type"]>(
  frame: Wire.ServerFrame,
  type: Type
): frame is Extract<Wire.ServerFrame, { readonly type: Type }> => frame.type === type

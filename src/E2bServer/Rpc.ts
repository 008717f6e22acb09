/**
 * The Connect protocol, as far as the SDK speaks it: JSON, unary calls and server streams.
 */
import * as HttpServerRequest from "@effect/platform/HttpServerRequest"
import * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import * as Cause from "effect/Cause"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { concat, readUint32, uint32, utf8 } from "./Bytes.ts"
import * as Json from "./Json.ts"

const statuses = {
  canceled: 499,
  unknown: 500,
  invalid_argument: 400,
  deadline_exceeded: 504,
  not_found: 404,
  already_exists: 409,
  permission_denied: 403,
  resource_exhausted: 429,
  failed_precondition: 400,
  unimplemented: 501,
  internal: 500,
  unavailable: 503,
  unauthenticated: 401
} as const

export type Code = keyof typeof statuses

const Code = Schema.Literal(
  "canceled",
  "unknown",
  "invalid_argument",
  "deadline_exceeded",
  "not_found",
  "already_exists",
  "permission_denied",
  "resource_exhausted",
  "failed_precondition",
  "unimplemented",
  "internal",
  "unavailable",
  "unauthenticated"
)

const ErrorBody = Schema.Struct({ code: Code, message: Schema.String })

export class RpcError extends Schema.TaggedError<RpcError>("episode/E2bServer/RpcError")("RpcError", {
  code: Code,
  message: Schema.String
}) {}

export const rpcError = (code: Code, message: string): RpcError => new RpcError({ code, message })

/** The largest request that is read. Input to a program comes in one, base64-encoded. */
export const largestRequest = 16 * 1024 * 1024

// ----------------------------------------------------------------------------
// requests
// ----------------------------------------------------------------------------

const header = (name: string): Effect.Effect<string | undefined, never, HttpServerRequest.HttpServerRequest> =>
  Effect.map(HttpServerRequest.HttpServerRequest, ({ headers }) => headers[name])

/** How long the caller waits. */
export const timeLimit: Effect.Effect<
  Option.Option<Duration.Duration>,
  RpcError,
  HttpServerRequest.HttpServerRequest
> = Effect.flatMap(header("connect-timeout-ms"), (text) =>
  text === undefined
    ? Effect.succeedNone
    : /^[0-9]{1,10}$/.test(text)
    // Timers hold 31 bits of milliseconds.
    ? Effect.succeedSome(Duration.millis(Math.min(Number(text), 2 ** 31 - 1)))
    : rpcError("invalid_argument", "connect-timeout-ms is up to ten digits"))

/** After how long without a word a stream says that it is still there. */
export const keepaliveInterval: Effect.Effect<Duration.Duration, never, HttpServerRequest.HttpServerRequest> = Effect
  .map(
    header("keepalive-ping-interval"),
    (text) => Duration.seconds(text !== undefined && /^[1-9][0-9]{0,3}$/.test(text) ? Number(text) : 50)
  )

/** A body that is read as long as it isn't too long. */
const body: Effect.Effect<Uint8Array, RpcError, HttpServerRequest.HttpServerRequest> = Effect.gen(function*() {
  const request = yield* HttpServerRequest.HttpServerRequest
  const coding = request.headers["content-encoding"]
  if (coding !== undefined && coding !== "identity") {
    return yield* rpcError("unimplemented", `requests in ${coding} aren't read`)
  }
  const parts: Array<Uint8Array> = []
  let length = 0
  yield* request.stream.pipe(
    Stream.mapError(() => rpcError("canceled", "the request broke off")),
    Stream.runForEach((part) => {
      parts.push(part)
      length += part.length
      return length > largestRequest
        ? rpcError("resource_exhausted", `a request has at most ${largestRequest} bytes`)
        : Effect.void
    })
  )
  return concat(parts)
})

const decodeText = (bytes: Uint8Array): Effect.Effect<string, RpcError> =>
  Effect.try({
    try: () => new TextDecoder("utf-8", { fatal: true }).decode(bytes),
    catch: () => rpcError("invalid_argument", "the request isn't UTF-8")
  })

const decode = <A, I>(schema: Schema.Schema<A, I>) => {
  const read = Json.reader(schema)
  return (bytes: Uint8Array): Effect.Effect<A, RpcError> =>
    Effect.flatMap(
      decodeText(bytes),
      (text) => Effect.mapError(read(text === "" ? "{}" : text), (wrong) => rpcError("invalid_argument", wrong))
    )
}

// What is wrong with this server is told in the way of the protocol, too. The defect itself is nobody's business there.
const defective = (cause: unknown): Effect.Effect<never, RpcError> =>
  Effect.andThen(
    Effect.logError("a call came to a defect", cause),
    rpcError("internal", "the server came to a defect")
  )

// ----------------------------------------------------------------------------
// unary
// ----------------------------------------------------------------------------

const failure = ({ code, message }: RpcError): Effect.Effect<HttpServerResponse.HttpServerResponse> =>
  Effect.orDie(HttpServerResponse.schemaJson(ErrorBody)({ code, message }, { status: statuses[code] }))

const hasType = (type: string): Effect.Effect<boolean, never, HttpServerRequest.HttpServerRequest> =>
  Effect.map(header("content-type"), (found) => found?.split(";")[0]?.trim().toLowerCase() === type)

const unsupported = (type: string): HttpServerResponse.HttpServerResponse =>
  HttpServerResponse.empty({ status: 415, headers: { "accept-post": type } })

/** A call with one answer. */
export const unary = <A, I, B, J, R>(
  schemas: { readonly request: Schema.Schema<A, I>; readonly response: Schema.Schema<B, J> },
  handle: (request: A) => Effect.Effect<B, RpcError, R>
): Effect.Effect<HttpServerResponse.HttpServerResponse, never, R | HttpServerRequest.HttpServerRequest> => {
  const read = decode(schemas.request)
  const write = HttpServerResponse.schemaJson(schemas.response)
  return Effect.if(hasType("application/json"), {
    onFalse: () => Effect.succeed(unsupported("application/json")),
    onTrue: () =>
      body.pipe(
        Effect.flatMap(read),
        Effect.flatMap(handle),
        Effect.flatMap((response) => Effect.orDie(write(response))),
        Effect.catchAllDefect(defective),
        Effect.catchTag("RpcError", failure)
      )
  })
}

// ----------------------------------------------------------------------------
// streams
// ----------------------------------------------------------------------------

const END_OF_STREAM = 2

const streamType = "application/connect+json"

const envelope = (flags: number, json: string): Uint8Array => {
  const payload = utf8(json)
  return concat([Uint8Array.of(flags), uint32(payload.length), payload])
}

const End = Schema.parseJson(Schema.Struct({ error: Schema.optional(ErrorBody) }))

const endOfStream = (error?: RpcError): Uint8Array =>
  envelope(
    END_OF_STREAM,
    Schema.encodeSync(End)(error === undefined ? {} : { error: { code: error.code, message: error.message } })
  )

/** Refuses a call before it is known, in the way that the caller expects. */
export const refuse = (
  error: RpcError
): Effect.Effect<HttpServerResponse.HttpServerResponse, never, HttpServerRequest.HttpServerRequest> =>
  Effect.if(hasType(streamType), {
    onTrue: () => Effect.succeed(HttpServerResponse.uint8Array(endOfStream(error), { contentType: streamType })),
    onFalse: () => failure(error)
  })

// The request of a server stream is one envelope.
const unwrap = (bytes: Uint8Array): Effect.Effect<Uint8Array, RpcError> =>
  bytes.length < 5 || readUint32(bytes, 1) !== bytes.length - 5
    ? rpcError("invalid_argument", "the request isn't one whole envelope")
    : bytes[0] === 0
    ? Effect.succeed(bytes.subarray(5))
    : rpcError("unimplemented", "compressed envelopes aren't read")

/**
 * A call with many answers. What the handler acquires is released when the reply is over, also where the caller goes
 * away. Whatever goes wrong is told in the last envelope, as the protocol wants it.
 */
export const serverStream = <A, I, B, J, R, R2>(
  schemas: { readonly request: Schema.Schema<A, I>; readonly message: Schema.Schema<B, J> },
  handle: (request: A) => Effect.Effect<Stream.Stream<B, RpcError, R2>, RpcError, R>
): Effect.Effect<
  HttpServerResponse.HttpServerResponse,
  never,
  R | R2 | Scope.Scope | HttpServerRequest.HttpServerRequest
> => {
  const read = decode(schemas.request)
  const write = Schema.encodeSync(Schema.parseJson(schemas.message))
  return Effect.if(hasType(streamType), {
    onFalse: () => Effect.succeed(unsupported(streamType)),
    onTrue: () =>
      body.pipe(
        Effect.flatMap(unwrap),
        Effect.flatMap(read),
        Effect.flatMap(handle),
        Effect.catchAllDefect(defective),
        Effect.catchTag("RpcError", (error) => Effect.succeed<Stream.Stream<B, RpcError, R2>>(Stream.fail(error))),
        Effect.zip(Effect.context<R2>()),
        Effect.map(([messages, context]) =>
          HttpServerResponse.stream(
            messages.pipe(
              Stream.map((message) => envelope(0, write(message))),
              Stream.concat(Stream.sync(() => endOfStream())),
              Stream.catchAllCause((cause) =>
                Stream.fromEffect(Cause.isDie(cause) ? defective(cause) : Effect.failCause(cause))
              ),
              Stream.catchTag("RpcError", (error) => Stream.make(endOfStream(error))),
              Stream.provideContext(context)
            ),
            { contentType: streamType }
          )
        )
      )
  })
}

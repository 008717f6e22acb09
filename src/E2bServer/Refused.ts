/**
 * How anything but a remote procedure call is refused: a status, and the JSON that the SDK reads.
 */
import * as HttpIncomingMessage from "@effect/platform/HttpIncomingMessage"
import * as HttpServerRequest from "@effect/platform/HttpServerRequest"
import * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"

const Body = Schema.Struct({
  code: Schema.Int,
  message: Schema.String,
  sandboxId: Schema.optional(Schema.String),
  port: Schema.optional(Schema.Int)
})

export class Refused extends Schema.TaggedError<Refused>("episode/E2bServer/Refused")("Refused", {
  status: Schema.Int,
  message: Schema.String,
  sandboxId: Schema.optional(Schema.String),
  port: Schema.optional(Schema.Int)
}) {}

export const refuse = (status: number, message: string): Refused => new Refused({ status, message })

export const unauthorized = refuse(401, "the API key is missing or wrong")

export const wrongToken = refuse(401, "unauthorized access, please provide a valid access token or method signing")

export const notFound = (sandboxId: string): Refused => refuse(404, `sandbox ${sandboxId} doesn't exist`)

export const unimplemented = (what: string): Refused =>
  refuse(501, `unimplemented: ${what} isn't offered by this server`)

/** It lives no more, which isn't to say that it is gone: a client takes a 404, and nothing else, for the proof of that. */
export const leaving = (sandboxId: string): Refused =>
  refuse(503, `sandbox ${sandboxId} is being deleted, and isn't proved gone yet`)

/** What a proxy answers for a sandbox that doesn't live. */
export const absent = (sandboxId: string): Refused =>
  new Refused({ status: 502, message: "The sandbox was not found", sandboxId })

/** The text of a request that isn't longer than it may be. */
export const text = (most: number): Effect.Effect<string, Refused, HttpServerRequest.HttpServerRequest> =>
  Effect.flatMap(
    HttpServerRequest.HttpServerRequest,
    ({ headers, text }) =>
      Number(headers["content-length"] ?? 0) > most
        ? refuse(413, `a request has at most ${most} bytes`)
        : text.pipe(
          HttpIncomingMessage.withMaxBodySize(Option.some(most)),
          Effect.mapError(() => refuse(400, `a request is readable and has at most ${most} bytes`))
        )
  )

/** What is wrong with this server: told as little as it can be. */
export const defect = (cause: unknown): Effect.Effect<HttpServerResponse.HttpServerResponse> =>
  Effect.andThen(
    Effect.logError("a request came to a defect", cause),
    respond(refuse(500, "the server came to a defect"))
  )

export const respond = ({ message, port, sandboxId, status }: Refused): Effect.Effect<
  HttpServerResponse.HttpServerResponse
> =>
  // Encoding what this program made itself can't fail.
  Effect.orDie(
    HttpServerResponse.schemaJson(Body)({ code: status, message, sandboxId, port }, { status })
  )

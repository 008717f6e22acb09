/**
 * What this server asks of HTTP beyond requests and replies. `NodeServer` answers it.
 */
import type * as HttpServerRequest from "@effect/platform/HttpServerRequest"
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import type * as Effect from "effect/Effect"
import type * as Stream from "effect/Stream"

/** The bytes aren't what they are said to be. */
export class Malformed extends Data.TaggedError("Malformed") {}

export class Transport extends Context.Tag("episode/E2bServer/Transport")<Transport, {
  /** Destroys the connection of a request, without an end to its reply: as a machine that is gone would. */
  readonly hangUp: (request: HttpServerRequest.HttpServerRequest) => Effect.Effect<void>
  readonly gunzip: <E>(bytes: Stream.Stream<Uint8Array, E>) => Stream.Stream<Uint8Array, E | Malformed>
  readonly gzip: (bytes: Stream.Stream<Uint8Array>) => Stream.Stream<Uint8Array>
}>() {}

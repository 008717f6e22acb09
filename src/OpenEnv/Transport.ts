/**
 * What the server needs of a network, and nothing about how: `NodeTransport` has it from Node.
 *
 * @since 0.1.0
 */
import type * as HttpApp from "@effect/platform/HttpApp"
import * as Context from "effect/Context"
import type * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"

/**
 * The other side of a WebSocket can't be reached any more. An answer for the server's own loops: nobody else is told.
 *
 * @since 0.1.0
 * @category errors
 */
export class PeerGone extends Schema.TaggedError<PeerGone>("episode/OpenEnv/PeerGone")("PeerGone", {}) {}

/**
 * There is no listening at that address.
 *
 * @since 0.1.0
 * @category errors
 */
export class ListenFailed extends Schema.TaggedError<ListenFailed>("episode/OpenEnv/ListenFailed")("ListenFailed", {
  host: Schema.String,
  port: Schema.Int,
  reason: Schema.Literal("in-use", "not-permitted", "no-such-address", "other"),
  /** The operating system's name for it, where that is all there is to say. */
  code: Schema.optionalWith(Schema.String, { exact: true })
}) {
  override get message(): string {
    const why = {
      "in-use": "something else listens there; choose another port, or 0 for a free one",
      "not-permitted": "that needs rights that this program hasn't got; choose a port above 1023",
      "no-such-address": "this machine has no such address",
      "other": `the operating system refused${this.code === undefined ? "" : ` (${this.code})`}`
    }[this.reason]
    return `can't listen on ${this.host}:${this.port}: ${why}`
  }
}

const reasons: Readonly<Record<string, ListenFailed["reason"]>> = {
  EADDRINUSE: "in-use",
  EACCES: "not-permitted",
  EADDRNOTAVAIL: "no-such-address",
  EAFNOSUPPORT: "no-such-address",
  ENOTFOUND: "no-such-address",
  EAI_AGAIN: "no-such-address"
}

/**
 * What it means that the operating system refuses with an error of that code.
 *
 * @since 0.1.0
 * @category errors
 */
export const listenFailed = (host: string, port: number, code: unknown): ListenFailed => {
  const reason = reasons[String(code)] ?? "other"
  return new ListenFailed({ host, port, reason, ...(reason === "other" && typeof code === "string" ? { code } : {}) })
}

/**
 * One WebSocket, as the server sees it.
 *
 * @since 0.1.0
 * @category models
 */
export interface Peer {
  /** The next message: text, or bytes for a binary one. */
  readonly receive: Effect.Effect<string | Uint8Array, PeerGone>
  /** Succeeds when the text is handed to the operating system, so a peer that doesn't read holds up only itself. */
  readonly send: (text: string) => Effect.Effect<void, PeerGone>
  /** Succeeds when the peer has answered a ping. */
  readonly ping: Effect.Effect<void, PeerGone>
  /** Succeeds when the peer is gone. */
  readonly gone: Effect.Effect<void>
  /** Asks the peer to close; one that doesn't is cut off soon after. */
  readonly close: (code: number, reason: string) => Effect.Effect<void>
}

/**
 * The request that asks for a WebSocket.
 *
 * @since 0.1.0
 * @category models
 */
export interface Handshake {
  /** Path and query. */
  readonly url: string
  readonly headers: Readonly<Record<string, string | undefined>>
}

/**
 * What becomes of a handshake.
 *
 * @since 0.1.0
 * @category models
 */
export type HandshakeAnswer =
  | { readonly _tag: "Refuse"; readonly status: 401 | 403 | 404 | 503 }
  /** The socket is closed when `serve` ends; when the server ends, `serve` is interrupted. */
  | { readonly _tag: "Accept"; readonly serve: (peer: Peer) => Effect.Effect<void> }

/**
 * @since 0.1.0
 * @category models
 */
export interface ListenOptions {
  readonly host: string
  /** 0 for a free one. */
  readonly port: number
  /** The largest message or request body, and the most that a socket may have waiting. */
  readonly maxFrameBytes: number
  readonly http: HttpApp.Default<never, never>
  readonly handshake: (request: Handshake) => Effect.Effect<HandshakeAnswer>
}

/**
 * @since 0.1.0
 * @category models
 */
export interface Listening {
  readonly host: string
  readonly port: number
}

/**
 * @since 0.1.0
 * @category tags
 */
export class Transport extends Context.Tag("episode/OpenEnv/Transport")<Transport, {
  /** Listens until the scope ends. Then nobody is let in any more, and every socket is closed. */
  readonly listen: (options: ListenOptions) => Effect.Effect<Listening, ListenFailed, Scope.Scope>
}>() {}

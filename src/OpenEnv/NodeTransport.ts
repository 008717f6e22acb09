/**
 * The network, from Node: its HTTP server under `@effect/platform-node`, and the `ws` package.
 *
 * The one module of this room that knows Node. A socket of the platform's own upgrade can't be pinged and takes frames of
 * 100 MiB, so handshakes are handled here.
 *
 * @since 0.1.0
 */
import * as NodeHttpServer from "@effect/platform-node/NodeHttpServer"
import * as Socket from "@effect/platform/Socket"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FiberSet from "effect/FiberSet"
import * as Layer from "effect/Layer"
import * as Http from "node:http"
import type { Duplex } from "node:stream"
import * as WS from "ws"
import type { Handshake, ListenFailed, Listening, ListenOptions, Peer } from "./Transport.ts"
import { listenFailed, PeerGone, Transport } from "./Transport.ts"
import * as Wire from "./Wire.ts"

// How long a peer may take to answer a close before it is cut off.
const closeTimeout = Duration.seconds(2)

// How long a request may take to send its headers, and how long to send all of itself.
const headersMillis = 10_000
const requestMillis = 30_000

// How often that is looked at. Node's own half a minute would be added to it.
const checkMillis = 1000

// A client sends one request and waits for its reply. So many that wait are no client's.
const maxWaiting = 8

const closeCodes = { normal: 1000, goingAway: 1001, policyViolation: 1008 } as const

// ----------------------------------------------------------------------------
// sockets
// ----------------------------------------------------------------------------

const makePeer = Effect.fnUntraced(function*(socket: WS.WebSocket, maxWaitingBytes: number) {
  const gone = yield* Deferred.make<void>()
  const waiting: Array<string | Uint8Array> = []
  let waitingBytes = 0
  let take: ((message: string | Uint8Array) => void) | undefined
  const leave = () => Deferred.unsafeDone(gone, Effect.void)

  socket.on("message", (data, isBinary) => {
    // One buffer: `ws` gives others only where its `binaryType` asks for them.
    const buffer = Buffer.isBuffer(data) ? data : Buffer.alloc(0)
    const message = isBinary ? buffer : buffer.toString("utf8")
    if (take !== undefined) {
      take(message)
      return
    }
    waiting.push(message)
    waitingBytes += buffer.length
    if (waiting.length > maxWaiting || waitingBytes > maxWaitingBytes) {
      socket.close(closeCodes.policyViolation, "one request at a time")
      leave()
    }
  })
  socket.on("close", leave)
  // A frame that is too large, or isn't one. It closes the socket, which is told above.
  socket.on("error", () => {})

  const peer: Peer = {
    gone: Deferred.await(gone),
    receive: Effect.async((resume) => {
      const message = waiting.shift()
      if (message === undefined) {
        take = (message) => {
          take = undefined
          resume(Effect.succeed(message))
        }
        return Effect.sync(() => {
          take = undefined
        })
      }
      waitingBytes -= Buffer.byteLength(message)
      resume(Effect.succeed(message))
      return undefined
    }),
    send: (text) =>
      Effect.async<void, PeerGone>((resume) => {
        socket.send(text, (error) => resume(error instanceof Error ? new PeerGone() : Effect.void))
      }),
    ping: Effect.async<void, PeerGone>((resume) => {
      const onPong = () => resume(Effect.void)
      socket.once("pong", onPong)
      socket.ping()
      return Effect.sync(() => socket.off("pong", onPong))
    }),
    close: (code, reason) =>
      Effect.sync(() => socket.close(code, reason)).pipe(
        Effect.zipRight(
          Effect.async<void>((resume) => {
            if (socket.readyState === WS.WebSocket.CLOSED) {
              resume(Effect.void)
            } else {
              socket.once("close", () => resume(Effect.void))
            }
          })
        ),
        Effect.interruptible,
        Effect.timeoutOption(closeTimeout),
        Effect.ensuring(Effect.sync(() => socket.terminate()))
      )
  }
  return peer
})

// ----------------------------------------------------------------------------
// handshakes
// ----------------------------------------------------------------------------

const toHandshake = ({ headers, url }: Http.IncomingMessage): Handshake => ({
  url: url ?? "/",
  headers: { host: headers.host, origin: headers.origin, authorization: headers.authorization }
})

const refuse = (socket: Duplex, status: number) =>
  Effect.sync(() => {
    socket.end(
      `HTTP/1.1 ${status} ${Http.STATUS_CODES[status]}\r\nconnection: close\r\ncontent-length: 0\r\n`
        + (status === 401 ? "www-authenticate: Basic realm=\"episode\"\r\n\r\n" : "\r\n")
    )
  })

const upgrade =
  (sockets: WS.WebSocketServer, options: ListenOptions) =>
  (request: Http.IncomingMessage, stream: Duplex, head: Buffer): Effect.Effect<void> =>
    Effect.flatMap(
      options.handshake(toHandshake(request)),
      (answer) =>
        answer._tag === "Refuse" ? refuse(stream, answer.status) : Effect.async<WS.WebSocket>((resume) => {
          // It answers a handshake that isn't one by itself, and then the stream is closed.
          sockets.handleUpgrade(request, stream, head, (socket) => resume(Effect.succeed(socket)))
          stream.once("close", () => resume(Effect.interrupt))
        }).pipe(
          Effect.flatMap((socket) => makePeer(socket, options.maxFrameBytes)),
          Effect.flatMap((peer) =>
            Effect.onExit(answer.serve(peer), (exit) =>
              Exit.isInterrupted(exit)
                ? peer.close(closeCodes.goingAway, "the server is stopping")
                : peer.close(closeCodes.normal, ""))
          )
        )
    )

// ----------------------------------------------------------------------------
// the server
// ----------------------------------------------------------------------------

const listen = Effect.fnUntraced(function*(options: ListenOptions) {
  const { host, port } = options
  const server = Http.createServer({
    headersTimeout: headersMillis,
    requestTimeout: requestMillis,
    connectionsCheckingInterval: checkMillis
  })
  yield* Effect.async<void, ListenFailed>((resume) => {
    server.once("error", (error: NodeJS.ErrnoException) => {
      resume(listenFailed(host, port, error.code))
    })
    server.listen({ host, port }, () => resume(Effect.void))
  })
  const ended = yield* Deferred.make<void>()
  server.on("close", () => Deferred.unsafeDone(ended, Effect.void))
  // From the bottom up: nobody is let in, the sockets are ended, and then there is nothing left to wait for.
  yield* Effect.addFinalizer(() => Effect.timeoutOption(Effect.interruptible(Deferred.await(ended)), closeTimeout))
  const run = yield* FiberSet.makeRuntime<never>()
  const handle = yield* NodeHttpServer.makeHandler(options.http)
  const sockets = new WS.WebSocketServer({
    noServer: true,
    clientTracking: false,
    maxPayload: options.maxFrameBytes,
    perMessageDeflate: false
  })
  const onUpgrade = upgrade(sockets, options)
  server.on("request", handle)
  server.on("upgrade", (request, stream, head) => {
    // Without a listener a peer that breaks off would end the program.
    stream.on("error", () => {})
    run(onUpgrade(request, stream, head))
  })
  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      server.close()
      server.closeAllConnections()
    })
  )
  const address = server.address()
  return { host, port: typeof address === "object" && address !== null ? address.port : port } satisfies Listening
})

// ----------------------------------------------------------------------------
// layers
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category layers
 */
export const layer: Layer.Layer<Transport> = Layer.succeed(Transport, { listen })

/**
 * What a client opens sockets with: frames are bounded, and headers can be sent.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerWebSocketConstructor = (options: {
  /** The largest frame to take. Default 16 MiB: our servers' replies have half of it at most. */
  readonly maxFrameBytes?: number | undefined
  /** Headers of the handshake, such as `authorization`. Default: none. */
  readonly headers?: Readonly<Record<string, string>> | undefined
} = {}): Layer.Layer<Socket.WebSocketConstructor> =>
  Layer.sync(Socket.WebSocketConstructor, () => {
    const settings = {
      maxPayload: options.maxFrameBytes ?? 2 * Wire.maxReplyBytes,
      perMessageDeflate: false,
      headers: { ...options.headers },
      // Otherwise a server that doesn't answer a close keeps a program from its end for half a minute.
      closeTimeout: Duration.toMillis(closeTimeout)
    }
    return (url, protocols) =>
      // It has all that the platform uses of a browser's WebSocket; the types differ in the events' details.
      new WS.WebSocket(url, protocols, settings) as unknown as globalThis.WebSocket
  })

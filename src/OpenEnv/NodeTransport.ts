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
import * as FiberId from "effect/FiberId"
import * as FiberSet from "effect/FiberSet"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
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

// At once, and not in a fiber's own time: what came in the handshake's packet is read right after it.
const makePeer = (socket: WS.WebSocket, maxWaitingBytes: number): Peer => {
  const gone = Deferred.unsafeMake<void>(FiberId.none)
  const waiting: Array<string | Uint8Array> = []
  let waitingBytes = 0
  let hasLeft = false
  let take: ((message: Effect.Effect<string | Uint8Array, PeerGone>) => void) | undefined
  // Nobody is answered any more, so nothing more is kept.
  const leave = () => {
    hasLeft = true
    waiting.length = 0
    take?.(new PeerGone())
    Deferred.unsafeDone(gone, Effect.void)
  }

  socket.on("message", (data, isBinary) => {
    if (hasLeft) {
      return
    }
    // One buffer: `ws` gives others only where its `binaryType` asks for them.
    const buffer = Buffer.isBuffer(data) ? data : Buffer.alloc(0)
    const message = isBinary ? buffer : buffer.toString("utf8")
    if (take !== undefined) {
      take(Effect.succeed(message))
      return
    }
    waiting.push(message)
    waitingBytes += buffer.length
    if (waiting.length > maxWaiting || waitingBytes > maxWaitingBytes) {
      // It goes on reading, for the answer to the close; `ws` cuts off who gives none.
      socket.close(closeCodes.policyViolation, "one request at a time")
      leave()
    }
  })
  socket.on("close", leave)
  // A frame that is too large, or isn't one. It closes the socket, which is told above.
  socket.on("error", () => {})

  return {
    gone: Deferred.await(gone),
    receive: Effect.async((resume) => {
      const message = waiting.shift()
      if (message === undefined) {
        if (hasLeft) {
          resume(new PeerGone())
          return undefined
        }
        take = (message) => {
          take = undefined
          resume(message)
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
}

// ----------------------------------------------------------------------------
// handshakes
// ----------------------------------------------------------------------------

const toHandshake = ({ headers, url }: Http.IncomingMessage): Handshake => ({
  url: url ?? "/",
  headers: { host: headers.host, origin: headers.origin, authorization: headers.authorization }
})

// A peer may keep its side open for ever, and has shown no token yet: it isn't waited for.
const ended = (stream: Duplex) =>
  Effect.async<void>((resume) => {
    if (stream.destroyed) {
      resume(Effect.void)
    } else {
      stream.once("close", () => resume(Effect.void))
    }
  }).pipe(Effect.timeoutOption(closeTimeout))

const refuse = (stream: Duplex, status: number) =>
  Effect.suspend(() => {
    stream.end(
      `HTTP/1.1 ${status} ${Http.STATUS_CODES[status]}\r\nconnection: close\r\ncontent-length: 0\r\n`
        + (status === 401 ? "www-authenticate: Basic realm=\"episode\"\r\n\r\n" : "\r\n"),
      () => stream.destroy()
    )
    return ended(stream)
  })

const upgrade =
  (sockets: WS.WebSocketServer, options: ListenOptions) =>
  (request: Http.IncomingMessage, stream: Duplex, head: Buffer): Effect.Effect<void> => {
    // None where it isn't a handshake after all: `ws` answers that by itself, and ends the stream.
    const accept = Effect.sync(() => {
      let accepted: Option.Option<Peer> = Option.none()
      sockets.handleUpgrade(request, stream, head, (socket) => {
        accepted = Option.some(makePeer(socket, options.maxFrameBytes))
      })
      return accepted
    })
    const serving = (serve: (peer: Peer) => Effect.Effect<void>) =>
      Effect.acquireUseRelease(
        accept,
        Option.match({ onNone: () => ended(stream), onSome: serve }),
        (accepted, exit) =>
          Option.match(accepted, {
            onNone: () => Effect.void,
            onSome: (peer) =>
              Exit.isInterrupted(exit)
                ? peer.close(closeCodes.goingAway, "the server is stopping")
                : peer.close(closeCodes.normal, "")
          })
      )
    return Effect.flatMap(
      options.handshake(toHandshake(request)),
      (answer) => answer._tag === "Refuse" ? refuse(stream, answer.status) : Effect.asVoid(serving(answer.serve))
    ).pipe(
      Effect.catchAllDefect((defect) => Effect.logError("a bug in the OpenEnv server; the socket is closed", defect)),
      // The HTTP server has given the stream away, so it is nobody's after this.
      Effect.ensuring(Effect.sync(() => stream.destroy()))
    )
  }

// ----------------------------------------------------------------------------
// the server
// ----------------------------------------------------------------------------

const stop = (server: Http.Server) => {
  server.close()
  server.closeAllConnections()
}

const closed = (server: Http.Server) =>
  Effect.async<void>((resume) => {
    server.once("close", () => resume(Effect.void))
    stop(server)
  })

const listen = Effect.fnUntraced(function*(options: ListenOptions) {
  const { host, port } = options
  const tried = yield* Deferred.make<void, ListenFailed>()
  // From the bottom up: nobody is let in, the sockets are ended, and then there is nothing left to wait for.
  const server = yield* Effect.acquireRelease(
    Effect.sync(() =>
      Http.createServer({
        headersTimeout: headersMillis,
        requestTimeout: requestMillis,
        connectionsCheckingInterval: checkMillis
      })
    ),
    (server) => Effect.timeoutOption(Effect.interruptible(closed(server)), closeTimeout)
  )
  const run = yield* FiberSet.makeRuntime<never>()
  const handle = yield* NodeHttpServer.makeHandler(options.http)
  const settings = {
    noServer: true,
    clientTracking: false,
    maxPayload: options.maxFrameBytes,
    perMessageDeflate: false,
    // The types don't know it yet. By default a peer may go on sending for half a minute after it was told to stop.
    closeTimeout: Duration.toMillis(closeTimeout)
  }
  const sockets = new WS.WebSocketServer(settings)
  const onUpgrade = upgrade(sockets, options)
  server.on("request", handle)
  server.on("upgrade", (request, stream, head) => {
    // Without a listener a peer that breaks off would end the program.
    stream.on("error", () => {})
    run(onUpgrade(request, stream, head))
  })
  // For as long as there is a server: without a listener an error would end the program.
  server.on("error", (error: NodeJS.ErrnoException) => {
    if (server.listening) {
      run(Effect.logWarning("the OpenEnv server couldn't take a connection", error))
    } else {
      Deferred.unsafeDone(tried, listenFailed(host, port, error.code))
    }
  })
  yield* Effect.acquireRelease(
    Effect.sync(() => server.listen({ host, port }, () => Deferred.unsafeDone(tried, Effect.void))),
    () =>
      Effect.sync(() => {
        // One that still looks up its address: not every Node forgets about it then.
        server.once("listening", () => stop(server))
        stop(server)
      })
  )
  yield* Deferred.await(tried)
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
    return (url, protocols) => {
      const socket = new WS.WebSocket(url, protocols, settings)
      // The platform's own listener comes later and hears one error: without another, that of a socket which is closed
      // while it connects could end the program.
      socket.on("error", () => {})
      // It has all that the platform uses of a browser's WebSocket; the types differ in the events' details.
      return socket as unknown as globalThis.WebSocket
    }
  })

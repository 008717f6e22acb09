import { HttpServerResponse, Socket } from "@effect/platform"
import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Exit, Fiber, Logger, Scope } from "effect"
import dns from "node:dns"
import Http from "node:http"
import { syncBuiltinESMExports } from "node:module"
import * as net from "node:net"
import * as NodeTransport from "../../src/OpenEnv/NodeTransport.ts"
import type { HandshakeAnswer, Peer } from "../../src/OpenEnv/Transport.ts"
import { listenFailed, PeerGone, Transport } from "../../src/OpenEnv/Transport.ts"

// Real sockets on the loopback interface. What is awaited here never comes where the transport is wrong.

const handshakeText = "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
  + "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

/** A frame of a client's, with a mask of zeros. */
const frame = (text: string) =>
  Buffer.concat([Buffer.from([0x81, 0x80 | text.length]), Buffer.alloc(4), Buffer.from(text)])

/** The server that is made meanwhile. */
const makingServer = Effect.gen(function*() {
  const made = yield* Deferred.make<Http.Server>()
  const { createServer } = Http
  yield* Effect.acquireRelease(
    Effect.sync(() => {
      Http.createServer = (...args: ReadonlyArray<unknown>) => {
        const server: Http.Server = Reflect.apply(createServer, Http, args)
        Deferred.unsafeDone(made, Effect.succeed(server))
        return server
      }
      syncBuiltinESMExports()
    }),
    () =>
      Effect.sync(() => {
        Http.createServer = createServer
        syncBuiltinESMExports()
      })
  )
  return Deferred.await(made)
})

type Found = (error: Error | null, address: string, family: number) => void

/** The look-up of an address, which is found when the test says so. */
const lookingUp = Effect.gen(function*() {
  const asked = yield* Deferred.make<Found>()
  const { lookup } = dns
  yield* Effect.acquireRelease(
    Effect.sync(() =>
      Object.assign(dns, {
        lookup: (_name: string, found: Found) => Deferred.unsafeDone(asked, Effect.succeed(found))
      })
    ),
    () => Effect.sync(() => Object.assign(dns, { lookup }))
  )
  return Deferred.await(asked)
})

/** Succeeds when the server's side of its next connection is closed. */
const closing = Effect.fnUntraced(function*(server: Http.Server) {
  const closed = yield* Deferred.make<void>()
  server.once("connection", (socket) => socket.once("close", () => Deferred.unsafeDone(closed, Effect.void)))
  return Deferred.await(closed)
})

/** Exceptions that nobody catches, in place of the end of the program. */
const uncaught = Effect.gen(function*() {
  const all: Array<string> = []
  yield* Effect.acquireRelease(
    Effect.sync(() => process.setUncaughtExceptionCaptureCallback((error) => all.push(String(error)))),
    () => Effect.sync(() => process.setUncaughtExceptionCaptureCallback(null))
  )
  return all
})

/** What is logged. */
const hearing = () => {
  const told: Array<unknown> = []
  return { told, logger: Logger.replace(Logger.defaultLogger, Logger.make(({ message }) => told.push(message))) }
}

const listen = (handshake: Effect.Effect<HandshakeAnswer>, host = "127.0.0.1") =>
  Effect.flatMap(Transport, ({ listen }) =>
    listen({
      host,
      port: 0,
      maxFrameBytes: 1024,
      http: HttpServerResponse.text("hello"),
      handshake: () => handshake
    })).pipe(Effect.provide(NodeTransport.layer))

const accepting = (serve: (peer: Peer) => Effect.Effect<void>) => Effect.succeed({ _tag: "Accept", serve } as const)

/** A client that never closes its side. */
const dial = (port: number, ...packet: ReadonlyArray<string | Buffer>) =>
  Effect.gen(function*() {
    const ended = yield* Deferred.make<void>()
    let text = ""
    const socket = yield* Effect.acquireRelease(
      Effect.sync(() => {
        const socket = net.connect({ host: "127.0.0.1", port, allowHalfOpen: true }, () => {
          socket.write(Buffer.concat(packet.map((part) => Buffer.from(part))))
        })
        socket.on("error", () => {})
        socket.on("data", (data) => {
          text += data.toString("latin1")
        })
        socket.on("end", () => Deferred.unsafeDone(ended, Effect.void))
        return socket
      }),
      (socket) => Effect.sync(() => socket.destroy())
    )
    const reads = (word: string) =>
      Effect.async<void>((resume) => {
        const look = () => {
          if (text.includes(word)) {
            socket.off("data", look)
            resume(Effect.void)
          }
        }
        socket.on("data", look)
        look()
      })
    return { socket, reads, ended: Deferred.await(ended) }
  })

// ----------------------------------------------------------------------------
// sockets
// ----------------------------------------------------------------------------

const echo = (peer: Peer) =>
  Effect.flatMap(peer.receive, (message) => peer.send(`heard ${String(message)}`)).pipe(
    Effect.zipRight(peer.gone),
    Effect.ignore
  )

describe("what comes in the packet of the handshake", () => {
  it.scopedLive("is the first message", () =>
    Effect.gen(function*() {
      const { port } = yield* listen(accepting(echo))
      const { reads } = yield* dial(port, handshakeText, frame("this"))
      yield* reads("heard this")
    }))

  it.scopedLive("closes the socket and nothing else, if it isn't a frame", () =>
    Effect.gen(function*() {
      const caught = yield* uncaught
      const gone = yield* Deferred.make<void>()
      const { port } = yield* listen(
        accepting((peer) => Effect.raceFirst(echo(peer), Effect.zipRight(peer.gone, Deferred.succeed(gone, undefined))))
      )
      yield* dial(port, handshakeText, Buffer.from([0xff, 0xff, 0xff, 0xff]))
      yield* Deferred.await(gone)
      const { reads } = yield* dial(port, handshakeText, frame("that"))
      yield* reads("heard that")
      assert.deepStrictEqual(caught, [])
    }))
})

describe("a peer that doesn't wait for its reply", () => {
  it.scopedLive("is told to stop, isn't heard any more, and is cut off", () =>
    Effect.gen(function*() {
      const isCutOff = yield* Deferred.make<void>()
      const received = yield* Deferred.make<Exit.Exit<unknown, PeerGone>>()
      const { port } = yield* listen(accepting((peer) =>
        peer.gone.pipe(
          Effect.zipRight(Deferred.await(isCutOff)),
          Effect.zipRight(peer.receive),
          Effect.exit,
          Effect.flatMap((exit) => Deferred.succeed(received, exit))
        )
      ))
      const { ended, reads, socket } = yield* dial(port, handshakeText, ...Array.from({ length: 9 }, () => frame("x")))
      yield* reads("one request at a time")
      socket.write(Buffer.concat(Array.from({ length: 5 }, () => frame("y"))))
      // It gives no answer to the close, and whoever serves it isn't ready to.
      yield* ended
      yield* Deferred.succeed(isCutOff, undefined)
      assert.deepStrictEqual(yield* Deferred.await(received), Exit.fail(new PeerGone()))
    }))

  it.scopedLive("is gone, for whoever waits for its next message", () =>
    Effect.gen(function*() {
      const received = yield* Deferred.make<Exit.Exit<unknown, PeerGone>>()
      const { port } = yield* listen(
        accepting((peer) => Effect.flatMap(Effect.exit(peer.receive), (exit) => Deferred.succeed(received, exit)))
      )
      const { reads, socket } = yield* dial(port, handshakeText)
      yield* reads("101")
      socket.destroy()
      assert.deepStrictEqual(yield* Deferred.await(received), Exit.fail(new PeerGone()))
    }))
})

// ----------------------------------------------------------------------------
// handshakes
// ----------------------------------------------------------------------------

describe("a socket is closed from here", () => {
  const endings: ReadonlyArray<readonly [string, string, Effect.Effect<HandshakeAnswer>, string]> = [
    ["when its handshake is refused", handshakeText, Effect.succeed({ _tag: "Refuse", status: 401 }), "401"],
    ["when it isn't a handshake", handshakeText.replace(/Sec-WebSocket-Key.*\r\n/, ""), accepting(echo), "400"]
  ]
  for (const [when, request, answer, status] of endings) {
    it.scopedLive(`${when}, though its client keeps it open`, () =>
      Effect.gen(function*() {
        const making = yield* makingServer
        const { port } = yield* listen(answer)
        const closed = yield* closing(yield* making)
        const { ended, reads } = yield* dial(port, request)
        yield* reads(status)
        yield* ended
        yield* closed
      }))
  }

  it.scopedLive("when its handshake runs into a bug, which is told", () =>
    Effect.gen(function*() {
      const { logger, told } = hearing()
      const making = yield* makingServer
      const { port } = yield* Effect.provide(listen(Effect.die("no guard")), logger)
      const closed = yield* closing(yield* making)
      const { ended } = yield* dial(port, handshakeText)
      yield* ended
      yield* closed
      assert.deepStrictEqual(told, [["a bug in the OpenEnv server; the socket is closed", "no guard"]])
    }))

  it.scopedLive("when the server ends during its handshake", () =>
    Effect.gen(function*() {
      const making = yield* makingServer
      const isUnderWay = yield* Deferred.make<void>()
      const scope = yield* Scope.make()
      const { port } = yield* Scope.extend(
        listen(Effect.zipRight(Deferred.succeed(isUnderWay, undefined), Effect.never)),
        scope
      )
      const closed = yield* closing(yield* making)
      const { ended } = yield* dial(port, handshakeText)
      yield* Deferred.await(isUnderWay)
      yield* Scope.close(scope, Exit.void)
      yield* closed
      yield* ended
    }))

  it.scopedLive("and is nobody's business any more, when its client leaves during the handshake", () =>
    Effect.gen(function*() {
      const making = yield* makingServer
      const serving = yield* Deferred.make<Fiber.RuntimeFiber<unknown, unknown>>()
      const hasLeft = yield* Deferred.make<void>()
      const { port } = yield* listen(
        Effect.withFiberRuntime<HandshakeAnswer>((fiber) =>
          Deferred.succeed(serving, fiber).pipe(
            Effect.zipRight(Deferred.await(hasLeft)),
            Effect.zipRight(accepting(echo))
          )
        )
      )
      const closed = yield* closing(yield* making)
      const { socket } = yield* dial(port, handshakeText)
      const fiber = yield* Deferred.await(serving)
      socket.resetAndDestroy()
      yield* closed
      yield* Deferred.succeed(hasLeft, undefined)
      assert.isTrue(Exit.isSuccess(yield* Fiber.await(fiber)))
    }))
})

// ----------------------------------------------------------------------------
// the server
// ----------------------------------------------------------------------------

const refusing = Effect.succeed({ _tag: "Refuse", status: 404 } as const)

describe("listening", () => {
  it.scopedLive("ends with the scope, also when that ends before it has begun", () =>
    Effect.gen(function*() {
      const making = yield* makingServer
      const lookup = yield* lookingUp
      const fiber = yield* Effect.fork(Effect.scoped(Effect.zipRight(listen(refusing, "localhost"), Effect.never)))
      const server = yield* making
      yield* Effect.addFinalizer(() => Effect.sync(() => void server.close()))
      const found = yield* lookup
      yield* Fiber.interrupt(fiber)
      found(null, "127.0.0.1", 4)
      yield* Effect.async<void>((resume) => {
        setImmediate(() => resume(Effect.void))
      })
      assert.isFalse(server.listening)
    }))

  it.scopedLive("ends before the sockets do", () =>
    Effect.gen(function*() {
      const making = yield* makingServer
      const isServing = yield* Deferred.make<void>()
      const wasListening = yield* Deferred.make<boolean>()
      const scope = yield* Scope.make()
      const { port } = yield* Scope.extend(
        listen(accepting(() =>
          Effect.zipRight(Deferred.succeed(isServing, undefined), Effect.never).pipe(
            Effect.ensuring(Effect.flatMap(making, (server) => Deferred.succeed(wasListening, server.listening)))
          )
        )),
        scope
      )
      const { socket } = yield* dial(port, handshakeText)
      yield* Deferred.await(isServing)
      const ending = yield* Effect.fork(Scope.close(scope, Exit.void))
      assert.isFalse(yield* Deferred.await(wasListening))
      socket.destroy()
      yield* Fiber.join(ending)
    }))

  it.scopedLive("outlives its errors, and tells them", () =>
    Effect.gen(function*() {
      const { logger, told } = hearing()
      const making = yield* makingServer
      const { port } = yield* Effect.provide(listen(refusing), logger)
      const server = yield* making
      const [first, second] = [new Error("accept EMFILE"), new Error("accept ENFILE")]
      server.emit("error", first)
      server.emit("error", second)
      const { reads } = yield* dial(port, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
      yield* reads("hello")
      assert.deepStrictEqual(
        told,
        [first, second].map((error) => ["the OpenEnv server couldn't take a connection", error])
      )
    }))

  it.scopedLive("says what the operating system calls a refusal that it has no words for", () =>
    Effect.sync(() => {
      assert.include(listenFailed("h", 1, "EWHATEVER").message, "the operating system refused (EWHATEVER)")
      assert.notInclude(listenFailed("h", 1, undefined).message, "(")
      assert.strictEqual(listenFailed("::1", 1, "EAFNOSUPPORT").reason, "no-such-address")
    }))
})

// ----------------------------------------------------------------------------
// the client's sockets
// ----------------------------------------------------------------------------

describe("a client's socket", () => {
  it.scopedLive("that is closed while it connects ends nothing else", () =>
    Effect.gen(function*() {
      const caught = yield* uncaught
      const { port } = yield* listen(Effect.never)
      const open = yield* Effect.provide(Socket.WebSocketConstructor, NodeTransport.layerWebSocketConstructor())
      yield* Effect.async<void>((resume) => {
        const socket = open(`ws://127.0.0.1:${port}`)
        socket.addEventListener("close", () => resume(Effect.void))
        socket.close()
      })
      assert.deepStrictEqual(caught, [])
    }))
})

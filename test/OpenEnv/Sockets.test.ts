import { Socket } from "@effect/platform"
import { assert, describe, it } from "@effect/vitest"
import {
  Deferred,
  Duration,
  Effect,
  Either,
  Exit,
  Fiber,
  Layer,
  Logger,
  LogLevel,
  Option,
  Redacted,
  Schedule,
  Schema,
  Scope,
  TestClock
} from "effect"
import { subscribe, unsubscribe } from "node:diagnostics_channel"
import * as net from "node:net"
import { WebSocket } from "ws"
import * as OpenEnv from "../../src/OpenEnv.ts"
import * as Client from "../../src/OpenEnv/Client.ts"
import * as Connection from "../../src/OpenEnv/Connection.ts"
import type { Environment, Kind } from "../../src/OpenEnv/Environment.ts"
import * as NodeTransport from "../../src/OpenEnv/NodeTransport.ts"
import * as Sessions from "../../src/OpenEnv/Sessions.ts"
import type { Peer } from "../../src/OpenEnv/Transport.ts"
import { Transport } from "../../src/OpenEnv/Transport.ts"
import { World } from "../../src/Sandbox/Simulated.ts"
import { edit, inside, outside, solution } from "../Episode/fixture.ts"
import { call, type Place, reset, shipped, terminal } from "./fixture.ts"

// Real sockets and real time: nothing here waits longer than it has to, and no assertion is about how long it took.

const withServer = <A, E>(
  place: Place,
  test: (server: typeof OpenEnv.OpenEnvServer.Service) => Effect.Effect<A, E, World | Scope.Scope>
) =>
  Effect.flatMap(OpenEnv.OpenEnvServer, test).pipe(
    Effect.provide(
      OpenEnv.layer({ port: 0, ...place }).pipe(
        Layer.provide(inside(place)),
        Layer.provide(NodeTransport.layer),
        Layer.provideMerge(outside(place)),
        Layer.orDie
      )
    ),
    Effect.scoped
  )

const eventually = (condition: Effect.Effect<boolean>) =>
  condition.pipe(
    Effect.filterOrFail((holds) => holds),
    Effect.retry(Schedule.spaced("20 millis").pipe(Schedule.intersect(Schedule.recurs(400)))),
    Effect.orDieWith(() => new Error("it never came true"))
  )

const decodeLimits = Schema.decodeUnknownSync(Schema.Struct({
  server: Schema.Struct({
    headersTimeout: Schema.Number,
    requestTimeout: Schema.Number,
    connectionsCheckingInterval: Schema.Number
  })
}))

const free = (server: typeof OpenEnv.OpenEnvServer.Service) =>
  eventually(Effect.zipWith(server.sessions, server.open, (taken, open) => taken === 0 && open.length === 0))

const connect = (options: Client.Options) =>
  Client.connect(options).pipe(Effect.provide(NodeTransport.layerWebSocketConstructor()))

/** A raw socket, and what becomes of it. */
const raw = (url: string, options: { readonly headers?: Record<string, string> } = {}) =>
  Effect.acquireRelease(
    Effect.sync(() => new WebSocket(`${url.replace("http", "ws")}/ws`, options)),
    (socket) => Effect.sync(() => socket.terminate())
  ).pipe(Effect.tap((socket) => {
    socket.on("error", () => {})
    return Effect.async<void, number>((resume) => {
      socket.once("open", () => resume(Effect.void))
      socket.once("unexpected-response", (_, { statusCode = 0 }) => resume(Effect.fail(statusCode)))
    })
  }))

const closeCode = (socket: WebSocket) =>
  Effect.async<number>((resume) => {
    socket.once("close", (code) => resume(Effect.succeed(code)))
  })

const message = (socket: WebSocket) =>
  Effect.async<string>((resume) => {
    socket.once("message", (data) => resume(Effect.succeed(String(data))))
  })

describe("the server, over sockets", () => {
  it.live("plays whole episodes with the client", () =>
    withServer({}, (server) =>
      Effect.gen(function*() {
        const client = yield* connect({ url: server.url })
        const ready = yield* client.reset({ task: shipped, episode_id: "e-1" })
        assert.deepInclude(ready.metadata, { status: "ready", episode_id: "e-1" })
        assert.strictEqual((yield* client.callTool("terminal", { command: "echo hi" })).reward, 0)
        yield* client.callTool("terminal", { command: edit(solution) })
        const end = yield* client.callTool("submit")
        assert.deepInclude(end, { reward: 1, done: true })
        assert.deepInclude(yield* client.state, { episode_id: "e-1", step_count: 3, reward: 1 })
        const refused = yield* Effect.flip(client.reset({ task: "{" }))
        assert.deepInclude(refused, { _tag: "EnvironmentRefused", code: "VALIDATION_ERROR" })
        const listed = yield* client.mcp("tools/list")
        assert.property(listed, "result")
        yield* client.reset({ task: shipped })
      }).pipe(Effect.scoped, Effect.zipRight(free(server)))))

  it.live("gives its place back when a client is killed in the middle of a command", () =>
    withServer({ latency: "30 millis" }, (server) =>
      Effect.gen(function*() {
        const socket = yield* raw(server.url)
        socket.send(JSON.stringify(reset()))
        yield* message(socket)
        socket.send(JSON.stringify(terminal("sleep 9")))
        yield* eventually(
          Effect.map(
            Effect.flatMap(World, ({ running }) => running),
            (all) => all.some(({ commands }) => commands.length === 1)
          ).pipe(Effect.provideService(World, yield* World))
        )
        socket.terminate()
        yield* free(server)
      })))

  it.live("gives it back when a peer is cut off without a FIN", () =>
    withServer({ pingInterval: "50 millis", pingTimeout: "50 millis" }, (server) =>
      Effect.gen(function*() {
        const { port } = server
        // Speaks just enough to be let in, and then neither reads nor answers.
        const peer = yield* Effect.acquireRelease(
          Effect.async<net.Socket>((resume) => {
            const socket = net.connect({ host: "127.0.0.1", port }, () => {
              socket.write(
                "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                  + "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
              )
              socket.pause()
              resume(Effect.succeed(socket))
            })
          }),
          (socket) => Effect.sync(() => socket.destroy())
        )
        yield* eventually(Effect.map(server.sessions, (taken) => taken === 1))
        yield* free(server)
        assert.isFalse(peer.destroyed)
      })))

  it.live("closes a socket whose frame is too large, or that sends more than it waits for", () =>
    withServer({ maxFrameBytes: 64 * 1024, maxSessions: 4 }, (server) =>
      Effect.gen(function*() {
        const [large, fast, other] = yield* Effect.all([raw(server.url), raw(server.url), raw(server.url)])
        large.send("x".repeat(64 * 1024 + 1))
        assert.strictEqual(yield* closeCode(large), 1009)
        const closed = yield* Effect.fork(closeCode(fast))
        yield* Effect.yieldNow()
        for (let i = 0; i < 200; i++) {
          fast.send(JSON.stringify(reset()))
        }
        assert.strictEqual(yield* Fiber.join(closed), 1008)
        other.send(JSON.stringify({ type: "state" }))
        assert.include(yield* message(other), "\"idle\"")
        const response = yield* Effect.promise(() =>
          fetch(`${server.url}/mcp`, { method: "POST", body: "x".repeat(64 * 1024 + 1) })
        )
        assert.strictEqual(response.status, 413)
      })))

  const chunkedPost = (port: number, chunks: ReadonlyArray<string>) =>
    Effect.async<string>((resume) => {
      let answer = ""
      const socket = net.connect({ host: "127.0.0.1", port }, () => {
        socket.write("POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for (const chunk of chunks) {
          socket.write(`${chunk.length.toString(16)}\r\n${chunk}\r\n`)
        }
      })
      socket.setEncoding("utf8")
      socket.on("data", (text) => {
        answer += text
        // A connection that stays open is closed from here when the reply is whole.
        if (answer.endsWith("}") && !answer.includes("connection: close")) {
          socket.end()
        }
      })
      socket.on("error", () => {})
      socket.on("close", () => resume(Effect.succeed(answer)))
    })

  it.live("answers a body in chunks, and closes the connection after one that is too large", () =>
    withServer({ maxFrameBytes: 64 * 1024 }, ({ port }) =>
      Effect.gen(function*() {
        const large = yield* chunkedPost(port, Array.from({ length: 9 }, () => "x".repeat(8 * 1024)))
        assert.match(large, /^HTTP\/1\.1 413 /)
        assert.include(large, "too large")
        const fitting = yield* chunkedPost(port, ["{\"jsonrpc\":\"2.0\",", "\"method\":\"tools/list\",\"id\":7}", ""])
        assert.match(fitting, /^HTTP\/1\.1 200 /)
        assert.include(fitting, "\"id\":7")
      })))

  it.live("ends a request that doesn't come to an end soon after its time is over", () =>
    withServer({}, ({ url }) =>
      Effect.gen(function*() {
        const servers: Array<unknown> = []
        const see = (message: unknown) => {
          servers.push(decodeLimits(message).server)
        }
        yield* Effect.acquireRelease(
          Effect.sync(() => subscribe("http.server.request.start", see)),
          () => Effect.sync(() => unsubscribe("http.server.request.start", see))
        )
        yield* Effect.promise(() => fetch(`${url}/health`))
        assert.deepInclude(servers, {
          headersTimeout: 10_000,
          requestTimeout: 30_000,
          connectionsCheckingInterval: 1000
        })
      })))

  it.live("lets in who has its token, and no page of another origin", () =>
    withServer({ token: Redacted.make("open sesame") }, (server) =>
      Effect.gen(function*() {
        const authorization = (value: string) => ({ headers: { authorization: value } })
        const basic = (password: string) => `Basic ${Buffer.from(`me:${password}`).toString("base64")}`
        for (const bad of [{}, authorization("Bearer wrong"), authorization(basic("wrong")), authorization("Bearer")]) {
          assert.strictEqual(yield* Effect.flip(raw(server.url, bad)), 401)
        }
        yield* raw(server.url, authorization("Bearer open")).pipe(Effect.flip)
        for (const good of ["Bearer open%20sesame", basic("open sesame")]) {
          yield* Effect.exit(raw(server.url, authorization(good)))
        }
        yield* raw(server.url, authorization(basic("open sesame")))
        const evil = { headers: { authorization: basic("open sesame"), origin: "https://example.org" } }
        assert.strictEqual(yield* Effect.flip(raw(server.url, evil)), 403)
        const status = yield* Effect.promise(() => fetch(`${server.url}/web`).then(({ status }) => status))
        assert.strictEqual(status, 401)
      })))

  it.live("is no server for a name that isn't this machine's", () =>
    withServer({}, (server) =>
      Effect.gen(function*() {
        const named = (host: string, origin?: string) =>
          raw(server.url, { headers: { host, ...(origin === undefined ? {} : { origin }) } })
        assert.strictEqual(yield* Effect.flip(named("rebound.example.org")), 403)
        assert.strictEqual(yield* Effect.flip(named(`localhost:${server.port}`, "https://example.org")), 403)
        assert.strictEqual(yield* Effect.flip(named(`localhost:${server.port}`, "null")), 403)
        yield* named(`localhost:${server.port}`, `http://localhost:${server.port}`)
      })))

  it.live("says what is wrong with an address", () =>
    withServer({}, ({ port }) =>
      Effect.gen(function*() {
        const transport = yield* Transport
        const options = {
          host: "127.0.0.1",
          port,
          maxFrameBytes: 1024,
          http: Effect.die("never"),
          handshake: () => Effect.succeed({ _tag: "Refuse", status: 404 } as const)
        }
        assert.include((yield* Effect.flip(transport.listen(options))).message, "something else listens there")
        const elsewhere = yield* Effect.flip(transport.listen({ ...options, host: "192.0.2.1", port: 0 }))
        assert.strictEqual(elsewhere.reason, "no-such-address")
      }).pipe(Effect.provide(NodeTransport.layer))))

  it.live("closes every socket at its end, and leaves nothing", () =>
    Effect.gen(function*() {
      const code = yield* Deferred.make<number>()
      yield* withServer({}, (server) =>
        Effect.gen(function*() {
          const socket = new WebSocket(`${server.url.replace("http", "ws")}/ws`)
          socket.once("close", (value) => Deferred.unsafeDone(code, Effect.succeed(value)))
          yield* Effect.promise(() => new Promise((resolve) => socket.once("open", resolve)))
          socket.send(JSON.stringify(reset()))
          yield* message(socket)
          socket.send(JSON.stringify(call("terminal", { command: "sleep 9" })))
        }))
      assert.strictEqual(yield* Deferred.await(code), 1001)
    }))
})

// ----------------------------------------------------------------------------
// the client
// ----------------------------------------------------------------------------

/** A server that does what a script says. */
const scripted = <A, E>(
  script: (peer: Peer) => Effect.Effect<void>,
  test: (url: string) => Effect.Effect<A, E, Scope.Scope>
) =>
  Effect.gen(function*() {
    const transport = yield* Transport
    const { port } = yield* transport.listen({
      host: "127.0.0.1",
      port: 0,
      maxFrameBytes: 1024 * 1024,
      http: Effect.die("never"),
      handshake: () => Effect.succeed({ _tag: "Accept", serve: script } as const)
    })
    return yield* test(`http://127.0.0.1:${port}`)
  }).pipe(Effect.scoped, Effect.provide(NodeTransport.layer))

const frame = (value: unknown) => JSON.stringify(value)

const fine = frame({ type: "observation", data: { observation: {}, reward: null, done: false } })

const answering = (...replies: ReadonlyArray<string>) => (peer: Peer) =>
  Effect.forEach(replies, (reply) => Effect.zipRight(peer.receive, peer.send(reply)), { discard: true }).pipe(
    Effect.zipRight(peer.gone),
    Effect.ignore
  )

describe("the client", () => {
  it.live("takes metadata from the envelope, from the observation, or has none", () =>
    scripted(
      answering(
        frame({
          type: "observation",
          data: { observation: { metadata: { a: 1 } }, reward: 0.5, done: true, metadata: { b: 2 } }
        }),
        frame({
          type: "observation",
          data: { observation: { metadata: { a: 1 } }, reward: null, done: false, newer: 1 }
        }),
        fine
      ),
      (url) =>
        Effect.gen(function*() {
          const client = yield* connect({ url })
          assert.deepInclude(yield* client.reset(), { metadata: { b: 2 }, reward: 0.5, done: true })
          assert.deepInclude(yield* client.step({ anything: 1 }), { metadata: { a: 1 } })
          assert.deepInclude(yield* client.step({}), { metadata: {} })
        })
    ))

  const observing = (observation: string) =>
    `{"type":"observation","data":{"observation":${observation},"reward":null,"done":false}}`
  const tooMuch: ReadonlyArray<readonly [string, string]> = [
    ["more values than it looks at", observing(`{"a":[${"{},".repeat(300_000)}0]}`)],
    ["nesting without end", observing(`{"a":${"[".repeat(1000)}${"]".repeat(1000)}}`)],
    ["a prototype", observing("{\"__proto__\":{\"a\":1}}")]
  ]
  it.live.each(tooMuch)(
    "takes no frame with %s",
    ([, text]) =>
      scripted(answering(text), (url) =>
        Effect.gen(function*() {
          const client = yield* connect({ url })
          assert.deepInclude(yield* Effect.flip(client.reset()), {
            _tag: "ProtocolViolation",
            detail: "not a frame of OpenEnv"
          })
          assert.strictEqual((yield* Effect.flip(client.state))._tag, "ProtocolViolation")
        }))
  )

  it.live("takes a picture, and keeps little of an error", () =>
    scripted(
      answering(
        frame({
          type: "observation",
          data: { observation: { screen: Array.from({ length: 210 * 160 * 3 }, () => 7) }, reward: 0, done: false }
        }),
        frame({
          type: "error",
          data: {
            message: "x".repeat(100_000),
            code: "VALIDATION_ERROR",
            errors: Array.from({ length: 1000 }, (_, n) => n)
          }
        })
      ),
      (url) =>
        Effect.gen(function*() {
          const client = yield* connect({ url })
          assert.property((yield* client.reset()).observation, "screen")
          const error = yield* Effect.flip(client.state)
          assert.isTrue(error._tag === "EnvironmentRefused" && error.errors?.length === 20)
          assert.isBelow(error.message.length, 5000)
        })
    ))

  it.live("takes a capacity error for the answer to its first request, and is over", () =>
    scripted(
      (peer) =>
        Effect.ignore(peer.send(frame({
          type: "error",
          data: { message: "full", code: "CAPACITY_REACHED", active_sessions: 2, max_sessions: 2 }
        }))),
      (url) =>
        Effect.gen(function*() {
          const client = yield* connect({ url })
          const error = yield* Effect.flip(client.reset())
          if (error._tag === "EnvironmentRefused") {
            assert.deepInclude(error, { code: "CAPACITY_REACHED", active_sessions: 2, max_sessions: 2 })
          } else {
            assert.strictEqual(error._tag, "EnvironmentRefused")
          }
          assert.strictEqual((yield* Effect.flip(client.state))._tag, "EnvironmentRefused")
        })
    ))

  it.live("never uses a connection again on which a reply was missed", () =>
    scripted(
      (peer) =>
        peer.receive.pipe(Effect.delay("300 millis"), Effect.zipRight(peer.send(fine)), Effect.forever, Effect.ignore),
      (url) =>
        Effect.gen(function*() {
          const client = yield* connect({ url, replyTimeout: "50 millis" })
          assert.deepInclude(yield* Effect.flip(client.reset()), {
            _tag: "ReplyMissed",
            reason: "timeout",
            request: "reset"
          })
          // The late reply is there by now, and isn't taken for this one's.
          yield* Effect.sleep("400 millis")
          assert.deepInclude(yield* Effect.flip(client.step({})), { _tag: "ReplyMissed", request: "reset" })

          const other = yield* connect({ url })
          const asking = yield* Effect.fork(other.reset())
          yield* Effect.sleep("50 millis")
          yield* Fiber.interrupt(asking)
          assert.deepInclude(yield* Effect.flip(other.state), { _tag: "ReplyMissed", reason: "interrupted" })
        })
    ))

  const violations: ReadonlyArray<readonly [string, string]> = [
    ["no JSON", "hello"],
    ["no frame", "{\"type\":\"observation\"}"],
    ["an unknown type", "{\"type\":\"party\",\"data\":{}}"],
    ["the wrong type", frame({ type: "state", data: { step_count: 1 } })],
    ["a reward that is no number", frame({ type: "observation", data: { observation: {}, reward: "1", done: true } })],
    ["a reward that is a boolean", frame({ type: "observation", data: { observation: {}, reward: true, done: true } })],
    ["an end that is no boolean", frame({ type: "observation", data: { observation: {}, reward: 1, done: 1 } })],
    ["an infinite reward", "{\"type\":\"observation\",\"data\":{\"observation\":{},\"reward\":1e999,\"done\":true}}"]
  ]
  for (const [what, reply] of violations) {
    it.live(`takes ${what} for a violation, and is over`, () =>
      scripted(answering(reply, fine), (url) =>
        Effect.gen(function*() {
          const client = yield* connect({ url })
          assert.strictEqual((yield* Effect.flip(client.reset()))._tag, "ProtocolViolation")
          assert.strictEqual((yield* Effect.flip(client.reset()))._tag, "ProtocolViolation")
        })))
  }

  it.live("takes a frame that nobody asked for as one too", () =>
    scripted(
      (peer) =>
        Effect.ignore(
          peer.receive.pipe(
            Effect.zipRight(peer.send(fine)),
            Effect.zipRight(peer.send(fine)),
            Effect.zipRight(peer.gone)
          )
        ),
      (url) =>
        Effect.gen(function*() {
          const client = yield* connect({ url })
          yield* client.reset()
          yield* Effect.sleep("100 millis")
          assert.strictEqual((yield* Effect.flip(client.step({})))._tag, "ProtocolViolation")
        })
    ))

  it.live("fails at once when the connection is lost, and doesn't make another", () => {
    let connections = 0
    return scripted(
      (peer) =>
        Effect.suspend(() => {
          connections += 1
          return Effect.ignore(peer.receive)
        }),
      (url) =>
        Effect.gen(function*() {
          const client = yield* connect({ url })
          assert.deepInclude(yield* Effect.flip(client.reset()), { _tag: "ConnectionLost", request: "reset" })
          assert.deepInclude(yield* Effect.flip(client.reset()), { _tag: "ConnectionLost" })
          assert.strictEqual(connections, 1)
        })
    )
  })

  it.scopedLive("says so when there is nobody", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(connect({ url: "ws://me:hunter2@127.0.0.1:1" }))
      assert.deepInclude(error, { _tag: "ConnectionLost", request: "connect", reason: "unreachable" })
      assert.strictEqual(
        error.message,
        "couldn't connect to the environment (connect): ECONNREFUSED (127.0.0.1:1)"
      )
    }))

  it.live("says so when it isn't let in", () =>
    withServer({ token: Redacted.make("open sesame") }, ({ port, url }) =>
      Effect.gen(function*() {
        const error = yield* Effect.flip(connect({ url }))
        assert.deepInclude(error, { _tag: "ConnectionLost", reason: "refused", status: 401 })
        assert.strictEqual(
          error.message,
          `the server of the environment refused the connection (connect, HTTP 401): 127.0.0.1:${port}`
        )
      })))

  it.scopedLive("says so when nobody answers", () =>
    Effect.gen(function*() {
      const { port } = yield* Effect.flatMap(Transport, ({ listen }) =>
        listen({
          host: "127.0.0.1",
          port: 0,
          maxFrameBytes: 1024,
          http: Effect.die("never"),
          handshake: () => Effect.never
        }))
      const error = yield* Effect.flip(connect({ url: `ws://127.0.0.1:${port}`, connectTimeout: "50 millis" }))
      assert.deepInclude(error, { reason: "unreachable", detail: `no answer in time (127.0.0.1:${port})` })
    }).pipe(Effect.provide(NodeTransport.layer)))

  it.live("says how the connection ended", () =>
    scripted((peer) => Effect.ignore(peer.receive), (url) =>
      Effect.gen(function*() {
        const client = yield* connect({ url })
        const error = yield* Effect.flip(client.reset())
        assert.deepInclude(error, { _tag: "ConnectionLost", request: "reset", reason: "lost" })
        assert.strictEqual(
          error.message,
          "the connection to the environment was lost (reset): the server closed it with code 1000"
        )
      })))

  const misnamed: ReadonlyArray<readonly [string, string]> = [
    ["nonsense", "it isn't an absolute URL"],
    ["127.0.0.1:8011", "it isn't an absolute URL"],
    ["", "it isn't an absolute URL"],
    ["localhost:8011", "it is none with http, https, ws or wss"],
    ["ftp://me:hunter2@h", "it is none with http, https, ws or wss"],
    ["ws://127.0.0.1:8011#hunter2", "it has a fragment"],
    ["ws://127.0.0.1:8011#", "it has a fragment"]
  ]
  it.scopedLive.each(misnamed)("opens no socket at %j", ([url, detail]) =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(connect({ url }))
      assert.deepInclude(error, { _tag: "ConnectionLost", request: "connect", reason: "invalid-url", detail })
      assert.strictEqual(error.message, `the URL of the environment can't be used (connect): ${detail}`)
    }))

  const addresses: ReadonlyArray<readonly [Client.Options, string]> = [
    [{ url: "http://h" }, "ws://h/ws"],
    [{ url: "HTTPS://h:8011/a/b//" }, "wss://h:8011/a/b/ws"],
    [{ url: "ws://me:pw@h/", sessionId: "a/b&c" }, "ws://me:pw@h/ws?session_id=a%2Fb%26c"],
    [{ url: "wss://h/a?x=1", sessionId: "\ud800" }, "wss://h/a/ws?x=1&session_id=%EF%BF%BD"]
  ]
  it.scopedLive.each(addresses)(
    "opens the session under its base URL: %j",
    ([options, expected]) =>
      Effect.gen(function*() {
        const urls: Array<string> = []
        const open = (url: string) => {
          urls.push(url)
          throw new Error("no socket")
        }
        const error = yield* Effect.flip(
          Effect.provideService(Client.connect(options), Socket.WebSocketConstructor, open)
        )
        assert.deepInclude(error, { _tag: "ConnectionLost", reason: "unreachable", detail: new URL(expected).host })
        assert.deepStrictEqual(urls, [expected])
      })
  )

  const logged = <A, E, R>(effect: Effect.Effect<A, E, R>) => {
    const lines: Array<string> = []
    const logger = Logger.map(Logger.logfmtLogger, (line) => {
      lines.push(line)
    })
    return Effect.map(
      effect.pipe(
        Logger.withMinimumLogLevel(LogLevel.Debug),
        Effect.provide(Logger.replace(Logger.defaultLogger, logger))
      ),
      (value) => [value, lines.join("\n")] as const
    )
  }

  it.scopedLive("tells no secret of a socket that can't be made, and what went wrong in the log", () =>
    Effect.gen(function*() {
      const headers = { authorization: "Bearer hunter2\n" }
      const [error, log] = yield* Client.connect({ url: "ws://me:hunter2@127.0.0.1:1/?token=hunter2" }).pipe(
        Effect.provide(NodeTransport.layerWebSocketConstructor({ headers })),
        Effect.flip,
        logged
      )
      assert.deepInclude(error, { reason: "unreachable", detail: "ERR_INVALID_CHAR (127.0.0.1:1)" })
      assert.include(log, "level=DEBUG")
      assert.include(log, "Invalid character in header content")
      assert.notInclude(`${error.message} ${log}`, "hunter2")
    }))

  it.scopedLive("says in the log what has no code", () =>
    Effect.gen(function*() {
      const server = yield* Effect.acquireRelease(
        Effect.async<net.Server>((resume) => {
          const server = net.createServer((socket) => {
            socket.on("error", () => {})
            socket.once("data", () =>
              socket.end(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                  + "Sec-WebSocket-Accept: nonsense\r\n\r\n"
              ))
          }).listen(0, "127.0.0.1", () => resume(Effect.succeed(server)))
        }),
        (server) => Effect.async<void>((resume) => void server.close(() => resume(Effect.void)))
      )
      const address = server.address()
      const host = typeof address === "object" && address !== null ? `127.0.0.1:${address.port}` : ""
      const [error, log] = yield* Client.connect({ url: `ws://${host}` }).pipe(
        Effect.provide(NodeTransport.layerWebSocketConstructor({ headers: { authorization: "Bearer hunter2" } })),
        Effect.flip,
        logged
      )
      assert.deepInclude(error, { reason: "unreachable", detail: host })
      assert.include(log, "Invalid Sec-WebSocket-Accept header")
      assert.notInclude(log, "hunter2")
    }))

  it.live("has one request in flight: another waits for its turn", () => {
    const seen: Array<string> = []
    return scripted(
      (peer) =>
        Effect.ignore(Effect.forever(Effect.gen(function*() {
          const text = yield* peer.receive
          seen.push(`in ${String(text).length > 0 ? "1" : ""}`)
          yield* Effect.sleep("20 millis")
          seen.push("out")
          yield* peer.send(fine)
        }))),
      (url) =>
        Effect.gen(function*() {
          const client = yield* connect({ url })
          yield* Effect.all([client.reset(), client.step({}), client.step({})], { concurrency: 3 })
          assert.deepStrictEqual(seen, ["in 1", "out", "in 1", "out", "in 1", "out"])
        })
    )
  })
})

// ----------------------------------------------------------------------------
// sessions
// ----------------------------------------------------------------------------

const idle: Environment = {
  reset: () => Effect.die("never"),
  step: () => Effect.die("never"),
  call: () => Effect.die("never"),
  state: Effect.succeed({ step_count: 0 })
}

const sessionsOf = (open: Kind["open"]) =>
  Sessions.make({
    kind: {
      name: "test",
      description: "",
      tools: [],
      schemas: { action: {}, observation: {}, state: {} },
      reset: { schema: {}, decode: Either.right },
      idle: { step_count: 0 },
      page: Option.none(),
      open
    },
    maxSessions: 2,
    idleTimeout: Duration.hours(1),
    detachedTimeout: Duration.hours(1),
    shutdownTimeout: Duration.seconds(10)
  })

describe("a place", () => {
  it.scoped("isn't lost to an environment that can't be opened", () =>
    Effect.gen(function*() {
      let opened = 0
      let released = 0
      const sessions = yield* sessionsOf(Effect.gen(function*() {
        opened += 1
        yield* Effect.addFinalizer(() =>
          Effect.sync(() => {
            released += 1
          })
        )
        return yield* opened <= 2 ? Effect.dieMessage("a bug") : Effect.succeed(idle)
      }))
      for (const start of [sessions.create, Effect.scoped(sessions.own)]) {
        assert.include(String(yield* Effect.exit(start)), "a bug")
        assert.strictEqual(yield* sessions.count, 0)
      }
      assert.strictEqual(released, 2)
      yield* sessions.create
      yield* sessions.create
      assert.strictEqual((yield* Effect.flip(sessions.create))._tag, "CapacityReached")
    }))

  it.scoped("isn't lost to one that can't be closed, and the end waits for the others", () =>
    Effect.suspend(() => {
      const told: Array<unknown> = []
      const logger = Logger.make(({ message }) => {
        told.push(message)
      })
      return Effect.provide(endings(told), Logger.replace(Logger.defaultLogger, logger))
    }))

  const endings = (told: ReadonlyArray<unknown>) =>
    Effect.gen(function*() {
      let opened = 0
      let isReleased = false
      const open = Effect.gen(function*() {
        opened += 1
        yield* Effect.addFinalizer(
          opened <= 2 ? () => Effect.dieMessage("a bug") : () =>
            Effect.sync(() => {
              isReleased = true
            }).pipe(Effect.delay("1 second"))
        )
        return idle
      })
      const scope = yield* Scope.make()
      const sessions = yield* Scope.extend(sessionsOf(open), scope)
      const first = yield* sessions.create
      assert.isTrue(yield* sessions.close(first.id, Option.none()))
      yield* first.over
      assert.strictEqual(yield* sessions.count, 0)
      yield* sessions.create
      yield* sessions.create
      const ending = yield* Effect.fork(Scope.close(scope, Exit.void))
      yield* TestClock.adjust("1 second")
      yield* Fiber.join(ending)
      assert.isTrue(isReleased)
      assert.lengthOf(told, 2)
    })
})

describe("a peer that doesn't read", () => {
  const deaf: Peer = {
    receive: Effect.never,
    send: () => Effect.never,
    ping: Effect.never,
    gone: Effect.never,
    close: () => Effect.void
  }
  const served = (open: Kind["open"], places: number) =>
    Effect.gen(function*() {
      const sessions = yield* sessionsOf(open)
      yield* Effect.replicateEffect(sessions.create, 2 - places)
      const options = { sessions, pingInterval: Duration.minutes(1), pingTimeout: Duration.seconds(10) }
      const serving = yield* Effect.fork(Connection.frameSocket(options, Option.none())(deaf))
      yield* TestClock.adjust("10 seconds")
      yield* Fiber.join(serving)
    }).pipe(Effect.provide(Logger.replace(Logger.defaultLogger, Logger.none)))

  it.scoped("is not waited for when there is no place for it", () => served(Effect.succeed(idle), 0))

  it.scoped("is not waited for when the server has a bug", () => served(Effect.dieMessage("a bug"), 2))
})

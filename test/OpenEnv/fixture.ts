import { HttpServerRequest, HttpServerResponse } from "@effect/platform"
import { Context, Deferred, Effect, Exit, FiberSet, Layer, Queue, Ref, Schema } from "effect"
import * as Budgets from "../../src/Budgets.ts"
import * as OpenEnv from "../../src/OpenEnv.ts"
import type { ListenOptions, Peer } from "../../src/OpenEnv/Transport.ts"
import { PeerGone, Transport } from "../../src/OpenEnv/Transport.ts"
import * as Wire from "../../src/OpenEnv/Wire.ts"
import type { SandboxProvider } from "../../src/Sandbox.ts"
import type { Ledger } from "../../src/Sandbox/Ledger.ts"
import * as Sandboxes from "../../src/Sandbox/Sandboxes.ts"
import type * as Simulated from "../../src/Sandbox/Simulated.ts"
import shipped from "../../task.json" with { type: "json" }
import type { Setting } from "../Episode/fixture.ts"
import { edit, inside, outside, solution } from "../Episode/fixture.ts"
import { virtually } from "../virtualTime.ts"

// ----------------------------------------------------------------------------
// a network in memory
// ----------------------------------------------------------------------------

/** The client's end of a socket. */
export interface Wired {
  readonly send: (message: unknown) => Effect.Effect<void>
  readonly sendRaw: (message: string | Uint8Array) => Effect.Effect<void>
  /** The next message, or undefined when the socket was closed. */
  readonly receive: Effect.Effect<string | undefined>
  /** The code the server closed it with. */
  readonly closed: Effect.Effect<number>
  /** Goes away. */
  readonly drop: Effect.Effect<void>
  /** Stays, and doesn't answer any more, not even a ping. */
  readonly fallSilent: Effect.Effect<void>
}

export class Network extends Context.Tag("test/OpenEnv/Network")<Network, {
  readonly connect: (
    url: string,
    headers?: Readonly<Record<string, string>>
  ) => Effect.Effect<Wired, number>
  readonly fetch: (request: Request) => Effect.Effect<Response>
}>() {}

const socketPair = (serve: (peer: Peer) => Effect.Effect<void>, run: (effect: Effect.Effect<void>) => unknown) =>
  Effect.gen(function*() {
    const toServer = yield* Queue.unbounded<string | Uint8Array>()
    const toClient = yield* Queue.unbounded<string | undefined>()
    const gone = yield* Deferred.make<void>()
    const closed = yield* Deferred.make<number>()
    const silent = yield* Ref.make(false)
    const peer: Peer = {
      receive: Queue.take(toServer),
      send: (text) =>
        Effect.flatMap(
          Deferred.isDone(gone),
          (isGone) => isGone ? new PeerGone() : Effect.asVoid(Queue.offer(toClient, text))
        ),
      ping: Effect.flatMap(Ref.get(silent), (isSilent) => isSilent ? Effect.never : Effect.void),
      gone: Deferred.await(gone),
      close: (code) =>
        Deferred.succeed(closed, code).pipe(
          Effect.zipRight(Queue.offer(toClient, undefined)),
          Effect.zipRight(Deferred.succeed(gone, undefined))
        )
    }
    run(Effect.onExit(serve(peer), (exit) => peer.close(Exit.isInterrupted(exit) ? 1001 : 1000, "")))
    const sendRaw = (message: string | Uint8Array) => Effect.asVoid(Queue.offer(toServer, message))
    return {
      send: (message) => sendRaw(JSON.stringify(message)),
      sendRaw,
      receive: Queue.take(toClient),
      closed: Deferred.await(closed),
      drop: Effect.asVoid(Deferred.succeed(gone, undefined)),
      fallSilent: Ref.set(silent, true)
    } satisfies Wired
  })

/** A transport without a network, and the other end of it. */
export const memory: Layer.Layer<Transport | Network> = Layer.effectContext(Effect.gen(function*() {
  const listening = yield* Ref.make<
    { readonly options: ListenOptions; readonly run: (effect: Effect.Effect<void>) => unknown } | undefined
  >(undefined)
  const server = Effect.flatMap(
    Ref.get(listening),
    (value) => value === undefined ? Effect.dieMessage("nobody listens") : Effect.succeed(value)
  )
  return Context.make(Transport, {
    listen: (options) =>
      Effect.gen(function*() {
        const run = yield* FiberSet.makeRuntime<never>()
        yield* Effect.acquireRelease(Ref.set(listening, { options, run }), () => Ref.set(listening, undefined))
        return { host: options.host, port: 8010 }
      })
  }).pipe(Context.add(Network, {
    connect: (url, headers = {}) =>
      Effect.flatMap(server, ({ options, run }) =>
        Effect.flatMap(
          options.handshake({ url, headers: { host: "127.0.0.1:8010", ...headers } }),
          (answer) => answer._tag === "Refuse" ? Effect.fail(answer.status) : socketPair(answer.serve, run)
        )),
    fetch: (request) =>
      Effect.flatMap(server, ({ options }) =>
        options.http.pipe(
          Effect.provideService(HttpServerRequest.HttpServerRequest, HttpServerRequest.fromWeb(request)),
          Effect.map((response) => HttpServerResponse.toWeb(response)),
          Effect.scoped
        ))
  }))
}))

// ----------------------------------------------------------------------------
// servers
// ----------------------------------------------------------------------------

export { shipped }

export interface Place extends Setting, OpenEnv.Options {}

export interface TerminusPlace extends Setting, OpenEnv.TerminusOptions {}

export type Outside = Simulated.World | SandboxProvider | Ledger | Network

// The world and the network outlive the server.
const inPlace = <A, E, F>(
  place: Setting,
  server: Layer.Layer<OpenEnv.OpenEnvServer, F, Outside | Transport>,
  test: Effect.Effect<A, E, OpenEnv.OpenEnvServer | Outside>,
  after: Effect.Effect<void, never, Outside>
): Effect.Effect<A, E> =>
  Effect.provide(test, Layer.orDie(server)).pipe(
    Effect.zipLeft(after),
    Effect.provide(Layer.merge(outside(place), memory)),
    virtually
  )

/** A server over simulated sandboxes, in virtual time. */
export const served = <A, E>(
  place: Place,
  test: Effect.Effect<A, E, OpenEnv.OpenEnvServer | Outside>,
  after: Effect.Effect<void, never, Outside> = Effect.void
): Effect.Effect<A, E> => inPlace(place, OpenEnv.layer(place).pipe(Layer.provide(inside(place))), test, after)

/** The same for the native Terminus environment. */
export const servedTerminus = <A, E>(
  place: TerminusPlace,
  test: Effect.Effect<A, E, OpenEnv.OpenEnvServer | Outside>,
  after: Effect.Effect<void, never, Outside> = Effect.void
): Effect.Effect<A, E> =>
  inPlace(
    place,
    OpenEnv.layerTerminus(place).pipe(Layer.provide(Sandboxes.layer), Layer.provide(Budgets.layer(place.budgets))),
    test,
    after
  )

// ----------------------------------------------------------------------------
// clients
// ----------------------------------------------------------------------------

const readFrame = Schema.decodeUnknownSync(Schema.parseJson(Wire.ServerFrame))

export const open = (url = "/ws", headers?: Readonly<Record<string, string>>) =>
  Effect.flatMap(Network, (network) => network.connect(url, headers)).pipe(Effect.orDie)

/** Sends a frame and decodes its reply. */
export const ask = (socket: Wired, frame: unknown) => Effect.zipRight(socket.send(frame), reply(socket))

export const reply = (socket: Wired) =>
  Effect.map(socket.receive, (text) => {
    if (text === undefined) {
      throw new Error("the socket was closed")
    }
    return readFrame(text)
  })

export const call = (tool: string, args: Readonly<Record<string, unknown>> = {}) => ({
  type: "step",
  data: { type: "call_tool", tool_name: tool, arguments: args }
})

export const reset = (data: Readonly<Record<string, unknown>> = { task: shipped }) => ({ type: "reset", data })

export const terminal = (command: string) => call("terminal", { command })

export const submit = call("submit")

export const repair = terminal(edit(solution))

/** The envelope of an observation. */
export const seen = (frame: Wire.ServerFrame) => {
  if (frame.type !== "observation") {
    throw new Error(`not an observation: ${JSON.stringify(frame)}`)
  }
  return frame.data
}

/** The text that a tool gave. */
export const said = (frame: Wire.ServerFrame): unknown => {
  const { result } = seen(frame).observation as { readonly result: { readonly data: unknown } }
  return result.data
}

/** The data of an error frame. */
export const fault = (frame: Wire.ServerFrame) => {
  if (frame.type !== "error") {
    throw new Error(`not an error: ${JSON.stringify(frame)}`)
  }
  return frame.data
}

export const http = (
  method: "GET" | "POST",
  path: string,
  body?: unknown,
  headers: Readonly<Record<string, string>> = {}
) =>
  Effect.flatMap(Network, ({ fetch }) =>
    Effect.flatMap(
      fetch(
        new Request(`http://127.0.0.1:8010${path}`, {
          method,
          headers: { host: "127.0.0.1:8010", ...headers },
          ...(body === undefined ? {} : { body: typeof body === "string" ? body : JSON.stringify(body) })
        })
      ),
      (response) =>
        Effect.map(Effect.promise(() => response.text()), (text) => ({
          status: response.status,
          headers: response.headers,
          text,
          json: (): Record<string, unknown> => JSON.parse(text)
        }))
    ))

/** One JSON-RPC request over HTTP. */
export const rpc = (method: string, params?: Readonly<Record<string, unknown>>) =>
  Effect.map(http("POST", "/mcp", { jsonrpc: "2.0", method, id: 1, ...(params === undefined ? {} : { params }) }), (
    response
  ) =>
    response.json() as {
      readonly result?: Record<string, unknown>
      readonly error?: { readonly code: number; readonly message: string; readonly data?: unknown }
    })

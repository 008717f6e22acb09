/**
 * A loopback proxy in front of an E2B server. It numbers every request of each kind, and does to chosen ones what networks
 * and load balancers do.
 */
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as http from "node:http"
import type { AddressInfo } from "node:net"

/** A request by what it is for. */
export type Kind =
  | "create"
  | "list"
  | "info"
  | "extend"
  | "connect"
  | "kill"
  | "upload"
  | "start"
  | "signal"
  | "health"
  | "other"

export interface Call {
  readonly kind: Kind
  /** Counts the requests of this kind, from 1. */
  readonly nth: number
  readonly sandboxId: string | undefined
}

/** A request as it went. Times are milliseconds since the proxy's start. */
export interface CallRecord extends Call {
  readonly startedAt: number
  readonly endedAt: number | undefined
  readonly fault: Fault["_tag"] | undefined
}

export type Fault = Data.TaggedEnum<{
  /** The reply comes this much later. */
  Latency: { readonly millis: number }
  /** The connection breaks, before the server has seen the request or after it has done what was asked. */
  Dropped: { readonly effect: boolean }
  /** A part of the reply, and the connection is reset. */
  ResetInBody: {}
  /** A part of the reply, and a clean end. */
  Truncated: {}
  /** No reply, ever. */
  Stalled: { readonly effect: boolean }
  /** A part of the reply, and never the rest. */
  StalledInBody: {}
  /** An answer of somebody in between; the server hasn't seen the request, or has done what was asked. */
  Answered: {
    readonly status: number
    readonly effect: boolean
    readonly retryAfter?: string
    readonly json?: boolean
  }
  /** The effect, and a success whose body is this. */
  Malformed: { readonly body: string }
}>

export const Fault = Data.taggedEnum<Fault>()

export interface Proxy {
  readonly url: string
  /** Which requests go wrong from now on. Counting begins anew. */
  readonly set: (faults: (call: Call) => Fault | undefined) => void
  readonly calls: () => ReadonlyArray<CallRecord>
}

const kindOf = (method: string, path: string): Kind => {
  if (path === "/health") {
    return "health"
  }
  if (path === "/files" && method === "POST") {
    return "upload"
  }
  if (path.endsWith("/Start")) {
    return "start"
  }
  if (path.endsWith("/SendSignal")) {
    return "signal"
  }
  const [, id, rest] = /^(?:\/v2)?\/sandboxes(?:\/([^/]+))?(\/.*)?$/.exec(path) ?? []
  if (!path.includes("/sandboxes")) {
    return "other"
  }
  if (id === undefined) {
    return method === "POST" ? "create" : "list"
  }
  switch (`${method} ${rest ?? ""}`) {
    case "DELETE ":
      return "kill"
    case "GET ":
      return "info"
    case "POST /timeout":
      return "extend"
    case "POST /connect":
      return "connect"
    default:
      return "other"
  }
}

// Headers that speak of one connection.
const hops = new Set(["connection", "keep-alive", "transfer-encoding", "content-length", "host"])

const passed = (headers: http.IncomingHttpHeaders): http.OutgoingHttpHeaders =>
  Object.fromEntries(Object.entries(headers).filter(([name]) => !hops.has(name)))

const bodyOf = (message: http.IncomingMessage): Promise<Buffer> =>
  new Promise((resolve, reject) => {
    const chunks: Array<Buffer> = []
    message.on("data", (chunk: Buffer) => chunks.push(chunk))
    message.on("end", () => resolve(Buffer.concat(chunks)))
    message.on("error", reject)
  })

/** Runs until the scope closes. */
export const make = (options: {
  readonly target: string
  /** How much later every reply comes, in milliseconds. Default: not at all. */
  readonly latency?: (call: Call) => number
}): Effect.Effect<Proxy, never, Scope.Scope> =>
  Effect.gen(function*() {
    const target = new URL(options.target)
    const agent = new http.Agent({ keepAlive: true })
    const started = performance.now()
    const now = () => performance.now() - started
    let faults: (call: Call) => Fault | undefined = () => undefined
    let calls: Array<{ -readonly [K in keyof CallRecord]: CallRecord[K] }> = []

    const forward = (request: http.IncomingMessage, body: Buffer, gone: AbortSignal): Promise<http.IncomingMessage> =>
      new Promise((resolve, reject) => {
        const onward = http.request({
          agent,
          host: target.hostname,
          port: target.port,
          method: request.method,
          path: request.url,
          headers: { ...passed(request.headers), "content-length": body.length },
          signal: gone
        }, resolve)
        onward.on("error", reject)
        onward.end(body)
      })

    const handle = async (request: http.IncomingMessage, response: http.ServerResponse) => {
      const path = new URL(request.url ?? "/", options.target).pathname
      const kind = kindOf(request.method ?? "GET", path)
      const header = request.headers["e2b-sandbox-id"]
      const call = {
        kind,
        nth: calls.filter((before) => before.kind === kind).length + 1,
        sandboxId: typeof header === "string" ? header : /sandboxes\/([^/]+)/.exec(path)?.[1]
      }
      const fault = faults(call)
      const record = { ...call, startedAt: now(), endedAt: undefined as number | undefined, fault: fault?._tag }
      calls.push(record)
      const body = await bodyOf(request)
      const client = new AbortController()
      response.on("close", () => {
        record.endedAt = now()
        client.abort()
      })
      const pause = (options.latency?.(call) ?? 0) + (fault?._tag === "Latency" ? fault.millis : 0)
      if (pause > 0) {
        await new Promise((resolve) => setTimeout(resolve, pause))
      }
      const whole = async () => {
        // Whatever becomes of the client: the server does what was asked.
        const reply = await forward(request, body, new AbortController().signal)
        return { reply, content: await bodyOf(reply) }
      }
      switch (fault?._tag) {
        case undefined:
        case "Latency": {
          const reply = await forward(request, body, client.signal)
          response.writeHead(reply.statusCode ?? 500, passed(reply.headers))
          response.flushHeaders()
          reply.on("error", () => response.destroy())
          reply.on("close", () => reply.complete ? undefined : response.destroy())
          reply.pipe(response)
          return
        }
        case "Dropped": {
          if (fault.effect) {
            await whole()
          }
          response.destroy()
          return
        }
        case "ResetInBody":
        case "Truncated":
        case "StalledInBody": {
          const { content, reply } = await whole()
          const part = content.subarray(0, Math.floor(content.length / 2))
          if (fault._tag === "StalledInBody" && content.length === 0) {
            // Of a reply without a body, only all can be held back: the next request would wait behind it.
            return
          }
          response.writeHead(reply.statusCode ?? 500, passed(reply.headers))
          response.flushHeaders()
          response.write(part, () => {
            if (fault._tag === "ResetInBody") {
              response.socket?.resetAndDestroy()
            } else if (fault._tag === "Truncated") {
              response.end()
            }
          })
          return
        }
        case "Stalled": {
          if (fault.effect) {
            await whole()
          }
          return
        }
        case "Answered": {
          if (fault.effect) {
            await whole()
          }
          response.writeHead(fault.status, {
            "content-type": fault.json === false ? "text/plain" : "application/json",
            ...(fault.retryAfter === undefined ? {} : { "retry-after": fault.retryAfter })
          })
          response.end(
            fault.json === false
              ? "SECRET-OF-A-REPLY"
              : JSON.stringify({ code: fault.status, message: "SECRET-OF-A-REPLY" })
          )
          return
        }
        case "Malformed": {
          const { reply } = await whole()
          response.writeHead(reply.statusCode ?? 500, passed(reply.headers))
          response.end(fault.body)
          return
        }
      }
    }

    const server = http.createServer((request, response) => {
      // A server that breaks the connection to us breaks that to the client.
      handle(request, response).catch(() => response.destroy())
    })
    server.requestTimeout = 0
    yield* Effect.acquireRelease(
      Effect.async<void>((resume) => {
        server.listen(0, "127.0.0.1", () => resume(Effect.void))
      }),
      () =>
        Effect.async<void>((resume) => {
          agent.destroy()
          server.close(() => resume(Effect.void))
          server.closeAllConnections()
        })
    )
    const { port } = server.address() as AddressInfo
    return {
      url: `http://127.0.0.1:${port}`,
      set: (next) => {
        faults = next
        calls = []
      },
      calls: () => calls
    }
  })

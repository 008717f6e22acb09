/**
 * The HTTP side: what a server says of itself, MCP, and the page of an environment that has one.
 *
 * `POST /reset` and `POST /step` belong to no session. Upstream runs them on an environment that is made for the request and
 * thrown away; here that would be a sandbox each time, so they are refused and never allocate.
 *
 * @since 0.1.0
 */
import * as FileSystem from "@effect/platform/FileSystem"
import type * as HttpApp from "@effect/platform/HttpApp"
import * as HttpIncomingMessage from "@effect/platform/HttpIncomingMessage"
import * as HttpRouter from "@effect/platform/HttpRouter"
import * as HttpServerRequest from "@effect/platform/HttpServerRequest"
import * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as JSONSchema from "effect/JSONSchema"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { version } from "../internal/version.ts"
import { LedgerEntry } from "../Sandbox/Ledger.ts"
import type { Kind } from "./Environment.ts"
import type { Guard } from "./Guard.ts"
import * as Mcp from "./Mcp.ts"
import type { Sessions } from "./Sessions.ts"
import * as Wire from "./Wire.ts"

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  readonly kind: Kind
  readonly sessions: Sessions
  readonly guard: Guard
  readonly held: Effect.Effect<ReadonlyArray<LedgerEntry>>
  readonly maxFrameBytes: number
}

// ----------------------------------------------------------------------------
// replies
// ----------------------------------------------------------------------------

const respond = <A, I>(
  schema: Schema.Schema<A, I>
): (value: A, status?: number) => HttpServerResponse.HttpServerResponse => {
  const write = Wire.write(schema)
  return (value, status = 200) => HttpServerResponse.text(write(value), { status, contentType: "application/json" })
}

const health = respond(Wire.Health)
const state = respond(Wire.State)
const rpc = respond(Wire.RpcReply)
const problem = respond(Wire.Problem)

const metadata = respond(Wire.Metadata)
const schemas = respond(Wire.Schemas)

const about = ({ description, name }: Kind): typeof Wire.Metadata.Type => ({
  name,
  description,
  readme_content: null,
  version,
  author: null,
  documentation_url: null
})

// ----------------------------------------------------------------------------
// the description
// ----------------------------------------------------------------------------

const content = (schema: Readonly<Record<string, unknown>>) => ({ content: { "application/json": { schema } } })

const json = <A, I>(schema: Schema.Schema<A, I>) => content({ ...JSONSchema.make(schema) })

const ok = <A, I>(schema: Schema.Schema<A, I>) => ({ "200": { description: "OK", ...json(schema) } })

const stateless = {
  "409": { description: "There is no episode outside of a session: use /ws", ...json(Wire.Problem) },
  "422": { description: "Not valid", ...json(Wire.Problem) }
}

const openApi = (kind: Kind) => ({
  openapi: "3.1.0",
  // The version of the HTTP interface, which clients go by; not that of this package.
  info: { title: "OpenEnv Environment HTTP API", version: "1.0.0" },
  paths: {
    "/health": { get: { summary: "Whether the server is well", responses: ok(Wire.Health) } },
    "/metadata": { get: { summary: "What this environment is", responses: ok(Wire.Metadata) } },
    "/schema": { get: { summary: "The forms of actions, observations and states", responses: ok(Wire.Schemas) } },
    "/state": {
      get: {
        summary: "The state outside of a session",
        responses: { "200": { description: "OK", ...content(kind.schemas.state) } }
      }
    },
    "/reset": { post: { summary: "Refused", requestBody: content(kind.reset.schema), responses: stateless } },
    "/step": { post: { summary: "Refused", requestBody: json(Wire.StepRequest), responses: stateless } },
    "/mcp": {
      post: {
        summary: "JSON-RPC: tools and sessions",
        requestBody: json(Wire.RpcRequest),
        responses: ok(Wire.RpcReply)
      }
    },
    "/ledger": { get: { summary: "Sandboxes that aren't proved gone", responses: { "200": { description: "OK" } } } }
  }
})

const description = respond(Schema.Unknown)

// ----------------------------------------------------------------------------
// requests
// ----------------------------------------------------------------------------

// A body that doesn't say its size. One that is too large is left where it is until it has its answer: to let go of it is
// to cut the connection.
const chunked = (request: HttpServerRequest.HttpServerRequest, maxBytes: number) =>
  Effect.flatMap(Stream.toPull(request.stream), (pull) => {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true })
    let text = ""
    let bytes = 0
    const read: Effect.Effect<Option.Option<string>> = Effect.matchEffect(pull, {
      onFailure: (end) => Effect.succeed(Option.isSome(end) ? Option.none() : Option.some(text + decoder.decode())),
      onSuccess: (chunks) => {
        for (const chunk of chunks) {
          bytes += chunk.length
          text += decoder.decode(chunk, { stream: true })
        }
        return bytes > maxBytes ? Effect.succeedNone : read
      }
    })
    return read
  })

// None for a body that is too large, or never came whole. One that says its size isn't even read.
const bodyOf = (maxBytes: number) =>
  Effect.flatMap(
    HttpServerRequest.HttpServerRequest,
    (request) =>
      request.headers["transfer-encoding"] !== undefined
        ? chunked(request, maxBytes)
        : Number(request.headers["content-length"] ?? 0) > maxBytes
        ? Effect.succeedNone
        : Effect.option(request.text)
  )

const unreadable = HttpServerResponse.setHeader(
  problem({ detail: "the body can't be read, or is too large" }, 413),
  "connection",
  "close"
)

const sessionless = problem({
  detail: "there is no episode outside of a session, and none is made for one request: open a WebSocket at /ws, or a "
    + "session with openenv/session/create at /mcp"
}, 409)

const refuse = (body: ReturnType<typeof bodyOf>, decode: Kind["reset"]["decode"]) =>
  Effect.map(body, (text) => {
    if (Option.isNone(text)) {
      return unreadable
    }
    const read = Either.flatMap(
      Either.mapLeft(
        text.value === "" ? Either.right({}) : Wire.readJson(text.value),
        (why): ReadonlyArray<Wire.Issue> => [{ type: "json_invalid", loc: ["body"], msg: Wire.unread[why] }]
      ),
      decode
    )
    return Either.match(read, { onLeft: (detail) => problem({ detail }, 422), onRight: () => sessionless })
  })

const pages = ({ page }: Kind): HttpRouter.HttpRouter =>
  Option.match(page, {
    onNone: () => HttpRouter.empty,
    onSome: (page) =>
      HttpRouter.empty.pipe(
        HttpRouter.get("/", HttpServerResponse.redirect("/web")),
        HttpRouter.get("/web", Effect.succeed(page))
      )
  })

const Ledgers = Schema.Struct({ open: Schema.Array(LedgerEntry) })

const ledger = respond(Ledgers)

/**
 * @since 0.1.0
 * @category constructors
 */
export const make = (options: Options): Effect.Effect<{ readonly app: HttpApp.Default }> =>
  Effect.gen(function*() {
    const { kind } = options
    const open = options.held
    const body = bodyOf(options.maxFrameBytes)
    const router = yield* pages(kind).pipe(
      HttpRouter.get(
        "/health",
        Effect.map(open, (entries) =>
          health({
            status: entries.some(({ state }) => state === "unresolved" || state === "uncertain")
              ? "degraded"
              : "healthy"
          }))
      ),
      HttpRouter.get("/metadata", Effect.succeed(metadata(about(kind)))),
      HttpRouter.get("/schema", Effect.succeed(schemas(kind.schemas))),
      HttpRouter.get("/openapi.json", Effect.succeed(description(openApi(kind)))),
      HttpRouter.get("/state", Effect.succeed(state(kind.idle))),
      HttpRouter.get("/ledger", Effect.map(open, (entries) => ledger({ open: entries }))),
      HttpRouter.post("/reset", refuse(body, kind.reset.decode)),
      HttpRouter.post("/step", refuse(body, Wire.strict(Wire.StepRequest))),
      HttpRouter.post(
        "/mcp",
        Effect.flatMap(
          body,
          Option.match({
            onNone: () => Effect.succeed(unreadable),
            onSome: (text) =>
              Effect.map(Mcp.handle(options.sessions, Option.none(), Wire.readJson(text)), (reply) => rpc(reply))
          })
        )
      ),
      HttpRouter.toHttpApp
    )
    const guarded = Effect.flatMap(HttpServerRequest.HttpServerRequest, ({ headers }) =>
      Effect.flatMap(
        options.guard(headers),
        Option.match({
          onNone: () => router,
          onSome: (status) =>
            Effect.succeed(
              status === 401
                ? HttpServerResponse.setHeader(
                  problem({ detail: "this server wants its token" }, 401),
                  "www-authenticate",
                  "Basic realm=\"episode\", charset=\"UTF-8\""
                )
                : problem({ detail: "not from there" }, 403)
            )
        })
      ))
    const app = guarded.pipe(
      Effect.catchTag("RouteNotFound", () => Effect.succeed(problem({ detail: "Not Found" }, 404))),
      Effect.provideService(
        HttpIncomingMessage.MaxBodySize,
        Option.some(FileSystem.Size(options.maxFrameBytes))
      )
    )
    return { app }
  })

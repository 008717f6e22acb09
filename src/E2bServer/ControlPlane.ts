/**
 * Sandboxes by request: the routes below `E2B_API_URL`, old and new.
 */
import * as HttpRouter from "@effect/platform/HttpRouter"
import * as HttpServerRequest from "@effect/platform/HttpServerRequest"
import * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import * as Context from "effect/Context"
import * as DateTime from "effect/DateTime"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Encoding from "effect/Encoding"
import * as Option from "effect/Option"
import * as Order from "effect/Order"
import type * as ParseResult from "effect/ParseResult"
import type * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import type { SandboxFault } from "../Sandbox.ts"
import * as Wire from "./ControlWire.ts"
import { type CreateFailure, Fleet, type Limits, type Member } from "./Fleet.ts"
import * as Json from "./Json.ts"
import * as Refused from "./Refused.ts"
import * as Secrets from "./Secrets.ts"

/** What the control plane is set to. */
export class Settings extends Context.Tag("episode/E2bServer/ControlPlane/Settings")<Settings, {
  readonly apiKeys: ReadonlyArray<Redacted.Redacted>
  /** Names under which the provider's one template can be asked for. */
  readonly templates: ReadonlyArray<string>
  readonly limits: Limits
}>() {}

/** The envd whose features this server has. */
export const envdVersion = "0.6.13"

// There is one client of the fleet, which nobody reads.
const clientID = "local"

const largestRequest = 1024 * 1024

// ----------------------------------------------------------------------------
// reading and writing
// ----------------------------------------------------------------------------

const issues = (error: ParseResult.ParseError): Refused.Refused => Refused.refuse(400, Json.issues(error))

const body = <A, I>(schema: Schema.Schema<A, I>) => {
  const read = Json.reader(schema)
  return Effect.flatMap(
    Refused.text(largestRequest),
    (text) => Effect.mapError(read(text === "" ? "{}" : text), (wrong) => Refused.refuse(400, wrong))
  )
}

const query = <A, I>(schema: Schema.Schema<A, I>) => {
  const parse = Schema.decodeUnknown(schema)
  return Effect.flatMap(HttpServerRequest.ParsedSearchParams, (found) => Effect.mapError(parse(found), issues))
}

const json = <A, I>(schema: Schema.Schema<A, I>) => {
  const write = HttpServerResponse.schemaJson(schema)
  // Encoding what this program made itself can't fail.
  return (value: A, options?: HttpServerResponse.Options.WithContentType) => Effect.orDie(write(value, options))
}

const noContent = HttpServerResponse.empty({ status: 204 })

// ----------------------------------------------------------------------------
// a sandbox as the wire has it
// ----------------------------------------------------------------------------

const created = (member: Member): typeof Wire.Sandbox.Type => ({
  sandboxID: member.id,
  templateID: member.templateId,
  alias: member.templateId,
  clientID,
  envdVersion,
  envdAccessToken: member.accessToken,
  domain: null
})

const listed = (member: Member): Effect.Effect<typeof Wire.ListedSandbox.Type> =>
  Effect.map(member.endsAt, (endAt) => {
    const { cpuCount, memoryMiB } = member.sandbox.resources
    return {
      sandboxID: member.id,
      templateID: member.templateId,
      alias: member.templateId,
      clientID,
      startedAt: member.startedAt,
      endAt,
      state: "running",
      cpuCount,
      memoryMB: memoryMiB,
      // Files are held in memory.
      diskSizeMB: memoryMiB,
      envdVersion,
      metadata: member.metadata
    }
  })

const writeCreated = json(Wire.Sandbox)
const writeListed = json(Schema.Array(Wire.ListedSandbox))
const writeDetail = json(Wire.SandboxDetail)
const writeMetrics = json(Schema.Array(Wire.Metric))

// ----------------------------------------------------------------------------
// faults
// ----------------------------------------------------------------------------

const ofCreate = (fault: CreateFailure): Refused.Refused => {
  switch (fault._tag) {
    case "FleetFull":
      return Refused.refuse(429, `there are ${fault.limit} sandboxes, as many as there may be at once`)
    case "SandboxUnavailable":
      return Refused.refuse(fault.reason === "quota" ? 429 : fault.reason === "template" ? 404 : 500, fault.message)
    case "ResponseTimedOut":
    case "BudgetExceeded":
      return Refused.refuse(504, fault.message)
    default:
      return Refused.refuse(500, fault.message)
  }
}

// One that doesn't live: absent only where that is proved.
const notLive = (id: string): Effect.Effect<never, Refused.Refused, Fleet> =>
  Effect.flatMap(
    Fleet,
    (fleet) => Effect.flatMap(fleet.isAbsent(id), (isAbsent) => isAbsent ? Refused.notFound(id) : Refused.leaving(id))
  )

const ofFault = (member: Member) => (fault: SandboxFault) =>
  Effect.flatMap(
    Fleet,
    (fleet) =>
      Effect.andThen(
        fleet.notice(member, fault),
        fault._tag === "SandboxLost" ? notLive(member.id) : Refused.refuse(500, fault.message)
      )
  )

// ----------------------------------------------------------------------------
// routes
// ----------------------------------------------------------------------------

const lifetimeOf = (seconds: number): Effect.Effect<Duration.Duration, Refused.Refused, Settings> =>
  Effect.flatMap(Settings, ({ limits }) => {
    const lifetime = Duration.seconds(seconds)
    return Duration.greaterThan(lifetime, limits.lifetime)
      ? Refused.refuse(400, `a timeout is at most ${Duration.format(limits.lifetime)}`)
      : Effect.succeed(lifetime)
  })

const refuseUnsupported = (request: Wire.CreateRequest): Effect.Effect<void, Refused.Refused> =>
  request.autoPause === true || request.autoResume?.enabled === true
    ? Refused.unimplemented("pausing a sandbox")
    : (request.volumeMounts ?? []).length > 0
    ? Refused.unimplemented("mounting volumes")
    : request.network !== undefined
    ? Refused.unimplemented("a network configuration, other than `allow_internet_access`,")
    : request.iam !== undefined
    ? Refused.unimplemented("an identity for a sandbox")
    : Effect.void

/** `defaultTimeout`: in seconds, as each version of the route has its own. */
const create = (defaultTimeout: number) =>
  Effect.gen(function*() {
    const { templates } = yield* Settings
    const fleet = yield* Fleet
    const request = yield* body(Wire.CreateRequest)
    yield* refuseUnsupported(request)
    // A template may be asked for with a tag.
    const templateId = request.templateID.replace(/:default$/, "")
    if (!templates.includes(templateId)) {
      return yield* Refused.refuse(404, `template '${request.templateID}' not found`)
    }
    const lifetime = yield* lifetimeOf(request.timeout ?? defaultTimeout)
    const member = yield* fleet.create({
      templateId,
      lifetime,
      metadata: request.metadata ?? {},
      environment: request.envVars ?? {},
      allowInternetAccess: request.allow_internet_access ?? true
    }).pipe(Effect.mapError(ofCreate))
    return yield* writeCreated(created(member), { status: 201 })
  })

const name = Effect.flatMap(HttpRouter.params, ({ id = "" }) => {
  // Ids once had a client's behind them.
  const [, name] = /^([a-z0-9]+)(?:-[a-z0-9-]+)?$/.exec(id) ?? []
  return name === undefined
    ? Refused.refuse(400, "a sandbox id is lower-case letters and digits")
    : Effect.succeed(name)
})

const named = Effect.flatMap(name, (id) =>
  Effect.flatMap(Fleet, (fleet) =>
    Option.match(fleet.find(id), {
      onNone: () => notLive(id),
      onSome: Effect.succeed
    })))

const connect = Effect.gen(function*() {
  const fleet = yield* Fleet
  const member = yield* named
  const { timeout } = yield* body(Wire.ConnectRequest)
  const lifetime = yield* lifetimeOf(timeout ?? 300)
  const end = DateTime.addDuration(yield* DateTime.now, lifetime)
  // Connecting never takes time away.
  if (DateTime.greaterThan(end, yield* member.endsAt)) {
    yield* Effect.catchAll(fleet.endAt(member, end), ofFault(member))
  }
  return yield* writeCreated(created(member))
})

const setTimeout = Effect.gen(function*() {
  const fleet = yield* Fleet
  const member = yield* named
  const { timeout } = yield* body(Wire.TimeoutRequest)
  const lifetime = yield* lifetimeOf(timeout)
  const now = yield* DateTime.now
  yield* Effect.catchAll(fleet.endAt(member, DateTime.addDuration(now, lifetime)), ofFault(member))
  return noContent
})

const kill = Effect.gen(function*() {
  const fleet = yield* Fleet
  const id = yield* name
  // No success, and no "not found": it may be there still.
  const isEnded = yield* Effect.mapError(fleet.end(id), ({ message }) => Refused.refuse(503, message))
  return isEnded ? noContent : yield* Refused.notFound(id)
})

const info = Effect.gen(function*() {
  const member = yield* named
  yield* Effect.catchAll(member.sandbox.health, ofFault(member))
  return yield* writeDetail({
    ...yield* listed(member),
    envdAccessToken: member.accessToken,
    domain: null,
    allowInternetAccess: member.allowInternetAccess,
    lifecycle: { onTimeout: "kill", autoResume: false }
  })
})

const metrics = Effect.gen(function*() {
  const member = yield* named
  const { end = Infinity, start = 0 } = yield* query(Wire.MetricsParams)
  if (Option.isNone(member.inside)) {
    return yield* Refused.unimplemented("what a sandbox of this provider uses")
  }
  const found = yield* Effect.catchAll(member.metrics, ofFault(member))
  return yield* writeMetrics(found.filter(({ timestampUnix }) => timestampUnix >= start && timestampUnix <= end))
})

// ----------------------------------------------------------------------------
// the list
// ----------------------------------------------------------------------------

const oldestFirst = Order.combine(
  Order.mapInput(DateTime.Order, ({ startedAt }: Member) => startedAt),
  Order.mapInput(Order.string, ({ id }: Member) => id)
)

// Each key and value is encoded once more than the form they stand in.
const parseMetadata = (text: string): Effect.Effect<ReadonlyArray<readonly [string, string]>, Refused.Refused> =>
  Effect.try({
    try: () =>
      Array.from(
        new URLSearchParams(text),
        ([key, value]) => [decodeURIComponent(key), decodeURIComponent(value)] as const
      ),
    catch: () => Refused.refuse(400, "the metadata can't be decoded")
  })

// Where a page ends: the order, and the last sandbox on it.
const Token = Schema.parseJson(
  Schema.Tuple(Schema.Literal("asc", "desc"), Schema.DateTimeUtcFromNumber, Schema.String)
)

const readToken = (text: string, order: "asc" | "desc") =>
  Effect.fromNullable(Encoding.decodeBase64UrlString(text).pipe(Option.getRight, Option.getOrNull)).pipe(
    Effect.flatMap(Schema.decode(Token)),
    Effect.filterOrFail(([of]) => of === order),
    Effect.mapError(() => Refused.refuse(400, "the next token isn't one of this list"))
  )

const isBehind = (order: "asc" | "desc", [, startedAt, id]: typeof Token.Type) => (member: Member): boolean => {
  const byTime = DateTime.Order(member.startedAt, startedAt)
  const place = byTime === 0 ? Order.string(member.id, id) : byTime
  return order === "asc" ? place > 0 : place < 0
}

const list = Effect.gen(function*() {
  const fleet = yield* Fleet
  const { limit, metadata, nextToken, order, startedAfter, state, template } = yield* query(Wire.ListParams)
  const states = [state ?? "running,paused"].flat().join(",").split(",")
  const wanted = metadata === undefined ? [] : yield* parseMetadata(metadata)
  const after = nextToken === undefined ? () => true : isBehind(order, yield* readToken(nextToken, order))
  const found = (yield* fleet.members).filter((member) =>
    states.includes("running")
    && wanted.every(([key, value]) => member.metadata[key] === value)
    && (startedAfter === undefined || DateTime.greaterThanOrEqualTo(member.startedAt, startedAfter))
    && (template === undefined || member.templateId === template)
    && after(member)
  ).toSorted(order === "asc" ? oldestFirst : Order.reverse(oldestFirst))
  const page = found.slice(0, limit)
  const last = page.at(-1)
  const headers = last === undefined || found.length === page.length ? {} : {
    "x-next-token": Encoding.encodeBase64Url(
      yield* Effect.orDie(Schema.encode(Token)([order, last.startedAt, last.id]))
    )
  }
  return yield* writeListed(yield* Effect.forEach(page, listed), { headers })
})

// ----------------------------------------------------------------------------
// the router
// ----------------------------------------------------------------------------

const absentParts: ReadonlyArray<readonly [pattern: RegExp, what: string]> = [
  [/^\/(?:v2\/)?sandboxes\/[^/]+\/pause$/, "pausing a sandbox"],
  [/^\/(?:v2\/)?sandboxes\/[^/]+\/resume$/, "resuming a sandbox"],
  [/^\/(?:v2\/)?sandboxes\/[^/]+\/fork$/, "forking a sandbox"],
  [/^\/(?:v2\/)?sandboxes\/[^/]+\/snapshots$|^\/snapshots/, "a snapshot"],
  [/^\/(?:v2\/)?sandboxes\/[^/]+\/network$/, "changing the network of a sandbox"],
  [/^\/(?:v[0-9]+\/)?sandboxes\//, "this route"],
  [/^\/(?:v[0-9]+\/)?templates/, "a template of one's own"],
  [/^\/(?:v[0-9]+\/)?volumes/, "a volume"],
  [/^\/(?:v[0-9]+\/)?(?:teams|secrets|nodes|events)/, "this route"]
]

// A sandbox that isn't there is that in the first place.
const ofSandbox = /^\/(?:v[0-9]+\/)?sandboxes\/([^/]+)\/(?:pause|resume|fork|snapshots|network)$/

const alias = Effect.gen(function*() {
  const { templates } = yield* Settings
  const { alias = "" } = yield* HttpRouter.params
  const templateID = alias.replace(/:default$/, "")
  return templates.includes(templateID)
    ? yield* Effect.orDie(HttpServerResponse.json({ templateID, public: true }))
    : yield* Refused.refuse(404, `template '${alias}' not found`)
})

const otherwise = Effect.gen(function*() {
  const { url } = yield* HttpServerRequest.HttpServerRequest
  const path = url.split("?")[0] ?? ""
  const sandboxId = ofSandbox.exec(path)?.[1]?.split("-")[0]
  if (sandboxId !== undefined && Option.isNone((yield* Fleet).find(sandboxId))) {
    return yield* notLive(sandboxId)
  }
  const absent = absentParts.find(([pattern]) => pattern.test(path))
  return yield* absent === undefined
    ? Refused.refuse(404, "there is no such route")
    : Refused.unimplemented(absent[1])
})

const router = HttpRouter.empty.pipe(
  HttpRouter.post("/sandboxes", create(15)),
  HttpRouter.post("/v2/sandboxes", create(300)),
  HttpRouter.get("/sandboxes", list),
  HttpRouter.get("/v2/sandboxes", list),
  HttpRouter.get("/sandboxes/:id", info),
  HttpRouter.del("/sandboxes/:id", kill),
  HttpRouter.post("/sandboxes/:id/connect", connect),
  HttpRouter.post("/v2/sandboxes/:id/connect", connect),
  HttpRouter.post("/sandboxes/:id/timeout", setTimeout),
  HttpRouter.get("/sandboxes/:id/metrics", metrics),
  HttpRouter.get("/templates/aliases/:alias", alias),
  HttpRouter.all("*", otherwise)
)

/** Nothing is said to a caller without a key, not even which routes there are. */
export const controlPlane = Effect.gen(function*() {
  const { apiKeys } = yield* Settings
  const { headers } = yield* HttpServerRequest.HttpServerRequest
  if (!(yield* Secrets.isOneOf(headers["x-api-key"] ?? "", apiKeys))) {
    return yield* Refused.unauthorized
  }
  return yield* router
}).pipe(
  Effect.catchTags({
    Refused: Refused.respond,
    RouteNotFound: () => Refused.respond(Refused.refuse(404, "there is no such route"))
  })
)

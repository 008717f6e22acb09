/**
 * The JSON of the control plane.
 */
import * as Schema from "effect/Schema"

const optional = <A, I>(schema: Schema.Schema<A, I>) => Schema.optionalWith(schema, { exact: true, nullable: true })

const Words = Schema.Record({ key: Schema.String, value: Schema.String })

const Variables = Words.pipe(Schema.filter(
  (variables) =>
    Object.entries(variables).every(([name, value]) => /^[^=\0]+$/.test(name) && !value.includes("\0"))
    || "a variable's name is empty or has a `=` in it, or there is a NUL"
))

const Seconds = Schema.Int.pipe(Schema.nonNegative())

/** Only asked whether it is there. */
const Unsupported = optional(Schema.Unknown)

export const CreateRequest = Schema.Struct({
  templateID: Schema.NonEmptyString,
  timeout: optional(Seconds),
  metadata: optional(Words),
  envVars: optional(Variables),
  secure: optional(Schema.Boolean),
  allow_internet_access: optional(Schema.Boolean),
  autoPause: optional(Schema.Boolean),
  autoResume: optional(Schema.Struct({ enabled: optional(Schema.Boolean) })),
  network: Unsupported,
  iam: Unsupported,
  // The SDK starts the gateway itself, by a command; without one in the template that fails, and it cleans up.
  mcp: Unsupported,
  volumeMounts: optional(Schema.Array(Schema.Unknown))
})

export type CreateRequest = typeof CreateRequest.Type

export const ConnectRequest = Schema.Struct({
  timeout: optional(Seconds),
  memory: optional(Schema.Boolean)
})

export const TimeoutRequest = Schema.Struct({ timeout: Seconds })

export const Sandbox = Schema.Struct({
  sandboxID: Schema.String,
  templateID: Schema.String,
  clientID: Schema.String,
  alias: Schema.String,
  envdVersion: Schema.String,
  envdAccessToken: Schema.Redacted(Schema.String),
  domain: Schema.NullOr(Schema.String)
})

const Listed = {
  sandboxID: Schema.String,
  templateID: Schema.String,
  clientID: Schema.String,
  alias: Schema.String,
  startedAt: Schema.DateTimeUtc,
  endAt: Schema.DateTimeUtc,
  state: Schema.Literal("running"),
  cpuCount: Schema.Number,
  memoryMB: Schema.Number,
  diskSizeMB: Schema.Number,
  envdVersion: Schema.String,
  metadata: Words
}

export const ListedSandbox = Schema.Struct(Listed)

export const SandboxDetail = Schema.Struct({
  ...Listed,
  envdAccessToken: Schema.Redacted(Schema.String),
  domain: Schema.NullOr(Schema.String),
  allowInternetAccess: Schema.Boolean,
  lifecycle: Schema.Struct({ onTimeout: Schema.Literal("kill"), autoResume: Schema.Boolean })
})

export const Metric = Schema.Struct({
  timestamp: Schema.DateTimeUtc,
  timestampUnix: Schema.Int,
  cpuUsedPct: Schema.Number,
  cpuCount: Schema.Number,
  memUsed: Schema.Number,
  memTotal: Schema.Number,
  memCache: Schema.Number,
  diskUsed: Schema.Number,
  diskTotal: Schema.Number
})

export type Metric = typeof Metric.Type

export const ListParams = Schema.Struct({
  metadata: Schema.optional(Schema.String),
  state: Schema.optional(Schema.Union(Schema.String, Schema.Array(Schema.String))),
  startedAfter: Schema.optional(Schema.DateTimeUtc),
  template: Schema.optional(Schema.String),
  order: Schema.optionalWith(Schema.Literal("asc", "desc"), { default: () => "desc" }),
  limit: Schema.optionalWith(Schema.NumberFromString.pipe(Schema.int(), Schema.between(1, 100)), {
    default: () => 100
  }),
  nextToken: Schema.optional(Schema.String)
})

export type ListParams = typeof ListParams.Type

const UnixSeconds = Schema.NumberFromString.pipe(Schema.int(), Schema.nonNegative())

export const MetricsParams = Schema.Struct({
  start: Schema.optional(UnixSeconds),
  end: Schema.optional(UnixSeconds)
})

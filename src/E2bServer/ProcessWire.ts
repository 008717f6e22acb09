/**
 * The messages of `process.Process`, as JSON has them.
 */
import * as Schema from "effect/Schema"
import { Base64 } from "./Bytes.ts"

const optional = <A, I>(schema: Schema.Schema<A, I>) => Schema.optionalWith(schema, { exact: true, nullable: true })

const Integer = Schema.Union(Schema.Int, Schema.NumberFromString.pipe(Schema.int()))

export const Size = Schema.Struct({
  cols: Schema.Int.pipe(Schema.between(1, 65535)),
  rows: Schema.Int.pipe(Schema.between(1, 65535))
})

const Pty = Schema.Struct({ size: optional(Size) })

const Variables = Schema.Record({ key: Schema.String, value: Schema.String })

export const Config = Schema.Struct({
  cmd: Schema.NonEmptyString,
  args: Schema.optionalWith(Schema.Array(Schema.String), { default: () => [], nullable: true }),
  envs: Schema.optionalWith(Variables, { default: () => ({}), nullable: true }),
  cwd: optional(Schema.String)
})

export type Config = typeof Config.Type

/** One of both. */
export const Selector = Schema.Union(
  Schema.Struct({ pid: Integer }),
  Schema.Struct({ tag: Schema.String })
)

export type Selector = typeof Selector.Type

export const StartRequest = Schema.Struct({
  process: Config,
  pty: optional(Pty),
  tag: optional(Schema.String),
  // Callers older than the flag expect an open input.
  stdin: optional(Schema.Boolean)
})

export type StartRequest = typeof StartRequest.Type

export const ConnectRequest = Schema.Struct({ process: Selector })

const Data = Schema.Union(
  Schema.Struct({ stdout: Base64 }),
  Schema.Struct({ stderr: Base64 }),
  Schema.Struct({ pty: Base64 })
)

export const End = Schema.Struct({
  exitCode: Schema.Int,
  exited: Schema.Boolean,
  status: Schema.String,
  error: Schema.optional(Schema.String)
})

export type End = typeof End.Type

/** What is told of a program while it runs, and its end. */
export const Event = Schema.Union(Schema.Struct({ data: Data }), Schema.Struct({ end: End }))

export type Event = typeof Event.Type

export const Message = Schema.Struct({
  event: Schema.Union(
    Schema.Struct({ start: Schema.Struct({ pid: Schema.Int }) }),
    ...Event.members,
    Schema.Struct({ keepalive: Schema.Struct({}) })
  )
})

export type Message = typeof Message.Type

export const Empty = Schema.Struct({})

export const ListResponse = Schema.Struct({
  processes: Schema.Array(Schema.Struct({
    pid: Schema.Int,
    tag: Schema.optional(Schema.String),
    config: Schema.typeSchema(Config)
  }))
})

export const SignalRequest = Schema.Struct({
  process: Selector,
  signal: Schema.Literal("SIGNAL_SIGTERM", "SIGNAL_SIGKILL", 15, 9)
})

export const InputRequest = Schema.Struct({
  process: Selector,
  input: Schema.Union(Schema.Struct({ stdin: Base64 }), Schema.Struct({ pty: Base64 }))
})

export const CloseStdinRequest = Schema.Struct({ process: Selector })

export const UpdateRequest = Schema.Struct({ process: Selector, pty: optional(Pty) })

/**
 * The messages of `filesystem.Filesystem`, as JSON has them.
 */
import * as Schema from "effect/Schema"

export const Entry = Schema.Struct({
  name: Schema.String,
  type: Schema.Literal("FILE_TYPE_UNSPECIFIED", "FILE_TYPE_FILE", "FILE_TYPE_DIRECTORY", "FILE_TYPE_SYMLINK"),
  path: Schema.String,
  size: Schema.Number,
  mode: Schema.Int,
  permissions: Schema.String,
  owner: Schema.String,
  group: Schema.String,
  modifiedTime: Schema.String,
  symlinkTarget: Schema.optional(Schema.String),
  metadata: Schema.optional(Schema.Record({ key: Schema.String, value: Schema.String }))
})

export type Entry = typeof Entry.Type

const text = Schema.optionalWith(Schema.String, { default: () => "", nullable: true })
const flag = Schema.optionalWith(Schema.Boolean, { default: () => false, nullable: true })

export const PathRequest = Schema.Struct({ path: text })

export const EntryResponse = Schema.Struct({ entry: Entry })

export const MoveRequest = Schema.Struct({ source: text, destination: text })

export const ListRequest = Schema.Struct({
  path: text,
  depth: Schema.optionalWith(Schema.Int, { default: () => 1, nullable: true })
})

export const ListResponse = Schema.Struct({ entries: Schema.Array(Entry) })

export const Empty = Schema.Struct({})

export const WatchRequest = Schema.Struct({
  path: text,
  recursive: flag,
  includeEntry: flag
})

export type WatchRequest = typeof WatchRequest.Type

export const WatchEvent = Schema.Struct({
  name: Schema.String,
  type: Schema.Literal(
    "EVENT_TYPE_CREATE",
    "EVENT_TYPE_WRITE",
    "EVENT_TYPE_REMOVE",
    "EVENT_TYPE_RENAME",
    "EVENT_TYPE_CHMOD"
  ),
  entry: Schema.optional(Entry)
})

export type WatchEvent = typeof WatchEvent.Type

export const WatchMessage = Schema.Union(
  Schema.Struct({ start: Schema.Struct({}) }),
  Schema.Struct({ filesystem: WatchEvent }),
  Schema.Struct({ keepalive: Schema.Struct({}) })
)

export type WatchMessage = typeof WatchMessage.Type

export const WatcherResponse = Schema.Struct({ watcherId: Schema.String })

export const WatcherRequest = Schema.Struct({ watcherId: text })

export const WatcherEvents = Schema.Struct({ events: Schema.Array(WatchEvent) })

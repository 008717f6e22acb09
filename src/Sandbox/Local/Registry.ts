/**
 * The sandboxes of this user on this machine: one small file each, so that every process of the user knows them by id.
 */
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { randomUUID } from "node:crypto"
import * as fs from "node:fs"
import * as path from "node:path"
import { Labels, Role, SandboxId } from "../../Sandbox.ts"
import * as Absence from "./Absence.ts"
import { isOwnProc } from "./Host.ts"
import * as Proc from "./Proc.ts"
import { HostFailed, io } from "./Spawn.ts"

/** A sandbox as it is written down. */
export class Entry extends Schema.Class<Entry>("episode/Sandbox/Local/Entry")({
  version: Schema.Literal(1),
  id: SandboxId,
  pid: Schema.Int.pipe(Schema.positive()),
  start: Schema.String,
  namespace: Schema.String,
  isRoot: Schema.Boolean,
  /** The host's ids of the guest's user. */
  uid: Schema.Int,
  gid: Schema.Int,
  offline: Schema.Boolean,
  memoryMiB: Schema.Positive,
  cpuCount: Schema.Positive,
  pythonPrefix: Schema.UndefinedOr(Schema.String),
  role: Role,
  labels: Labels,
  startedAt: Schema.DateTimeUtc,
  expiresAt: Schema.DateTimeUtc
}) {}

const decode = Schema.decodeUnknownEither(Schema.parseJson(Entry))
const encode = Schema.encodeSync(Schema.parseJson(Entry))

export interface Registry {
  /** The directory, made and checked at its first use. */
  readonly directory: Effect.Effect<string, HostFailed>
  readonly write: (entry: Entry) => Effect.Effect<void, HostFailed>
  readonly read: (id: SandboxId) => Effect.Effect<Option.Option<Entry>, HostFailed>
  readonly remove: (id: SandboxId) => Effect.Effect<void, HostFailed>
  readonly ids: Effect.Effect<ReadonlyArray<SandboxId>, HostFailed>
  /** Whether anything was asked of it. */
  readonly isUsed: () => boolean
  /** Removes the directory, if nothing is in it any more. */
  readonly tidy: Effect.Effect<void>
}

/** Names this process in what it leaves below the directory: `12345-678900`. */
export const owner = (): string => `${process.pid}-${Proc.status(process.pid)?.start ?? "0"}`

const isOwnerGone = (name: string): boolean => {
  const [, pid, start] = /^(?:pipes|draft)-([0-9]+)-([0-9]+)-/.exec(name) ?? []
  return pid !== undefined && Proc.status(Number(pid))?.start !== start
}

// Others must not be able to put an entry, or a pipe, in here.
const prepare = (directory: string, uid: number): void => {
  // By a pid one process would be looked at and another one killed.
  if (!isOwnProc()) {
    throw new Error("/proc shows another pid namespace than this one: mount one of its own there")
  }
  attemptMkdir(directory)
  const found = fs.lstatSync(directory)
  if (!found.isDirectory() || found.uid !== uid || (found.mode & 0o077) !== 0) {
    throw new Error(
      `${directory} must be a directory of user ${uid} alone (mode 0700); name another one in EPISODE_LOCAL_DIRECTORY`
    )
  }
  for (const name of fs.readdirSync(directory).filter(isOwnerGone)) {
    fs.rmSync(path.join(directory, name), { recursive: true, force: true })
  }
}

const attemptMkdir = (directory: string): void => {
  try {
    fs.mkdirSync(directory, { mode: 0o700 })
  } catch (error) {
    if (!fs.existsSync(directory)) {
      throw error
    }
  }
}

// Another process may tidy up at any moment that the directory is empty.
const writeNew = (file: string, text: string): void => {
  const write = () => fs.writeFileSync(file, text, { mode: 0o600, flag: "wx" })
  try {
    write()
  } catch (error) {
    if (Proc.errorCode(error) !== "ENOENT") {
      throw error
    }
    attemptMkdir(path.dirname(file))
    write()
  }
}

const extension = ".json"

const { O_NOFOLLOW, O_NONBLOCK, O_RDONLY } = fs.constants

// Whatever lies there under an entry's name is opened without waiting for it, and only a small file is one.
const readEntry = (file: string): string => {
  const descriptor = fs.openSync(file, O_RDONLY | O_NONBLOCK | O_NOFOLLOW)
  try {
    const stats = fs.fstatSync(descriptor)
    return stats.isFile() && stats.size <= longestEntry ? fs.readFileSync(descriptor, "utf8") : ""
  } finally {
    fs.closeSync(descriptor)
  }
}

const longestEntry = 1024 * 1024

/** A registry in a directory whose parent exists. */
export const make = (options: { readonly directory: string; readonly uid: number }): Registry => {
  let isPrepared = false
  const directory = Effect.suspend(() =>
    isPrepared ? Effect.succeed(options.directory) : io(() => {
      prepare(options.directory, options.uid)
      isPrepared = true
      return options.directory
    })
  )
  const fileOf = (id: SandboxId): string => path.join(options.directory, `${id}${extension}`)
  const inDirectory = <A>(action: () => A): Effect.Effect<A, HostFailed> => Effect.andThen(directory, io(action))
  return {
    directory,
    read: (id) =>
      Effect.flatMap(
        inDirectory(() => Proc.found(() => readEntry(fileOf(id)))),
        (text) =>
          text === undefined ? Effect.succeedNone : Either.match(decode(text), {
            onLeft: () => new HostFailed({ detail: `${fileOf(id)} is not an entry of this version` }),
            onRight: Effect.succeedSome
          })
      ),
    remove: (id) => inDirectory(() => fs.rmSync(fileOf(id), { force: true })),
    write: (entry) =>
      inDirectory(() => {
        const draft = path.join(options.directory, `draft-${owner()}-${randomUUID()}`)
        try {
          writeNew(draft, encode(entry))
          fs.renameSync(draft, fileOf(entry.id))
        } catch (error) {
          // Where the disk is full, half of it may be there.
          fs.rmSync(draft, { force: true })
          throw error
        }
      }),
    ids: inDirectory(() =>
      (Proc.found(() => fs.readdirSync(options.directory)) ?? []).filter((name) => name.endsWith(extension))
        .map((name) => name.slice(0, -extension.length)).filter(Schema.is(SandboxId))
    ),
    isUsed: () => isPrepared,
    tidy: Effect.sync(() => {
      // Only what was found to be this user's own. It isn't empty when other processes have sandboxes.
      if (isPrepared) {
        isPrepared = false
        Proc.attempt(() => fs.rmdirSync(options.directory))
      }
    })
  }
}

/** Removes the entries of sandboxes that ended with the process that owned them. */
export const sweep = (registry: Registry): Effect.Effect<void, HostFailed> =>
  Effect.flatMap(registry.ids, (ids) =>
    Effect.forEach(ids, (id) =>
      registry.read(id).pipe(
        Effect.flatMap(Option.match({ onNone: () => Effect.succeed(false), onSome: Absence.isGone })),
        // An entry of another version is another program's to remove.
        Effect.catchAll(() => Effect.succeed(false)),
        Effect.flatMap((stale) => stale ? registry.remove(id) : Effect.void)
      ), { concurrency: "unbounded", discard: true }))

/**
 * Files of one sandbox: requests to a helper program inside it. There is one for each user, started at the first request
 * and again where it has ended.
 */
import type * as Context from "effect/Context"
import * as Data from "effect/Data"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as ExecutionStrategy from "effect/ExecutionStrategy"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type { SandboxFault, SandboxId } from "../Sandbox.ts"
import type { MachineProvider, ProgramRefused, Running, User } from "../Sandbox/Machine.ts"
import { concat, readUint32, uint32, utf8 } from "./Bytes.ts"
import { Entry } from "./FilesystemWire.ts"
import * as Helpers from "./Helper.ts"
import { files as program } from "./Programs/Files.ts"

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * What the file system answers where it doesn't do as it is told. `unanswered`: it doesn't answer, as a guest has seen to
 * that.
 */
export class FileError extends Data.TaggedError("FileError")<{
  readonly code: typeof FileErrorCode.Type
  readonly message: string
}> {}

const FileErrorCode = Schema.Literal(
  "not_found",
  "already_exists",
  "invalid_argument",
  "permission_denied",
  "resource_exhausted",
  "no_space",
  "unanswered",
  "internal"
)

/** Everything a request about files can come to but its answer. */
export type FilesFault = FileError | SandboxFault | ProgramRefused

export interface Written {
  readonly name: string
  readonly path: string
}

export interface Files {
  readonly stat: (user: User, path: string) => Effect.Effect<Entry, FilesFault>
  readonly list: (user: User, path: string, depth: number) => Effect.Effect<ReadonlyArray<Entry>, FilesFault>
  readonly makeDir: (user: User, path: string) => Effect.Effect<Entry, FilesFault>
  readonly move: (user: User, source: string, destination: string) => Effect.Effect<Entry, FilesFault>
  readonly remove: (user: User, path: string) => Effect.Effect<void, FilesFault>
  /** The first part of a file is read before this succeeds, the rest as it is taken; an end too early is a failure. */
  readonly read: (
    user: User,
    path: string
  ) => Effect.Effect<
    { readonly size: Option.Option<number>; readonly content: Stream.Stream<Uint8Array, FilesFault> },
    FilesFault,
    Scope.Scope
  >
  /** Takes all of the content, whatever becomes of it: only who has sent it listens to an answer. */
  readonly write: <E, R>(
    user: User,
    path: string,
    options: {
      readonly metadata: Readonly<Record<string, string>>
      readonly content: Stream.Stream<Uint8Array, E, R>
    }
  ) => Effect.Effect<Written, FilesFault | E, R>
}

// ----------------------------------------------------------------------------
// the helper's protocol
// ----------------------------------------------------------------------------

type Operation =
  | { readonly operation: "stat" | "makeDir" | "remove" | "read"; readonly path: string }
  | { readonly operation: "list"; readonly path: string; readonly depth: number }
  | { readonly operation: "move"; readonly source: string; readonly destination: string }
  | { readonly operation: "read" | "close"; readonly handle: number }
  | {
    readonly operation: "write"
    readonly path: string
    readonly metadata: Readonly<Record<string, string>>
    readonly last: boolean
  }
  | { readonly operation: "write"; readonly handle: number; readonly last: boolean }

const encodeRequest = Schema.encodeSync(Schema.parseJson(Schema.Record({ key: Schema.String, value: Schema.Unknown })))

const ReplyHeader = Schema.Struct({
  id: Schema.Int,
  error: Schema.optional(Schema.Struct({ code: FileErrorCode, message: Schema.String }))
})

const parseHeader = Schema.decodeUnknown(
  Schema.parseJson(Schema.extend(ReplyHeader, Schema.Record({ key: Schema.String, value: Schema.Unknown })))
)

interface Reply {
  readonly header: unknown
  readonly payload: Uint8Array
}

const Stated = Schema.decodeUnknown(Schema.Struct({ entry: Entry }))
const Listed = Schema.decodeUnknown(Schema.Struct({ entries: Schema.Array(Entry) }))
const Part = Schema.decodeUnknown(
  Schema.Struct({ handle: Schema.optional(Schema.Int) })
)
const Wrote = Schema.decodeUnknown(
  Schema.Struct({ name: Schema.String, path: Schema.String, handle: Schema.optional(Schema.Int) })
)

/** More than the helper ever sends: whoever does is not the helper. */
const longest = { header: 16 * 1024 * 1024, payload: 1024 * 1024 }

const partSize = 256 * 1024

/** Parts of a reply are joined up to this. */
const smallest = 32 * 1024

const none = new Uint8Array()

const broken = new FileError({ code: "unanswered", message: "the file helper in the sandbox was ended" })

const late = new FileError({ code: "unanswered", message: "the file helper in the sandbox doesn't answer" })

// For each part of a request: a guest may stop the helper, where that has the guest's own id.
const patience = Duration.seconds(20)

/** Cuts a stream of bytes into the helper's replies. */
export const frames = (bytes: Stream.Stream<Uint8Array>): Stream.Stream<readonly [Uint8Array, Uint8Array], FileError> =>
  Stream.suspend(() => {
    let parts: Array<Uint8Array> = []
    let length = 0
    const whole = (): Uint8Array => {
      const joined = parts.length === 1 && parts[0] !== undefined ? parts[0] : concat(parts)
      parts = [joined]
      return joined
    }
    const take = (): readonly [Uint8Array, Uint8Array] | "more" | "wrong" => {
      if (length < 4) {
        return "more"
      }
      const header = readUint32(parts[0] !== undefined && parts[0].length >= 4 ? parts[0] : whole(), 0)
      if (header > longest.header) {
        return "wrong"
      }
      if (length < header + 8) {
        return "more"
      }
      const payload = readUint32(whole(), 4 + header)
      if (payload > longest.payload) {
        return "wrong"
      }
      if (length < header + 8 + payload) {
        return "more"
      }
      const joined = whole()
      parts = [joined.subarray(header + 8 + payload)]
      length -= header + 8 + payload
      return [joined.subarray(4, 4 + header), joined.subarray(header + 8, header + 8 + payload)]
    }
    return Stream.mapConcatEffect(bytes, (part) =>
      Effect.gen(function*() {
        const last = parts.at(-1)
        // A guest that writes a byte at a time would have each of them kept as an object.
        if (last !== undefined && last.length + part.length <= smallest) {
          parts[parts.length - 1] = concat([last, part])
        } else {
          parts.push(part)
        }
        length += part.length
        const found: Array<readonly [Uint8Array, Uint8Array]> = []
        for (let next = take(); next !== "more"; next = take()) {
          if (next === "wrong") {
            return yield* broken
          }
          found.push(next)
        }
        return found
      }))
  })

interface Helper {
  readonly user: User
  readonly running: Running
  readonly scope: Scope.CloseableScope
  readonly pending: Map<number, Deferred.Deferred<Reply, FileError>>
}

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

/** The files of a sandbox, until the scope closes. */
export const make = (
  machine: Context.Tag.Service<MachineProvider>,
  sandboxId: SandboxId
): Effect.Effect<Files, never, Scope.Scope> =>
  Effect.gen(function*() {
    const ownScope = yield* Effect.scope
    const helpers = new Map<User, Helper>()
    const starting = yield* Effect.makeSemaphore(1)
    let requests = 0

    const end = (helper: Helper): Effect.Effect<void> =>
      Effect.uninterruptible(Effect.suspend(() => {
        if (helpers.get(helper.user) === helper) {
          helpers.delete(helper.user)
        }
        const waiting = [...helper.pending.values()]
        helper.pending.clear()
        return Effect.andThen(
          Effect.forEach(waiting, (reply) => Deferred.fail(reply, broken), { discard: true }),
          Scope.close(helper.scope, Exit.void)
        )
      }))

    const receive = (helper: Helper): Effect.Effect<void, FileError> =>
      frames(helper.running.stdout).pipe(
        Stream.runForEach(([head, payload]) =>
          parseHeader(new TextDecoder().decode(head)).pipe(
            Effect.mapError(() => broken),
            Effect.flatMap((header) => {
              const reply = helper.pending.get(header.id)
              helper.pending.delete(header.id)
              return reply === undefined
                ? Effect.void
                : header.error === undefined
                ? Deferred.succeed(reply, { header, payload })
                : Deferred.fail(reply, new FileError(header.error))
            })
          )
        )
      )

    const start = (user: User): Effect.Effect<Helper, SandboxFault | ProgramRefused> =>
      Effect.uninterruptibleMask((restore) =>
        Effect.gen(function*() {
          const scope = yield* Scope.fork(ownScope, ExecutionStrategy.sequential)
          const running = yield* restore(Scope.extend(Helpers.spawn(machine, sandboxId, user, program), scope)).pipe(
            Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
          )
          const helper: Helper = { user, running, scope, pending: new Map() }
          helpers.set(user, helper)
          yield* receive(helper).pipe(
            Effect.ensuring(Effect.forkIn(end(helper), ownScope)),
            Effect.ignore,
            Effect.interruptible,
            Effect.forkIn(ownScope)
          )
          return helper
        })
      )

    const helperOf = (user: User): Effect.Effect<Helper, FilesFault> =>
      Effect.suspend(() => {
        const found = helpers.get(user)
        return found === undefined
          ? starting.withPermits(1)(Effect.suspend(() => {
            const found = helpers.get(user)
            return found === undefined ? start(user) : Effect.succeed(found)
          }))
          : Effect.succeed(found)
      }).pipe(Effect.timeoutFail({ duration: patience, onTimeout: () => late }))

    const send = (helper: Helper, operation: Operation, payload: Uint8Array): Effect.Effect<Reply, FileError> =>
      Effect.gen(function*() {
        requests += 1
        const id = requests
        const head = utf8(encodeRequest({ ...operation, id }))
        const reply = yield* Deferred.make<Reply, FileError>()
        helper.pending.set(id, reply)
        const frame = concat([uint32(head.length), head, uint32(payload.length), payload])
        return yield* helper.running.write(frame).pipe(
          Effect.flatMap((taken) => taken ? Deferred.await(reply) : broken),
          Effect.timeoutOption(patience),
          Effect.ensuring(Effect.sync(() => helper.pending.delete(id))),
          Effect.flatMap(Option.match({
            // The next request has another helper.
            onNone: () => Effect.zipRight(Effect.forkIn(end(helper), ownScope), late),
            onSome: Effect.succeed
          }))
        )
      })

    const ask = (user: User, operation: Operation): Effect.Effect<unknown, FilesFault> =>
      Effect.flatMap(helperOf(user), (helper) => Effect.map(send(helper, operation, none), ({ header }) => header))

    const decoded = <A, E>(decode: (reply: unknown) => Effect.Effect<A, E>) => (reply: unknown) =>
      Effect.mapError(decode(reply), () => broken)

    const entryOf = (user: User, operation: Operation): Effect.Effect<Entry, FilesFault> =>
      Effect.map(Effect.flatMap(ask(user, operation), decoded(Stated)), ({ entry }) => entry)

    const closing = (helper: Helper, handle: number): Effect.Effect<void> =>
      send(helper, { operation: "close", handle }, none).pipe(
        Effect.ignore,
        // Asked for in finalizers, where nothing could end the wait, neither its limit nor the end of the sandbox.
        Effect.interruptible,
        Effect.forkIn(ownScope)
      )

    return {
      stat: (user, path) => entryOf(user, { operation: "stat", path }),
      list: (user, path, depth) =>
        Effect.map(
          Effect.flatMap(ask(user, { operation: "list", path, depth }), decoded(Listed)),
          ({ entries }) => entries
        ),
      makeDir: (user, path) => entryOf(user, { operation: "makeDir", path }),
      move: (user, source, destination) => entryOf(user, { operation: "move", source, destination }),
      remove: (user, path) => Effect.asVoid(ask(user, { operation: "remove", path })),
      read: (user, path) =>
        Effect.gen(function*() {
          const helper = yield* helperOf(user)
          const first = yield* send(helper, { operation: "read", path }, none)
          const { handle } = yield* decoded(Part)(first.header)
          if (handle === undefined) {
            return { size: Option.some(first.payload.length), content: Stream.make(first.payload) }
          }
          // Closed once more at its end, which is no error.
          yield* Effect.addFinalizer(() => closing(helper, handle))
          const rest = Stream.paginateEffect(handle, (handle) =>
            Effect.gen(function*() {
              const { header, payload } = yield* send(helper, { operation: "read", handle }, none)
              const part = yield* decoded(Part)(header)
              return [payload, Option.fromNullable(part.handle)] as const
            }))
          // A file may grow while it is read: its length isn't known before its end.
          return { size: Option.none(), content: Stream.concat(Stream.make(first.payload), rest) }
        }),
      write: (user, path, { content, metadata }) =>
        Effect.gen(function*() {
          const helper = yield* helperOf(user)
          let handle: number | undefined
          let parts: Array<Uint8Array> = []
          let length = 0
          const flush = (last: boolean): Effect.Effect<Written, FileError> =>
            Effect.suspend(() => {
              const payload = concat(parts)
              parts = []
              length = 0
              return send(
                helper,
                handle === undefined
                  ? { operation: "write", path, metadata, last }
                  : { operation: "write", handle, last },
                payload
              ).pipe(
                Effect.flatMap(({ header }) => decoded(Wrote)(header)),
                Effect.map((wrote) => {
                  handle = wrote.handle
                  return { name: wrote.name, path: wrote.path }
                })
              )
            })
          let failed: Option.Option<FileError> = Option.none()
          yield* Stream.runForEach(content, (part) =>
            Effect.suspend(() => {
              if (Option.isSome(failed)) {
                return Effect.void
              }
              parts.push(part)
              length += part.length
              return length < partSize ? Effect.void : Effect.catchAll(flush(false), (error) =>
                Effect.sync(() => {
                  failed = Option.some(error)
                }))
            })).pipe(Effect.onError(() => handle === undefined ? Effect.void : closing(helper, handle)))
          return yield* Option.match(failed, { onNone: () => flush(true), onSome: (error) => error })
        })
    }
  })

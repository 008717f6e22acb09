/**
 * Watched directories of one sandbox: for callers that keep a stream open, and for those that come back and ask.
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as ExecutionStrategy from "effect/ExecutionStrategy"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type { SandboxFault, SandboxId } from "../Sandbox.ts"
import type { MachineProvider, ProgramRefused, User } from "../Sandbox/Machine.ts"
import { FileError } from "./Files.ts"
import { WatchEvent, type WatchRequest } from "./FilesystemWire.ts"
import { python } from "./Programs/Entries.ts"
import { watch as program } from "./Programs/Watch.ts"
import * as Secrets from "./Secrets.ts"

type Fault = FileError | SandboxFault | ProgramRefused

export interface Watchers {
  /** Watching has begun when this succeeds. */
  readonly watch: (
    user: User,
    request: WatchRequest
  ) => Effect.Effect<Stream.Stream<WatchEvent, FileError>, Fault, Scope.Scope>
  readonly create: (user: User, request: WatchRequest) => Effect.Effect<string, Fault>
  /** What has happened since it was asked for last; none for a watcher that isn't there. */
  readonly take: (watcherId: string) => Effect.Effect<Option.Option<ReadonlyArray<WatchEvent>>>
  /** Whether there was one. */
  readonly remove: (watcherId: string) => Effect.Effect<boolean>
}

const Line = Schema.parseJson(Schema.Union(
  Schema.Struct({ start: Schema.Literal(true) }),
  Schema.Struct({ event: WatchEvent }),
  Schema.Struct({
    error: Schema.Struct({
      code: Schema.Literal("not_found", "permission_denied", "invalid_argument", "resource_exhausted", "internal"),
      message: Schema.String
    })
  })
))

const broken = new FileError({ code: "internal", message: "the watching program in the sandbox was ended" })

// Of a watcher that nobody asks, the oldest events are forgotten.
const remembered = 4096

const longestLine = 64 * 1024

const digit = (flag: boolean): string => flag ? "1" : "0"

interface Watcher {
  readonly events: Array<WatchEvent>
  readonly scope: Scope.CloseableScope
}

/** The watchers of a sandbox, until the scope closes. */
export const make = (
  machine: Context.Tag.Service<MachineProvider>,
  sandboxId: SandboxId
): Effect.Effect<Watchers, never, Scope.Scope> =>
  Effect.gen(function*() {
    const ownScope = yield* Effect.scope
    const watchers = new Map<string, Watcher>()

    const watch: Watchers["watch"] = (user, request) =>
      Effect.gen(function*() {
        const running = yield* machine.spawn(sandboxId, {
          argv: [...python, program, user, request.path, ...[request.recursive, request.includeEntry].map(digit)],
          user,
          environment: {},
          directory: "/",
          stdin: "open"
        })
        const lines = yield* running.stdout.pipe(
          Stream.decodeText(),
          Stream.splitLines,
          Stream.filter((line) => line.length <= longestLine),
          Stream.mapEffect((line) => Effect.mapError(Schema.decode(Line)(line), () => broken)),
          Stream.toPull
        )
        const next = Effect.mapError(lines, Option.getOrElse(() => broken))
        const [first, ...more] = yield* next
        if (first === undefined || !("start" in first)) {
          return yield* first !== undefined && "error" in first ? new FileError(first.error) : broken
        }
        return Stream.fromIterable(more).pipe(
          Stream.concat(Stream.repeatEffectChunk(next)),
          Stream.filterMap((line) => "event" in line ? Option.some(line.event) : Option.none())
        )
      })

    return {
      watch,
      create: (user, request) =>
        Effect.uninterruptibleMask((restore) =>
          Effect.gen(function*() {
            const scope = yield* Scope.fork(ownScope, ExecutionStrategy.sequential)
            const events = yield* restore(Scope.extend(watch(user, request), scope)).pipe(
              Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
            )
            const watcherId = yield* Secrets.sandboxId
            const watcher: Watcher = { events: [], scope }
            watchers.set(watcherId, watcher)
            yield* Stream.runForEach(events, (event) =>
              Effect.sync(() => {
                watcher.events.push(event)
                watcher.events.splice(0, watcher.events.length - remembered)
              })).pipe(Effect.ignore, Effect.interruptible, Effect.forkIn(scope))
            return watcherId
          })
        ),
      take: (watcherId) =>
        Effect.sync(() => Option.map(Option.fromNullable(watchers.get(watcherId)), ({ events }) => events.splice(0))),
      remove: (watcherId) =>
        Effect.suspend(() => {
          const watcher = watchers.get(watcherId)
          watchers.delete(watcherId)
          return watcher === undefined
            ? Effect.succeed(false)
            : Effect.as(Scope.close(watcher.scope, Exit.void), true)
        })
    }
  })

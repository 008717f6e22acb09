/**
 * Watched directories of one sandbox: for callers that keep a stream open, and for those that come back and ask.
 */
import type * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as ExecutionStrategy from "effect/ExecutionStrategy"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Ref from "effect/Ref"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type { SandboxFault, SandboxId } from "../Sandbox.ts"
import type { MachineProvider, ProgramRefused, User } from "../Sandbox/Machine.ts"
import { lines as linesOf } from "./Bytes.ts"
import { FileError } from "./Files.ts"
import { WatchEvent, type WatchRequest } from "./FilesystemWire.ts"
import * as Helpers from "./Helper.ts"
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

type Line = typeof Line.Type

const broken = new FileError({ code: "unanswered", message: "the watching program in the sandbox was ended" })

// Of a watcher that nobody asks, the oldest events are forgotten.
const remembered = { events: 4096, size: 1024 * 1024 }

// Whoever writes a longer one is not our program.
const longestLine = 64 * 1024

// Each is a process there, and memory here.
const most = 32

const tooMany = new FileError({ code: "resource_exhausted", message: `there are ${most} watchers already` })

const patience = Duration.seconds(20)

const digit = (flag: boolean): string => flag ? "1" : "0"

interface Sized {
  readonly event: WatchEvent
  /** About what it takes to keep it. */
  readonly size: number
}

interface Watcher {
  readonly events: Array<Sized>
  readonly scope: Scope.CloseableScope
}

const overhead = 256

const keep = (events: Array<Sized>, event: Sized): void => {
  events.push(event)
  let size = 0
  const surplus = events.findLastIndex((one) => (size += one.size) > remembered.size) + 1
  events.splice(0, Math.max(surplus, events.length - remembered.events))
}

/** The watchers of a sandbox, until the scope closes. */
export const make = (
  machine: Context.Tag.Service<MachineProvider>,
  sandboxId: SandboxId
): Effect.Effect<Watchers, never, Scope.Scope> =>
  Effect.gen(function*() {
    const ownScope = yield* Effect.scope
    const watchers = new Map<string, Watcher>()

    const places = yield* Ref.make(most)
    const takePlace = Effect.acquireRelease(
      Effect.filterOrFail(
        Ref.modify(places, (left) => left > 0 ? [true, left - 1] : [false, left]),
        (had) => had,
        () => tooMany
      ),
      () => Ref.update(places, (left) => left + 1)
    )

    const watch = (
      user: User,
      request: WatchRequest
    ): Effect.Effect<Stream.Stream<Sized, FileError>, Fault, Scope.Scope> =>
      Effect.gen(function*() {
        yield* takePlace
        const flags = [request.recursive, request.includeEntry].map(digit)
        const running = yield* Helpers.spawn(machine, sandboxId, user, program, request.path, ...flags)
        const lines = yield* linesOf(running.stdout, { longest: longestLine, tooLong: broken }).pipe(
          Stream.mapEffect((text) =>
            Effect.mapBoth(Schema.decode(Line)(text), {
              onFailure: () => broken,
              onSuccess: (line): readonly [Line, number] => [line, text.length + overhead]
            })
          ),
          Stream.toPull
        )
        const next = Effect.mapError(lines, Option.getOrElse(() => broken))
        const [[first] = [], ...more] = yield* Effect.timeoutFail(next, { duration: patience, onTimeout: () => broken })
        if (first === undefined || !("start" in first)) {
          return yield* first !== undefined && "error" in first ? new FileError(first.error) : broken
        }
        return Stream.fromIterable(more).pipe(
          Stream.concat(Stream.repeatEffectChunk(next)),
          Stream.filterMap(([line, size]) => "event" in line ? Option.some({ event: line.event, size }) : Option.none())
        )
      })

    return {
      watch: (user, request) => Effect.map(watch(user, request), Stream.map(({ event }) => event)),
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
                keep(watcher.events, event)
              })).pipe(Effect.ignore, Effect.interruptible, Effect.forkIn(scope))
            return watcherId
          })
        ),
      take: (watcherId) =>
        Effect.sync(() =>
          Option.map(
            Option.fromNullable(watchers.get(watcherId)),
            ({ events }) => events.splice(0).map(({ event }) => event)
          )
        ),
      remove: (watcherId) =>
        // Whole, also where the caller goes away: a scope that is closed halfway keeps what is left of it.
        Effect.uninterruptible(Effect.suspend(() => {
          const watcher = watchers.get(watcherId)
          watchers.delete(watcherId)
          return watcher === undefined
            ? Effect.succeed(false)
            : Effect.as(Scope.close(watcher.scope, Exit.void), true)
        }))
    }
  })

/**
 * The sessions of a server: who holds a place, for how long, and how it is given back.
 *
 * A place is free again when the sandboxes of its episode are gone, or given up: a sandbox costs as much as a session.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import type { Environment, Kind } from "./Environment.ts"

// ----------------------------------------------------------------------------
// errors
// ----------------------------------------------------------------------------

/**
 * Every place is taken.
 *
 * @since 0.1.0
 * @category errors
 */
export class CapacityReached extends Schema.TaggedError<CapacityReached>("episode/OpenEnv/CapacityReached")(
  "CapacityReached",
  { active: Schema.Int, max: Schema.Int }
) {
  override get message(): string {
    return `all ${this.max} places are taken; try again when an episode has ended`
  }
}

/**
 * A session can't be used as asked.
 *
 * @since 0.1.0
 * @category errors
 */
export class SessionRefused extends Schema.TaggedError<SessionRefused>("episode/OpenEnv/SessionRefused")(
  "SessionRefused",
  { reason: Schema.Literal("unknown", "attached", "own", "stopping") }
) {
  override get message(): string {
    return {
      unknown: "there is no such session; it may have ended",
      attached: "another socket is attached to this session",
      own: "a socket can't close its own session this way; close the socket",
      stopping: "the server is stopping"
    }[this.reason]
  }
}

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * One client's place, and the environment in it.
 *
 * @since 0.1.0
 * @category models
 */
export interface Held {
  readonly id: string
  readonly environment: Environment
  /** A session isn't idle while a request of it is under way. */
  readonly inUse: <A, E, R>(request: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
  /** Succeeds when the session is over, whoever ended it. */
  readonly over: Effect.Effect<void>
}

/**
 * @since 0.1.0
 * @category models
 */
export interface Sessions {
  /** The tools of every session. */
  readonly tools: Kind["tools"]
  readonly count: Effect.Effect<number>
  /** A session that no socket is attached to yet. */
  readonly create: Effect.Effect<Held, CapacityReached | SessionRefused>
  /** A session that ends with the socket it belongs to. */
  readonly own: Effect.Effect<Held, CapacityReached | SessionRefused, Scope.Scope>
  /** Takes the one socket's place at a session until the scope ends; the session outlives it for a while. */
  readonly attach: (id: string) => Effect.Effect<Held, SessionRefused, Scope.Scope>
  readonly find: (id: string) => Effect.Effect<Held, SessionRefused>
  /** False when a socket is attached: the session ends when that is gone. */
  readonly close: (id: string, from: Option.Option<string>) => Effect.Effect<boolean, SessionRefused>
}

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /** What every session has one of. */
  readonly kind: Kind
  readonly maxSessions: number
  /** How long a session with a socket may do nothing. */
  readonly idleTimeout: Duration.Duration
  /** How long a session without a socket may do nothing. */
  readonly detachedTimeout: Duration.Duration
  /** How long the end waits for sandboxes to be proved gone. */
  readonly shutdownTimeout: Duration.Duration
}

interface Entry extends Held {
  readonly end: Effect.Effect<void>
  attached: boolean
  closing: boolean
  requests: number
  usedAt: number
}

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

/**
 * No sessions at first. The end of the scope ends them all at once and waits for that, within its bound.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = Effect.fnUntraced(function*(options: Options) {
  // Looked at and changed only where nothing else can run in between.
  const entries = new Map<string, Entry>()
  let taken = 0
  let stopping = false

  const takePlace = Effect.suspend((): Effect.Effect<void, CapacityReached | SessionRefused> => {
    if (stopping) {
      return new SessionRefused({ reason: "stopping" })
    }
    if (taken >= options.maxSessions) {
      return new CapacityReached({ active: taken, max: options.maxSessions })
    }
    taken += 1
    return Effect.void
  })

  const givePlace = Effect.sync(() => {
    taken -= 1
  })

  const touch = (entry: Entry) =>
    Effect.map(Clock.currentTimeMillis, (now) => {
      entry.usedAt = now
    })

  const start = Effect.fnUntraced(function*(attached: boolean) {
    yield* takePlace
    const own = yield* Scope.make()
    const environment = yield* Scope.extend(options.kind.open, own).pipe(
      // It has no failures, but a bug of an environment's may not cost the server a place.
      Effect.onError((cause) => Effect.ensuring(Scope.close(own, Exit.failCause(cause)), givePlace))
    )
    const ending = yield* Deferred.make<void>()
    const id = yield* Effect.sync(() => globalThis.crypto.randomUUID())
    const end = yield* Scope.close(own, Exit.void).pipe(
      // Whoever waits for the end has no part in it, and the end of the server waits for the others as well.
      Effect.catchAllDefect((defect) =>
        Effect.logError("a bug in the OpenEnv server, at the end of a session", defect)
      ),
      Effect.ensuring(Effect.zipRight(Effect.sync(() => entries.delete(id)), givePlace)),
      Effect.intoDeferred(ending),
      // In the background, so that nobody is held up and nobody's interruption reaches it. The end of the server waits.
      Effect.forkDaemon,
      Effect.once
    )
    const entry: Entry = {
      id,
      environment,
      inUse: (request) =>
        Effect.acquireUseRelease(
          Effect.sync(() => {
            entry.requests += 1
          }),
          () => request,
          () =>
            Effect.zipRight(
              Effect.sync(() => {
                entry.requests -= 1
              }),
              touch(entry)
            )
        ),
      over: Deferred.await(ending),
      end,
      attached,
      closing: false,
      requests: 0,
      usedAt: yield* Clock.currentTimeMillis
    }
    entries.set(id, entry)
    return entry
  }, Effect.uninterruptible)

  const find = (id: string): Effect.Effect<Entry, SessionRefused> =>
    Effect.suspend(() => {
      const entry = entries.get(id)
      return entry === undefined || entry.closing ? new SessionRefused({ reason: "unknown" }) : Effect.succeed(entry)
    })

  const finish = (entry: Entry) =>
    Effect.suspend(() => {
      entry.closing = true
      return entry.end
    })

  const detach = (entry: Entry) =>
    Effect.suspend(() => {
      entry.attached = false
      return entry.closing ? finish(entry) : touch(entry)
    })

  const sweep = Effect.flatMap(Clock.currentTimeMillis, (now) =>
    Effect.forEach(
      [...entries.values()].filter((entry) =>
        !entry.closing && entry.requests === 0
        && now - entry.usedAt >= Duration.toMillis(entry.attached ? options.idleTimeout : options.detachedTimeout)
      ),
      finish,
      { discard: true }
    ))

  yield* sweep.pipe(
    Effect.repeat(Schedule.spaced(Duration.times(Duration.min(options.idleTimeout, options.detachedTimeout), 0.25))),
    Effect.forkScoped
  )

  yield* Effect.addFinalizer(() =>
    Effect.gen(function*() {
      stopping = true
      const left = [...entries.values()]
      yield* Effect.forEach(left, finish, { discard: true })
      yield* Effect.forEach(left, ({ over }) => over, { discard: true }).pipe(
        Effect.interruptible,
        // What isn't done by then goes on by itself, for as long as there is a program.
        Effect.timeoutOption(options.shutdownTimeout)
      )
    })
  )

  const sessions: Sessions = {
    tools: options.kind.tools,
    count: Effect.sync(() => taken),
    create: start(false),
    own: Effect.acquireRelease(start(true), finish),
    attach: (id) =>
      Effect.acquireRelease(
        Effect.flatMap(find(id), (entry) =>
          Effect.suspend(() => {
            if (entry.attached) {
              return new SessionRefused({ reason: "attached" })
            }
            entry.attached = true
            return Effect.as(touch(entry), entry)
          })),
        detach
      ),
    find,
    close: (id, from) =>
      Effect.flatMap(find(id), (entry) => {
        if (Option.contains(from, id)) {
          return new SessionRefused({ reason: "own" })
        }
        if (!entry.attached) {
          return Effect.as(Effect.zipRight(finish(entry), entry.over), true)
        }
        entry.closing = true
        return Effect.succeed(false)
      })
  }
  return sessions
})

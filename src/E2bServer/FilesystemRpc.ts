/**
 * `filesystem.Filesystem`: files of a sandbox by remote procedure call.
 */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import type { FileError } from "./Files.ts"
import * as Wire from "./FilesystemWire.ts"
import * as Rpc from "./Rpc.ts"
import * as Sessions from "./Session.ts"

type Session = Sessions.Session

const stat = (session: Session) =>
  Rpc.unary({ request: Wire.PathRequest, response: Wire.EntryResponse }, ({ path }) =>
    Effect.gen(function*() {
      const user = yield* Sessions.user
      return { entry: yield* Effect.catchAll(session.files.stat(user, path), Sessions.explain(session)) }
    }))

const list = (session: Session) =>
  Rpc.unary({ request: Wire.ListRequest, response: Wire.ListResponse }, ({ depth, path }) =>
    Effect.gen(function*() {
      const user = yield* Sessions.user
      // Left out, it is zero.
      const entries = session.files.list(user, path, depth === 0 ? 1 : depth)
      return { entries: yield* Effect.catchAll(entries, Sessions.explain(session)) }
    }))

const makeDir = (session: Session) =>
  Rpc.unary({ request: Wire.PathRequest, response: Wire.EntryResponse }, ({ path }) =>
    Effect.gen(function*() {
      const user = yield* Sessions.user
      return { entry: yield* Effect.catchAll(session.files.makeDir(user, path), Sessions.explain(session)) }
    }))

const move = (session: Session) =>
  Rpc.unary(
    { request: Wire.MoveRequest, response: Wire.EntryResponse },
    ({ destination, source }) =>
      Effect.gen(function*() {
        const user = yield* Sessions.user
        const moved = session.files.move(user, source, destination)
        return { entry: yield* Effect.catchAll(moved, Sessions.explain(session)) }
      })
  )

const remove = (session: Session) =>
  Rpc.unary({ request: Wire.PathRequest, response: Wire.Empty }, ({ path }) =>
    Effect.gen(function*() {
      const user = yield* Sessions.user
      yield* Effect.catchAll(session.files.remove(user, path), Sessions.explain(session))
      return {}
    }))

// ----------------------------------------------------------------------------
// watching
// ----------------------------------------------------------------------------

const ofEvents = (session: Session, events: Stream.Stream<Wire.WatchEvent, FileError>) =>
  events.pipe(
    Stream.map((filesystem): Wire.WatchMessage => ({ filesystem })),
    Stream.catchAll((fault) => Stream.fromEffect(Sessions.explain(session)(fault)))
  )

const timeUp = Rpc.rpcError("deadline_exceeded", "context deadline exceeded")

const watchDir = (session: Session) =>
  Rpc.serverStream({ request: Wire.WatchRequest, message: Wire.WatchMessage }, (request) =>
    Effect.gen(function*() {
      const user = yield* Sessions.user
      const interval = yield* Rpc.keepaliveInterval
      const limit = yield* Rpc.timeLimit
      const events = yield* Effect.catchAll(session.watchers.watch(user, request), Sessions.explain(session))
      const told = Stream.make<[Wire.WatchMessage]>({ start: {} }).pipe(
        Stream.concat(Stream.merge(
          ofEvents(session, events),
          Stream.map(Stream.tick(interval), (): Wire.WatchMessage => ({ keepalive: {} })).pipe(Stream.drop(1)),
          { haltStrategy: "left" }
        ))
      )
      return Option.match(limit, {
        onNone: () => told,
        onSome: (limit) => Stream.interruptWhen(told, Effect.andThen(Effect.sleep(limit), timeUp))
      })
    }))

const createWatcher = (session: Session) =>
  Rpc.unary({ request: Wire.WatchRequest, response: Wire.WatcherResponse }, (request) =>
    Effect.gen(function*() {
      const user = yield* Sessions.user
      return {
        watcherId: yield* Effect.catchAll(session.watchers.create(user, request), Sessions.explain(session))
      }
    }))

const noWatcher = (watcherId: string): Rpc.RpcError =>
  Rpc.rpcError("not_found", `watcher with id ${watcherId} not found`)

const getWatcherEvents = (session: Session) =>
  Rpc.unary(
    { request: Wire.WatcherRequest, response: Wire.WatcherEvents },
    ({ watcherId }) =>
      Effect.flatMap(
        session.watchers.take(watcherId),
        Option.match({
          onNone: () => noWatcher(watcherId),
          onSome: (events) => Effect.succeed({ events })
        })
      )
  )

const removeWatcher = (session: Session) =>
  Rpc.unary(
    { request: Wire.WatcherRequest, response: Wire.Empty },
    ({ watcherId }) =>
      Effect.flatMap(
        session.watchers.remove(watcherId),
        (removed) => removed ? Effect.succeed({}) : noWatcher(watcherId)
      )
  )

/** A method by name. */
export const route = (session: Session, method: string) => {
  switch (method) {
    case "Stat":
      return stat(session)
    case "ListDir":
      return list(session)
    case "MakeDir":
      return makeDir(session)
    case "Move":
      return move(session)
    case "Remove":
      return remove(session)
    case "WatchDir":
      return watchDir(session)
    case "CreateWatcher":
      return createWatcher(session)
    case "GetWatcherEvents":
      return getWatcherEvents(session)
    case "RemoveWatcher":
      return removeWatcher(session)
    default:
      return Rpc.refuse(Rpc.rpcError("unimplemented", `filesystem.Filesystem/${method} isn't offered by this server`))
  }
}

/**
 * `process.Process`: programs in a sandbox by remote procedure call.
 */
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import { identity } from "effect/Function"
import * as Option from "effect/Option"
import * as Stream from "effect/Stream"
import { homeOf, type User } from "../Sandbox/Machine.ts"
import type { Heard, Listening, Process } from "./Processes.ts"
import * as Wire from "./ProcessWire.ts"
import * as Rpc from "./Rpc.ts"
import * as Sessions from "./Session.ts"

type Session = Sessions.Session

// ----------------------------------------------------------------------------
// streams
// ----------------------------------------------------------------------------

const isEnd = (heard: Heard | "nothing"): boolean => heard !== "nothing" && "end" in heard.event

const tell = (heard: Heard | "nothing"): Effect.Effect<ReadonlyArray<Wire.Message>> =>
  Effect.succeed([heard === "nothing" ? { event: { keepalive: {} } } : { event: heard.event }])

const timeUp = Rpc.rpcError("deadline_exceeded", "context deadline exceeded")

/** First the pid, then what happens, and a word when nothing does; after an end by the time limit, that. */
const messages = (
  { next, pid }: Listening,
  interval: Duration.Duration
): Stream.Stream<Wire.Message, Rpc.RpcError> =>
  Stream.repeatEffect(
    Effect.timeoutTo(next, { duration: interval, onSuccess: identity, onTimeout: () => "nothing" as const })
  ).pipe(
    Stream.takeUntil(isEnd),
    Stream.flatMap((heard) =>
      Stream.concat(
        Stream.fromIterableEffect(tell(heard)),
        heard !== "nothing" && heard.isTimeUp ? Stream.fail(timeUp) : Stream.empty
      )
    ),
    (events) => Stream.concat(Stream.make<[Wire.Message]>({ event: { start: { pid } } }), events)
  )

// ----------------------------------------------------------------------------
// calls
// ----------------------------------------------------------------------------

// As envd reads it. Whether it is there is found out where the program begins, and by nobody whom a guest could hinder.
const directoryOf = (user: User, asked = ""): string =>
  asked === "" ? homeOf(user) : asked === "~" || asked.startsWith("~/") ? homeOf(user) + asked.slice(1) : asked

const start = (session: Session) =>
  Rpc.serverStream({ request: Wire.StartRequest, message: Wire.Message }, (request) =>
    Effect.gen(function*() {
      const user = yield* Sessions.user
      const interval = yield* Rpc.keepaliveInterval
      const listening = yield* session.processes.start({
        config: request.process,
        tag: request.tag,
        user,
        environment: { ...session.member.environment, ...request.process.envs },
        directory: directoryOf(user, request.process.cwd),
        stdin: request.stdin ?? true,
        size: request.pty === undefined ? undefined : request.pty.size ?? { cols: 80, rows: 24 },
        timeLimit: yield* Rpc.timeLimit
      }).pipe(Effect.catchAll(Sessions.explain(session)))
      return messages(listening, interval)
    }))

const nameOf = (selector: Wire.Selector): string => "pid" in selector ? `pid ${selector.pid}` : `tag '${selector.tag}'`

const notFound = (selector: Wire.Selector): Rpc.RpcError =>
  Rpc.rpcError("not_found", `process with ${nameOf(selector)} not found`)

const connect = (session: Session) =>
  Rpc.serverStream({ request: Wire.ConnectRequest, message: Wire.Message }, ({ process }) =>
    Effect.gen(function*() {
      const interval = yield* Rpc.keepaliveInterval
      const limit = yield* Rpc.timeLimit
      const listening = yield* session.processes.connect(process)
      if (Option.isNone(listening)) {
        return yield* notFound(process)
      }
      const heard = messages(listening.value, interval)
      // Only the listening ends with the caller's time: the program belongs to the one who started it.
      return Option.match(limit, {
        onNone: () => heard,
        onSome: (limit) => Stream.interruptWhen(heard, Effect.andThen(Effect.sleep(limit), timeUp))
      })
    }))

const withProcess = <E, R>(
  session: Session,
  selector: Wire.Selector,
  use: (process: Process) => Effect.Effect<void, E, R>
) =>
  Option.match(session.processes.find(selector), {
    onNone: () => notFound(selector),
    onSome: (process) => Effect.as(use(process), {})
  })

const list = (session: Session) =>
  Rpc.unary(
    { request: Wire.Empty, response: Wire.ListResponse },
    () =>
      Effect.map(session.processes.list, (processes) => ({
        processes: processes.map(({ config, pid, tag }) => ({ pid, tag, config }))
      }))
  )

const sendSignal = (session: Session) =>
  Rpc.unary(
    { request: Wire.SignalRequest, response: Wire.Empty },
    ({ process, signal }) =>
      withProcess(session, process, (found) =>
        found.signal(signal === 9 || signal === "SIGNAL_SIGKILL" ? "SIGKILL" : "SIGTERM"))
  )

const closed = Rpc.rpcError("internal", "error writing to stdin: stdin not enabled or closed")

const sendInput = (session: Session) =>
  Rpc.unary(
    { request: Wire.InputRequest, response: Wire.Empty },
    ({ input, process }) =>
      withProcess(session, process, (found) =>
        "pty" in input !== found.isTerminal
          ? Rpc.rpcError("failed_precondition", `the process has ${found.isTerminal ? "a" : "no"} tty`)
          : found.hasInput
          ? Effect.flatMap(
            found.write("pty" in input ? input.pty : input.stdin),
            (taken) => taken ? Effect.void : closed
          )
          : closed)
  )

const closeStdin = (session: Session) =>
  Rpc.unary(
    { request: Wire.CloseStdinRequest, response: Wire.Empty },
    ({ process }) =>
      withProcess(session, process, (found) =>
        found.isTerminal
          ? Rpc.rpcError(
            "unknown",
            "error closing stdin: cannot close stdin for PTY process — send Ctrl+D (0x04) instead"
          )
          : found.closeStdin)
  )

const update = (session: Session) =>
  Rpc.unary(
    { request: Wire.UpdateRequest, response: Wire.Empty },
    ({ process, pty }) =>
      withProcess(session, process, (found) =>
        pty?.size === undefined
          ? Effect.void
          : found.isTerminal
          ? found.resize(pty.size)
          : Rpc.rpcError("failed_precondition", "the process has no tty"))
  )

/** A method by name. */
export const route = (session: Session, method: string) => {
  switch (method) {
    case "Start":
      return start(session)
    case "Connect":
      return connect(session)
    case "List":
      return list(session)
    case "SendSignal":
      return sendSignal(session)
    case "SendInput":
      return sendInput(session)
    case "CloseStdin":
      return closeStdin(session)
    case "Update":
      return update(session)
    default:
      // StreamInput among them, which needs a stream from the client.
      return Rpc.refuse(Rpc.rpcError("unimplemented", `process.Process/${method} isn't offered by this server`))
  }
}

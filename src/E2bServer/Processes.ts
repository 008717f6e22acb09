/**
 * Programs of one sandbox that were started through this server.
 *
 * A program outlives the caller that started it: its output goes to those who listen, is held up by the slowest of them,
 * and is thrown away while nobody does.
 */
import type * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as ExecutionStrategy from "effect/ExecutionStrategy"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as PubSub from "effect/PubSub"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type { SandboxFault, SandboxId } from "../Sandbox.ts"
import type { Ended, MachineProvider, ProgramRefused, User } from "../Sandbox/Machine.ts"
import type * as Wire from "./ProcessWire.ts"
import * as Terminal from "./Terminal.ts"

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

export interface Spec {
  readonly config: Wire.Config
  readonly tag: string | undefined
  readonly user: User
  readonly environment: Readonly<Record<string, string>>
  readonly directory: string
  readonly stdin: boolean
  readonly size: typeof Wire.Size.Type | undefined
  /** After this long it is killed, with everything in its session, and what it has left behind is no longer listened to. */
  readonly timeLimit: Option.Option<Duration.Duration>
}

/** What one listener gets: events from now on, up to the end. */
export interface Listening {
  readonly pid: number
  readonly next: Effect.Effect<Heard>
}

export interface Heard {
  readonly event: Wire.Event
  /** With the end: it came because the time was up. */
  readonly isTimeUp: boolean
}

export interface Process {
  readonly pid: number
  readonly tag: string | undefined
  readonly config: Wire.Config
  readonly isTerminal: boolean
  readonly hasInput: boolean
  readonly write: (bytes: Uint8Array) => Effect.Effect<boolean>
  readonly closeStdin: Effect.Effect<void>
  readonly signal: (name: "SIGTERM" | "SIGKILL") => Effect.Effect<void>
  readonly resize: (size: typeof Wire.Size.Type) => Effect.Effect<void>
}

export interface Processes {
  readonly start: (spec: Spec) => Effect.Effect<Listening, SandboxFault | ProgramRefused, Scope.Scope>
  /** Also of a program that ended not long ago: then there is its end alone. */
  readonly connect: (selector: Wire.Selector) => Effect.Effect<Option.Option<Listening>, never, Scope.Scope>
  readonly find: (selector: Wire.Selector) => Option.Option<Process>
  readonly list: Effect.Effect<ReadonlyArray<Process>>
}

// ----------------------------------------------------------------------------
// the end of a program
// ----------------------------------------------------------------------------

// As Go, which envd is written in, names them.
const signalNames: Readonly<Record<string, string>> = {
  SIGHUP: "hangup",
  SIGINT: "interrupt",
  SIGQUIT: "quit",
  SIGILL: "illegal instruction",
  SIGTRAP: "trace/breakpoint trap",
  SIGABRT: "aborted",
  SIGBUS: "bus error",
  SIGFPE: "floating point exception",
  SIGKILL: "killed",
  SIGSEGV: "segmentation fault",
  SIGPIPE: "broken pipe",
  SIGALRM: "alarm clock",
  SIGTERM: "terminated"
}

export const endOf = ({ exitCode, signal }: Ended): Wire.End => {
  if (signal !== undefined) {
    const status = `signal: ${signalNames[signal] ?? signal}`
    return { exitCode: -1, exited: false, status, error: status }
  }
  const code = exitCode ?? -1
  const status = `exit status ${code}`
  return code === 0 ? { exitCode: code, exited: true, status } : { exitCode: code, exited: true, status, error: status }
}

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

const largestPart = 32 * 1024

// A few parts for each listener: what is more waits in the pipe.
const buffered = 8

const rememberedFor = Duration.seconds(30)

const parts = (bytes: Uint8Array): ReadonlyArray<Uint8Array> =>
  bytes.length <= largestPart ? [bytes] : Array.from(
    { length: Math.ceil(bytes.length / largestPart) },
    (_, index) => bytes.subarray(index * largestPart, (index + 1) * largestPart)
  )

interface Past {
  readonly tag: string | undefined
  readonly listening: Listening
}

interface Entry {
  readonly process: Process
  readonly hub: PubSub.PubSub<Heard>
  readonly end: Deferred.Deferred<Heard>
}

/** The programs of a sandbox, until the scope closes. */
export const make = (options: {
  readonly machine: Context.Tag.Service<MachineProvider>
  readonly sandboxId: SandboxId
  /** Asked before the end of a killed program is told: it may be the sandbox that has ended. */
  readonly isSandboxAlive: Effect.Effect<boolean>
}): Effect.Effect<Processes, never, Scope.Scope> =>
  Effect.gen(function*() {
    const ownScope = yield* Effect.scope
    const running = new Map<number, Entry>()
    const ended = new Map<number, Past>()
    const where = { ...options, isTaken: (pid: number) => running.has(pid) }

    const amongRunning = (selector: Wire.Selector): Entry | undefined =>
      "pid" in selector
        ? running.get(selector.pid)
        : [...running.values()].find(({ process }) => process.tag === selector.tag)

    const amongEnded = (selector: Wire.Selector): Past | undefined =>
      "pid" in selector ? ended.get(selector.pid) : [...ended.values()].find(({ tag }) => tag === selector.tag)

    const listen = ({ end, hub, process }: Entry): Effect.Effect<Listening, never, Scope.Scope> =>
      Effect.map(PubSub.subscribe(hub), (heard) => ({
        pid: process.pid,
        // The end stays, for one who comes late. Looked at first: what was told before it is in the queue by then.
        next: Effect.flatMap(Deferred.poll(end), (over) =>
          Effect.flatMap(Queue.poll(heard), (found) =>
            Option.isSome(found)
              ? Effect.succeed(found.value)
              : Option.isSome(over)
              ? over.value
              : Queue.take(heard)))
      }))

    const tellEnd = (entry: Entry, end: Ended, isTimeUp: boolean): Effect.Effect<Past> =>
      Effect.gen(function*() {
        if (end.signal !== undefined && !(yield* options.isSandboxAlive)) {
          return yield* Effect.never
        }
        const heard = { event: { end: endOf(end) }, isTimeUp }
        const { pid, tag } = entry.process
        const past = { tag, listening: { pid, next: Effect.succeed(heard) } }
        // Its pid may be another's by now.
        if (running.get(pid) === entry) {
          running.delete(pid)
          ended.set(pid, past)
        }
        yield* PubSub.publish(entry.hub, heard)
        yield* Deferred.succeed(entry.end, heard)
        return past
      })

    const forget = (past: Past): Effect.Effect<void> =>
      Effect.sync(() => {
        if (ended.get(past.listening.pid) === past) {
          ended.delete(past.listening.pid)
        }
      })

    const start = (spec: Spec): Effect.Effect<Listening, SandboxFault | ProgramRefused, Scope.Scope> =>
      Effect.uninterruptibleMask((restore) =>
        Effect.gen(function*() {
          const scope = yield* Scope.fork(ownScope, ExecutionStrategy.sequential)
          const started = yield* restore(Scope.extend(Terminal.start(where, spec), scope)).pipe(
            Effect.onError((cause) =>
              Scope.close(scope, Exit.failCause(cause))
            )
          )
          const entry: Entry = {
            process: { ...started, tag: spec.tag, config: spec.config },
            hub: yield* PubSub.bounded<Heard>(buffered),
            end: yield* Deferred.make<Heard>()
          }
          // A pid that is used again is another program's.
          ended.delete(started.pid)
          running.set(started.pid, entry)
          const listening = yield* listen(entry)
          let isTimeUp = false
          const timer = Option.match(spec.timeLimit, {
            onNone: () => Effect.never,
            onSome: (limit) =>
              Effect.andThen(
                Effect.sleep(limit),
                Effect.suspend(() => {
                  isTimeUp = true
                  return started.signal("SIGKILL")
                })
              )
          })
          const publish = Effect.forEach(started.outputs, ({ name, bytes }) =>
            Stream.runForEach(bytes, (bytes) =>
              Effect.forEach(
                parts(bytes),
                (part) =>
                  PubSub.publish(entry.hub, { event: { data: dataOf(name, part) }, isTimeUp: false }),
                { discard: true }
              )), { concurrency: 2, discard: true })
          yield* Effect.forkIn(Effect.interruptible(timer), scope)
          yield* publish.pipe(
            Effect.zipRight(started.ended),
            Effect.flatMap((end) =>
              tellEnd(entry, end, isTimeUp)
            ),
            // What it held is let go of now. Its end is remembered.
            Effect.ensuring(Effect.forkIn(Scope.close(scope, Exit.void), ownScope)),
            Effect.flatMap((past) => Effect.delay(forget(past), rememberedFor)),
            Effect.interruptible,
            Effect.forkIn(ownScope)
          )
          return listening
        })
      )

    return {
      start,
      connect: (selector) =>
        Effect.suspend(() => {
          const entry = amongRunning(selector)
          return entry === undefined
            ? Effect.succeed(Option.map(Option.fromNullable(amongEnded(selector)), ({ listening }) => listening))
            : Effect.asSome(listen(entry))
        }),
      find: (selector) => Option.map(Option.fromNullable(amongRunning(selector)), ({ process }) => process),
      list: Effect.sync(() => [...running.values()].map(({ process }) => process))
    }
  })

const dataOf = (name: "stdout" | "stderr" | "pty", bytes: Uint8Array) =>
  name === "stdout" ? { stdout: bytes } : name === "stderr" ? { stderr: bytes } : { pty: bytes }

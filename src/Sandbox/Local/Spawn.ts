/**
 * Processes of the host: started, waited for, and ended in the scope they were started in.
 */
import * as Data from "effect/Data"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as FiberId from "effect/FiberId"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import { type ChildProcess, spawn } from "node:child_process"
import { constants } from "node:os"
import type { Readable, Writable } from "node:stream"
import { cleanEnvironment } from "./Host.ts"
import * as Proc from "./Proc.ts"
import * as Turns from "./Turns.ts"

/** The host couldn't do its part. Never the doing of a guest. */
export class HostFailed extends Data.TaggedError("HostFailed")<{
  readonly detail: string
  /** What to do, where something is used up that there can be more of. */
  readonly quota?: string | undefined
}> {}

/** What to do where no process can be started for want of room for one. */
export const processQuota = "run fewer at once, or allow more processes (`ulimit -u`, `pids.max`)"

/** What Node says about a failed system call, without its stack. */
export const describe = (error: unknown): string => error instanceof Error ? error.message : String(error)

/** Something asked of the host that may fail. */
export const io = <A>(action: () => A): Effect.Effect<A, HostFailed> =>
  Effect.try({ try: action, catch: (error) => new HostFailed({ detail: describe(error) }) })

export interface Ended {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
}

/** As a shell reports it. */
export const exitCode = (ended: Ended): number =>
  ended.code ?? 128 + (ended.signal === null ? 0 : constants.signals[ended.signal])

export interface Child {
  readonly pid: number
  readonly stdin: Writable | null
  readonly stdout: Readable | null
  readonly stderr: Readable | null
  /** Comes with the end of the process, whoever still holds its streams. */
  readonly ended: Effect.Effect<Ended>
  readonly hasEnded: Effect.Effect<boolean>
}

// Node waits for the new process to have begun its program: milliseconds in which nothing else happens.
const turn = Turns.queue()

const launch = (
  argv: readonly [string, ...ReadonlyArray<string>],
  stdio: ReadonlyArray<"pipe" | "ignore" | number>,
  environment: Readonly<Record<string, string>>
): Effect.Effect<Child, HostFailed> =>
  Effect.async((resume) => {
    const failed = (error: unknown) =>
      resume(
        new HostFailed({
          detail: `${argv[0]}: ${describe(error)}`,
          quota: Proc.errorCode(error) === "EAGAIN" ? processQuota : undefined
        })
      )
    let child: ChildProcess
    try {
      // A session of its own: neither a guest's `kill 0` nor a terminal's Ctrl-C crosses between it and us.
      child = spawn(argv[0], argv.slice(1), { env: environment, cwd: "/", detached: true, stdio: [...stdio] })
    } catch (error) {
      return failed(error)
    }
    const ended = Deferred.unsafeMake<Ended>(FiberId.none)
    child.once("error", failed)
    child.once("exit", (code, signal) => Deferred.unsafeDone(ended, Effect.succeed({ code, signal })))
    // A child that ends without reading all of its input isn't an error: its exit code says what was wrong.
    child.stdin?.on("error", () => {})
    child.once("spawn", () => {
      if (child.pid !== undefined) {
        resume(Effect.succeed({
          pid: child.pid,
          stdin: child.stdin,
          stdout: child.stdout,
          stderr: child.stderr,
          ended: Deferred.await(ended),
          hasEnded: Deferred.isDone(ended)
        }))
      }
    })
  })

/** Starts a process; `stop` ends it when the scope closes and it hasn't ended by itself. */
export const start = (options: {
  readonly argv: ReadonlyArray<string>
  readonly stdio: ReadonlyArray<"pipe" | "ignore" | number>
  readonly environment?: Readonly<Record<string, string>> | undefined
  readonly stop: (child: Child) => Effect.Effect<void>
}): Effect.Effect<Child, HostFailed, Scope.Scope> => {
  const [file, ...rest] = options.argv
  return file === undefined
    ? new HostFailed({ detail: "there is nothing to run" })
    : Effect.andThen(
      turn,
      Effect.acquireRelease(
        launch([file, ...rest], options.stdio, options.environment ?? cleanEnvironment),
        (child) =>
          options.stop(child).pipe(
            Effect.andThen(Effect.sync(() => {
              child.stdin?.destroy()
              child.stdout?.destroy()
              child.stderr?.destroy()
            }))
          )
      )
    )
}

/**
 * Cuts a wait short, also in a finalizer and wherever else the caller may not be interrupted: there a limit has a hold
 * only on what is interruptible itself.
 */
export const within = <A, E, R>(
  wait: Effect.Effect<A, E, R>,
  limit: Duration.DurationInput
): Effect.Effect<Option.Option<A>, E, R> => Effect.timeoutOption(Effect.interruptible(wait), limit)

/** Waits for the end of a process, but not for ever; whether it came. */
export const endsWithin = (child: Child, limit: Duration.DurationInput): Effect.Effect<boolean> =>
  Effect.map(within(child.ended, limit), Option.isSome)

/** Ends a tool that has nothing below it. */
export const stopTool = (child: Child): Effect.Effect<void> =>
  Effect.unlessEffect(
    Effect.andThen(Effect.sync(() => Proc.signal(child.pid, "SIGKILL")), endsWithin(child, "1 second")),
    child.hasEnded
  )

/** Text that a tool of ours prints, up to 64 KiB. */
export const text = (stream: Readable | null): () => string => {
  let found = ""
  stream?.setEncoding("utf8").on("data", (chunk: string) => {
    found = (found + chunk).slice(0, 65536)
  })
  return () => found
}

export interface ToolResult {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

/** Runs a tool of the host to its end. */
export const run = (
  argv: ReadonlyArray<string>,
  options: {
    readonly limit: Duration.DurationInput
    readonly environment?: Readonly<Record<string, string>> | undefined
  }
): Effect.Effect<ToolResult, HostFailed> =>
  Effect.scoped(Effect.gen(function*() {
    const child = yield* start({
      argv,
      stdio: ["ignore", "pipe", "pipe"],
      environment: options.environment,
      stop: stopTool
    })
    const stdout = text(child.stdout)
    const stderr = text(child.stderr)
    const ended = yield* within(child.ended, options.limit)
    if (Option.isNone(ended)) {
      return yield* new HostFailed({
        detail: `${argv[0]} took longer than ${Duration.format(Duration.decode(options.limit))}`
      })
    }
    // What a background process holds open isn't waited for.
    yield* within(Effect.all([closing(child.stdout), closing(child.stderr)], { concurrency: 2 }), "100 millis")
    return { code: exitCode(ended.value), stdout: stdout(), stderr: stderr() }
  }))

/** Comes when a stream has given all it will. */
export const closing = (stream: Readable | null): Effect.Effect<void> =>
  Effect.async((resume) => {
    if (stream === null || stream.closed) {
      return resume(Effect.void)
    }
    stream.once("close", () => resume(Effect.void))
  })

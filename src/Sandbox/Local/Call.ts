/**
 * One program run in a sandbox, from entering it to its last byte.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type { ExecResult } from "../../Sandbox.ts"
import * as Kill from "./Kill.ts"
import type { Pipes } from "./Pipes.ts"
import { enterArguments, type Place } from "./Recipe.ts"
import * as Spawn from "./Spawn.ts"
import * as Turns from "./Turns.ts"

export interface Request {
  readonly place: Place
  readonly filter: ReadonlyArray<string>
  readonly program: ReadonlyArray<string>
  readonly input: string | Uint8Array | undefined
  readonly timeLimit: Duration.Duration
  readonly outputCap: number
}

export interface Outcome {
  readonly result: ExecResult
  /** Killed by a signal, which the end of the sandbox does as well as a guest. */
  readonly signalled: boolean
  /** The program was the guest's: whatever happened since is its own doing. */
  readonly entered: boolean
}

/** What is reported of what was killed. */
export const SIGKILL_CODE = 137

// With a sandbox all its calls end, and Node tells of all ends at once.
const turn = Turns.queue()

/** Runs it. It may be interrupted at any time, and is ended then. */
export const run = (pipes: Pipes, request: Request): Effect.Effect<Outcome, Spawn.HostFailed> =>
  Effect.scoped(Effect.gen(function*() {
    const stdout = yield* pipes.capture(request.outputCap)
    const stderr = yield* pipes.capture(request.outputCap)
    const status = yield* pipes.capture(1)
    const child = yield* Spawn.start({
      argv: enterArguments({
        nodePid: process.pid,
        place: request.place,
        filter: request.filter,
        limitSeconds: Math.ceil(Duration.toSeconds(request.timeLimit)),
        program: request.program
      }),
      stdio: [request.input === undefined ? "ignore" : "pipe", stdout.writeEnd, stderr.writeEnd, status.writeEnd],
      stop: (child) => Kill.call(child, request.place)
    })
    yield* Effect.all([stdout.closeWriteEnd, stderr.closeWriteEnd, status.closeWriteEnd])
    child.stdin?.end(request.input)
    yield* Effect.forkScoped(Effect.interruptible(Kill.keepGoing(child)))
    const inTime = yield* Spawn.within(child.ended, request.timeLimit)
    yield* turn
    if (Option.isNone(inTime)) {
      yield* Kill.call(child, request.place)
    }
    const entered = (yield* status.finish).totalBytes > 0
    const reported = Option.match(inTime, { onNone: () => SIGKILL_CODE, onSome: Spawn.exitCode })
    // Node has no name for a real-time signal, and tells of a good end. What never began can't have had one.
    const exitCode = reported === 0 && !entered ? SIGKILL_CODE : reported
    return {
      result: {
        stdout: yield* stdout.finish,
        stderr: yield* stderr.finish,
        exitCode,
        killedAtLimit: Option.isNone(inTime)
      },
      signalled: exitCode === SIGKILL_CODE || Option.exists(inTime, ({ signal }) => signal !== null),
      entered
    }
  }))

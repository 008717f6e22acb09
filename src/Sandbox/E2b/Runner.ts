/**
 * Running one of our programs in a sandbox, from its start to its reply.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { CurrentBudgets } from "../../Budgets.ts"
import * as Guest from "../Guest.ts"
import { type Client, type Machine, millis } from "./Client.ts"
import type { Failure } from "./Failure.ts"

/** How a program ended. */
export interface Ended {
  readonly reply: Guest.Reply
  /** None where it was ended from here, as something wrote more to its output than it does. -1 where a signal ended it. */
  readonly exitCode: number | undefined
  /** It hadn't ended by itself in time. */
  readonly isOverdue: boolean
}

export interface Runner {
  /** Runs a program. Interruption ends it, and what it runs. */
  readonly run: (machine: Machine, launch: Guest.Launch, options: {
    /** How long it may take in the sandbox. */
    readonly timeLimit: Duration.Duration
    /** When it is killed from here, if at all. */
    readonly overdueAfter?: Duration.Duration | undefined
  }) => Effect.Effect<Ended, Failure>
}

/** The user that tasks are written for, whatever the default of a template is. */
export const user = "user"

// Over HTTP/1.1 every running command holds a connection. Some are kept free for the killing of those that run.
const reserved = 8

export const make = (options: {
  readonly client: Client
  readonly connections: number
}): Effect.Effect<Runner, never, Scope.Scope> =>
  Effect.gen(function*() {
    const { client: { data } } = options
    const scope = yield* Effect.scope
    const lanes = yield* Effect.makeSemaphore(Math.max(1, options.connections - reserved))

    const run: Runner["run"] = (machine, launch, { overdueAfter, timeLimit }) =>
      Effect.flatMap(CurrentBudgets, (budgets) => {
        const longestResponse = Duration.max(budgets.commandResponse, budgets.verifierResponse)
        let pid: number | undefined
        let output = ""
        let room = launch.outputCap
        let isOverdue = false
        const tooMuch = new Error("more output than the program makes")
        // What the SDK keeps of the output is bounded by this, too: an error thrown here ends its reading.
        const take = (text: string) => {
          room -= text.length
          if (room < 0) {
            throw tooMuch
          }
        }
        const ended = (exitCode: number | undefined): Ended => ({
          reply: Guest.replyIn(launch.mark, output),
          exitCode,
          isOverdue
        })
        const running = data(longestResponse, async (request) => {
          const command = await machine.commands.run(launch.line, {
            ...request,
            background: true,
            user,
            // It is there, whatever a guest did to its home.
            cwd: "/",
            envs: { ...launch.environment },
            timeoutMs: millis(Duration.sum(longestResponse, Duration.sum(timeLimit, Duration.seconds(30)))),
            onStdout: (text) => {
              take(text)
              output += text
            },
            onStderr: take
          })
          pid = command.pid
          return command.wait().then(
            ({ exitCode }) => ended(exitCode),
            (error: unknown) => {
              if (error === tooMuch) {
                return ended(undefined)
              }
              // Its end had come before whatever broke: so it is known.
              if (command.exitCode === undefined) {
                throw error
              }
              return ended(command.exitCode)
            }
          )
        })
        const kill = Effect.suspend(() => {
          const started = pid
          return started === undefined
            ? Effect.void
            : Effect.ignore(data(budgets.control, (request) => machine.commands.kill(started, request)))
        })
        const overdue = overdueAfter === undefined ? Effect.never : Effect.sleep(overdueAfter).pipe(
          Effect.zipRight(Effect.sync(() => {
            isOverdue = true
          })),
          Effect.zipRight(kill),
          Effect.zipRight(Effect.never)
        )
        return Effect.raceFirst(running, overdue).pipe(
          Effect.tap(({ exitCode }) => exitCode === undefined ? kill : Effect.void),
          Effect.onInterrupt(() => Effect.forkIn(Effect.interruptible(kill), scope))
        )
      }).pipe(lanes.withPermits(1))

    return { run }
  })

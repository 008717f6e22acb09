import { Clock, Effect, Exit, Fiber } from "effect"
import type { EpisodeReceipt } from "../../../src/Episode/Receipt.ts"
import type { Session } from "../../../src/Episode/Session.ts"
import type { Call, Fault } from "../../../src/Sandbox/Simulated.ts"
import type { Play } from "../fixture.ts"
import { edit, play, solution, submission, task } from "../fixture.ts"

// ----------------------------------------------------------------------------
// scenarios
// ----------------------------------------------------------------------------

/** One request of a session's user, or time that passes. */
export type Step = "reset" | "submit" | "reward" | "wait" | { readonly terminal: string }

export interface Scenario {
  readonly name: string
  readonly steps: ReadonlyArray<Step>
  /** What the last episode is worth when nothing goes wrong. */
  readonly score: 0 | 1
  readonly reason: string
}

/** Episodes of every kind of end. */
export const scenarios: ReadonlyArray<Scenario> = [
  {
    name: "scored 1",
    steps: ["reset", { terminal: edit(solution) }, { terminal: `python3 ${submission}` }, "submit"],
    score: 1,
    reason: "correct"
  },
  {
    name: "scored 0",
    steps: ["reset", { terminal: edit("# silent\n") }, "submit"],
    score: 0,
    reason: "output-malformed"
  },
  {
    name: "nothing exported",
    steps: ["reset", { terminal: `rm ${submission}` }, "submit"],
    score: 0,
    reason: "submission-missing"
  },
  {
    name: "not submitted",
    steps: ["reset", { terminal: "exit 1" }, "reward"],
    score: 0,
    reason: "not-submitted"
  },
  {
    name: "window exhausted",
    steps: ["reset", { terminal: "echo" }, "wait", { terminal: "echo late" }],
    score: 0,
    reason: "policy-window-exhausted"
  },
  {
    name: "a second reset",
    steps: ["reset", { terminal: "echo first" }, "reset", { terminal: edit(solution) }, "submit"],
    score: 1,
    reason: "correct"
  },
  {
    name: "a reset after the end",
    steps: ["reset", { terminal: edit(solution) }, "submit", "reset", "reward"],
    score: 0,
    reason: "not-submitted"
  }
]

/** Longer than a policy window with all that a fault can add to it. */
const pause = "200 seconds"

const take = (session: Session, step: Step): Effect.Effect<unknown, unknown> =>
  step === "reset"
    ? session.reset(task)
    : step === "submit"
    ? session.submit
    : step === "reward"
    ? session.reward
    : step === "wait"
    ? Effect.sleep(pause)
    : session.terminal(step.terminal)

// ----------------------------------------------------------------------------
// runs
// ----------------------------------------------------------------------------

/** The caller of a request goes away when a call begins, or when it has had its effect. */
export interface Interruption {
  readonly at: number
  readonly afterEffect: boolean
}

export interface Troubles {
  readonly faults?: ((call: Call) => Fault | undefined) | undefined
  readonly interruption?: Interruption | undefined
}

/** How one step went. */
export interface Taken {
  readonly step: Step
  readonly exit: Exit.Exit<unknown, unknown>
  /** Milliseconds. */
  readonly from: number
  readonly to: number
  /** The number of the last call that had begun when it ended. */
  readonly calls: number
  /** What the session says of its episode after it, when that is over. */
  readonly receipt: EpisodeReceipt | undefined
}

export interface Run {
  readonly scenario: Scenario
  readonly played: Play<ReadonlyArray<Taken>>
  readonly taken: ReadonlyArray<Taken>
  /** When the caller went away, and that it was there. */
  readonly interruptedAt: number | undefined
}

/** A request takes so long: its effect comes in the middle. */
const latency = 100

/**
 * Takes every step, whatever became of the one before: a caller that ignores errors must not get anything by it.
 */
export const run = (scenario: Scenario, { faults, interruption }: Troubles = {}): Effect.Effect<Run> =>
  Effect.suspend(() => {
    let calls = 0
    let current: Fiber.RuntimeFiber<unknown, unknown> | undefined
    let interruptedAt: number | undefined
    const interrupt = Effect.flatMap(Clock.currentTimeMillis, (now) => {
      if (current === undefined) {
        return Effect.void
      }
      interruptedAt = now
      return Fiber.interruptFork(current)
    })
    const onCall = (call: Call): Effect.Effect<void> => {
      calls = call.number
      return call.number !== interruption?.at
        ? Effect.void
        : interruption.afterEffect
        ? Effect.asVoid(Effect.forkDaemon(Effect.delay(interrupt, latency * 0.75)))
        : interrupt
    }
    return Effect.map(
      play({ latency, onCall, faults }, (session) =>
        Effect.forEach(scenario.steps, (step) =>
          Effect.gen(function*() {
            const from = yield* Clock.currentTimeMillis
            const fiber = yield* Effect.fork(take(session, step))
            current = step === "wait" ? undefined : fiber
            const exit = yield* Fiber.await(fiber)
            current = undefined
            const to = yield* Clock.currentTimeMillis
            const state = yield* session.state
            return {
              step,
              exit,
              from,
              to,
              calls,
              receipt: state._tag === "Finished" ? state.receipt : undefined
            } satisfies Taken
          }))),
      (played) => ({
        scenario,
        played,
        taken: Exit.isSuccess(played.exit) ? played.exit.value : [],
        interruptedAt
      })
    )
  })

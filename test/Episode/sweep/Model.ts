import { Array as Arr, Cause, Exit, Option } from "effect"
import type { BudgetName } from "../../../src/Budgets.ts"
import type { CallRecord } from "../../../src/Sandbox/Simulated.ts"
import { Fault } from "../../../src/Sandbox/Simulated.ts"
import { failureOf, violations } from "../invariants.ts"
import type { Run, Scenario, Step, Taken } from "./Scenario.ts"

// What the design's table says, written down a second time and from the other side: by what is done to a call, not by how
// the program comes to know of it. It shares no code with the program but the names.

// ----------------------------------------------------------------------------
// faults
// ----------------------------------------------------------------------------

/** Every kind of fault that a call can have. The delays are longer than any budget of a call; the first comes back soon. */
export const faults: ReadonlyArray<Fault> = [
  Fault.Refused(),
  Fault.ReplyLost({ effect: false }),
  Fault.ReplyLost({ effect: true }),
  Fault.Late({ by: "65 seconds" }),
  Fault.Late({ by: "100 seconds" }),
  Fault.Hangs({ effect: false, interruptible: true }),
  Fault.Hangs({ effect: false, interruptible: false }),
  Fault.Hangs({ effect: true, interruptible: true }),
  Fault.Hangs({ effect: true, interruptible: false }),
  Fault.Lost({ reason: "absent" }),
  Fault.Lost({ reason: "expired" }),
  Fault.Lost({ reason: "unhealthy" }),
  Fault.Malformed(),
  Fault.NotDone(),
  Fault.Dies({ effect: false }),
  Fault.Dies({ effect: true })
]

export const isCleanup = ({ operation }: Pick<CallRecord, "operation">): boolean =>
  operation === "destroy" || operation === "inspect" || operation === "find"

/** Whether a fault can be noticed at such a call. */
const matters = (call: CallRecord): boolean => call.fault !== undefined && call.fault !== "NotDone" && !isCleanup(call)

// ----------------------------------------------------------------------------
// one fault: the table
// ----------------------------------------------------------------------------

export interface Expected {
  /** None: the episode goes on as if nothing had happened. */
  readonly error?: string | undefined
  /** The budget that the error names. */
  readonly budget?: BudgetName | undefined
  /** A bug of the provider comes out of the request as a bug. */
  readonly dies?: boolean | undefined
  /** Whether a sandbox may exist that nobody has an id of. */
  readonly uncertain?: boolean | undefined
}

const budgetOf = ({ operation, role }: CallRecord): BudgetName => {
  switch (operation) {
    case "create":
      return "allocation"
    case "exec":
      return role === "verifier" ? "verifierResponse" : "commandResponse"
    case "readFile":
    case "writeFiles":
      return "fileTransfer"
    default:
      return "control"
  }
}

const asUsual: Expected = {}

export const expected = (call: CallRecord, fault: Fault): Expected => {
  if (isCleanup(call)) {
    // One bad answer to a deletion or to its proof is what the other attempts are for.
    return asUsual
  }
  const creates = call.operation === "create"
  switch (fault._tag) {
    case "Refused":
      return { error: creates ? "SandboxUnavailable" : "TransportFailed" }
    case "ReplyLost":
      return creates && !fault.effect ? { error: "AllocationUncertain", uncertain: true } : { error: "TransportFailed" }
    case "Late":
      return { error: "ResponseTimedOut", budget: budgetOf(call) }
    case "Hangs":
      return creates && !fault.effect
        ? { error: "AllocationUncertain", uncertain: true }
        : { error: "ResponseTimedOut", budget: budgetOf(call) }
    case "Lost":
      return { error: "SandboxLost" }
    case "Malformed":
      return { error: "ProtocolViolation" }
    case "NotDone":
      return asUsual
    case "Dies":
      return { error: "TransportFailed", dies: true, uncertain: creates && !fault.effect }
  }
}

const phaseOf = ({ operation, role }: CallRecord, step: Step): string =>
  role === "verifier"
    ? operation === "create" ? "verifier-create" : "verify"
    : operation === "exec"
    ? "policy"
    : operation === "readFile" || (operation === "health" && step === "submit")
    ? "export"
    : operation === "health"
    ? step === "reward" ? "reward" : "policy"
    : "reset"

// ----------------------------------------------------------------------------
// checks
// ----------------------------------------------------------------------------

// The longest budgets of the design: one deletion, and one call.
const millis = { cleanup: 30_000, call: 60_000 }

const tagOf = (exit: Exit.Exit<unknown, unknown>): string => {
  const failure = failureOf(exit)
  return Exit.isSuccess(exit)
    ? "ok"
    : typeof failure === "object" && failure !== null && "_tag" in failure
    ? String(failure._tag)
    : Option.isSome(Exit.causeOption(exit).pipe(Option.flatMap(Cause.dieOption)))
    ? "died"
    : "interrupted"
}

const field = (exit: Exit.Exit<unknown, unknown>, name: string): unknown => {
  const failure = failureOf(exit)
  return typeof failure === "object" && failure !== null
    ? Object.entries(failure).find(([key]) => key === name)?.[1]
    : undefined
}

/** The step during which a call of the untroubled run began. */
const stepOf = (usual: Run, call: number): number => usual.taken.findIndex(({ calls }) => call <= calls)

/** The steps from a step on until the next reset. */
const restOf = (scenario: Scenario, step: number): ReadonlyArray<number> => {
  const next = scenario.steps.findIndex((other, index) => index > step && other === "reset")
  return Arr.range(step + 1, next < 0 ? scenario.steps.length : next).slice(0, -1)
}

const lastReset = (scenario: Scenario): number => scenario.steps.lastIndexOf("reset")

const outcomeOf = ({ played }: Run): string => {
  const outcome = played.receipts.at(-1)?.outcome
  return outcome === undefined
    ? "none"
    : outcome._tag === "Scored"
    ? `${outcome.score} ${outcome.reason}`
    : outcome.error._tag
}

const usualOutcome = ({ reason, score }: Scenario): string => `${score} ${reason}`

type Say = (holds: boolean, what: string) => void

const collect = (check: (say: Say) => void): ReadonlyArray<string> => {
  const found: Array<string> = []
  check((holds, what) => {
    if (!holds) {
      found.push(what)
    }
  })
  return found
}

/** No run takes longer than its untroubled self, one wait that runs out, and cleanup. */
const checkTime = (run: Run, usual: Run, faulty: number, say: Say): void => {
  const { times } = run.played
  // A create that is lost is looked for, within a cleanup budget of its own.
  const allowed = faulty * (millis.call + 2 * millis.cleanup)
  say(times.script <= usual.played.times.script + allowed, `the script took ${times.script} ms`)
  say(times.session - times.script <= 2 * millis.cleanup, `closing the session took ${times.session - times.script} ms`)
  say(times.layer - times.session <= 2 * millis.cleanup, `closing the layer took ${times.layer - times.session} ms`)
}

const checkSteps = (
  run: Run,
  at: number,
  there: (taken: Taken) => string | undefined,
  later: ReadonlyArray<string>,
  say: Say
): void => {
  const { scenario, taken } = run
  say(taken.length === scenario.steps.length, "a step died")
  const rest = restOf(scenario, at)
  taken.forEach((one, index) => {
    const tag = tagOf(one.exit)
    const problem = one.step === "wait"
      ? tag === "ok" ? undefined : tag
      : index === at
      ? there(one)
      : rest.includes(index)
      ? later.includes(tag) ? undefined : `${tag}, not ${later.join(" or ")}`
      : tag === "ok"
      ? undefined
      : tag
    say(problem === undefined, `step ${index}: ${problem}`)
  })
  const final = outcomeOf(run)
  const allowed = lastReset(scenario) <= at ? later.map((tag) => tag === "ok" ? usualOutcome(scenario) : tag) : [
    usualOutcome(scenario)
  ]
  say(allowed.includes(final), `the outcome is ${final}, not ${allowed.join(" or ")}`)
}

/** A run in which one call went wrong. */
export const checkFault = (run: Run, usual: Run, call: CallRecord, fault: Fault): ReadonlyArray<string> =>
  collect((say) => {
    const { budget, dies, error, uncertain } = expected(call, fault)
    const at = stepOf(usual, call.number)
    violations(run.played).forEach((problem) => say(false, problem))
    checkSteps(
      run,
      at,
      ({ exit, step }) => {
        const tag = tagOf(exit)
        const wanted = error === undefined ? "ok" : dies === true ? "died" : error
        return tag !== wanted
          ? `${tag}, not ${wanted}`
          : error === undefined || dies === true
          ? undefined
          : budget !== undefined && field(exit, "budget") !== budget
          ? `${String(field(exit, "budget"))}, not ${budget}`
          : field(exit, "phase") !== (error === "SandboxLost" && call.operation === "create" && call.role === "verifier"
              ? "verify"
              : phaseOf(call, step))
          ? `phase ${String(field(exit, "phase"))}`
          : call.operation !== "create" && field(exit, "operation") !== call.operation && error !== "SandboxLost"
          ? `operation ${String(field(exit, "operation"))}`
          : undefined
      },
      [error ?? "ok"],
      say
    )
    say(
      run.played.ledger.length === (uncertain === true ? 1 : 0),
      `the ledger holds ${run.played.ledger.map(({ state }) => state).join() || "nothing"}`
    )
    checkTime(run, usual, 1, say)
  })

/** A run whose caller went away once. */
export const checkInterruption = (run: Run, usual: Run, call: CallRecord): ReadonlyArray<string> =>
  collect((say) => {
    const at = stepOf(usual, call.number)
    violations(run.played).forEach((problem) => say(false, problem))
    const { interruptedAt } = run
    if (interruptedAt === undefined) {
      // Nobody waited for that call.
      return checkSteps(run, at, ({ exit }) => tagOf(exit) === "ok" ? undefined : tagOf(exit), ["ok"], say)
    }
    checkSteps(
      run,
      at,
      ({ exit, to }) =>
        tagOf(exit) !== "interrupted"
          ? tagOf(exit)
          : to - interruptedAt > (call.operation === "create" ? 0 : millis.cleanup)
          ? `held up for ${to - interruptedAt} ms`
          : undefined,
      // When only cleanup was left to do, a score may have been decided.
      isCleanup(call) ? ["EpisodeInterrupted", "ok"] : ["EpisodeInterrupted"],
      say
    )
    say(
      run.played.ledger.length === 0 || call.operation === "create",
      `the ledger holds ${run.played.ledger.map(({ state }) => state).join()}`
    )
    checkTime(run, usual, 1, say)
  })

/** The episodes of a run: the calls that began between one reset and the next, and what was said of it at the end. */
const episodesOf = ({ played, scenario, taken }: Run) =>
  scenario.steps.flatMap((step, index) => {
    const last = restOf(scenario, index).at(-1) ?? index
    return step !== "reset" ? [] : [{
      from: taken[index - 1]?.calls ?? 0,
      to: last === scenario.steps.length - 1 ? Number.POSITIVE_INFINITY : taken[last]?.calls ?? 0,
      receipt: last === scenario.steps.length - 1 ? played.receipts.at(-1) : taken[last]?.receipt
    }]
  })

/**
 * A run in which anything may have gone wrong: a score only where every answer that it rests on was good, and then the
 * usual one; an error only where something was bad.
 */
export const checkTroubles = (run: Run, usual: Run, faulty: number): ReadonlyArray<string> =>
  collect((say) => {
    const { played, scenario, taken } = run
    violations(played).forEach((problem) => say(false, problem))
    say(taken.length === scenario.steps.length, "a step died")
    const bad = played.calls.filter(matters)
    for (const { from, receipt, to } of episodesOf(run)) {
      const touched = bad.some(({ number }) => from < number && number <= to)
      const outcome = receipt?.outcome
      if (outcome?._tag === "Scored") {
        say(!touched, `scored ${outcome.score} ${outcome.reason} over a bad answer`)
        say(
          outcome.reason === "correct" || outcome.reason === scenario.reason,
          `scored ${outcome.score} ${outcome.reason}`
        )
      } else if (outcome !== undefined) {
        say(
          touched
            || run.interruptedAt !== undefined
            || (outcome.error._tag === "CleanupUnresolved" && played.ledger.length > 0)
            || (outcome.error._tag === "EpisodeDeadlineExceeded" && (receipt?.totalSeconds ?? 0) >= 600),
          `${outcome.error._tag} without a reason`
        )
      }
    }
    if (bad.length === 0 && run.interruptedAt === undefined && played.ledger.length === 0) {
      say(outcomeOf(run) === usualOutcome(scenario), `the outcome is ${outcomeOf(run)}`)
    }
    checkTime(run, usual, faulty, say)
  })

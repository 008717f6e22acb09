import { assert, describe, it } from "@effect/vitest"
import { DateTime, Effect, Exit } from "effect"
import type { BudgetName } from "../../src/Budgets.ts"
import type { Session } from "../../src/Episode/Session.ts"
import { Wait } from "../../src/Sandbox.ts"
import type { Call } from "../../src/Sandbox/Simulated.ts"
import { Fault } from "../../src/Sandbox/Simulated.ts"
import type { Play, Setting } from "./fixture.ts"
import { edit, play, solution, task } from "./fixture.ts"
import { failureOf, violations } from "./invariants.ts"

// No latency here: whatever time passes is the budget's.

const on = (operation: Call["operation"], nth: number, fault: Fault): Setting => ({
  faults: (call) => call.operation === operation && call.nth === nth ? fault : undefined
})

const silent = Fault.Hangs({ effect: false, interruptible: false })

const handIn = (session: Session) => Effect.all([session.reset(task), session.terminal(edit(solution)), session.submit])

const outcomeOf = (played: Play<unknown>) => {
  const outcome = played.receipts.at(-1)?.outcome
  return outcome === undefined ? "none" : outcome._tag === "Scored" ? outcome.reason : outcome.error._tag
}

const playSafely = (setting: Setting, script: Parameters<typeof play>[1]) =>
  Effect.tap(play(setting, script), (played) => assert.deepStrictEqual(violations(played), []))

const spanOf = (sandbox: Play<unknown>["sandboxes"][number] | undefined) =>
  sandbox?.ended === undefined ? undefined : DateTime.distance(sandbox.createdAt, sandbox.ended.at)

describe("waits that run out", () => {
  const rows: ReadonlyArray<readonly [what: string, budget: BudgetName, seconds: number, setting: Setting]> = [
    // What a create left behind is looked for: its own reply for as long as a request may take, then by its label.
    ["the policy sandbox's create", "allocation", 60 + 10, on("create", 1, Fault.Late({ by: "2 minutes" }))],
    ["the verifier's create", "allocation", 60 + 10, on("create", 2, Fault.Late({ by: "2 minutes" }))],
    ["the extension of its lifetime", "control", 10, on("extend", 1, silent)],
    ["the upload of the workspace", "fileTransfer", 10, on("writeFiles", 1, silent)],
    ["a command's reply", "commandResponse", 25, on("exec", 1, silent)],
    ["the export", "fileTransfer", 10, on("readFile", 1, silent)],
    ["the upload to the verifier", "fileTransfer", 10, on("writeFiles", 2, silent)],
    ["the candidate's reply", "verifierResponse", 20, on("exec", 2, silent)],
    ["the output's read", "fileTransfer", 10, on("readFile", 2, silent)]
  ]
  for (const [what, budget, seconds, setting] of rows) {
    it.effect(`${budget}: ${what}, after ${seconds} s`, () =>
      Effect.gen(function*() {
        const played = yield* playSafely(setting, handIn)
        assert.deepInclude(failureOf(played.exit), { _tag: "ResponseTimedOut", budget })
        const candidate = played.sandboxes[1]?.commands.length === 1 && budget !== "verifierResponse" ? 30 : 0
        assert.strictEqual(played.times.script, seconds * 1000 + candidate)
        // A clean world, and no more time for that.
        assert.deepStrictEqual(played.ledger, [])
        assert.strictEqual(played.times.layer, played.times.script)
      }))
  }

  it.effect("control: the health check before a zero, after 10 s", () =>
    Effect.gen(function*() {
      const played = yield* playSafely(on("health", 1, silent), (session) =>
        Effect.zipRight(session.reset(task), session.reward))
      assert.deepInclude(failureOf(played.exit), { _tag: "ResponseTimedOut", budget: "control", phase: "reward" })
      assert.strictEqual(played.times.script, 10_000)
    }))
})

describe("commandLimit, 10 s", () => {
  it.effect("is an observation for a command", () =>
    Effect.gen(function*() {
      const played = yield* playSafely({}, (session) =>
        Effect.zipRight(session.reset(task), session.terminal("sleep infinity")))
      assert.strictEqual(played.seen[0]?.killedAtLimit, true)
      assert.strictEqual(played.times.script, 10_000)
    }))

  it.effect("is a zero for a candidate", () =>
    Effect.gen(function*() {
      const played = yield* playSafely({}, (session) =>
        Effect.all([session.reset(task), session.terminal(edit("# right, but never ends\n")), session.submit]))
      assert.strictEqual(outcomeOf(played), "candidate-killed-at-limit")
      assert.strictEqual(played.times.script, 10_000)
    }))
})

describe("policyWindow, 120 s", () => {
  it.effect("is a zero, without anybody asking", () =>
    Effect.gen(function*() {
      const played = yield* playSafely({}, (session) => Effect.zipRight(session.reset(task), Effect.sleep("3 minutes")))
      assert.strictEqual(outcomeOf(played), "policy-window-exhausted")
      assert.strictEqual(played.receipts[0]?.totalSeconds, 120)
      assert.strictEqual(spanOf(played.sandboxes[0]), 120_000)
    }))

  it.effect("starts when the sandbox is ready", () =>
    Effect.gen(function*() {
      const played = yield* playSafely(
        on("create", 1, Fault.Late({ by: "50 seconds" })),
        (session) => Effect.zipRight(session.reset(task), Effect.sleep("3 minutes"))
      )
      assert.strictEqual(played.receipts[0]?.totalSeconds, 170)
    }))

  it.effect("is no zero when the sandbox doesn't answer any more", () =>
    Effect.gen(function*() {
      const played = yield* playSafely(
        on("health", 1, silent),
        (session) => Effect.zipRight(session.reset(task), Effect.sleep("3 minutes"))
      )
      assert.strictEqual(outcomeOf(played), "ResponseTimedOut")
    }))
})

describe("episodeDeadline, 600 s", () => {
  const budgets = { policyWindow: "20 seconds", episodeDeadline: "25 seconds" } as const

  it.effect("cuts verification, and cleanup is still done", () =>
    Effect.gen(function*() {
      const played = yield* playSafely({ budgets }, (session) =>
        Effect.gen(function*() {
          yield* session.reset(task)
          yield* session.terminal(edit("# right, and slow\n"))
          yield* Effect.sleep("19 seconds")
          yield* session.submit
        }))
      assert.deepInclude(failureOf(played.exit), {
        _tag: "EpisodeDeadlineExceeded",
        budget: "episodeDeadline",
        phase: "verify",
        operation: "exec"
      })
      assert.strictEqual(played.times.script, 25_000)
      assert.deepStrictEqual(played.sandboxes.map(({ ended }) => ended?.how), ["deleted", "deleted"])
    }))

  it.effect("leaves no score to an episode whose cleanup comes after it, however good it was", () =>
    Effect.gen(function*() {
      const played = yield* playSafely(
        { budgets, ...on("destroy", 2, Fault.Hangs({ effect: true, interruptible: true })) },
        (session) =>
          Effect.gen(function*() {
            yield* session.reset(task)
            yield* session.terminal(edit(solution))
            yield* Effect.sleep("18 seconds")
            yield* session.submit
          })
      )
      assert.strictEqual(outcomeOf(played), "EpisodeDeadlineExceeded")
      assert.deepStrictEqual(played.sandboxes.map(({ ended }) => ended?.how), ["deleted", "deleted"])
    }))

  it.effect("comes before a policy window that is over", () =>
    Effect.gen(function*() {
      const played = yield* playSafely(
        { budgets, ...on("health", 1, Fault.Late({ by: "6 seconds" })) },
        (session) => Effect.zipRight(session.reset(task), Effect.sleep("1 minute"))
      )
      assert.strictEqual(outcomeOf(played), "EpisodeDeadlineExceeded")
      assert.strictEqual(played.receipts[0]?.totalSeconds, 25)
    }))

  it.effect("is the one that is named when a command runs into it", () =>
    Effect.gen(function*() {
      const played = yield* playSafely(
        { budgets, ...on("readFile", 1, silent) },
        (session) =>
          Effect.gen(function*() {
            yield* session.reset(task)
            yield* Effect.sleep("19 seconds")
            yield* session.submit
          })
      )
      assert.deepInclude(failureOf(played.exit), { _tag: "EpisodeDeadlineExceeded", phase: "export" })
      assert.strictEqual(played.times.script, 25_000)
    }))

  it.effect("counts from the reset", () =>
    Effect.gen(function*() {
      const played = yield* playSafely(
        { budgets, ...on("create", 1, Fault.Late({ by: "24 seconds" })), latency: "1 second" },
        handIn
      )
      assert.deepInclude(failureOf(played.exit), { _tag: "EpisodeDeadlineExceeded", phase: "reset" })
    }))
})

describe("lifetimes", () => {
  it.effect("policyLifetimeAtCreate, 300 s: the backstop of a create whose reply is lost for good", () =>
    Effect.gen(function*() {
      const played = yield* playSafely({
        faults: ({ operation }) => operation === "find" ? silent : Fault.ReplyLost({ effect: operation === "create" })
      }, (session) => Effect.zipRight(Effect.exit(session.reset(task)), Effect.sleep("10 minutes")))
      assert.deepStrictEqual(played.ledger.map(({ state }) => state), ["uncertain"])
      assert.strictEqual(played.sandboxes[0]?.ended?.how, "expired")
      assert.strictEqual(spanOf(played.sandboxes[0]), 300_000)
    }))

  it.effect("policyLifetime, 600 s: the backstop of a sandbox that can't be deleted", () =>
    Effect.gen(function*() {
      const played = yield* playSafely(
        { faults: ({ operation }) => operation === "destroy" ? Fault.NotDone() : undefined },
        (session) => Effect.zipRight(session.reset(task), Effect.sleep("15 minutes"))
      )
      assert.strictEqual(outcomeOf(played), "CleanupUnresolved")
      assert.strictEqual(spanOf(played.sandboxes[0]), 600_000)
    }))

  it.effect("verifierLifetime, 120 s: a verifier that outlives it is lost, and that is no zero", () =>
    Effect.gen(function*() {
      const played = yield* playSafely({
        budgets: { verifierLifetime: "21 seconds" },
        faults: ({ nth, operation }) =>
          operation === "writeFiles" && nth === 2
            ? Fault.Late({ by: "9 seconds" })
            : operation === "exec" && nth === 2
            ? Fault.Late({ by: "13 seconds" })
            : undefined
      }, handIn)
      assert.deepInclude(failureOf(played.exit), { _tag: "SandboxLost", reason: "expired", phase: "verify" })
    }))
})

describe("sizes", () => {
  it.effect("fileCap, 64 KiB: of a submission", () =>
    Effect.gen(function*() {
      const played = yield* playSafely({ budgets: { fileCap: 10 } }, handIn)
      assert.strictEqual(outcomeOf(played), "submission-too-large")
      assert.strictEqual(played.sandboxes.length, 1)
    }))

  it.effect("observationCap, 64 KiB a stream: head and tail, and the cut marked", () =>
    Effect.gen(function*() {
      const played = yield* playSafely({ budgets: { observationCap: 1000 } }, (session) =>
        Effect.zipRight(session.reset(task), session.terminal("echo first; head -c 5000 /dev/zero; echo last")))
      const seen = played.seen[0]
      assert.isTrue(seen?.truncated)
      assert.match(seen?.stdout ?? "", /^first\n\0+\n\[\.\.\. 4011 of 5011 bytes left out \.\.\.\]\n\0+last\n$/)
    }))
})

describe("cleanup, 30 s", () => {
  const dead: Setting = {
    faults: ({ operation }) => operation === "destroy" || operation === "inspect" ? silent : undefined
  }

  it.effect("is the longest that a deletion takes, and its id is told", () =>
    Effect.gen(function*() {
      const played = yield* playSafely(dead, handIn)
      assert.deepInclude(failureOf(played.exit), { _tag: "CleanupUnresolved", phase: "policy-cleanup" })
      assert.strictEqual(played.times.script, 30_000)
      assert.deepStrictEqual(played.ledger.map(({ sandboxId }) => sandboxId), [played.sandboxes[0]?.id])
    }))

  it.effect("is the longest that an interruption waits", () =>
    Effect.gen(function*() {
      const played = yield* playSafely(dead, (session) =>
        Effect.gen(function*() {
          yield* session.reset(task)
          const exit = yield* session.terminal("sleep 9").pipe(Effect.timeout("1 second"), Effect.exit)
          assert.isTrue(Exit.isFailure(exit))
        }))
      assert.strictEqual(outcomeOf(played), "CleanupUnresolved")
      assert.strictEqual(played.times.script, 31_000)
    }))

  it.effect("cleanupAttempts, 3; cleanupPause, 250 ms, then four times as long", () =>
    Effect.gen(function*() {
      const played = yield* play(
        {
          budgets: { cleanupAttempts: 4, cleanupPause: "1 second" },
          faults: ({ nth, operation }) => operation === "destroy" && nth < 4 ? Fault.Refused() : undefined
        },
        (session) => Effect.zipRight(session.reset(task), session.reward)
      )
      assert.strictEqual(outcomeOf(played), "not-submitted")
      assert.strictEqual(played.times.script, 1000 + 4000 + 16_000)
    }))
})

it.effect("allocationPacing: between the two creates of an episode, and in its trace", () =>
  Effect.gen(function*() {
    const played = yield* playSafely({ allocationPacing: "1100 millis" }, handIn)
    assert.strictEqual(outcomeOf(played), "correct")
    assert.deepStrictEqual(played.sandboxes.map(({ createdAt }) => DateTime.toEpochMillis(createdAt)), [0, 1100])
    assert.deepStrictEqual(
      played.receipts[0]?.operations.filter(({ name }) => name === "create").map(({ waits }) => waits),
      [undefined, [new Wait({ reason: "pacing", milliseconds: 1100 })]]
    )
  }))

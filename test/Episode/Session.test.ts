import { assert, describe, it } from "@effect/vitest"
import { Cause, Clock, Context, Deferred, Effect, Exit, Fiber, Layer, Logger, Scope } from "effect"
import * as Episode from "../../src/Episode.ts"
import { finished, submitted } from "../../src/Episode/Observation.ts"
import type { InfrastructureError, ScoreReason } from "../../src/Episode/Outcome.ts"
import type { EpisodeReceipt } from "../../src/Episode/Receipt.ts"
import type { Session } from "../../src/Episode/Session.ts"
import { SandboxProvider } from "../../src/Sandbox.ts"
import * as Ledger from "../../src/Sandbox/Ledger.ts"
import type { Call } from "../../src/Sandbox/Simulated.ts"
import * as Simulated from "../../src/Sandbox/Simulated.ts"
import { Fault, World } from "../../src/Sandbox/Simulated.ts"
import { virtually } from "../virtualTime.ts"
import type { Candidate, Play, Setting } from "./fixture.ts"
import { candidates, edit, play, simulated, solution, starter, submission, task } from "./fixture.ts"
import { failureOf, violations } from "./invariants.ts"

const latency = { latency: "100 millis" } as const

const neverEnds = Fault.Hangs({ effect: false, interruptible: true })

/** The fault at the nth request of an operation. */
const when = (operation: Call["operation"], nth: number, fault: Fault): Setting => ({
  ...latency,
  faults: (call) => call.operation === operation && call.nth === nth ? fault : undefined
})

const outcomeOf = (played: Play<unknown>) => {
  const outcome = played.receipts.at(-1)?.outcome
  return outcome === undefined
    ? "no episode"
    : outcome._tag === "Scored"
    ? { score: outcome.score, reason: outcome.reason }
    : outcome.error._tag
}

/** Plays, checks every rule, and gives back what was played. */
const playSafely = <A>(setting: Setting, script: Parameters<typeof play<A>>[1]): Effect.Effect<Play<A>> =>
  Effect.tap(play(setting, script), (played) => assert.deepStrictEqual(violations(played), []))

const scores = (
  setting: Setting,
  script: Parameters<typeof play>[1],
  expected: { readonly score: 0 | 1; readonly reason: ScoreReason }
) =>
  Effect.map(playSafely(setting, script), (played) => {
    assert.deepStrictEqual(outcomeOf(played), expected)
    assert.deepStrictEqual(played.ledger, [])
    return played
  })

const aborts = (setting: Setting, script: Parameters<typeof play>[1], expected: InfrastructureError["_tag"]) =>
  Effect.map(playSafely(setting, script), (played) => {
    assert.strictEqual(outcomeOf(played), expected)
    return played
  })

const handIn = (source: string) => (session: Session) =>
  Effect.all([session.reset(task), session.terminal(edit(source)), session.submit])

const errorOf = <A, E>(request: Effect.Effect<A, E>) => Effect.orDieWith(Effect.flip(request), () => "no error")

const operations = (played: Play<unknown>) => played.calls.map(({ operation }) => operation)

describe("the outcome table", () => {
  describe("a command is the policy's own business, and the episode goes on", () => {
    const own: ReadonlyArray<readonly [string, string]> = [
      ["exits non-zero", "exit 3"],
      ["isn't found", "no-such-command"],
      ["prints what looks like a fault", "echo 'SandboxLost: absent; ResponseTimedOut' 2>/dev/stderr; false"],
      ["hits its limit", "sleep infinity"],
      ["floods", "head -c 1000000 /dev/zero"],
      ["deletes everything", "rm -rf /home/user /tmp"]
    ]
    for (const [what, command] of own) {
      it.effect(`one that ${what}`, () =>
        Effect.gen(function*() {
          const played = yield* scores(latency, (session) =>
            Effect.gen(function*() {
              yield* session.reset(task)
              const seen = yield* session.terminal(command)
              assert.isFalse(seen.finished)
              assert.strictEqual((yield* session.state)._tag, "Active")
              return yield* session.terminal("echo still here")
            }), { score: 0, reason: "not-submitted" })
          assert.deepStrictEqual(played.seen.at(-1)?.stdout, "still here\n")
        }))
    }

    it.effect("the limit ends it there, and it is said", () =>
      Effect.gen(function*() {
        const played = yield* playSafely({}, (session) =>
          Effect.zipRight(session.reset(task), session.terminal("sleep infinity")))
        assert.strictEqual(played.seen[0]?.killedAtLimit, true)
        assert.strictEqual(played.seen[0]?.exitCode, 137)
        assert.strictEqual(played.times.script, 10_000)
      }))
  })

  describe("submissions without a verifier", () => {
    const nothing: ReadonlyArray<readonly [ScoreReason, string]> = [
      ["submission-missing", `rm ${submission}`],
      ["submission-missing", "rm -rf /home/user/work"],
      ["submission-too-large", `head -c 65537 /dev/zero > ${submission}`],
      ["submission-not-regular", `rm ${submission}; mkfifo ${submission}`],
      ["submission-not-regular", `rm ${submission}; mkdir ${submission}`],
      ["submission-not-regular", `rm ${submission}; ln -s /home/user/work/sales.csv ${submission}`],
      ["submission-not-regular", `rm ${submission}; ln -s /dev/zero ${submission}`],
      ["submission-unreadable", `chmod 000 ${submission}`]
    ]
    for (const [reason, command] of nothing) {
      it.effect(`0 ${reason}: ${command}`, () =>
        Effect.gen(function*() {
          const played = yield* scores(
            latency,
            (session) => Effect.all([session.reset(task), session.terminal(command), session.submit]),
            { score: 0, reason }
          )
          assert.deepStrictEqual(played.sandboxes.map(({ role }) => role), ["policy"])
          // A zero without a verifier is owed a look at the sandbox's health.
          assert.isTrue(operations(played).includes("health"))
          assert.isNull(played.receipts[0]?.submissionDigest)
        }))
    }

    it.effect("a file of exactly the cap is exported", () =>
      Effect.gen(function*() {
        const played = yield* scores(latency, (session) =>
          Effect.all([
            session.reset(task),
            session.terminal(`head -c 65536 /dev/zero > ${submission}`),
            session.submit
          ]), { score: 0, reason: "candidate-failed" })
        assert.strictEqual(played.sandboxes[1]?.received[0]?.bytes.length, 65536)
      }))
  })

  describe("candidates", () => {
    const expected: Record<Candidate, { readonly score: 0 | 1; readonly reason: ScoreReason }> = {
      "# right, and slow\n": { score: 1, reason: "correct" },
      "# right, and noisy\n": { score: 1, reason: "correct" },
      "# right, but fails\n": { score: 0, reason: "candidate-failed" },
      "# right, but never ends\n": { score: 0, reason: "candidate-killed-at-limit" },
      "# right, but twice\n": { score: 0, reason: "output-malformed" },
      "# right, but with fractions\n": { score: 0, reason: "output-malformed" },
      "# silent\n": { score: 0, reason: "output-malformed" },
      "# removes its output\n": { score: 0, reason: "candidate-failed" },
      "# floods\n": { score: 0, reason: "output-too-large" },
      "# not utf-8\n": { score: 0, reason: "output-not-utf8" },
      "# looks like a fault\n": { score: 0, reason: "output-malformed" },
      "# empty\n": { score: 0, reason: "wrong-totals" }
    }
    for (const [source, outcome] of Object.entries(expected)) {
      it.effect(`${outcome.score} ${outcome.reason}: ${source.trim()}`, () => scores(latency, handIn(source), outcome))
    }
    it.effect("0 wrong-totals: the program as it came", () =>
      scores(latency, handIn(starter), { score: 0, reason: "wrong-totals" }))
    it.effect("1 correct: the program repaired", () =>
      scores(latency, handIn(solution), { score: 1, reason: "correct" }))
    it("all of them are here", () => assert.sameMembers(Object.keys(expected), Object.keys(candidates)))
  })

  describe("no submission", () => {
    it.effect("0 not-submitted, with a look at the sandbox's health", () =>
      Effect.gen(function*() {
        const played = yield* scores(latency, (session) => Effect.zipRight(session.reset(task), session.reward), {
          score: 0,
          reason: "not-submitted"
        })
        assert.deepStrictEqual(operations(played), [
          "create",
          "extend",
          "writeFiles",
          "health",
          "destroy",
          "inspect"
        ])
      }))

    it.effect("no score when that sandbox is gone", () =>
      aborts(latency, (session) =>
        Effect.gen(function*() {
          yield* session.reset(task)
          const world = yield* World
          for (const { id } of yield* world.running) {
            yield* world.lose(id, "absent")
          }
          return yield* session.reward
        }), "SandboxLost"))

    it.effect("0 policy-window-exhausted at once, and later commands are blocked", () =>
      Effect.gen(function*() {
        const played = yield* scores(latency, (session) =>
          Effect.gen(function*() {
            yield* session.reset(task)
            yield* Effect.sleep("121 seconds")
            const state = yield* session.state
            assert.strictEqual(state._tag, "Finished")
            assert.deepStrictEqual(yield* session.terminal("echo late"), finished)
            assert.deepStrictEqual(yield* session.submit, finished)
          }), { score: 0, reason: "policy-window-exhausted" })
        assert.deepStrictEqual(played.sandboxes[0]?.commands, [])
        assert.strictEqual(played.receipts[0]?.totalSeconds, 120.5)
      }))

    it.effect("0 policy-window-exhausted in the middle of a command", () =>
      scores(latency, (session) =>
        Effect.gen(function*() {
          yield* session.reset(task)
          yield* Effect.sleep("115 seconds")
          assert.deepStrictEqual(yield* session.terminal("sleep infinity"), finished)
        }), { score: 0, reason: "policy-window-exhausted" }))

    it.effect("a submission at the end of the window counts", () =>
      scores(latency, (session) =>
        Effect.gen(function*() {
          yield* session.reset(task)
          yield* session.terminal(edit(solution))
          yield* Effect.sleep("119800 millis")
          yield* session.submit
        }), { score: 1, reason: "correct" }))
  })

  describe("faults are errors", () => {
    const script = handIn(solution)
    const rows: ReadonlyArray<readonly [string, Setting, InfrastructureError["_tag"]]> = [
      ["the create is refused", when("create", 1, Fault.Refused()), "SandboxUnavailable"],
      ["the verifier's create is refused", when("create", 2, Fault.Refused()), "SandboxUnavailable"],
      ["the sandbox is gone", when("exec", 1, Fault.Lost({ reason: "absent" })), "SandboxLost"],
      ["the sandbox expired", when("exec", 1, Fault.Lost({ reason: "expired" })), "SandboxLost"],
      ["the sandbox is unhealthy", when("exec", 1, Fault.Lost({ reason: "unhealthy" })), "SandboxLost"],
      ["the verifier is gone", when("exec", 2, Fault.Lost({ reason: "absent" })), "SandboxLost"],
      ["a response is lost", when("exec", 1, Fault.ReplyLost({ effect: true })), "TransportFailed"],
      ["a request is lost", when("exec", 1, Fault.ReplyLost({ effect: false })), "TransportFailed"],
      ["a response is late", when("exec", 1, Fault.Late({ by: "30 seconds" })), "ResponseTimedOut"],
      ["the candidate's response is late", when("exec", 2, Fault.Late({ by: "30 seconds" })), "ResponseTimedOut"],
      ["the export fails", when("readFile", 1, Fault.ReplyLost({ effect: true })), "TransportFailed"],
      ["the output's reply is malformed", when("readFile", 2, Fault.Malformed()), "ProtocolViolation"],
      ["the upload fails", when("writeFiles", 2, Fault.ReplyLost({ effect: true })), "TransportFailed"],
      ["deletion can't be proved", {
        ...latency,
        faults: ({ operation }) => operation === "destroy" ? Fault.NotDone() : undefined
      }, "CleanupUnresolved"],
      ["the proof can't be had", {
        ...latency,
        faults: ({ operation }) => operation === "inspect" ? Fault.ReplyLost({ effect: true }) : undefined
      }, "CleanupUnresolved"],
      ["the verifier's deletion can't be proved", {
        ...latency,
        faults: ({ operation, role }) => operation === "destroy" && role === "verifier" ? Fault.NotDone() : undefined
      }, "CleanupUnresolved"]
    ]
    for (const [what, setting, error] of rows) {
      it.effect(`${error}: ${what}`, () => aborts(setting, script, error))
    }

    it.effect("a late reply within its budget is no fault", () =>
      scores(when("exec", 1, Fault.Late({ by: "20 seconds" })), script, { score: 1, reason: "correct" }))

    it.effect("the policy's deletion unresolved: no verifier", () =>
      Effect.gen(function*() {
        const played = yield* aborts(
          { ...latency, faults: ({ operation }) => operation === "destroy" ? Fault.NotDone() : undefined },
          script,
          "CleanupUnresolved"
        )
        assert.deepStrictEqual(played.sandboxes.map(({ role }) => role), ["policy"])
        assert.deepStrictEqual(played.ledger.map(({ sandboxId, state }) => [sandboxId, state]), [
          [played.sandboxes[0]?.id, "unresolved"]
        ])
      }))

    it.effect("an error is fixed at once, and a reset starts a new episode", () =>
      Effect.gen(function*() {
        const played = yield* playSafely(
          when("exec", 1, Fault.ReplyLost({ effect: true })),
          (session) =>
            Effect.gen(function*() {
              yield* session.reset(task)
              const first = yield* errorOf(session.terminal(edit(solution)))
              assert.strictEqual(yield* errorOf(session.terminal("echo")), first)
              assert.strictEqual(yield* errorOf(session.submit), first)
              assert.strictEqual(yield* errorOf(session.reward), first)
              yield* session.reset(task)
              yield* session.terminal(edit(solution))
              yield* session.submit
              return yield* session.reward
            })
        )
        assert.deepStrictEqual(played.exit, Exit.succeed(1))
        assert.deepStrictEqual(played.receipts.map(({ outcome }) => outcome._tag), ["Aborted", "Scored"])
      }))
  })
})

describe("a session", () => {
  it.effect("allocates nothing before its reset", () =>
    Effect.gen(function*() {
      const played = yield* play(latency, (session) =>
        Effect.gen(function*() {
          assert.deepStrictEqual(yield* session.state, { _tag: "Idle" })
          assert.strictEqual((yield* errorOf(session.terminal("echo")))._tag, "EpisodeMisuse")
          assert.strictEqual((yield* errorOf(session.submit))._tag, "EpisodeMisuse")
          assert.strictEqual((yield* errorOf(session.reward))._tag, "EpisodeMisuse")
          assert.deepStrictEqual(yield* session.state, { _tag: "Idle" })
        }))
      assert.isTrue(Exit.isSuccess(played.exit))
      assert.deepStrictEqual(played.calls, [])
    }))

  it.effect("closes the episode before, then starts the next", () =>
    Effect.gen(function*() {
      const played = yield* playSafely(latency, (session) =>
        Effect.gen(function*() {
          const first = yield* session.reset(task)
          yield* session.terminal("echo first")
          const second = yield* session.reset(task)
          assert.notStrictEqual(first.episodeId, second.episodeId)
          return yield* session.reward
        }))
      const [first, second] = played.sandboxes
      assert.strictEqual(first?.ended?.how, "deleted")
      assert.isTrue((first?.ended?.at.epochMillis ?? Infinity) <= (second?.createdAt.epochMillis ?? 0))
      assert.deepStrictEqual(played.exit, Exit.succeed(0))
    }))

  it.effect("won't start over what can't be proved gone, and says the same until it can", () =>
    Effect.gen(function*() {
      const played = yield* playSafely(
        {
          ...latency,
          faults: ({ operation, sandboxId }) =>
            operation === "destroy" && sandboxId === "sim-1" ? Fault.NotDone() : undefined
        },
        (session) =>
          Effect.gen(function*() {
            yield* session.reset(task)
            const refused = yield* errorOf(session.reset(task))
            assert.strictEqual(refused._tag, "CleanupUnresolved")
            assert.strictEqual((yield* errorOf(session.terminal("echo"))).message, refused.message)
            assert.strictEqual((yield* errorOf(session.reward)).message, refused.message)
          })
      )
      assert.deepStrictEqual(played.exit, Exit.void)
      assert.strictEqual(played.sandboxes.length, 1)
    }))

  it.effect("takes two terminals one after another", () =>
    Effect.gen(function*() {
      const played = yield* playSafely(latency, (session) =>
        Effect.zipRight(
          session.reset(task),
          Effect.all([session.terminal("sleep 3; echo a"), session.terminal("echo b")], { concurrency: 2 })
        ))
      const [first, second] = played.sandboxes[0]?.commands ?? []
      assert.strictEqual((second?.at.epochMillis ?? 0) - (first?.at.epochMillis ?? 0), 3100)
      assert.deepStrictEqual(played.seen.map(({ stdout }) => stdout), ["a\n", "b\n"])
    }))

  it.effect("a terminal that races a submit runs before it or not at all", () =>
    Effect.gen(function*() {
      const before = yield* scores(latency, (session) =>
        Effect.zipRight(
          session.reset(task),
          Effect.all([session.terminal(edit(solution)), session.submit], { concurrency: 2 })
        ), { score: 1, reason: "correct" })
      assert.isFalse(before.seen[0]?.finished)
      const after = yield* scores(latency, (session) =>
        Effect.zipRight(
          session.reset(task),
          Effect.all([session.submit, session.terminal(edit(solution))], { concurrency: 2 })
        ), { score: 0, reason: "wrong-totals" })
      assert.deepStrictEqual(after.seen, [submitted, finished])
    }))

  it.effect("two submits are one", () =>
    Effect.gen(function*() {
      const played = yield* scores(latency, (session) =>
        Effect.all([
          session.reset(task),
          session.terminal(edit(solution)),
          Effect.all([session.submit, session.submit], { concurrency: 2 }),
          session.submit
        ]), { score: 1, reason: "correct" })
      assert.strictEqual(played.sandboxes.length, 2)
    }))

  it.effect("its end cuts a request short, and that one is told", () =>
    Effect.gen(function*() {
      const told = yield* Deferred.make<Exit.Exit<unknown, unknown>>()
      const left = yield* simulated(
        latency,
        Effect.gen(function*() {
          const { open } = yield* Episode.Episode
          yield* Effect.scoped(Effect.gen(function*() {
            const session = yield* open
            yield* session.reset(task)
            yield* session.terminal("sleep 9").pipe(
              Effect.exit,
              Effect.flatMap((exit) => Deferred.succeed(told, exit)),
              Effect.forkDaemon
            )
            yield* Effect.sleep("2 seconds")
          }))
          const world = yield* World
          return [yield* world.running, yield* (yield* Ledger.Ledger).open]
        })
      )
      assert.deepStrictEqual(left, [[], []])
      const exit = yield* Deferred.await(told)
      assert.deepInclude(failureOf(exit), { _tag: "EpisodeInterrupted", phase: "policy" })
    }))

  it.effect("its end cuts a request short that its caller can't be interrupted in, and an interruption doesn't", () =>
    simulated(
      latency,
      Effect.gen(function*() {
        const { open } = yield* Episode.Episode
        const scope = yield* Scope.make()
        const session = yield* Scope.extend(open, scope)
        yield* session.reset(task)
        const told = yield* Deferred.make<Exit.Exit<unknown, unknown>>()
        const fiber = yield* Effect.exit(session.terminal("sleep 9")).pipe(
          Effect.flatMap((exit) => Deferred.succeed(told, exit)),
          Effect.uninterruptible,
          Effect.forkDaemon
        )
        yield* Effect.sleep("1 second")
        yield* Fiber.interruptFork(fiber)
        yield* Effect.sleep("1 second")
        assert.strictEqual((yield* session.state)._tag, "Active")
        const before = yield* Clock.currentTimeMillis
        yield* Scope.close(scope, Exit.void)
        assert.isAtMost((yield* Clock.currentTimeMillis) - before, 300)
        const exit = yield* Deferred.await(told)
        assert.deepInclude(failureOf(exit), { _tag: "EpisodeInterrupted", phase: "policy" })
      })
    ))

  it.effect("can't be reset after its end", () =>
    simulated(
      latency,
      Effect.gen(function*() {
        const { open } = yield* Episode.Episode
        const session = yield* Effect.scoped(open)
        assert.strictEqual((yield* errorOf(session.reset(task)))._tag, "EpisodeInterrupted")
        assert.deepStrictEqual(yield* (yield* World).calls, [])
      })
    ))

  it.effect("a request whose caller goes away ends the episode, after its cleanup", () =>
    Effect.gen(function*() {
      const played = yield* aborts(latency, (session) =>
        Effect.gen(function*() {
          yield* session.reset(task)
          const exit = yield* session.terminal("sleep 9").pipe(Effect.timeout("2 seconds"), Effect.exit)
          assert.isTrue(Exit.isFailure(exit))
        }), "EpisodeInterrupted")
      assert.strictEqual(played.sandboxes[0]?.ended?.how, "deleted")
      // The caller waits for the cleanup and for nothing else.
      assert.strictEqual(played.times.script, 200 + 2000 + 150 + 50)
    }))

  it.effect("an interruption during verification waits for the verifier's deletion", () =>
    Effect.gen(function*() {
      const played = yield* aborts(
        { ...latency, faults: ({ nth, operation }) => operation === "exec" && nth === 1 ? neverEnds : undefined },
        (session) =>
          Effect.gen(function*() {
            yield* session.reset(task)
            const fiber = yield* Effect.fork(session.submit)
            yield* Effect.sleep("5 seconds")
            yield* Fiber.interrupt(fiber)
            assert.deepStrictEqual(yield* (yield* World).running, [])
          }),
        "EpisodeInterrupted"
      )
      assert.deepStrictEqual(played.exit, Exit.void)
      assert.deepStrictEqual(played.sandboxes.map(({ ended, role }) => [role, ended?.how]), [
        ["policy", "deleted"],
        ["verifier", "deleted"]
      ])
    }))

  it.effect("a deletion under way isn't cut by an interruption", () =>
    Effect.gen(function*() {
      const played = yield* aborts(latency, (session) =>
        Effect.gen(function*() {
          yield* session.reset(task)
          const fiber = yield* Effect.fork(session.submit)
          // In the middle of the deletion: the export takes 100 ms, the deletion and its proof 200.
          yield* Effect.sleep("150 millis")
          yield* Fiber.interrupt(fiber)
        }), "EpisodeInterrupted")
      assert.deepStrictEqual(operations(played).filter((name) => name === "destroy" || name === "inspect"), [
        "destroy",
        "inspect"
      ])
    }))
})

describe("Episode.run", () => {
  const record = (
    setting: Setting,
    policy: (tools: Episode.PolicyTools) => Effect.Effect<unknown, InfrastructureError>
  ) =>
    simulated(
      setting,
      Effect.gen(function*() {
        const receipt = yield* (yield* Episode.Episode).record(task, policy)
        assert.deepStrictEqual(yield* (yield* World).running, [])
        return receipt
      })
    )

  const scored = (receipt: EpisodeReceipt) =>
    receipt.outcome._tag === "Scored" ? receipt.outcome.reason : receipt.outcome.error._tag

  it.effect("a policy that repairs and submits", () =>
    Effect.gen(function*() {
      const receipt = yield* record(
        latency,
        ({ submit, terminal }) => Effect.zipRight(terminal(edit(solution)), submit)
      )
      assert.strictEqual(scored(receipt), "correct")
    }))

  it.effect("a policy that never ends is over with its window", () =>
    Effect.gen(function*() {
      const receipt = yield* record(latency, () => Effect.never)
      assert.strictEqual(scored(receipt), "policy-window-exhausted")
    }))

  it.effect("a policy that can't be interrupted is left behind", () =>
    Effect.gen(function*() {
      const receipt = yield* record(latency, () => Effect.uninterruptible(Effect.never))
      assert.strictEqual(scored(receipt), "policy-window-exhausted")
    }))

  it.effect("a policy that submits and never ends keeps its score", () =>
    Effect.gen(function*() {
      const receipt = yield* record(latency, ({ submit, terminal }) =>
        Effect.all([terminal(edit(solution)), submit, Effect.never]))
      assert.strictEqual(scored(receipt), "correct")
    }))

  it.effect("a policy that submits twice", () =>
    Effect.gen(function*() {
      const receipt = yield* record(latency, ({ submit, terminal }) =>
        Effect.all([terminal(edit(solution)), submit, submit, terminal("echo"), submit]))
      assert.strictEqual(scored(receipt), "correct")
    }))

  it.effect("a policy that ignores errors gets no score by it", () =>
    Effect.gen(function*() {
      const receipt = yield* record(
        when("exec", 1, Fault.ReplyLost({ effect: true })),
        ({ submit, terminal }) =>
          Effect.all([Effect.ignore(terminal(edit(solution))), Effect.ignore(terminal("echo")), Effect.ignore(submit)])
      )
      assert.strictEqual(scored(receipt), "TransportFailed")
    }))

  it.effect("a policy that does nothing", () =>
    Effect.gen(function*() {
      const receipt = yield* record(latency, () => Effect.void)
      assert.strictEqual(scored(receipt), "not-submitted")
    }))

  it.effect("a policy's own error, defect and interruption come out as they are, and nothing is left", () =>
    simulated(
      latency,
      Effect.gen(function*() {
        const { run } = yield* Episode.Episode
        const own = yield* Effect.exit(run(task, () => Effect.fail("no idea")))
        assert.deepStrictEqual(own, Exit.fail("no idea"))
        const defect = yield* Effect.exit(run(task, () => Effect.die("a bug")))
        assert.deepStrictEqual(defect, Exit.die("a bug"))
        const interrupted = yield* Effect.exit(run(task, () => Effect.interrupt))
        assert.isTrue(Exit.isInterrupted(interrupted))
        assert.deepStrictEqual(yield* (yield* World).running, [])
        assert.deepStrictEqual(yield* (yield* Ledger.Ledger).open, [])
      })
    ))

  it.effect("the infrastructure's error is named before the policy's own", () =>
    simulated(
      when("exec", 1, Fault.Malformed()),
      Effect.gen(function*() {
        const { run } = yield* Episode.Episode
        const error = yield* Effect.flip(
          run(task, ({ terminal }) => Effect.mapError(terminal("echo"), () => "the policy's own words"))
        )
        assert.strictEqual(typeof error === "string" ? error : error._tag, "ProtocolViolation")
      })
    ))

  it.effect("an interruption leaves nothing behind", () =>
    simulated(
      latency,
      Effect.gen(function*() {
        const { run } = yield* Episode.Episode
        const fiber = yield* Effect.fork(run(task, ({ terminal }) => Effect.forever(terminal("sleep 1"))))
        yield* Effect.sleep("5 seconds")
        const exit = yield* Fiber.interrupt(fiber)
        assert.isTrue(Exit.isFailure(exit) && Cause.isInterruptedOnly(exit.cause))
        assert.deepStrictEqual(yield* (yield* World).running, [])
        assert.deepStrictEqual(yield* (yield* Ledger.Ledger).open, [])
      })
    ))

  const ended = (log: Array<string>) =>
    Effect.sleep("3 seconds").pipe(Effect.zipRight(Effect.sync(() => log.push("policy"))))

  it.effect("waits for what a policy does when its window is over, and the deletion doesn't", () =>
    Effect.gen(function*() {
      const log: Array<string> = []
      yield* simulated(
        { ...latency, onCall: ({ operation }) => Effect.sync(() => operation === "inspect" && log.push("deleted")) },
        Effect.gen(function*() {
          const receipt = yield* (yield* Episode.Episode).run(
            task,
            () => Effect.onInterrupt(Effect.never, () => ended(log))
          )
          assert.strictEqual(scored(receipt), "policy-window-exhausted")
        })
      )
      assert.deepStrictEqual(log, ["deleted", "policy"])
    }))

  it.effect("waits for what a policy does when it is interrupted, and the deletion doesn't", () =>
    Effect.gen(function*() {
      const log: Array<string> = []
      yield* simulated(
        { ...latency, onCall: ({ operation }) => Effect.sync(() => operation === "inspect" && log.push("deleted")) },
        Effect.gen(function*() {
          const { run } = yield* Episode.Episode
          const fiber = yield* Effect.fork(run(task, () => Effect.onInterrupt(Effect.never, () => ended(log))))
          yield* Effect.sleep("5 seconds")
          yield* Fiber.interrupt(fiber)
          assert.deepStrictEqual(log, ["deleted", "policy"])
        })
      )
    }))

  it.effect("waits no longer than the control budget for a policy that can't be interrupted", () =>
    simulated(
      latency,
      Effect.gen(function*() {
        const { run } = yield* Episode.Episode
        const fiber = yield* Effect.fork(run(task, () => Effect.uninterruptible(Effect.never)))
        yield* Effect.sleep("5 seconds")
        const before = yield* Clock.currentTimeMillis
        yield* Fiber.interrupt(fiber)
        assert.strictEqual((yield* Clock.currentTimeMillis) - before, 200 + 10_000)
      })
    ))

  it.effect("logs a policy's own error that comes after the end, and not the error it was given", () =>
    Effect.gen(function*() {
      const logged: Array<unknown> = []
      const logger = Logger.make(({ message }) => {
        logged.push(message)
      })
      const after = (error: (given: InfrastructureError) => unknown) =>
        simulated(
          when("exec", 1, Fault.Malformed()),
          Effect.gen(function*() {
            const { record } = yield* Episode.Episode
            const receipt = yield* record(task, ({ terminal }) => Effect.mapError(terminal("echo"), error))
            assert.strictEqual(scored(receipt), "ProtocolViolation")
          })
        ).pipe(Effect.provide(Logger.replace(Logger.defaultLogger, logger)))
      yield* after((given) => given)
      assert.lengthOf(logged, 0)
      yield* after(() => "no quota left")
      assert.lengthOf(logged, 1)
    }))

  it.effect("a bug of the provider comes out as it is, and isn't said to be an interruption", () =>
    Effect.gen(function*() {
      const session = yield* simulated(
        { ...latency, onCall: ({ operation }) => operation === "exec" ? Effect.dieMessage("a bug") : Effect.void },
        Effect.scoped(Effect.gen(function*() {
          const session = yield* (yield* Episode.Episode).open
          yield* session.reset(task)
          const exit = yield* Effect.exit(session.terminal("echo"))
          assert.isTrue(Exit.isFailure(exit) && Cause.isDie(exit.cause))
          return yield* errorOf(session.reward)
        }))
      )
      assert.deepInclude(session, { _tag: "TransportFailed", operation: "exec", phase: "policy" })
    }))

  it.effect("takes rates as a plain object, and refuses impossible ones when it is made", () =>
    Effect.gen(function*() {
      const withRates = (usdPerVcpuSecond: number) =>
        virtually(
          Effect.gen(function*() {
            const { run } = yield* Episode.Episode
            return yield* run(task, ({ submit }) => submit)
          }).pipe(
            Effect.provide(
              Episode.layerWithLedger({ rates: { usdPerVcpuSecond, usdPerGibSecond: 0, asOf: "2026-11" } }).pipe(
                Layer.provide(Simulated.layer({ latency: "1 second" })),
                Layer.provide(Ledger.layerMemory)
              )
            ),
            Effect.exit
          )
        )
      const fine = yield* withRates(1)
      assert.isAbove(yield* Effect.map(fine, ({ estimatedCostUsd }) => estimatedCostUsd), 1)
      const wrong = yield* withRates(-1)
      assert.isTrue(Exit.isFailure(wrong) && Cause.isDie(wrong.cause))
    }))

  it.effect("has its sandboxes at its own provider, where a program has two", () =>
    Effect.gen(function*() {
      const named = (name: string) =>
        Layer.effect(SandboxProvider, Effect.map(SandboxProvider, (provider) => ({ ...provider, name }))).pipe(
          Layer.provide(Simulated.layer({ programs: new Map() }))
        )
      const provider = Effect.flatMap(Episode.Episode, ({ record }) =>
        Effect.map(record(task, () => Effect.void), ({ provider }) => provider))
      class One extends Context.Tag("test/One")<One, string>() {}
      class Two extends Context.Tag("test/Two")<Two, string>() {}
      const found = yield* Effect.all([One, Two]).pipe(
        Effect.provide(Layer.merge(
          Layer.effect(One, provider).pipe(Layer.provide(Episode.layer), Layer.provide(named("one"))),
          Layer.effect(Two, provider).pipe(Layer.provide(Episode.layer), Layer.provide(named("two")))
        )),
        virtually
      )
      assert.deepStrictEqual(found, ["one", "two"])
    }))

  it.effect("many at once share nothing", () =>
    simulated(
      latency,
      Effect.gen(function*() {
        const { run } = yield* Episode.Episode
        const reasons = yield* Effect.forEach(
          [solution, starter, solution, "# silent\n", solution, starter],
          (source) =>
            Effect.map(
              run(task, ({ submit, terminal }) => Effect.zipRight(terminal(edit(source)), submit)),
              ({ outcome }) => outcome._tag === "Scored" ? outcome.reason : outcome._tag
            ),
          { concurrency: "unbounded" }
        )
        assert.deepStrictEqual(reasons, [
          "correct",
          "wrong-totals",
          "correct",
          "output-malformed",
          "correct",
          "wrong-totals"
        ])
        const sandboxes = yield* (yield* World).sandboxes
        assert.strictEqual(sandboxes.length, 12)
        assert.deepStrictEqual(yield* (yield* World).running, [])
      })
    ))
})

import * as HelpDoc from "@effect/cli/HelpDoc"
import * as ValidationError from "@effect/cli/ValidationError"
import { assert, describe, it } from "@effect/vitest"
import { ConfigError, Duration } from "effect"
import { InvalidBudgets } from "../../src/Budgets.ts"
import type { ExitCode, Failure } from "../../src/Cli/Exit.ts"
import { codeOf, codes, describe as sentence, NotMet, NotReady, Usage } from "../../src/Cli/Exit.ts"
import { EpisodeDeadlineExceeded, EpisodeInterrupted } from "../../src/Episode/Outcome.ts"
import * as Sandbox from "../../src/Sandbox.ts"
import { InvalidTask } from "../../src/Task.ts"

const message = "a message"
const sandboxId = Sandbox.SandboxId.make("sbx-1")

type OwnTag = Exclude<Failure, ValidationError.ValidationError | ConfigError.ConfigError>["_tag"]

// A failure that is added to the union and has no code here doesn't compile.
const designed = {
  NotMet: [new NotMet({ message }), codes.notMet],
  NotReady: [new NotReady({ message }), codes.infrastructure],
  Usage: [new Usage({ message }), codes.usage],
  InvalidTask: [new InvalidTask({ issues: [{ path: "id", message }] }), codes.usage],
  InvalidBudgets: [new InvalidBudgets({ issues: [{ field: "policyWindow", message }] }), codes.usage],
  SandboxUnavailable: [
    new Sandbox.SandboxUnavailable({ operation: "create", reason: "quota", detail: message }),
    codes.infrastructure
  ],
  AllocationUncertain: [
    new Sandbox.AllocationUncertain({
      operation: "create",
      role: "policy",
      allocation: "a",
      lifetime: Duration.seconds(1)
    }),
    codes.infrastructure
  ],
  SandboxLost: [new Sandbox.SandboxLost({ operation: "exec", sandboxId, reason: "absent" }), codes.infrastructure],
  TransportFailed: [new Sandbox.TransportFailed({ operation: "exec", detail: message }), codes.infrastructure],
  ResponseTimedOut: [
    new Sandbox.ResponseTimedOut({ operation: "exec", budget: "control", limit: Duration.seconds(1) }),
    codes.infrastructure
  ],
  ProtocolViolation: [new Sandbox.ProtocolViolation({ operation: "exec", detail: message }), codes.infrastructure],
  CleanupUnresolved: [
    new Sandbox.CleanupUnresolved({ operation: "destroy", sandboxes: [{ sandboxId, role: "policy", attempts: 3 }] }),
    codes.unresolved
  ],
  EpisodeDeadlineExceeded: [
    new EpisodeDeadlineExceeded({ phase: "policy", budget: "episodeDeadline", limit: Duration.seconds(1) }),
    codes.infrastructure
  ],
  EpisodeInterrupted: [new EpisodeInterrupted({ phase: "policy" }), codes.infrastructure]
} satisfies Record<OwnTag, readonly [Failure, ExitCode]>

describe("Exit codes", () => {
  it("are the designed ones", () => {
    assert.deepStrictEqual(codes, {
      done: 0,
      notMet: 1,
      usage: 2,
      infrastructure: 3,
      unresolved: 4,
      interrupted: 130
    })
  })

  it.each(Object.entries(designed))("%s has its code and says why", (_, [failure, code]) => {
    assert.strictEqual(codeOf(failure), code)
    assert.notStrictEqual(sentence(failure).trim(), "")
  })

  it("of the environment is wrong usage, and names the variable", () => {
    const errors = [
      ConfigError.InvalidData(["EPISODE_POLICY_WINDOW"], message),
      ConfigError.MissingData(["EPISODE_POLICY_WINDOW"], message),
      ConfigError.And(
        ConfigError.InvalidData(["EPISODE_FILE_CAP"], message),
        ConfigError.InvalidData(["EPISODE_POLICY_WINDOW"], message)
      )
    ]
    for (const error of errors) {
      assert.strictEqual(codeOf(error), codes.usage)
      assert.include(sentence(error), "EPISODE_POLICY_WINDOW")
    }
  })

  it("of what isn't set says so, and where to set it", () => {
    const missing = (name: string) => sentence(ConfigError.MissingData([name], message))
    assert.strictEqual(
      missing("EPISODE_POLICY_WINDOW"),
      "EPISODE_POLICY_WINDOW isn't set: put it into the environment, or into .env"
    )
    assert.match(
      missing("E2B_API_KEY"),
      /^E2B_API_KEY isn't set: get a key at https:.* and put it into .*, or into .env$/
    )
  })

  it("of the parser is wrong usage, and told in one line without colours", () => {
    const error = ValidationError.invalidValue(HelpDoc.p(message))
    assert.strictEqual(codeOf(error), codes.usage)
    assert.strictEqual(sentence(error), message)
  })
})

/** How long requests may take, without the SDK: a client that writes it down and has no answers. */
import { assert, describe, it } from "@effect/vitest"
import { Duration, Effect, Either } from "effect"
import * as Budgets from "../../../src/Budgets.ts"
import { type Sandbox, SandboxId } from "../../../src/Sandbox.ts"
import type { Client, Machine } from "../../../src/Sandbox/E2b/Client.ts"
import { Failure } from "../../../src/Sandbox/E2b/Failure.ts"
import * as Handle from "../../../src/Sandbox/E2b/Handle.ts"
import * as Inquiry from "../../../src/Sandbox/E2b/Inquiry.ts"
import * as Runner from "../../../src/Sandbox/E2b/Runner.ts"
import { at, limits, utf8 } from "../providerContract.ts"

const budgets = Budgets.make({
  control: "1 minute",
  cleanup: "2 minutes",
  fileTransfer: "5 minutes",
  commandLimit: "4 minutes",
  commandResponse: "6 minutes",
  verifierResponse: "5 minutes",
  verifierLifetime: "8 minutes",
  policyWindow: "9 minutes"
}).pipe(Either.getOrThrow)

const lost = new Failure({ kind: "broken", detail: "no reply" })

/** A sandbox, made where the defaults are in force; and what was asked for it since. */
const recorded = Effect.gen(function*() {
  const asked: Array<string> = []
  const ask = (way: string) => (limit: Duration.Duration) =>
    Effect.suspend(() => {
      asked.push(`${way} ${Duration.format(limit)}`)
      return lost
    })
  const client: Client = {
    apiUrl: "http://127.0.0.1:2",
    list: () => assert.fail("nothing is listed"),
    control: ask("control"),
    data: ask("data")
  }
  const runner = yield* Runner.make({ client, connections: 10 })
  const sandbox = Handle.make({
    client,
    inquiry: Inquiry.make(client),
    runner: {
      run: (machine, launch, options) =>
        Effect.suspend(() => {
          const { overdueAfter = Duration.infinity, timeLimit } = options
          asked.push(`run ${Duration.format(timeLimit)}, killed after ${Duration.format(overdueAfter)}`)
          return runner.run(machine, launch, options)
        })
    }
  }, {
    // Never looked at: the client calls nothing.
    machine: {} as Machine,
    id: SandboxId.make("sb"),
    role: "policy",
    resources: () => assert.fail("nothing is known"),
    informed: Effect.void,
    isPristine: false,
    expiresAt: Infinity
  })
  return { asked, sandbox }
})

describe("a request has the time that is given by the budgets of whoever makes it", () => {
  // Whatever fails, the control plane is asked why.
  const cases: ReadonlyArray<
    readonly [request: string, (sandbox: Sandbox) => Effect.Effect<unknown, unknown>, asked: ReadonlyArray<string>]
  > = [
    ["health", (sandbox) => sandbox.health, ["data 1m"]],
    ["extend", (sandbox) => sandbox.extend(Duration.minutes(3)), ["control 1m"]],
    ["writeFiles", (sandbox) => sandbox.writeFiles([{ path: at("/home/user/x"), bytes: utf8("x") }]), ["data 5m"]],
    ["readFile", (sandbox) => sandbox.readFile(at("/home/user/x"), { maxBytes: 1 }), [
      "run 5m, killed after 2m 30s",
      "data 6m"
    ]],
    ["exec", (sandbox) => sandbox.exec("true", { ...limits, timeLimit: Duration.minutes(4) }), [
      "run 4m, killed after 4m 2s",
      "data 6m"
    ]]
  ]

  it.scoped.each(cases)("%s", ([, request, expected]) =>
    Effect.gen(function*() {
      const { asked, sandbox } = yield* recorded
      yield* Effect.exit(Effect.provideService(request(sandbox), Budgets.CurrentBudgets, budgets))
      assert.deepStrictEqual(asked, [...expected, "control 1m"])
    }))
})

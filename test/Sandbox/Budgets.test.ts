/** Which budgets a provider finds: those of whoever makes a request, wherever its own layer was built. */
import { assert, describe, it } from "@effect/vitest"
import { Duration, Effect, Layer } from "effect"
import * as Budgets from "../../src/Budgets.ts"
import * as Episode from "../../src/Episode.ts"
import { type Operation, type Provider, type Sandbox, SandboxProvider } from "../../src/Sandbox.ts"
import * as Simulated from "../../src/Sandbox/Simulated.ts"
import { edit, outside, type Setting, solution, task } from "../Episode/fixture.ts"
import { virtually } from "../virtualTime.ts"

const limit = Duration.seconds(7)

/** The requests of an episode whose budgets aren't given to its provider, and those that found others. */
const requestsOf = (
  setting: Setting,
  policy: (tools: Episode.PolicyTools) => Effect.Effect<unknown, unknown>
) =>
  Effect.gen(function*() {
    const made: Array<Operation> = []
    const wrong: Array<Operation> = []
    const seen = <A, E>(operation: Operation, request: Effect.Effect<A, E>) =>
      Effect.flatMap(Budgets.CurrentBudgets, ({ control }) => {
        made.push(operation)
        if (!Duration.equals(control, limit)) {
          wrong.push(operation)
        }
        return request
      })
    const watched = (sandbox: Sandbox): Sandbox => ({
      id: sandbox.id,
      role: sandbox.role,
      resources: sandbox.resources,
      exec: (command, limits) => seen("exec", sandbox.exec(command, limits)),
      readFile: (path, limits) => seen("readFile", sandbox.readFile(path, limits)),
      writeFiles: (files) => seen("writeFiles", sandbox.writeFiles(files)),
      health: seen("health", sandbox.health),
      extend: (lifetime) => seen("extend", sandbox.extend(lifetime))
    })
    const provider = Layer.effect(
      SandboxProvider,
      Effect.map(SandboxProvider, (inner): Provider => ({
        ...inner,
        create: (spec) => seen("create", Effect.map(inner.create(spec), watched)),
        destroy: (id) => seen("destroy", inner.destroy(id)),
        inspect: (id) => seen("inspect", inner.inspect(id)),
        find: (labels) => seen("find", inner.find(labels))
      }))
    )
    yield* Effect.flatMap(Episode.Episode, (episode) => episode.record(task, (tools) => Effect.ignore(policy(tools))))
      .pipe(
        Effect.provide(Episode.layer.pipe(
          Layer.provide(Budgets.layer({ control: limit })),
          Layer.provide(provider),
          Layer.provide(outside(setting))
        )),
        Effect.orDie
      )
    return { made: new Set(made), wrong }
  }).pipe(virtually)

describe("the budgets of an episode, built with it and not with the provider, are in force", () => {
  it.effect("for each of its requests", () =>
    Effect.gen(function*() {
      const { made, wrong } = yield* requestsOf(
        {},
        ({ submit, terminal }) => Effect.zipRight(terminal(edit(solution)), submit)
      )
      const all: ReadonlyArray<Operation> = ["create", "destroy", "exec", "extend", "inspect", "readFile", "writeFiles"]
      assert.deepStrictEqual([...made].toSorted(), all)
      assert.deepStrictEqual(wrong, [])
    }))

  it.effect("for what is done after it was given up", () =>
    Effect.gen(function*() {
      const { made, wrong } = yield* requestsOf(
        { faults: ({ operation }) => operation === "create" ? Simulated.Fault.ReplyLost({ effect: true }) : undefined },
        ({ submit }) => submit
      )
      assert.deepStrictEqual([...made].toSorted(), ["create", "destroy", "find", "inspect"])
      assert.deepStrictEqual(wrong, [])
      const silent = yield* requestsOf({}, () => Effect.never)
      assert.isTrue(silent.made.has("health"))
      assert.deepStrictEqual(silent.wrong, [])
    }))
})

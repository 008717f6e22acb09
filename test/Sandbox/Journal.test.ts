import { assert, it } from "@effect/vitest"
import { Effect, TestClock } from "effect"
import { CurrentWaits, Wait } from "../../src/Sandbox.ts"
import * as Journal from "../../src/Sandbox/Journal.ts"

it.effect("a record that was given out stays as it is, whatever is told later", () =>
  Effect.gen(function*() {
    const journal = yield* Journal.make
    const wait = new Wait({ reason: "rate-limited", milliseconds: 1000 })
    const { add } = yield* CurrentWaits.pipe(
      Effect.tap(({ add }) => add(wait)),
      Effect.tap(TestClock.adjust("3 seconds")),
      journal.operation("exec", "policy", () => undefined)
    )
    const operations = yield* journal.operations
    yield* add(wait)
    assert.deepStrictEqual(operations.map(({ milliseconds, waits }) => [milliseconds, waits]), [[3000, [wait]]])
  }))

/** What is heard of requests that are put off, on the channel where the HTTP client of the SDK tells of them. */
import { assert, it } from "@effect/vitest"
import { Deferred, Duration, Effect, Exit, Fiber, TestClock } from "effect"
import * as diagnostics from "node:diagnostics_channel"
import { Wait } from "../../../src/Sandbox.ts"
import { call } from "../../../src/Sandbox/Call.ts"
import * as Pauses from "../../../src/Sandbox/E2b/Pauses.ts"
import * as Journal from "../../../src/Sandbox/Journal.ts"

const refuse = (headers: Readonly<Record<string, string>>, seconds: number) =>
  Effect.sync(() =>
    diagnostics.channel("undici:request:headers").publish({
      request: { headers: Object.entries(headers).flat() },
      response: { statusCode: 429, headers: ["Retry-After", String(seconds)].map((word) => Buffer.from(word)) }
    })
  )

const rateLimited = (milliseconds: number) => new Wait({ reason: "rate-limited", milliseconds })

it.scoped("are in the trace of a request that ran out of time for them, as long as they lasted", () =>
  Effect.gen(function*() {
    const pauses = yield* Pauses.make
    const journal = yield* Journal.make
    const over = yield* Deferred.make<void>()
    const requesting = yield* pauses.observed((headers) =>
      Effect.sleep("1 second").pipe(
        Effect.zipRight(refuse(headers, 2)),
        Effect.zipRight(Effect.sleep("2 seconds")),
        Effect.zipRight(refuse(headers, 60)),
        Effect.zipRight(Effect.never),
        // It takes its time to end, as a request that is aborted does.
        Effect.onInterrupt(() => Deferred.await(over))
      )
    ).pipe(
      call({ operation: "exec", phase: "policy", budget: "control", limit: Duration.seconds(10) }),
      Effect.provideService(Journal.CurrentJournal, journal),
      Effect.exit,
      Effect.fork
    )
    yield* TestClock.adjust("10 seconds")
    assert.isTrue(Exit.isFailure(yield* Fiber.join(requesting)))
    const operations = yield* journal.operations
    const expected = [rateLimited(2000), rateLimited(7000)]
    assert.deepStrictEqual(operations.map(({ waits }) => waits), [expected])
    yield* Deferred.succeed(over, undefined)
    yield* TestClock.adjust("1 second")
    assert.deepStrictEqual(operations.map(({ waits }) => waits), [expected])
  }))

it.scoped("that are another's, or aren't one, are not", () =>
  Effect.gen(function*() {
    const pauses = yield* Pauses.make
    const journal = yield* Journal.make
    const request = (heard: (headers: Readonly<Record<string, string>>) => Effect.Effect<unknown>) =>
      pauses.observed(heard).pipe(journal.operation("exec", "policy", () => undefined))
    yield* request(() => refuse({ "x-request-id": "another" }, 1))
    // An end that came at once was no pause, whatever was asked for.
    yield* request((headers) => refuse(headers, 3600))
    assert.deepStrictEqual((yield* journal.operations).map(({ waits }) => waits), [undefined, [rateLimited(0)]])
  }))

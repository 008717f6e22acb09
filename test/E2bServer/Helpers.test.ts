/** The helper for files, where a guest stops it: every wait has an end, and the next request another helper. */
import { assert, describe, it } from "@effect/vitest"
import * as Chunk from "effect/Chunk"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/TestClock"
import { concat, uint32, utf8 } from "../../src/E2bServer/Bytes.ts"
import * as Files from "../../src/E2bServer/Files.ts"
import { SandboxId } from "../../src/Sandbox.ts"
import { MachineProvider } from "../../src/Sandbox/Machine.ts"

const frame = (header: unknown, payload: string) => {
  const head = utf8(JSON.stringify(header))
  return concat([uint32(head.length), head, uint32(payload.length), utf8(payload)])
}

/** Helpers that answer a first request with one part of a file, if at all, and nothing more. */
const stopped = (answers: boolean) =>
  Effect.gen(function*() {
    const state = { started: 0, ended: 0, asked: 0 }
    const machine = MachineProvider.of({
      spawn: () =>
        Effect.acquireRelease(
          Effect.map(Queue.unbounded<Uint8Array>(), (output) => {
            state.started += 1
            return {
              pid: state.started,
              stdout: Stream.fromQueue(output),
              stderr: Stream.never,
              closeStdin: Effect.void,
              signal: () => Effect.void,
              letGo: Effect.void,
              ended: Effect.never,
              write: () =>
                Effect.suspend(() => {
                  state.asked += 1
                  return answers && state.asked === 1
                    ? Effect.as(Queue.offer(output, frame({ id: 1, handle: 5 }, "x")), true)
                    : Effect.never
                })
            }
          }),
          () =>
            Effect.sync(() => {
              state.ended += 1
            })
        ),
      usage: () => Effect.dieMessage("nobody asks")
    })
    const scope = yield* Scope.make()
    yield* Effect.addFinalizer(() => Scope.close(scope, Exit.void))
    const files = yield* Scope.extend(Files.make(machine, SandboxId.make("sandbox")), scope)
    return { files, scope, state }
  })

// So many turns of the scheduler are more than anything here takes that waits for no time.
const settled = Effect.repeatN(Effect.yieldNow(), 200)

describe("E2bServer: the helper for files", () => {
  // Every request is handled in a span, where an error is another object than the one that was given to `Effect.fail`.
  it.scoped("is another one after one that doesn't answer, in a span, too", () =>
    Effect.gen(function*() {
      const { files, state } = yield* stopped(false)
      for (let n = 1; n <= 3; n++) {
        const asking = yield* Effect.fork(Effect.flip(Effect.withSpan(files.stat("user", "/x"), "request")))
        yield* TestClock.adjust("20 seconds")
        assert.nestedPropertyVal(yield* Fiber.join(asking), "code", "unanswered")
        yield* settled
        assert.deepStrictEqual(state, { started: n, ended: n, asked: n })
      }
    }))

  it.scoped("is given up where it doesn't close a file", () =>
    Effect.gen(function*() {
      const { files, state } = yield* stopped(true)
      yield* Effect.scoped(files.read("user", "/large"))
      yield* settled
      assert.deepStrictEqual(state, { started: 1, ended: 0, asked: 2 })
      yield* TestClock.adjust("20 seconds")
      yield* settled
      assert.deepStrictEqual(state, { started: 1, ended: 1, asked: 2 })
    }))

  it.scoped("doesn't hold up the end of the sandbox with closing a file", () =>
    Effect.gen(function*() {
      const { files, scope, state } = yield* stopped(true)
      yield* Effect.scoped(files.read("user", "/large"))
      yield* settled
      assert.strictEqual(state.asked, 2)
      // Time stands still: it waits for none.
      const closing = yield* Effect.forkDaemon(Scope.close(scope, Exit.void))
      yield* settled
      assert.isDefined(closing.unsafePoll() ?? undefined)
      assert.strictEqual(state.ended, 1)
    }))

  it.effect("sends frames that are cut anew in each run", () =>
    Effect.gen(function*() {
      const whole = frame({ id: 1 }, "payload")
      const frames = Files.frames(Stream.make(whole, whole.subarray(0, 9)))
      for (let n = 0; n < 2; n++) {
        const found = Chunk.toReadonlyArray(yield* Stream.runCollect(frames))
        assert.deepStrictEqual(
          found.map(([header, payload]) => [header, payload].map((part) => new TextDecoder().decode(part))),
          [["{\"id\":1}", "payload"]]
        )
      }
    }))
})

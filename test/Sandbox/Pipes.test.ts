import { assert, describe, it } from "@effect/vitest"
import { Effect, Exit, Fiber, Scope } from "effect"
import { randomUUID } from "node:crypto"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import * as Pipes from "../../src/Sandbox/Local/Pipes.ts"
import * as Registry from "../../src/Sandbox/Local/Registry.ts"

const scratch = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "episode-pipes-"))),
  (directory) => Effect.sync(() => fs.rmSync(directory, { recursive: true, force: true }))
)

const descriptors = (): number => fs.readdirSync("/proc/self/fd").length

describe("a supply of pipes", () => {
  it.scopedLive("leaves nothing on the disk, also where nobody waits for what it is making", () =>
    Effect.gen(function*() {
      const directory = yield* scratch
      const scope = yield* Scope.make()
      const pipes = yield* Scope.extend(Pipes.make({ directory: Effect.succeed(directory) }), scope)
      const before = descriptors()
      const taking = yield* Effect.forkDaemon(pipes.take)
      // As far as it gets without waiting for mkfifo.
      yield* Effect.yieldNow()
      assert.lengthOf(fs.readdirSync(directory), 1)
      yield* Fiber.interruptFork(taking)
      yield* Scope.close(scope, Exit.void)
      assert.deepStrictEqual(fs.readdirSync(directory), [])
      assert.isTrue(Exit.isInterrupted(yield* Fiber.await(taking)))
      assert.isAtMost(descriptors(), before)
    }))

  it.scopedLive("says why none can be made", () =>
    Effect.gen(function*() {
      // So long a path that there is room below it for names of one digit.
      const longest = 4095
      const own = path.join(yield* scratch, `pipes-${Registry.owner()}-${randomUUID()}`, "0")
      let left = longest - own.length
      const parts: Array<string> = []
      while (left > 0) {
        const length = left > 250 ? 200 : left
        parts.push("x".repeat(length - 1))
        left -= length
      }
      const directory = path.join(yield* scratch, ...parts)
      const pipes = yield* Pipes.make({ directory: Effect.succeed(directory) })
      assert.strictEqual((yield* Effect.flip(pipes.take)).detail, "mkfifo failed: File name too long")
    }))

  it.scopedLive("closes what it holds, and gives none afterwards", () =>
    Effect.gen(function*() {
      const directory = yield* scratch
      const scope = yield* Scope.make()
      const pipes = yield* Scope.extend(Pipes.make({ directory: Effect.succeed(directory) }), scope)
      const before = descriptors()
      const { readEnd, writeEnd } = yield* pipes.take
      assert.isAbove(descriptors(), before + 2)
      yield* Scope.close(scope, Exit.void)
      // What was given away is its taker's.
      fs.writeSync(writeEnd, "kept")
      fs.closeSync(writeEnd)
      assert.strictEqual(fs.readFileSync(readEnd, "utf8"), "kept")
      fs.closeSync(readEnd)
      assert.strictEqual(descriptors(), before)
      assert.include((yield* Effect.flip(pipes.take)).detail, "closed")
      assert.deepStrictEqual(fs.readdirSync(directory), [])
    }))
})

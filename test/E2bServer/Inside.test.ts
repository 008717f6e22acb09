/** What our programs inside a sandbox may say when a guest has a hand on them, over a machine that is made up. */
import { assert, describe, it } from "@effect/vitest"
import * as Chunk from "effect/Chunk"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/TestClock"
import { Base64, lines, utf8 } from "../../src/E2bServer/Bytes.ts"
import * as Files from "../../src/E2bServer/Files.ts"
import * as Processes from "../../src/E2bServer/Processes.ts"
import * as Watchers from "../../src/E2bServer/Watchers.ts"
import { SandboxId } from "../../src/Sandbox.ts"
import type { MachineProvider, Program, Running } from "../../src/Sandbox/Machine.ts"

const sandboxId = SandboxId.make("made-up")

const silent: Running = {
  pid: 7,
  stdout: Stream.never,
  stderr: Stream.never,
  write: () => Effect.succeed(true),
  closeStdin: Effect.void,
  signal: () => Effect.void,
  letGo: Effect.void,
  ended: Effect.never
}

/** A machine on which every program is this one. */
const machineOf = (
  running: (program: Program) => Partial<Running>
): Context.Tag.Service<MachineProvider> => ({
  spawn: (_, program) => Effect.sync(() => ({ ...silent, ...running(program) })),
  usage: () => Effect.die("not asked")
})

const request = { path: "/tmp", recursive: false, includeEntry: false }

describe("E2bServer: base64", () => {
  const decode = Schema.decodeUnknownEither(Base64)

  it("is what it is, of any length", () => {
    for (const text of ["", "QQ", "QQ==", "QUI", "QUI=", "QUJD", "+/+/"]) {
      assert.isTrue(Either.isRight(decode(text)), text)
    }
    for (
      const text of ["=", "==", "A", "QQ=", "QUI==", "QUJD=", "QUJD====", "Q=Q=", "QQ==QQ==", "Q Q=", "QQ\n", "-_"]
    ) {
      assert.isTrue(Either.isLeft(decode(text)), text)
    }
    // Red where a group is repeated: the stack is over at four million letters.
    assert.strictEqual(Either.getOrThrow(decode("QUJD".repeat(3 * 2 ** 20))).length, 9 * 2 ** 20)
    assert.isTrue(Either.isLeft(decode(`${"QUJD".repeat(3 * 2 ** 20)}!`)))
  })
})

describe("E2bServer: lines", () => {
  it.effect("are cut, wherever the parts are", () =>
    Effect.gen(function*() {
      const found = yield* lines(Stream.make(utf8("a\nb"), utf8(""), utf8("c\n\n"), utf8("d")), {
        longest: 2,
        tooLong: "too long"
      }).pipe(Stream.runCollect)
      assert.deepStrictEqual(Chunk.toReadonlyArray(found), ["a", "bc", ""])
      for (const text of ["abc", "abc\n"]) {
        const error = yield* Effect.flip(
          Stream.runDrain(lines(Stream.make(utf8(text)), { longest: 2, tooLong: "too long" }))
        )
        assert.strictEqual(error, "too long")
      }
    }))
})

describe("E2bServer: files", () => {
  it.effect("a helper that is stopped is waited for no longer than a while, and the next request has another", () =>
    Effect.scoped(Effect.gen(function*() {
      let started = 0
      const files = yield* Files.make(
        machineOf(() => {
          started += 1
          return { write: () => Effect.never }
        }),
        sandboxId
      )
      for (const number of [1, 2]) {
        const asking = yield* Effect.fork(Effect.flip(files.stat("user", "/")))
        yield* TestClock.adjust("1 minute")
        assert.propertyVal(yield* Fiber.join(asking), "code", "unanswered")
        assert.strictEqual(started, number)
      }
    })))
})

describe("E2bServer: watchers", () => {
  const start = utf8("{\"start\":true}\n")
  const told = (name: string) => utf8(`${JSON.stringify({ event: { name, type: "EVENT_TYPE_WRITE" } })}\n`)

  it.effect("end at a line that is longer than any of theirs", () =>
    Effect.scoped(Effect.gen(function*() {
      let taken = 0
      const flood = Stream.map(Stream.forever(Stream.make(new Uint8Array(65536))), (part) => {
        taken += part.length
        return part
      })
      const watchers = yield* Watchers.make(
        machineOf(() => ({ stdout: Stream.concat(Stream.make(start), Stream.take(flood, 1000)) })),
        sandboxId
      )
      const events = yield* watchers.watch("user", request)
      assert.propertyVal(yield* Effect.flip(Stream.runDrain(events)), "code", "unanswered")
      assert.isAtMost(taken, 4 * 65536)
    })))

  it.effect("remember a bounded number of bytes of what nobody has asked for", () =>
    Effect.scoped(Effect.gen(function*() {
      const whole = yield* Effect.makeLatch()
      const many = Stream.map(Stream.range(0, 199), (n) => told(`${n}-${"x".repeat(50_000)}`))
      const watchers = yield* Watchers.make(
        machineOf(() => ({
          stdout: Stream.make(start).pipe(
            Stream.concat(many),
            Stream.concat(Stream.execute(whole.open)),
            Stream.concat(Stream.never)
          )
        })),
        sandboxId
      )
      const watcher = yield* watchers.create("user", request)
      yield* whole.await
      const events = Option.getOrThrow(yield* watchers.take(watcher))
      assert.isAtLeast(events.length, 10)
      assert.isAtMost(events.reduce((size, { name }) => size + name.length, 0), 2 ** 20)
      assert.match(events.at(-1)?.name ?? "", /^199-/)
      assert.deepStrictEqual(Option.getOrThrow(yield* watchers.take(watcher)), [])
    })))

  it.effect("are no more than there may be, and make room when they end", () =>
    Effect.scoped(Effect.gen(function*() {
      const watchers = yield* Watchers.make(
        machineOf(() => ({ stdout: Stream.concat(Stream.make(start), Stream.never) })),
        sandboxId
      )
      const [first = ""] = yield* Effect.replicateEffect(watchers.create("user", request), 32)
      assert.propertyVal(yield* Effect.flip(watchers.create("user", request)), "code", "resource_exhausted")
      assert.isTrue(yield* watchers.remove(first))
      yield* watchers.create("user", request)
      assert.propertyVal(
        yield* Effect.flip(Effect.scoped(watchers.watch("user", request))),
        "code",
        "resource_exhausted"
      )
    })))
})

describe("E2bServer: the pid of a terminal", () => {
  const spec: Processes.Spec = {
    config: { cmd: "bash", args: [], envs: {} },
    tag: undefined,
    user: "user",
    environment: {},
    directory: "/",
    stdin: true,
    size: undefined,
    timeLimit: Option.none()
  }
  const size = { cols: 80, rows: 24 }

  const processesOf = (says: string) =>
    Processes.make({
      machine: machineOf(() => ({ stderr: Stream.concat(Stream.make(utf8(says)), Stream.never) })),
      sandboxId,
      isSandboxAlive: Effect.succeed(true)
    })

  it.effect("is one that a process can have", () =>
    Effect.scoped(Effect.gen(function*() {
      for (const says of ["0\n", "-1\n", "x\n", "1e3\n", "4194304\n", "99999999999999999999\n", "8".repeat(100)]) {
        const processes = yield* processesOf(says)
        const refused = yield* Effect.flip(Effect.scoped(processes.start({ ...spec, size })))
        assert.propertyVal(refused, "reason", "ended", says)
        assert.deepStrictEqual(yield* processes.list, [])
      }
      const processes = yield* processesOf("12\n")
      assert.strictEqual((yield* processes.start({ ...spec, size })).pid, 12)
    })))

  it.effect("isn't that of another program", () =>
    Effect.scoped(Effect.gen(function*() {
      const processes = yield* processesOf("7\n")
      yield* processes.start({ ...spec, tag: "first" })
      const refused = yield* Effect.flip(Effect.scoped(processes.start({ ...spec, size })))
      assert.propertyVal(refused, "reason", "ended")
      assert.deepStrictEqual((yield* processes.list).map(({ pid, tag }) => [pid, tag]), [[7, "first"]])
    })))

  it.effect("is waited for no longer than a while", () =>
    Effect.scoped(Effect.gen(function*() {
      const processes = yield* processesOf("")
      const starting = yield* Effect.fork(Effect.flip(Effect.scoped(processes.start({ ...spec, size }))))
      yield* TestClock.adjust("1 minute")
      assert.propertyVal(yield* Fiber.join(starting), "reason", "ended")
    })))
})

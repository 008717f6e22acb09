import { assert, describe, it } from "@effect/vitest"
import { Duration, Effect, Exit, Fiber, TestClock } from "effect"
import type { SandboxSpec } from "../../src/Sandbox.ts"
import { FileRead, SandboxId, SandboxProvider } from "../../src/Sandbox.ts"
import * as Simulated from "../../src/Sandbox/Simulated.ts"
import { SandboxPath } from "../../src/Task.ts"

const { Fault, World } = Simulated

const spec: SandboxSpec = {
  role: "policy",
  lifetime: Duration.minutes(1),
  network: "default",
  labels: { "episode.test": "simulated" }
}

const limits = { timeLimit: Duration.seconds(10), outputCap: 100 }

const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes)

const create = Effect.flatMap(SandboxProvider, (provider) => provider.create(spec))

/** What a command in a new sandbox prints, and how it ends. */
const sh = (command: string, options: Simulated.Options = {}) =>
  Effect.gen(function*() {
    const sandbox = yield* create
    const { exitCode, stderr, stdout } = yield* sandbox.exec(command, limits)
    return { stdout: text(stdout.head) + text(stdout.tail), stderr: text(stderr.head) + text(stderr.tail), exitCode }
  }).pipe(Effect.provide(Simulated.layer(options)))

const simulated =
  (options: Simulated.Options = {}) => <A, E>(test: Effect.Effect<A, E, SandboxProvider | Simulated.World>) =>
    Effect.provide(test, Simulated.layer(options))

describe("the shell", () => {
  const lines: ReadonlyArray<readonly [command: string, stdout: string, exitCode: number]> = [
    ["echo 'a b'  c", "a b c\n", 0],
    ["echo \"a \\\"b\\\"\" 'it'\\''s'", "a \"b\" it's\n", 0],
    ["false && echo no; echo yes", "yes\n", 0],
    ["echo no >/dev/null\nexit 3; echo never", "", 3],
    ["cat > a <<'END'\n  x = \"$HOME\"\nEND\ncat a", "  x = \"$HOME\"\n", 0],
    ["echo text > /tmp/a && cat < /tmp/a", "text\n", 0],
    ["cd /tmp && echo here > a && cat /tmp/a", "here\n", 0],
    [
      "cd '/home/user' && exec 'cat' 'nothing' </dev/null >/tmp/out 2>/tmp/err; cat /tmp/err",
      "cat: nothing: No such file or directory\n",
      0
    ],
    ["ln -s /tmp/a b; echo through > /tmp/a; cat b", "through\n", 0],
    ["echo x > /no/where", "", 1],
    ["rm -rf /home/user; cd /home/user", "", 1],
    ["ls", "", 127],
    ["echo a | cat", "", 127],
    ["python3 nothing.py", "", 2]
  ]
  for (const [command, stdout, exitCode] of lines) {
    it.effect(JSON.stringify(command), () =>
      Effect.gen(function*() {
        const ended = yield* sh(command)
        assert.deepStrictEqual({ stdout: ended.stdout, exitCode: ended.exitCode }, { stdout, exitCode })
      }))
  }

  it.effect("runs the programs it was told of, on the files there are", () =>
    Effect.gen(function*() {
      const programs = new Map<string, Simulated.Program>([
        ["print(open('a').read())\n", (files) => ({ stdout: files.read("/home/user/a"), stderr: "done" })]
      ])
      const ended = yield* sh("echo data > a; cat > p.py <<END\nprint(open('a').read())\nEND\npython3 -B p.py", {
        programs
      })
      assert.deepStrictEqual(ended, { stdout: "data\n", stderr: "done", exitCode: 0 })
      assert.strictEqual((yield* sh("echo unknown > p.py; python3 p.py", { programs })).exitCode, 127)
    }))

  it.effect("may be one of your own", () =>
    Effect.gen(function*() {
      const ended = yield* sh("anything", { shell: (command) => ({ stdout: command.toUpperCase(), exitCode: 9 }) })
      assert.deepStrictEqual(ended, { stdout: "ANYTHING", stderr: "", exitCode: 9 })
    }))
})

describe("files", () => {
  const answers: ReadonlyArray<readonly [command: string, answer: FileRead["_tag"]]> = [
    ["true", "Missing"],
    ["echo short > file", "Bytes"],
    ["head -c 11 /dev/zero > file", "TooLarge"],
    ["mkdir file", "NotRegular"],
    ["mkfifo file", "NotRegular"],
    ["ln -s /etc/passwd file", "NotRegular"],
    ["echo x > file; chmod 000 file", "Unreadable"]
  ]
  for (const [command, answer] of answers) {
    it.effect(`${command}: ${answer}`, () =>
      simulated()(Effect.gen(function*() {
        const sandbox = yield* create
        yield* sandbox.exec(command, limits)
        const read = yield* sandbox.readFile(SandboxPath.make("/home/user/file"), { maxBytes: 10 })
        assert.strictEqual(read._tag, answer)
      })))
  }

  it.effect("aren't reached through a link on the way", () =>
    simulated()(Effect.gen(function*() {
      const sandbox = yield* create
      yield* sandbox.exec("mkdir real; echo x > real/file; ln -s real way", limits)
      const read = (path: string) => sandbox.readFile(SandboxPath.make(path), { maxBytes: 10 })
      assert.deepStrictEqual(yield* read("/home/user/way/file"), FileRead.NotRegular())
      assert.strictEqual((yield* read("/home/user/real/file"))._tag, "Bytes")
    })))

  it.effect("are written with their parents, and the world keeps what was received", () =>
    simulated()(Effect.gen(function*() {
      const sandbox = yield* create
      const path = SandboxPath.make("/srv/a/b")
      yield* sandbox.writeFiles([{ path, bytes: Uint8Array.of(1) }])
      yield* sandbox.writeFiles([{ path, bytes: Uint8Array.of(2) }])
      const [record] = yield* (yield* World).sandboxes
      assert.deepStrictEqual(record?.files.get(path), Uint8Array.of(2))
      assert.deepStrictEqual(record?.received.map(({ bytes }) => [...bytes]), [[1], [2]])
    })))
})

describe("time is the Clock's", () => {
  it.effect("a command takes its time, and is killed at its limit", () =>
    simulated()(Effect.gen(function*() {
      const sandbox = yield* create
      const quick = yield* Effect.fork(sandbox.exec("sleep 9; echo done", limits))
      const endless = yield* Effect.fork(sandbox.exec("echo begun; sleep infinity", limits))
      yield* TestClock.adjust("9 seconds")
      assert.strictEqual((yield* Fiber.join(quick)).exitCode, 0)
      assert.isNull(endless.unsafePoll())
      yield* TestClock.adjust("1 second")
      assert.deepInclude(yield* Fiber.join(endless), { exitCode: 137, killedAtLimit: true })
    })))

  it.effect("a sandbox ends with its lifetime, which may be extended", () =>
    simulated()(Effect.gen(function*() {
      const [one, other] = [yield* create, yield* create]
      yield* TestClock.adjust("59 seconds")
      yield* other.extend(Duration.minutes(5))
      yield* TestClock.adjust("1 second")
      assert.deepInclude(yield* Effect.flip(one.health), { _tag: "SandboxLost", reason: "expired" })
      yield* other.health
      const { inspect } = yield* SandboxProvider
      assert.strictEqual(yield* inspect(one.id), "absent")
      assert.strictEqual(yield* inspect(other.id), "running")
      assert.deepStrictEqual((yield* (yield* World).running).map(({ id }) => id), [other.id])
    })))

  it.effect("a running command ends with its sandbox, as a fault", () =>
    simulated()(Effect.gen(function*() {
      const [one, other] = [yield* create, yield* create]
      yield* TestClock.adjust("55 seconds")
      const deleted = yield* Effect.fork(Effect.flip(one.exec("sleep infinity", limits)))
      const expired = yield* Effect.fork(Effect.flip(other.exec("sleep infinity", limits)))
      yield* TestClock.adjust("1 second")
      yield* Effect.flatMap(SandboxProvider, ({ destroy }) => destroy(one.id))
      assert.deepInclude(yield* Fiber.join(deleted), { _tag: "SandboxLost", reason: "absent" })
      yield* TestClock.adjust("4 seconds")
      assert.deepInclude(yield* Fiber.join(expired), { _tag: "SandboxLost", reason: "expired" })
    })))
})

describe("the provider", () => {
  it.effect("finds sandboxes by all of their labels, and attaches to them", () =>
    simulated()(Effect.gen(function*() {
      const provider = yield* SandboxProvider
      const sandbox = yield* create
      yield* provider.create({ ...spec, labels: { "episode.test": "other" } })
      const found = yield* provider.find(spec.labels)
      assert.deepStrictEqual(found, [{ id: sandbox.id, labels: spec.labels }])
      const attached = yield* provider.attach(sandbox.id, "policy")
      yield* attached.exec("echo x > shared", limits)
      assert.strictEqual((yield* sandbox.exec("cat shared", limits)).stdout.totalBytes, 2)
      yield* provider.destroy(sandbox.id)
      yield* provider.destroy(sandbox.id)
      assert.deepStrictEqual(yield* provider.find(spec.labels), [])
      assert.strictEqual((yield* Effect.flip(provider.attach(sandbox.id, "policy")))._tag, "SandboxLost")
      assert.strictEqual(yield* provider.inspect(SandboxId.make("never-was")), "absent")
    })))

  it.effect("gives a network only where it was asked for and allowed", () =>
    Effect.gen(function*() {
      const networks = (network: boolean) =>
        simulated({ network })(Effect.gen(function*() {
          const provider = yield* SandboxProvider
          yield* provider.create(spec)
          yield* provider.create({ ...spec, network: "offline" })
          return (yield* (yield* World).sandboxes).map((one) => one.network)
        }))
      assert.deepStrictEqual(yield* networks(true), [true, false])
      assert.deepStrictEqual(yield* networks(false), [false, false])
    }))
})

describe("faults", () => {
  const health = (fault: Simulated.Fault) =>
    simulated({ faults: Simulated.atCalls({ 2: fault }) })(
      Effect.gen(function*() {
        const sandbox = yield* create
        const exit = yield* Effect.exit(sandbox.health)
        return Exit.isFailure(exit) && exit.cause._tag === "Fail" ? exit.cause.error._tag : exit._tag
      })
    )

  it.effect("are what they are called", () =>
    Effect.gen(function*() {
      assert.strictEqual(yield* health(Fault.Refused()), "TransportFailed")
      assert.strictEqual(yield* health(Fault.ReplyLost({ effect: true })), "TransportFailed")
      assert.strictEqual(yield* health(Fault.Malformed()), "ProtocolViolation")
      assert.strictEqual(yield* health(Fault.Lost({ reason: "absent" })), "SandboxLost")
      assert.strictEqual(yield* health(Fault.NotDone()), "Success")
      assert.strictEqual(yield* health(Fault.Dies({ effect: false })), "Failure")
    }))

  const written = (fault: Simulated.Fault) =>
    simulated({ faults: Simulated.atCalls({ 2: fault }) })(
      Effect.gen(function*() {
        const sandbox = yield* create
        const path = SandboxPath.make("/tmp/a")
        // No child: one that can't be interrupted would hold up the end of the test.
        const fiber = yield* Effect.forkDaemon(sandbox.writeFiles([{ path, bytes: Uint8Array.of(1) }]))
        yield* TestClock.adjust("1 second")
        const answered = fiber.unsafePoll() !== null
        yield* Fiber.interruptFork(fiber)
        const [record] = yield* (yield* World).sandboxes
        return { answered, written: record?.files.has(path) }
      })
    )

  it.effect("have their effect, or not", () =>
    Effect.gen(function*() {
      const [yes, no] = [{ answered: true, written: true }, { answered: true, written: false }]
      assert.deepStrictEqual(yield* written(Fault.ReplyLost({ effect: true })), yes)
      assert.deepStrictEqual(yield* written(Fault.ReplyLost({ effect: false })), no)
      assert.deepStrictEqual(yield* written(Fault.Malformed()), yes)
      assert.deepStrictEqual(yield* written(Fault.Refused()), no)
      assert.deepStrictEqual(yield* written(Fault.Late({ by: "2 seconds" })), { answered: false, written: true })
      for (const interruptible of [true, false]) {
        assert.deepStrictEqual(yield* written(Fault.Hangs({ effect: true, interruptible })), {
          answered: false,
          written: true
        })
        assert.deepStrictEqual(yield* written(Fault.Hangs({ effect: false, interruptible })), {
          answered: false,
          written: false
        })
      }
    }))

  it.effect("are known to the world, and nobody else", () =>
    simulated({ faults: ({ operation }) => operation === "destroy" ? Fault.NotDone() : undefined })(
      Effect.gen(function*() {
        const provider = yield* SandboxProvider
        const sandbox = yield* create
        yield* provider.destroy(sandbox.id)
        assert.strictEqual(yield* provider.inspect(sandbox.id), "running")
        const world = yield* World
        assert.deepStrictEqual(
          (yield* world.calls).map(({ fault, number, operation, result }) => [number, operation, result, fault]),
          [[1, "create", "ok", undefined], [2, "destroy", "ok", "NotDone"], [3, "inspect", "ok", undefined]]
        )
        yield* world.lose(sandbox.id, "absent")
        assert.strictEqual(yield* provider.inspect(sandbox.id), "absent")
        assert.strictEqual((yield* world.sandboxes)[0]?.ended?.how, "lost")
      })
    ))

  it.effect("a request can be stopped where it begins", () =>
    simulated({ onCall: ({ operation }) => operation === "exec" ? Effect.never : Effect.void })(
      Effect.gen(function*() {
        const sandbox = yield* create
        const fiber = yield* Effect.fork(sandbox.exec("echo", limits))
        yield* Effect.yieldNow()
        yield* Fiber.interrupt(fiber)
        const world = yield* World
        assert.strictEqual((yield* world.calls)[1]?.result, "interrupted")
        assert.deepStrictEqual((yield* world.sandboxes)[0]?.commands, [])
      })
    ))
})

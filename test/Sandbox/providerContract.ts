/**
 * What every provider must do, whatever its sandboxes are made of.
 */
import { assert, describe, layer as withLayer } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import {
  type CapturedOutput,
  type CreateFault,
  FileRead,
  type Sandbox,
  SandboxId,
  SandboxLost,
  SandboxProvider,
  type SandboxSpec
} from "../../src/Sandbox.ts"
import { SandboxPath } from "../../src/Task.ts"

/** All of a stream that wasn't cut. */
export const text = (output: CapturedOutput): string => {
  assert.strictEqual(output.head.length + output.tail.length, output.totalBytes, "the output was cut")
  return Buffer.concat([output.head, output.tail]).toString()
}

export const at = (path: string): SandboxPath => SandboxPath.make(path)

export const utf8 = (content: string): Uint8Array => new TextEncoder().encode(content)

export const policy: SandboxSpec = {
  role: "policy",
  lifetime: Duration.minutes(2),
  network: "default",
  labels: { "episode.test": "contract" }
}

/** A sandbox that is deleted with the scope. */
export const sandbox = (
  spec: Partial<SandboxSpec> = {}
): Effect.Effect<Sandbox, CreateFault, SandboxProvider | Scope.Scope> =>
  Effect.flatMap(
    SandboxProvider,
    (provider) =>
      Effect.acquireRelease(provider.create({ ...policy, ...spec }), ({ id }) => Effect.orDie(provider.destroy(id)))
  )

export const limits = { timeLimit: Duration.seconds(10), outputCap: 64 * 1024 }

/** Runs a command that is expected to succeed; what it printed. */
export const sh = (machine: Sandbox, command: string) =>
  Effect.map(machine.exec(command, limits), ({ exitCode, stderr, stdout }) => {
    assert.strictEqual(exitCode, 0, `${command}: ${text(stdout)}${text(stderr)}`)
    return text(stdout)
  })

export const read = (machine: Sandbox, path: string, maxBytes = 1024) => machine.readFile(at(path), { maxBytes })

/** Asks again until the answer is yes, but not for ever. */
export const eventually = <E, R>(question: Effect.Effect<boolean, E, R>, what: string) =>
  question.pipe(
    Effect.repeat({
      until: (yes) => yes,
      schedule: Schedule.intersect(Schedule.spaced("20 millis"), Schedule.recurs(1500))
    }),
    // The schedule's own value when it ran out: ask for the last time.
    Effect.andThen(question),
    Effect.map((yes) => assert.isTrue(yes, what))
  )

const isLost = (reasons: ReadonlyArray<SandboxLost["reason"]>) => (error: unknown) => {
  assert.instanceOf(error, SandboxLost)
  assert.include(reasons, error.reason)
}

/** Every request to a sandbox that isn't there fails as lost. */
const assertLost = (machine: Sandbox, ...reasons: ReadonlyArray<SandboxLost["reason"]>) =>
  Effect.forEach([
    machine.exec("true", limits),
    read(machine, "/home/user/source"),
    machine.writeFiles([{ path: at("/home/user/late"), bytes: utf8("late") }]),
    machine.health,
    machine.extend(Duration.minutes(1))
  ], (request) =>
    Effect.map(Effect.flip<unknown, SandboxLost | { readonly _tag: string }, never>(request), isLost(reasons)))

export const providerContract = <E>(
  label: string,
  layer: Layer.Layer<SandboxProvider, E>,
  options: { readonly timeout?: number } = {}
): void => {
  const timeout = options.timeout ?? 60_000
  withLayer(layer, { excludeTestServices: true, timeout })(`${label}: provider contract`, (it) => {
    describe("create", () => {
      it.scoped("gives a running sandbox with an id of its own and the resources it has", () =>
        Effect.gen(function*() {
          const provider = yield* SandboxProvider
          const one = yield* sandbox()
          const other = yield* sandbox({ role: "verifier", network: "offline" })
          assert.notStrictEqual(one.id, other.id)
          assert.deepStrictEqual([one.role, other.role], ["policy", "verifier"])
          assert.isAbove(one.resources.cpuCount, 0)
          assert.isAbove(one.resources.memoryMiB, 0)
          yield* one.health
          assert.strictEqual(yield* provider.inspect(one.id), "running")
        }), timeout)

      it.scoped("may be interrupted at any moment", () =>
        Effect.gen(function*() {
          const provider = yield* SandboxProvider
          const labels = { "episode.test": `interrupted-${process.pid}` }
          yield* Effect.forEach([0, 3, 9, 16, 27], (delay) =>
            Effect.gen(function*() {
              const creating = yield* Effect.fork(provider.create({ ...policy, labels }))
              yield* Effect.sleep(delay)
              const exit = yield* Fiber.interrupt(creating)
              yield* exit._tag === "Success" ? provider.destroy(exit.value.id) : Effect.void
            }))
          assert.deepStrictEqual(yield* provider.find(labels), [])
        }), timeout)
    })

    describe("exec", () => {
      it.scoped("runs a fresh bash as user in /home/user, with an empty input", () =>
        Effect.gen(function*() {
          const machine = yield* sandbox()
          assert.strictEqual(
            yield* sh(machine, "id -un; pwd; echo $HOME; cat; [[ -n $BASH_VERSION ]] && echo bash"),
            "user\n/home/user\n/home/user\nbash\n"
          )
          yield* sh(machine, "cd /tmp; variable=1; echo kept >file")
          assert.strictEqual(yield* sh(machine, "pwd; echo \"[$variable]\"; cat /tmp/file"), "/home/user\n[]\nkept\n")
        }), timeout)

      it.scoped("keeps the streams apart", () =>
        Effect.gen(function*() {
          const machine = yield* sandbox()
          const { stderr, stdout } = yield* machine.exec("echo out; echo err >&2; echo more >/dev/stdout", limits)
          assert.deepStrictEqual([text(stdout), text(stderr)], ["out\nmore\n", "err\n"])
        }), timeout)

      it.scoped("reports every exit code as it is, and a signal as a shell does", () =>
        Effect.gen(function*() {
          const machine = yield* sandbox()
          for (const code of [0, 1, 7, 120, 121, 122, 123, 124, 125, 137, 255]) {
            const result = yield* machine.exec(`exit ${code}`, limits)
            assert.deepStrictEqual([result.exitCode, result.killedAtLimit], [code, false])
          }
          assert.strictEqual((yield* machine.exec("kill -TERM $$", limits)).exitCode, 143)
          assert.strictEqual((yield* machine.exec("kill -KILL $$", limits)).exitCode, 137)
          assert.strictEqual((yield* machine.exec("no-such-command", limits)).exitCode, 127)
        }), timeout)

      it.scoped("kills a command at its limit, deaf to signals or stopped as it may be", () =>
        Effect.gen(function*() {
          const machine = yield* sandbox()
          const timeLimit = Duration.millis(300)
          const commands = [
            "echo before; sleep 100",
            "echo before; trap '' TERM INT HUP; while :; do :; done",
            "echo before; kill -STOP $$",
            "echo before; kill -STOP 0",
            "echo before; set -m; sleep 100 & wait"
          ]
          for (const command of commands) {
            const result = yield* machine.exec(command, { ...limits, timeLimit })
            assert.deepStrictEqual([result.exitCode, result.killedAtLimit], [137, true], command)
            assert.strictEqual(text(result.stdout), "before\n")
          }
          yield* eventually(
            Effect.map(machine.exec("pgrep -f '^sleep 100'", limits), ({ exitCode }) => exitCode === 1),
            "nothing of a killed command goes on"
          )
        }), timeout)

      it.scoped("keeps head and tail of a flood and counts the rest", () =>
        Effect.gen(function*() {
          const machine = yield* sandbox()
          const { stderr, stdout } = yield* machine.exec(
            "echo first; head -c 3000000 /dev/zero; echo last; printf err >&2",
            { ...limits, outputCap: 1000 }
          )
          assert.strictEqual(stdout.totalBytes, 3_000_011)
          assert.deepStrictEqual([stdout.head.length, stdout.tail.length], [500, 500])
          assert.strictEqual(Buffer.from(stdout.head).subarray(0, 6).toString(), "first\n")
          assert.strictEqual(Buffer.from(stdout.tail).subarray(-5).toString(), "last\n")
          assert.strictEqual(text(stderr), "err")
        }), timeout)

      it.scoped("passes bytes on that aren't text", () =>
        Effect.gen(function*() {
          const machine = yield* sandbox()
          const { stdout } = yield* machine.exec("printf '\\377\\000\\200'", limits)
          assert.deepStrictEqual([...stdout.head, ...stdout.tail], [255, 0, 128])
        }), timeout)

      it.scoped("takes commands of any length and any characters", () =>
        Effect.gen(function*() {
          const machine = yield* sandbox()
          const long = "a".repeat(300_000)
          assert.strictEqual(yield* sh(machine, `x='${long}'; echo \${#x}; cat`), "300000\n")
          assert.strictEqual(yield* sh(machine, "echo 'ü \"$x\" \\n'"), "ü \"$x\" \\n\n")
          assert.strictEqual(text((yield* machine.exec("echo a\0b", limits)).stdout), "ab\n")
        }), timeout)

      it.scoped("doesn't wait for what a command leaves in the background", () =>
        Effect.gen(function*() {
          const machine = yield* sandbox()
          const { exitCode, killedAtLimit, stdout } = yield* machine.exec("sleep 100 & head -c 60000 /dev/zero", limits)
          assert.deepStrictEqual([exitCode, killedAtLimit, stdout.totalBytes], [0, false, 60_000])
          assert.strictEqual(yield* sh(machine, "pgrep -cf '^sleep 100'"), "1\n")
        }), timeout)

      it.scoped(
        "takes whatever a command does to its processes and streams for a result",
        () =>
          Effect.gen(function*() {
            const machine = yield* sandbox()
            assert.strictEqual((yield* machine.exec("kill -9 -1; echo alive", limits)).exitCode, 137)
            assert.strictEqual((yield* machine.exec("exec >&- 2>&-; exit 3", limits)).exitCode, 3)
            yield* machine.exec("kill -9 $PPID; kill -9 0", limits)
            yield* machine.exec("rm -rf /home/user /tmp/* ~/.* 2>/dev/null", limits)
            yield* machine.health
            assert.strictEqual((yield* machine.exec("echo fine", limits)).exitCode, 0)
          }),
        timeout
      )

      it.scoped("may be interrupted, which ends the command", () =>
        Effect.gen(function*() {
          const machine = yield* sandbox()
          const running = yield* Effect.fork(machine.exec("touch started; sleep 100", limits))
          yield* eventually(
            Effect.map(read(machine, "/home/user/started"), FileRead.$is("Bytes")),
            "the command started"
          )
          yield* Fiber.interrupt(running)
          yield* eventually(
            Effect.map(machine.exec("pgrep -f '^sleep 100'", limits), ({ exitCode }) => exitCode === 1),
            "the command ended"
          )
        }), timeout)

      it.scoped("runs several commands at once", () =>
        Effect.gen(function*() {
          const machine = yield* sandbox()
          const found = yield* Effect.forEach([1, 2, 3, 4, 5, 6], (n) => sh(machine, `sleep 0.05; echo ${n}`), {
            concurrency: "unbounded"
          })
          assert.strictEqual(found.join(""), "1\n2\n3\n4\n5\n6\n")
        }), timeout)
    })

    describe("files", () => {
      it.scoped(
        "are created or replaced with their parents, content and mode, and are the user's",
        () =>
          Effect.gen(function*() {
            const machine = yield* sandbox()
            const odd = `/home/user/${"d".repeat(120)}/ü ñ\n'"$x`
            yield* sh(machine, "mkfifo pipe; ln -s /etc/passwd link; echo old >old; chmod 600 old")
            yield* machine.writeFiles([
              { path: at("/home/user/a/b/plain"), bytes: utf8("plain") },
              { path: at("/home/user/empty"), bytes: new Uint8Array() },
              { path: at("/tmp/run"), bytes: utf8("#!/bin/sh\necho ran"), mode: 0o755 },
              { path: at("/home/user/pipe"), bytes: utf8("was a pipe") },
              { path: at("/home/user/link"), bytes: utf8("was a link") },
              { path: at("/home/user/old"), bytes: utf8("new") },
              { path: at(odd), bytes: Uint8Array.of(0, 255, 10) }
            ])
            assert.strictEqual(
              yield* sh(
                machine,
                "stat -c '%a %U %F' a/b/plain empty /tmp/run pipe link old; /tmp/run; echo >>a/b/plain"
              ),
              [
                "644 user regular file",
                "644 user regular empty file",
                "755 user regular file",
                "644 user regular file",
                "644 user regular file",
                "644 user regular file",
                "ran",
                ""
              ].join("\n")
            )
            assert.deepStrictEqual(yield* read(machine, odd), FileRead.Bytes({ bytes: Uint8Array.of(0, 255, 10) }))
            assert.deepStrictEqual(yield* read(machine, "/home/user/old"), FileRead.Bytes({ bytes: utf8("new") }))
          }),
        timeout
      )

      it.scoped("are read up to a cap and never beyond", () =>
        Effect.gen(function*() {
          const machine = yield* sandbox()
          yield* sh(machine, "printf 12345 >five; : >empty; truncate -s 100M large")
          assert.deepStrictEqual(yield* read(machine, "/home/user/five", 5), FileRead.Bytes({ bytes: utf8("12345") }))
          assert.deepStrictEqual(yield* read(machine, "/home/user/five", 4), FileRead.TooLarge())
          assert.deepStrictEqual(
            yield* read(machine, "/home/user/empty"),
            FileRead.Bytes({ bytes: new Uint8Array() })
          )
          assert.deepStrictEqual(yield* read(machine, "/home/user/large", 65_536), FileRead.TooLarge())
        }), timeout)

      it.scoped("are regular files, or else an answer that says so", () =>
        Effect.gen(function*() {
          const machine = yield* sandbox()
          yield* sh(
            machine,
            "mkdir dir; echo x >dir/file; mkfifo pipe; ln -s dir/file link; ln -s dir dirlink; ln -s self self; "
              + "ln -s /proc/self/environ environ; ln -s /nowhere dangling; ln -s / root; "
              + "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'"
          )
          const notRegular = [
            ...["dir", "pipe", "link", "dirlink/file", "self", "environ", "dangling", "root/etc/passwd", "socket"].map(
              (name) => `/home/user/${name}`
            ),
            ...["/dev/zero", "/dev/null", "/dev/stdin", "/proc/self/environ"]
          ]
          for (const path of notRegular) {
            assert.deepStrictEqual(yield* read(machine, path), FileRead.NotRegular(), path)
          }
          for (const path of ["/home/user/none", "/home/user/none/below", "/home/user/dir/file/below", "/none"]) {
            assert.deepStrictEqual(yield* read(machine, path), FileRead.Missing(), path)
          }
        }), timeout)

      it.scoped("are unreadable where the sandbox's own user may not read them", () =>
        Effect.gen(function*() {
          const machine = yield* sandbox()
          yield* sh(
            machine,
            "mkdir closed hidden; echo x | tee shut closed/file hidden/file; chmod 000 shut closed; chmod 311 hidden"
          )
          assert.deepStrictEqual(yield* read(machine, "/home/user/shut"), FileRead.Unreadable())
          assert.deepStrictEqual(yield* read(machine, "/home/user/closed/file"), FileRead.Unreadable())
          // It can't be listed, but what is in it can be read.
          assert.deepStrictEqual(yield* read(machine, "/home/user/hidden/file"), FileRead.Bytes({ bytes: utf8("x\n") }))
        }), timeout)
    })

    describe("the end", () => {
      it.scoped("is proven, and every later request is lost", () =>
        Effect.gen(function*() {
          const provider = yield* SandboxProvider
          const machine = yield* sandbox()
          yield* machine.exec("setsid sleep 100 & (sleep 100 &); sleep 100 & kill -STOP $!", limits)
          yield* provider.destroy(machine.id)
          yield* eventually(Effect.map(provider.inspect(machine.id), (found) => found === "absent"), "absent")
          yield* provider.destroy(machine.id)
          yield* assertLost(machine, "absent")
          assert.instanceOf(yield* Effect.flip(provider.attach(machine.id, "policy")), SandboxLost)
        }), timeout)

      it.scoped("reaches a running command as a fault and not as a result", () =>
        Effect.gen(function*() {
          const provider = yield* SandboxProvider
          const machine = yield* sandbox()
          const running = yield* Effect.fork(Effect.flip(machine.exec("touch started; sleep 100", limits)))
          yield* eventually(
            Effect.map(read(machine, "/home/user/started"), FileRead.$is("Bytes")),
            "the command started"
          )
          yield* provider.destroy(machine.id)
          isLost(["absent"])(yield* Fiber.join(running))
        }), timeout)

      it.scoped("of what never was is a success", () =>
        Effect.gen(function*() {
          const provider = yield* SandboxProvider
          const unknown = SandboxId.make("sbx-000neverwas0000")
          yield* provider.destroy(unknown)
          assert.strictEqual(yield* provider.inspect(unknown), "absent")
          assert.instanceOf(yield* Effect.flip(provider.attach(unknown, "policy")), SandboxLost)
        }), timeout)

      it.scoped("comes with the end of the lifetime", () =>
        Effect.gen(function*() {
          const provider = yield* SandboxProvider
          const machine = yield* sandbox({ lifetime: Duration.seconds(1) })
          yield* eventually(Effect.map(provider.inspect(machine.id), (found) => found === "absent"), "absent")
          yield* assertLost(machine, "absent", "expired")
        }), timeout)

      it.scoped("is put off by an extension", () =>
        Effect.gen(function*() {
          const provider = yield* SandboxProvider
          const machine = yield* sandbox({ lifetime: Duration.seconds(1) })
          yield* machine.extend(Duration.minutes(1))
          assert.strictEqual(yield* sh(machine, "sleep 1.5; echo alive"), "alive\n")
          assert.strictEqual(yield* provider.inspect(machine.id), "running")
        }), timeout)
    })

    describe("other handles", () => {
      it.scoped("are found by their labels, all of them", () =>
        Effect.gen(function*() {
          const provider = yield* SandboxProvider
          const run = `find-${process.pid}`
          const one = yield* sandbox({ labels: { run, kind: "one" } })
          const other = yield* sandbox({ labels: { run, kind: "other" } })
          const ids = (labels: Record<string, string>) =>
            Effect.map(provider.find(labels), (found) => found.map(({ id }) => id).toSorted())
          assert.deepStrictEqual(yield* ids({ run }), [one.id, other.id].toSorted())
          assert.deepStrictEqual(yield* provider.find({ run, kind: "one" }), [
            { id: one.id, labels: { run, kind: "one" } }
          ])
          assert.deepStrictEqual(yield* ids({ run, kind: "none" }), [])
          yield* provider.destroy(one.id)
          assert.deepStrictEqual(yield* ids({ run }), [other.id])
        }), timeout)

      it.scoped("are the same sandbox", () =>
        Effect.gen(function*() {
          const provider = yield* SandboxProvider
          const machine = yield* sandbox()
          const attached = yield* provider.attach(machine.id, "policy")
          assert.deepStrictEqual([attached.id, attached.role, attached.resources], [
            machine.id,
            "policy",
            machine.resources
          ])
          yield* sh(attached, "echo shared >file")
          assert.strictEqual(yield* sh(machine, "cat file"), "shared\n")
          yield* attached.extend(Duration.minutes(3))
          yield* provider.destroy(machine.id)
          yield* assertLost(attached, "absent")
        }), timeout)
    })

    describe("the network", () => {
      it.scoped("is loopback alone in an offline sandbox", () =>
        Effect.gen(function*() {
          const machine = yield* sandbox({ role: "verifier", network: "offline" })
          const program = [
            "import socket",
            "own = socket.create_server(('127.0.0.1', 0))",
            "socket.create_connection(own.getsockname(), 2)",
            "for host in ('1.1.1.1', '169.254.169.254'):",
            "  try: socket.create_connection((host, 80), 2); print('reached', host)",
            "  except OSError: pass"
          ].join("\n")
          assert.strictEqual(yield* sh(machine, `python3 -c "${program}"`), "")
        }), timeout)
    })
  })
}

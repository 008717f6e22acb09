import { assert, layer as withLayer } from "@effect/vitest"
import * as Data from "effect/Data"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import { build } from "esbuild"
import { spawn, spawnSync } from "node:child_process"
import { randomUUID } from "node:crypto"
import { once } from "node:events"
import * as fs from "node:fs"
import * as net from "node:net"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { afterAll, beforeAll, it as vitestIt } from "vitest"
import { FileRead, SandboxId, SandboxProvider, SandboxUnavailable } from "../../src/Sandbox.ts"
import * as Local from "../../src/Sandbox/Local.ts"
import * as Absence from "../../src/Sandbox/Local/Absence.ts"
import * as Call from "../../src/Sandbox/Local/Call.ts"
import * as Census from "../../src/Sandbox/Local/Census.ts"
import * as Create from "../../src/Sandbox/Local/Create.ts"
import { type Check, checks } from "../../src/Sandbox/Local/Doctor.ts"
import * as Endings from "../../src/Sandbox/Local/Endings.ts"
import * as Host from "../../src/Sandbox/Local/Host.ts"
import * as OutOfMemory from "../../src/Sandbox/Local/OutOfMemory.ts"
import * as Pipes from "../../src/Sandbox/Local/Pipes.ts"
import * as Proc from "../../src/Sandbox/Local/Proc.ts"
import * as Implementation from "../../src/Sandbox/Local/Provider.ts"
import * as Recipe from "../../src/Sandbox/Local/Recipe.ts"
import * as Seccomp from "../../src/Sandbox/Local/Seccomp.ts"
import * as Setup from "../../src/Sandbox/Local/Setup.ts"
import * as Turns from "../../src/Sandbox/Local/Turns.ts"
import * as OrdinaryUser from "./ordinaryUser.ts"
import { at, eventually, limits, policy, providerContract, read, sandbox, sh, text, utf8 } from "./providerContract.ts"

const here = path.dirname(fileURLToPath(import.meta.url))
const timeout = 60_000

// A directory of its own, so that what is found in it is this run's.
const scratch = fs.mkdtempSync(path.join(os.tmpdir(), "episode-local-test-"))
const directory = path.join(scratch, "runtime")
const local = Local.layer({ directory })

// As the other kind of user, at the same time. There it isn't root, and starts no other.
const isRoot = process.getuid?.() === 0
const ordinary = isRoot ? OrdinaryUser.start("test/Sandbox/Local.test.ts") : undefined

beforeAll(async () => {
  await build({
    entryPoints: { victim: path.join(here, "Local.victim.ts"), doctor: path.join(here, "Local.doctor.ts") },
    bundle: true,
    platform: "node",
    format: "cjs",
    logLevel: "error",
    outdir: scratch,
    outExtension: { ".js": ".cjs" }
  })
}, timeout)

afterAll(() => {
  ordinary?.stop()
  fs.rmSync(scratch, { recursive: true, force: true })
})

const membersOf = (namespace: string): ReadonlyArray<number> =>
  Proc.pids().filter((pid) => Proc.namespace(pid) === namespace)

/** Processes of sandboxes: those in another pid namespace than ours. Other tests, and other users, have theirs, too. */
const inside = (): ReadonlyArray<number> =>
  Proc.pids().filter((pid) => {
    const namespace = Proc.namespace(pid)
    return namespace !== undefined && namespace !== Proc.namespace(process.pid) && !Proc.isDead(Proc.status(pid))
  })

/** Waits until those that live now have ended, ours at once and other tests' soon. Twice, as there could be late ones. */
const allEnd = (before: ReadonlySet<number>) => {
  const once = Effect.suspend(() => {
    const now = inside().filter((pid) => !before.has(pid)).map((pid) => ({ pid, start: Proc.status(pid)?.start }))
    return eventually(
      Effect.sync(() =>
        now.every(({ pid, start }) => Proc.isDead(Proc.status(pid)) || Proc.status(pid)?.start !== start)
      ),
      "no process of a sandbox is left"
    )
  })
  return Effect.andThen(once, once)
}

// The list itself opens one, which is closed by the time it is looked at.
const openDescriptors = "for fd in /proc/self/fd/*; do [ -L $fd ] && printf '%s ' ${fd##*/}; done; true"

const entry = (id: SandboxId): Recipe.Place => JSON.parse(fs.readFileSync(path.join(directory, `${id}.json`), "utf8"))

/** Another process of this user that uses the provider, and was itself started with a descriptor too many. */
const another = (wrapper: ReadonlyArray<string> = []) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const [command = "bash", ...words] = [
        ...[...wrapper, "bash", "-c", "exec 40</etc/passwd; exec \"$0\" \"$@\""],
        ...[process.execPath, path.join(scratch, "victim.cjs"), directory]
      ]
      const child = spawn(command, words, { stdio: ["ignore", "pipe", "inherit"] })
      let printed = ""
      child.stdout.setEncoding("utf8").on("data", (chunk: string) => {
        printed += chunk
      })
      return {
        kill: () => child.kill("SIGKILL"),
        until: (word: string) =>
          eventually(Effect.sync(() => printed.includes(word)), `it prints ${word}`).pipe(Effect.map(() => printed))
      }
    }),
    ({ kill }) => Effect.sync(kill)
  )

providerContract("Local", local)

withLayer(local, { excludeTestServices: true, timeout })("Local: hostile guests", (it) => {
  it.scoped(
    "files: a FIFO, link or device swapped in while it is read is never followed, waited for or flooded by",
    () =>
      Effect.gen(function*() {
        const machine = yield* sandbox()
        yield* sh(
          machine,
          "echo data >keep; setsid sh -c 'while :; do ln -sf /etc/shadow x; rm x; mkfifo x; rm x; ln -s /dev/zero x; "
            + "rm x; mkdir x; rmdir x; cp keep x; rm x; done' >/dev/null 2>&1 &"
        )
        const seen = new Set<string>()
        for (let n = 0; n < 600; n++) {
          const found = yield* read(machine, "/home/user/x", 16)
          seen.add(FileRead.$match(found, {
            Bytes: ({ bytes }) => `Bytes ${Buffer.from(bytes).toString().trim()}`.trim(),
            Missing: ({ _tag }) => _tag,
            NotRegular: ({ _tag }) => _tag,
            TooLarge: ({ _tag }) => _tag,
            Unreadable: ({ _tag }) => _tag
          }))
        }
        for (const answer of seen) {
          assert.include(["Bytes", "Bytes data", "Missing", "NotRegular"], answer)
        }
      }),
    timeout
  )

  it.scoped(
    "files: a link in place of any part of the path reaches nothing of the host or of a held-out path",
    () =>
      Effect.gen(function*() {
        const machine = yield* sandbox()
        const secret = path.join(scratch, "secret")
        fs.writeFileSync(secret, "host", { mode: 0o644 })
        fs.chmodSync(scratch, 0o755)
        yield* sh(machine, `ln -s ${secret} last; ln -s ${scratch} middle; ln -s / root`)
        for (const file of ["last", "middle/secret", `root${secret}`]) {
          // Red when O_NOFOLLOW goes: it would be the host's file.
          assert.deepStrictEqual(yield* read(machine, `/home/user/${file}`), FileRead.NotRegular(), file)
        }
        // What the kernel would tell us about its processes, and not a guest.
        for (const file of ["/proc/1/environ", "/proc/1/mountinfo", "/proc/version"]) {
          assert.deepStrictEqual(yield* read(machine, file), FileRead.NotRegular(), file)
        }
      }),
    timeout
  )

  it.scoped(
    "files: one that somebody has a lease on can't be read, and isn't waited for",
    () =>
      Effect.gen(function*() {
        const machine = yield* sandbox()
        const holder = "import fcntl, os, signal\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\n"
          + "fcntl.fcntl(os.open(\"leased\", os.O_RDWR), fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
          + "open(\"held\", \"w\")\nsignal.pause()"
        yield* sh(machine, `echo data >leased; setsid python3 -c '${holder}' >/dev/null 2>&1 &`)
        yield* eventually(Effect.map(read(machine, "/home/user/held"), FileRead.$is("Bytes")), "it is leased")
        assert.deepStrictEqual(yield* read(machine, "/home/user/leased"), FileRead.Unreadable())
        assert.deepStrictEqual(yield* read(machine, "/home/user/held"), FileRead.Bytes({ bytes: new Uint8Array() }))
      }),
    timeout
  )

  it.scoped("files: one that grows while it is read stays within the cap", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      yield* sh(machine, "setsid sh -c 'while :; do head -c 4096 /dev/zero >>grow; done' >/dev/null 2>&1 &")
      yield* eventually(
        Effect.map(read(machine, "/home/user/grow", 65_536), (found) => {
          assert.isTrue(!FileRead.$is("Bytes")(found) || found.bytes.length <= 65_536)
          return FileRead.$is("TooLarge")(found)
        }),
        "it outgrew the cap"
      )
    }), timeout)

  it.scoped(
    "files: can be read while a fork bomb runs, all is stopped and the disk is full",
    () =>
      Effect.gen(function*() {
        const machine = yield* sandbox()
        yield* sh(machine, "echo source >main.py")
        const full = yield* machine.exec("head -c 1G /dev/zero >big; sync; exit 5", limits)
        assert.deepStrictEqual([full.exitCode, full.killedAtLimit], [5, false])
        assert.include(text(full.stderr), "No space left")
        const bomb = yield* machine.exec(":(){ :|:& };:; sleep 100", { ...limits, timeLimit: Duration.millis(500) })
        assert.isTrue(bomb.killedAtLimit)
        yield* machine.exec(
          "cat >/tmp/b <<'E'\nsetsid bash /tmp/b & setsid bash /tmp/b & kill -STOP $$\nE\nrm big; bash /tmp/b & sleep 100",
          { ...limits, timeLimit: Duration.millis(500) }
        )
        assert.deepStrictEqual(yield* read(machine, "/home/user/main.py"), FileRead.Bytes({ bytes: utf8("source\n") }))
        yield* machine.health
        // Whether anything can be started is the guest's affair, and a result.
        yield* machine.exec("true", limits)
      }),
    timeout
  )

  it.scoped(
    "a bomb of sessions that forks as fast as it can leaves every request an answer",
    () =>
      Effect.gen(function*() {
        const provider = yield* SandboxProvider
        const machine = yield* sandbox()
        yield* machine.writeFiles([{
          path: at("/tmp/b"),
          bytes: utf8("setsid bash /tmp/b & setsid bash /tmp/b & exec bash /tmp/b")
        }])
        yield* machine.exec("bash /tmp/b", { ...limits, timeLimit: Duration.millis(500) })
        const { namespace } = entry(machine.id)
        const members = inside().filter((pid) => Proc.namespace(pid) === namespace)
        // Red without the process limit.
        assert.isBelow(members.length, 140)
        for (let n = 0; n < 3; n++) {
          yield* machine.exec("echo", { ...limits, timeLimit: Duration.millis(500) })
        }
        yield* machine.health
        yield* provider.destroy(machine.id)
        assert.strictEqual(yield* provider.inspect(machine.id), "absent")
      }),
    timeout
  )

  it.scoped("a gigabyte of output costs the host no memory", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      const before = process.memoryUsage()
      let most = 0
      const watching = yield* Effect.fork(Effect.forever(Effect.andThen(
        Effect.sync(() => {
          const { arrayBuffers, external, heapUsed } = process.memoryUsage()
          most = Math.max(
            most,
            heapUsed + external + arrayBuffers - before.heapUsed - before.external - before.arrayBuffers
          )
        }),
        Effect.sleep("20 millis")
      )))
      const { exitCode, stdout } = yield* machine.exec("head -c 1G /dev/zero", {
        ...limits,
        timeLimit: Duration.minutes(1)
      })
      yield* Fiber.interrupt(watching)
      assert.deepStrictEqual([exitCode, stdout.totalBytes], [0, 2 ** 30])
      assert.isBelow(most, 150 * 2 ** 20)
    }), 90_000)

  it.scoped("a daemon that outlives its shell and writes on ends with the sandbox", () =>
    Effect.gen(function*() {
      const provider = yield* SandboxProvider
      const machine = yield* sandbox()
      yield* sh(machine, "setsid sh -c 'trap \"\" TERM HUP; while :; do date +%N >beat; done' >/dev/null 2>&1 &")
      yield* eventually(Effect.map(read(machine, "/home/user/beat"), FileRead.$is("Bytes")), "it writes")
      const { namespace } = entry(machine.id)
      yield* provider.destroy(machine.id)
      assert.strictEqual(yield* provider.inspect(machine.id), "absent")
      assert.deepStrictEqual(inside().filter((pid) => Proc.namespace(pid) === namespace), [])
    }), timeout)

  // For the last two Node has no name, nor glibc for the last.
  for (const signal of [9, 34, 32]) {
    it.scoped(
      `a daemon that kills whatever appears doesn't make a fault of it, by signal ${signal}`,
      () =>
        Effect.gen(function*() {
          const machine = yield* sandbox()
          yield* machine.exec(
            `setsid python3 -c 'import os\nwhile 1:\n  try: os.kill(-1, ${signal})\n  except OSError: pass' &`,
            limits
          )
          for (let n = 0; n < 10; n++) {
            yield* machine.exec("echo", { ...limits, timeLimit: Duration.millis(500) })
          }
          yield* machine.health
        }),
      timeout
    )
  }

  it.scoped(
    "what ends by a signal without a name before it is the guest's has been killed",
    () =>
      Effect.gen(function*() {
        const machine = yield* sandbox()
        const pipes = yield* Pipes.make({ directory: Effect.succeed(scratch) })
        const request = { place: entry(machine.id), program: ["true"], input: undefined, ...limits }
        const found = yield* Effect.forEach(
          ["kill -34 $$", "exit 1", "exit 120"],
          (loader) => Call.run(pipes, { ...request, filter: ["sh", "-c", loader] })
        )
        assert.deepStrictEqual(
          found.map(({ entered, result, signalled }) => [entered, signalled, result.exitCode]),
          [[false, true, 137], [false, false, 1], [false, false, 120]]
        )
      }),
    timeout
  )

  it.scoped(
    "a sandbox over its memory loses its processes, not its life: alone, shared and on disk",
    () =>
      Effect.gen(function*() {
        const machine = yield* sandbox()
        const alone = yield* machine.exec("python3 -c 'bytearray(64 << 30)'", limits)
        assert.include(text(alone.stderr), "MemoryError")
        const hold = "python3 -c 'import time; x = bytearray(150 << 20); time.sleep(100)'"
        const many = yield* machine.exec(`${hold} & ${hold} & ${hold} & ${hold} & wait`, limits)
        assert.deepStrictEqual([many.exitCode, many.killedAtLimit], [137, false])
        const shared = yield* machine.exec(
          "head -c 200M /dev/zero >big; python3 -c 'import mmap, time; m = mmap.mmap(-1, 400 << 20); m.write(bytes(400 << 20)); time.sleep(100)'",
          limits
        )
        assert.deepStrictEqual([shared.exitCode, shared.killedAtLimit], [137, false])
        assert.strictEqual(yield* sh(machine, "rm big; echo fine"), "fine\n")
      }),
    timeout
  )

  it.scoped(
    "a run that was killed while the kernel killed for want of memory has no result",
    () =>
      Effect.gen(function*() {
        let count = 0
        const make = (outOfMemoryKills: () => number | undefined) =>
          Effect.flatMap(
            Implementation.make({
              memoryMiB: 64,
              filesMiB: 32,
              writableRoot: false,
              policyNetwork: "offline",
              directory: path.join(scratch, "oom"),
              searchPath: Host.toolPath,
              outOfMemoryKills
            }),
            ({ create }) => create(policy)
          )
        const rising = yield* make(() => count++)
        const fault = yield* Effect.flip(rising.exec("kill -9 $$", limits))
        assert.deepInclude(fault, { _tag: "TransportFailed", operation: "exec" })
        assert.include(fault.message, "the machine ran out of memory")
        // It isn't asked of those that end otherwise.
        assert.strictEqual((yield* rising.exec("exit 3", limits)).exitCode, 3)
        assert.strictEqual(count, 3)
        const late = yield* rising.exec("sleep 100", { ...limits, timeLimit: Duration.millis(300) })
        assert.isTrue(late.killedAtLimit)
        // What it took too much of was its own.
        const hold = "python3 -c 'import time; x = bytearray(30 << 20); time.sleep(100)'"
        assert.strictEqual((yield* rising.exec(`${hold} & ${hold} & ${hold} & wait`, limits)).exitCode, 137)
        for (const other of [() => 7, () => undefined]) {
          assert.strictEqual((yield* (yield* make(other)).exec("kill -9 $$", limits)).exitCode, 137)
        }
      }),
    timeout
  )

  vitestIt("the kernel's count of those it killed for want of memory", () => {
    assert.strictEqual(OutOfMemory.parse("pgfault 1\noom_kill 12\nnuma_hit 3\n"), 12)
    assert.isUndefined(OutOfMemory.parse("pgfault 1\nnot_oom_kill 12\n"))
    assert.deepStrictEqual(
      ([[3, 4], [3, 3], [3, undefined], [undefined, 3]] as const).map(([before, after]) =>
        OutOfMemory.rose(before, after)
      ),
      [true, false, false, false]
    )
    assert.strictEqual(OutOfMemory.kills() === undefined, !/^oom_kill /m.test(fs.readFileSync("/proc/vmstat", "utf8")))
  })
})

withLayer(Local.layer({ directory, memoryMiB: 64 }), { excludeTestServices: true, timeout })(
  "Local: a small sandbox",
  (it) => {
    it.scoped("is over its memory by tables of pages that hold nothing", () =>
      Effect.gen(function*() {
        const machine = yield* sandbox()
        // A page of each table's reach is read, which are all the same page of zeroes.
        const program = `import ctypes, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
size, reach = 60 << 30, 2 << 20
address = libc.mmap(None, size, 1, 0x4022, -1, 0)
libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), 15)
pages = (ctypes.c_char * size).from_address(address)
for offset in range(0, size, reach): pages[offset]
time.sleep(100)`
        const { exitCode, killedAtLimit } = yield* machine.exec(`python3 -c '${program}'`, limits)
        assert.deepStrictEqual([exitCode, killedAtLimit], [137, false])
      }), timeout)
  }
)

// Every step of the hardening, and what it stops. A number is an errno, "ok" what shouldn't be.
const refusals = `
import ctypes, os, socket, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
  result = libc.syscall(*args)
  print(name, 'ok' if result >= 0 else errno.errorcode[ctypes.get_errno()])
def family(name, number, kind=1, protocol=0):
  try: socket.socket(number, kind, protocol); print(name, 'ok')
  except OSError as error: print(name, errno.errorcode[error.errno])
x64 = os.uname().machine == 'x86_64'
numbers = dict(keyctl=250, add_key=248, request_key=249, io_uring_setup=425, memfd_create=319, bpf=321, perf_event_open=298, userfaultfd=323, io_setup=206) if x64 else dict(keyctl=219, add_key=217, request_key=218, io_uring_setup=425, memfd_create=279, bpf=280, perf_event_open=241, userfaultfd=282, io_setup=0)
for name, number in numbers.items(): call(name, number, 0, 0, 0, 0, 0)
family('vsock', 40)
family('alg', 38, 5)
family('packet', 17, 3)
family('raw', 2, 3, 1)
family('unix', 1)
`

withLayer(local, { excludeTestServices: true, timeout })("Local: hardening", (it) => {
  it.scoped(
    "no capability, no way to new privileges, a filter, nothing inherited, nothing ignored that one can trap",
    () =>
      Effect.gen(function*() {
        const machine = yield* sandbox()
        const status = yield* sh(machine, "cat /proc/self/status")
        for (
          const line of [
            "CapEff:\t0000000000000000",
            "CapPrm:\t0000000000000000",
            "CapAmb:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
            "SigBlk:\t0000000000000000",
            "SigIgn:\t0000000180000000"
          ]
        ) {
          assert.include(status, line)
        }
        // Which are the two that nobody can trap.
        assert.strictEqual(
          yield* sh(machine, "trap 'echo trapped' RTMIN; kill -32 $$; kill -33 $$; kill -RTMIN $$; echo lives"),
          "trapped\nlives\n"
        )
        for (const signal of [34, 64]) {
          assert.notStrictEqual((yield* machine.exec(`kill -${signal} $$`, limits)).exitCode, 0)
        }
        assert.notMatch(fs.readFileSync(`/proc/${entry(machine.id).pid}/status`, "utf8"), /^Uid:\t0/m)
        // A session of its own: one from outside would be 0 here.
        assert.notStrictEqual(yield* sh(machine, "cut -d' ' -f6 /proc/self/stat"), "0\n")
      }),
    timeout
  )

  it.scoped("the system call filter refuses what namespaces don't bound", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      yield* machine.writeFiles([{ path: at("/tmp/refusals.py"), bytes: utf8(refusals) }])
      assert.deepStrictEqual((yield* sh(machine, "python3 /tmp/refusals.py")).trim().split("\n"), [
        // Keys of the host's session; sockets by another door; memory that nobody counts; doors to the kernel; a count that
        // other sandboxes share.
        ...[
          "keyctl",
          "add_key",
          "request_key",
          "io_uring_setup",
          "memfd_create",
          "bpf",
          "perf_event_open",
          "userfaultfd",
          "io_setup"
        ]
          .map((name) => `${name} ENOSYS`),
        // The machine's hypervisor answers to it from within any network namespace.
        "vsock EAFNOSUPPORT",
        "alg EAFNOSUPPORT",
        "packet EAFNOSUPPORT",
        "raw EPERM",
        "unix ok"
      ])
    }), timeout)

  it.scoped("a guest changes its own scheduling, and nobody else's", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      const program = `
import ctypes, errno, os, struct, time
libc = ctypes.CDLL(None, use_errno=True)
other = os.fork()
if other == 0: time.sleep(100)
x64 = os.uname().machine == 'x86_64'
scheduler, parameters, attributes, affinity, priority, io = (144, 142, 314, 203, 141, 251) if x64 else (119, 118, 274, 122, 140, 30)
def call(*args): return 'ok' if libc.syscall(*args) == 0 else errno.errorcode[ctypes.get_errno()]
none = struct.pack('i', 0)
batch = struct.pack('IIQiIQQQ', 48, 3, 0, 0, 0, 0, 0, 0)
every = b'\\xff' * 128
for who in 0, other:
  print(call(scheduler, who, 3, none), call(parameters, who, none), call(attributes, who, batch, 0),
    call(affinity, who, len(every), every) in ('ok', 'EINVAL') if who == 0 else call(affinity, who, len(every), every),
    call(priority, 0, who, 5), call(io, 1, who, 2 << 13 | 7))
print(call(priority, 1, 0, 6), call(priority, 2, 0, 7), call(io, 2, 0, 2 << 13 | 7), call(io, 3, 0, 2 << 13 | 7))
os.kill(other, 9)`
      yield* machine.writeFiles([{ path: at("/tmp/scheduling.py"), bytes: utf8(program) }])
      assert.deepStrictEqual((yield* sh(machine, "python3 /tmp/scheduling.py")).trim().split("\n"), [
        "ok ok ok True ok ok",
        "EPERM EPERM EPERM EPERM EPERM EPERM",
        // By group, and by user.
        "ok EPERM ok EPERM"
      ])
    }), timeout)

  it.scoped("takes no more terminals than its share", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      const program =
        "import os\nheld = []\ntry:\n  while True: held += os.openpty()\nexcept OSError: print(len(held) // 2)"
      assert.strictEqual(yield* sh(machine, `python3 -c '${program}'`), "64\n")
    }), timeout)

  it.scoped("a guest makes no namespace and mounts nothing", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      for (const kind of ["--user", "--user --mount", "--user --net", "--mount", "--pid --fork"]) {
        assert.notStrictEqual((yield* machine.exec(`unshare ${kind} true`, limits)).exitCode, 0, kind)
      }
      assert.notStrictEqual((yield* machine.exec("mount -t tmpfs x /mnt", limits)).exitCode, 0)
      assert.notStrictEqual((yield* machine.exec("umount /proc/sys", limits)).exitCode, 0)
      assert.notStrictEqual((yield* machine.exec("hostname other", limits)).exitCode, 0)
      assert.notStrictEqual((yield* machine.exec("nsenter --user=/.ns/user true", limits)).exitCode, 0)
    }), timeout)

  it.scoped("only the five writable directories can be written to", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      const found = yield* sh(
        machine,
        "for d in / /usr /usr/bin /usr/lib /etc /dev /.ns /var /opt /mnt /home /root /proc/sys/kernel /home/user /tmp /run /var/tmp /dev/shm; "
          + "do { : >$d/probe; } 2>/dev/null && echo $d; done; for f in /etc/passwd /usr/bin/env /proc/sys/kernel/hostname "
          + "/proc/sys/user/max_user_namespaces /proc/self/uid_map; do { echo 1 >>$f; } 2>/dev/null && echo $f; done; true"
      )
      assert.deepStrictEqual(found.trim().split("\n"), ["/home/user", "/tmp", "/run", "/var/tmp", "/dev/shm"])
      // Nor could anybody with more power: every mount of the host's is read-only. Red without `ro` and the audit.
      const writable = yield* sh(
        machine,
        "grep ' rw[, ]' /proc/self/mounts | cut -d' ' -f2 | grep -v '^/proc/.' | sort -u"
      )
      assert.deepStrictEqual(
        writable.trim().split("\n"),
        [
          ...["/home/user", "/tmp", "/run", "/var/tmp", "/dev/shm", "/dev/pts", "/proc", "/.ns/user"],
          ...["full", "null", "random", "tty", "urandom", "zero"].map((device) => `/dev/${device}`)
        ].toSorted()
      )
    }), timeout)

  it.scoped("the first process can't be ended, stopped, traced or read from inside", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      yield* machine.exec(
        "for s in KILL TERM INT HUP STOP QUIT SEGV USR1 TSTP ABRT; do kill -$s 1; done; kill -9 -1",
        limits
      )
      yield* machine.health
      const probes = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))\n"
        + "for f in ('environ', 'mem', 'maps', 'root/etc/passwd', 'fd/0'):\n"
        + "  try: open('/proc/1/' + f, 'rb').read(1); print(f)\n  except OSError: pass"
      assert.strictEqual(yield* sh(machine, `python3 -c "${probes}"`), "-1\n")
      assert.match(fs.readFileSync(`/proc/${entry(machine.id).pid}/status`, "utf8"), /^State:\tS/m)
    }), timeout)

  it.scoped(
    "the first process has no capability, no variable, no descriptor of the host's, and ignores its children",
    () =>
      Effect.gen(function*() {
        const { pid } = entry((yield* sandbox()).id)
        const status = fs.readFileSync(`/proc/${pid}/status`, "utf8")
        for (const set of ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"]) {
          assert.include(status, `${set}:\t0000000000000000`)
        }
        for (const line of ["NoNewPrivs:\t1", "SigBlk:\t0000000000000000", "SigIgn:\t0000000000010000"]) {
          assert.include(status, line)
        }
        assert.strictEqual(fs.readFileSync(`/proc/${pid}/environ`, "utf8"), "")
        const descriptors = fs.readdirSync(`/proc/${pid}/fd`).map((fd) => fs.readlinkSync(`/proc/${pid}/fd/${fd}`))
        // The pipe tells what is left of the chain when it ends.
        assert.deepStrictEqual(descriptors.map((found) => found.replace(/[0-9]+/, "")), [
          "/dev/null",
          "pipe:[]",
          "/dev/null"
        ])
        // Neither of the two is the program that made it any more, and neither is root of the host.
        const chain = Proc.status(pid)?.parent ?? 0
        assert.strictEqual(Proc.name(pid), "sleep")
        yield* eventually(Effect.sync(() => Proc.name(chain) === "sh"), "the chain is a shell")
        for (const one of [pid, chain]) {
          assert.notMatch(fs.readFileSync(`/proc/${one}/status`, "utf8"), /^Uid:\t0/m)
        }
      }),
    timeout
  )

  it.scoped("whatever is mounted below /usr is read-only as well, and keeps its flags", () =>
    Effect.gen(function*() {
      const { pid } = entry((yield* sandbox()).id)
      const own = new Map(Host.readMounts("self").map((mount) => [mount.target, mount]))
      for (const { options, target } of Host.readMounts(pid).filter(({ target }) => /^\/(?:usr|etc)\//.test(target))) {
        assert.include(options, "ro", target)
        for (const flag of ["nosuid", "nodev", "noexec"]) {
          assert.isTrue(options.includes(flag) || own.get(target)?.options.includes(flag) !== true, `${target} ${flag}`)
        }
      }
    }), timeout)

  for (const language of ["perl", "python3"] as const) {
    const file = `/usr/bin/${language}`
    vitestIt.runIf(fs.existsSync(file))(
      `setup in ${language} says what failed, and begins nothing for another's child`,
      () => {
        const machine = Host.machine(undefined)
        const calls = Seccomp.callsOf(machine)
        assert(calls !== undefined)
        const run = (nodePid: number) => {
          const interpreter = { language, file }
          const plan = { interpreter, offline: true, pythonPrefix: undefined }
          const setup = { steps: [["enter", "/nowhere"]], stage: undefined } as const
          const [command = "", ...words] = Recipe.createArguments({
            nodePid,
            machine,
            calls,
            plan,
            setup,
            firstId: 0x7000_0000
          })
          const options = { input: Setup.encode(setup.steps), encoding: "utf8", env: Host.cleanEnvironment } as const
          return spawnSync(command, words, options)
        }
        const failed = run(process.pid)
        assert.include(failed.stderr, "/nowhere: No such file or directory")
        assert.strictEqual(failed.stdout, "")
        // Red without the comparison of the parent.
        const late = run(1)
        assert.deepStrictEqual([late.status, late.stderr, late.stdout], [120, "", ""])
      }
    )
  }

  it.scoped("orphans are collected", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      yield* sh(machine, "for i in $(seq 150); do (true & ) ; done; sleep 0.1")
      assert.strictEqual(yield* sh(machine, "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l"), "0\n")
    }), timeout)

  it.scoped("limits hold and can't be raised", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      assert.strictEqual(
        yield* sh(machine, "ulimit -c; ulimit -u; ulimit -d; ulimit -f; ulimit -n; ulimit -i; ulimit -q"),
        "0\n128\n524288\n524288\n1024\n1024\n65536\n"
      )
      assert.notStrictEqual((yield* machine.exec("ulimit -Hu 1000", limits)).exitCode, 0)
      // Detached shared memory has no process, and inotify is charged to the host's user.
      const ipc = yield* sh(
        machine,
        "python3 -c \"import ctypes\nc = ctypes.CDLL(None)\nn = 0\nwhile n < 100 and c.shmget(0, 1 << 20, 0o1600) >= 0: n += 1\n"
          + "i = 0\nwhile i < 1000 and c.inotify_init1(0) >= 0: i += 1\nprint(n <= 16, i <= 32)\""
      )
      assert.strictEqual(ipc, "True True\n")
    }), timeout)

  it.scoped("kernel files about the host are masked", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      assert.strictEqual(
        yield* sh(
          machine,
          "cat /proc/keys /proc/key-users /proc/kallsyms /proc/kmsg /proc/timer_list /proc/kcore "
            + "/proc/sys/fs/{aio-nr,file-nr,inode-nr,inode-state,dentry-state} /proc/sys/kernel/pty/nr 2>/dev/null | wc -c"
        ),
        "0\n"
      )
      assert.strictEqual(yield* sh(machine, "ls -A /sys 2>/dev/null | wc -l"), "0\n")
    }), timeout)

  it.scoped("a guest's hands reach no process before it is confined", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      // What can be read of another process can be traced. Red when what confines is started in the inner namespace.
      const hunter =
        "import os\nbad = open('/tmp/bad', 'a', 1)\nwhile 1:\n  for p in filter(str.isdigit, os.listdir('/proc')):\n"
        + "    try: os.readlink('/proc/' + p + '/exe'); s = open('/proc/' + p + '/status').read(); "
        + "l = open('/proc/' + p + '/limits').read()\n    except OSError: continue\n"
        + "    if 'Seccomp:\\t2' not in s or 'NoNewPrivs:\\t1' not in s: bad.write('caught ' + p + chr(10))\n"
      yield* machine.writeFiles([{ path: at("/tmp/hunter.py"), bytes: utf8(hunter) }])
      yield* sh(machine, "setsid python3 /tmp/hunter.py >/dev/null 2>&1 &")
      yield* eventually(Effect.map(read(machine, "/tmp/bad"), FileRead.$is("Bytes")), "the hunter hunts")
      for (let n = 0; n < 15; n++) {
        yield* sh(machine, "true")
      }
      assert.deepStrictEqual(yield* read(machine, "/tmp/bad"), FileRead.Bytes({ bytes: new Uint8Array() }))
    }), timeout)

  it.scoped(
    "nothing of the host is visible: environment, files, processes, descriptors, other sandboxes",
    () =>
      Effect.gen(function*() {
        const canary = randomUUID()
        const file = path.join(scratch, "canary")
        fs.writeFileSync(file, canary, { mode: 0o644 })
        const host = yield* Effect.acquireRelease(
          Effect.sync(() => spawn("sleep", ["100"], { env: { CANARY: canary }, argv0: canary, stdio: "ignore" })),
          (child) => Effect.sync(() => child.kill("SIGKILL"))
        )
        const other = yield* sandbox()
        yield* sh(other, `echo ${canary} >/tmp/canary; setsid bash -c 'exec -a ${canary} sleep 100' >/dev/null 2>&1 &`)
        const machine = yield* sandbox()
        const found = yield* machine.exec(
          `env; ls /proc; cat /proc/[0-9]*/{environ,cmdline} ${file} /proc/*/root${file} /proc/*/cwd/canary /tmp/canary; `
            + `ls -A /root; ls -RA /home /tmp /mnt /srv /opt /run /var; ls -l /proc/self/fd; cat /proc/${host.pid}/cmdline`,
          { ...limits, outputCap: 1024 * 1024 }
        )
        assert.notInclude(text(found.stdout), canary)
        assert.strictEqual(yield* sh(machine, openDescriptors), "0 1 2 ")
        const names = (yield* sh(machine, "compgen -e")).trim().split("\n").toSorted()
        assert.deepStrictEqual(
          names,
          ["HOME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "SHLVL", "TERM", "USER"]
        )
      }),
    timeout
  )

  it.scoped("offline is offline: no interface but loopback, no socket of the host", () =>
    Effect.gen(function*() {
      const server = yield* Effect.acquireRelease(
        Effect.promise(async () => {
          const server = net.createServer((socket) => socket.destroy())
          server.listen(0, "0.0.0.0")
          await once(server, "listening")
          return server
        }),
        (server) => Effect.sync(() => server.close())
      )
      const address = server.address()
      const port = address !== null && typeof address === "object" ? address.port : 0
      const hosts = Object.values(os.networkInterfaces()).flat().filter((one) => one?.family === "IPv4").map((one) =>
        one?.address
      )
      const machine = yield* sandbox({ role: "verifier", network: "offline" })
      assert.strictEqual(yield* sh(machine, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"), "lo\n")
      for (const host of hosts) {
        assert.notStrictEqual((yield* machine.exec(`exec 3<>/dev/tcp/${host}/${port}`, limits)).exitCode, 0, `${host}`)
      }
      assert.strictEqual(yield* sh(machine, "cat /proc/net/unix | grep -c @ || true"), "0\n")
      assert.notStrictEqual((yield* machine.exec("getent hosts example.com", limits)).exitCode, 0)
    }), timeout)
})

withLayer(Local.layer({ directory, policyNetwork: "host" }), { excludeTestServices: true, timeout })(
  "Local: the host's network",
  (it) => {
    it.scoped("is for policies alone, and on request", () =>
      Effect.gen(function*() {
        const interfaces = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort | tr '\\n' ' '"
        const own = spawnSync("sh", ["-c", interfaces], { encoding: "utf8" }).stdout
        assert.strictEqual(yield* sh(yield* sandbox(), interfaces), own)
        assert.strictEqual(yield* sh(yield* sandbox({ network: "offline" }), interfaces), "lo ")
      }), timeout)
  }
)

withLayer(local, { excludeTestServices: true, timeout })("Local: proof", (it) => {
  it.scoped("many that are deleted at once, with a command each, are all gone", () =>
    Effect.gen(function*() {
      const provider = yield* SandboxProvider
      const machines = yield* Effect.forEach(Array.from({ length: 24 }), () => sandbox(), { concurrency: "unbounded" })
      const running = yield* Effect.forEach(machines, (machine) =>
        Effect.fork(
          Effect.flip(machine.exec("echo >started; sleep 1000", { ...limits, timeLimit: Duration.minutes(5) }))
        ))
      yield* Effect.forEach(machines, (machine) =>
        eventually(Effect.map(read(machine, "/home/user/started"), FileRead.$is("Bytes")), "its command runs"))
      const namespaces = new Set(machines.map(({ id }) =>
        entry(id).namespace
      ))
      const endings = yield* Endings.make
      yield* Effect.forEach(machines.slice(12), ({ id }) => {
        const place = entry(id)
        // Looked at in the moment in which it is said to be gone.
        return Effect.map(endings.end(place), (gone) => {
          const left = membersOf(place.namespace).filter((pid) => !Proc.isDead(Proc.status(pid)))
          assert.deepStrictEqual({ gone, left }, { gone: true, left: [] })
        })
      }, { concurrency: "unbounded" })
      yield* Effect.forEach(machines, ({ id }) => provider.destroy(id), { concurrency: "unbounded" })
      assert.deepStrictEqual(
        inside().filter((pid) => namespaces.has(Proc.namespace(pid) ?? "")),
        []
      )
      for (const { id } of machines) {
        assert.strictEqual(yield* provider.inspect(id), "absent")
      }
      const faults = yield* Effect.forEach(running, Fiber.join)
      assert.deepStrictEqual([...new Set(faults.map(({ _tag }) => _tag))], ["SandboxLost"])
    }), timeout)

  it.scoped("one look serves all who asked before it began, and nobody who asked later", () =>
    Effect.gen(function*() {
      const [one, other] = yield* Effect.all([Census.take, Census.take], { concurrency: 2 })
      assert.strictEqual(one, other)
      const namespace = Proc.namespace(process.pid) ?? ""
      // At some of these moments the first look is under way, and has passed the new process over.
      for (let turns = 0; turns < 6; turns++) {
        yield* Effect.fork(Census.take)
        yield* Effect.repeatN(Turns.next, turns)
        const child = yield* Effect.acquireRelease(
          Effect.sync(() => spawn("sleep", ["1000"], { stdio: "ignore" })),
          (child) => Effect.sync(() => child.kill("SIGKILL"))
        )
        // Red when a look that has begun is given to this question.
        assert.include((yield* Census.take).members.get(namespace) ?? [], child.pid)
      }
    }), timeout)

  it.scoped(
    "a dead process that its stopped parent hasn't collected keeps a sandbox there, until it is deleted",
    () =>
      Effect.gen(function*() {
        const provider = yield* SandboxProvider
        const machine = yield* sandbox()
        const place = entry(machine.id)
        yield* Effect.fork(machine.exec("sleep 1000", { ...limits, timeLimit: Duration.minutes(5) }))
        const guests = () => membersOf(place.namespace).filter((pid) => pid !== place.pid)
        yield* eventually(Effect.sync(() => guests().some((pid) => Proc.name(pid) === "sleep")), "it runs")
        const parents = guests().map((pid) => Proc.status(pid)?.parent ?? 0).filter((pid) =>
          Proc.namespace(pid) !== place.namespace
        )
        parents.forEach((parent) => Proc.signal(parent, "SIGSTOP"))
        yield* eventually(Effect.sync(() => parents.every((pid) => Proc.status(pid)?.state === "T")), "it is stopped")
        Proc.signal(place.pid, "SIGKILL")
        yield* eventually(
          Effect.sync(() => guests().every((pid) => Proc.isDead(Proc.status(pid)))),
          "all but its first process are dead"
        )
        assert.isFalse(yield* Absence.isGone(place))
        assert.strictEqual(yield* provider.inspect(machine.id), "running")
        yield* provider.destroy(machine.id)
        assert.strictEqual(yield* provider.inspect(machine.id), "absent")
        assert.isTrue(yield* Absence.isGone(place))
      }),
    timeout
  )

  it.scoped("a sandbox whose mounts aren't exactly those that were planned isn't made", () =>
    Effect.gen(function*() {
      const honest = Create.preparations()
      const create = (change: (steps: ReadonlyArray<Setup.Step>) => ReadonlyArray<Setup.Step>) =>
        Create.create({
          machine: Host.machine(undefined),
          offline: true,
          memoryMiB: 512,
          filesMiB: 256,
          writableRoot: false,
          firstId: 0x7000_0000,
          preparations: {
            forget: honest.forget,
            get: (options) => {
              const prepared = honest.get(options)
              return prepared === "no-mount-point"
                ? prepared
                : { ...prepared, steps: Setup.encode(change(prepared.setup.steps)) }
            }
          }
        })
      const { bind, noDevices, noSuid, readOnly } = Setup.mountFlags
      const before = (steps: ReadonlyArray<Setup.Step>, ...more: ReadonlyArray<Setup.Step>) =>
        steps.flatMap((step) => step[0] === "hostname" ? [...more, step] : [step])
      const { pid } = yield* create((steps) => steps)
      assert.isFalse(Proc.isDead(Proc.status(pid)))
      // Read-only, so that it isn't found for being writable.
      const extra = yield* Effect.flip(
        create((steps) => before(steps, ["mount", "x", "mnt", "tmpfs", readOnly | noSuid | noDevices, ""]))
      )
      assert.include(extra.detail, "a mount on /mnt came")
      const again = yield* Effect.flip(
        create((steps) => before(steps, ["mount", "/dev/null", "dev/zero", "none", bind, ""]))
      )
      assert.include(again.detail, "a mount on /dev/zero came")
      const without = yield* Effect.flip(
        create((steps) => steps.filter((step) => step[0] !== "mount" || step[2] !== "proc/keys"))
      )
      assert.include(without.detail, "no mount on /proc/keys")
    }), timeout)
})

class Wrong extends Data.TaggedError("Wrong")<{ readonly found: string }> {}

const traces = Effect.sync(() => ({
  mounts: fs.readFileSync("/proc/self/mountinfo", "utf8"),
  files: fs.readdirSync(directory)
}))

withLayer(local, { excludeTestServices: true, timeout })("Local: nothing is left", (it) => {
  it.scoped("of sandboxes made, interrupted and deleted: no process, mount or file", () =>
    Effect.gen(function*() {
      const provider = yield* SandboxProvider
      yield* Effect.scoped(sandbox())
      const found = yield* traces
      const before = new Set(inside())
      yield* Effect.forEach(Array.from({ length: 24 }, (_, index) => index * 2), (delay) =>
        Effect.gen(function*() {
          const making = yield* Effect.fork(
            Effect.scoped(Effect.flatMap(sandbox(), (machine) => machine.exec("setsid sleep 100 & sleep 100", limits)))
          )
          yield* Effect.sleep(delay)
          yield* Fiber.interrupt(making)
        }), { concurrency: 2 })
      assert.deepStrictEqual(yield* provider.find(policy.labels), [])
      assert.deepStrictEqual(yield* traces, found)
      yield* allEnd(before)
    }), timeout)

  it.scoped("of a layer whose scope closes", () =>
    Effect.gen(function*() {
      const scope = yield* Scope.make()
      const provider = yield* Scope.extend(Local.provider({ directory }), scope)
      const { id } = yield* provider.create(policy)
      const { pid } = entry(id)
      yield* Scope.close(scope, Exit.void)
      assert.isTrue(Proc.isDead(Proc.status(pid)))
      assert.strictEqual(yield* (yield* SandboxProvider).inspect(id), "absent")
    }), timeout)

  it.scoped("of a host that is killed, at any moment", () =>
    Effect.gen(function*() {
      const provider = yield* SandboxProvider
      const before = new Set(inside())
      yield* Effect.forEach(
        ["start", "start", "creating", "creating", "creating", "ready", "ready", "exec"],
        (moment, index) =>
          Effect.gen(function*() {
            const host = yield* another()
            yield* host.until(moment)
            yield* Effect.sleep(index * 3)
            host.kill()
          }),
        { concurrency: 2 }
      )
      yield* allEnd(before)
      // Its entry is stale: an id that a later process may have must not be taken for it.
      for (const { id } of yield* provider.find({ victim: "yes" })) {
        assert.fail(`${id} is found`)
      }
      const fresh = yield* Effect.scoped(Local.provider({ directory }))
      yield* Effect.scoped(Effect.gen(function*() {
        const swept = yield* Local.provider({ directory })
        yield* swept.destroy((yield* swept.create(policy)).id)
      }))
      // The directory itself goes when nothing is in it.
      assert.isFalse(fs.existsSync(directory))
      assert.strictEqual(fresh.name, "local")
    }), timeout)
})

withLayer(local, { excludeTestServices: true, timeout })("Local: processes of one user", (it) => {
  it.scoped("share sandboxes: they find, use, extend and delete them", () =>
    Effect.gen(function*() {
      const provider = yield* SandboxProvider
      const host = yield* another()
      const printed = yield* host.until("exec")
      // What the host itself inherited isn't a guest's.
      assert.include(printed, "descriptors 0 1 2 \n")
      const [found] = yield* provider.find({ victim: "yes" })
      const { id } = found ?? (yield* new Wrong({ found: "nothing" }))
      const machine = yield* provider.attach(id, "policy")
      assert.strictEqual(yield* sh(machine, "cat made-by"), "victim\n")
      yield* machine.extend(Duration.minutes(5))
      yield* provider.destroy(id)
      assert.strictEqual(yield* provider.inspect(id), "absent")
      // And the owner knows.
      yield* host.until("lost absent")
    }), timeout)

  it.scoped("a lifetime set by another process is the one that counts", () =>
    Effect.gen(function*() {
      const provider = yield* SandboxProvider
      const machine = yield* sandbox({ lifetime: Duration.minutes(5) })
      const other = yield* Local.provider({ directory })
      const attached = yield* other.attach(machine.id, "policy")
      yield* attached.extend(Duration.millis(300))
      yield* eventually(Effect.map(provider.inspect(machine.id), (found) => found === "absent"), "it ended")
      assert.strictEqual((yield* Effect.flip(machine.exec("true", limits))).message.includes("lost"), true)
    }), timeout)

  it.scoped("an entry whose process is another one by now is a sandbox that is gone", () =>
    Effect.gen(function*() {
      const provider = yield* SandboxProvider
      const machine = yield* sandbox()
      const id = SandboxId.make("sbx-fffreused00000000")
      const text = fs.readFileSync(path.join(directory, `${machine.id}.json`), "utf8")
      const stale = { ...JSON.parse(text), id, start: "1" }
      fs.writeFileSync(path.join(directory, `${id}.json`), JSON.stringify(stale))
      assert.strictEqual((yield* Effect.flip(provider.attach(id, "policy")))._tag, "SandboxLost")
      assert.strictEqual(yield* provider.inspect(id), "absent")
      assert.isFalse(fs.existsSync(path.join(directory, `${id}.json`)))
      yield* provider.destroy(id)
      yield* machine.health
    }), timeout)

  it.scoped("a registry that others could write to is refused, and so is a link", () =>
    Effect.gen(function*() {
      const open = path.join(scratch, "open")
      fs.mkdirSync(open, { mode: 0o755 })
      const link = path.join(scratch, "link")
      fs.mkdirSync(path.join(scratch, "aim"), { mode: 0o700 })
      fs.symlinkSync(path.join(scratch, "aim"), link)
      for (const refused of [open, link]) {
        const error = yield* Effect.scoped(
          Effect.flatMap(Local.provider({ directory: refused }), ({ create }) => Effect.flip(create(policy)))
        )
        assert.instanceOf(error, SandboxUnavailable)
        assert.isTrue(fs.existsSync(refused), "what isn't ours stays, empty or not")
        assert.include(error.message, "0700")
      }
    }), timeout)

  it.scoped("a guest can't take a limit away from what is entering, but sets its own", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      const program = (pid: string) =>
        `python3 -c 'import resource, os; resource.prlimit(${pid}, resource.RLIMIT_NOFILE, (9, 9)); print("done")'`
      assert.strictEqual(yield* sh(machine, program("0")), "done\n")
      assert.include(
        yield* sh(machine, `sleep 9 & ${program("int(os.popen(\"pgrep sleep\").read().split()[-1])")} 2>&1 || true`),
        "PermissionError"
      )
      assert.strictEqual(yield* sh(machine, "ulimit -n 20; ulimit -n"), "20\n")
    }), timeout)

  it.scoped("what lies in the registry and isn't an entry holds nobody up", () =>
    Effect.gen(function*() {
      const odd = path.join(scratch, "odd")
      fs.mkdirSync(odd, { mode: 0o700 })
      // Opened for reading, this one waits for a writer, and with it everything that the process does.
      spawnSync("mkfifo", [path.join(odd, "sbx-003aaaaaaaaaaaaaa.json")])
      fs.symlinkSync("/dev/zero", path.join(odd, "sbx-004aaaaaaaaaaaaaa.json"))
      fs.mkdirSync(path.join(odd, "sbx-005aaaaaaaaaaaaaa.json"))
      const provider = yield* Local.provider({ directory: odd })
      yield* provider.destroy((yield* provider.create(policy)).id)
    }), timeout)

  it.scoped.runIf(isRoot)("without perl on the machine, python3 does its part", () =>
    Effect.gen(function*() {
      const host = yield* another([
        ...["unshare", "--mount", "--propagation", "private", "--", "sh", "-c"],
        "for perl in /usr/bin/perl /usr/local/bin/perl; do [ ! -e $perl ] || mount --bind /dev/null $perl; done; exec \"$0\" \"$@\""
      ])
      const printed = yield* host.until("exec")
      assert.include(printed, "confined 2 128 1000\n")
      assert.include(printed, "descriptors 0 1 2 \n")
      const { id } = (yield* (yield* SandboxProvider).find({ victim: "yes" }))[0] ??
        (yield* new Wrong({ found: "nothing" }))
      const found = fs.readFileSync(`/proc/${entry(id).pid}/mountinfo`, "utf8")
      assert.include(found, "/usr/bin/perl")
    }), timeout)

  // Where fork fails for whatever number of processes, it can only be one that is used up.
  it.scoped.runIf(!isRoot)("no room for a process is a quota that is used up", () =>
    Effect.gen(function*() {
      const provider = yield* Local.provider({ directory: path.join(scratch, "few") })
      // Started before, as this one can't start any meanwhile: it gets back what it may have now.
      const limit = `prlimit --pid ${process.pid} --nproc=`
      const helper = yield* Effect.acquireRelease(
        Effect.sync(() =>
          spawn("bash", ["-c", `before=$(ulimit -Su); ${limit}1: && echo low; read -r; exec ${limit}$before:`], {
            stdio: ["pipe", "pipe", "inherit"]
          })
        ),
        (helper) =>
          Effect.promise(() => {
            const ended = once(helper, "exit")
            helper.stdin.end()
            return ended
          })
      )
      yield* Effect.promise(() => once(helper.stdout, "data"))
      const error = yield* Effect.flip(provider.create(policy))
      assert.deepInclude(error, { _tag: "SandboxUnavailable", reason: "quota" })
      assert.include(error.message, "ulimit -u")
      assert.notInclude(error.message, "doctor")
    }), timeout)

  vitestIt("a setup that is told of no room for a process says that a quota is used up", () => {
    const full = Create.explain("unshare: Resource temporarily unavailable\n")
    assert.include(full.quota, "pids.max")
    assert.isUndefined(Create.explain("unshare: Operation not permitted\n").quota)
    assert.isUndefined(Create.explain("").quota)
  })

  it.scoped("a template that isn't there is refused", () =>
    Effect.gen(function*() {
      const error = yield* Effect.flip(
        Effect.flatMap(SandboxProvider, ({ create }) => create({ ...policy, templateId: "other" }))
      )
      assert.instanceOf(error, SandboxUnavailable)
      assert.strictEqual(error.reason, "template")
    }), timeout)

  it.scoped("64 descriptors are enough for a sandbox and its commands", () =>
    Effect.gen(function*() {
      const host = yield* another(["sh", "-c", "ulimit -n 64; exec \"$0\" \"$@\""])
      assert.include(yield* host.until("exec"), "confined 2 128 1000\n")
    }), timeout)

  it.effect(
    "the doctor finds nothing missing where sandboxes can be made, as it makes one",
    () =>
      Effect.gen(function*() {
        const found = yield* checks
        assert.deepStrictEqual(found.filter(({ status }) => status === "failed"), [])
        assert.deepStrictEqual(found.at(-1)?.id, "sandbox")
      }),
    timeout
  )

  const doctor = (wrapper: ReadonlyArray<string>) =>
    Effect.sync(() => {
      const own = path.join(scratch, "doctor")
      const [command = "", ...words] = [...wrapper, process.execPath, path.join(scratch, "doctor.cjs")]
      const { stderr, stdout } = spawnSync(command, words, {
        encoding: "utf8",
        env: { PATH: process.env["PATH"], EPISODE_LOCAL_DIRECTORY: own }
      })
      assert.strictEqual(stderr, "")
      assert.isFalse(fs.existsSync(own), "nothing is left")
      const found: ReadonlyArray<typeof Check.Encoded> = JSON.parse(stdout)
      return found.filter(({ status }) => status === "failed").map(({ id, todo = "" }) => ({ id, todo }))
    })

  it.effect("the doctor finds nothing to fail where descriptors are few", () =>
    Effect.gen(function*() {
      assert.deepStrictEqual(yield* doctor(["sh", "-c", "ulimit -n 64; exec \"$0\" \"$@\""]), [])
    }), timeout)

  it.effect("a /proc of another pid namespace is refused, and the doctor sees it", () =>
    Effect.gen(function*() {
      const own = isRoot ? [] : ["--user", "--map-current-user"]
      const wrapper = [...own, "--pid", "--fork", "--kill-child=KILL", "--"]
      const words = [...wrapper, process.execPath, path.join(scratch, "victim.cjs"), directory]
      assert.include(spawnSync("unshare", words, { encoding: "utf8" }).stderr, "/proc shows another pid namespace")
      assert.include((yield* doctor(["unshare", ...wrapper])).map(({ id }) => id), "own-proc")
    }), timeout)

  for (
    const [what, wrapper] of [
      ["of one id", ["unshare", "--user", "--map-root-user", "--"]],
      ["who can't change ids", ["setpriv", "--bounding-set", "-setuid,-setgid", "--inh-caps", "-all", "--"]]
    ] as const
  ) {
    it.effect.runIf(isRoot)(
      `the doctor knows by trying that root ${what} makes no sandbox, and says why`,
      () =>
        Effect.gen(function*() {
          const [first, ...others] = yield* doctor(wrapper)
          assert.deepStrictEqual(others, [])
          assert.strictEqual(first?.id, "sandbox")
          assert.match(first?.todo ?? "", /_map: Operation not permitted.*CAP_SETUID/)
        }),
      timeout
    )
  }
})

if (ordinary !== undefined) {
  vitestIt("Local: all of these tests pass for an ordinary user, too", async () => {
    const failure = await ordinary.failure
    assert.isUndefined(failure, failure)
  }, 300_000)
} else {
  vitestIt("Local: NOT TESTED AS ROOT, as this isn't root", () => {
    process.stderr.write(
      "\nLocal sandboxes were tested for an ordinary user alone: run the tests as root to test both.\n\n"
    )
  })
}

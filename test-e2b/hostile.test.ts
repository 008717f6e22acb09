/** What a guest may do to the programs that run on our behalf beside it: it is a result, and costs the host nothing. */
import { assert, layer as withLayer } from "@effect/vitest"
import { Duration, Effect } from "effect"
import { FileRead } from "../src/Sandbox.ts"
import { straight } from "../test/Sandbox/E2b/served.ts"
import { limits, read, sandbox, sh, text } from "../test/Sandbox/providerContract.ts"

const timeout = 60_000

/** The most that this process held meanwhile, beyond what it held before, in MiB. */
const growth = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function*() {
    const before = process.memoryUsage().rss
    let most = before
    const watch = yield* Effect.sync(() => {
      most = Math.max(most, process.memoryUsage().rss)
    }).pipe(Effect.delay("20 millis"), Effect.forever, Effect.fork)
    const result = yield* effect
    yield* watch.interruptAsFork(watch.id())
    return { result, mebibytes: (most - before) / 2 ** 20 }
  })

// Looks for our programs, and does something with what their output goes to.
const meddler = (flags: string, deed: string): string =>
  `import os, time
end = time.time() + 20
while time.time() < end:
  for pid in filter(str.isdigit, os.listdir('/proc')):
    try:
      words = open('/proc/%s/cmdline' % pid, 'rb').read().split(b'\\0')
      at = words.index(b'-c')
      if int(pid) == os.getpid() or b'__EPISODE_' not in words[at + 1]: continue
      mark = words[at + 2]
      fd = os.open('/proc/%s/fd/1' % pid, ${flags} | os.O_NONBLOCK)
      ${deed}
      os.close(fd)
    except (OSError, ValueError, IndexError): pass
`

withLayer(straight, { excludeTestServices: true, timeout })("a hostile guest of E2B", (it) => {
  it.scoped("may print a gibibyte", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      yield* sh(machine, "true")
      const { mebibytes, result } = yield* growth(
        machine.exec("head -c 1073741824 /dev/zero; echo done >&2", { ...limits, timeLimit: Duration.seconds(30) })
      )
      assert.strictEqual(result.stdout.totalBytes, 2 ** 30)
      assert.strictEqual(text(result.stderr), "done\n")
      console.log(`1 GiB of output: ${mebibytes.toFixed(1)} MiB on the host`)
      assert.isBelow(mebibytes, 64)
    }), timeout)

  it.scoped("may write into the output that is ours", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      yield* sh(machine, "true")
      const flood = "for fd in /proc/$PPID/fd/1; do head -c 300000000 /dev/zero >$fd; done; sleep 20"
      const { mebibytes, result } = yield* growth(machine.exec(flood, limits))
      console.log(`300 MB past the cap: ${mebibytes.toFixed(1)} MiB on the host`)
      assert.isBelow(mebibytes, 64)
      assert.strictEqual(result.exitCode, 137)
      yield* machine.health
      // And forge a reply of the right form, which is no more than it could have had honestly.
      const forged = yield* machine.exec(
        "mark=$(tr '\\0' '\\n' </proc/$PPID/cmdline | grep -E '^[0-9a-f]{32}$'); "
          + "printf '\\n%s:end:7:0:3:YWI=:Yw==:0::\\n' $mark >/proc/$PPID/fd/1; sleep 20",
        { ...limits, timeLimit: Duration.seconds(1) }
      )
      assert.include([7, 137], forged.exitCode)
    }), timeout)

  it.scoped("may stop everything it can reach", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      const result = yield* machine.exec("kill -STOP -1; sleep 20", { ...limits, timeLimit: Duration.seconds(1) })
      assert.deepStrictEqual([result.exitCode, result.killedAtLimit], [137, true])
      yield* machine.health
      assert.strictEqual((yield* machine.exec("exit 4", limits)).exitCode, 4)
    }), timeout)

  it.scoped("may write startup files and a python3 of its own", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      yield* sh(
        machine,
        "for f in .bash_profile .profile .bashrc .bash_login; do echo 'echo hello; exec sleep 100' >$f; done; "
          + "mkdir -p .local/bin; printf '#!/bin/sh\\nexec sleep 100\\n' >.local/bin/python3; chmod +x .local/bin/python3; "
          + "printf kept >file; echo 'raise SystemExit' >os.py; echo 'raise SystemExit' >/tmp/os.py"
      )
      assert.strictEqual(yield* sh(machine, "echo fine"), "fine\n")
      assert.deepStrictEqual(
        yield* read(machine, "/home/user/file"),
        FileRead.Bytes({ bytes: new TextEncoder().encode("kept") })
      )
    }), timeout)

  for (const [name, number] of [["STOP", 19], ["KILL", 9]] as const) {
    it.scoped(`may send ${name} to everything that comes near its file`, () =>
      Effect.gen(function*() {
        const machine = yield* sandbox()
        const attack = `import os\nwhile True:\n  try: os.kill(-1, ${number})\n  except OSError: pass`
        yield* sh(
          machine,
          `printf kept >file; (setsid python3 -c '${attack}' >/dev/null 2>&1 </dev/null &) ; sleep 0.2`
        ).pipe(
          // It may be faster than the end of the command that started it.
          Effect.catchAllDefect(() => Effect.void)
        )
        const found = yield* Effect.timed(read(machine, "/home/user/file"))
        console.log(`${name}: ${found[1]._tag} after ${Duration.format(found[0])}`)
        assert.deepStrictEqual(found[1], FileRead.Unreadable())
        yield* machine.health
      }), timeout)
  }

  const hijacks: ReadonlyArray<readonly [what: string, command: string]> = [
    ["the home that our programs are given", "mkdir -p /nonexistent && printf 'exit 0\\n' >/nonexistent/.bash_profile"],
    [
      "programs that start others",
      "mkdir -p .local/bin; cd .local/bin; for p in env bash sh timeout tar python3 setpriv; do "
      + "printf '#!/bin/sh\\nexit 0\\n' >$p; chmod +x $p; done"
    ],
    [
      "replies, by writing some",
      "cat >/tmp/a.py <<'EOF'\n" + meddler("os.O_WRONLY", "os.write(fd, b'\\n' + mark + b':JUNK\\n')")
      + "EOF\nsetsid nohup python3 /tmp/a.py >/dev/null 2>&1 </dev/null &"
    ],
    [
      "replies, by taking them",
      "cat >/tmp/a.py <<'EOF'\n" + meddler("os.O_RDONLY", "os.read(fd, 65536)")
      + "EOF\nsetsid nohup python3 /tmp/a.py >/dev/null 2>&1 </dev/null &"
    ],
    [
      "the end of replies, by holding them open",
      "cat >/tmp/a.py <<'EOF'\n" + meddler("os.O_WRONLY", "globals().setdefault('held', []).append(os.dup(fd))")
      + "EOF\nsetsid nohup python3 /tmp/a.py >/dev/null 2>&1 </dev/null &"
    ]
  ]
  for (const [what, command] of hijacks) {
    it.scoped(`may put itself in the place of ${what}`, () =>
      Effect.gen(function*() {
        const machine = yield* sandbox()
        yield* sh(machine, "printf kept >file")
        yield* machine.exec(command, limits)
        for (let n = 0; n < 3; n++) {
          assert.isAtMost((yield* machine.exec("echo fine", limits)).exitCode, 255)
          assert.include(["Bytes", "Unreadable"], (yield* read(machine, "/home/user/file"))._tag)
        }
        yield* machine.health
      }), timeout)
  }

  it.scoped("may use up its processes and its disk", () =>
    Effect.gen(function*() {
      const machine = yield* sandbox()
      yield* sh(machine, "printf kept >file")
      yield* machine.exec(
        "for n in $(seq 300); do sleep 300 & done 2>/dev/null; head -c 2G /dev/zero >/tmp/full; "
          + "head -c 2G /dev/zero >/home/user/full",
        limits
      )
      const result = yield* machine.exec("echo fine", limits)
      assert.isAtMost(result.exitCode, 255)
      const found = yield* read(machine, "/home/user/file")
      assert.include(["Unreadable", "Bytes"], found._tag)
      yield* machine.health
      yield* machine.exec("kill -9 -1", limits)
      assert.strictEqual((yield* machine.exec("exit 5", limits)).exitCode, 5)
    }), timeout)
})

import { assert, layer as withLayer } from "@effect/vitest"
import { CommandExitError, InvalidArgumentError, TimeoutError } from "e2b"
import * as Effect from "effect/Effect"
import { randomUUID } from "node:crypto"
import * as fs from "node:fs"
import * as Proc from "../../src/Sandbox/Local/Proc.ts"
import { ask, failure, layer, sandbox, within } from "./fixture.ts"

const timeout = 30_000

const wait = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds))

withLayer(layer, { excludeTestServices: true, timeout })("E2bServer: commands", (it) => {
  it.scoped("tell their streams, codes and signals", () =>
    Effect.gen(function*() {
      const made = yield* sandbox()
      const { exitCode, stderr, stdout } = yield* ask(() => made.commands.run("printf ü; printf e >&2"))
      assert.deepStrictEqual([exitCode, stdout, stderr], [0, "ü", "e"])
      const failed = yield* failure(() => made.commands.run("echo out; exit 3"))
      assert.instanceOf(failed, CommandExitError)
      assert.deepStrictEqual([failed.exitCode, failed.stdout, failed.error], [3, "out\n", "exit status 3"])
      const killed = yield* failure(() => made.commands.run("kill -9 $$"))
      assert.instanceOf(killed, CommandExitError)
      assert.deepStrictEqual([killed.exitCode, killed.error], [-1, "signal: killed"])
      const all = yield* failure(() => made.commands.run("kill -9 -1"))
      assert.instanceOf(all, CommandExitError)
      assert.strictEqual((yield* ask(() => made.commands.run("echo alive"))).stdout, "alive\n")
    }), timeout)

  it.effect("run where they are told, as a user who is there", () =>
    within(async (made) => {
      assert.strictEqual((await made.commands.run("pwd", { cwd: "/tmp" })).stdout, "/tmp\n")
      await made.files.makeDir("below")
      assert.strictEqual((await made.commands.run("pwd", { cwd: "below" })).stdout, "/home/user/below\n")
      const wrong = await made.commands.run("pwd", { cwd: "/nowhere" }).catch((error: unknown) => error)
      assert.instanceOf(wrong, InvalidArgumentError)
      assert.include(wrong.message, "cwd '/nowhere' does not exist")
      const nobody = await made.commands.run("true", { user: "nobody" }).catch((error: unknown) => error)
      assert.instanceOf(nobody, Error)
      assert.include(nobody.message, "invalid username: 'nobody'")
    }), timeout)

  it.effect(
    "get their variables as they are, which nobody else on this machine can read",
    () =>
      within(async (made) => {
        const word = randomUUID()
        const secret = `a "quoted" \\ ü\n=${word} `
        const command = await made.commands.run(
          "printf %s \"$SECRET\" >it; printf .%s. \"$EMPTY\" >>it; env -0 | cat; read",
          {
            background: true,
            stdin: true,
            envs: {
              SECRET: secret,
              EMPTY: "",
              HOME: "/tmp",
              PERL5OPT: "-d",
              BASH_ENV: "/nowhere",
              LD_PRELOAD: "/nowhere"
            }
          }
        )
        for (let text = ""; text !== `${secret}..`;) {
          text = await made.files.read("it").catch(() => "")
        }
        const argumentsOf = (pid: string) => Proc.attempt(() => fs.readFileSync(`/proc/${pid}/cmdline`, "latin1")) ?? ""
        const telling = fs.readdirSync("/proc").filter((name) =>
          /^[0-9]+$/.test(name) && argumentsOf(name).includes(word)
        )
        assert.deepStrictEqual(telling.map(argumentsOf), [])
        await made.commands.sendStdin(command.pid, "\n")
        const { stdout } = await command.wait()
        assert.includeMembers(stdout.split("\0"), [
          `SECRET=${secret}`,
          "EMPTY=",
          "HOME=/tmp",
          "PERL5OPT=-d",
          "LD_PRELOAD=/nowhere"
        ])
        assert.notInclude(stdout, "EPISODE")
      }),
    timeout
  )

  // An ordinary user's sandbox has no superuser to offer.
  it.effect.skipIf(process.getuid?.() !== 0)("run as the sandbox's superuser", () =>
    within(async (made) => {
      const root = await made.commands.run("id -u; pwd; echo $HOME $A; touch /root/x", {
        user: "root",
        envs: { A: "b c" }
      })
      assert.strictEqual(root.stdout, "0\n/root\n/root b c\n")
    }), timeout)

  it.effect("can be stopped, and go on", () =>
    within(async (made) => {
      // Stops itself once another waits to let it go on.
      const { stdout } = await made.commands.run(
        "me=$$; (until grep -q '^State:.T' /proc/$me/status; do :; done; kill -CONT $me) & kill -STOP $$; echo done"
      )
      assert.strictEqual(stdout, "done\n")
    }), timeout)

  it.effect("are over when nobody can write for them any more, as on E2B", () =>
    within(async (made) => {
      const both = await made.commands.run("(until [ -e go ]; do :; done; echo late) & echo early; touch go")
      assert.strictEqual(both.stdout, "early\nlate\n")
      // Red where its output breaks: what goes on in the background must not end of that.
      const apart = await made.commands.run("sleep 60 >/dev/null 2>&1 & echo done")
      assert.strictEqual(apart.stdout, "done\n")
      const held = await made.commands.run("sleep 60 & echo done; echo ready >ready", { background: true })
      while (!(await made.files.exists("ready"))) { /* It is on its way. */ }
      assert.isTrue(await held.kill())
      assert.strictEqual((await held.wait()).exitCode, 0)
    }), timeout)

  it.scoped("are killed at their limit, with all that they started", () =>
    Effect.gen(function*() {
      const made = yield* sandbox()
      const error = yield* failure(() => made.commands.run("trap '' TERM; sleep 61 & sleep 62", { timeoutMs: 700 }))
      assert.instanceOf(error, TimeoutError)
      assert.include(error.message, "deadline_exceeded")
      yield* ask(async () => {
        for (let left = 1; left > 0;) {
          left = Number((await made.commands.run("pgrep -cf '^sleep 6' || true")).stdout)
        }
      })
    }), timeout)

  it.effect(
    "outlive the one who started them, and can be listened to, signalled and listed",
    () =>
      within(async (made) => {
        const first = await made.commands.run("while :; do echo tick; sleep 0.05; done", {
          background: true,
          timeoutMs: 0
        })
        assert.deepStrictEqual((await made.commands.list()).map(({ cmd, pid }) => [cmd, pid]), [[
          "/bin/bash",
          first.pid
        ]])
        await first.disconnect()
        let heard = ""
        const second = await made.commands.connect(first.pid, {
          onStdout: (text) => {
            heard += text
          }
        })
        while (!heard.includes("tick")) {
          await wait(10)
        }
        assert.isTrue(await made.commands.kill(first.pid))
        const end = await second.wait().catch((error: unknown) => error)
        assert.instanceOf(end, CommandExitError)
        assert.strictEqual(end.error, "signal: killed")
        assert.isFalse(await made.commands.kill(first.pid))
        assert.deepStrictEqual(await made.commands.list(), [])
        // Its end is remembered for one who comes late.
        const late = await made.commands.connect(first.pid)
        assert.instanceOf(await late.wait().catch((error: unknown) => error), CommandExitError)
      }),
    timeout
  )

  it.effect("take input, and its end", () =>
    within(async (made) => {
      const cat = await made.commands.run("cat; echo over", { background: true, stdin: true })
      await made.commands.sendStdin(cat.pid, "a")
      await made.commands.sendStdin(cat.pid, "ü\n")
      await cat.closeStdin()
      assert.strictEqual((await cat.wait()).stdout, "aü\nover\n")
      const closed = await made.commands.run("cat; sleep 5", { background: true })
      const refused = await made.commands.sendStdin(closed.pid, "x").catch((error: unknown) => error)
      assert.instanceOf(refused, Error)
      assert.include(refused.message, "stdin not enabled or closed")
      await closed.closeStdin()
    }), timeout)

  it.effect("have terminals, of any size", () =>
    within(async (made) => {
      let printed = ""
      const terminal = await made.pty.create({
        cols: 80,
        rows: 24,
        envs: { FOO: "bar" },
        onData: (data) => {
          printed += new TextDecoder().decode(data)
        }
      })
      const type = (text: string) => made.pty.sendInput(terminal.pid, new TextEncoder().encode(text))
      await made.pty.resize(terminal.pid, { cols: 101, rows: 33 })
      await type("stty size; echo $FOO-$$; tty; exit 4\n")
      const end = await terminal.wait().catch((error: unknown) => error)
      assert.instanceOf(end, CommandExitError)
      assert.strictEqual(end.exitCode, 4)
      assert.include(printed, "33 101")
      assert.include(printed, `bar-${terminal.pid}`)
      assert.include(printed, "/dev/pts/")
      const other = await made.pty.create({ cols: 80, rows: 24, onData: () => {} })
      assert.isTrue(await made.pty.kill(other.pid))
      assert.instanceOf(await other.wait().catch((error: unknown) => error), CommandExitError)
      assert.isFalse(await made.pty.kill(other.pid))
      assert.strictEqual((await made.commands.run(`kill -0 ${other.pid} 2>&1 || echo gone`)).stdout.slice(-5), "gone\n")
    }), timeout)

  it.effect("come to a slow reader whole and in order, and wait for it", () =>
    within(async (made) => {
      let read = 0
      let held = 0
      const command = await made.commands.run("seq 1 3000000; echo end >/tmp/done", {
        background: true,
        onStdout: async (text) => {
          read += text.length
          if (held === 0) {
            // Nothing is taken meanwhile, so the command can't have come to its end.
            await wait(1000)
            held = await made.files.exists("/tmp/done") ? -1 : 1
          }
        }
      })
      const { stdout } = await command.wait()
      assert.strictEqual(read, stdout.length)
      assert.strictEqual(stdout.length, 22_888_896)
      assert.isTrue(stdout.endsWith("\n2999999\n3000000\n"))
      assert.strictEqual(held, 1)
    }), timeout)

  it.effect("run git", () =>
    within(async (made) => {
      await made.git.init("/home/user/repository", { initialBranch: "main" })
      await made.files.write("repository/file", "content")
      await made.git.add("/home/user/repository")
      await made.git.commit("/home/user/repository", "first", { authorName: "A", authorEmail: "a@example.com" })
      const status = await made.git.status("/home/user/repository")
      assert.strictEqual(status.currentBranch, "main")
      assert.isTrue(status.isClean)
    }), timeout)
})

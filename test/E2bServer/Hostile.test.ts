/** What a guest and a caller may do to this server: it is answered, in the way of its protocol, and costs no more than it may. */
import { assert, layer as withLayer } from "@effect/vitest"
import { CommandExitError, InvalidArgumentError, TimeoutError } from "e2b"
import * as Effect from "effect/Effect"
import { createHash } from "node:crypto"
import * as fs from "node:fs"
import { afterAll, it as vitestIt } from "vitest"
import * as OrdinaryUser from "../Sandbox/ordinaryUser.ts"
import { ask, Client, layer, type Sandbox, sandbox, within } from "./fixture.ts"

const timeout = 60_000

// As the other kind of user, at the same time: there a guest has the id of our programs beside it.
const ordinary = process.getuid?.() === 0 ? OrdinaryUser.start("test/E2bServer/Hostile.test.ts") : undefined

afterAll(() => ordinary?.stop())

const settled = (promise: Promise<unknown>): Promise<unknown> => promise.catch((error: unknown) => error)

/** A sandbox, and how to ask this server for it without the SDK. */
const raw = Effect.gen(function*() {
  const { apiKey, url } = yield* Client
  const made = yield* sandbox()
  const reply = yield* ask(() => fetch(`${url}/sandboxes/${made.sandboxId}`, { headers: { "x-api-key": apiKey } }))
  const { envdAccessToken } = yield* ask(() => reply.json() as Promise<{ envdAccessToken: string }>)
  const post = (path: string, type: string, body: string | Buffer, port = "49983") =>
    ask(async () => {
      const answer = await fetch(url + path, {
        method: "POST",
        headers: {
          "e2b-sandbox-id": made.sandboxId,
          "e2b-sandbox-port": port,
          "x-access-token": envdAccessToken,
          "content-type": type
        },
        body: new Uint8Array(Buffer.from(body))
      })
      return [answer.status, await answer.text()] as const
    })
  return { apiKey, made, post, token: envdAccessToken, url }
})

const envelope = (json: string): Buffer => {
  const head = Buffer.alloc(5)
  head.writeUInt32BE(Buffer.byteLength(json), 1)
  return Buffer.concat([head, Buffer.from(json)])
}

const attack = (signal: number) =>
  `import os\nos.setsid()\nwhile True:\n  try: os.kill(-1, ${signal})\n  except OSError: pass\n`

/** A program of a guest that goes on by itself. */
const launch = (made: Sandbox, program: string) =>
  made.files.write("attack.py", program).then(() =>
    settled(made.commands.run("nohup python3 attack.py >/dev/null 2>&1 </dev/null &"))
  )

withLayer(layer, { excludeTestServices: true, timeout })("E2bServer: hostile guests", (it) => {
  it.effect("what they put in the place of the system's programs is theirs alone", () =>
    within(async (made) => {
      await made.commands.run(
        "mkdir -p .local/bin; for p in env python3 bash sh timeout tar; do "
          + "printf '#!/bin/sh\\nexit 0\\n' >.local/bin/$p; chmod +x .local/bin/$p; done",
        { cwd: "/home/user" }
      )
      // Nor could a superuser, where there is one.
      for (const user of ordinary === undefined ? ["user"] : ["user", "root"]) {
        const { stdout } = await made.commands.run(
          "exec 2>/dev/null; for d in bin sbin lib lib64 etc home usr proc .ns; do "
            + "/usr/bin/rm -f /$d; [ -e /$d ] && /usr/bin/mv /$d /not-$d && echo $d; /usr/bin/mkdir /$d; done; "
            + "echo /tmp/theirs.so >/etc/ld.so.preload && echo preload; true",
          { cwd: "/", user }
        )
        assert.strictEqual(stdout, "")
      }
      assert.strictEqual((await made.commands.run("echo fine", { cwd: "/" })).stdout, "fine\n")
      await made.files.write("file", "kept")
      assert.strictEqual(await made.files.read("file"), "kept")
      const terminal = await made.pty.create({ cols: 80, rows: 24, onData: () => {} })
      assert.isTrue(await made.pty.kill(terminal.pid))
    }), timeout)

  it.effect("what kills everything that comes is answered as a command that was killed", () =>
    within(async (made) => {
      await made.files.write("file", "kept")
      await launch(made, attack(9))
      for (let n = 0; n < 5; n++) {
        const end = await settled(made.commands.run("sleep 20", { cwd: "/" }))
        assert.instanceOf(end, CommandExitError)
        assert.strictEqual(end.error, "signal: killed")
        const read = await settled(made.files.read("file"))
        assert.isTrue(read === "kept" || read instanceof InvalidArgumentError, String(read))
        const terminal = await settled(made.pty.create({ cols: 80, rows: 24, onData: () => {} }))
        assert.isFalse(terminal instanceof Error && !(terminal instanceof InvalidArgumentError), String(terminal))
      }
      assert.isTrue(await made.isRunning())
    }), timeout)

  it.effect("what ends everything in another way is, too", () =>
    within(async (made) => {
      await launch(made, attack(15))
      for (let n = 0; n < 5; n++) {
        const end = await settled(made.commands.run("exec sleep 20", { cwd: "/" }))
        assert.isTrue(end instanceof CommandExitError || end instanceof InvalidArgumentError, String(end))
      }
    }), timeout)

  it.effect("what stops everything that comes holds up a command until its limit", () =>
    within(async (made) => {
      await launch(made, attack(19))
      const end = await settled(made.commands.run("sleep 20", { cwd: "/", timeoutMs: 3000 }))
      assert.instanceOf(end, TimeoutError)
      assert.include(end.message, "deadline_exceeded")
      assert.isTrue(await made.isRunning())
    }), timeout)

  it.scoped("code that ends what runs it has come to an error", () =>
    Effect.gen(function*() {
      const { post } = yield* raw
      for (
        const code of [
          "import os; os.kill(os.getppid(), 9)",
          "import os; os.kill(-1, 9)",
          "import os\nos.kill(os.getppid(), 15)\nwhile True: pass"
        ]
      ) {
        const [status, text] = yield* post("/execute", "application/json", JSON.stringify({ code }), "49999")
        assert.strictEqual(status, 200)
        const types = text.trim().split("\n").map((line) => (JSON.parse(line) as { type: string }).type)
        assert.include(types, "error", code)
        assert.strictEqual(types.at(-1), "end_of_execution")
      }
    }), timeout)

  it.effect("directories without end are refused as the caller's", () =>
    within(async (made) => {
      await made.files.write(
        "deep.py",
        "import os\nfor _ in range(1500):\n  os.mkdir('d'); os.chdir('d')\n"
      )
      await made.commands.run("cd /tmp; python3 ~/deep.py")
      const listed = await settled(made.files.list("/tmp/d", { depth: 2000 }))
      assert.isTrue(Array.isArray(listed) || listed instanceof InvalidArgumentError, String(listed))
      const removed = await settled(made.files.remove("/tmp/d"))
      assert.isTrue(removed === undefined || removed instanceof InvalidArgumentError, String(removed))
    }), timeout)

  it.effect("a directory to begin in is there, is one, and may be entered", () =>
    within(async (made) => {
      assert.strictEqual((await made.commands.run("pwd", { cwd: "~" })).stdout, "/home/user\n")
      await made.commands.run("mkdir -p below; : >file")
      assert.strictEqual((await made.commands.run("pwd", { cwd: "~/below" })).stdout, "/home/user/below\n")
      for (const [cwd, message] of [["nowhere", "does not exist"], ["file", "is not a directory"]] as const) {
        const wrong = await settled(made.commands.run("pwd", { cwd }))
        assert.instanceOf(wrong, InvalidArgumentError)
        assert.include(wrong.message, `cwd '${cwd}' ${message}`)
      }
    }), timeout)

  it.scoped("programs that have ended hold no descriptor", () =>
    Effect.gen(function*() {
      const made = yield* sandbox()
      const held = () => fs.readdirSync("/proc/self/fd").length
      yield* ask(() => made.commands.run("true"))
      const before = held()
      for (let n = 0; n < 60; n++) {
        yield* ask(() => made.commands.run("true"))
      }
      // Red where they are kept for as long as an end is remembered: one or two for each.
      assert.isBelow(held() - before, 30)
    }), timeout)
})

withLayer(layer, { excludeTestServices: true, timeout })("E2bServer: hostile callers", (it) => {
  it.scoped("JSON without an end of brackets is invalid, whomever it is for", () =>
    Effect.gen(function*() {
      const { apiKey, post, url } = yield* raw
      const deep = "[".repeat(200_000) + "]".repeat(200_000)
      for (const json of ["[".repeat(200_000), deep, `{"process":${deep}}`]) {
        const [status, text] = yield* post("/process.Process/Start", "application/connect+json", envelope(json))
        assert.strictEqual(status, 200)
        assert.nestedPropertyVal(JSON.parse(text.slice(5)), "error.code", "invalid_argument")
        const [unary, body] = yield* post("/process.Process/SendSignal", "application/json", json)
        assert.deepStrictEqual([unary, (JSON.parse(body) as { code: string }).code], [400, "invalid_argument"])
        assert.strictEqual((yield* post("/execute", "application/json", json, "49999"))[0], 400)
        const created = yield* ask(() =>
          fetch(`${url}/v2/sandboxes`, { method: "POST", headers: { "x-api-key": apiKey }, body: json })
        )
        assert.deepStrictEqual([created.status, (yield* ask(() => created.json() as Promise<{ code: number }>)).code], [
          400,
          400
        ])
      }
    }), timeout)

  it.scoped("JSON with mistakes without end is answered in few words", () =>
    Effect.gen(function*() {
      const { apiKey, url } = yield* raw
      const create = (body: string) =>
        ask(async () => {
          const reply = await fetch(`${url}/v2/sandboxes`, { method: "POST", headers: { "x-api-key": apiKey }, body })
          return [reply.status, (await reply.json() as { message: string }).message] as const
        })
      const body = (metadata: unknown) => JSON.stringify({ templateID: "base", metadata })
      const wrong = Array.from({ length: 6000 }, (_, key) => [`key-${key}`, ["x".repeat(100)]])
      const [status, message] = yield* create(body(Object.fromEntries(wrong)))
      assert.strictEqual(status, 400)
      assert.match(message, /metadata\.key-[0-9]+: Expected string, actual \["x+/)
      assert.isBelow(message.length, 10_000)
      const [other, short] = yield* create(body(Array.from({ length: 60_000 }, () => 0)))
      assert.strictEqual(other, 400)
      assert.include(short, "it holds more than 50000 values")
    }), timeout)

  it.effect("input of many megabytes is taken", () =>
    within(async (made) => {
      const count = await made.commands.run("wc -c", { background: true, stdin: true })
      await made.commands.sendStdin(count.pid, "x".repeat(8 * 2 ** 20))
      await count.closeStdin()
      assert.strictEqual((await count.wait()).stdout.trim(), String(8 * 2 ** 20))
    }), timeout)

  it.scoped("many requests about files at once warn of nothing", () =>
    Effect.gen(function*() {
      const { post } = yield* raw
      const warnings: Array<string> = []
      const listen = ({ name }: Error) => warnings.push(name)
      yield* Effect.acquireRelease(
        Effect.sync(() => process.on("warning", listen)),
        () => Effect.sync(() => process.off("warning", listen))
      )
      const asked = JSON.stringify({ path: `/tmp/${"x".repeat(100_000)}` })
      yield* Effect.all(
        Array.from({ length: 150 }, () => post("/filesystem.Filesystem/Stat", "application/json", asked)),
        { concurrency: "unbounded" }
      )
      assert.notInclude(warnings, "MaxListenersExceededWarning")
    }), timeout)

  it.scoped("a sandbox isn't made with variables that no program could have", () =>
    Effect.gen(function*() {
      const { apiKey, url } = yield* Client
      for (const envVars of [{ "A=B": "c" }, { "": "c" }, { A: "b\0" }]) {
        const reply = yield* ask(() =>
          fetch(`${url}/v2/sandboxes`, {
            method: "POST",
            headers: { "x-api-key": apiKey },
            body: JSON.stringify({ templateID: "base", envVars })
          })
        )
        assert.strictEqual(reply.status, 400)
      }
      const large = yield* ask(() =>
        fetch(`${url}/v2/sandboxes`, {
          method: "POST",
          headers: { "x-api-key": apiKey },
          body: " ".repeat(2 ** 20 + 1)
        })
      )
      assert.strictEqual(large.status, 413)
    }), timeout)

  it.scoped("the end of a signature is a number of seconds", () =>
    Effect.gen(function*() {
      const { token, url } = yield* raw
      for (const expiration of ["Infinity", "0xffffffffff", " 99999999999", "1e12", ""]) {
        const signed = createHash("sha256").update(`x:read::${token}:${expiration}`).digest("base64").replace(/=+$/, "")
        const query = new URLSearchParams({
          path: "x",
          signature: `v1_${signed}`,
          signature_expiration: expiration
        })
        assert.strictEqual((yield* ask(() => fetch(`${url}/files?${query}`))).status, 401, expiration)
      }
    }), timeout)
})

if (ordinary !== undefined) {
  vitestIt("E2bServer: hostile guests of an ordinary user's sandboxes may do no more", async () => {
    const failure = await ordinary.failure
    assert.isUndefined(failure, failure)
  }, 300_000)
}

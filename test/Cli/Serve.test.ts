/** The servers of OpenEnv environments as a user starts and ends them, over real sandboxes. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Fiber } from "effect"
import { spawn } from "node:child_process"
import * as fs from "node:fs"
import * as Client from "../../src/OpenEnv/Client.ts"
import * as NodeTransport from "../../src/OpenEnv/NodeTransport.ts"
import { assertNothingLeft, bin, directory, ending, environment, episode, root, taskFile } from "./commandLine.ts"

/** Serves while a client is at work, and is interrupted while the client's sandbox is still there. */
const interrupted = <E>(args: ReadonlyArray<string>, play: (client: Client.Client) => Effect.Effect<void, E>) =>
  Effect.scoped(Effect.gen(function*() {
    const own = yield* directory
    const child = yield* Effect.acquireRelease(
      Effect.sync(() =>
        spawn(process.execPath, [bin, "serve", ...args, "--port", "0"], {
          cwd: root,
          env: environment(own),
          stdio: ["ignore", "pipe", "pipe"]
        })
      ),
      (child) => Effect.sync(() => child.kill("SIGKILL"))
    )
    const ended = yield* Effect.fork(ending(child))
    const url = yield* Effect.async<string>((resume) => {
      child.stdout.on("data", (chunk: Buffer | string) => {
        const found = /^(http:\/\/127\.0\.0\.1:\d+)\n$/.exec(String(chunk))?.[1]
        if (found !== undefined) {
          resume(Effect.succeed(found))
        }
      })
      child.once("close", () => resume(Effect.dieMessage("it ended before it served")))
    })
    const client = yield* Client.connect({ url })
    yield* play(client)
    assert.isNotEmpty(fs.readdirSync(`${own}/sandboxes`))
    child.kill("SIGINT")
    const { code, stderr, stdout } = yield* Fiber.join(ended)
    assert.strictEqual(code, 130, stderr)
    assert.strictEqual(stdout, `${url}\n`)
    assert.include(stderr, `clients connect to ${url}`)
    assert.strictEqual(stderr.includes("every reset has to bring a task"), args.join() === "openenv")
    assert.match(stderr, /\ninterrupted: deleting 1 sandbox; /)
    assert.match(stderr, /\nepisode: every sandbox is deleted, absence confirmed\n$/)
    assertNothingLeft(own)
  })).pipe(Effect.provide(NodeTransport.layerWebSocketConstructor()))

const said = ({ observation }: Client.Observed): unknown => {
  const { result } = observation as { readonly result: { readonly data: unknown } }
  return result.data
}

describe("episode serve", () => {
  it.live("openenv: serves episodes until it is interrupted", () =>
    interrupted(["openenv", "--task", taskFile], (client) =>
      Effect.gen(function*() {
        assert.strictEqual((yield* client.reset()).metadata["status"], "ready")
        assert.strictEqual((yield* client.callTool("submit")).reward, 0)
        yield* client.reset()
        assert.strictEqual(said(yield* client.callTool("terminal", { command: "echo hello" })), "hello")
      })))

  it.live("terminus: serves bare terminals until it is interrupted", () =>
    interrupted(["terminus"], (client) =>
      Effect.gen(function*() {
        const ready = yield* client.reset({ setup: "echo made > made.txt", verify: ["test -f made.txt", "false"] })
        assert.strictEqual(ready.metadata["status"], "ready")
        const hole = "/home/user/logs/verifier/reward.txt"
        const first = yield* client.callTool("terminal", {
          command: `echo 1 > ${hole} && cat made.txt ${hole} && false`
        })
        assert.strictEqual(said(first), "made\n1\nERROR:\nSystemExit: 1")
        // A single line, as long as what a client may send through here.
        const long = yield* client.callTool("terminal", { command: "head -c 150000 /dev/urandom | base64 -w 0" })
        assert.strictEqual(String(said(long)).length, 200_000)
        const answered = yield* client.callTool("terminal", { final_answer: "done" })
        assert.deepInclude(answered, { reward: 0.5, done: true })
        const failed = yield* client.reset({ setup: "exit 7" })
        assert.deepInclude(failed.metadata, { status: "error" })
        assert.strictEqual((yield* client.reset()).metadata["status"], "ready")
      })))

  const mistakes: ReadonlyArray<readonly [flags: ReadonlyArray<string>, word: string]> = [
    [["--max-sessions", "0"], "--max-sessions is at least 1"],
    [["--max-sessions", "x"], "--max-sessions is at least 1, not 'x'"],
    [["--port", "65536"], "--port is 0 to 65535, not '65536'"],
    [["--port", "-1"], "--port is 0 to 65535"],
    [["--port", "abc"], "--port is 0 to 65535, not 'abc'"],
    [["--host", ""], "--host is empty"],
    [["--host", "0.0.0.0"], "EPISODE_OPENENV_TOKEN"],
    [["--host", "no-such-host.invalid"], "this machine has no such address"],
    [["--column", "seed"], "--column seed: a reset has an argument of that name"]
  ]
  for (const server of ["openenv", "terminus"]) {
    it.live.each(mistakes)(
      `${server}: refuses %j`,
      ([flags, word]) =>
        Effect.map(episode(["serve", server, ...flags]), ({ code, stderr, stdout }) => {
          assert.deepStrictEqual([code, stdout], [2, ""], stderr)
          assert.include(stderr, word)
        })
    )
  }

  /** What a server says until it is told to end. */
  const told = (args: ReadonlyArray<string>, env: Readonly<Record<string, string>>) =>
    Effect.scoped(Effect.gen(function*() {
      const own = yield* directory
      const child = yield* Effect.acquireRelease(
        Effect.sync(() =>
          spawn(process.execPath, [bin, "serve", ...args, "--port", "0"], {
            cwd: own,
            env: environment(own, env),
            stdio: ["ignore", "pipe", "pipe"]
          })
        ),
        (child) => Effect.sync(() => child.kill("SIGKILL"))
      )
      child.stderr.on("data", (chunk: Buffer | string) => {
        if (String(chunk).includes("serving until")) {
          child.kill("SIGINT")
        }
      })
      const ended = yield* ending(child)
      assert.strictEqual(ended.code, 130, ended.stderr)
      return ended
    }))

  it.live("prints addresses that clients can use where it listens on all", () =>
    Effect.gen(function*() {
      const env = { EPISODE_OPENENV_TOKEN: "only-for-this-test" }
      for (const [host, loopback] of [["0.0.0.0", "127.0.0.1"], ["::", "[::1]"]] as const) {
        const openenv = yield* told(["openenv", "--host", host], env)
        assert.isTrue(openenv.stdout.startsWith(`http://${loopback}:`), openenv.stdout)
        assert.include(openenv.stderr, `name or address in place of ${loopback}`)
        assert.include(openenv.stderr, "every reset has to bring a task")
        const e2b = yield* told(["e2b", "--host", host], {})
        assert.include(e2b.stdout, `E2B_API_URL=http://${loopback}:`)
        assert.include(e2b.stderr, `name or address in place of ${loopback}`)
      }
    }), 60_000)

  it.live("e2b: says that its key isn't the one that is set", () =>
    Effect.gen(function*() {
      const words = "the E2B_API_KEY that is set is another one"
      assert.include((yield* told(["e2b"], { E2B_API_KEY: "other" })).stderr, words)
      assert.notInclude((yield* told(["e2b"], {})).stderr, words)
      const same = yield* told(["e2b"], { E2B_API_KEY: "e2b_1", EPISODE_E2B_SERVER_KEY: "e2b_1" })
      assert.notInclude(same.stderr, words)
    }), 60_000)

  const refusedByE2b: ReadonlyArray<readonly [flags: ReadonlyArray<string>, code: number, word: string]> = [
    [["--port", "-1"], 2, "--port is 0 to 65535, not '-1'"],
    [["--port", "abc"], 2, "--port is 0 to 65535, not 'abc'"],
    [["--host", "no-such-host.invalid"], 3, "can't listen on no-such-host.invalid:0: this machine has no such address"]
  ]
  it.live.each(refusedByE2b)(
    "e2b: refuses %j",
    ([flags, code, word]) =>
      Effect.map(episode(["serve", "e2b", ...flags]), (ended) => {
        assert.deepStrictEqual([ended.code, ended.stdout], [code, ""], ended.stderr)
        assert.include(ended.stderr, `episode: ${word}`)
      })
  )
})

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
    [["--port", "65536"], "--port is 0 to 65535"],
    [["--host", "0.0.0.0"], "EPISODE_OPENENV_TOKEN"]
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
})

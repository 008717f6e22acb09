/** Policies in the sandboxes of a Terminus server, by the program as it is built: two processes that share only ids. */
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { spawn } from "node:child_process"
import { once } from "node:events"
import {
  assertNothingLeft,
  bin,
  directory,
  ending,
  environment,
  episode,
  receiptOf,
  runProgram
} from "./commandLine.ts"

const token = "only-for-this-test"

const withTokens = (own: string, given: string) => environment(own, { EPISODE_OPENENV_TOKEN: given })

/** A server, until the scope ends. */
const terminus = (own: string) =>
  Effect.gen(function*() {
    const child = yield* Effect.acquireRelease(
      Effect.sync(() =>
        spawn(process.execPath, [bin, "serve", "terminus", "--port", "0"], {
          env: withTokens(own, token),
          stdio: ["ignore", "pipe", "pipe"]
        })
      ),
      (child) =>
        Effect.promise(async () => {
          if (child.exitCode === null && child.signalCode === null) {
            child.kill("SIGINT")
            await once(child, "exit")
          }
        })
    )
    const ended = yield* Effect.fork(ending(child))
    const [url] = yield* Effect.promise(() => once(child.stdout, "data"))
    return { url: String(url).trim(), ended }
  })

const runWith = (own: string, given: string, args: ReadonlyArray<string>) =>
  runProgram([process.execPath, bin, ...args], { env: withTokens(own, given) })

describe("--provider openenv", () => {
  it.live(
    "runs the demo in the sandboxes of `serve terminus`, and confirms them absent itself",
    () =>
      Effect.gen(function*() {
        const own = yield* directory
        yield* Effect.gen(function*() {
          const { url } = yield* terminus(own)
          const flags = ["--provider", "openenv", "--openenv-url", url.replace("http", "ws")]
          const { code, stderr, stdout } = yield* runWith(own, token, ["demo", ...flags, "--json"])
          assert.strictEqual(code, 0, stderr)
          const receipt = yield* receiptOf(stdout)
          assert.deepStrictEqual(receipt.rewards, [0, 1])
          assert.deepStrictEqual(receipt.episodes.map(({ provider }) => provider), ["openenv", "openenv"])
          const resources = receipt.episodes.flatMap(({ resources }) => resources)
          assert.deepStrictEqual(resources.map(({ role }) => role), ["policy", "verifier", "policy", "verifier"])
          assert.isTrue(resources.every(({ confirmedAbsentAt }) => confirmedAbsentAt !== null))
          assert.notInclude(stdout + stderr, token)

          const doctor = yield* runWith(own, token, ["doctor", ...flags])
          assert.include(doctor.stdout, "the server at --openenv-url: healthy")
          const refused = yield* runWith(own, "another", ["demo", ...flags])
          assert.strictEqual(refused.code, 3, refused.stderr)
          assert.include(refused.stderr, "EPISODE_OPENENV_TOKEN")
          assert.notMatch(refused.stderr, /not proved gone|another/)
        }).pipe(Effect.scoped)
        assertNothingLeft(own)
      }).pipe(Effect.scoped),
    60_000
  )

  const mistakes: ReadonlyArray<readonly [args: ReadonlyArray<string>, word: string]> = [
    [["--provider", "openenv"], "needs --openenv-url"],
    [["--openenv-url", "ws://127.0.0.1:1"], "go with --provider openenv"],
    [["--openenv-sandboxes", "e2b"], "go with --provider openenv"],
    [["--provider", "openenv", "--openenv-url", "127.0.0.1:1"], "is a ws, wss, http or https URL"],
    [["--provider", "openenv", "--openenv-url", "ws://any:hunter2@127.0.0.1:1"], "without a password"],
    [["--provider", "openenv", "--openenv-url", "ws://h?token=hunter2"], "EPISODE_OPENENV_TOKEN"],
    [["--provider", "openenv", "--openenv-url", "ws://h", "--openenv-sandboxes", "x"], "is local or e2b, not 'x'"]
  ]

  it.live.each(mistakes)("refuses %j", ([args, word]) =>
    Effect.gen(function*() {
      for (const command of [["demo"], ["doctor"]]) {
        const { code, stderr, stdout } = yield* episode([...command, ...args])
        assert.deepStrictEqual([code, stdout], [2, ""], stderr)
        assert.include(stderr, word)
        assert.notInclude(stderr, "hunter2")
      }
    }))

  it.live("says when nobody listens, and that nothing was allocated", () =>
    Effect.gen(function*() {
      const { code, stderr } = yield* episode(["demo", "--provider", "openenv", "--openenv-url", "ws://127.0.0.1:1"])
      assert.strictEqual(code, 3, stderr)
      assert.include(stderr, "there is no connection to the Terminus server")
      const doctor = yield* episode(["doctor", "--provider", "openenv", "--openenv-url", "ws://127.0.0.1:1"])
      assert.strictEqual(doctor.code, 3)
      assert.include(doctor.stdout, "MISSING  the server at --openenv-url: start it")
    }))
})

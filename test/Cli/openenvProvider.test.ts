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
const serving = (own: string, server: "terminus" | "openenv") =>
  Effect.gen(function*() {
    const child = yield* Effect.acquireRelease(
      Effect.sync(() =>
        spawn(process.execPath, [bin, "serve", server, "--port", "0"], {
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
          const { url } = yield* serving(own, "terminus")
          const flags = ["--provider", "openenv", "--openenv-url", url.replace("http", "ws")]
          const { code, stderr, stdout } = yield* runWith(own, token, ["demo", ...flags, "--json"])
          assert.strictEqual(code, 0, stderr)
          assert.include(stderr, "provider openenv (sandboxes: local, since E2B_API_KEY isn't set)\n")
          const receipt = yield* receiptOf(stdout)
          assert.deepStrictEqual(receipt.rewards, [0, 1])
          assert.deepStrictEqual(receipt.episodes.map(({ provider }) => provider), ["openenv", "openenv"])
          const resources = receipt.episodes.flatMap(({ resources }) => resources)
          assert.deepStrictEqual(resources.map(({ role }) => role), ["policy", "verifier", "policy", "verifier"])
          assert.isTrue(resources.every(({ confirmedAbsentAt }) => confirmedAbsentAt !== null))
          assert.notInclude(stdout + stderr, token)

          const doctor = yield* runWith(own, token, ["doctor", ...flags])
          assert.include(doctor.stdout, "the server at --openenv-url: healthy")
          assert.include(doctor.stdout, "its sandboxes are looked for: local, since E2B_API_KEY isn't set")
          const unwelcome = yield* runWith(own, "another", ["doctor", ...flags, "--openenv-sandboxes", "local"])
          assert.include(unwelcome.stdout, "it doesn't accept the token in EPISODE_OPENENV_TOKEN")
          assert.include(unwelcome.stdout, "its sandboxes are looked for: local\n")
          const refused = yield* runWith(own, "another", ["demo", ...flags])
          assert.strictEqual(refused.code, 3, refused.stderr)
          assert.include(refused.stderr, "is that the one in EPISODE_OPENENV_TOKEN?")
          assert.notMatch(refused.stderr, /not proved gone|another/)
        }).pipe(Effect.scoped)
        assertNothingLeft(own)
      }).pipe(Effect.scoped),
    60_000
  )

  it.live("tells a server of episodes from one of Terminus", () =>
    Effect.gen(function*() {
      const own = yield* directory
      const { url } = yield* serving(own, "openenv")
      const flags = ["--provider", "openenv", "--openenv-url", url]
      const doctor = yield* runWith(own, token, ["doctor", ...flags])
      assert.strictEqual(doctor.code, 3)
      assert.include(doctor.stdout, "it serves episodes and isn't a Terminus server")
      const demo = yield* runWith(own, token, ["demo", ...flags])
      assert.strictEqual(demo.code, 3)
      assert.include(demo.stdout, "no sandbox was made")
      assert.include(demo.stderr, "is it a Terminus server?")
    }).pipe(Effect.scoped), 30_000)

  it.live("says where it looks for sandboxes and why, and what it can't reach there", () =>
    Effect.gen(function*() {
      const own = yield* directory
      const { url } = yield* serving(own, "terminus")
      const { code, stderr, stdout } = yield* runProgram(
        [process.execPath, bin, "demo", "--provider", "openenv", "--openenv-url", url],
        {
          env: environment(own, {
            EPISODE_OPENENV_TOKEN: token,
            E2B_API_KEY: "hunter2",
            E2B_API_URL: "http://127.0.0.1:2"
          })
        }
      )
      assert.strictEqual(code, 3, stderr)
      assert.include(stdout, "provider openenv (sandboxes: e2b, since E2B_API_KEY is set)\n")
      assert.include(stdout, "no sandbox is known of")
      assert.match(stderr, /the e2b provider, .* 127\.0\.0\.1:2.*--openenv-sandboxes/)
      assert.notInclude(stdout + stderr, "hunter2")
    }).pipe(Effect.scoped), 30_000)

  it.live.each(["", " ", "a b", "\u00e9"])("refuses the token %j on both sides", (given) =>
    Effect.gen(function*() {
      const env = { EPISODE_OPENENV_TOKEN: given }
      const flags = ["--provider", "openenv", "--openenv-url", "ws://127.0.0.1:1"]
      for (const args of [["serve", "openenv"], ["serve", "terminus"], ["demo", ...flags], ["doctor", ...flags]]) {
        const { code, stderr, stdout } = yield* episode(args, { env })
        assert.strictEqual(code, 2, stderr)
        assert.notInclude(stdout, "http")
        assert.include(stderr, "EPISODE_OPENENV_TOKEN: a token isn't empty, and has no spaces")
      }
    }))

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
      assert.include(stderr, "there is no connection to the Terminus server: does it run at --openenv-url?")
      const doctor = yield* episode(["doctor", "--provider", "openenv", "--openenv-url", "ws://127.0.0.1:1"])
      assert.strictEqual(doctor.code, 3)
      assert.include(doctor.stdout, "MISSING  the server at --openenv-url: start it")
    }))
})

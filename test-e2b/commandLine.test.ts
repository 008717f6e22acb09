/** The built command line against our server, its settings in a `.env`. */
import { assert, layer as withLayer } from "@effect/vitest"
import { Effect, Redacted } from "effect"
import * as fs from "node:fs"
import * as path from "node:path"
import { directory, environment, runProgram } from "../test/Cli/commandLine.ts"
import { truth, Wire, wire } from "../test/Sandbox/E2b/served.ts"

const bin = path.join(import.meta.dirname, "..", "bin", "episode.js")

withLayer(wire(), { excludeTestServices: true, timeout: 60_000 })("episode --provider e2b", (it) => {
  const run = (args: ReadonlyArray<string>, cwd: string, env: Readonly<Record<string, string>> = {}) =>
    runProgram([process.execPath, bin, ...args, "--provider", "e2b"], { cwd, env: environment(cwd, env) })

  it.scoped("has its settings from .env, and from the environment first", () =>
    Effect.gen(function*() {
      const { apiKey, direct } = yield* Wire
      const cwd = yield* directory
      const missing = yield* run(["demo"], cwd)
      assert.strictEqual(missing.code, 2)
      assert.include(missing.stderr, "E2B_API_KEY")
      assert.strictEqual((yield* run(["doctor"], cwd)).code, 3)

      fs.writeFileSync(
        path.join(cwd, ".env"),
        `E2B_API_KEY=${Redacted.value(apiKey)}\nE2B_API_URL=${direct}\nE2B_SANDBOX_URL=${direct}\n`
      )
      assert.strictEqual((yield* run(["doctor"], cwd)).code, 0)
      const demo = yield* run(["demo", "--json"], cwd)
      assert.strictEqual(demo.code, 0, demo.stderr)
      const receipt = JSON.parse(demo.stdout)
      assert.deepStrictEqual(receipt.rewards, [0, 1])
      const resources = receipt.episodes.flatMap((episode: { readonly resources: ReadonlyArray<unknown> }) =>
        episode.resources
      )
      assert.strictEqual(resources.length, 4)
      for (const { confirmedAbsentAt } of resources) {
        assert.isString(confirmedAbsentAt)
      }
      assert.deepStrictEqual(yield* (yield* truth).find({}), [])

      const refused = yield* run(["demo"], cwd, { E2B_API_KEY: "e2b_wrong" })
      assert.strictEqual(refused.code, 3)
      assert.include(refused.stderr, "HTTP 401")
      assert.notInclude(refused.stderr + refused.stdout, "e2b_wrong")
    }), 60_000)
})

/**
 * Upstream's own clients, from PyPI, on our server: `npm run test:interop`.
 */
import { assert, beforeAll, describe, it } from "@effect/vitest"
import { bin, install, type Release, root, run } from "./python.ts"
import { withServer } from "./server.ts"

interface Played {
  readonly rewards: ReadonlyArray<unknown>
  readonly cleanup: ReadonlyArray<{ readonly confirmed_absent_at: string | null }>
}

const play = async (release: Release, which: "generic" | "tools", url: string): Promise<Played> => {
  const { stdout } = await run(
    bin(release, "python"),
    [`${root}/test-interop/clients.py`, url, `${root}/task.json`, which],
    { timeout: 120_000 }
  )
  return JSON.parse(stdout)
}

for (const release of ["newest", "0.8.0", "0.3.0"] as const) {
  describe(`OpenEnv ${release}`, () => {
    beforeAll(() => install(release), 600_000)

    for (const which of ["generic", "tools"] as const) {
      it(
        `its ${which === "generic" ? "GenericEnvClient" : "MCPToolClient"} plays [0, 1], with four confirmed deletions`,
        () =>
          withServer(async (url) => {
            const { cleanup, rewards } = await play(release, which, url)
            assert.deepStrictEqual(rewards, [0, 1])
            // Clients of 0.3 drop the metadata of an observation, and those of MCP all of a state but two fields.
            if (release !== "0.3.0" || which === "generic") {
              assert.strictEqual(cleanup.length, 4)
              assert.isTrue(cleanup.every(({ confirmed_absent_at }) => confirmed_absent_at !== null))
            }
          }),
        150_000
      )
    }

    if (release !== "0.3.0") {
      it("its validator finds nothing", () =>
        withServer(async (url) => {
          const { stdout } = await run(bin(release, "openenv"), ["validate", "--url", url], { timeout: 60_000 })
          assert.notMatch(stdout, /FAIL/)
        }), 90_000)
    }
  })
}

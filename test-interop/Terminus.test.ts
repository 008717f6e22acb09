/**
 * Native Terminus, both ways: upstream's clients on our server, and our episodes through a server of upstream's, which runs
 * its sandboxes on our E2B server. `npm run test:interop`.
 */
import { assert, beforeAll, describe, it } from "@effect/vitest"
import { bin, install, root, run } from "./python.ts"
import { withEpisode, withOther } from "./server.ts"

interface Receipt {
  readonly rewards: ReadonlyArray<number | null>
  readonly episodes: ReadonlyArray<{
    readonly provider: string
    readonly resources: ReadonlyArray<{ readonly id: string; readonly confirmedAbsentAt: string | null }>
  }>
}

const demo = async (url: string, environment: Readonly<Record<string, string>>): Promise<Receipt> => {
  const { stdout } = await run(
    process.execPath,
    [`${root}/bin/episode.js`, "demo", "--provider", "openenv", "--openenv-url", url, "--json"],
    { timeout: 120_000, cwd: root, env: { ...process.env, ...environment } }
  )
  return JSON.parse(stdout)
}

const isWhole = ({ episodes, rewards }: Receipt): void => {
  assert.deepStrictEqual(rewards, [0, 1])
  const resources = episodes.flatMap(({ resources }) => resources)
  assert.strictEqual(new Set(resources.map(({ id }) => id)).size, 4)
  assert.isTrue(resources.every(({ confirmedAbsentAt }) => confirmedAbsentAt !== null))
}

describe("our Terminus server", () => {
  beforeAll(() => install("0.8.0"), 600_000)
  beforeAll(() => install("newest"), 600_000)

  it(
    "gives our own demo [0, 1], with four confirmed deletions",
    () => withEpisode(["terminus"], async ({ url }) => isWhole(await demo(url, {}))),
    150_000
  )

  for (const release of ["newest", "0.8.0"] as const) {
    it(
      `is played by upstream's client ${release}, and found in order by its validator`,
      () =>
        withEpisode(["terminus"], async ({ url }) => {
          const { stdout } = await run(
            bin(release, "python"),
            [`${root}/test-interop/clients.py`, url, "", "terminus"],
            {
              timeout: 120_000
            }
          )
          assert.deepStrictEqual(JSON.parse(stdout), { rewards: [0, 1] })
          const validated = await run(bin(release, "openenv"), ["validate", "--url", url], { timeout: 60_000 })
          assert.notMatch(validated.stdout, /FAIL/)
        }),
      150_000
    )
  }
})

for (const release of ["newest-e2b", "0.8.0-e2b"] as const) {
  describe(`a Terminus server on E2B, of ${release}`, () => {
    beforeAll(() => install(release), 600_000)

    it(
      "gives our demo [0, 1], with four confirmed deletions, and its E2B is empty",
      () =>
        withEpisode(
          ["e2b"],
          ({ variables }) =>
            withOther(bin(release, "python"), [`${root}/test-interop/terminus.py`], variables, async ({ url }) => {
              isWhole(await demo(url, variables))
              const { E2B_API_KEY = "", E2B_API_URL } = variables
              const list = await fetch(`${E2B_API_URL}/v2/sandboxes`, { headers: { "X-API-Key": E2B_API_KEY } })
              assert.deepStrictEqual(await list.json(), [])
            })
        ),
      150_000
    )
  })
}

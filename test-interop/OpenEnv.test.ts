/**
 * Upstream's own clients, from PyPI, on our server: `npm run test:interop`.
 *
 * Makes its own Python environments under node_modules/.cache/interop, which takes a minute the first time. It needs Python
 * 3.10 or newer and a package index, and fails where it hasn't got them: a suite that is skipped proves nothing.
 */
import { assert, beforeAll, describe, it } from "@effect/vitest"
import { execFile, execFileSync } from "node:child_process"
import { existsSync, mkdirSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"
import { withServer } from "./server.ts"

const root = fileURLToPath(new URL("..", import.meta.url))
const cache = `${root}/node_modules/.cache/interop`
const run = promisify(execFile)

const releases = {
  newest: "openenv",
  "0.8.0": "openenv==0.8.0",
  "0.3.0": "openenv-core==0.3.0"
} as const

type Release = keyof typeof releases

const pythons = ["python3.13", "python3.12", "python3.11", "python3.10", "python3", "python"]

const python = (): string => {
  for (const name of [process.env["INTEROP_PYTHON"] ?? "", ...pythons]) {
    try {
      const version = execFileSync(name, ["-c", "import sys, venv; print(sys.version_info >= (3, 10))"], {
        encoding: "utf8",
        stdio: ["ignore", "pipe", "ignore"]
      })
      if (version.trim() === "True") {
        return name
      }
    } catch {
      // Not this one.
    }
  }
  throw new Error("THE INTEROP SUITE CAN'T RUN: it needs Python 3.10 or newer; name one in INTEROP_PYTHON")
}

const bin = (release: Release, program: string) => `${cache}/${release}/bin/${program}`

const install = async (release: Release): Promise<void> => {
  const done = `${cache}/${release}/.complete`
  if (release !== "newest" && existsSync(done)) {
    return
  }
  try {
    mkdirSync(cache, { recursive: true })
    if (!existsSync(bin(release, "python"))) {
      await run(python(), ["-m", "venv", `${cache}/${release}`], { timeout: 120_000 })
    }
    await run(bin(release, "python"), ["-m", "pip", "install", "--quiet", "--upgrade", releases[release]], {
      timeout: 400_000
    })
    await run("touch", [done])
  } catch (cause) {
    throw new Error(`THE INTEROP SUITE CAN'T RUN: ${releases[release]} can't be installed`, { cause })
  }
}

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

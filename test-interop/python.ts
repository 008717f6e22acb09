/**
 * Python environments with upstream's packages, made under node_modules/.cache/interop: a minute the first time. They need
 * Python 3.10 or newer and a package index.
 */
import { execFile, execFileSync } from "node:child_process"
import { existsSync, mkdirSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"

export const root = fileURLToPath(new URL("..", import.meta.url))

const cache = `${root}/node_modules/.cache/interop`

export const run = promisify(execFile)

const releases = {
  newest: ["openenv"],
  "0.8.0": ["openenv==0.8.0"],
  "0.3.0": ["openenv-core==0.3.0"],
  // Servers that run their sandboxes on E2B: from 2.9 on the interpreter's client can be pointed at another server.
  "newest-e2b": ["openenv", "e2b-code-interpreter>=2.9"],
  "0.8.0-e2b": ["openenv==0.8.0", "e2b-code-interpreter>=2.9"]
} as const

export type Release = keyof typeof releases

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

/** A program of an environment. */
export const bin = (release: Release, program: string) => `${cache}/${release}/bin/${program}`

/** Makes an environment. A suite that is skipped proves nothing, so it fails where that can't be done. */
export const install = async (release: Release): Promise<void> => {
  const done = `${cache}/${release}/.complete`
  if (!release.startsWith("newest") && existsSync(done)) {
    return
  }
  try {
    mkdirSync(cache, { recursive: true })
    if (!existsSync(bin(release, "python"))) {
      await run(python(), ["-m", "venv", `${cache}/${release}`], { timeout: 120_000 })
    }
    await run(bin(release, "python"), ["-m", "pip", "install", "--quiet", "--upgrade", ...releases[release]], {
      timeout: 400_000
    })
    await run("touch", [done])
  } catch (cause) {
    throw new Error(`THE INTEROP SUITE CAN'T RUN: ${releases[release].join(" and ")} can't be installed`, { cause })
  }
}

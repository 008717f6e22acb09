import { assert } from "@effect/vitest"
import { type ChildProcess, spawn } from "node:child_process"
import { root } from "./python.ts"

/** A server that has printed where it can be reached. */
export interface Served {
  readonly url: string
  /** What it printed as `NAME=VALUE`. */
  readonly variables: Readonly<Record<string, string>>
  /** Ends it early, and waits for that. */
  readonly stop: () => Promise<void>
}

type Environment = Readonly<Record<string, string>>

const start = async (
  program: string,
  args: ReadonlyArray<string>,
  environment: Environment
): Promise<Omit<Served, "stop"> & { readonly child: ChildProcess }> => {
  const child = spawn(program, [...args], {
    stdio: ["ignore", "pipe", "inherit"],
    cwd: root,
    env: { ...process.env, ...environment }
  })
  let said = ""
  for await (const chunk of child.stdout.iterator({ destroyOnReturn: false })) {
    said += String(chunk)
    // On a line of its own, or the last of the variables that `serve e2b` prints.
    const url = /^(?:E2B_SANDBOX_URL=)?((?:http|ws):\/\/\S+)\n/m.exec(said)?.[1]
    if (url !== undefined) {
      child.stdout.resume()
      const variables = Object.fromEntries(
        said.split("\n").map((line) => /^([A-Z0-9_]+)=(.*)$/.exec(line)).filter((found) => found !== null)
          .map(([, name = "", value = ""]) => [name, value])
      )
      return { url, variables, child }
    }
  }
  throw new Error("the server ended before it served")
}

const within = async (
  test: (served: Served) => Promise<void>,
  signal: "SIGINT" | "SIGTERM",
  started: ReturnType<typeof start>
): Promise<number | null> => {
  const { child, ...served } = await started
  const ended = new Promise<number | null>((resolve) => child.once("exit", resolve))
  const stop = async () => {
    child.kill(signal)
    await ended
  }
  try {
    await test({ ...served, stop })
  } finally {
    await stop()
  }
  return ended
}

/** Runs a test beside one of our servers, which has to end as it should. It has a free port unless it is given one. */
export const withEpisode = async (
  args: ReadonlyArray<string>,
  test: (served: Served) => Promise<void>,
  environment: Environment = {}
): Promise<void> => {
  const port = args.includes("--port") ? [] : ["--port", "0"]
  const command = [`${root}/bin/episode.js`, "serve", ...args, ...port]
  assert.strictEqual(await within(test, "SIGINT", start(process.execPath, command, environment)), 130)
}

/** Runs a test beside a server of another kind. */
export const withOther = async (
  program: string,
  args: ReadonlyArray<string>,
  environment: Environment,
  test: (served: Served) => Promise<void>
): Promise<void> => {
  await within(test, "SIGTERM", start(program, args, environment))
}

/** Runs a test on a server of episodes, which has to own nothing after it. */
export const withServer = (
  test: (url: string) => Promise<void>,
  args: ReadonlyArray<string> = []
): Promise<void> =>
  withEpisode(["openenv", ...args], async ({ url }) => {
    await test(url)
    assert.deepStrictEqual(await fetch(`${url}/ledger`).then((response) => response.json()), { open: [] })
  })

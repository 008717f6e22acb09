import { assert } from "@effect/vitest"
import { type ChildProcess, spawn } from "node:child_process"
import { fileURLToPath } from "node:url"

const root = fileURLToPath(new URL("..", import.meta.url))

const serve = async (
  args: ReadonlyArray<string>
): Promise<{ readonly url: string; readonly child: ChildProcess }> => {
  const child = spawn(process.execPath, [`${root}/bin/episode.js`, "serve", "openenv", "--port", "0", ...args], {
    stdio: ["ignore", "pipe", "inherit"],
    cwd: root
  })
  for await (const chunk of child.stdout.iterator({ destroyOnReturn: false })) {
    const found = /http:\/\/\S+/.exec(String(chunk))
    if (found !== null) {
      child.stdout.resume()
      return { url: found[0], child }
    }
  }
  throw new Error("the server ended before it served")
}

/** Runs a test on a server of its own, which has to own nothing after it, and to end as it should. */
export const withServer = async (
  test: (url: string) => Promise<void>,
  args: ReadonlyArray<string> = []
): Promise<void> => {
  const { child, url } = await serve(args)
  const ended = new Promise<number | null>((resolve) => child.once("exit", resolve))
  try {
    await test(url)
    assert.deepStrictEqual(await fetch(`${url}/ledger`).then((response) => response.json()), { open: [] })
  } finally {
    child.kill("SIGINT")
    assert.strictEqual(await ended, 130)
  }
}

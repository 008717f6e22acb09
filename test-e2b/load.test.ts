import { assert, layer as withLayer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { fork } from "node:child_process"
import { once } from "node:events"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { ask, Client, layerWith } from "../test/E2bServer/fixture.ts"

const timeout = 300_000

const hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"] as const

/** Runs a client in a process of its own, whose last message is its report. */
const client = <Report>(file: string, ...words: ReadonlyArray<string>) =>
  Effect.acquireUseRelease(
    Effect.sync(() =>
      fork(path.join(path.dirname(fileURLToPath(import.meta.url)), file), [...words], {
        execArgv: ["--import", "tsx"],
        stdio: ["ignore", "inherit", "inherit", "ipc"]
      })
    ),
    (child) =>
      ask(async () => {
        let report: unknown
        child.on("message", (message) => {
          report = message
        })
        await once(child, "exit")
        return report as Report
      }),
    (child) => Effect.sync(() => child.kill("SIGKILL"))
  )

withLayer(layerWith({ hosts }), { excludeTestServices: true, timeout })("E2bServer: under load", (it) => {
  it.effect("200 sandboxes with a running command each starve neither health nor kill", () =>
    Effect.gen(function*() {
      const { apiKey, urls } = yield* Client
      const report = yield* client<{
        readonly running: number
        readonly created: number
        readonly health: number
        readonly kill: number
        readonly left: number
        readonly ends: Record<string, number>
      }>("crowd.client.ts", apiKey, "200", ...urls)
      process.stderr.write(`200 sandboxes: ${JSON.stringify(report)}\n`)
      assert.strictEqual(report.running, 200)
      assert.strictEqual(report.left, 0)
      assert.deepStrictEqual(report.ends, { TimeoutError: 200 })
    }), timeout)

  it.effect("a gibibyte of output for a slow reader takes no memory", () =>
    Effect.gen(function*() {
      const { apiKey, url } = yield* Client
      // The first of it warms everything up.
      let peak = 0
      const watching = setInterval(() => {
        peak = Math.max(peak, process.memoryUsage().rss)
      }, 50)
      const before = process.memoryUsage().rss
      const report = yield* client<{ readonly bytes: number; readonly seconds: number }>(
        "flood.client.ts",
        apiKey,
        String(1024 * 1024 * 1024),
        url
      )
      clearInterval(watching)
      const grown = Math.round((peak - before) / 1024 / 1024)
      process.stderr.write(`1 GiB of output: ${report.seconds} s, the server grew by ${grown} MiB at most\n`)
      assert.strictEqual(report.bytes, 1024 * 1024 * 1024)
      assert.isBelow(grown, 200)
    }), timeout)
})

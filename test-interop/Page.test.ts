/**
 * The page at /web in a real browser, headless: `npm run test:interop`.
 *
 * Needs Chromium (`apt-get install chromium`, or its path in INTEROP_CHROMIUM), and fails without. It is driven through its
 * own debugging protocol, which needs no package but `ws`.
 */
import { assert, describe, it } from "@effect/vitest"
import { execFileSync, spawn } from "node:child_process"
import { once } from "node:events"
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { WebSocket } from "ws"
import { withEpisode, withServer } from "./server.ts"

const chromium = (): string => {
  for (const name of [process.env["INTEROP_CHROMIUM"] ?? "", "chromium", "chromium-browser", "google-chrome"]) {
    try {
      execFileSync(name, ["--version"], { stdio: "ignore" })
      return name
    } catch {
      // Not this one.
    }
  }
  throw new Error("THE PAGE CAN'T BE TESTED: there is no Chromium; install it, or name it in INTEROP_CHROMIUM")
}

interface Tab {
  /** The value of an expression in the page; a promise is waited for. */
  readonly evaluate: (expression: string) => Promise<unknown>
  /** Waits until an expression is true in the page. */
  readonly until: (expression: string) => Promise<void>
  /** What the browser had to complain of. */
  readonly complaints: ReadonlyArray<string>
  readonly screenshot: () => Promise<Buffer>
}

const withTab = async (url: string, test: (tab: Tab) => Promise<void>): Promise<void> => {
  const profile = mkdtempSync(join(tmpdir(), "episode-chromium-"))
  const browser = spawn(chromium(), [
    ...["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"],
    ...["--disable-background-networking", "--disable-component-update", "--disable-sync"],
    ...["--disable-dev-shm-usage", "--window-size=1200,850", "--remote-debugging-port=0", `--user-data-dir=${profile}`],
    "about:blank"
  ], { stdio: ["ignore", "ignore", "pipe"], detached: true })
  const ended = once(browser, "exit")
  try {
    let text = ""
    let port: string | undefined
    for await (const chunk of browser.stderr.iterator({ destroyOnReturn: false })) {
      text += String(chunk)
      port = /ws:\/\/127\.0\.0\.1:(\d+)/.exec(text)?.[1]
      if (port !== undefined) {
        break
      }
    }
    browser.stderr.resume()
    const target = await fetch(
      `http://127.0.0.1:${port}/json/new?${encodeURIComponent("about:blank")}`,
      { method: "PUT" }
    ).then((response) => response.json() as Promise<{ readonly webSocketDebuggerUrl: string }>)
    const socket = new WebSocket(target.webSocketDebuggerUrl)
    await once(socket, "open")
    const waiting = new Map<number, (result: Record<string, unknown>) => void>()
    const complaints: Array<string> = []
    socket.on("message", (data) => {
      const message = JSON.parse(String(data))
      waiting.get(message.id)?.(message.result ?? message)
      if (message.method === "Log.entryAdded" || message.method === "Runtime.exceptionThrown") {
        complaints.push(JSON.stringify(message.params))
      }
    })
    let id = 0
    const send = (method: string, params: Record<string, unknown> = {}) =>
      new Promise<Record<string, unknown>>((resolve) => {
        id += 1
        waiting.set(id, resolve)
        socket.send(JSON.stringify({ id, method, params }))
      })
    const evaluate = async (expression: string) => {
      const { result } = await send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true })
      return (result as { value?: unknown } | undefined)?.value
    }
    const until = async (expression: string) => {
      for (let tries = 0; tries < 400; tries++) {
        if (await evaluate(expression) === true) {
          return
        }
        await new Promise((resolve) => setTimeout(resolve, 50))
      }
      throw new Error(`never true: ${expression}\n${String(await evaluate("document.body.innerText"))}`)
    }
    await send("Runtime.enable")
    await send("Log.enable")
    await send("Page.enable")
    await send("Page.navigate", { url })
    await test({
      evaluate,
      until,
      complaints,
      screenshot: async () => Buffer.from(String((await send("Page.captureScreenshot"))["data"]), "base64")
    })
    socket.close()
  } finally {
    // With its helpers, which would go on writing to the profile for a while.
    if (browser.pid !== undefined) {
      process.kill(-browser.pid, "SIGKILL")
    }
    await ended
    rmSync(profile, { recursive: true, force: true, maxRetries: 10 })
  }
}

const program = "/home/user/work/report.py"
const repair = `sed -i 's/= int(row\\["amount"\\])/= totals.get(row["region"], 0) + int(row["amount"])/' ${program}`

const run = (command: string) =>
  `document.getElementById("command").value = ${JSON.stringify(command)}; document.getElementById("run").click()`

const textOf = (id: string) => `document.getElementById("${id}").innerText`
const isDisabled = (id: string) => `document.getElementById("${id}").disabled`
const click = (id: string) => `document.getElementById("${id}").click()`

const idle = `document.getElementById("status").textContent !== "working"`
const log = `document.getElementById("log").innerText`

describe("the page", () => {
  it(
    "lets a person play an episode, and shows budgets and sandboxes",
    () =>
      withServer((url) =>
        withTab(`${url}/web`, async ({ complaints, evaluate, screenshot, until }) => {
          await until(`document.getElementById("reset")?.disabled === false`)
          await evaluate(`document.getElementById("reset").click()`)
          await until(`document.getElementById("status").textContent === "active"`)
          await until(`document.getElementById("sandboxes").innerText === "policy: running"`)
          await until(`document.getElementById("ledger").innerText === "policy: held"`)
          await until(`/^1[01]\\d s$|^120 s$/.test(document.getElementById("window").textContent)`)

          // What comes out of a sandbox is text.
          await evaluate(run(`echo '<img src=x onerror="document.title=1">'`))
          await until(`${log}.includes("<img src=x") && ${idle}`)
          assert.strictEqual(await evaluate("document.images.length"), 0)

          await evaluate(run(`python3 ${program}`))
          await until(`${log}.includes('{"') && ${idle}`)
          await evaluate(run(repair))
          await until(`${log}.includes("(no output)") && ${idle}`)
          await evaluate(`document.getElementById("submit").click()`)
          await until(`document.getElementById("score").textContent === "1 (correct)" && ${idle}`)
          await until(`document.getElementById("ledger").innerText === "none"`)
          assert.strictEqual(
            await evaluate(`document.getElementById("sandboxes").innerText`),
            "policy: confirmed-absent\nverifier: confirmed-absent"
          )
          const picture = process.env["INTEROP_SCREENSHOT"]
          if (picture !== undefined) {
            writeFileSync(picture, await screenshot())
          }

          // A task that can't be used is told of, field by field.
          await evaluate(`document.getElementById("taskfile").value = "{}"; document.getElementById("reset").click()`)
          await until(`${log}.includes("VALIDATION_ERROR") && ${log}.includes("task.prompt") && ${idle}`)

          assert.deepStrictEqual(complaints.filter((complaint) => !complaint.includes("favicon")), [])
        }), ["--task", "task.json"]),
    120_000
  )

  it(
    "says when the connection is gone and what became of the episode, and begins anew by a reset",
    () =>
      withEpisode(
        ["openenv", "--task", "task.json"],
        ({ stop, url }) =>
          withTab(`${url}/web`, async ({ evaluate, screenshot, until }) => {
            await until(`${isDisabled("reset")} === false`)
            assert.include(await evaluate(`document.getElementById("taskfile").placeholder`), "the server's own")
            await evaluate(click("reset"))
            await until(`${textOf("status")} === "active" && / s$/.test(${textOf("window")})`)

            await stop()
            const lost = `${textOf("status")} === "connection lost"`
            await until(`${lost} && ${textOf("window")} === "-" && ${textOf("deadline")} === "-"`)
            await until(`${textOf("ledger")} === "the server can't be reached"`)
            assert.include(
              await evaluate(log),
              "connection lost: the episode is over, and the server deletes its sandboxes"
            )
            assert.strictEqual(await evaluate(textOf("sandboxes")), "deleted by the server")
            assert.deepStrictEqual(await evaluate(`[${["run", "submit", "reset"].map(isDisabled)}]`), [
              true,
              true,
              false
            ])
            const picture = process.env["INTEROP_SCREENSHOT_LOST"]
            if (picture !== undefined) {
              writeFileSync(picture, await screenshot())
            }

            await evaluate(click("reset"))
            await until(`${log}.includes("the server can't be reached") && ${lost} && !${isDisabled("reset")}`)

            await withEpisode(["openenv", "--task", "task.json", "--port", new URL(url).port], async () => {
              await evaluate(click("reset"))
              await until(`${textOf("status")} === "active" && ${textOf("sandboxes")} === "policy: running"`)
              await evaluate(run("echo back again"))
              await until(`${log}.includes("\\nback again") && ${idle}`)
            })
            await until(lost)
          })
      ),
    120_000
  )

  it(
    "asks for a task where the server has none",
    () =>
      withServer((url) =>
        withTab(`${url}/web`, async ({ evaluate, until }) => {
          await until(`${isDisabled("reset")} === false`)
          assert.include(await evaluate(textOf("prompt")), "This server has no task of its own.")
          assert.strictEqual(
            await evaluate(`document.getElementById("taskfile").placeholder`),
            "the text of a task.json"
          )
          assert.isTrue(await evaluate(`document.querySelector("details").open`))
          await evaluate(click("reset"))
          await until(`${log}.includes("this server has no task of its own") && ${idle}`)
        })
      ),
    120_000
  )
})

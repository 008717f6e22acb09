/** The built command line as a user has it: a process, its two outputs, its exit code. */
import { assert } from "@effect/vitest"
import { Effect, Schema } from "effect"
import { type ChildProcess, spawn } from "node:child_process"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { Receipt } from "../../src/Episode/Receipt.ts"
import shipped from "../../task.json" with { type: "json" }

export const root = fileURLToPath(new URL("../..", import.meta.url))
export const bin = path.join(root, "bin", "episode.js")
export const taskFile = path.join(root, "task.json")

export interface Ended {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  readonly stdout: string
  readonly stderr: string
}

/** A directory that goes with the scope. */
export const directory = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "episode-test-"))),
  (made) => Effect.sync(() => fs.rmSync(made, { recursive: true, force: true }))
)

/** What is written down of sandboxes lies in a directory of the test's own. */
export const environment = (own: string, more: Readonly<Record<string, string>> = {}): NodeJS.ProcessEnv => ({
  PATH: process.env["PATH"],
  HOME: process.env["HOME"],
  EPISODE_LOCAL_DIRECTORY: path.join(own, "sandboxes"),
  ...more
})

/** What a process that ended as it should has left of its sandboxes: nothing. */
export const assertNothingLeft = (own: string): void => {
  const written = path.join(own, "sandboxes")
  assert.deepStrictEqual(fs.existsSync(written) ? fs.readdirSync(written) : [], [])
}

/** No command line takes as long as this: one that does hangs. */
const longest = 60_000

export const ending = (child: ChildProcess): Effect.Effect<Ended> =>
  Effect.async((resume) => {
    let stdout = ""
    let stderr = ""
    child.stdout?.setEncoding("utf8").on("data", (chunk: string) => {
      stdout += chunk
    })
    child.stderr?.setEncoding("utf8").on("data", (chunk: string) => {
      stderr += chunk
    })
    child.once("close", (code, signal) => resume(Effect.succeed({ code, signal, stdout, stderr })))
    return Effect.sync(() => child.kill("SIGKILL"))
  })

/** Runs any program to its end. */
export const runProgram = (
  argv: readonly [string, ...ReadonlyArray<string>],
  options: { readonly env: NodeJS.ProcessEnv; readonly cwd?: string }
): Effect.Effect<Ended> =>
  Effect.suspend(() =>
    ending(
      spawn(argv[0], argv.slice(1), {
        cwd: options.cwd ?? root,
        env: options.env,
        stdio: ["ignore", "pipe", "pipe"],
        timeout: longest,
        killSignal: "SIGKILL"
      })
    )
  )

/** Runs the command line, and looks that it left nothing of its sandboxes. */
export const episode = (
  args: ReadonlyArray<string>,
  options: { readonly env?: Readonly<Record<string, string>>; readonly cwd?: string } = {}
): Effect.Effect<Ended> =>
  Effect.scoped(Effect.gen(function*() {
    const own = yield* directory
    const ended = yield* runProgram([process.execPath, bin, ...args], {
      env: environment(own, options.env),
      ...(options.cwd === undefined ? {} : { cwd: options.cwd })
    })
    assertNothingLeft(own)
    return ended
  }))

/** A file in a directory; its path. */
export const write = (folder: string, name: string, content: string | Uint8Array): string => {
  const file = path.join(folder, name)
  fs.writeFileSync(file, content)
  return file
}

/** A script that repairs the shipped task's program. */
export const repair = [
  `sed -i 's/= int(row/= totals.get(row["region"], 0) + int(row/' work/report.py`
]

/** A file of the shipped task with other fields; what is `undefined` is left out. */
export const taskText = (fields: Readonly<Record<string, unknown>>): string => JSON.stringify({ ...shipped, ...fields })

const decodeReceipt = Schema.decodeUnknown(Schema.parseJson(Receipt), { onExcessProperty: "error" })

/** The one document on standard output. `JSON.parse` refuses a second one. */
export const receiptOf = (stdout: string): Effect.Effect<Receipt> => Effect.orDie(decodeReceipt(stdout))

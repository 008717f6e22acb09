/**
 * The command line in a pid and mount namespace of its own: every process that it leaves behind, whatever became of its
 * parents, is below the first process of that namespace, and nobody else's is.
 */
import { assert } from "@effect/vitest"
import { Effect, Schedule } from "effect"
import { spawn } from "node:child_process"
import * as fs from "node:fs"
import type { Readable } from "node:stream"

export interface Run {
  /** Both outputs so far. */
  readonly output: () => { readonly stdout: string; readonly stderr: string }
  /** Resolves when standard error matches, or when the run is over. */
  readonly said: (pattern: RegExp) => Effect.Effect<void>
  readonly signal: (signal: NodeJS.Signals) => Effect.Effect<void>
  readonly exitCode: Effect.Effect<number>
}

interface Process {
  readonly pid: number
  readonly name: string
  readonly state: string
  readonly parent: number
}

const processes = (): ReadonlyArray<Process> =>
  fs.readdirSync("/proc").filter((name) => /^[0-9]+$/.test(name)).flatMap((name) => {
    try {
      const [, comm = "", state = "", parent = ""] = /^[0-9]+ \((.*)\) (\S) ([0-9]+)/s.exec(
        fs.readFileSync(`/proc/${name}/stat`, "utf8")
      ) ?? []
      return [{ pid: Number(name), name: comm, state, parent: Number(parent) }]
    } catch {
      // It ended while we looked.
      return []
    }
  })

const below = (root: number): ReadonlyArray<Process> => {
  const all = processes()
  const found = new Set([root])
  let before = 0
  while (found.size > before) {
    before = found.size
    for (const { parent, pid } of all) {
      if (found.has(parent)) {
        found.add(pid)
      }
    }
  }
  return all.filter(({ pid }) => pid !== root && found.has(pid))
}

// One run of the program for each line on its standard input; each exit code goes to descriptor 3.
const server = "while IFS= read -r _; do \"$@\" </dev/null 3>&-; echo \"$?\" >&3; done"

const isRoot = process.getuid?.() === 0

/** Asks again until the answer is yes, but not for ever. */
export const eventually = (question: () => boolean, what: () => string) =>
  Effect.sync(question).pipe(
    Effect.repeat({
      until: (yes) => yes,
      schedule: Schedule.intersect(Schedule.spaced("10 millis"), Schedule.recurs(1500))
    }),
    Effect.andThen(Effect.sync(() => assert.isTrue(question(), what())))
  )

const follow = (stream: Readable | null) => {
  const state = { text: "" }
  stream?.setEncoding("utf8").on("data", (chunk: string) => {
    state.text += chunk
  })
  return state
}

export const enclosure = (argv: ReadonlyArray<string>, env: NodeJS.ProcessEnv) =>
  Effect.gen(function*() {
    const child = yield* Effect.acquireRelease(
      Effect.sync(() =>
        spawn("unshare", [
          ...(isRoot ? [] : ["--user", "--map-current-user"]),
          ...["--pid", "--mount", "--fork", "--kill-child=KILL", "--mount-proc"],
          // Bash, because as a first process it collects orphans, as a machine's own does: until then a namespace whose
          // process is one of them can't end.
          ...["bash", "--norc", "--noprofile", "-c", server, "bash", ...argv]
        ], { env, stdio: ["pipe", "pipe", "pipe", "pipe"] })
      ),
      // The first process of the namespace goes with it, and so does all that is in it.
      (child) => Effect.sync(() => child.kill("SIGKILL"))
    )
    const codes = child.stdio[3]
    const stdout = follow(child.stdout)
    const stderr = follow(child.stderr)
    const ended = { text: "" }
    codes?.on("data", (chunk: Buffer) => {
      ended.text += chunk.toString()
    })
    const childOf = (pid: number, name?: string) =>
      processes().find((process) => process.parent === pid && (name === undefined || process.name === name))
    yield* eventually(() => childOf(child.pid ?? -1, "bash") !== undefined, () => `no namespace: ${stderr.text}`)
    const init = childOf(child.pid ?? -1, "bash")?.pid ?? -1
    const mounts = () => fs.readFileSync(`/proc/${init}/mountinfo`, "utf8")
    const mountsBefore = mounts()
    let runs = 0

    const start = Effect.sync((): Run => {
      const from = { stdout: stdout.text.length, stderr: stderr.text.length, run: runs }
      runs += 1
      child.stdin?.write("\n")
      const code = () => ended.text.split("\n").slice(0, -1)[from.run]
      const output = () => ({ stdout: stdout.text.slice(from.stdout), stderr: stderr.text.slice(from.stderr) })
      return {
        output,
        said: (pattern) =>
          eventually(() => pattern.test(output().stderr) || code() !== undefined, () => `not said: ${pattern}`),
        signal: (signal) =>
          Effect.sync(() => {
            const program = childOf(init)
            if (program !== undefined && code() === undefined) {
              try {
                process.kill(program.pid, signal)
              } catch {
                // It has just ended.
              }
            }
          }),
        exitCode: Effect.map(
          eventually(() => code() !== undefined, () => `it doesn't end: ${output().stderr}`),
          () => Number(code())
        )
      }
    })

    /** Everything that lives in the namespace beside its first process. */
    const left = (): ReadonlyArray<string> =>
      below(init).filter(({ state }) => state !== "Z" && state !== "X").map(({ name, pid }) => `${name} ${pid}`)

    return {
      start,
      left,
      assertNoMounts: Effect.sync(() => assert.strictEqual(mounts(), mountsBefore))
    }
  })

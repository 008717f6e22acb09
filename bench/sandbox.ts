/**
 * What the local provider costs over the bare namespaces that it is made of, measured in turns in one run.
 *
 * ```
 * npx esbuild bench/sandbox.ts --bundle --platform=node --format=cjs --log-level=error | node -
 * ```
 *
 * It fails when making a sandbox takes 3 times as long as `unshare` alone, which makes no root, no users and no limits,
 * or when a command takes 4 times as long as `nsenter`. On a busy machine put `chrt -r 1` before `node`.
 */
import * as Console from "effect/Console"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import { spawn } from "node:child_process"
import { once } from "node:events"
import { FileRead, type SandboxId } from "../src/Sandbox.ts"
import { provider as makeProvider } from "../src/Sandbox/Local.ts"
import * as Proc from "../src/Sandbox/Local/Proc.ts"
import { SandboxPath } from "../src/Task.ts"

const rounds = 40
const bounds = { create: 3, exec: 4 }

const namespaces = ["--user", "--mount", "--pid", "--ipc", "--uts", "--cgroup", "--net"]
const env = { PATH: "/usr/sbin:/usr/bin:/sbin:/bin", LC_ALL: "C" }

// The same namespaces with nothing in them: no root of their own, no limits, no filter.
const bareCreate = async () => {
  const child = spawn("unshare", [
    ...namespaces,
    ...["--map-root-user", "--fork", "--kill-child=KILL", "--", "sh", "-c", "echo ready; exec sleep infinity"]
  ], { env, stdio: ["ignore", "pipe", "ignore"] })
  await once(child.stdout, "data")
  return child
}

const bareExec = async (pid: number) => {
  await once(
    spawn("nsenter", ["-t", String(pid), ...namespaces, "--preserve-credentials", "--", "true"], {
      env,
      stdio: "ignore"
    }),
    "exit"
  )
}

const measured = <A, E, R>(into: Array<number>, effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.map(Effect.timed(effect), ([took, value]) => {
    into.push(Duration.toMillis(took))
    return value
  })

const median = (times: ReadonlyArray<number>): number => {
  const sorted = times.toSorted((one, other) => one - other)
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN
}

const policy = {
  role: "policy",
  lifetime: Duration.minutes(5),
  network: "offline",
  labels: { bench: "sandbox" }
} as const

const limits = { timeLimit: Duration.seconds(10), outputCap: 1024 }
const file = SandboxPath.make("/home/user/file")

const program = Effect.scoped(Effect.gen(function*() {
  const provider = yield* makeProvider()
  const times: Record<
    "create" | "bare create" | "exec" | "bare exec" | "read" | "write" | "delete and prove",
    Array<number>
  > = {
    "create": [],
    "bare create": [],
    "exec": [],
    "bare exec": [],
    "read": [],
    "write": [],
    "delete and prove": []
  }
  for (let round = -2; round < rounds; round++) {
    // The first two warm up.
    const into = (name: keyof typeof times) => round < 0 ? [] : times[name]
    const bare = yield* measured(into("bare create"), Effect.promise(bareCreate))
    const sandbox = yield* measured(into("create"), provider.create(policy))
    const [first = 0] = Proc.children(bare.pid ?? 0)
    yield* measured(into("bare exec"), Effect.promise(() => bareExec(first)))
    yield* measured(into("exec"), sandbox.exec(":", limits))
    yield* measured(into("write"), sandbox.writeFiles([{ path: file, bytes: new Uint8Array(1024) }]))
    const found = yield* measured(into("read"), sandbox.readFile(file, { maxBytes: 65_536 }))
    if (!FileRead.$is("Bytes")(found)) {
      return yield* Effect.dieMessage(`the file was ${found._tag}`)
    }
    yield* measured(into("delete and prove"), Effect.andThen(provider.destroy(sandbox.id), prove(provider, sandbox.id)))
    Proc.signal(first, "SIGKILL")
    if (bare.exitCode === null && bare.signalCode === null) {
      yield* Effect.promise(() => once(bare, "exit"))
    }
  }
  const line = (name: string, ...cells: ReadonlyArray<string>) =>
    `${name.padEnd(18)}${cells.map((cell) => cell.padStart(10)).join("")}`
  const ms = (name: keyof typeof times) => median(times[name]).toFixed(1)
  const ratios = {
    create: median(times.create) / median(times["bare create"]),
    exec: median(times.exec) / median(times["bare exec"])
  }
  yield* Console.log([
    line(`median of ${rounds}, ms`, "episode", "bare", "ratio", "bound"),
    ...(["create", "exec"] as const).map((name) =>
      line(name, ms(name), ms(`bare ${name}`), ratios[name].toFixed(2), `< ${bounds[name]}`)
    ),
    ...(["write", "read", "delete and prove"] as const).map((name) => line(name, ms(name)))
  ].join("\n"))
  process.exitCode = ratios.create < bounds.create && ratios.exec < bounds.exec ? 0 : 1
}))

const prove = (
  provider: { readonly inspect: (id: SandboxId) => Effect.Effect<"running" | "absent", unknown> },
  id: SandboxId
) =>
  Effect.map(provider.inspect(id), (found) => {
    if (found !== "absent") {
      throw new Error(`sandbox ${id} is ${found}`)
    }
  })

Effect.runPromise(program)

/**
 * Many local sandboxes at once: how long all of them take to make and to delete, beside the bare namespaces that they are
 * made of, and how long another sandbox's health is waited for meanwhile.
 *
 * ```
 * npx esbuild bench/crowd.ts --bundle --platform=node --format=cjs --log-level=error | node - 200
 * ```
 *
 * It fails when making them takes 4 times as long as `unshare` alone, or deleting them 8 times as long as killing the
 * first processes of as many bare ones. On a busy machine put `chrt -r 1` before `node`.
 */
import * as Console from "effect/Console"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import { provider as makeProvider } from "../src/Sandbox/Local.ts"
import * as Proc from "../src/Sandbox/Local/Proc.ts"
import { SandboxPath } from "../src/Task.ts"

const count = Number(process.argv.at(-1)) || 200
const bounds = { create: 4, delete: 8 }

const env = { PATH: "/usr/sbin:/usr/bin:/sbin:/bin", LC_ALL: "C" }

// The same namespaces with nothing in them but as many processes.
const bare = async (): Promise<ChildProcess> => {
  const child = spawn("unshare", [
    ...["--user", "--mount", "--pid", "--ipc", "--uts", "--cgroup", "--net", "--map-root-user"],
    ...["--fork", "--kill-child=KILL", "--", "sh", "-c"],
    "timeout 1000 sh -c 'sleep 1000; :' & echo ready; exec sleep infinity"
  ], { env, stdio: ["ignore", "pipe", "ignore"] })
  await once(child.stdout, "data")
  return child
}

// Its first process, whose end `unshare` waits for: then the whole namespace has ended.
const kill = async (child: ChildProcess) => {
  const ended = once(child, "exit")
  for (const first of Proc.children(child.pid ?? 0)) {
    Proc.signal(first, "SIGKILL")
  }
  await ended
}

const all = <A, E, R>(each: (index: number) => Effect.Effect<A, E, R>) =>
  Effect.forEach(Array.from({ length: count }, (_, index) => index), each, { concurrency: "unbounded" })

const took = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.timed(effect), ([duration, value]) => [Duration.toMillis(duration), value] as const)

const policy = {
  role: "policy",
  lifetime: Duration.minutes(10),
  network: "offline",
  labels: { bench: "crowd" }
} as const

const program = Effect.scoped(Effect.gen(function*() {
  const [bareCreate, children] = yield* took(all(() => Effect.promise(bare)))
  const [bareDelete] = yield* took(Effect.forEach(children, (child) => Effect.promise(() => kill(child)), {
    concurrency: "unbounded"
  }))

  const provider = yield* makeProvider()
  const witness = yield* provider.create(policy)
  // What others wait for meanwhile: one question after another, ten milliseconds apart.
  const meanwhile = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
    Effect.gen(function*() {
      const waits: Array<number> = []
      const asking = yield* Effect.fork(Effect.forever(Effect.gen(function*() {
        const [before] = yield* took(Effect.andThen(Effect.sleep("10 millis"), witness.health))
        waits.push(before - 10)
      })))
      const [time, value] = yield* took(effect)
      yield* Fiber.interrupt(asking)
      waits.sort((one, other) => one - other)
      return { time, value, most: waits.at(-1) ?? 0, median: waits[Math.floor(waits.length / 2)] ?? 0 }
    })
  const created = yield* meanwhile(all(() => provider.create(policy)))
  const commands = yield* Effect.forEach(
    created.value,
    (sandbox) =>
      Effect.fork(Effect.either(sandbox.exec("echo >started; sleep 1000", {
        timeLimit: Duration.minutes(10),
        outputCap: 1024
      })))
  )
  const file = SandboxPath.make("/home/user/started")
  yield* Effect.forEach(created.value, (sandbox) =>
    sandbox.readFile(file, { maxBytes: 1 }).pipe(
      Effect.repeat({ until: ({ _tag }) => _tag === "Bytes", schedule: Schedule.spaced("20 millis") })
    ))
  const idle = yield* meanwhile(Effect.sleep("3 seconds"))
  const deleted = yield* meanwhile(
    Effect.forEach(created.value, ({ id }) => took(provider.destroy(id)), { concurrency: "unbounded" })
  )
  const [ending] = yield* took(Fiber.joinAll(commands))
  const ratios = { create: created.time / bareCreate, delete: deleted.time / bareDelete }
  const line = (name: string, ...cells: ReadonlyArray<string | number>) =>
    name.padEnd(18) + cells.map((cell) => (typeof cell === "number" ? cell.toFixed(0) : cell).padStart(10)).join("")
  yield* Console.log([
    line(`${count} at once, ms`, "episode", "bare", "ratio", "bound", "health", "at most"),
    line(
      "create",
      created.time,
      bareCreate,
      ratios.create.toFixed(2),
      `< ${bounds.create}`,
      created.median,
      created.most
    ),
    line("running", "", "", "", "", idle.median, idle.most),
    line(
      "delete and prove",
      deleted.time,
      bareDelete,
      ratios.delete.toFixed(2),
      `< ${bounds.delete}`,
      deleted.median,
      deleted.most
    ),
    line("commands end", ending)
  ].join("\n"))
  process.exitCode = ratios.create < bounds.create && ratios.delete < bounds.delete ? 0 : 1
}))

Effect.runPromise(program)

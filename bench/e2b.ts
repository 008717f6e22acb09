/**
 * An episode over E2B with the latency of a network: its requests, and its time against that of the requests that have to
 * follow one another.
 *
 *     npx tsx bench/e2b.ts [RUNS] [CREATE-MS] [OTHER-MS]
 *
 * The latencies are made from the one run that E2B's cookbook publishes (`examples/openenv-terminus-python`, 2026-10-09):
 * its shortest terminal step took 378 ms and is three requests one after another, so 126 ms for a request; its shortest
 * reset took 1.982 s and is a create and some eight requests, so 1000 ms for a create. They come on top of what our own
 * server takes over local sandboxes. The floor is the sum over the steps that can't be made at once, each as long as the
 * longest of its requests took at the wire. The pacing of creates is set to nothing.
 */
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import { spawn } from "node:child_process"
import { once } from "node:events"
import * as fs from "node:fs"
import { fileURLToPath } from "node:url"
import * as Budgets from "../src/Budgets.ts"
import * as E2bServer from "../src/E2bServer.ts"
import * as Episode from "../src/Episode.ts"
import * as Ledger from "../src/Sandbox/Ledger.ts"
import * as Report from "../src/Task/Report.ts"
import type { CallRecord } from "../test/Sandbox/E2b/faultyProxy.ts"
import * as FaultyProxy from "../test/Sandbox/E2b/faultyProxy.ts"
import { provider, server, Wire } from "../test/Sandbox/E2b/served.ts"

// The server is a process of its own, as a network has it: what it does isn't done by the one that is measured.
if (process.argv[2] === "serve") {
  await Effect.gen(function*() {
    const { apiKey, urls } = yield* E2bServer.E2bServer
    console.log(`${urls[0]} ${Redacted.value(apiKey)}`)
    // Until the process that started it is gone.
    yield* Effect.promise(() => once(process.stdin.resume(), "end"))
  }).pipe(Effect.provide(Layer.orDie(server)), Effect.runPromise)
  process.exit(0)
}

const served = Effect.gen(function*() {
  const child = yield* Effect.acquireRelease(
    Effect.sync(() =>
      spawn(process.execPath, [...process.execArgv, fileURLToPath(import.meta.url), "serve"], {
        stdio: ["pipe", "pipe", "inherit"]
      })
    ),
    (child) =>
      Effect.promise(() => {
        child.stdin.end()
        return once(child, "exit")
      })
  )
  const [line] = yield* Effect.promise(() => once(child.stdout, "data"))
  const [direct = "", key = ""] = String(line).trim().split(" ")
  const proxy = yield* FaultyProxy.make({
    target: direct,
    latency: ({ kind }) => kind === "create" ? createMs : otherMs
  })
  return { proxy, direct, apiKey: Redacted.make(key) }
})

const [runs = 5, createMs = 1000, otherMs = 126] = process.argv.slice(2).map(Number)

const { task } = await Effect.runPromise(Report.decode(fs.readFileSync(new URL("../task.json", import.meta.url))))

const program = "/home/user/work/report.py"

const commands = [
  `python3 ${program}`,
  `sed -i 's/= int(row\\["amount"\\])/= totals.get(row["region"], 0) + int(row["amount"])/' ${program}`,
  `python3 ${program}`
]

// What must have been answered before a step can begin: of these requests at once, the longest counts.
const steps: ReadonlyArray<readonly [phase: string, kinds: ReadonlyArray<CallRecord["kind"]>]> = [
  ["reset", ["create"]],
  ["reset", ["info", "extend", "upload"]],
  ...commands.map(() => ["terminal", ["start"]] as const),
  ["submit", ["start"]],
  ["submit", ["kill"]],
  ["submit", ["info"]],
  ["submit", ["create"]],
  ["submit", ["info", "upload"]],
  ["submit", ["start"]],
  ["submit", ["start"]],
  ["submit", ["kill"]],
  ["submit", ["info"]]
]

const episode = Effect.gen(function*() {
  const { proxy } = yield* Wire
  const episodes = yield* Episode.Episode
  proxy.set(() => undefined)
  const started = performance.now()
  const { outcome } = yield* episodes.run(
    task,
    ({ submit, terminal }) => Effect.zipRight(Effect.forEach(commands, terminal), submit)
  )
  const wall = performance.now() - started
  const calls = [...proxy.calls()]
  let floor = 0
  const bare = new Map<string, number>()
  for (const [phase, kinds] of steps) {
    const step = kinds.map((kind) => calls.splice(calls.findIndex((call) => call.kind === kind), 1)[0])
    floor += Math.max(...step.map((call) => (call?.endedAt ?? Number.NaN) - (call?.startedAt ?? Number.NaN)))
    bare.set(phase, (bare.get(phase) ?? 0) + (kinds.includes("create") ? createMs : otherMs))
  }
  return { outcome, wall, floor, asked: proxy.calls().length, unexpected: calls.map(({ kind }) => kind), bare }
})

const median = (samples: ReadonlyArray<number>): number =>
  samples.toSorted((a, b) => a - b)[Math.floor(samples.length / 2)] ?? Number.NaN

await Effect.gen(function*() {
  yield* episode
  const all = yield* Effect.replicateEffect(episode, runs)
  const [first] = all
  console.log(
    `steps in sequence: ${
      ["reset", "terminal", "submit"].map((phase) => `${phase} ${steps.filter(([name]) => name === phase).length}`)
        .join(", ")
    }; latency alone ${[...first?.bare.values() ?? []].reduce((sum, part) => sum + part, 0)} ms`
  )
  for (const { asked, floor, outcome, unexpected, wall } of all) {
    console.log(
      `${outcome._tag === "Scored" ? `score ${outcome.score}` : outcome._tag}, ${asked} requests`
        + `${unexpected.length === 0 ? "" : ` (beyond the steps: ${unexpected.join(" ")})`}, `
        + `${wall.toFixed(0)} ms against ${floor.toFixed(0)} ms: ${(wall / floor).toFixed(3)}`
    )
  }
  console.log(`median ratio ${median(all.map(({ floor, wall }) => wall / floor)).toFixed(3)} (at most 1.05)`)
}).pipe(
  Effect.provide(
    Episode.layerWithLedger().pipe(
      Layer.provide(Ledger.layerMemory),
      Layer.provide(Layer.orDie(Budgets.layer({ allocationPacing: "1 millis" }))),
      Layer.provide(Layer.orDie(provider))
    )
  ),
  Effect.provide(Layer.scoped(Wire, served)),
  Effect.runPromise
)

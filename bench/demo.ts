/**
 * The command line's start-up and its demo, each as a ratio to a floor measured in the same run.
 *
 *     npm run build && npx tsx bench/demo.ts [RUNS]
 *
 * The floor of the start-up is `node -e 0`. The floor of the demo is the same four sandboxes and the same commands driven
 * straight through the recipe (`floor.ts`). Runs take turns, and the medians are compared.
 */
import * as Effect from "effect/Effect"
import { spawnSync } from "node:child_process"
import * as fs from "node:fs"
import { fileURLToPath } from "node:url"
import * as Report from "../src/Task/Report.ts"
import { prepare } from "./floor.ts"

const runs = Number(process.argv[2] ?? 9)
const episode = fileURLToPath(new URL("../bin/episode.js", import.meta.url))

const timed = async (run: () => unknown): Promise<number> => {
  const started = performance.now()
  await run()
  return performance.now() - started
}

const node = (...args: ReadonlyArray<string>) => () => {
  const { status } = spawnSync(process.execPath, args, { stdio: "ignore" })
  if (status !== 0) {
    throw new Error(`node ${args.join(" ")} ended with ${status}`)
  }
}

const { task } = await Effect.runPromise(
  Report.decode(fs.readFileSync(new URL("../task.json", import.meta.url)))
)

const program = "/home/user/work/report.py"
const run = `python3 ${program}`
const repair = `sed -i 's/= int(row\\["amount"\\])/= totals.get(row["region"], 0) + int(row["amount"])/' ${program}`

// What the demo does, command by command.
const demoFloor = async () => {
  const make = await prepare()
  for (const commands of [[`cat ${program}`, "cat /home/user/work/sales.csv", run], [run, repair, run]]) {
    const policy = await make()
    await policy.write(task.workspace)
    for (const command of commands) {
      await policy.exec(command)
    }
    const submission = policy.read(program)
    await policy.end()
    const verifier = await make()
    const [, sales] = task.workspace
    await verifier.write([{ path: task.submission, bytes: submission }, ...(sales === undefined ? [] : [sales])])
    await verifier.exec(`cd /home/user/work && exec python3 -B ${program} </dev/null >/tmp/out 2>/tmp/err`)
    verifier.read("/tmp/out")
    await verifier.end()
  }
}

const samples = { nothing: [0], version: [0], floor: [0], demo: [0] }
for (let i = 0; i <= runs; i++) {
  const round = {
    nothing: await timed(node("-e", "0")),
    version: await timed(node(episode, "--version")),
    floor: await timed(demoFloor),
    demo: await timed(node(episode, "demo", "--json"))
  }
  // The first round warms up.
  for (const name of ["nothing", "version", "floor", "demo"] as const) {
    samples[name] = i === 0 ? [] : [...samples[name], round[name]]
  }
}

const median = (values: ReadonlyArray<number>): number =>
  values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)] ?? Number.NaN
const [nothing, version, floor, demo] = [samples.nothing, samples.version, samples.floor, samples.demo].map(median) as // A map keeps the length.
[number, number, number, number]

console.table({
  "episode --version / node -e 0": {
    ms: version.toFixed(0),
    "floor ms": nothing.toFixed(0),
    ratio: (version / nothing).toFixed(2),
    "at most": "6"
  },
  "(demo - start-up) / floor": {
    ms: (demo - version).toFixed(0),
    "floor ms": floor.toFixed(0),
    ratio: ((demo - version) / floor).toFixed(2),
    "at most": "1.6"
  }
})

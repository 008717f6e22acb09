// The fault sweep with another seed, or more pairs: npm run sweep -- --seed 7 --pairs 20000
import { spawnSync } from "node:child_process"
import { parseArgs } from "node:util"

const { positionals, values } = parseArgs({
  options: { seed: { type: "string" }, pairs: { type: "string" } },
  allowPositionals: true
})

const seed = values.seed ?? String(Math.trunc(Date.now() / 1000))
const env = { ...process.env, SWEEP_SEED: seed, ...(values.pairs === undefined ? {} : { SWEEP_PAIRS: values.pairs }) }

console.log(`seed ${seed}`)
const { status } = spawnSync(
  process.execPath,
  [
    "node_modules/vitest/vitest.mjs",
    "run",
    "--config",
    "test-sweep/vitest.config.ts",
    "--testTimeout=3600000",
    ...positionals
  ],
  { env, stdio: "inherit" }
)
process.exitCode = status ?? 1

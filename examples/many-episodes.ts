/**
 * Many episodes side by side, never more than four at once: `npx tsx examples/many-episodes.ts`
 */
import { FileSystem } from "@effect/platform"
import { NodeFileSystem, NodeRuntime } from "@effect/platform-node"
import { Array, Console, Effect, Layer } from "effect"
import * as Budgets from "episode/Budgets"
import * as Episode from "episode/Episode"
import * as Local from "episode/Sandbox/Local"
import * as Report from "episode/Task/Report"

// Every second policy repairs the program.
const policy = (n: number) => ({ submit, terminal }: Episode.PolicyTools) =>
  n % 2 === 0
    ? submit
    : terminal(`sed -i 's/= int(row/= totals.get(row["region"], 0) + int(row/' work/report.py`).pipe(
      Effect.zipRight(submit)
    )

const program = Effect.gen(function*() {
  const fs = yield* FileSystem.FileSystem
  const { task } = yield* Report.decode(yield* fs.readFile("task.json"))
  const episodes = yield* Episode.Episode
  // `record`, so that one lost sandbox costs one score and not the batch.
  const receipts = yield* Effect.forEach(Array.range(1, 8), (n) => episodes.record(task, policy(n)), { concurrency: 4 })
  const scores = receipts.flatMap(({ outcome }) => outcome._tag === "Scored" ? [outcome.score] : [])
  yield* Console.log(`${scores.length} of ${receipts.length} scored: ${scores.join(" ")}`)
})

program.pipe(
  Effect.provide(
    Layer.merge(
      Episode.layer.pipe(
        Layer.provide(Local.layer()),
        Layer.provide(Budgets.layer({ policyWindow: "1 minute" }))
      ),
      NodeFileSystem.layer
    )
  ),
  NodeRuntime.runMain
)

/**
 * One task, one policy: `npx tsx examples/one-task.ts`
 */
import { FileSystem } from "@effect/platform"
import { NodeFileSystem, NodeRuntime } from "@effect/platform-node"
import { Console, Effect, Layer } from "effect"
import * as Episode from "episode/Episode"
import * as Observation from "episode/Episode/Observation"
import * as Local from "episode/Sandbox/Local"
import * as Report from "episode/Task/Report"

// A policy is any effect that uses the two tools. This one follows a recipe; a model would be asked instead. Commands start
// in /home/user, each in a fresh shell.
const policy = ({ submit, terminal }: Episode.PolicyTools) =>
  Effect.gen(function*() {
    const source = yield* terminal("cat work/report.py")
    yield* Console.log(Observation.render(source))
    yield* terminal(
      `cd work && sed -i 's/= int(row/= totals.get(row["region"], 0) + int(row/' report.py && python3 report.py`
    )
    yield* submit
  })

const program = Effect.gen(function*() {
  const fs = yield* FileSystem.FileSystem
  const { task } = yield* Report.decode(yield* fs.readFile("task.json"))
  const episodes = yield* Episode.Episode
  const receipt = yield* episodes.run(task, policy)
  yield* Console.log(receipt.outcome)
})

program.pipe(
  Effect.provide(Layer.merge(Episode.layer.pipe(Layer.provide(Local.layer())), NodeFileSystem.layer)),
  NodeRuntime.runMain
)

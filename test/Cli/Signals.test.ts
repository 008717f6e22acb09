/**
 * Signals at many moments of a real run. `EPISODE_SIGNAL_RUNS` of them, or `npm run test:signals` for two hundred; a
 * failure prints its seed, and `EPISODE_SIGNAL_SEED` goes there again.
 */
import { assert, describe, it } from "@effect/vitest"
import { Config, Effect, Random, Schedule, TestClock } from "effect"
import * as fs from "node:fs"
import * as path from "node:path"
import { keystrokes } from "../../src/Cli/Signals.ts"
import { assertNothingLeft, bin, directory, environment, receiptOf } from "./commandLine.ts"
import { enclosure, eventually } from "./enclosure.ts"

const { runs, seed } = Effect.runSync(Config.all({
  runs: Config.withDefault(Config.integer("EPISODE_SIGNAL_RUNS"), 12),
  seed: Config.withDefault(Config.integer("EPISODE_SIGNAL_SEED"), Date.now() % 1_000_000)
}))

// What the demo says, in order, and what it is doing after that: making a sandbox, using it, deleting it.
const moments = [
  ["Episode 1 of 2", "policy create"],
  ["\\+ policy sandbox", "upload, first command"],
  ["cat /home/user/work/sales", "commands"],
  ["  submit", "export, policy deletion"],
  ["- policy sandbox", "verifier create"],
  ["\\+ verifier sandbox", "verification"],
  ["Episode 2 of 2", "second create"],
  ["sed -i", "second policy"],
  ["Episode 2 of 2[^]*  submit", "second export"],
  ["Episode 2 of 2[^]*- policy sandbox", "second verifier create"]
] as const

const enclosed = (own: string) => enclosure([process.execPath, bin, "demo", "--json"], environment(own))

const interrupted = (nth: number) =>
  Effect.scoped(Effect.gen(function*() {
    const [pattern, doing] = moments[nth % moments.length] ?? moments[0]
    const signal = yield* Random.choice(["SIGINT", "SIGTERM"] as const)
    const delay = yield* Random.nextIntBetween(0, 90)
    const own = yield* directory
    const { assertNoMounts, left, start } = yield* enclosed(own)
    const run = yield* start
    yield* run.said(new RegExp(pattern))
    // The one thing here that is left to chance: where in the step the signal lands.
    yield* Effect.sleep(delay)
    yield* run.signal(signal)
    const code = yield* run.exitCode
    const { stderr, stdout } = run.output()
    const where = `run ${nth}, ${signal} ${delay} ms into ${doing}, seed ${seed}:\n${stderr}`
    if (code !== 0) {
      assert.strictEqual(code, 130, where)
      assert.match(stderr, /\ninterrupted: deleting (0|1|2) sandbox(es)?; press again to give up on that\n/, where)
      assert.match(stderr, /\nepisode: every sandbox is deleted, absence confirmed\n$/, where)
      assert.notInclude(stderr, "bug", where)
    }
    // Nothing is scored by halves: the document is whole, or there is none.
    if (code === 0 || stdout !== "") {
      assert.deepStrictEqual((yield* receiptOf(stdout)).rewards, [0, 1], where)
    }
    assert.deepStrictEqual(left(), [], where)
    yield* assertNoMounts
    assertNothingLeft(own)
    return code
  }))

describe("a keystroke", () => {
  it.effect("may be several signals within half a second", () =>
    Effect.gen(function*() {
      const keystroke = yield* keystrokes
      const told = [keystroke(), keystroke()]
      yield* TestClock.adjust("499 millis")
      told.push(keystroke())
      yield* TestClock.adjust("1 millis")
      told.push(keystroke(), keystroke())
      assert.deepStrictEqual(told, ["first", "same", "same", "another", "another"])
    }))
})

describe("a signal", () => {
  it.live(`ends the program, and nothing is left: ${runs} times`, () =>
    Effect.gen(function*() {
      const codes = yield* Effect.forEach(Array.from({ length: runs }, (_, nth) => nth), interrupted, {
        concurrency: 2
      }).pipe(Effect.withRandom(Random.make(seed)))
      const hit = codes.filter((code) => code === 130).length
      yield* Effect.log(`${hit} of ${runs} runs were interrupted before their end`)
      assert.isAtLeast(hit, runs * 0.7)
    }), 20_000 + runs * 5000)

  it.live(
    "that kills the program leaves no process, and the next run sweeps what it had written down",
    () =>
      Effect.forEach(
        ["Episode 1 of 2", "\\+ policy sandbox", "- policy sandbox", "\\+ verifier sandbox"],
        (pattern) =>
          Effect.scoped(Effect.gen(function*() {
            const own = yield* directory
            const { assertNoMounts, left, start } = yield* enclosed(own)
            const run = yield* start
            yield* run.said(new RegExp(pattern))
            yield* Effect.sleep(yield* Random.nextIntBetween(0, 60))
            yield* run.signal("SIGKILL")
            assert.strictEqual(yield* run.exitCode, 137, pattern)
            assert.strictEqual(run.output().stdout, "", "nothing is scored")
            yield* eventually(() => left().length === 0, () => `after SIGKILL: ${left().join(", ")}`)
            yield* assertNoMounts
            if (pattern.startsWith("\\+")) {
              assert.isNotEmpty(fs.readdirSync(path.join(own, "sandboxes")), "there is something to sweep")
            }
            const next = yield* start
            assert.strictEqual(yield* next.exitCode, 0)
            assert.deepStrictEqual((yield* receiptOf(next.output().stdout)).rewards, [0, 1])
            assertNothingLeft(own)
          })),
        { concurrency: 2 }
      ).pipe(Effect.withRandom(Random.make(seed))),
    60_000
  )

  it.live(
    "that comes again ends the program at once and lists what is left",
    () =>
      Effect.scoped(Effect.gen(function*() {
        const own = yield* directory
        const { left, start } = yield* enclosure(
          [process.execPath, bin, "demo", "--json"],
          environment(own, { EPISODE_CLEANUP_PAUSE: "5 seconds" })
        )
        const run = yield* start
        // By now its lifetime is written down, and nothing of it is until its deletion.
        yield* run.said(/\$ cat /)
        yield* run.signal("SIGSTOP")
        // What is written down of the sandbox can't be read any more, so its deletion is tried again and again.
        const written = path.join(own, "sandboxes")
        for (const name of fs.readdirSync(written).filter((name) => name.endsWith(".json"))) {
          fs.writeFileSync(path.join(written, name), "broken")
        }
        // The first two wait for it when it goes on, and are of one keystroke.
        for (const signal of ["SIGINT", "SIGTERM", "SIGCONT"] as const) {
          yield* run.signal(signal)
        }
        yield* run.said(/interrupted: deleting/)
        assert.notInclude(run.output().stderr, "left behind")
        yield* run.signal("SIGINT").pipe(
          Effect.repeat({
            until: () => run.output().stderr.includes("left behind"),
            schedule: Schedule.intersect(Schedule.spaced("50 millis"), Schedule.recurs(200))
          })
        )
        const code = yield* run.exitCode
        const { stderr, stdout } = run.output()
        assert.deepStrictEqual([code, stdout], [4, ""], stderr)
        assert.match(stderr, /\ninterrupted: deleting 1 sandbox; /)
        assert.match(stderr, /\nleft behind:\n {2}sbx-[0-9a-f]+ \(local, policy, (held|deleting|unresolved)\)\n$/)
        yield* eventually(() => left().length === 0, () => left().join(", "))
      })),
    30_000
  )
})

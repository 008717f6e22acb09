// Removes one safety at a time from a copy of the sources, and says which test goes red. Every one must.
//
//     npm run mutants [-- NAME]
//
// A mutant is one replacement of text that stands exactly once in a file; when the code moves on, the script says so.
import { spawn } from "node:child_process"
import { once } from "node:events"
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"

/**
 * @typedef {object} Mutant
 * @property {string} name what is taken away
 * @property {string} file
 * @property {string} find
 * @property {string} replace
 * @property {ReadonlyArray<string>} tests where it has to be noticed
 */

const sandboxes = "src/Sandbox/Sandboxes.ts"
const session = "src/Episode/Session.ts"
const requests = "src/internal/requests.ts"
const outcome = "src/Episode/Outcome.ts"
const grading = "src/Grading.ts"

const ownership = ["test/Sandbox/Sandboxes.test.ts"]
const episodes = ["test/Episode/Session.test.ts", "test/Episode/SessionModel.test.ts"]
const sweep = ["test/Episode/sweep/FaultSweep.test.ts"]

/** @type {ReadonlyArray<Mutant>} */
const mutants = [
  {
    name: "R5 the proof: an accepted deletion is believed",
    file: sandboxes,
    find: `Effect.filterOrFail((state) => state === "absent", () => "still there" as const),`,
    replace: "",
    tests: ownership
  },
  {
    name: "R5 the attempts: deletion is tried once",
    file: sandboxes,
    find: "        Effect.zipRight(deleteAndProve(sandboxId, phase)),\n        Effect.retry(retries),",
    replace: "        Effect.zipRight(deleteAndProve(sandboxId, phase)),",
    tests: ownership
  },
  {
    name: "R5 the bound: cleanup may take for ever",
    file: sandboxes,
    find: "        until([deadline]),\n        Effect.option\n      )\n      const deleteAttempts",
    replace: "        Effect.option\n      )\n      const deleteAttempts",
    tests: [...ownership, ...sweep]
  },
  {
    name: "R4 the record: a sandbox is used before its id is in the ledger",
    file: sandboxes,
    find: `      yield* ledger.put(new LedgerEntry({ ...entry, sandboxId: sandbox.id, state: "held" }))\n`,
    replace: "",
    tests: ownership
  },
  {
    name: "R4 the record: nothing is written before a create",
    file: sandboxes,
    find: "          yield* ledger.put(entry)\n",
    replace: "",
    tests: ownership
  },
  {
    name: "R8 the reaper: what an interrupted create brings is kept",
    file: sandboxes,
    find:
      "            const settled = yield* Effect.forkDaemon(settle(entry, creating, cleanup))\n            settling.add(settled)\n            settled.addObserver(() => settling.delete(settled))\n",
    replace: "",
    tests: ownership
  },
  {
    name: "R8 deletion can be interrupted",
    file: sandboxes,
    find: "discard: Effect.uninterruptible(Effect.zipRight(once, Deferred.await(absent)))",
    replace: "discard: Effect.interruptible(Effect.zipRight(once, Deferred.await(absent)))",
    tests: [...ownership, ...episodes]
  },
  {
    name: "R8 the finalizer: a sandbox outlives its scope",
    file: sandboxes,
    find: "      yield* Effect.addFinalizer(() => Effect.ignore(owned.discard))\n",
    replace: "",
    tests: [...ownership, ...episodes]
  },
  {
    name: "the stray: a create whose reply was lost isn't looked up",
    file: sandboxes,
    find: "          const settled = yield* settle(entry, creating, cleanup)",
    replace: "          const settled = false as boolean",
    tests: ownership
  },
  {
    name: "R2 the gate: the verifier is made before the policy sandbox is gone",
    file: session,
    find: "Effect.flatMap(discard, (policy) =>",
    replace: "Effect.flatMap(Effect.succeed(undefined as never), (policy) =>",
    tests: [...episodes, ...sweep]
  },
  {
    name: "R6 the poison: an episode goes on after a lost reply",
    file: session,
    find: "finish(episode, ending).pipe(Effect.flatMap(scoreOf), Effect.flip, Effect.orDie)",
    replace: "Effect.succeed(ending.error)",
    tests: [...episodes, ...sweep]
  },
  {
    name: "R1 the order: an outcome before the deletions",
    file: session,
    find: "    yield* Scope.close(episode.scope, Exit.void)\n",
    replace: "",
    tests: episodes
  },
  {
    name: "R8 bookkeeping can be interrupted",
    file: requests,
    find: "turn.withPermits(1)(Effect.uninterruptibleMask(request))",
    replace: "turn.withPermits(1)(request((effect) => effect))",
    tests: [...episodes, ...sweep]
  },
  {
    name: "one request at a time",
    file: requests,
    find: "turn.withPermits(1)(Effect.uninterruptibleMask(request))",
    replace: "Effect.uninterruptibleMask(request)",
    tests: episodes
  },
  {
    name: "R11 the reset: an earlier episode is left as it is",
    file: session,
    find: "yield* abandon(before.episode)",
    replace: `{ _tag: "left alone" }`,
    tests: episodes
  },
  {
    name: "the health check before a zero without a verifier",
    file: session,
    find: "      episode.policy.sandbox.health.pipe(",
    replace: "      Effect.void.pipe(",
    tests: [...episodes, ...sweep]
  },
  {
    name: "the policy window is never acted on",
    file: session,
    find: "yield* Effect.sleep(budgets.policyWindow).pipe(",
    replace: "yield* Effect.never.pipe(",
    tests: episodes
  },
  {
    name: "R1 an unresolved deletion has a score",
    file: outcome,
    find: "  if (Option.isSome(left)) {",
    replace: "  if (Option.isSome(left) && false) {",
    tests: ["test/Episode/Outcome.test.ts"]
  },
  {
    name: "a score after the deadline",
    file: outcome,
    find: "  return late === undefined ? scored(ending) : new Aborted({ error: late })",
    replace: "  return scored(ending)",
    tests: ["test/Episode/Outcome.test.ts"]
  },
  {
    name: "R12 a fault is a zero",
    file: outcome,
    find: `  if (ending._tag === "Failed") {\n    return new Aborted({ error: ending.error })`,
    replace: `  if (ending._tag === "Failed") {\n    return new Scored({ score: 0, reason: "not-submitted" })`,
    tests: ["test/Episode/Outcome.test.ts"]
  },
  {
    name: "R2 the verifier has a network",
    file: grading,
    find: `network: "offline"`,
    replace: `network: "default"`,
    tests: [...episodes, ...sweep]
  },
  {
    name: "a candidate that fails can be right",
    file: grading,
    find: "    if (run.exitCode !== 0) {",
    replace: "    if (run.exitCode < 0) {",
    tests: episodes
  },
  {
    name: "R10 the cap of a candidate's output",
    file: grading,
    find: "{ maxBytes: budgets.fileCap }",
    replace: "{ maxBytes: Number.MAX_SAFE_INTEGER }",
    tests: episodes
  },
  {
    name: "R10 the cap of the submission",
    file: session,
    find: "sandbox.readFile(episode.task.submission, { maxBytes: budgets.fileCap })",
    replace: "sandbox.readFile(episode.task.submission, { maxBytes: Number.MAX_SAFE_INTEGER })",
    tests: episodes
  },
  {
    name: "R10 the cap of an observation",
    file: "src/Sandbox/Output.ts",
    find: "      const front = chunk.subarray(0, room)\n",
    replace: "      const front = chunk\n",
    tests: ["test/Sandbox/Output.test.ts"]
  },
  {
    name: "R3 the seal prints what it holds",
    file: "src/internal/verification.ts",
    find: "  contentsOf.set(sealed, contents)\n",
    replace: "  contentsOf.set(sealed, contents)\n  Object.assign(sealed, contents)\n",
    tests: ["test/internal/verification.test.ts"]
  },
  {
    name: "totals: a key that occurs twice",
    file: "src/Grading/Totals.ts",
    find: "        if (totals.has(key)) {",
    replace: "        if (totals.has(key) && false) {",
    tests: ["test/Grading/Totals.test.ts"]
  },
  {
    name: "totals: integers as written",
    file: "src/internal/losslessJson.ts",
    find: "/^(?:0|-?[1-9][0-9]*)$/.test(raw)",
    replace: "/^-?[0-9.]+$/.test(raw)",
    tests: ["test/Grading/Totals.test.ts"]
  },
  {
    name: "a wait isn't bounded by the budget around it",
    file: "src/Budgets.ts",
    find: "[own, ...options.enclosing ?? []]",
    replace: "[own]",
    tests: ["test/Budgets.test.ts", ...sweep]
  },
  {
    name: "a policy that goes on after its end holds the episode up",
    file: "src/Episode.ts",
    find: "            Effect.raceFirst(Effect.interruptible(policyOver)),\n",
    replace: "",
    tests: episodes
  },
  {
    name: "R8 the end of a session waits for a request instead of cutting it",
    file: requests,
    find: "      tell = () => resume(closed)\n",
    replace: "",
    tests: episodes
  },
  {
    name: "R8 what an interrupted request was doing goes on",
    file: requests,
    find: ".pipe(Effect.onError(() => Fiber.interrupt(working)))",
    replace: "",
    tests: [...episodes, ...sweep]
  },
  {
    name: "R9 a sandbox is taken on a Terminus server's word",
    file: "src/OpenEnv/TerminusProvider.ts",
    find: `found._tag !== "Bytes" || !sameBytes(found.bytes, held.word)`,
    replace: "found === undefined",
    tests: ["test/OpenEnv/TerminusProvider.test.ts"]
  },
  {
    name: "R6 a silent Terminus server passes for a guest's doing",
    file: "src/OpenEnv/TerminusProvider.ts",
    find: `return found === "held" || (yield* rescue(session, mark)) !== "untouched"`,
    replace: "return true",
    tests: ["test/OpenEnv/TerminusProvider.test.ts"]
  },
  {
    name: "R9 another one's sandbox of E2B is deleted on the API's word",
    file: "src/Sandbox/E2b/Provider.ts",
    find: "            strangers.add(id)\n",
    replace: "",
    tests: ["test/Sandbox/E2b.test.ts"]
  },
  {
    name: "R4 a sandbox of a Terminus reset that failed is forgotten",
    file: "src/OpenEnv/TerminusProvider.ts",
    find: "        held.isGivenUp = true\n",
    replace: "        return Effect.sync(() => allHeld.delete(held))\n",
    tests: ["test/OpenEnv/TerminusProvider.test.ts"]
  },
  {
    name: "Terminus keeps the sandbox of a setup that failed",
    file: "src/OpenEnv/TerminusEnvironment.ts",
    find: "          const left = yield* end(episode)\n          return yield* notReady",
    replace: "          const left = Option.none()\n          return yield* notReady",
    tests: ["test/OpenEnv/Terminus.test.ts"]
  },
  {
    name: "OpenEnv: a client that is gone keeps its place",
    file: "src/OpenEnv/Sessions.ts",
    find: "    own: Effect.acquireRelease(start(true), finish),",
    replace: "    own: start(true),",
    tests: ["test/OpenEnv/Sockets.test.ts", "test/OpenEnv/Server.test.ts"]
  },
  {
    name: "OpenEnv: the place of a session that couldn't begin is kept",
    file: "src/OpenEnv/Sessions.ts",
    find: "Effect.onError((cause) => Effect.ensuring(Scope.close(own, Exit.failCause(cause)), givePlace))",
    replace: "Effect.onError((cause) => Scope.close(own, Exit.failCause(cause)))",
    tests: ["test/OpenEnv/Sockets.test.ts", "test/OpenEnv/Server.test.ts"]
  },
  {
    name: "R5 serve e2b: a sandbox is called absent before that is proved",
    file: "src/E2bServer/Fleet.ts",
    find: "Effect.map(() => !live.has(id))",
    replace: "Effect.as(true)",
    tests: ["test/E2bServer/Absence.test.ts"]
  },
  {
    name: "R4 a ledger that fails keeps a sandbox",
    file: sandboxes,
    find: `yield* noted(ledger.put(new LedgerEntry({ ...entry, sandboxId, state: "deleting" })))`,
    replace: `yield* ledger.put(new LedgerEntry({ ...entry, sandboxId, state: "deleting" }))`,
    tests: ownership
  },
  {
    name: "R8 a layer ends before what it is writing to the disk",
    file: "src/Sandbox/Local/Pipes.ts",
    find: "        one.withPermits(1)(\n          Effect.sync(() => supply",
    replace: "        Effect.asVoid(\n          Effect.sync(() => supply",
    tests: ["test/Sandbox/Pipes.test.ts"]
  },
  {
    name: "R8 what an interrupted request still does isn't waited for",
    file: "src/Budgets.ts",
    find: "                    working.addObserver(over)\n",
    replace: "                    over()\n",
    tests: ["test/Budgets.test.ts"]
  }
]

const root = fileURLToPath(new URL("..", import.meta.url))
const chosen = mutants.filter(({ name }) => name.includes(process.argv[2] ?? ""))
const copy = mkdtempSync(join(tmpdir(), "episode-mutants-"))

const firstRed = (/** @type {string} */ report) => {
  const { testResults } = JSON.parse(report)
  const failed = testResults.flatMap((/** @type {{ assertionResults: ReadonlyArray<{ status: string }> }} */ file) =>
    file.assertionResults.filter(({ status }) => status === "failed")
  )
  return failed[0]?.fullName ??
    testResults.find((/** @type {{ status: string }} */ file) => file.status === "failed")?.message
}

/** The first test that goes red in the copy; undefined when none does. */
const redBy = async (/** @type {ReadonlyArray<string>} */ tests) => {
  const report = join(copy, "report.json")
  rmSync(report, { force: true })
  // In a process group of its own: a mutant that never ends is ended with its workers.
  const run = spawn(
    process.execPath,
    [
      ...[join(root, "node_modules/vitest/vitest.mjs"), "run", "--config", "vitest.mutants.ts", "--bail", "1"],
      ...["--reporter", "json", "--outputFile", report, ...tests]
    ],
    { cwd: copy, stdio: "ignore", detached: true }
  )
  const limit = setTimeout(() => run.pid !== undefined && process.kill(-run.pid, "SIGKILL"), 240_000)
  const [status] = await once(run, "exit")
  clearTimeout(limit)
  return status === 0
    ? undefined
    : status === null
    ? "(no end within four minutes)"
    : firstRed(readFileSync(report, "utf8"))
}

for (const { file, find, name } of mutants) {
  const places = readFileSync(join(root, file), "utf8").split(find).length - 1
  if (places !== 1) {
    throw new Error(`${name}: the text to replace stands ${places} times in ${file}`)
  }
}

if (chosen.length === 0) {
  throw new Error(`no mutant is called ${process.argv[2]}`)
}

const survivors = []
try {
  for (
    const part of [
      "src",
      "test",
      "package.json",
      "task.json",
      "vitest.config.ts",
      "tsconfig.json",
      "tsconfig.base.json"
    ]
  ) {
    cpSync(join(root, part), join(copy, part), { recursive: true })
  }
  symlinkSync(join(root, "node_modules"), join(copy, "node_modules"))
  // The copy tests sources, and spawns no command line that would have to be built first.
  writeFileSync(
    join(copy, "vitest.mutants.ts"),
    `export default { test: { include: ["test/**/*.test.ts"], setupFiles: ["test/setup.ts"], pool: "forks", testTimeout: 10_000 } }`
  )
  // A test that is red without any mutant proves nothing.
  const untouched = await redBy([...new Set(chosen.flatMap(({ tests }) => tests))])
  if (untouched !== undefined) {
    throw new Error(`red without a mutant: ${untouched}`)
  }
  for (const { file, find, name, replace, tests } of chosen) {
    const source = readFileSync(join(root, file), "utf8")
    writeFileSync(join(copy, file), source.replace(find, () => replace))
    const red = await redBy(tests)
    writeFileSync(join(copy, file), source)
    if (red === undefined) {
      survivors.push(name)
    }
    console.log(
      `${red === undefined ? "SURVIVED" : "red     "}  ${name}${red === undefined ? "" : `\n            ${red}`}`
    )
  }
} finally {
  rmSync(copy, { recursive: true, force: true })
}

console.log(`\n${chosen.length - survivors.length} passed, ${survivors.length} failed`)
process.exitCode = survivors.length === 0 ? 0 : 1

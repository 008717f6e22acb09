/** The demo without any privilege. */
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as fs from "node:fs"
import * as path from "node:path"
import type { Receipt } from "../../src/Episode/Receipt.ts"
import { assertNothingLeft, bin, directory, environment, receiptOf, root, runProgram } from "./commandLine.ts"

const uid = 64000
const isRoot = process.getuid?.() === 0

// The repository may lie, and node too, below a directory that only root can read: both are mounted where they aren't.
const asUser = `set -e
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/repository" "$1/node"
mount --rbind "$2" "$1/repository"
mount --rbind "$(dirname "$(dirname "$3")")" "$1/node"
cd "$1/repository"
shift 3
exec setpriv --reuid ${uid} --regid ${uid} --clear-groups -- "$@"
`

const demo = (own: string) => {
  const stage = path.join(own, "stage")
  const runtime = path.join(own, "runtime")
  fs.mkdirSync(stage)
  fs.mkdirSync(runtime, { mode: 0o700 })
  fs.chmodSync(own, 0o755)
  if (!isRoot) {
    return runProgram([process.execPath, bin, "demo", "--json"], { env: environment(own) })
  }
  fs.chownSync(runtime, uid, uid)
  return runProgram(
    [
      ...["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", asUser, "sh"] as const,
      ...[stage, root, fs.realpathSync(process.execPath)],
      ...[path.join(stage, "node", "bin", "node"), "bin/episode.js", "demo", "--json"]
    ],
    {
      env: {
        PATH: "/usr/bin:/bin",
        HOME: runtime,
        XDG_RUNTIME_DIR: runtime
      }
    }
  )
}

/** What of a receipt is the same in every run. Two requests run side by side, so their order isn't. */
const shapeOf = ({ episodes, rewards }: Receipt) => ({
  rewards,
  episodes: episodes.map(({ operations, outcome, provider, resources, submissionDigest, taskDigest }) => ({
    outcome,
    provider,
    submissionDigest,
    taskDigest,
    operations: operations.map(({ name, phase, result }) => `${phase} ${name} ${result}`).toSorted(),
    resources: resources.map(({ confirmedAbsentAt, deleteAttempts, role }) => [
      role,
      deleteAttempts,
      confirmedAbsentAt !== null
    ])
  }))
})

describe("an ordinary user", () => {
  it.live(
    isRoot
      ? `gets the same receipt as root (user ${uid})`
      : "gets a receipt (not root: the half with two users didn't run)",
    () =>
      Effect.scoped(Effect.gen(function*() {
        const own = yield* directory
        const { code, stderr, stdout } = yield* demo(own)
        assert.strictEqual(code, 0, stderr)
        const receipt = yield* receiptOf(stdout)
        assert.deepStrictEqual(receipt.rewards, [0, 1])
        if (isRoot) {
          const asRoot = yield* runProgram([process.execPath, bin, "demo", "--json"], { env: environment(own) })
          assert.deepStrictEqual(shapeOf(receipt), shapeOf(yield* receiptOf(asRoot.stdout)))
          assert.isFalse(fs.existsSync(path.join(own, "runtime", "episode")))
        }
        assertNothingLeft(own)
      })),
    60_000
  )
})

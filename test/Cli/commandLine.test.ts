/** The contract of the command line, by the program as it is built. */
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as fs from "node:fs"
import * as path from "node:path"
import type { Ended } from "./commandLine.ts"
import {
  assertNothingLeft,
  bin,
  directory,
  environment,
  episode,
  receiptOf,
  repair,
  root,
  runProgram,
  taskFile,
  taskText,
  write
} from "./commandLine.ts"
import { validatorOf } from "./jsonSchema.ts"

const run = (policy: ReadonlyArray<string>, more: Parameters<typeof episode>[1] = {}) =>
  episode(["run", "--task", taskFile, ...policy], more)

/** Refused before any sandbox was made, in words for people and on the right stream. */
const assertRefused = (ended: Ended, ...words: ReadonlyArray<string | RegExp>) => {
  assert.strictEqual(ended.code, 2, ended.stderr)
  assert.strictEqual(ended.stdout, "")
  assert.notInclude(ended.stderr, "sandbox sbx-")
  assert.notMatch(ended.stderr, /^ {4}at /m)
  words.forEach((word) =>
    typeof word === "string" ? assert.include(ended.stderr, word) : assert.match(ended.stderr, word)
  )
}

const controls = /(?![\n\t])\p{Cc}/u

describe("episode", () => {
  it.live("without a command, and with --help, says what there is", () =>
    Effect.gen(function*() {
      const bare = yield* episode([])
      assert.deepStrictEqual([bare.code, bare.stderr], [0, ""])
      assert.include(bare.stdout, "episode demo")
      assert.deepStrictEqual(yield* episode(["--help"]), bare)
      const { code, stdout } = yield* episode(["run", "--help"])
      assert.strictEqual(code, 0)
      assert.include(stdout, "--policy-command")
      assert.notMatch(stdout, controls)
    }))

  const mistakes: ReadonlyArray<readonly [args: ReadonlyArray<string>, words: ReadonlyArray<string | RegExp>]> = [
    [["nope"], [/^episode: there is no command 'nope'; see episode --help\n$/]],
    [["task", "chek", "file"], [/^episode: there is no command 'task chek'; did you mean check\?\n$/]],
    [["serve"], [/^episode: serve needs one of e2b, openenv, terminus; see episode serve --help\n$/]],
    [["nope", "--help"], [/^episode: there is no command 'nope'; see episode --help\n$/]],
    [["demo", "--nope"], [/^episode: unknown flag --nope; see episode --help\n$/]],
    [["demo", "--recipt", "x"], ["did you mean --receipt?"]],
    [["demo", "extra"], ["extra"]],
    [["demo", "--provider", "nope"], ["--provider is local"]],
    [["run"], ["--task"]],
    [["run", "--task", taskFile], ["either --script or --policy-command"]],
    [["run", "--task", taskFile, "--script", taskFile, "--policy-command", "true"], ["either --script or"]],
    [["run", "--task", taskFile, "--policy-command", "true", "--no-submit"], ["--no-submit goes with --script"]],
    [["run", "--task", taskFile, "--script", "/no/such/script"], ["/no/such/script: there is no such file"]],
    [["run", "--task", taskFile, "--script", taskFile], ["is not a script"]],
    [["run", "--task", "/no/such/task", "--policy-command", "true"], ["/no/such/task: there is no such file"]],
    [["run", "--task", taskFile, "--policy-command", "true", "--min-score", "2"], ["--min-score is 0 or 1"]],
    [["task", "check", root], ["is it a regular file?"]],
    [["task", "check", "bell\u0007\u001b[31m"], ["bell\\x07\\x1b[31m: there is no such file"]],
    [["task", "check", taskFile, "--json"], ["go with --run"]],
    [["schema", "nope"], ["receipt"]],
    [["completions", "tcsh"], ["bash"]],
    [["demo", "--receipt", "/no/such/folder/receipt.json"], ["/no/such/folder/receipt.json: there is no such"]],
    [["demo", "--receipt", root], ["isn't a regular file"]]
  ]

  it.live.each(mistakes)(
    "refuses %j",
    ([args, words]) => Effect.map(episode(args), (ended) => assertRefused(ended, ...words))
  )

  const settings: ReadonlyArray<readonly [name: string, value: string, word: string]> = [
    ["EPISODE_POLICY_WINDOW", "soon", "soon"],
    ["EPISODE_POLICY_WINDOW", "0 seconds", "longer than zero"],
    ["EPISODE_POLICY_WINDOW", "11 minutes", "must be shorter than episodeDeadline"],
    ["EPISODE_FILE_CAP", "1.5", "1.5"],
    ["EPISODE_LOCAL_MEMORY_MIB", "3", "64 at least"],
    ["EPISODE_LOCAL_POLICY_NETWORK", "perhaps", "perhaps"]
  ]

  it.live.each(settings)("refuses %s=%s", ([name, value, word]) =>
    Effect.gen(function*() {
      const { code, stderr, stdout } = yield* episode(["run", "--task", taskFile, "--policy-command", "true"], {
        env: { [name]: value }
      })
      assert.strictEqual(code, 2, stderr)
      assert.include(stderr, word)
      assert.notInclude(stdout + stderr, "sandbox sbx-")
    }))

  it.live("prints completions for every shell", () =>
    Effect.gen(function*() {
      for (const shell of ["bash", "fish", "zsh"]) {
        const { code, stderr, stdout } = yield* episode(["completions", shell])
        assert.deepStrictEqual([code, stderr], [0, ""])
        assert.include(stdout, "policy-command")
      }
    }))

  it.live("prints the schema of tasks, which the shipped one has", () =>
    Effect.gen(function*() {
      const { code, stdout } = yield* episode(["schema", "task"])
      assert.strictEqual(code, 0)
      const validate = validatorOf(stdout)
      assert.deepStrictEqual(validate(fs.readFileSync(taskFile, "utf8")), [])
      for (
        const wrong of [{ id: "No" }, { prompt: "" }, { expected: { east: "15" } }, { extra: 1 }, { input: undefined }]
      ) {
        assert.notDeepEqual(validate(taskText(wrong)), [], JSON.stringify(wrong))
      }
    }))

  it.live("finds out what this machine has", () =>
    Effect.gen(function*() {
      const words = yield* episode(["doctor"])
      assert.deepStrictEqual([words.code, words.stderr], [0, ""])
      assert.include(words.stdout, "the local provider can run here")
      const { code, stderr, stdout } = yield* episode(["doctor", "--json"])
      assert.strictEqual(code, 0)
      const checks: unknown = JSON.parse(stdout)
      assert.isArray(checks)
      assert.include(stderr, "the local provider can run here")
    }))

  it.live("gives one document on standard output, which has the schema it prints, and all else on the other", () =>
    Effect.scoped(Effect.gen(function*() {
      const folder = yield* directory
      const file = path.join(folder, "receipt.json")
      const { code, stderr, stdout } = yield* episode(["demo", "--json", "--receipt", file])
      assert.strictEqual(code, 0, stderr)
      const receipt = yield* receiptOf(stdout)
      assert.deepStrictEqual(receipt.rewards, [0, 1])
      assert.deepStrictEqual(receipt.episodes.map(({ resources }) => resources.map(({ role }) => role)), [
        ["policy", "verifier"],
        ["policy", "verifier"]
      ])
      assert.strictEqual(fs.readFileSync(file, "utf8"), stdout)
      assert.deepStrictEqual(fs.readdirSync(folder), ["receipt.json"], "nothing half-written is left")

      const validate = validatorOf((yield* episode(["schema", "receipt"])).stdout)
      assert.deepStrictEqual(validate(stdout), [])
      // The schema says no as well.
      assert.notDeepEqual(validate(stdout.replace("\"version\": 1", "\"version\": 2")), [])
      assert.notDeepEqual(validate(stdout.replace("\"rewards\"", "\"reward\"")), [])

      for (
        const said of ["Episode 1 of 2", "score 0  wrong-totals", "score 1  correct", "4 of 4 sandboxes confirmed"]
      ) {
        assert.include(stderr, said)
      }
      assert.notMatch(stdout + stderr, controls)
      // The word of the expectations and of the verification input.
      assert.notMatch(stdout + stderr, /north|south/)
    })))

  it.live("tells people on standard output what happens, without colours where there is no terminal", () =>
    Effect.gen(function*() {
      const { code, stderr, stdout } = yield* episode(["demo"])
      assert.deepStrictEqual([code, stderr], [0, ""])
      assert.include(stdout, "rewards [0, 1]")
      assert.notMatch(stdout, controls)
    }))

  it.live("colours on a terminal, unless it is told not to", () =>
    Effect.gen(function*() {
      const onTerminal = (env: Readonly<Record<string, string>>) =>
        Effect.scoped(Effect.gen(function*() {
          const own = yield* directory
          return yield* runProgram(["script", "-qec", `'${process.execPath}' '${bin}' demo`, "/dev/null"], {
            env: environment(own, { TERM: "xterm", ...env })
          })
        }))
      assert.include((yield* onTerminal({})).stdout, "\u001b[")
      assert.notInclude((yield* onTerminal({ NO_COLOR: "1" })).stdout, "\u001b[")
    }))

  it.live("has an exit code for a score that is too low, and none for a low one", () =>
    Effect.scoped(Effect.gen(function*() {
      const folder = yield* directory
      const script = write(folder, "repair.json", JSON.stringify(repair))
      assert.strictEqual((yield* run(["--script", script, "--min-score", "1"])).code, 0)
      const low = yield* run(["--script", write(folder, "empty.json", "[]"), "--min-score", "1", "--json"])
      assert.strictEqual(low.code, 1)
      assert.include(low.stderr, "the score is 0, less than 1")
      assert.deepStrictEqual((yield* receiptOf(low.stdout)).rewards, [0])
      assert.strictEqual((yield* run(["--script", script, "--no-submit", "--min-score", "0"])).code, 0)
    })))

  it.live("scores what isn't submitted with 0, without a verifier", () =>
    Effect.scoped(Effect.gen(function*() {
      const folder = yield* directory
      const { code, stdout } = yield* run([
        ...["--script", write(folder, "repair.json", JSON.stringify(repair)), "--no-submit", "--json"]
      ])
      assert.strictEqual(code, 0)
      const { episodes: [only] } = yield* receiptOf(stdout)
      assert.deepInclude(only?.outcome, { score: 0, reason: "not-submitted" })
      assert.deepStrictEqual(only?.resources.map(({ role }) => role), ["policy"])
    })))

  it.live("has no score and code 3 when the infrastructure fails, with a receipt that says so", () =>
    Effect.scoped(Effect.gen(function*() {
      const folder = yield* directory
      const file = path.join(folder, "receipt.json")
      const { code, stderr, stdout } = yield* run(
        ["--script", write(folder, "empty.json", "[]"), "--json", "--receipt", file],
        { env: { EPISODE_ALLOCATION: "1 millis" } }
      )
      assert.strictEqual(code, 3, stderr)
      const receipt = yield* receiptOf(stdout)
      assert.deepStrictEqual(receipt.rewards, [null])
      assert.strictEqual(receipt.episodes[0]?.outcome._tag, "Aborted")
      assert.include(stderr, "allocation budget of 1ms")
      assert.strictEqual(fs.readFileSync(file, "utf8"), stdout)
    })))

  // The policy's program is one of the host's. This one makes what is written down of its own sandbox unreadable, so that
  // no request to it works any more, its deletion and the proof of that included.
  const sabotage = "for entry in \"$EPISODE_LOCAL_DIRECTORY\"/*.json; do echo broken >\"$entry\"; done"
  const unproved = /not proved gone:\n {2}sbx-[0-9a-f]+ \(local, policy, unresolved\)/

  it.live("names what isn't proved gone, and has code 4 for it", () =>
    Effect.gen(function*() {
      const { code, stderr, stdout } = yield* run(["--policy-command", sabotage, "--json"], {
        env: { EPISODE_CLEANUP_ATTEMPTS: "1" }
      })
      assert.strictEqual(code, 4, stderr)
      const receipt = yield* receiptOf(stdout)
      assert.deepStrictEqual(receipt.rewards, [null])
      assert.isNull(receipt.episodes[0]?.resources[0]?.confirmedAbsentAt)
      assert.match(stderr, unproved)
    }))

  it.live("has code 4 for that whatever else went wrong", () =>
    Effect.map(
      run(["--policy-command", `${sabotage}; exit 127`], { env: { EPISODE_CLEANUP_ATTEMPTS: "1" } }),
      ({ code, stderr }) => {
        assert.strictEqual(code, 4, stderr)
        assert.include(stderr, "the policy command can't be started")
        assert.match(stderr, unproved)
      }
    ))

  it.live("shows what comes out of a sandbox, and lets it do nothing to the terminal", () =>
    Effect.scoped(Effect.gen(function*() {
      const folder = yield* directory
      const command =
        "printf '\\033]0;owned\\007\\033[2J\\r\\302\\233\\342\\200\\256\\033[31mred'; printf '\\377\\007' >&2"
      const { code, stdout } = yield* run([
        ...[
          "--script",
          write(folder, "script.json", JSON.stringify([command, "echo '\u001b[31m\u202e'"])),
          "--no-submit"
        ]
      ])
      assert.strictEqual(code, 0)
      assert.notMatch(stdout, controls)
      assert.notMatch(stdout, /\p{Bidi_Control}/u)
      assert.include(stdout, "\\x1b]0;owned\\x07\\x1b[2J\\r\\x9b\\u202e\\x1b[31mred")
    })))

  it.live("says that it can't start where there are too few descriptors", () =>
    Effect.scoped(Effect.gen(function*() {
      const own = yield* directory
      const { code, stderr, stdout } = yield* runProgram(
        ["bash", "-c", `ulimit -n 24; exec '${process.execPath}' '${bin}' demo`],
        { env: environment(own) }
      )
      assert.deepStrictEqual([code, stdout], [3, ""], stderr)
      assert.match(stderr, /^episode: it can't start here: EMFILE: too many open files, .*\n$/)
    })))

  const outputs: ReadonlyArray<readonly [command: string, output: string]> = [
    // A reader that leaves, of one stream or of both; an output that is full.
    ["demo", "| head -n 1 >/dev/null"],
    ["demo", "2>&1 | head -n 1 >/dev/null"],
    ["demo", ">/dev/full"],
    ["demo --json", ">/dev/full"],
    ["demo", ">/dev/full 2>&1"],
    ["schema receipt", ">/dev/full"]
  ]

  it.live.each(outputs)(
    "ends orderly when its output goes nowhere: %s %s",
    ([command, output]) =>
      Effect.scoped(Effect.gen(function*() {
        const own = yield* directory
        const { code, stderr } = yield* runProgram(
          ["bash", "-c", `'${process.execPath}' '${bin}' ${command} ${output}; exit "\${PIPESTATUS[0]}"`],
          { env: environment(own) }
        )
        assert.strictEqual(code, 130, stderr)
        assert.notMatch(stderr, /^ {4}at |interrupted/m)
        assertNothingLeft(own)
      }))
  )
})

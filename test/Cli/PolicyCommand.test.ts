/** Programs as policies, by the command line as it is built. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import * as fs from "node:fs"
import * as path from "node:path"
import type { ScoreReason } from "../../src/Episode/Outcome.ts"
import { directory, episode, receiptOf, taskFile, write } from "./commandLine.ts"

// A policy in Python: `ask` sends one line as it is, and `heard` keeps every answer for the test.
const python = `import json, os, sys
heard = open("heard.jsonl", "a")
def ask(line):
    print(line if isinstance(line, str) else json.dumps(line), flush=True)
    answer = sys.stdin.readline()
    heard.write(answer)
    heard.flush()
    return json.loads(answer)
def terminal(command):
    return ask({"tool": "terminal", "command": command})
def submit():
    return ask({"tool": "submit"})
`

const Answer = Schema.parseJson(Schema.Union(
  Schema.Struct({
    observation: Schema.String,
    result: Schema.Struct({
      stdout: Schema.String,
      stderr: Schema.String,
      exitCode: Schema.NullOr(Schema.Int),
      killedAtLimit: Schema.Boolean,
      truncated: Schema.Boolean,
      finished: Schema.Boolean
    })
  }),
  Schema.Struct({ error: Schema.Struct({ type: Schema.String, message: Schema.String }) })
))
const decodeAnswer = Schema.decodeUnknownSync(Answer, { onExcessProperty: "error" })

// The window of a policy that never ends. A command's limit has to be shorter.
const short = { EPISODE_POLICY_WINDOW: "700 millis", EPISODE_COMMAND_LIMIT: "500 millis" }

/** One episode with a command, in a directory of its own. */
const play = (
  command: string,
  options: { readonly program?: string; readonly env?: Readonly<Record<string, string>> } = {}
) =>
  Effect.scoped(Effect.gen(function*() {
    const folder = yield* directory
    if (options.program !== undefined) {
      write(folder, "policy.py", python + options.program)
    }
    const ended = yield* episode(["run", "--task", taskFile, "--json", "--policy-command", command], {
      cwd: folder,
      env: options.env ?? {}
    })
    const read = (name: string) => {
      const file = path.join(folder, name)
      return fs.existsSync(file) ? fs.readFileSync(file, "utf8").split("\n").filter((line) => line !== "") : []
    }
    return { ...ended, heard: read("heard.jsonl").map((line) => decodeAnswer(line)), pids: read("pids").map(Number) }
  }))

const outcomeOf = (stdout: string) =>
  Effect.map(
    receiptOf(stdout),
    ({ episodes: [only] }) => only?.outcome._tag === "Scored" ? [only.outcome.score, only.outcome.reason] : ["none"]
  )

const assertScore = (
  { code, stderr, stdout }: { readonly code: number | null; readonly stderr: string; readonly stdout: string },
  score: 0 | 1,
  reason: ScoreReason
) =>
  Effect.gen(function*() {
    assert.strictEqual(code, 0, stderr)
    assert.deepStrictEqual(yield* outcomeOf(stdout), [score, reason])
  })

const isRunning = (pid: number): boolean => {
  try {
    // A process that ended and isn't collected yet is gone.
    return !/^[0-9]+ \(.*\) Z/s.test(fs.readFileSync(`/proc/${pid}/stat`, "utf8"))
  } catch {
    return false
  }
}

describe("a policy command", () => {
  it.live("repairs the program and scores 1; it knows the task, and its mistakes are answered", () =>
    Effect.gen(function*() {
      const played = yield* play("python3 policy.py", {
        program: `
assert os.environ["EPISODE_TASK_ID"] == "weekly-sales"
assert "sums every amount" in os.environ["EPISODE_PROMPT"]
for wrong in ["no json", "{}", "[]", "null", '{"tool":"terminal"}', '{"tool":"terminal","command":7}',
              '{"tool":"submit","extra":1}', '{"tool":"other"}', '"\\\\ud800"', "\\x1b[31m"]:
    assert ask(wrong)["error"]["type"] == "InvalidRequest", wrong
print("\\n \\n", end="", flush=True)
assert terminal("cat work/report.py; echo err >&2; exit 3")["result"]["exitCode"] == 3
assert terminal("head -c 200000 /dev/zero | tr '\\\\0' x")["result"]["truncated"]
terminal("""sed -i 's/= int(row/= totals.get(row["region"], 0) + int(row/' work/report.py""")
assert submit()["result"]["finished"]
assert terminal("true")["result"]["finished"] and submit()["result"]["finished"]
`
      })
      yield* assertScore(played, 1, "correct")
      assert.lengthOf(played.heard.filter((answer) => "error" in answer), 10)
      assert.lengthOf(played.heard, 16)
      // It is told of nothing but its own work.
      assert.notMatch(JSON.stringify(played.heard), /north|south|score|correct/)
    }))

  const silent: ReadonlyArray<readonly [doing: string, command: string]> = [
    ["exits at once", "exit 0"],
    ["fails", "exit 3"],
    ["is killed", "kill -9 $$"],
    ["ends in the middle of a line", "printf '{\"tool\":\"submit\"}'"],
    ["closes its output and goes on for a while", "exec >&-; read -r _"]
  ]

  it.live.each(silent)("that %s hasn't submitted", ([, command]) =>
    // Its input ends with the episode, not before: the last one would wait for the end of its window.
    Effect.flatMap(play(command, { env: short }), (played) =>
      assertScore(played, 0, command.startsWith("exec") ? "policy-window-exhausted" : "not-submitted")))

  const endless: ReadonlyArray<readonly [doing: string, command: string]> = [
    ["never asks", "echo $$ >pids; sleep 3600 & echo $! >>pids; wait"],
    ["has left its group's shell behind", "sleep 3600 & echo $! >pids; wait"],
    ["ignores signals", "trap '' TERM INT HUP; echo $$ >pids; while :; do sleep 1; done"],
    [
      "asks for ever",
      "echo $$ >pids; while :; do echo '{\"tool\":\"terminal\",\"command\":\"echo\"}'; read -r _; done"
    ],
    [
      "asks for ever and reads nothing",
      "echo $$ >pids; yes '{\"tool\":\"terminal\",\"command\":\"head -c 60000 /dev/zero\"}'"
    ],
    ["floods with blank lines", "echo $$ >pids; yes ''"],
    ["floods with nonsense and reads nothing", "echo $$ >pids; yes nonsense"],
    ["floods with nonsense and reads it all", "echo $$ >pids; exec 3<&0; cat <&3 >/dev/null & yes nonsense"]
  ]

  it.live.each(endless)(
    "that %s runs out of its window, and nothing of it is left",
    ([, command]) =>
      Effect.gen(function*() {
        const played = yield* play(command, { env: short })
        yield* assertScore(played, 0, "policy-window-exhausted")
        assert.isNotEmpty(played.pids)
        assert.deepStrictEqual(played.pids.filter(isRunning), [])
      })
  )

  it.live("whose children live on after it and hold its output leaves none of them", () =>
    Effect.gen(function*() {
      const played = yield* play("sleep 3600 & echo $! >pids; echo '{\"tool\":\"submit\"}'")
      yield* assertScore(played, 0, "wrong-totals")
      assert.deepStrictEqual(played.pids.filter(isRunning), [])
    }))

  it.live("may not write a line without end", () =>
    Effect.map(play("tr '\\0' x </dev/zero"), ({ code, stderr, stdout }) => {
      assert.deepStrictEqual([code, stdout], [2, ""])
      assert.include(stderr, "a line of more than 4194304 bytes")
      assert.include(stderr, "absence confirmed")
    }))

  it.live.each(["/no/such/program", "/etc/passwd"])(
    "that can't be started is wrong usage: %s",
    (command) =>
      Effect.map(play(command), ({ code, stderr, stdout }) => {
        assert.deepStrictEqual([code, stdout], [2, ""])
        assert.include(stderr, "the policy command can't be started")
      })
  )
})

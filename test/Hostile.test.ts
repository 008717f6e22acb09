/**
 * Whole episodes over real sandboxes with policies and candidates that do their worst. Whatever it is, it is their own
 * doing: the exact zero, no error, everything proved absent, nothing left (R7).
 */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Layer } from "effect"
import * as fs from "node:fs"
import * as net from "node:net"
import * as path from "node:path"
import * as Budgets from "../src/Budgets.ts"
import * as Episode from "../src/Episode.ts"
import type { ScoreReason } from "../src/Episode/Outcome.ts"
import type { EpisodeReceipt } from "../src/Episode/Receipt.ts"
import * as Local from "../src/Sandbox/Local.ts"
import * as Report from "../src/Task/Report.ts"
import shipped from "../task.json" with { type: "json" }
import { assertNothingLeft, directory } from "./Cli/commandLine.ts"

// Held-out words that stand nowhere else, and a mark of the host's.
const heldOut = "heldout-b52f"
const expectation = "770000077"
const canary = `host-canary-${process.pid}`

const decodeTask = Report.decode(new TextEncoder().encode(JSON.stringify({
  ...shipped,
  verification: {
    input: `region,amount\n${heldOut},770000070\n${heldOut},7\n`,
    expected: { [heldOut]: Number(expectation) }
  }
})))

const budgets = {
  commandLimit: "2 seconds",
  commandResponse: "8 seconds",
  verifierResponse: "8 seconds",
  policyWindow: "60 seconds"
} as const

/** Runs effects on episodes over sandboxes of their own, and looks that nothing of them is left. */
const onEpisodes = <A, E>(
  body: (episodes: typeof Episode.Episode.Service) => Effect.Effect<A, E>,
  overrides: Budgets.Overrides = budgets
) =>
  Effect.scoped(Effect.gen(function*() {
    const own = yield* directory
    const result = yield* Effect.flatMap(Episode.Episode, body).pipe(
      Effect.provide(Episode.layer.pipe(
        Layer.provide(Local.layer({ directory: path.join(own, "sandboxes") })),
        Layer.provide(Budgets.layer(overrides))
      ))
    )
    assertNothingLeft(own)
    return result
  }))

const assertOutcome = (receipt: EpisodeReceipt, score: 0 | 1, reason: ScoreReason) => {
  const { outcome, resources } = receipt
  assert.deepStrictEqual(
    outcome._tag === "Scored" ? [outcome.score, outcome.reason] : [outcome.error._tag, outcome.error.message],
    [score, reason]
  )
  assert.isNotEmpty(resources)
  resources.forEach(({ confirmedAbsentAt, id }) => assert.isNotNull(confirmedAbsentAt, `${id} isn't proved absent`))
}

/** One episode of commands and a submission. */
const play = (commands: ReadonlyArray<string>, overrides?: Budgets.Overrides) =>
  onEpisodes((episodes) =>
    Effect.gen(function*() {
      const { task } = yield* decodeTask
      return yield* episodes.run(task, ({ submit, terminal }) =>
        Effect.zipRight(Effect.forEach(commands, terminal, { discard: true }), submit))
    }), overrides)

const source = "work/report.py"

const solve = `sed -i 's/= int(row/= totals.get(row["region"], 0) + int(row/' ${source}`

const daemon = (body: string) => `setsid -f python3 -c '${body}' >/dev/null 2>&1 </dev/null`

// What a policy did, and what that is worth.
const policies: ReadonlyArray<readonly [doing: string, reason: ScoreReason, ...commands: ReadonlyArray<string>]> = [
  ["does nothing", "wrong-totals"],
  ["removes the source", "submission-missing", `rm ${source}`],
  ["puts a FIFO in place of the source", "submission-not-regular", `rm ${source}; mkfifo ${source}`],
  [
    "puts a FIFO there and keeps writing",
    "submission-not-regular",
    `rm ${source}; mkfifo ${source}`,
    `yes >${source} &`
  ],
  ["puts a directory there", "submission-not-regular", `rm ${source}; mkdir ${source}`],
  [
    "puts a socket there",
    "submission-not-regular",
    `rm ${source}; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("${source}")'`
  ],
  ["links it to the host's secrets", "submission-not-regular", `ln -sf /proc/self/environ ${source}`],
  ["links it to the verifier's input", "submission-not-regular", `ln -sf /home/user/work/sales.csv ${source}`],
  ["links it to the host's first process", "submission-not-regular", `ln -sf /proc/1/root/etc/shadow ${source}`],
  ["links it to itself", "submission-not-regular", `ln -sf report.py ${source}`],
  ["links it to nothing", "submission-not-regular", `ln -sf /nowhere ${source}`],
  ["links it to a device", "submission-not-regular", `ln -sf /dev/zero ${source}`],
  ["links its directory elsewhere", "submission-not-regular", "mv work other; ln -s other work"],
  ["makes it 100 MiB", "submission-too-large", `head -c 104857600 /dev/zero >${source}`],
  ["makes it a hole of 100 GiB", "submission-too-large", `truncate -s 100M ${source}`],
  ["makes it one byte too large", "submission-too-large", `head -c 65537 /dev/zero >${source}`],
  ["makes it as large as it may be", "candidate-failed", `head -c 65536 /dev/zero | tr '\\0' '(' >${source}`],
  [
    "lets it grow while it is read",
    "submission-too-large",
    `setsid -f sh -c 'yes >>${source}' >/dev/null 2>&1 </dev/null`,
    `until [ $(stat -c %s ${source}) -gt 70000 ]; do :; done`
  ],
  ["deletes the directory", "submission-missing", "rm -rf work"],
  ["deletes all it can", "submission-missing", "rm -rf /home /tmp /var /run / 2>/dev/null; rm -rf ~/* ~/.*"],
  ["forbids to read it", "submission-unreadable", `chmod 000 ${source}`],
  ["forbids to enter its directory", "submission-unreadable", "chmod 000 work"],
  ["forbids to enter its home", "submission-unreadable", "chmod 000 /home/user"],
  [
    "takes a lease on it",
    "submission-unreadable",
    daemon(
      `import fcntl, os, signal\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\nfile = os.open("${source}", os.O_RDWR)\n`
        + "fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\nopen(\"held\", \"w\")\nsignal.pause()"
    ),
    "until [ -e held ]; do :; done"
  ],
  ["writes what isn't a program", "candidate-failed", `printf '\\377\\000\\200' >${source}`],
  ["empties it", "output-malformed", `: >${source}`],
  ["is a fork bomb", "wrong-totals", ":(){ :|:& };:"],
  [
    "leaves a fork bomb at work",
    "wrong-totals",
    "setsid -f bash -c ':(){ :|:& };:' >/dev/null 2>&1 </dev/null; sleep 0.2"
  ],
  ["kills all it can reach", "wrong-totals", "kill -9 -1", "kill -9 1; kill -9 $PPID; kill -9 0"],
  [
    "goes on killing all it can reach by a signal that Node has no name for",
    "wrong-totals",
    daemon("import os\nwhile True:\n  try: os.kill(-1, 34)\n  except OSError: pass"),
    ...["true", "true", "true", "true", "true"]
  ],
  ["stops all it can reach", "wrong-totals", "kill -STOP -1 & kill -STOP 0"],
  ["ignores signals for ever", "wrong-totals", "trap '' TERM INT HUP QUIT; while :; do :; done"],
  ["fills the disk", "wrong-totals", "cat /dev/zero >fill; cat /dev/zero >/tmp/fill; cat /dev/zero >/dev/shm/fill"],
  ["makes files without end", "wrong-totals", "mkdir many; cd many; seq 300000 | xargs -P2 -n 1000 touch"],
  ["eats all memory", "wrong-totals", "python3 -c 'x = [bytearray(1 << 24) for _ in range(1 << 20)]'"],
  ["prints what isn't UTF-8", "wrong-totals", "head -c 100000 /dev/urandom; head -c 100000 /dev/urandom >&2"],
  ["prints what looks like a fault", "wrong-totals", "echo 'ResponseTimedOut: SandboxLost: absent'; exit 121"],
  ["ends with our own codes", "wrong-totals", "exit 120", "exit 122", "exit 124", "exit 137"],
  ["closes every descriptor", "wrong-totals", "for f in 0 1 2 3 4 5 6 7 8 9; do eval \"exec $f>&-\"; done; exit 1"],
  [
    "solves it while a daemon spoils it over and over",
    "submission-not-regular",
    `${solve}; rm ${source}; mkfifo ${source}`,
    daemon(`import os\nwhile True:\n  os.path.exists("${source}") or os.mkfifo("${source}")`)
  ]
]

// What a candidate does, in Python, and what that is worth. `right` prints the right answer.
const right = `print('{"${heldOut}": ${expectation}}', flush=True)`
const candidates: ReadonlyArray<readonly [doing: string, reason: ScoreReason, program: string]> = [
  ["sleeps for ever", "candidate-killed-at-limit", "import time\ntime.sleep(1e6)"],
  ["is right and then hangs", "candidate-killed-at-limit", `${right}\nwhile True: pass`],
  ["is right and then fails", "candidate-failed", `${right}\nraise SystemExit(3)`],
  ["is right and then kills itself", "candidate-failed", `${right}\nimport os\nos.kill(os.getpid(), 9)`],
  [
    "is right and then ends by a signal without a name",
    "candidate-failed",
    `${right}\nimport os\nos.kill(os.getpid(), 34)`
  ],
  ["is right and then kills all it can", "candidate-failed", `${right}\nimport os\nos.kill(-1, 9)`],
  ["prints 1 GiB", "candidate-failed", "import sys\nfor _ in range(1024): sys.stdout.buffer.write(bytes(1 << 20))"],
  [
    "prints 1 GiB and hides that it couldn't",
    "output-too-large",
    "import os\ntry:\n  for _ in range(1024): os.write(1, bytes(1 << 20))\nexcept OSError: pass\nos._exit(0)"
  ],
  ["prints one byte too much", "output-too-large", "print(' ' * 65536)"],
  ["prints nothing", "output-malformed", "pass"],
  ["prints garbage", "output-malformed", "print('garbage')"],
  ["prints an answer twice", "output-malformed", `${right}\n${right}`],
  ["prints what isn't UTF-8", "output-not-utf8", "import os\nos.write(1, b'{\\xff}')"],
  ["prints a terminal's commands", "output-malformed", "print('\\x1b]0;owned\\x07')"],
  ["prints a million brackets", "output-malformed", "print('[' * 65000)"],
  ["prints fractions", "output-malformed", `print('{"${heldOut}": ${expectation}.0}')`],
  ["prints what it was shown before", "wrong-totals", "print('{\"east\": 15, \"west\": 7}')"],
  ["removes its output", "output-missing", `${right}\nimport os\nos.remove('/tmp/candidate.stdout')`],
  [
    "puts a FIFO there",
    "output-not-regular",
    "import os\nos.remove('/tmp/candidate.stdout')\nos.mkfifo('/tmp/candidate.stdout')"
  ],
  [
    "puts a directory there",
    "output-not-regular",
    "import os\nos.remove('/tmp/candidate.stdout')\nos.mkdir('/tmp/candidate.stdout')"
  ],
  [
    "puts a link there",
    "output-not-regular",
    `open('/tmp/right', 'w').write('{"${heldOut}": ${expectation}}')\nimport os\n`
    + "os.remove('/tmp/candidate.stdout')\nos.symlink('/tmp/right', '/tmp/candidate.stdout')"
  ],
  ["forbids to read it", "output-unreadable", `${right}\nimport os\nos.chmod('/tmp/candidate.stdout', 0)`],
  [
    "takes a lease on it",
    "output-unreadable",
    `${right}
import fcntl, os, signal, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
null = os.open('/dev/null', os.O_RDWR)
child = os.fork()
for descriptor in 0, 1, 2: os.dup2(null, descriptor)
if child == 0:
  os.setsid()
  while not os.path.exists('/tmp/held'):
    file = os.open('/tmp/candidate.stdout', os.O_RDWR)
    try: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK); open('/tmp/held', 'w')
    except OSError: os.close(file)
  signal.pause()
while not os.path.exists('/tmp/held'): time.sleep(0.001)`
  ],
  // It is bounded, and says so itself: 128 processes at most.
  [
    "is a fork bomb",
    "candidate-failed",
    "import os, time\nwhile True:\n  if os.fork() == 0:\n    time.sleep(1e6)"
  ],
  ["asks for more memory than there is", "candidate-failed", "x = bytearray(600 << 20)"]
]

const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`

const submitProgram = (program: string) => [`printf %s ${quoted(program)} >${source}`]

describe.concurrent("a hostile policy", () => {
  it.live.each(policies)("that %s scores 0, %s", ([, reason, ...commands]) =>
    Effect.map(play(commands), (receipt) => {
      assertOutcome(receipt, 0, reason)
      // No submission, no verifier.
      assert.strictEqual(receipt.resources.length, reason.startsWith("submission-") ? 1 : 2)
    }), 60_000)

  it.live("whose daemon rewrites what it submitted, after that, changes nothing", () =>
    Effect.map(
      play([
        solve,
        // It writes the same over and over, in one piece each time.
        `cp ${source} right; ${
          daemon(
            "import os, shutil\nwhile True: shutil.copy(\"right\", \"next\"); os.rename(\"next\", \"work/report.py\")"
          )
        }`
      ]),
      (receipt) => assertOutcome(receipt, 1, "correct")
    ), 60_000)

  it.live(
    "sees nothing of the host, of other sandboxes, or of what is held out",
    () =>
      Effect.scoped(Effect.gen(function*() {
        // In a file of the host's, in its environment and in its command line; and in another sandbox.
        const folder = yield* directory
        fs.writeFileSync(path.join(folder, "canary"), canary)
        process.env["EPISODE_TEST_CANARY"] = canary
        const { task } = yield* decodeTask
        const seen = yield* onEpisodes((episodes) =>
          Effect.gen(function*() {
            const answers: Array<string> = []
            const look = (tools: Episode.PolicyTools) => (command: string) =>
              Effect.map(tools.terminal(command), ({ stderr, stdout }) => void answers.push(stdout + stderr))
            yield* episodes.run(task, (tools) =>
              Effect.gen(function*() {
                yield* tools.terminal(`echo other-canary >/tmp/other; exec -a other-canary sleep 20 >/dev/null 2>&1 &`)
                yield* episodes.run(task, (inner) =>
                  Effect.forEach(
                    [
                      "env; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'",
                      "pwd; ls -la / /home /home/user /root /work /tmp /run /var/run /mnt /proc/1/root /proc/1/cwd",
                      `ls -la ${folder} ${process.cwd()} ${process.env["HOME"] ?? "/root"}; cat ${folder}/canary`,
                      "cat /tmp/other; cat /proc/mounts /proc/self/mountinfo; ls /proc; ps -ef",
                      `timeout 0.9 grep -rsl --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr -e ${canary} -e ${heldOut} -e ${expectation} -e other-canary /home /tmp /run /var /etc /dev/shm`,
                      "cat /proc/net/tcp /proc/net/unix; hostname; id"
                    ],
                    look(inner),
                    { discard: true }
                  ))
                yield* tools.submit
              }))
            return answers.join("\n")
          })
        )
        delete process.env["EPISODE_TEST_CANARY"]
        // The commands that look for them aren't what was found.
        const found = seen.split("\n").filter((line) => !line.includes("grep -rsl") && !line.includes("ls -la"))
        for (const secret of [canary, "EPISODE_", heldOut, expectation, "other-canary", "task.json", "node_modules"]) {
          assert.deepStrictEqual(found.filter((line) => line.includes(secret)), [], `${secret} in:\n${seen}`)
        }
        assert.include(seen, "HOME=/home/user")
      })),
    60_000
  )
})

describe.concurrent("a hostile candidate", () => {
  it.live.each(candidates)(
    "that %s scores 0, %s",
    ([, reason, program]) =>
      Effect.map(play(submitProgram(program)), (receipt) => {
        assertOutcome(receipt, 0, reason)
        assert.deepStrictEqual(receipt.resources.map(({ role }) => role), ["policy", "verifier"])
        // What it printed, and what was expected, stand in no receipt.
        assert.notInclude(JSON.stringify(receipt), expectation)
        assert.notInclude(JSON.stringify(receipt), "garbage")
      }),
    60_000
  )

  it.live("whose daemon keeps its output open isn't waited for", () =>
    Effect.map(
      play(submitProgram(`${right}\nimport os, time\nif os.fork() == 0:\n  os.setsid()\n  time.sleep(1e6)`)),
      (receipt) => assertOutcome(receipt, 1, "correct")
    ), 60_000)

  it.live("reaches no network", () =>
    Effect.scoped(Effect.gen(function*() {
      // A server of the host's: on loopback, which the sandbox has one of its own of, and on every other address.
      let reached = 0
      const server = yield* Effect.acquireRelease(
        Effect.async<net.Server>((resume) => {
          const listening = net.createServer((socket) => {
            reached += 1
            socket.destroy()
          }).listen(0, "0.0.0.0", () => resume(Effect.succeed(listening)))
        }),
        (server) => Effect.sync(() => server.close())
      )
      const address = server.address()
      const port = typeof address === "object" && address !== null ? address.port : 0
      const receipt = yield* play(submitProgram(`
import os, socket
reached = 0
for bit, (family, host, port) in enumerate([
    (socket.AF_INET, "127.0.0.1", ${port}),
    (socket.AF_INET, "10.0.0.1", 80), (socket.AF_INET, "169.254.169.254", 80), (socket.AF_INET, "1.1.1.1", 53),
    (socket.AF_INET6, "::1", ${port})]):
    s = socket.socket(family)
    s.settimeout(0.1)
    try:
        s.connect((host, port))
        reached |= 1 << bit
    except OSError:
        pass
interfaces = os.listdir("/sys/class/net") if os.path.exists("/sys/class/net") else [
    line.split(":")[0].strip() for line in open("/proc/net/dev").read().split("\\n")[2:] if line]
if interfaces != ["lo"]:
    reached |= 32
try:
    socket.getaddrinfo("example.com", 80)
    reached |= 64
except OSError:
    pass
raise SystemExit(64 + reached)
`))
      // The exit code says what it got at: nothing but its 64.
      assertOutcome(receipt, 0, "candidate-failed")
      assert.deepInclude(receipt.outcome, { detail: "exit code 64" })
      assert.strictEqual(reached, 0)
    })), 60_000)
})

describe("a flood of 1 GiB", () => {
  const MiB = 1024 * 1024

  /** How much the host's memory rises while an effect runs. */
  const rise = <A, E>(work: Effect.Effect<A, E>) =>
    Effect.scoped(Effect.gen(function*() {
      const before = process.memoryUsage().rss
      let most = before
      yield* Effect.acquireRelease(
        Effect.sync(() =>
          setInterval(() => {
            most = Math.max(most, process.memoryUsage().rss)
          }, 5)
        ),
        (timer) => Effect.sync(() => clearInterval(timer))
      )
      const result = yield* work
      return { result, mebibytes: Math.round((most - before) / MiB) }
    }))

  it.live("leaves the host's memory as it was", () =>
    Effect.gen(function*() {
      const long = {
        ...budgets,
        commandLimit: "20 seconds",
        commandResponse: "25 seconds",
        verifierResponse: "25 seconds"
      } as const
      const policy = yield* rise(play(["head -c 1073741824 /dev/zero", "head -c 1073741824 /dev/zero >&2"], long))
      assertOutcome(policy.result, 0, "wrong-totals")
      const candidate = yield* rise(
        play(submitProgram("import os\nos.system('head -c 1073741824 /dev/zero; cat /dev/zero >&2')"), long)
      )
      assert.strictEqual(candidate.result.outcome._tag, "Scored")
      yield* Effect.log(`the host's memory rose by ${policy.mebibytes} and ${candidate.mebibytes} MiB`)
      // Far above what a garbage collector leaves lying, and far below the flood.
      assert.isBelow(policy.mebibytes, 200)
      assert.isBelow(candidate.mebibytes, 200)
    }), 120_000)
})

import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Fiber, ParseResult, Schema } from "effect"
import * as OpenEnv from "../../src/OpenEnv.ts"
import * as Terminus from "../../src/OpenEnv/Terminus.ts"
import * as Wire from "../../src/OpenEnv/Wire.ts"
import { SandboxProvider } from "../../src/Sandbox.ts"
import { Ledger } from "../../src/Sandbox/Ledger.ts"
import { Fault, World } from "../../src/Sandbox/Simulated.ts"
import {
  ask,
  call,
  fault,
  http,
  open,
  reply,
  reset,
  rpc,
  said,
  seen,
  servedTerminus as served,
  terminal,
  type Wired
} from "./fixture.ts"

const nothingLeft = Effect.gen(function*() {
  assert.deepStrictEqual((yield* (yield* World).running).map(({ id }) => id), [])
  assert.deepStrictEqual(yield* (yield* Ledger).open, [])
})

const taken = Effect.flatMap(OpenEnv.OpenEnvServer, ({ sessions }) => sessions)

const machines = Effect.flatMap(World, ({ sandboxes }) => sandboxes)

const commands = Effect.map(machines, (all) => all.flatMap((one) => one.commands.map(({ command }) => command)))

const answer = (text: string) => call("terminal", { final_answer: text })

const decodeMetadata = Schema.decodeUnknownSync(Terminus.ResetMetadata)

const decodeState = Schema.decodeUnknownSync(Terminus.State, { onExcessProperty: "error" })

/** Resets, and gives the envelope and its metadata. */
const begin = (socket: Wired, args: Readonly<Record<string, unknown>> = {}) =>
  Effect.map(ask(socket, reset(args)), (frame) => {
    const envelope = seen(frame)
    assert.deepStrictEqual(envelope.observation["metadata"], envelope.metadata)
    return { envelope, metadata: decodeMetadata(envelope.metadata) }
  })

const stateOf = (socket: Wired) =>
  Effect.map(ask(socket, { type: "state" }), (frame) => {
    assert.strictEqual(frame.type, "state")
    return decodeState(frame.data)
  })

const Result = Schema.Struct({
  data: Schema.Struct({ observation: Schema.Struct({ result: Wire.CallToolResult }) })
})

const hole = "/home/user/logs/verifier/reward.txt"

describe("a Terminus episode", () => {
  it.effect("runs setup commands, the policy's, and verify commands on an answer; all in one sandbox", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        const { envelope, metadata } = yield* begin(socket, {
          seed: 7,
          episode_id: "mine",
          setup: ["echo made > made.txt", "  "],
          verify_scripts: ["cat made.txt", "cat repaired.txt", "false"]
        })
        assert.deepInclude(envelope, { reward: null, done: false })
        assert.deepInclude(metadata, { status: "ready", sandbox_id: "sim-1" })
        assert.include(metadata.message, "Setup commands run: 1. Verify commands registered: 3.")
        assert.deepStrictEqual(metadata["verify_commands"], ["cat made.txt", "cat repaired.txt", "false"])
        assert.deepStrictEqual(metadata["setup_results"], [
          { command: "echo made > made.txt", output: "(no output)", error: null, success: true }
        ])
        const working = yield* ask(socket, terminal("echo fixed > repaired.txt; cat made.txt"))
        assert.strictEqual(said(working), "made")
        assert.deepInclude(seen(working), { reward: 0, done: false })
        assert.deepInclude(seen(working).metadata, { status: "active", graded: false })

        const answered = yield* ask(socket, answer("42"))
        assert.strictEqual(said(answered), `Answer submitted: 42\nVerification: 2/3 passed; reward=${2 / 3}`)
        assert.deepInclude(seen(answered), { reward: 2 / 3, done: true })
        assert.deepInclude(seen(answered).metadata, { status: "finished", graded: true, episode_id: "mine" })
        const state = yield* stateOf(socket)
        assert.deepInclude(state, {
          episode_id: "mine",
          step_count: 2,
          sandbox_id: "sim-1",
          submitted_answer: "42",
          last_reward: 2 / 3,
          last_error: null
        })
        assert.deepStrictEqual(state.commands.map(({ success }) => success), [true])
        assert.deepStrictEqual(state.verify_results.map(({ success }) => success), [true, true, false])
        const [machine, ...more] = yield* machines
        assert.isEmpty(more)
        assert.strictEqual(machine?.labels[Terminus.episodeLabel], "mine")
        assert.isTrue(machine?.network)
        // As upstream: it goes on after an answer, and another one changes the reward.
        assert.deepInclude(seen(yield* ask(socket, terminal("rm made.txt"))), { reward: 2 / 3, done: true })
        assert.deepInclude(seen(yield* ask(socket, answer("43"))), { reward: 1 / 3, done: true })
      }),
      nothingLeft
    ))

  it.effect("never reads the file that a policy could write its reward to", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket, { verify: [`echo 1 > ${hole}; false`, "false"] })
        assert.deepInclude(seen(yield* ask(socket, terminal(`echo 1 > ${hole}`))), { reward: 0, done: false })
        const answered = yield* ask(socket, answer("done"))
        assert.include(String(said(answered)), "0/2 passed; reward=0.0")
        assert.deepInclude(seen(answered), { reward: 0, done: true })
        const [machine] = yield* machines
        assert.isTrue(machine?.files.has(hole))
        assert.isEmpty((yield* (yield* World).calls).filter(({ operation }) => operation === "readFile"))
        assert.notInclude((yield* commands).filter((command) => !command.startsWith("echo 1")).join("\n"), "reward.txt")
      }),
      nothingLeft
    ))

  it.effect("is never done without verify commands", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket)
        const answered = yield* ask(socket, answer("42"))
        assert.strictEqual(said(answered), "Answer submitted: 42")
        assert.deepInclude(seen(answered), { reward: 0, done: false })
        assert.deepInclude(yield* stateOf(socket), { submitted_answer: "42", last_reward: null })
      })
    ))

  it.effect("takes the answer of a call that has both, and doesn't run its command", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket, { verify: "true" })
        const both = yield* ask(socket, call("terminal", { command: "echo never", final_answer: "x" }))
        assert.deepInclude(seen(both), { reward: 1, done: true })
        assert.include(String(said(both)), "reward=1.0")
        assert.notInclude(yield* commands, "echo never")
      })
    ))

  it.effect("says what came out of a command, and how it ended", () =>
    served(
      { commandLimit: "5 seconds", outputCap: 1000 },
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket)
        const run = (command: string) => Effect.map(ask(socket, terminal(command)), said)
        assert.strictEqual(yield* run("true"), "(no output)")
        assert.strictEqual(
          yield* run("echo out; cat nothing"),
          "out\ncat: nothing: No such file or directory\nERROR:\nSystemExit: 1"
        )
        assert.strictEqual(yield* run("sleep infinity"), "ERROR:\nTimeoutExpired: killed after 5s")
        const flood = String(yield* run(`head -c 5000 /dev/zero`))
        assert.include(flood, "[... 4000 of 5000 bytes left out ...]")
        assert.isBelow(flood.length, 1100)
        const { commands } = yield* stateOf(socket)
        assert.deepStrictEqual(commands.map(({ error }) => error), [
          null,
          "SystemExit: 1",
          "TimeoutExpired: killed after 5s",
          null
        ])
      }),
      nothingLeft
    ))

  it.effect("gives an output of a megabyte whole, and keeps state small", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket)
        yield* ask(socket, terminal(`echo ${"x".repeat(65_535)} > page`))
        const megabyte = yield* ask(socket, terminal(`cat ${"page ".repeat(16)}`))
        assert.strictEqual(String(said(megabyte)).length, 1_048_575)
        yield* Effect.forEach(Array.from({ length: 70 }, (_, n) => n), (n) => ask(socket, terminal(`echo ${n}`)))
        const { commands, step_count } = yield* stateOf(socket)
        assert.deepStrictEqual([commands.length, step_count], [64, 72])
        assert.strictEqual(commands.at(-1)?.output, "69")
      })
    ))

  it.effect("keeps its replies below what a client takes, whatever comes out of a sandbox", () =>
    served(
      { maxCommandBytes: 4 * 1024 * 1024 },
      Effect.gen(function*() {
        const socket = yield* open()
        // Each is six bytes of JSON, and stands in a reply three times.
        const control = "\u0001"
        const flood = control.repeat(1024 * 1024)
        const said = (frame: unknown) =>
          Effect.zipRight(
            socket.send(frame),
            Effect.map(socket.receive, (text = "") => {
              assert.isBelow(Buffer.byteLength(text), Wire.maxReplyBytes)
              return text
            })
          )
        const cats = (count: number) => Array.from({ length: count }, () => "cat page")
        yield* said(reset({ setup: [`echo ${flood.slice(0, 20_000)} > page`, ...cats(255)], verify: cats(256) }))
        const both = yield* said(terminal(`echo ${flood}; cat ${flood}`))
        assert.isAbove(Buffer.byteLength(both), Wire.maxReplyBytes * 0.85)
        const { result } = Schema.decodeUnknownSync(Schema.parseJson(Result))(both).data.observation
        assert.deepStrictEqual(result.meta, { exit_code: 1, killed_at_limit: false, truncated: true })
        assert.match(
          result.data.replaceAll(control, "."),
          /^\.+\n\[\.\.\. \d{7} of 2097\d{3} characters left out \.\.\.\]\n\.+.*\nERROR:\nSystemExit: 1$/
        )
        yield* Effect.forEach(cats(64), (cat) => said(terminal(`${cat} ${flood.slice(0, 20_000)}`)))
        yield* said(answer(flood))
        yield* said({ type: "state" })
      })
    ), 60_000)

  it.effect("answers before a reset, and to a call with neither, in words that begin with Error", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        const early = yield* ask(socket, terminal("true"))
        assert.match(String(said(early)), /^Error: environment not reset\./)
        assert.deepInclude(seen(early), { reward: null, done: false })
        assert.deepInclude(yield* stateOf(socket), { episode_id: null, step_count: 1, sandbox_id: null })
        yield* begin(socket)
        for (const args of [{}, { command: " \n" }, { command: "", final_answer: "" }]) {
          assert.strictEqual(
            said(yield* ask(socket, call("terminal", args))),
            "Error: command or final_answer is required."
          )
        }
        const listed = seen(yield* ask(socket, { type: "step", data: { type: "list_tools" } }))
        assert.deepStrictEqual(
          Schema.decodeUnknownSync(Schema.Array(Schema.Struct({ name: Schema.String })))(listed.observation["tools"]),
          [{ name: "terminal" }]
        )
      })
    ))

  const bad: ReadonlyArray<readonly [string, ReturnType<typeof call>, string]> = [
    ["an unknown tool", call("submit"), "tool_not_found"],
    ["a command that is no text", call("terminal", { command: 1 }), "invalid_args"],
    ["an unknown argument", call("terminal", { command: "true", timeout: 9 }), "invalid_args"],
    ["a long name", call("x".repeat(100_000)), "tool_not_found"],
    ["a NUL", terminal("echo \0"), "invalid_args"],
    ["half of a surrogate pair", terminal("echo \ud800"), "invalid_args"],
    ["a command that is too long", terminal(`# ${"x".repeat(96 * 1024)}`), "invalid_args"]
  ]
  it.effect.each(bad)("calls nothing for %s", ([, frame, type]) =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket)
        const before = (yield* commands).length
        const { observation } = seen(yield* ask(socket, frame))
        assert.deepInclude(observation["error"], { error_type: type })
        assert.strictEqual(observation["result"], null)
        assert.isBelow(String(observation["tool_name"]).length, 250)
        assert.strictEqual((yield* commands).length, before)
      })
    ))
})

describe("a reset of Terminus", () => {
  it.effect("has no arguments that aren't its own", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket)
        for (
          const frame of [
            "{\"type\":\"reset\",\"data\":{\"__proto__\":{\"setup\":\"echo inherited\"}}}",
            "{\"type\":\"step\",\"data\":{\"type\":\"call_tool\",\"tool_name\":\"terminal\","
            + "\"arguments\":{\"__proto__\":{\"command\":\"echo inherited\"}}}}"
          ]
        ) {
          yield* socket.sendRaw(frame)
          const { code, message } = fault(yield* reply(socket))
          assert.deepStrictEqual([code, message], ["VALIDATION_ERROR", "the frame holds a key __proto__"])
        }
        assert.notInclude(yield* commands, "echo inherited")
        assert.strictEqual((yield* machines).length, 1)
      })
    ))

  it.effect("deletes the old sandbox, and proves it gone, before it makes a new one", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket)
        assert.strictEqual((yield* begin(socket)).metadata.sandbox_id, "sim-2")
        const operations = (yield* (yield* World).calls).map(({ operation }) => operation)
        assert.deepStrictEqual(operations, ["create", "exec", "destroy", "inspect", "create", "exec"])
        const [first, second] = yield* machines
        assert.deepStrictEqual([first?.ended?.how, second?.ended], ["deleted", undefined])
      }),
      nothingLeft
    ))

  it.effect("whose setup fails stops there, is done, and leaves no sandbox", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        const { envelope, metadata } = yield* begin(socket, { setup: ["echo a", "exit 3", "echo never"] })
        assert.deepInclude(envelope, { reward: null, done: true })
        assert.strictEqual(metadata.status, "error")
        assert.notProperty(metadata, "sandbox_id")
        assert.match(metadata.message ?? "", /^Setup command failed\. .*deleted, absence confirmed/)
        assert.deepStrictEqual(metadata["setup_results"], [
          { command: "echo a", output: "a", error: null, success: true },
          { command: "exit 3", output: "ERROR:\nSystemExit: 3", error: "SystemExit: 3", success: false }
        ])
        yield* nothingLeft
        assert.notInclude(yield* commands, "echo never")
        assert.match(String(said(yield* ask(socket, terminal("true")))), /^Error: environment not reset\./)
        assert.deepInclude(yield* stateOf(socket), { sandbox_id: null })
        assert.strictEqual((yield* begin(socket)).metadata.status, "ready")
      }),
      nothingLeft
    ))

  it.effect("that finds no sandbox is no error frame", () =>
    served(
      { faults: ({ nth, operation }) => operation === "create" && nth === 1 ? Fault.Refused() : undefined },
      Effect.gen(function*() {
        const socket = yield* open()
        const { envelope, metadata } = yield* begin(socket)
        assert.deepInclude(envelope, { reward: null, done: true })
        assert.strictEqual(metadata.status, "error")
        assert.notProperty(metadata, "sandbox_id")
        assert.match(metadata.error ?? "", /^SandboxUnavailable: /)
        assert.match((yield* stateOf(socket)).last_error ?? "", /SandboxUnavailable/)
        assert.strictEqual((yield* begin(socket)).metadata.status, "ready")
      }),
      nothingLeft
    ))

  it.effect("whose reply from the sandbox is lost deletes the sandbox", () =>
    served(
      {
        faults: ({ nth, operation }) =>
          operation === "exec" && nth === 2 ? Fault.ReplyLost({ effect: true }) : undefined
      },
      Effect.gen(function*() {
        const socket = yield* open()
        const { envelope, metadata } = yield* begin(socket, { setup: "echo a" })
        assert.deepInclude(envelope, { reward: null, done: true })
        assert.match(metadata.error ?? "", /^TransportFailed: /)
        yield* nothingLeft
      })
    ))

  it.effect("names the sandbox that isn't proved gone", () =>
    served(
      { faults: ({ operation }) => operation === "destroy" ? Fault.NotDone() : undefined },
      Effect.gen(function*() {
        const socket = yield* open()
        const { metadata } = yield* begin(socket, { setup: "false" })
        assert.deepInclude(metadata, { status: "error", sandbox_id: "sim-1" })
        assert.include(metadata.message ?? "", "not proved gone")
        assert.deepInclude(yield* stateOf(socket), { sandbox_id: "sim-1" })

        // One that an old sandbox stands in the way of makes no other.
        const other = yield* open()
        yield* begin(other)
        const again = yield* begin(other)
        assert.deepInclude(again.metadata, { status: "error", sandbox_id: "sim-2" })
        assert.match(again.metadata.error ?? "", /^CleanupUnresolved: /)
        assert.strictEqual((yield* machines).length, 2)
        assert.deepStrictEqual((yield* http("GET", "/health")).json(), { status: "degraded" })
      })
    ))

  const bad: ReadonlyArray<readonly [string, Readonly<Record<string, unknown>>]> = [
    ["an unknown argument", { sandbox_timeout: "1h" }],
    ["a negative seed", { seed: -1 }],
    ["a command that is a number", { setup: [1] }],
    ["a command with a NUL", { verify: ["true", "echo \0"] }],
    ["a command that is too long", { setup: `# ${"x".repeat(96 * 1024)}` }],
    ["one thing under two names", { setup: "true", setup_scripts: ["true"] }],
    ["more commands than anybody looks through", { verify: Array.from({ length: 257 }, () => "true") }],
    ["a name that can't be written", { episode_id: "\ud800" }],
    ["a name with a NUL", { episode_id: "a\0" }]
  ]
  it.effect.each(bad)("refuses %s, and changes nothing", ([, args]) =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket)
        const { code, message } = fault(yield* ask(socket, reset(args)))
        assert.strictEqual(code, "VALIDATION_ERROR")
        assert.match(message, new RegExp(`^the arguments are not valid: ${Object.keys(args).at(-1)}(\\.\\d)?: .`))
        assert.strictEqual(said(yield* ask(socket, terminal("echo on"))), "on")
        assert.strictEqual((yield* machines).length, 1)
      })
    ))

  it.effect("takes nulls, an empty name, and the columns of a dataset", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        const nulls = {
          seed: null,
          episode_id: "",
          setup: null,
          setup_scripts: null,
          verify: null,
          prompt: "Repair it."
        }
        assert.strictEqual((yield* begin(socket, nulls)).metadata.status, "ready")
        assert.match((yield* stateOf(socket)).episode_id ?? "", /^[0-9a-f-]{36}$/)
        const [machine] = yield* machines
        assert.notProperty(machine?.labels, Terminus.episodeLabel)
      })
    ))

  it.effect("whose reply is never read can be looked up by the episode's name", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        yield* socket.send(reset({ episode_id: "lost" }))
        yield* socket.receive
        const provider = yield* SandboxProvider
        const found = yield* provider.find({ [Terminus.episodeLabel]: "lost" })
        assert.deepStrictEqual(found.map(({ id }) => id), ["sim-1"])
      })
    ))

  it.effect("gives its sandbox the lifetime that was asked for", () =>
    served(
      { lifetime: "10 minutes" },
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket)
        yield* Effect.sleep("9 minutes")
        assert.strictEqual(said(yield* ask(socket, terminal("echo on"))), "on")
        yield* Effect.sleep("2 minutes")
        assert.deepInclude(fault(yield* ask(socket, terminal("echo on"))), {
          code: "INFRASTRUCTURE_ERROR",
          error: "SandboxLost",
          phase: "policy"
        })
      }),
      nothingLeft
    ))
})

describe("a failure of Terminus's infrastructure", () => {
  it.effect("is an error frame without a reward, again until the next reset, and deletes the sandbox", () =>
    served(
      {
        faults: ({ nth, operation }) =>
          operation === "exec" && nth === 3 ? Fault.ReplyLost({ effect: true }) : undefined
      },
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket, { verify: "true" })
        yield* ask(socket, terminal("true"))
        for (const frame of [terminal("echo lost"), answer("x"), { type: "step", data: { type: "list_tools" } }]) {
          yield* socket.send(frame)
          const text = yield* socket.receive
          assert.notMatch(text ?? "", /"reward"|"done"/)
          assert.deepInclude(fault(JSON.parse(text ?? "")), {
            code: "INFRASTRUCTURE_ERROR",
            error: "TransportFailed",
            phase: "policy"
          })
          yield* nothingLeft
        }
        const state = yield* stateOf(socket)
        assert.deepInclude(state, { sandbox_id: null, last_reward: null })
        assert.isString(state.last_error)
        yield* begin(socket, { verify: "true" })
        assert.deepInclude(seen(yield* ask(socket, answer("x"))), { reward: 1, done: true })
      }),
      nothingLeft
    ))

  it.effect("during the verification takes back a reward that an earlier answer had", () =>
    served(
      { faults: ({ nth, operation }) => operation === "exec" && nth === 5 ? Fault.Malformed() : undefined },
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket, { verify: "true" })
        assert.deepInclude(seen(yield* ask(socket, answer("x"))), { reward: 1, done: true })
        assert.deepInclude(fault(yield* ask(socket, answer("y"))), {
          code: "INFRASTRUCTURE_ERROR",
          error: "ProtocolViolation",
          phase: "verify"
        })
        assert.strictEqual((yield* stateOf(socket)).last_reward, null)
      }),
      nothingLeft
    ))

  it.effect("by which a command never answers ends a little after the command's own limit", () =>
    served(
      {
        faults: ({ nth, operation }) =>
          operation === "exec" && nth === 2 ? Fault.Hangs({ effect: true, interruptible: false }) : undefined
      },
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket)
        const asked = yield* Effect.fork(ask(socket, terminal("true")))
        yield* Effect.sleep("129 seconds")
        assert.isNull(yield* Fiber.poll(asked).pipe(Effect.map((exit) => exit._tag === "None" ? null : exit)))
        yield* Effect.sleep("2 seconds")
        assert.deepInclude(fault(yield* Fiber.join(asked)), { error: "ResponseTimedOut" })
      }),
      nothingLeft
    ))
})

describe("a session of Terminus", () => {
  it.effect("that ends in the middle of a command deletes the sandbox, and proves it gone", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket)
        yield* socket.send(terminal("sleep infinity"))
        yield* Effect.sleep("3 seconds")
        assert.include(yield* commands, "sleep infinity")
        yield* socket.drop
        yield* socket.closed
        yield* Effect.sleep("1 second")
        yield* nothingLeft
        assert.deepStrictEqual((yield* machines).map(({ ended }) => ended?.how), ["deleted"])
        assert.deepStrictEqual(
          (yield* (yield* World).calls).slice(-3).map(({ operation, result }) => [operation, result]),
          [["exec", "interrupted"], ["destroy", "ok"], ["inspect", "ok"]]
        )
        assert.strictEqual(yield* taken, 0)
      })
    ))

  it.effect("that ends in the middle of a reset leaves nothing either", () =>
    served(
      { latency: "2 seconds" },
      Effect.gen(function*() {
        for (const moment of ["1 second", "3 seconds", "5 seconds", "7 seconds"] as const) {
          const socket = yield* open()
          yield* socket.send(reset({ setup: "sleep 3" }))
          yield* Effect.sleep(moment)
          yield* socket.drop
          yield* Effect.sleep("20 seconds")
          yield* nothingLeft
          assert.strictEqual(yield* taken, 0)
        }
      })
    ))

  it.effect("holds its place until its sandbox is gone, and another client is told so", () =>
    served(
      { maxSessions: 1, latency: "1 second" },
      Effect.gen(function*() {
        const socket = yield* open()
        yield* begin(socket)
        const late = yield* open()
        assert.deepInclude(fault(yield* reply(late)), {
          code: "CAPACITY_REACHED",
          active_sessions: 1,
          max_sessions: 1
        })
        yield* socket.send({ type: "close" })
        assert.strictEqual(yield* socket.closed, 1000)
        yield* Effect.sleep("10 seconds")
        yield* nothingLeft
        assert.strictEqual((yield* begin(yield* open())).metadata.status, "ready")
      })
    ))

  it.effect("is called over HTTP by its id, which is no step", () =>
    served(
      {},
      Effect.gen(function*() {
        const listed = (yield* rpc("tools/list")).result
        assert.include(JSON.stringify(listed), "final_answer")
        const session_id = (yield* rpc("openenv/session/create")).result?.["session_id"]
        const run = (args: Readonly<Record<string, unknown>>, name = "terminal") =>
          rpc("tools/call", { name, arguments: args, session_id })
        const early = String((yield* run({ command: "true" })).result?.["data"])
        assert.match(early, /^Error: environment not reset\..*\/ws\?session_id=/)
        const socket = yield* open(`/ws?session_id=${String(session_id)}`)
        yield* begin(socket, { verify: "cat made.txt" })
        assert.deepInclude((yield* run({ command: "echo a > made.txt; cat made.txt" })).result, {
          data: "a",
          is_error: false,
          meta: { exit_code: 0, killed_at_limit: false, truncated: false }
        })
        assert.strictEqual((yield* run({}, "submit")).error?.code, -32602)
        assert.strictEqual((yield* stateOf(socket)).step_count, 0)
        assert.deepInclude((yield* run({ final_answer: "x" })).result?.["meta"], { passed: 1, total: 1, reward: 1 })
        assert.deepInclude(yield* stateOf(socket), { step_count: 0, last_reward: 1 })
        assert.deepInclude(seen(yield* ask(socket, terminal("true"))), { reward: 1, done: true })
        assert.strictEqual(
          (yield* rpc("tools/call", { name: "terminal", arguments: { command: "true" } })).error?.code,
          -32602
        )
      }),
      nothingLeft
    ))

  it.effect("that is closed in the middle of a call over HTTP doesn't wait for it", () =>
    served(
      { detachedTimeout: "1 minute" },
      Effect.gen(function*() {
        const session_id = (yield* rpc("openenv/session/create")).result?.["session_id"]
        const socket = yield* open(`/ws?session_id=${String(session_id)}`)
        yield* begin(socket)
        yield* socket.drop
        const calling = yield* Effect.fork(
          rpc("tools/call", { name: "terminal", arguments: { command: "sleep infinity" }, session_id })
        )
        yield* Effect.sleep("1 second")
        const before = yield* Clock.currentTimeMillis
        assert.deepInclude((yield* rpc("openenv/session/close", { session_id })).result, { closed: true })
        assert.isBelow((yield* Clock.currentTimeMillis) - before, 5000)
        assert.deepInclude((yield* Fiber.join(calling)).error, {
          code: -32000,
          data: { code: "INFRASTRUCTURE_ERROR", error: "EpisodeInterrupted", phase: "policy" }
        })
        yield* nothingLeft
      })
    ))

  it.effect("takes calls that overlap one after another", () =>
    served(
      { latency: "1 second" },
      Effect.gen(function*() {
        const session_id = (yield* rpc("openenv/session/create")).result?.["session_id"]
        const socket = yield* open(`/ws?session_id=${String(session_id)}`)
        yield* begin(socket)
        const fibers = yield* Effect.forEach(["a", "b", "c"], (word) =>
          Effect.fork(rpc("tools/call", { name: "terminal", arguments: { command: `echo ${word}` }, session_id })))
        const replies = yield* Effect.forEach(fibers, Fiber.join)
        assert.sameMembers(
          replies.map(({ result }) =>
            String(result?.["data"])
          ),
          ["a", "b", "c"]
        )
        const execs = (yield* (yield* World).calls).filter(({ operation }) => operation === "exec")
        assert.strictEqual(execs.length, 4)
        execs.slice(1).forEach(({ startedAt }, index) => {
          assert.isAtLeast(startedAt.epochMillis, execs[index]?.endedAt?.epochMillis ?? Infinity)
        })
      })
    ))
})

describe("a server of Terminus", () => {
  it.effect("passes what upstream's validator asks of a running server, and has no page", () =>
    served(
      {},
      Effect.gen(function*() {
        const openApi = Schema.decodeUnknownSync(Schema.Struct({
          info: Schema.Struct({ version: Schema.String }),
          paths: Schema.Record({ key: Schema.String, value: Schema.Unknown })
        }))((yield* http("GET", "/openapi.json")).json())
        assert.match(openApi.info.version, /^1\./)
        assert.includeMembers(Object.keys(openApi.paths), ["/reset", "/step", "/state"])
        assert.deepStrictEqual((yield* http("GET", "/health")).json(), { status: "healthy" })
        assert.deepInclude((yield* http("GET", "/metadata")).json(), { name: "terminus" })
        const schemas = (yield* http("GET", "/schema")).json()
        for (const name of ["action", "observation", "state", "reset_observation"]) {
          assert.isObject(schemas[name])
        }
        const mcp = yield* http("POST", "/mcp", {})
        assert.deepStrictEqual([mcp.status, mcp.json()["jsonrpc"]], [200, "2.0"])
        assert.deepInclude((yield* http("GET", "/state")).json(), {
          episode_id: null,
          step_count: 0,
          verify_commands: []
        })
        assert.strictEqual((yield* http("POST", "/reset", { setup: ["true"] })).status, 409)
        assert.strictEqual((yield* http("POST", "/reset", { setup: 1 })).status, 422)
        for (const path of ["/", "/web", "/web/"]) {
          assert.strictEqual((yield* http("GET", path)).status, 404)
        }
        assert.deepStrictEqual(yield* (yield* World).calls, [])
      })
    ))

  it.effect("sends observations that have the forms it tells of", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        const isStep = ParseResult.is(Terminus.StepObservation, { onExcessProperty: "error" })
        const isReset = ParseResult.is(Terminus.ResetObservation, { onExcessProperty: "error" })
        assert.isTrue(isReset((yield* begin(socket, { setup: "true", verify: "true" })).envelope.observation))
        for (
          const frame of [terminal("false"), call("nope"), { type: "step", data: { type: "list_tools" } }, answer("x")]
        ) {
          assert.isTrue(isStep(seen(yield* ask(socket, frame)).observation), JSON.stringify(frame))
        }
        assert.isTrue(isReset((yield* begin(socket, { setup: "false" })).envelope.observation))
      })
    ))
})

import { assert, describe, it } from "@effect/vitest"
import { Cause, Effect, Exit, Fiber, Redacted } from "effect"
import * as OpenEnv from "../../src/OpenEnv.ts"
import * as Wire from "../../src/OpenEnv/Wire.ts"
import { Ledger } from "../../src/Sandbox/Ledger.ts"
import { Fault, World } from "../../src/Sandbox/Simulated.ts"
import { edit, solution } from "../Episode/fixture.ts"
import {
  ask,
  call,
  fault,
  http,
  open,
  repair,
  reply,
  reset,
  rpc,
  said,
  seen,
  served,
  servedTerminus,
  shipped,
  submit,
  terminal
} from "./fixture.ts"

const nothingLeft = Effect.gen(function*() {
  assert.deepStrictEqual((yield* (yield* World).running).map(({ id }) => id), [])
  assert.deepStrictEqual(yield* (yield* Ledger).open, [])
})

/** More values than a request may hold. */
const many = <A>(value: A): ReadonlyArray<A> => Array.from({ length: Wire.maxValues }, () => value)

const namesOf = (tools: unknown) => (tools as ReadonlyArray<{ readonly name: string }>).map(({ name }) => name)

const taken = Effect.flatMap(OpenEnv.OpenEnvServer, ({ sessions }) => sessions)

const creates = Effect.map(
  Effect.flatMap(World, ({ calls }) => calls),
  (calls) => calls.filter(({ operation }) => operation === "create").length
)

describe("an episode over /ws", () => {
  it.effect("scores the repair with 1 and the program as it is with 0, one after another on one socket", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        const first = seen(yield* ask(socket, reset()))
        assert.strictEqual(first.reward, null)
        assert.isFalse(first.done)
        assert.strictEqual(first.observation["prompt"], shipped.prompt)
        assert.strictEqual(first.metadata?.["status"], "ready")

        const pending = yield* ask(socket, terminal("echo hello"))
        assert.strictEqual(said(pending), "hello")
        assert.deepInclude(seen(pending), { reward: 0, done: false })
        assert.strictEqual(seen(pending).metadata?.["graded"], false)

        const zero = seen(yield* ask(socket, submit))
        assert.deepInclude(zero, { reward: 0, done: true })
        assert.deepInclude(zero.metadata, { graded: true, reason: "wrong-totals" })

        assert.strictEqual(seen(yield* ask(socket, reset())).reward, null)
        yield* ask(socket, repair)
        const one = seen(yield* ask(socket, submit))
        assert.deepInclude(one, { reward: 1, done: true })
        assert.deepInclude(one.metadata, { graded: true, reason: "correct" })
      }),
      nothingLeft
    ))

  it.effect("says everything of the cleanup when it ends, in the envelope and in the observation", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        yield* ask(socket, reset())
        yield* ask(socket, repair)
        const { metadata, observation } = seen(yield* ask(socket, submit))
        const cleanup = metadata?.["cleanup"] as ReadonlyArray<Record<string, unknown>>
        assert.deepStrictEqual(cleanup.map(({ role }) => role), ["policy", "verifier"])
        assert.isTrue(cleanup.every((record) => typeof record["confirmed_absent_at"] === "string"))
        assert.deepStrictEqual(observation["metadata"], metadata)
        const state = yield* ask(socket, { type: "state" })
        assert.deepInclude(state.data, { step_count: 2, status: "finished", reward: 1, graded: true, cleanup })
      })
    ))

  it.effect("repeats the score after the end, and runs nothing", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        yield* ask(socket, reset())
        yield* ask(socket, repair)
        assert.strictEqual(said(yield* ask(socket, submit)), "Submitted. The episode is finished.")
        for (const again of [terminal("echo late"), submit]) {
          const late = yield* ask(socket, again)
          assert.strictEqual(said(late), "The episode is finished; nothing was run.")
          assert.deepInclude(seen(late), { reward: 1, done: true })
        }
      })
    ))

  it.effect("ends when the policy window is over, with a zero that is graded", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        yield* ask(socket, reset())
        yield* Effect.sleep("121 seconds")
        const late = seen(yield* ask(socket, terminal("echo late")))
        assert.deepInclude(late, { reward: 0, done: true })
        assert.deepInclude(late.metadata, { graded: true, reason: "policy-window-exhausted" })
      }),
      nothingLeft
    ))

  it.effect("keeps the client's name for the episode, and counts its steps", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        assert.deepInclude((yield* ask(socket, { type: "state" })).data, {
          episode_id: null,
          step_count: 0,
          status: "idle"
        })
        yield* ask(socket, reset({ task: shipped, episode_id: "mine", seed: 7 }))
        yield* ask(socket, terminal("true"))
        yield* ask(socket, call("no_such_tool"))
        yield* ask(socket, { type: "step", data: { type: "list_tools" } })
        assert.deepInclude((yield* ask(socket, { type: "state" })).data, { episode_id: "mine", step_count: 3 })
        // No name is as good as none.
        yield* ask(socket, reset({ task: shipped, episode_id: "" }))
        const unnamed = (yield* ask(socket, { type: "state" })).data
        assert.deepInclude(unnamed, { step_count: 0, status: "active" })
        assert.match(String((unnamed as { readonly episode_id: unknown }).episode_id), /^ep-/)
      })
    ))

  it.effect("says nothing of what is held out, in any reply", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        const frames = [reset(), { type: "state" }, repair, submit, { type: "state" }, {
          type: "step",
          data: { type: "list_tools" }
        }]
        const replies = yield* Effect.forEach(frames, (frame) => Effect.zipRight(socket.send(frame), socket.receive))
        const pages = yield* Effect.forEach(["/schema", "/state", "/metadata", "/openapi.json", "/ledger"], (path) =>
          Effect.map(http("GET", path), ({ text }) => text))
        const all = [...replies, ...pages].join("\n")
        for (const total of Object.values(shipped.verification.expected)) {
          assert.notMatch(all, new RegExp(`\\b${total}\\b`))
        }
        assert.isFalse(all.includes(JSON.stringify(shipped.verification.input).slice(1, -1)))
        assert.isFalse(all.includes("solution"))
      })
    ))
})

describe("what a reset takes", () => {
  it.effect("is a task as text, a task as an object, or the server's own", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        assert.strictEqual(fault(yield* ask(socket, reset({}))).code, "VALIDATION_ERROR")
        assert.strictEqual(fault(yield* ask(socket, { type: "reset" })).code, "VALIDATION_ERROR")
        assert.strictEqual(fault(yield* ask(socket, reset({ task: null }))).code, "VALIDATION_ERROR")
        seen(yield* ask(socket, reset({ task: JSON.stringify(shipped) })))
        seen(yield* ask(socket, reset({ task: shipped })))
      })
    ))

  it.effect("has its numbers counted as they are written", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        const text = JSON.stringify(reset())
        const counting = (total: string) =>
          Effect.zipRight(
            socket.sendRaw(text.replace(/("expected":\{"\w+":)\d+/, `$1${total}`)),
            reply(socket)
          )
        seen(yield* counting("123456789012345678901234567890"))
        for (const bad of ["15.0", "1.5e1", "-0", "\"15\""]) {
          const { code, errors } = fault(yield* counting(bad))
          assert.strictEqual(code, "VALIDATION_ERROR")
          assert.include(JSON.stringify(errors), "is not an integer")
        }
      })
    ))

  it.effect("names no task twice", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        const task = JSON.stringify(shipped)
        yield* socket.sendRaw(`{"type":"reset","data":{"task":${task},"task":${task}}}`)
        const { code, errors } = fault(yield* reply(socket))
        assert.strictEqual(code, "VALIDATION_ERROR")
        assert.include(JSON.stringify(errors), "occurs twice")
        assert.strictEqual(yield* creates, 0)
      })
    ))

  it.effect("ignores the columns of a dataset that are known, and refuses what isn't", () =>
    served(
      { columns: ["prompt", "difficulty"] },
      Effect.gen(function*() {
        const socket = yield* open()
        seen(yield* ask(socket, reset({ task: shipped, prompt: [{ role: "user" }], difficulty: 3 })))
        const { code, errors } = fault(yield* ask(socket, reset({ task: shipped, setup: "rm -rf /", __proto__x: 1 })))
        assert.strictEqual(code, "VALIDATION_ERROR")
        assert.deepStrictEqual((errors as ReadonlyArray<{ loc: unknown }>).map(({ loc }) => loc), [["setup"], [
          "__proto__x"
        ]])
        // The refused reset ended nothing.
        assert.strictEqual(said(yield* ask(socket, terminal("echo on"))), "on")
      })
    ))

  it.effect("says what is wrong with a task, field by field", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        const { errors } = fault(yield* ask(socket, reset({ task: { ...shipped, prompt: 1, extra: true } })))
        const paths = (errors as ReadonlyArray<{ loc: ReadonlyArray<string> }>).map(({ loc }) => loc.join("."))
        assert.sameMembers(paths, ["task.prompt", "task.extra"])
        assert.strictEqual(fault(yield* ask(socket, reset({ task: "{" }))).code, "VALIDATION_ERROR")
        assert.strictEqual(fault(yield* ask(socket, reset({ task: "\ud800" }))).code, "VALIDATION_ERROR")
        assert.strictEqual(fault(yield* ask(socket, reset({ task: 5 }))).code, "VALIDATION_ERROR")
        assert.strictEqual(fault(yield* ask(socket, reset({ task: shipped, seed: -1 }))).code, "VALIDATION_ERROR")
        assert.strictEqual(
          fault(yield* ask(socket, reset({ task: shipped, episode_id: "x".repeat(256) }))).code,
          "VALIDATION_ERROR"
        )
        for (const name of ["a\0b", "\ud800"]) {
          const { code, message } = fault(yield* ask(socket, reset({ task: shipped, episode_id: name })))
          assert.strictEqual(code, "VALIDATION_ERROR")
          assert.include(message, "episode_id: can't hold a NUL character or half of a surrogate pair")
        }
        assert.strictEqual(yield* creates, 0)
      })
    ))
})

describe("the message of an error frame", () => {
  const bad: ReadonlyArray<readonly [string, unknown, RegExp]> = [
    ["a task that is missing", reset({}), /: task: is missing, and this server has no task of its own$/],
    [
      "one thing wrong",
      reset({ task: shipped, seed: -1 }),
      /^the arguments are not valid: seed: Expected a non-negative number, actual -1$/
    ],
    ["more of them", reset({ task: "{}" }), /^the task is not valid: task\.\w+: .+ \(and \d more\)$/],
    ["a name that isn't known", reset({ task: shipped, setup: "x" }), /^unknown arguments: setup: reset takes task, /],
    ["a task that is too much", reset({ task: JSON.stringify(many(1)) }), /: task: holds more than 50000 values$/],
    ["a frame", { type: "state", extra: 1 }, /^the frame is not valid: extra: /],
    [
      "what would harm a log",
      reset({ task: shipped, [`\ud800\n\u001b[2J${"🙂".repeat(5000)}`]: 1 }),
      /^unknown arguments: \ufffd \[2J/
    ]
  ]
  for (const [what, frame, expected] of bad) {
    it.effect(`says what is wrong, since some clients show nothing else: ${what}`, () =>
      served(
        {},
        Effect.gen(function*() {
          const { errors, message } = fault(yield* ask(yield* open(), frame))
          assert.match(message, expected)
          assert.notMatch(message, /[\p{Cc}\p{Surrogate}]/u)
          assert.isBelow(message.length, 320)
          assert.notMatch(JSON.stringify(errors), /\\ud/)
        })
      ))
  }
})

describe("frames that are at fault", () => {
  const bad: ReadonlyArray<readonly [string, string | Uint8Array, string]> = [
    ["no JSON", "hello", "INVALID_JSON"],
    ["an empty one", "", "INVALID_JSON"],
    ["half a frame", "{\"type\":", "INVALID_JSON"],
    ["a binary one", new TextEncoder().encode("{\"type\":\"state\"}"), "INVALID_JSON"],
    ["no object", "[1]", "VALIDATION_ERROR"],
    ["null", "null", "VALIDATION_ERROR"],
    ["no type", "{}", "UNKNOWN_TYPE"],
    ["an unknown type", "{\"type\":\"dance\"}", "UNKNOWN_TYPE"],
    ["a type of Object.prototype", "{\"type\":\"constructor\"}", "UNKNOWN_TYPE"],
    ["a type that is no string", "{\"type\":7}", "UNKNOWN_TYPE"],
    ["an unknown key", "{\"type\":\"state\",\"extra\":1}", "VALIDATION_ERROR"],
    ["a step without data", "{\"type\":\"step\"}", "VALIDATION_ERROR"],
    ["an unknown action", "{\"type\":\"step\",\"data\":{\"type\":\"jump\"}}", "VALIDATION_ERROR"],
    [
      "an action with an unknown key",
      "{\"type\":\"step\",\"data\":{\"type\":\"list_tools\",\"x\":1}}",
      "VALIDATION_ERROR"
    ],
    [
      "a call whose arguments are a list",
      "{\"type\":\"step\",\"data\":{\"type\":\"call_tool\",\"tool_name\":\"submit\",\"arguments\":[]}}",
      "VALIDATION_ERROR"
    ],
    [
      "deep nesting",
      `{"type":"reset","data":{"task":${"[".repeat(100_000)}${"]".repeat(100_000)}}}`,
      "VALIDATION_ERROR"
    ],
    ["a prototype", "{\"type\":\"state\",\"__proto__\":{\"polluted\":1}}", "VALIDATION_ERROR"],
    [
      "a command in a prototype",
      "{\"type\":\"step\",\"data\":{\"type\":\"call_tool\",\"tool_name\":\"terminal\",\"arguments\":"
      + "{\"\\u005f_proto__\":{\"command\":\"id\"}}}}",
      "VALIDATION_ERROR"
    ],
    ["too many values", JSON.stringify(reset({ task: shipped, seed: many({}) })), "VALIDATION_ERROR"],
    [
      "a task of which everything is wrong",
      JSON.stringify(reset({ task: Object.fromEntries(many(1).slice(0, 900).map((value, n) => [`k${n}`, value])) })),
      "VALIDATION_ERROR"
    ],
    ["a long value in the wrong place", JSON.stringify(reset({ seed: "x".repeat(1_000_000) })), "VALIDATION_ERROR"],
    ["a long name in a task", JSON.stringify(reset({ task: { ["x".repeat(100_000)]: 1 } })), "VALIDATION_ERROR"]
  ]
  for (const [what, frame, code] of bad) {
    it.effect(`${what}: ${code}, and the session goes on`, () =>
      served(
        {},
        Effect.gen(function*() {
          const socket = yield* open()
          yield* ask(socket, reset())
          yield* socket.sendRaw(frame)
          const error = fault(yield* reply(socket))
          assert.strictEqual(error.code, code)
          assert.isBelow(JSON.stringify(error).length, 10_000)
          assert.strictEqual(said(yield* ask(socket, terminal("echo on"))), "on")
        })
      ))
  }

  it.effect("a step before a reset is out of order, and allocates nothing", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        assert.strictEqual(fault(yield* ask(socket, terminal("true"))).code, "EXECUTION_ERROR")
        assert.strictEqual(fault(yield* ask(socket, submit)).code, "EXECUTION_ERROR")
        const tools = seen(yield* ask(socket, { type: "step", data: { type: "list_tools" } }))
        assert.deepStrictEqual(
          (tools.observation["tools"] as ReadonlyArray<{ name: string }>).map(({ name }) => name),
          ["terminal", "submit"]
        )
        assert.deepInclude(tools, { reward: null, done: false })
        assert.strictEqual(yield* creates, 0)
      })
    ))

  it.effect("a tool's name is said again in short", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open()
        yield* ask(socket, reset())
        const { observation } = seen(yield* ask(socket, call("x".repeat(100_000))))
        assert.match(String(observation["tool_name"]), /^x{240}\.\.\.$/)
      })
    ))

  const badCalls: ReadonlyArray<readonly [string, ReturnType<typeof call>, string]> = [
    ["an unknown tool", call("reset"), "tool_not_found"],
    ["a tool of Object.prototype", call("__proto__"), "tool_not_found"],
    ["no command", call("terminal"), "invalid_args"],
    ["a command that is no text", call("terminal", { command: 1 }), "invalid_args"],
    ["an unknown argument", call("terminal", { command: "true", timeout: 9 }), "invalid_args"],
    ["an argument of submit", call("submit", { answer: "42" }), "invalid_args"],
    ["a NUL", terminal("echo \0"), "invalid_args"],
    ["half of a surrogate pair", terminal("echo \ud800"), "invalid_args"],
    ["a command that is too long", terminal(`# ${"x".repeat(96 * 1024)}`), "invalid_args"]
  ]
  for (const [what, frame, type] of badCalls) {
    it.effect(`${what} is an observation with an error, and calls nothing`, () =>
      served(
        {},
        Effect.gen(function*() {
          const socket = yield* open()
          yield* ask(socket, reset())
          const observed = seen(yield* ask(socket, frame))
          assert.deepInclude(observed, { reward: 0, done: false })
          assert.deepInclude(observed.observation["error"], { error_type: type })
          assert.strictEqual(observed.observation["result"], null)
          const commands = (yield* (yield* World).sandboxes).flatMap((sandbox) => sandbox.commands)
          assert.strictEqual(commands.length, 0)
        })
      ))
  }
})

describe("a failure of the infrastructure", () => {
  it.effect("is an error frame with the failure's name: no reward, not done, and again until the next reset", () =>
    served(
      {
        faults: ({ nth, operation }) =>
          operation === "exec" && nth === 1 ? Fault.ReplyLost({ effect: true }) : undefined
      },
      Effect.gen(function*() {
        const socket = yield* open()
        yield* ask(socket, reset())
        for (
          const frame of [terminal("echo lost"), terminal("echo again"), submit, {
            type: "step",
            data: { type: "list_tools" }
          }]
        ) {
          yield* socket.send(frame)
          const text = yield* socket.receive
          assert.notMatch(text ?? "", /"reward"|"done"/)
          const error = fault(JSON.parse(text ?? ""))
          assert.deepInclude(error, { code: "INFRASTRUCTURE_ERROR", error: "TransportFailed", phase: "policy" })
        }
        assert.deepInclude((yield* ask(socket, { type: "state" })).data, {
          status: "aborted",
          reward: null,
          graded: false
        })
        yield* ask(socket, reset())
        yield* ask(socket, repair)
        assert.strictEqual(seen(yield* ask(socket, submit)).reward, 1)
      }),
      nothingLeft
    ))

  it.effect("in a reset is one too", () =>
    served(
      { faults: ({ nth, operation }) => operation === "create" && nth === 1 ? Fault.Refused() : undefined },
      Effect.gen(function*() {
        const socket = yield* open()
        assert.deepInclude(fault(yield* ask(socket, reset())), {
          code: "INFRASTRUCTURE_ERROR",
          error: "SandboxUnavailable"
        })
        assert.strictEqual(seen(yield* ask(socket, reset())).done, false)
      })
    ))

  it.effect("names the sandboxes that aren't proved gone, in its message and in the ledger", () =>
    served(
      { faults: ({ operation, role }) => operation === "destroy" && role === "policy" ? Fault.NotDone() : undefined },
      Effect.gen(function*() {
        const socket = yield* open()
        yield* ask(socket, reset())
        yield* ask(socket, repair)
        const error = fault(yield* ask(socket, submit))
        assert.deepInclude(error, { code: "INFRASTRUCTURE_ERROR", error: "CleanupUnresolved" })
        assert.include(error.message, "sim-1")
        const state = yield* ask(socket, { type: "state" })
        assert.deepInclude(state.data, { status: "aborted", reward: null })
        assert.include((yield* http("GET", "/ledger")).text, "sim-1")
        assert.deepStrictEqual((yield* http("GET", "/health")).json(), { status: "degraded" })
      })
    ))
})

describe("places", () => {
  it.effect("a socket that finds none is let in, told so, and closed; a place that is given back can be had", () =>
    served(
      { maxSessions: 2 },
      Effect.gen(function*() {
        const sockets = yield* Effect.all([open(), open()])
        yield* Effect.forEach(sockets, (socket) => ask(socket, reset()))
        const third = yield* open()
        assert.deepInclude(fault(yield* reply(third)), {
          code: "CAPACITY_REACHED",
          active_sessions: 2,
          max_sessions: 2
        })
        assert.strictEqual(yield* third.closed, 1000)
        assert.strictEqual((yield* rpc("openenv/session/create")).error?.code, -32000)
        yield* sockets[0].send({ type: "close" })
        assert.strictEqual(yield* sockets[0].closed, 1000)
        yield* Effect.sleep("1 second")
        assert.strictEqual(yield* taken, 1)
        seen(yield* ask(yield* open(), reset()))
      }),
      nothingLeft
    ))

  it.effect("a place isn't free before its sandboxes are gone", () =>
    served(
      { maxSessions: 1, latency: "2 seconds" },
      Effect.gen(function*() {
        const socket = yield* open()
        yield* ask(socket, reset())
        yield* socket.drop
        yield* Effect.sleep("1 second")
        assert.strictEqual(fault(yield* reply(yield* open())).code, "CAPACITY_REACHED")
        yield* Effect.sleep("10 seconds")
        assert.strictEqual(yield* taken, 0)
      }),
      nothingLeft
    ))

  it.effect("a session that does nothing loses its place, and is told so", () =>
    served(
      { idleTimeout: "10 minutes" },
      Effect.gen(function*() {
        const socket = yield* open()
        yield* ask(socket, reset())
        yield* Effect.sleep("9 minutes")
        yield* ask(socket, { type: "state" })
        yield* Effect.sleep("9 minutes")
        assert.strictEqual(yield* taken, 1)
        yield* Effect.sleep("4 minutes")
        assert.strictEqual(yield* taken, 0)
        assert.strictEqual(fault(yield* reply(socket)).code, "SESSION_ERROR")
        assert.strictEqual(yield* socket.closed, 1000)
      }),
      nothingLeft
    ))

  it.effect("one with a request under way isn't idle", () =>
    served(
      { idleTimeout: "4 seconds" },
      Effect.gen(function*() {
        const socket = yield* open()
        yield* ask(socket, reset())
        assert.include(JSON.stringify(yield* ask(socket, terminal("sleep 9"))), "exit_code\":0")
      })
    ))

  it.effect("a peer that is cut off without a word loses its place", () =>
    served(
      { pingInterval: "20 seconds", pingTimeout: "20 seconds" },
      Effect.gen(function*() {
        const socket = yield* open()
        yield* ask(socket, reset())
        yield* Effect.sleep("100 seconds")
        assert.strictEqual(yield* taken, 1)
        yield* socket.fallSilent
        yield* Effect.sleep("41 seconds")
        assert.strictEqual(yield* taken, 0)
        yield* nothingLeft
      })
    ))

  for (
    const [what, frame] of [["a command", terminal("sleep 9")], ["its submission", submit], [
      "a reset",
      reset()
    ]] as const
  ) {
    it.effect(`a client that goes away in the middle of ${what} leaves nothing behind`, () =>
      served(
        { latency: "1 second" },
        Effect.gen(function*() {
          const socket = yield* open()
          yield* ask(socket, reset())
          yield* socket.send(frame)
          yield* Effect.sleep("1500 millis")
          yield* socket.drop
          yield* Effect.sleep("15 seconds")
          assert.strictEqual(yield* taken, 0)
          yield* nothingLeft
        })
      ))
  }

  it.effect("a bug in one session ends that one only", () =>
    served(
      { faults: ({ nth, operation }) => operation === "exec" && nth === 1 ? Fault.Dies({ effect: false }) : undefined },
      Effect.gen(function*() {
        const [one, other] = yield* Effect.all([open(), open()])
        yield* ask(one, reset())
        yield* ask(other, reset())
        assert.strictEqual(fault(yield* ask(one, terminal("true"))).code, "SESSION_ERROR")
        assert.strictEqual(yield* one.closed, 1000)
        assert.strictEqual(said(yield* ask(other, terminal("echo on"))), "on")
      }),
      nothingLeft
    ))
})

describe("the end of a server", () => {
  it.effect("ends every episode, confirms every deletion, and closes every socket", () =>
    Effect.gen(function*() {
      const codes: Array<number> = []
      yield* served(
        { maxSessions: 8, latency: "1 second" },
        Effect.gen(function*() {
          const sockets = yield* Effect.all(Array.from({ length: 5 }, () => open()))
          yield* Effect.forEach(sockets, (socket) => ask(socket, reset()), { concurrency: 5 })
          // In the middle of all kinds of things.
          yield* sockets[0]?.send(terminal("sleep 9")) ?? Effect.void
          yield* sockets[1]?.send(submit) ?? Effect.void
          yield* sockets[2]?.send(reset()) ?? Effect.void
          yield* rpc("openenv/session/create")
          yield* Effect.forEach(sockets, ({ closed }) =>
            Effect.forkDaemon(Effect.map(closed, (code) => codes.push(code))))
          yield* Effect.sleep("1500 millis")
        }),
        nothingLeft
      )
      assert.deepStrictEqual(codes, [1001, 1001, 1001, 1001, 1001])
    }))

  it.effect("waits no longer than its bound, and what is left stands in the ledger", () =>
    served(
      {
        shutdownTimeout: "5 seconds",
        faults: ({ operation }) =>
          operation === "destroy" ? Fault.Hangs({ effect: false, interruptible: false }) : undefined
      },
      Effect.zipRight(Effect.flatMap(open(), (socket) => ask(socket, reset())), Effect.void),
      Effect.gen(function*() {
        const [left] = yield* (yield* Ledger).open
        assert.strictEqual(left?.sandboxId, "sim-1")
      })
    ))

  const impossible: ReadonlyArray<OpenEnv.Options & OpenEnv.TerminusOptions> = [
    { port: 70_000 },
    { port: -1 },
    { port: 80.5 },
    { maxSessions: 0 },
    { maxSessions: Number.NaN },
    { maxSessions: Number.POSITIVE_INFINITY },
    { idleTimeout: 0 },
    { detachedTimeout: "-1 seconds" },
    { pingInterval: Number.NaN },
    { pingTimeout: Number.POSITIVE_INFINITY },
    { shutdownTimeout: "25 days" },
    { maxFrameBytes: 0 },
    { maxCommandBytes: 1.5 }
  ]
  const impossibleForTerminus: typeof impossible = [{ lifetime: 0 }, { commandLimit: Number.POSITIVE_INFINITY }, {
    outputCap: 0
  }]

  it.effect("isn't begun with options that can't be, and names each", () =>
    Effect.gen(function*() {
      const failure = (exit: Exit.Exit<void>) => Exit.isFailure(exit) ? Cause.pretty(exit.cause) : ""
      for (const options of impossible) {
        const [field = ""] = Object.keys(options)
        for (const start of [served(options, Effect.void), servedTerminus(options, Effect.void)]) {
          assert.include(failure(yield* Effect.exit(start)), `can't have these options: ${field} is `)
        }
      }
      for (const options of impossibleForTerminus) {
        const exit = yield* Effect.exit(servedTerminus(options, Effect.void))
        assert.include(failure(exit), `can't have these options: ${Object.keys(options)[0]} is `)
      }
      const both = failure(yield* Effect.exit(served({ maxSessions: 0, port: -1 }, Effect.void)))
      assert.include(both, "port is a whole number from 0 to 65535; maxSessions is a whole number of at least 1")
    }))

  it.effect("needs a token where others can reach it", () =>
    Effect.gen(function*() {
      for (const host of ["0.0.0.0", "::", "192.168.1.4", "example.org", "127.0.0.1.example.org"]) {
        const exit = yield* Effect.exit(served({ host }, Effect.void))
        assert.include(Exit.isFailure(exit) ? Cause.pretty(exit.cause) : "", "needs a token")
        const blank = yield* Effect.exit(served({ host, token: Redacted.make(" ") }, Effect.void))
        assert.include(Exit.isFailure(blank) ? Cause.pretty(blank.cause) : "", "needs a token")
      }
      const blank = yield* Effect.exit(served({ token: Redacted.make("") }, Effect.void))
      assert.include(Exit.isFailure(blank) ? Cause.pretty(blank.cause) : "", "token is a token that isn't blank")
      for (const host of ["127.0.0.1", "127.1.2.3", "::1", "localhost"]) {
        yield* served({ host }, Effect.void)
      }
    }))
})

describe("sessions of MCP", () => {
  const create = Effect.map(rpc("openenv/session/create"), ({ result }) => String(result?.["session_id"]))

  it.effect("are told of the episode that a request was on, and not of the one that a reset waits to begin", () =>
    served(
      {},
      Effect.gen(function*() {
        const id = yield* create
        const socket = yield* open(`/ws?session_id=${id}`)
        yield* ask(socket, reset({ task: shipped, episode_id: "first" }))
        const slow = yield* Effect.fork(
          rpc("tools/call", { name: "terminal", arguments: { command: "sleep 5" }, session_id: id })
        )
        yield* Effect.sleep("1 second")
        yield* socket.send(reset({ task: shipped, episode_id: "second" }))
        yield* Effect.sleep("1 second")
        const other = yield* Effect.fork(
          rpc("tools/call", { name: "terminal", arguments: { command: "true" }, session_id: id })
        )
        const episodeOf = (reply: Effect.Effect.Success<ReturnType<typeof rpc>>) =>
          (reply.result as { readonly meta: { readonly episode: Record<string, unknown> } }).meta.episode["episode_id"]
        assert.strictEqual(episodeOf(yield* Fiber.join(slow)), "first")
        assert.strictEqual(seen(yield* reply(socket)).metadata?.["episode_id"], "second")
        assert.strictEqual(episodeOf(yield* Fiber.join(other)), "second")
        // Who waited for the reset is counted in its episode.
        assert.deepInclude((yield* ask(socket, { type: "state" })).data, { episode_id: "second", step_count: 1 })
      })
    ))

  it.effect("share an episode between a socket and HTTP, as clients of 0.8 do", () =>
    served(
      {},
      Effect.gen(function*() {
        const id = yield* create
        const socket = yield* open(`/ws?session_id=${id}`)
        yield* ask(socket, reset())
        const listed = yield* rpc("tools/list", { session_id: id })
        assert.deepStrictEqual(namesOf(listed.result?.["tools"]), [
          "terminal",
          "submit"
        ])
        const echoed = yield* rpc("tools/call", { name: "terminal", arguments: { command: "echo hi" }, session_id: id })
        assert.deepInclude(echoed.result, { data: "hi", structured_content: { result: "hi" }, is_error: false })
        yield* rpc("tools/call", { name: "terminal", arguments: { command: edit(solution) }, session_id: id })
        const submitted = yield* rpc("tools/call", { name: "submit", session_id: id })
        assert.deepInclude(submitted.result?.["meta"], { done: true, reward: 1 })
        assert.deepInclude((yield* ask(socket, { type: "state" })).data, { reward: 1, step_count: 3 })
        assert.deepStrictEqual((yield* rpc("openenv/session/close", { session_id: id })).result, {
          session_id: id,
          closed: false,
          closing: true
        })
        yield* socket.drop
        yield* Effect.sleep("1 second")
        assert.strictEqual(yield* taken, 0)
      }),
      nothingLeft
    ))

  it.effect("outlive their socket for a while, and can be attached to again", () =>
    served(
      { detachedTimeout: "10 seconds" },
      Effect.gen(function*() {
        const id = yield* create
        const first = yield* open(`/ws?session_id=${id}`)
        yield* ask(first, reset())
        const second = yield* open(`/ws?session_id=${id}`)
        assert.strictEqual(fault(yield* reply(second)).code, "SESSION_ERROR")
        assert.strictEqual(yield* second.closed, 1000)
        yield* first.drop
        yield* Effect.sleep("5 seconds")
        const third = yield* open(`/ws?session_id=${id}`)
        assert.strictEqual(said(yield* ask(third, terminal("echo on"))), "on")
        yield* third.drop
        yield* Effect.sleep("15 seconds")
        assert.strictEqual(yield* taken, 0)
        yield* nothingLeft
      })
    ))

  it.effect("that are never attached to lose their place", () =>
    served(
      { detachedTimeout: "10 seconds" },
      Effect.gen(function*() {
        yield* create
        assert.strictEqual(yield* taken, 1)
        yield* Effect.sleep("13 seconds")
        assert.strictEqual(yield* taken, 0)
      })
    ))

  it.effect("are closed over HTTP, at once when no socket is attached", () =>
    served(
      {},
      Effect.gen(function*() {
        const id = yield* create
        assert.deepStrictEqual((yield* rpc("openenv/session/close", { session_id: id })).result, {
          session_id: id,
          closed: true
        })
        assert.strictEqual(yield* taken, 0)
        assert.strictEqual((yield* rpc("openenv/session/close", { session_id: id })).error?.code, -32602)
        assert.strictEqual(fault(yield* reply(yield* open(`/ws?session_id=${id}`))).code, "SESSION_ERROR")
      })
    ))

  it.effect("of a socket are its own: create gives that one, and close is refused", () =>
    served(
      {},
      Effect.gen(function*() {
        const socket = yield* open("/mcp")
        const ask = (method: string, params: unknown = {}) =>
          Effect.flatMap(socket.send({ jsonrpc: "2.0", id: "a", method, params }), () =>
            Effect.map(socket.receive, (text) => JSON.parse(text ?? "")))
        const { result: { session_id } } = yield* ask("openenv/session/create")
        assert.strictEqual((yield* ask("openenv/session/create")).result.session_id, session_id)
        assert.strictEqual((yield* ask("openenv/session/close", { session_id })).error.code, -32600)
        assert.strictEqual(
          (yield* ask("tools/call", { name: "terminal", arguments: { command: "true" } })).error.code,
          -32603
        )
        assert.strictEqual(yield* taken, 1)
        const early = yield* ask("tools/call", { name: "submit" })
        assert.include(early.error.message, "submit before reset")
        assert.include(early.error.message, "/ws?session_id=")
        yield* socket.sendRaw("{")
        assert.strictEqual(JSON.parse((yield* socket.receive) ?? "").error.code, -32700)
        const framed = yield* open()
        const listed = yield* Effect.zipRight(
          framed.send({ type: "mcp", data: { jsonrpc: "2.0", id: 4, method: "tools/list" } }),
          reply(framed)
        )
        assert.deepInclude(listed.data, { id: 4, jsonrpc: "2.0" })
      })
    ))

  it.effect("a socket for them that finds no place is told so in JSON-RPC", () =>
    served(
      { maxSessions: 1 },
      Effect.gen(function*() {
        yield* open()
        yield* Effect.yieldNow()
        const socket = yield* open("/mcp")
        assert.deepInclude(JSON.parse((yield* socket.receive) ?? "").error, {
          code: -32000,
          data: { active_sessions: 1, max_sessions: 1 }
        })
        assert.strictEqual(yield* socket.closed, 1000)
      })
    ))

  it.effect("a tool call without a session is refused, and allocates nothing", () =>
    served(
      {},
      Effect.gen(function*() {
        assert.strictEqual(
          (yield* rpc("tools/call", { name: "terminal", arguments: { command: "true" } })).error?.code,
          -32602
        )
        const nameless = yield* rpc("tools/call", {})
        assert.strictEqual(nameless.error?.message, "tools/call takes name, arguments and session_id: name: is missing")
        assert.strictEqual(yield* taken, 0)
        assert.strictEqual(yield* creates, 0)
      })
    ))

  const bad: ReadonlyArray<readonly [string, unknown, number]> = [
    ["no JSON", "{", -32700],
    ["an empty object", {}, -32600],
    ["a list", [], -32600],
    ["another version", { jsonrpc: "1.0", method: "tools/list", id: 1 }, -32600],
    ["an extra field", { jsonrpc: "2.0", method: "tools/list", id: 1, x: 1 }, -32600],
    ["a method of real MCP", { jsonrpc: "2.0", method: "initialize", id: 1 }, -32601],
    ["a call without a name", { jsonrpc: "2.0", method: "tools/call", id: 1, params: {} }, -32602],
    ["a call in no session", {
      jsonrpc: "2.0",
      method: "tools/call",
      id: 1,
      params: { name: "submit", session_id: "x" }
    }, -32602],
    ["a close without a session", { jsonrpc: "2.0", method: "openenv/session/close", id: 1 }, -32602],
    ["deep nesting", "[".repeat(5000), -32600]
  ]
  for (const [what, body, code] of bad) {
    it.effect(`${what} is ${code}, with status 200`, () =>
      served(
        {},
        Effect.gen(function*() {
          const response = yield* http("POST", "/mcp", body)
          assert.strictEqual(response.status, 200)
          const { error, jsonrpc } = response.json() as { error: { code: number }; jsonrpc: string }
          assert.strictEqual(error.code, code)
          assert.strictEqual(jsonrpc, "2.0")
        })
      ))
  }

  it.effect("an unknown tool in a session, and a failure of the infrastructure, have their codes", () =>
    served(
      { faults: ({ operation }) => operation === "exec" ? Fault.Lost({ reason: "absent" }) : undefined },
      Effect.gen(function*() {
        const id = yield* create
        const socket = yield* open(`/ws?session_id=${id}`)
        yield* ask(socket, reset())
        assert.strictEqual((yield* rpc("tools/call", { name: "dance", session_id: id })).error?.code, -32602)
        const lost = yield* rpc("tools/call", { name: "terminal", arguments: { command: "true" }, session_id: id })
        assert.deepInclude(lost.error, {
          code: -32000,
          data: { code: "INFRASTRUCTURE_ERROR", error: "SandboxLost", phase: "policy" }
        })
      })
    ))

  it.effect("wait for each other when requests of one session overlap", () =>
    served(
      { latency: "1 second" },
      Effect.gen(function*() {
        const id = yield* create
        const socket = yield* open(`/ws?session_id=${id}`)
        yield* ask(socket, reset())
        const echo = (word: string) =>
          rpc("tools/call", { name: "terminal", arguments: { command: `echo ${word}` }, session_id: id })
        const fibers = yield* Effect.forEach(["a", "b", "c"], (word) => Effect.fork(echo(word)))
        const replies = yield* Effect.forEach(fibers, Fiber.join)
        assert.deepStrictEqual(replies.map(({ result }) => result?.["data"]), ["a", "b", "c"])
      })
    ))
})

import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import * as OpenEnv from "../../src/OpenEnv.ts"
import * as Wire from "../../src/OpenEnv/Wire.ts"
import { Ledger } from "../../src/Sandbox/Ledger.ts"
import { World } from "../../src/Sandbox/Simulated.ts"
import {
  ask,
  call,
  http,
  open,
  repair,
  reset,
  said,
  seen,
  served,
  servedTerminus,
  shipped,
  submit,
  terminal,
  type Wired
} from "./fixture.ts"

// ----------------------------------------------------------------------------
// what is sent
// ----------------------------------------------------------------------------

/** The same numbers for the same seed. */
const randomOf = (seed: number) => {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
  }
}

type Random = () => number

const pick = <A>(random: Random, items: ReadonlyArray<A>): A => items[Math.floor(random() * items.length)] as A

const words = [
  "",
  "reset",
  "step",
  "state",
  "mcp",
  "close",
  "type",
  "data",
  "task",
  "terminal",
  "submit",
  "__proto__",
  "constructor",
  "2.0",
  "tools/call",
  "\u0000",
  "\ud800",
  "🙂",
  "x".repeat(5000)
]

const value = (random: Random, depth: number): unknown => {
  const kind = Math.floor(random() * (depth > 3 ? 5 : 7))
  switch (kind) {
    case 0:
      return pick(random, words)
    case 1:
      return pick(random, [0, -1, 1.5, 1e308, 2 ** 53, Number.NaN])
    case 2:
      return null
    case 3:
      return random() < 0.5
    case 4:
      return pick(random, [{}, []])
    case 5:
      return Array.from({ length: Math.floor(random() * 4) }, () => value(random, depth + 1))
    default:
      return Object.fromEntries(
        Array.from({ length: Math.floor(random() * 4) }, () => [pick(random, words), value(random, depth + 1)])
      )
  }
}

const always: ReadonlyArray<unknown> = [
  terminal("echo hi"),
  terminal("no-such-command"),
  call("dance"),
  { type: "state" },
  { type: "step", data: { type: "list_tools" } },
  { type: "mcp", data: { jsonrpc: "2.0", method: "tools/list", id: 1 } },
  { type: "mcp", data: { jsonrpc: "2.0", method: "openenv/session/create", id: null } },
  { type: "close" }
]

const kinds = [
  {
    name: "episodes",
    served,
    begin: reset(),
    good: [
      ...always,
      reset(),
      reset({ task: JSON.stringify(shipped), episode_id: "mine" }),
      terminal("sleep 11"),
      repair,
      submit,
      { type: "mcp", data: { jsonrpc: "2.0", method: "tools/call", params: { name: "submit" }, id: "a" } }
    ]
  },
  {
    name: "Terminus",
    served: servedTerminus,
    begin: reset({}),
    good: [
      ...always,
      reset({}),
      reset({ setup: ["echo a > a.txt"], verify: ["cat a.txt", "false"], episode_id: "mine" }),
      reset({ setup_scripts: "false", verify_scripts: null }),
      terminal("sleep 121"),
      call("terminal", { final_answer: "42" }),
      call("terminal"),
      { type: "mcp", data: { jsonrpc: "2.0", method: "tools/call", params: { name: "terminal" }, id: "a" } }
    ]
  }
]

/** A good frame, one with something in it replaced, one of anything, or one whose text was damaged. */
const message = (random: Random, good: ReadonlyArray<unknown>): string | Uint8Array => {
  const frame = pick(random, good)
  const kind = random()
  if (kind < 0.35) {
    return JSON.stringify(frame)
  }
  if (kind < 0.6) {
    const copy = structuredClone(frame) as Record<string, unknown>
    const target = random() < 0.5 || typeof copy["data"] !== "object" ? copy : copy["data"] as Record<string, unknown>
    target[pick(random, [...Object.keys(target), ...words])] = value(random, 0)
    return JSON.stringify(copy)
  }
  if (kind < 0.75) {
    return JSON.stringify(value(random, 0)) ?? ""
  }
  const text = JSON.stringify(frame)
  if (kind < 0.95) {
    const at = Math.floor(random() * text.length)
    return text.slice(0, at) + pick(random, ["", "\"", "{", "}", "\\", ",", "\u0007", "\ud800"]) +
      text.slice(at + Math.floor(random() * 4))
  }
  return new TextEncoder().encode(text)
}

// ----------------------------------------------------------------------------
// what comes back
// ----------------------------------------------------------------------------

const isFrame = (text: string) => Schema.decodeUnknownEither(Schema.parseJson(Wire.ServerFrame))(text)._tag === "Right"
const isRpc = (text: string) => Schema.decodeUnknownEither(Schema.parseJson(Wire.RpcReply))(text)._tag === "Right"

describe.each(kinds)("2,000 frames and requests to $name that make no sense, or almost", ({ begin, good, served }) => {
  for (const seed of [1, 2, 3, 4, 5]) {
    it.effect(`get a well-formed reply or a clean close, and harm nobody: seed ${seed}`, () =>
      served(
        { maxSessions: 16 },
        Effect.gen(function*() {
          const random = randomOf(seed)
          const bystander = yield* open()
          yield* ask(bystander, begin)
          let socket: Wired | undefined
          let isMcp = false
          for (let i = 0; i < 400; i++) {
            if (i % 20 === 0) {
              // Somebody else's episode goes on as if nothing was.
              const text = yield* ask(bystander, terminal(`echo by-${i}`))
              if (!seen(text).done) {
                assert.strictEqual(said(text), `by-${i}`)
              }
              yield* ask(bystander, begin)
            }
            if (random() < 0.25) {
              const path = pick(random, ["/mcp", "/mcp", "/reset", "/step", "/state", "/nowhere", "/schema"])
              const sent = message(random, good)
              const response = yield* http(random() < 0.8 ? "POST" : "GET", path, undefined)
              const posted = yield* http("POST", path, typeof sent === "string" ? sent : "")
              for (const { status, text } of [response, posted]) {
                assert.include([200, 404, 409, 422], status)
                assert.doesNotThrow(() => JSON.parse(text))
              }
              continue
            }
            if (socket === undefined) {
              isMcp = random() < 0.2
              socket = yield* open(isMcp ? "/mcp" : "/ws")
            }
            yield* socket.sendRaw(message(random, good))
            const text: string | undefined = yield* socket.receive
            if (text === undefined) {
              assert.strictEqual(yield* socket.closed, 1000)
              socket = undefined
            } else {
              assert.isTrue(isMcp ? isRpc(text) : isFrame(text), text)
              if (random() < 0.03) {
                yield* socket.drop
                socket = undefined
              }
            }
          }
          yield* socket?.drop ?? Effect.void
          yield* bystander.drop
          yield* Effect.sleep("1 minute")
          assert.strictEqual(yield* Effect.flatMap(OpenEnv.OpenEnvServer, ({ sessions }) => sessions), 0)
          assert.deepStrictEqual(yield* (yield* World).running, [])
          assert.deepStrictEqual(yield* (yield* Ledger).open, [])
        })
      ), 60_000)
  }
})

describe("many sessions at once", () => {
  it.effect("50 of 20 steps each: no reply is lost or somebody else's", () =>
    served(
      { maxSessions: 50, latency: "10 millis" },
      Effect.forEach(
        Array.from({ length: 50 }, (_, session) => session),
        (session) =>
          Effect.gen(function*() {
            const socket = yield* open()
            yield* ask(socket, reset())
            for (let step = 0; step < 20; step++) {
              assert.strictEqual(said(yield* ask(socket, terminal(`echo ${session}-${step}`))), `${session}-${step}`)
            }
          }),
        { concurrency: "unbounded", discard: true }
      )
    ), 60_000)
})

/** Sandboxes of a Terminus server, with one that keeps its script and one of ours, over real sockets. */
import { HttpServerResponse, Socket } from "@effect/platform"
import { assert, describe, it } from "@effect/vitest"
import { Context, Deferred, Duration, Effect, Exit, Fiber, Layer, Option, Schedule, Scope, TestClock } from "effect"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import * as Budgets from "../../src/Budgets.ts"
import * as Episode from "../../src/Episode.ts"
import * as OpenEnv from "../../src/OpenEnv.ts"
import * as NodeTransport from "../../src/OpenEnv/NodeTransport.ts"
import * as Terminus from "../../src/OpenEnv/Terminus.ts"
import * as TerminusProvider from "../../src/OpenEnv/TerminusProvider.ts"
import { Transport } from "../../src/OpenEnv/Transport.ts"
import * as Sandbox from "../../src/Sandbox.ts"
import { type ExecLimits, SandboxId, SandboxProvider } from "../../src/Sandbox.ts"
import * as Guest from "../../src/Sandbox/Guest.ts"
import * as Ledger from "../../src/Sandbox/Ledger.ts"
import * as Local from "../../src/Sandbox/Local.ts"
import * as Sandboxes from "../../src/Sandbox/Sandboxes.ts"
import * as Simulated from "../../src/Sandbox/Simulated.ts"
import { SandboxPath } from "../../src/Task.ts"
import { edit, outside, type Setting, solution, task } from "../Episode/fixture.ts"
import { limits, policy, sh, text } from "../Sandbox/providerContract.ts"

// ----------------------------------------------------------------------------
// a server that keeps its script
// ----------------------------------------------------------------------------

type Frame = { readonly type: string; readonly data: Readonly<Record<string, unknown>> }

interface Session {
  readonly provider: Sandbox.Provider
  /** What was made in this session. */
  made: Sandbox.Sandbox | undefined
  name: string | undefined
}

/** What a server does with a request: a message, several, or `drop` for the end of the socket. */
type Answer = string | ReadonlyArray<string> | "drop"

type Does = (session: Session, data: Frame["data"]) => Effect.Effect<Answer, Sandbox.CreateFault>

interface Script {
  readonly reset?: Does
  readonly step?: Does
  readonly state?: Does
  /** Runs when a session has ended. */
  readonly ended?: (session: Session) => Effect.Effect<void>
}

const frame = (type: string, data: unknown): string => JSON.stringify({ type, data })

const observation = (
  metadata: Readonly<Record<string, unknown>>,
  more: Readonly<Record<string, unknown>> = {},
  done = false
) => frame("observation", { observation: { ...more, metadata }, reward: 0.5, done, metadata })

const refused = (code: string, more: Readonly<Record<string, unknown>> = {}) =>
  frame("error", { code, message: "SECRET", ...more })

const said = (text: string) =>
  observation({ status: "active" }, {
    tool_name: "terminal",
    result: { content: [{ type: "text", text }], structured_content: { result: text }, data: text, is_error: false },
    error: null
  }, true)

const limitsOf = (line: string): ExecLimits => {
  const [, seconds = "", cap = ""] = /'[0-9a-f]{32}' '([0-9.]+)' '([0-9]+)' '[0-9]+';/.exec(line) ?? []
  return { timeLimit: Duration.seconds(Number(seconds)), outputCap: Number(cap) }
}

const markOf = (line: string): string => /'([0-9a-f]{32})'/.exec(line)?.[1] ?? ""

const commandOf = (line: string): string =>
  Buffer.from([...line.matchAll(/__EPISODE_[0-9]+='([^']*)'/g)].map(([, part = ""]) => part).join(""), "base64")
    .toString()

/** What our program in the sandbox would print, without a Python. */
const printed = (sandbox: Sandbox.Sandbox, line: string) =>
  Effect.map(
    (() => {
      const zeros = Number(/^head -c ([0-9]+)/.exec(commandOf(line))?.[1] ?? 0)
      const stream = { head: new Uint8Array(zeros / 2), tail: new Uint8Array(zeros / 2), totalBytes: zeros }
      return zeros > 0
        ? Effect.succeed({ stdout: stream, stderr: stream, exitCode: 0, killedAtLimit: false })
        : sandbox.exec(commandOf(line), limitsOf(line))
    })(),
    ({ exitCode, killedAtLimit, stderr, stdout }) => {
      const base64 = (bytes: Uint8Array) => Buffer.from(bytes).toString("base64")
      const fields = [stdout, stderr].flatMap(({ head, tail, totalBytes }) => [totalBytes, base64(head), base64(tail)])
      return ["ready", ["end", exitCode, killedAtLimit ? 1 : 0, ...fields].join(":"), "over"]
        .map((said) => `${markOf(line)}:${said}`).join("\n\n")
    }
  )

/** A sandbox that no control connection finds. */
const madeElsewhere: Does = () => Effect.succeed(observation({ status: "ready", sandbox_id: "elsewhere-1" }))

const lineOf = (data: Frame["data"]): string => (data["arguments"] as { readonly command: string }).command

/** Makes a sandbox as upstream does: with a lifetime of its own, and without our labels. */
const makes = (session: Session, data: Frame["data"], labels: Sandbox.Labels = {}) =>
  Effect.gen(function*() {
    session.name = String(data["episode_id"])
    const made = yield* session.provider.create({ ...policy, labels })
    session.made = made
    for (const command of data["setup"] as ReadonlyArray<string>) {
      const [, word, file] = /^printf %s (\w+) >(\S+) /.exec(command) ?? []
      if (word !== undefined && file !== undefined) {
        yield* made.writeFiles([{ path: SandboxPath.make(file), bytes: new TextEncoder().encode(word) }])
      }
    }
    return made.id
  })

const ready: Does = (session, data) =>
  Effect.map(makes(session, data), (id) => observation({ status: "ready", sandbox_id: id, verify_commands: ["true"] }))

const inSandbox = (session: Session, data: Frame["data"]) =>
  session.made === undefined ? Effect.succeed("nothing") : printed(session.made, lineOf(data))

const runs: Does = (session, data) => Effect.map(inSandbox(session, data), said)

/** Commands of a policy, and not the first one, which looks whether they can be run at all. */
const onPolicy = (does: Does): Does => (session, data) =>
  commandOf(lineOf(data)).startsWith("head -c") ? runs(session, data) : does(session, data)

const state: Does = (session) =>
  Effect.succeed(frame("state", { episode_id: session.name, step_count: 0, sandbox_id: session.made?.id ?? null }))

/** Serves a script at a URL, until the scope ends. Sandboxes are made at the provider in the context. */
const served = (script: Script) =>
  Effect.gen(function*() {
    const provider = yield* SandboxProvider
    const does = new Map<string, Does>([
      ["reset", script.reset ?? ready],
      ["step", script.step ?? runs],
      ["state", script.state ?? state]
    ])
    const { port } = yield* Effect.flatMap(Transport, ({ listen }) =>
      listen({
        host: "127.0.0.1",
        port: 0,
        maxFrameBytes: 1024 * 1024,
        http: Effect.succeed(HttpServerResponse.empty()),
        handshake: ({ headers }) =>
          Effect.succeed(
            headers["authorization"] === "Bearer wrong"
              ? { _tag: "Refuse", status: 401 }
              : headers["authorization"] === "elsewhere"
              ? { _tag: "Refuse", status: 404 }
              : {
                _tag: "Accept",
                serve: (peer) =>
                  Effect.gen(function*() {
                    const session: Session = { provider, made: undefined, name: undefined }
                    const serve = Effect.gen(function*() {
                      const { data, type } = JSON.parse(String(yield* peer.receive)) as Frame
                      const answer = yield* Effect.orDie(does.get(type)?.(session, data) ?? Effect.succeed("drop"))
                      if (answer === "drop") {
                        return yield* Effect.fail("drop" as const)
                      }
                      yield* Effect.forEach(typeof answer === "string" ? [answer] : answer, peer.send)
                    })
                    yield* Effect.ignore(Effect.forever(serve)).pipe(
                      Effect.raceFirst(peer.gone),
                      Effect.ensuring(script.ended?.(session) ?? Effect.void)
                    )
                  })
              }
          )
      })).pipe(Effect.provide(NodeTransport.layer))
    return `ws://127.0.0.1:${port}`
  }).pipe(Effect.orDie)

// ----------------------------------------------------------------------------
// what is tested
// ----------------------------------------------------------------------------

const budgets = { cleanupPause: "1 millis" } as const

const over = (url: string, headers: Readonly<Record<string, string>> = {}, onClose: () => void = () => {}) =>
  TerminusProvider.layer({ url }).pipe(
    Layer.provide(Layer.effect(
      Socket.WebSocketConstructor,
      Effect.map(Socket.WebSocketConstructor, (open) => (url, protocols) => {
        const socket = open(url, protocols)
        const close = socket.close.bind(socket)
        socket.close = (...why) => {
          onClose()
          close(...why)
        }
        return socket
      })
    )),
    Layer.provide(NodeTransport.layerWebSocketConstructor({ headers }))
  )

/** A provider over a script and a simulated world. */
const withProvider = <A, E>(
  script: Script,
  test: Effect.Effect<A, E, SandboxProvider | Simulated.World | Scope.Scope>,
  headers?: Readonly<Record<string, string>>
) =>
  served(script).pipe(
    Effect.flatMap((url) => Effect.provide(test, over(url, headers))),
    Effect.scoped,
    Effect.provide(Simulated.layer())
  )

/** The control connection, in place of the provider that the server has. */
type Control = (provider: Sandbox.Provider) => Effect.Effect<Sandbox.Provider, never, Scope.Scope>

/** Sandboxes with an owner, over a script; and what is left when all is over. */
const acquiring = (
  script: Script,
  options: { readonly control?: Control; readonly onClose?: () => void } = {}
) =>
  Effect.gen(function*() {
    const url = yield* served(script)
    const server = yield* SandboxProvider
    const inner = yield* options.control?.(server) ?? Effect.succeed(server)
    const provider = Context.get(
      yield* Layer.build(Layer.provide(over(url, {}, options.onClose), Layer.succeed(SandboxProvider, inner))),
      SandboxProvider
    )
    const acquired = yield* Effect.flatMap(Sandboxes.Sandboxes, ({ acquire }) =>
      acquire({
        role: "policy",
        lifetime: Duration.minutes(5),
        network: "default",
        phases: { create: "reset", cleanup: "policy-cleanup" }
      })).pipe(
        Effect.scoped,
        Effect.either,
        Effect.provide(Sandboxes.layer.pipe(
          Layer.provide(Layer.succeed(SandboxProvider, provider)),
          Layer.provide(Budgets.layer(budgets))
        ))
      )
    const world = yield* Simulated.World
    return {
      acquired,
      all: yield* world.sandboxes,
      running: yield* world.running,
      open: yield* (yield* Ledger.Ledger).open
    }
  }).pipe(Effect.scoped, Effect.provide(Layer.merge(Simulated.layer(), Ledger.layerMemory)), Effect.orDie)

const failureOf = ({ acquired }: Effect.Effect.Success<ReturnType<typeof acquiring>>) => {
  assert(acquired._tag === "Left")
  assert.notInclude(acquired.left.message, "SECRET")
  assert.notInclude(JSON.stringify(acquired.left), "SECRET")
  return acquired.left
}

/** One episode over a script. */
const recorded = (
  script: Script,
  play: (tools: Episode.PolicyTools) => Effect.Effect<unknown, unknown>,
  setting: Setting = {}
) =>
  Effect.gen(function*() {
    const url = yield* served(script)
    const layer = Episode.layerWithLedger().pipe(
      Layer.provide(over(url)),
      Layer.provide(Budgets.layer({ ...budgets, ...setting.budgets }))
    )
    const receipt = yield* Effect.flatMap(Episode.Episode, (episode) =>
      episode.record(task, (tools) => Effect.ignore(play(tools)))).pipe(Effect.provide(layer), Effect.orDie)
    const world = yield* Simulated.World
    assert.deepStrictEqual(
      (yield* world.running).map(({ id }) =>
        id
      ),
      []
    )
    assert.deepStrictEqual(yield* (yield* Ledger.Ledger).open, [])
    assert.isTrue(receipt.resources.every(({ confirmedAbsentAt }) => confirmedAbsentAt !== null))
    return { receipt, sandboxes: yield* world.sandboxes }
  }).pipe(Effect.scoped, Effect.provide(outside(setting)))

const errorOf = ({ receipt: { outcome } }: Effect.Effect.Success<ReturnType<typeof recorded>>) => {
  assert(outcome._tag === "Aborted")
  assert.notInclude(outcome.error.message, "SECRET")
  return outcome.error
}

const repaired = ({ submit, terminal }: Episode.PolicyTools) => Effect.zipRight(terminal(edit(solution)), submit)

describe("an episode in a Terminus server's sandbox", () => {
  it.live("is scored by our own verifier, whatever the server's reward and done say", () =>
    Effect.gen(function*() {
      const { receipt, sandboxes } = yield* recorded({}, repaired)
      assert.deepInclude(receipt.outcome, { _tag: "Scored", score: 1 })
      assert.strictEqual(receipt.provider, "openenv")
      assert.deepStrictEqual(receipt.resources.map(({ id, role, templateId }) => [id, role, templateId]), [
        ["sim-1", "policy", "simulated"],
        ["sim-2", "verifier", "simulated"]
      ])
      const [first, second] = sandboxes
      assert.deepStrictEqual(first?.labels, {})
      assert.isFalse(second?.network)
      assert.isTrue((second?.createdAt.epochMillis ?? 0) >= (first?.ended?.at.epochMillis ?? Infinity))
      const wrong = yield* recorded({}, ({ submit }) => submit)
      assert.deepInclude(wrong.receipt.outcome, { _tag: "Scored", score: 0 })
    }))

  it.live("keeps to the budgets of the episode, wherever those of its provider come from", () =>
    Effect.gen(function*() {
      const commands: Array<string> = []
      const url = yield* served({
        step: (session, data) => {
          commands.push(commandOf(lineOf(data)))
          return runs(session, data)
        }
      })
      const layer = Episode.layer.pipe(
        Layer.provide(Budgets.layer({ ...budgets, observationCap: 2048, commandLimit: "7 seconds" })),
        Layer.provide(over(url))
      )
      const { outcome } = yield* Effect.flatMap(
        Episode.Episode,
        (episode) => episode.record(task, ({ submit }) => submit)
      ).pipe(Effect.provide(layer))
      assert.deepInclude(outcome, { _tag: "Scored", score: 0 })
      assert.match(commands[0] ?? "", /^head -c 2048 /)
    }).pipe(Effect.scoped, Effect.provide(outside({}))))

  it.live("works with servers before 0.8, which say in their state which sandbox it is", () =>
    Effect.gen(function*() {
      const silent = (done: boolean) => frame("observation", { observation: {}, reward: null, done })
      const { receipt } = yield* recorded({
        reset: (session, data) => Effect.as(makes(session, data), silent(false))
      }, repaired)
      assert.deepInclude(receipt.outcome, { _tag: "Scored", score: 1 })
      const failed = yield* acquiring({ reset: (session, data) => Effect.as(makes(session, data), silent(true)) })
      assert.deepInclude(failureOf(failed), { _tag: "TransportFailed" })
      assert.deepStrictEqual([failed.running, failed.open], [[], []])
      const none = yield* acquiring({ reset: () => Effect.succeed(silent(true)) })
      assert.deepInclude(failureOf(none), { _tag: "SandboxUnavailable", reason: "refused" })
    }))

  it.live("takes replies as text comes: joined of pieces, trimmed, with something added", () =>
    Effect.gen(function*() {
      const shapes: ReadonlyArray<(text: string) => string> = [
        (text) => text.match(/.{1,7}/gs)?.join("\n") ?? "",
        (text) => `a profile says hello\n${text}\nand stderr\nERROR:\nSystemExit: 0`
      ]
      for (const shape of shapes) {
        const { receipt } = yield* recorded({
          step: (session, data) => Effect.map(inSandbox(session, data), (text) => said(shape(text)))
        }, repaired)
        assert.deepInclude(receipt.outcome, { _tag: "Scored", score: 1 })
      }
    }))

  it.live("goes on when a policy kills or forges what runs its commands", () =>
    Effect.gen(function*() {
      const noise = ["", "ERROR:\nSystemExit: 137", "Error: environment not reset.", "end:0:0:0:::0::"]
      for (const junk of noise) {
        const { receipt } = yield* recorded({
          step: onPolicy((session, data) =>
            commandOf(lineOf(data)) === "kill -9 -1"
              ? Effect.succeed(said(`${markOf(lineOf(data))}:ready\n${junk}`))
              : runs(session, data)
          )
        }, (tools) =>
          Effect.gen(function*() {
            const seen = yield* tools.terminal("kill -9 -1")
            assert.deepInclude(seen, { stdout: "", stderr: "", exitCode: 137, killedAtLimit: false })
            yield* repaired(tools)
          }))
        assert.deepInclude(receipt.outcome, { _tag: "Scored", score: 1 }, junk)
      }
    }))

  it.live("has no score when a reply is missing because the sandbox is gone", () =>
    Effect.gen(function*() {
      const error = errorOf(
        yield* recorded({
          step: onPolicy((session) =>
            Effect.as(
              session.made === undefined ? Effect.void : session.provider.destroy(session.made.id),
              said("junk")
            )
          )
        }, ({ terminal }) => terminal("true"))
      )
      assert.deepInclude(error, { _tag: "SandboxLost", reason: "absent", phase: "policy" })
    }))

  const wrongs: ReadonlyArray<readonly [what: string, answer: Answer, tag: "TransportFailed" | "ProtocolViolation"]> = [
    ["a dropped socket", "drop", "TransportFailed"],
    ["what isn't JSON", "{", "ProtocolViolation"],
    ["another frame", frame("state", { episode_id: null, step_count: 0 }), "ProtocolViolation"],
    ["no answer of a tool", observation({ status: "active" }), "ProtocolViolation"],
    ["an error frame", refused("EXECUTION_ERROR"), "TransportFailed"],
    ["an error frame with an odd code", refused("SECRET: rm"), "TransportFailed"],
    [
      "an error of the tool",
      observation({}, { tool_name: "terminal", result: null, error: { error_type: "timeout", message: "SECRET" } }),
      "TransportFailed"
    ],
    [
      "a result that is an error",
      observation({}, { tool_name: "terminal", result: { is_error: true, data: "SECRET" }, error: null }),
      "TransportFailed"
    ]
  ]

  it.live.each(wrongs)(
    "has no score after %s in place of a command's reply",
    ([, answer, tag]) =>
      Effect.gen(function*() {
        const played = yield* recorded(
          { step: onPolicy(() => Effect.succeed(answer)) },
          ({ terminal }) => terminal("true")
        )
        assert.deepInclude(errorOf(played), { _tag: tag, operation: "exec", phase: "policy" })
        assert.strictEqual(played.sandboxes.length, 1)
      })
  )

  it.live("has no score when a reply comes too late, and asks for nothing more", () =>
    Effect.gen(function*() {
      let steps = 0
      const played = yield* recorded({
        step: onPolicy(() => {
          steps += 1
          return Effect.never
        })
      }, (tools) =>
        Effect.zipRight(Effect.ignore(tools.terminal("true")), tools.terminal("echo again")), {
        budgets: { commandLimit: "20 millis", commandResponse: "100 millis", verifierResponse: "100 millis" }
      })
      assert.deepInclude(errorOf(played), { _tag: "ResponseTimedOut", budget: "commandResponse" })
      assert.strictEqual(steps, 1)
    }))

  it.effect("ends from outside what a policy has stopped, and that is the policy's own doing", () =>
    Effect.gen(function*() {
      const started = yield* Deferred.make<string>()
      const killed = yield* Deferred.make<void>()
      const shell: Simulated.Shell = (command) => {
        if (command.includes("os.kill")) {
          Deferred.unsafeDone(killed, Effect.void)
        }
        return {}
      }
      yield* Effect.gen(function*() {
        const url = yield* served({
          step: onPolicy((_, data) =>
            Deferred.succeed(started, lineOf(data)).pipe(
              Effect.zipRight(Deferred.await(killed)),
              Effect.as(said("ERROR:\nSystemExit: -9"))
            )
          )
        })
        yield* Effect.gen(function*() {
          const machine = yield* (yield* SandboxProvider).create(policy)
          const running = yield* Effect.fork(machine.exec("kill -STOP $PPID", limits))
          const line = yield* Deferred.await(started)
          yield* TestClock.adjust(Duration.sum(limits.timeLimit, Guest.grace))
          assert.deepInclude(yield* Fiber.join(running), { exitCode: 137, killedAtLimit: true })
          const commands = (yield* (yield* Simulated.World).sandboxes).flatMap(({ commands }) => commands)
          // It doesn't hold what it looks for, or it would end itself.
          assert.notInclude(commands.at(-1)?.command ?? markOf(line), markOf(line))
        }).pipe(Effect.provide(over(url)))
      }).pipe(Effect.scoped, Effect.provide(Simulated.layer({ shell })))
    }))

  for (const before of [Guest.untouched, Guest.stoppedSome]) {
    it.effect(`waits for a reply that nobody in the sandbox holds up, as long as its caller does (${before})`, () =>
      Effect.gen(function*() {
        // What was stopped long ago goes on, and explains nothing.
        let looks = 0
        const shell: Simulated.Shell = (command) =>
          command.includes("os.kill") ? { stdout: looks++ === 0 ? before : Guest.untouched } : {}
        const started = yield* Deferred.make<void>()
        yield* Effect.gen(function*() {
          const url = yield* served({
            step: onPolicy(() => Effect.zipRight(Deferred.succeed(started, undefined), Effect.never))
          })
          yield* Effect.gen(function*() {
            const machine = yield* (yield* SandboxProvider).create(policy)
            const running = yield* Effect.fork(machine.exec("true", limits))
            yield* Deferred.await(started)
            yield* TestClock.adjust("1 minute")
            assert.isTrue(Option.isNone(yield* Fiber.poll(running)))
            yield* Fiber.interrupt(running)
            assert.deepInclude(yield* Effect.flip(machine.exec("true", limits)), { _tag: "TransportFailed" })
          }).pipe(Effect.provide(over(url)))
        }).pipe(Effect.scoped, Effect.provide(Simulated.layer({ shell })))
      }))
  }

  it.live("refuses a command that is too long for one argument, as a shell would", () =>
    withProvider(
      {},
      Effect.gen(function*() {
        const machine = yield* (yield* SandboxProvider).create(policy)
        const { exitCode, stderr } = yield* machine.exec("x".repeat(90_000), limits)
        assert.deepStrictEqual([exitCode, text(stderr)], [126, "bash: Argument list too long\n"])
        assert.strictEqual(yield* sh(machine, `echo ${"x".repeat(60_000)} >/dev/null`), "")
      })
    ))
})

describe("a create", () => {
  it.live("that the server refuses leaves nothing, and says so", () =>
    Effect.gen(function*() {
      const refusals: ReadonlyArray<readonly [answer: Answer, reason: "quota" | "refused"]> = [
        [refused("CAPACITY_REACHED", { active_sessions: 1, max_sessions: 1 }), "quota"],
        [refused("FACTORY_ERROR"), "refused"],
        [refused("VALIDATION_ERROR"), "refused"],
        [observation({ status: "error", error: "SECRET" }, {}, true), "refused"]
      ]
      for (const [answer, reason] of refusals) {
        const found = yield* acquiring({ reset: () => Effect.succeed(answer) })
        assert.deepInclude(failureOf(found), { _tag: "SandboxUnavailable", reason })
        assert.strictEqual(
          failureOf(found).message.endsWith("; is it a Terminus server?"),
          answer === refused("VALIDATION_ERROR")
        )
        assert.deepStrictEqual([found.all, found.open], [[], []])
      }
    }))

  it.live("without a connection, or without the token, allocates nothing", () =>
    Effect.gen(function*() {
      const create = Effect.flatMap(SandboxProvider, (provider) => Effect.flip(provider.create(policy)))
      const refusal = yield* withProvider({}, create, { authorization: "Bearer wrong" })
      assert.deepInclude(refusal, { _tag: "SandboxUnavailable", reason: "unauthorized" })
      assert.include(refusal.message, "is that the one in the WebSocketConstructor's `authorization` header?")
      const elsewhere = yield* withProvider({}, create, { authorization: "elsewhere" })
      assert.deepInclude(elsewhere, { _tag: "SandboxUnavailable", reason: "refused" })
      assert.include(elsewhere.message, "there is no OpenEnv server at `url` (HTTP 404)")
      const nobody = yield* Effect.provide(create, Layer.provide(over("ws://127.0.0.1:1"), Simulated.layer()))
      assert.deepInclude(nobody, { _tag: "SandboxUnavailable" })
      assert.include(nobody.message, "does it run at `url`?")
      assert.notMatch(nobody.message, /authorization|HTTP/)
    }))

  it.live("says what is wrong in the words of whoever made the settings", () =>
    Effect.gen(function*() {
      const names = { url: "--server", token: "SERVER_TOKEN", sandboxes: "--sandboxes" }
      const tried = (url: string, headers: Readonly<Record<string, string>> = {}) =>
        Effect.flatMap(SandboxProvider, (provider) => Effect.flip(provider.create(policy))).pipe(
          Effect.provide(
            TerminusProvider.layer({ url, names }).pipe(
              Layer.provide(NodeTransport.layerWebSocketConstructor({ headers }))
            )
          ),
          Effect.map(({ message }) => message)
        )
      const url = yield* served({})
      assert.include(yield* tried(url, { authorization: "Bearer wrong" }), "is that the one in SERVER_TOKEN?")
      assert.include(yield* tried("ws://127.0.0.1:1"), "does it run at --server?")
      assert.include(yield* tried(yield* served({ reset: madeElsewhere })), "--sandboxes says where it is looked for")
    }).pipe(Effect.scoped, Effect.provide(Simulated.layer())))

  it.live("that made a sandbox and failed is found and deleted", () =>
    Effect.gen(function*() {
      const failures: ReadonlyArray<readonly [does: Does, tag: "TransportFailed" | "ProtocolViolation"]> = [
        [
          (session, data) =>
            Effect.map(makes(session, data), (id) => observation({ status: "error", sandbox_id: id }, {}, true)),
          "TransportFailed"
        ],
        // It raised: its state has the id.
        [(session, data) => Effect.as(makes(session, data), refused("EXECUTION_ERROR")), "TransportFailed"],
        [
          (session, data) => Effect.map(makes(session, data), (id) => observation({ status: 7, sandbox_id: id })),
          "ProtocolViolation"
        ],
        // The reply is lost, on a server that names its sandboxes after the episode.
        [
          (session, data) =>
            Effect.as(makes(session, data, { [Terminus.episodeLabel]: String(data["episode_id"]) }), "drop"),
          "TransportFailed"
        ],
        [
          (session, data) =>
            Effect.as(makes(session, data, { [Terminus.episodeLabel]: String(data["episode_id"]) }), "{"),
          "ProtocolViolation"
        ]
      ]
      for (const [reset, tag] of failures) {
        const found = yield* acquiring({ reset })
        assert.deepInclude(failureOf(found), { _tag: tag })
        assert.deepStrictEqual(found.all.map(({ ended }) => ended?.how), ["deleted"])
        assert.deepStrictEqual(found.open, [])
      }
    }))

  it.live("is found by what it was, also when the server has deleted it on its own", () =>
    Effect.gen(function*() {
      const events: Array<string> = []
      const gone = yield* acquiring(
        {
          reset: (session, data) =>
            Effect.map(makes(session, data), (id) => observation({ status: "error", sandbox_id: id }, {}, true)),
          ended: ({ made, provider }) => made === undefined ? Effect.void : Effect.ignore(provider.destroy(made.id))
        },
        {
          control: (provider) =>
            Effect.succeed({
              ...provider,
              attach: (id, role) => {
                events.push("seen")
                return provider.attach(id, role)
              }
            }),
          onClose: () => events.push("closed")
        }
      )
      assert.deepStrictEqual(events.slice(0, 2), ["seen", "closed"])
      assert.deepInclude(failureOf(gone), { _tag: "TransportFailed" })
      assert.deepStrictEqual([gone.running, gone.open], [[], []])
    }))

  const unknown: ReadonlyArray<readonly [what: string, does: Does]> = [
    ["a lost reply", (session, data) => Effect.as(makes(session, data), "drop")],
    ["no id", (session, data) => Effect.as(makes(session, data), observation({ status: "ready", sandbox_id: "" }))],
    [
      "an odd id",
      (session, data) => Effect.as(makes(session, data), observation({ status: "ready", sandbox_id: "../x" }))
    ],
    [
      "the id of a sandbox that it doesn't work in",
      (session, data) =>
        Effect.zipRight(
          makes(session, data),
          Effect.map(session.provider.create(policy), ({ id }) => observation({ status: "ready", sandbox_id: id }))
        )
    ]
  ]

  it.live.each(unknown)(
    "with %s isn't known to be gone, and nothing is deleted",
    ([, reset]) =>
      Effect.gen(function*() {
        const found = yield* acquiring({ reset, state: () => Effect.succeed(frame("state", { sandbox_id: null })) })
        assert.deepInclude(failureOf(found), { _tag: "AllocationUncertain", role: "policy" })
        assert.strictEqual(found.running.length, found.all.length)
        assert.deepStrictEqual(found.open.map((entry) => entry.state), ["uncertain"])
      })
  )

  it.live("is uncertain, and never absent, for a control connection that reaches other sandboxes", () =>
    Effect.gen(function*() {
      const found = yield* acquiring({}, {
        control: () => Effect.map(Layer.build(Simulated.layer()), Context.get(SandboxProvider))
      })
      assert.deepInclude(failureOf(found), { _tag: "AllocationUncertain" })
      assert.include(failureOf(found)?.message, "the SandboxProvider that is given to this one says where")
      assert.strictEqual(found.running.length, 1)
      assert.deepStrictEqual(found.open.map((entry) => entry.state), ["uncertain"])
    }))

  it.live("is uncertain when the control connection fails, and says which one that is", () =>
    Effect.gen(function*() {
      const lost = new Sandbox.TransportFailed({ operation: "attach", detail: "no connection to 127.0.0.1" })
      const found = yield* acquiring({}, {
        control: (provider) => Effect.succeed({ ...provider, name: "other", attach: () => lost, find: () => lost })
      })
      assert.deepInclude(failureOf(found), { _tag: "AllocationUncertain" })
      for (const word of ["the other provider", "no connection to 127.0.0.1", "the SandboxProvider that is given"]) {
        assert.include(failureOf(found).message, word)
      }
    }))

  it.live("never takes a sandbox that another episode has", () =>
    withProvider(
      {
        reset: (session, data) => {
          const id = SandboxId.make("sim-1")
          return session.name === undefined && data["episode_id"] === "second"
            ? Effect.zipRight(makes(session, data), Effect.succeed(observation({ status: "ready", sandbox_id: id })))
            : ready(session, data)
        }
      },
      Effect.gen(function*() {
        const provider = yield* SandboxProvider
        const first = { [Sandboxes.allocationLabel]: "first" }
        const second = { [Sandboxes.allocationLabel]: "second" }
        const machine = yield* provider.create({ ...policy, labels: first })
        const error = yield* Effect.flip(provider.create({ ...policy, labels: second }))
        assert.deepInclude(error, { _tag: "ProtocolViolation" })
        assert.include(error.message, "another episode has")
        assert.deepStrictEqual(yield* provider.find(second), [])
        assert.deepStrictEqual(yield* provider.find(first), [{ id: machine.id, labels: first }])
        yield* provider.destroy(machine.id)
        assert.deepStrictEqual(yield* provider.find(first), [])
        assert.strictEqual(yield* provider.inspect(machine.id), "absent")
      })
    ))

  it.live("fails where there is no Python, or where outputs don't come back whole", () =>
    Effect.gen(function*() {
      const silent = yield* acquiring({ step: () => Effect.succeed(said("sh: 1: python3: not found")) })
      assert.include(failureOf(silent).message, "no python3")
      const short = yield* acquiring({
        step: (session, data) =>
          Effect.map(inSandbox(session, data), (text) => said(`${text.slice(0, 9000)} [...] ${text.slice(-9000)}`))
      })
      assert.include(failureOf(short).message, "doesn't pass on outputs")
      for (const { open, running } of [silent, short]) {
        assert.deepStrictEqual([running, open], [[], []])
      }
    }))

  it.live("may be interrupted at any moment", () =>
    Effect.gen(function*() {
      const gone = yield* Deferred.make<void>()
      const asked = yield* Deferred.make<void>()
      yield* withProvider(
        {
          reset: () => Effect.zipRight(Deferred.succeed(asked, undefined), Effect.never),
          ended: () => Effect.asVoid(Deferred.succeed(gone, undefined))
        },
        Effect.gen(function*() {
          const creating = yield* Effect.fork(Effect.flatMap(SandboxProvider, ({ create }) => create(policy)))
          yield* Deferred.await(asked)
          yield* Fiber.interrupt(creating)
          yield* Deferred.await(gone)
        })
      )
    }))

  it.live("of a verifier is the control connection's", () =>
    withProvider(
      { reset: () => Effect.dieMessage("nobody asks the server") },
      Effect.gen(function*() {
        const provider = yield* SandboxProvider
        const labels = { [Sandboxes.allocationLabel]: "v", kind: "verifier" }
        const made = yield* provider.create({ ...policy, role: "verifier", network: "offline", labels })
        assert.deepStrictEqual(yield* provider.find({ [Sandboxes.allocationLabel]: "v" }), [{ id: made.id, labels }])
        assert.deepStrictEqual(yield* provider.find({ kind: "verifier" }), [{ id: made.id, labels }])
        const refusals = [{ network: "offline" }, { templateId: "t" }] as const
        for (const more of refusals) {
          const error = yield* Effect.flip(provider.create({ ...policy, ...more }))
          assert.deepInclude(error, { _tag: "SandboxUnavailable", reason: "unsupported" })
        }
      })
    ))
})

describe("the end", () => {
  it.live("of a sandbox closes its session, and that of the layer closes all", () =>
    Effect.gen(function*() {
      const ended = yield* Effect.all([Deferred.make<void>(), Deferred.make<void>()])
      let sessions = 0
      yield* Effect.gen(function*() {
        const url = yield* served({
          ended: () =>
            Effect.suspend(() => {
              const next = ended[sessions]
              sessions += 1
              return next === undefined ? Effect.void : Effect.asVoid(Deferred.succeed(next, undefined))
            })
        })
        const scope = yield* Scope.make()
        const services = yield* Layer.buildWithScope(
          Layer.provide(over(url), Layer.succeed(SandboxProvider, yield* SandboxProvider)),
          scope
        )
        const provider = Context.get(services, SandboxProvider)
        const one = yield* provider.create(policy)
        const other = yield* provider.create(policy)
        yield* provider.destroy(one.id)
        yield* Deferred.await(ended[0])
        assert.strictEqual(yield* sh(other, "echo >/dev/null"), "")
        yield* Scope.close(scope, Exit.void)
        yield* Deferred.await(ended[1])
      }).pipe(Effect.scoped, Effect.provide(Simulated.layer()))
    }))
})

// ----------------------------------------------------------------------------
// our own server, and real sandboxes
// ----------------------------------------------------------------------------

const directory = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "episode-terminus-test-"))),
  (made) => Effect.sync(() => fs.rmSync(made, { recursive: true, force: true }))
)

/** A server of ours over local sandboxes, and another provider of them that is told their ids. */
const real = <A, E>(test: Effect.Effect<A, E, SandboxProvider | OpenEnv.OpenEnvServer | Scope.Scope>) =>
  Effect.gen(function*() {
    const local = Local.layer({ directory: path.join(yield* directory, "sandboxes") })
    const server = OpenEnv.layerTerminus({ port: 0 }).pipe(
      Layer.provide(NodeTransport.layer),
      Layer.provide(Sandboxes.layer),
      Layer.provide(Ledger.layerMemory),
      Layer.provide(local)
    )
    const provider = Layer.unwrapEffect(Effect.map(OpenEnv.OpenEnvServer, ({ url }) => over(url))).pipe(
      Layer.provide(Layer.fresh(local))
    )
    return yield* Effect.provide(test, Layer.provideMerge(provider, server))
  }).pipe(Effect.scoped)

const timeout = 60_000

describe("commands in a real sandbox, by the server's terminal", () => {
  it.live(
    "are what they are in any other: streams, bytes, codes, limits, caps",
    () =>
      real(Effect.gen(function*() {
        const provider = yield* SandboxProvider
        const machine = yield* provider.create(policy)
        assert.strictEqual(yield* sh(machine, "pwd; echo $HOME; cat; echo ü"), "/home/user\n/home/user\nü\n")
        const mixed = yield* machine.exec("echo out; printf '\\377\\000' >&2; exit 7", limits)
        assert.deepStrictEqual([text(mixed.stdout), [...mixed.stderr.head], mixed.exitCode], ["out\n", [255, 0], 7])
        const flood = yield* machine.exec("head -c 3000000 /dev/zero; echo err >&2", limits)
        assert.deepStrictEqual(
          [flood.stdout.totalBytes, flood.stdout.head.length, flood.stdout.tail.length],
          [3_000_000, 32_768, 32_768]
        )
        const slow = yield* machine.exec("echo before; trap '' TERM; while :; do :; done", {
          ...limits,
          timeLimit: Duration.millis(300)
        })
        assert.deepStrictEqual([text(slow.stdout), slow.exitCode, slow.killedAtLimit], ["before\n", 137, true])
        assert.strictEqual(text((yield* machine.exec("echo a\0b", limits)).stdout), "ab\n")
        yield* provider.destroy(machine.id)
        assert.strictEqual(yield* provider.inspect(machine.id), "absent")
      })),
    timeout
  )

  it.live(
    "leave a sandbox that works, whatever a policy kills, stops or removes",
    () =>
      real(Effect.gen(function*() {
        const provider = yield* SandboxProvider
        const machine = yield* provider.create(policy)
        const hostile = [
          "kill -9 -1",
          "kill -9 $PPID; kill -9 0",
          "rm -rf /home/user /tmp/* /tmp/.??* 2>/dev/null",
          "exec >&- 2>&-",
          "for pid in /proc/[0-9]*; do echo junk >$pid/fd/1; done 2>/dev/null; kill -9 $PPID"
        ]
        for (const command of hostile) {
          yield* machine.exec(command, limits)
          assert.strictEqual(yield* sh(machine, "echo fine"), "fine\n", command)
        }
        const stopped = yield* machine.exec("kill -STOP $PPID", { ...limits, timeLimit: Duration.millis(100) })
        assert.deepInclude(stopped, { exitCode: 137, killedAtLimit: true })
        assert.strictEqual(yield* sh(machine, "echo fine"), "fine\n")
        yield* provider.destroy(machine.id)
        assert.strictEqual(yield* provider.inspect(machine.id), "absent")
      })),
    timeout
  )

  const brief = { ...limits, timeLimit: Duration.millis(100) }

  it.live(
    "go on when all that was stopped goes on",
    () =>
      real(Effect.gen(function*() {
        const provider = yield* SandboxProvider
        const machine = yield* provider.create(policy)
        assert.deepInclude(yield* machine.exec("kill -STOP -1; sleep 100", brief), {
          exitCode: 137,
          killedAtLimit: true
        })
        assert.strictEqual(yield* sh(machine, "echo fine"), "fine\n")
        yield* provider.destroy(machine.id)
      })),
    timeout
  )

  const endless: ReadonlyArray<readonly [what: string, command: string]> = [
    ["stops everything for ever", "python3 -c 'import os\nwhile 1:\n  try: os.kill(-1, 19)\n  except OSError: pass'"],
    [
      "stops our program and uses up all processes",
      "kill -STOP $PPID; exec python3 -c 'import os, time\nos.setsid()\nwhile 1:\n"
      + "  try:\n    if os.fork() == 0: time.sleep(300)\n  except OSError: time.sleep(0.001)'"
    ]
  ]
  for (const [what, command] of endless) {
    it.live(
      `are results also when a policy ${what}, and its files can be had`,
      () =>
        real(Effect.gen(function*() {
          const provider = yield* SandboxProvider
          const machine = yield* provider.create(policy)
          yield* sh(machine, "printf kept >file")
          const { exitCode } = yield* machine.exec(command, { ...limits, timeLimit: Duration.seconds(1) })
          assert.strictEqual(exitCode, 137)
          // Whether the server hears of another command or not.
          assert.isAtMost((yield* machine.exec("echo fine", brief)).exitCode, 255)
          yield* machine.health
          assert.strictEqual(
            (yield* machine.readFile(SandboxPath.make("/home/user/file"), { maxBytes: 9 }))._tag,
            "Bytes"
          )
          yield* provider.destroy(machine.id)
          assert.strictEqual(yield* provider.inspect(machine.id), "absent")
        })),
      timeout
    )
  }

  it.live(
    "that are interrupted end with their session, and the sandbox with it",
    () =>
      real(Effect.gen(function*() {
        const provider = yield* SandboxProvider
        const machine = yield* provider.create(policy)
        const started = Effect.map(
          machine.readFile(SandboxPath.make("/home/user/started"), { maxBytes: 1 }),
          ({ _tag }) => _tag === "Bytes"
        )
        const running = yield* Effect.fork(machine.exec("touch started; sleep 100", limits))
        yield* started.pipe(Effect.repeat({ until: (yes) => yes, schedule: Schedule.spaced("20 millis") }))
        yield* Fiber.interrupt(running)
        assert.deepInclude(yield* Effect.flip(machine.exec("true", limits)), { _tag: "TransportFailed" })
        const { open } = yield* OpenEnv.OpenEnvServer
        yield* open.pipe(Effect.repeat({ until: (left) => left.length === 0, schedule: Schedule.spaced("20 millis") }))
        assert.strictEqual(yield* provider.inspect(machine.id), "absent")
      })),
    timeout
  )
})

describe("a program as one command line", () => {
  it("is all ASCII, and no longer than what the kernel takes", () => {
    const line = (command: string) => Option.flatMap(Guest.run("mark", command, limits), Guest.commandLine)
    const short = Option.getOrThrow(line("echo 'ü'"))
    assert.match(short, /^[\n -~]+$/)
    assert.isBelow(short.length, 8192)
    assert.isTrue(Option.isNone(line("x".repeat(100_000))))
  })

  it("is answered in text of which line breaks are no part", () => {
    const fields = ["end", "0", "0", "0", "", "", "0", "", ""]
    const whole = `mark:ready\n\nmark:${fields.join(":")}\n\nmark:over`
    const limits = { timeLimit: Duration.seconds(1), outputCap: 4 }
    for (const text of [whole, [...whole].join("\n"), `x\n${whole}\n`, `${whole.slice(0, -4)} noise`]) {
      const reply = Guest.replyInText("mark", text)
      assert.isTrue(reply.isReady)
      assert.deepInclude(Option.getOrThrow(Guest.endIn(reply, limits)), { exitCode: 0, killedAtLimit: false })
    }
    for (const text of ["mark:ready", `mark:ready\nmark:${fields.join(":")}`, "mark:ready\nmark:start:\nmark:over"]) {
      const reply = Guest.replyInText("mark", text)
      assert.isTrue(reply.isReady)
      assert.isTrue(Option.isNone(Guest.endIn(reply, limits)))
    }
    assert.isFalse(Guest.replyInText("mark", "other:ready").isReady)
  })
})

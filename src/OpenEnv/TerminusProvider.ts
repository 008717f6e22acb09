/**
 * Policy sandboxes of a native Terminus server, owned like all others.
 *
 * The server makes a policy's sandbox and runs its commands. All else goes through another provider, the control
 * connection: one that reaches the same sandboxes, whoever made them. It writes and reads files, makes verifiers, and
 * it alone deletes and proves. A Terminus server's reward, its `done` and what it says of a deletion count for nothing
 * here.
 *
 * What a server says is no more trusted than any stranger's word. A sandbox that it names is adopted when the control
 * connection finds there what the server was told to write on reset: so it's the one that the server works in, and no
 * other of the same owner's. One that was never seen there can't be proved gone either, however absent it looks.
 *
 * Until it is extended, a sandbox lives as long as the server lets it. Its network and its template are the server's,
 * too.
 *
 * @since 0.1.0
 */
import type * as Socket from "@effect/platform/Socket"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as ExecutionStrategy from "effect/ExecutionStrategy"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Order from "effect/Order"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import { type Budgets, CurrentBudgets } from "../Budgets.ts"
import {
  AllocationUncertain,
  type CreateFault,
  type ExecLimits,
  type ExecResult,
  type Labels,
  type Operation,
  ProtocolViolation,
  type Provider,
  type Sandbox,
  type SandboxFault,
  SandboxId,
  SandboxProvider,
  type SandboxSpec,
  type SandboxSummary,
  SandboxUnavailable,
  TransportFailed
} from "../Sandbox.ts"
import * as Guest from "../Sandbox/Guest.ts"
import { allocationLabel } from "../Sandbox/Sandboxes.ts"
import { SandboxPath } from "../Task.ts"
import * as Client from "./Client.ts"
import * as Terminus from "./Terminus.ts"

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /** The server's base URL, with `ws`, `wss`, `http` or `https`; sessions are opened at `/ws` under it. */
  readonly url: string
  /** What the server runs in a new sandbox; where one of these fails, there is no sandbox. Default: see `defaults`. */
  readonly setup?: ReadonlyArray<string> | undefined
  /** The longest command line that the server takes. A policy's command can have two thirds of it. Default 96 KiB. */
  readonly maxCommandBytes?: number | undefined
  /** What errors call the settings that they are about. Default: see `defaults`. */
  readonly names?: Names | undefined
}

/**
 * What the settings are called where they are made, such as a program's flags.
 *
 * @since 0.1.0
 * @category models
 */
export interface Names {
  readonly url: string
  /** Where the server's token is given. */
  readonly token: string
  /** Where it is said which sandboxes the control connection reaches. */
  readonly sandboxes: string
}

/**
 * @since 0.1.0
 * @category defaults
 */
export const defaults = {
  setup: ["mkdir -p /home/user"],
  maxCommandBytes: 96 * 1024,
  names: {
    url: "`url`",
    token: "the WebSocketConstructor's `authorization` header",
    sandboxes: "the SandboxProvider that is given to this one"
  }
} as const satisfies Partial<Options>

/** A policy sandbox, from before it is asked for until it is deleted. */
interface Held {
  readonly allocation: string
  readonly labels: Labels
  /** What the server writes into the sandbox, and where. */
  readonly word: string
  readonly place: SandboxPath
  /** Its end closes the connection. */
  readonly scope: Scope.CloseableScope
  /** What the server calls it. */
  id?: SandboxId
  /** It was seen: this is how it is reached. */
  control?: Sandbox
  /** Its create failed: whoever looks for it does so to delete it. */
  isGivenUp: boolean
}

/** A sandbox and both ways to it. */
interface Session {
  readonly client: Client.Client
  readonly id: SandboxId
  readonly control: Sandbox
  readonly scope: Scope.Scope
  /** A command whose reply a guest keeps from coming: until it does, the server has no ear for another. */
  held: Option.Option<Calling>
}

type Calling = Fiber.RuntimeFiber<Client.Observed, Client.ClientError>

/** What came of a command line of ours. */
interface Ran {
  readonly reply: Guest.Reply
  readonly result: Option.Option<ExecResult>
  /** It was ended from outside. */
  readonly isOverdue: boolean
}

// ----------------------------------------------------------------------------
// faults
// ----------------------------------------------------------------------------

// What a server calls its errors. Anything else could be a quotation.
const codeOf = (code: string): string => /^[A-Z_]{1,40}$/.test(code) ? code : "an unknown code"

const about = (operation: Operation, sandboxId: SandboxId | undefined) => ({
  operation,
  ...(sandboxId === undefined ? {} : { sandboxId })
})

const lostBy = (error: Exclude<Client.ClientError, Client.ProtocolViolation>): string => {
  switch (error._tag) {
    case "ConnectionLost":
      return "the connection to the Terminus server was lost"
    case "ReplyMissed":
      return "the Terminus server's reply was not waited for"
    case "EnvironmentRefused":
      return `the Terminus server answered with an error (${codeOf(error.code)})`
  }
}

const faultOf = (operation: Operation, sandboxId?: SandboxId) => (error: Client.ClientError) =>
  error._tag === "ProtocolViolation"
    ? new ProtocolViolation({ ...about(operation, sandboxId), detail: `of the Terminus server, ${error.detail}` })
    : new TransportFailed({ ...about(operation, sandboxId), detail: lostBy(error) })

const unavailable = (reason: SandboxUnavailable["reason"], detail: string) =>
  new SandboxUnavailable({ operation: "create", reason, detail })

const unconnected = (names: Names) => (error: Client.ClientError): SandboxUnavailable => {
  const status = error._tag === "ConnectionLost" ? error.status : undefined
  switch (status) {
    case undefined:
      return unavailable("refused", `there is no connection to the Terminus server: does it run at ${names.url}?`)
    case 401:
      return unavailable(
        "unauthorized",
        `the Terminus server lets nobody in without its token (HTTP 401): is that the one in ${names.token}?`
      )
    case 404:
      return unavailable("refused", `there is no OpenEnv server at ${names.url} (HTTP 404): is that its base URL?`)
    default:
      return unavailable("refused", `the server at ${names.url} refuses the connection (HTTP ${status})`)
  }
}

// Errors after which it is certain that a reset had no effect. None where it isn't.
const refusalOf = (error: Client.EnvironmentRefused): Option.Option<SandboxUnavailable> => {
  switch (error.code) {
    case "CAPACITY_REACHED":
      return Option.some(
        unavailable("quota", "the Terminus server has no session left: wait, run fewer at once, or let it have more")
      )
    case "FACTORY_ERROR":
    case "INVALID_JSON":
    case "UNKNOWN_TYPE":
    case "VALIDATION_ERROR":
      return Option.some(
        unavailable(
          "refused",
          `the Terminus server refuses to begin (${error.code})`
            + (error.code === "VALIDATION_ERROR" ? "; is it a Terminus server?" : "")
        )
      )
    default:
      return Option.none()
  }
}

const misnamed = (detail: string) => new ProtocolViolation({ operation: "create", detail })

// ----------------------------------------------------------------------------
// replies
// ----------------------------------------------------------------------------

const decodeId = Schema.decodeUnknownOption(SandboxId)

const decodeReset = Schema.decodeUnknownOption(Terminus.ResetMetadata)

// Servers differ in where a tool's text stands.
const ToolResult = Schema.Struct({
  is_error: Schema.optionalWith(Schema.Boolean, { exact: true, default: () => false }),
  structured_content: Schema.optionalWith(Schema.NullOr(Schema.Struct({ result: Schema.String })), { exact: true }),
  data: Schema.optionalWith(Schema.NullOr(Schema.String), { exact: true })
})

const decodeTool = Schema.decodeUnknownOption(Schema.Struct({
  result: Schema.NullOr(ToolResult),
  error: Schema.optionalWith(Schema.NullOr(Schema.Struct({ error_type: Schema.String })), { exact: true })
}))

/** What the tool printed; none where it says that it failed, and nothing where it isn't a tool that answered. */
const textOf = (observation: Readonly<Record<string, unknown>>): Option.Option<Option.Option<string>> =>
  Option.flatMap(decodeTool(observation), ({ error, result }) => {
    if (error !== null && error !== undefined || result?.is_error === true) {
      return Option.some(Option.none())
    }
    return Option.map(Option.fromNullable(result?.structured_content?.result ?? result?.data), Option.some)
  })

// ----------------------------------------------------------------------------
// commands
// ----------------------------------------------------------------------------

// A guest keeps the reply from coming.
const unanswered: Ran = { reply: { isReady: true, candidates: [] }, result: Option.none(), isOverdue: true }

const tool = "terminal"

const rescueLimit = Duration.seconds(3)

// Each wait has a budget of its own. This is for whoever asks without one.
const replyTimeoutOf = ({ allocation, commandResponse, verifierResponse }: Budgets): Duration.Duration =>
  [commandResponse, verifierResponse].reduce(Order.max(Duration.Order), allocation).pipe(Duration.sum("1 minute"))

const carries = (labels: Labels, wanted: Labels): boolean =>
  Object.entries(wanted).every(([key, value]) => labels[key] === value)

const sameBytes = (bytes: Uint8Array, text: string): boolean => new TextDecoder().decode(bytes) === text

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

/**
 * A provider whose policy sandboxes a Terminus server makes. The one in the context is its control connection. Sessions
 * last until their sandbox is destroyed, at the latest until the scope ends.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = (
  options: Options
): Effect.Effect<Provider, never, SandboxProvider | Socket.WebSocketConstructor | Scope.Scope> =>
  Effect.gen(function*() {
    const inner = yield* SandboxProvider
    const context = yield* Effect.context<Socket.WebSocketConstructor>()
    const ownScope = yield* Effect.scope
    const setup = options.setup ?? defaults.setup
    const longestLine = options.maxCommandBytes ?? defaults.maxCommandBytes
    const names = options.names ?? defaults.names
    const allHeld = new Set<Held>()

    const holderOf = (id: SandboxId) => [...allHeld].find((held) => held.id === id)

    // The server deletes what a session of its has, when that is closed. Whether it does is of no interest here.
    const disconnect = ({ scope }: Held) =>
      Effect.gen(function*() {
        const budgets = yield* CurrentBudgets
        const closing = yield* Effect.forkDaemon(Scope.close(scope, Exit.void))
        yield* Effect.timeoutOption(Effect.interruptible(Fiber.join(closing)), budgets.control)
      })

    // ------------------------------------------------------------------------
    // adopting
    // ------------------------------------------------------------------------

    // The way to a sandbox that the server named, found once. Only what the server has written tells that it is the
    // one.
    const adopt = (held: Held, id: SandboxId): Effect.Effect<Sandbox, SandboxFault> =>
      held.control !== undefined ? Effect.succeed(held.control) : Effect.gen(function*() {
        const control = yield* inner.attach(id, "policy")
        const found = yield* control.readFile(held.place, { maxBytes: held.word.length })
        if (found._tag !== "Bytes" || !sameBytes(found.bytes, held.word)) {
          return yield* new ProtocolViolation({
            operation: "attach",
            sandboxId: id,
            detail: "the Terminus server names a sandbox in which it isn't at work"
          })
        }
        held.control = control
        return control
      })

    // ------------------------------------------------------------------------
    // creating
    // ------------------------------------------------------------------------

    // Servers before 0.8 leave metadata out of an observation, and say in their state which sandbox it is.
    const idInState = (client: Client.Client) => Effect.map(client.state, (state) => state["sandbox_id"])

    const nameIt = (held: Held, name: unknown): Effect.Effect<SandboxId, ProtocolViolation> => {
      const id = Option.getOrUndefined(decodeId(name))
      if (id === undefined) {
        return misnamed("the Terminus server doesn't say which sandbox it has made")
      }
      const holder = holderOf(id)
      if (holder !== undefined && holder !== held) {
        return misnamed("the Terminus server names a sandbox that another episode has")
      }
      held.id = id
      return Effect.succeed(id)
    }

    const uncertain = (held: Held, spec: SandboxSpec) =>
      new AllocationUncertain({
        operation: "create",
        role: spec.role,
        allocation: held.allocation,
        lifetime: spec.lifetime
      })

    const elsewhere = (id: SandboxId) =>
      new TransportFailed({
        operation: "attach",
        sandboxId: id,
        detail:
          `the ${inner.name} provider doesn't know the Terminus server's sandbox ${id}; it may be somewhere else, and `
          + `${names.sandboxes} says where it is looked for`
      })

    const unreached = (id: SandboxId, detail: string) =>
      new TransportFailed({
        operation: "attach",
        sandboxId: id,
        detail: `the ${inner.name} provider, with which the Terminus server's sandbox is looked for, can't reach it: `
          + `${detail}; ${names.sandboxes} says where it is looked for`
      })

    // What a reset without an observation means. Where the session is still there, it may know of a sandbox.
    const notReset = (held: Held, spec: SandboxSpec, client: Client.Client) =>
      Effect.fnUntraced(function*(error: Client.ClientError) {
        if (error._tag === "ConnectionLost" || error._tag === "ReplyMissed") {
          return yield* uncertain(held, spec)
        }
        if (error._tag === "EnvironmentRefused") {
          const refusal = refusalOf(error)
          if (Option.isSome(refusal)) {
            return yield* refusal.value
          }
          yield* idInState(client).pipe(
            Effect.flatMap((name) => nameIt(held, name)),
            Effect.ignore
          )
        }
        return yield* faultOf("create", held.id)(error)
      })

    const open = Effect.fnUntraced(function*(held: Held, spec: SandboxSpec) {
      const budgets = yield* CurrentBudgets
      const client = yield* Client.connect({ url: options.url, replyTimeout: replyTimeoutOf(budgets) }).pipe(
        Scope.extend(held.scope),
        Effect.provide(context),
        Effect.mapError(unconnected(names))
      )
      const { done, metadata } = yield* client.reset({
        episode_id: held.allocation,
        setup: [`printf %s ${held.word} >${held.place} && chmod 644 ${held.place}`, ...setup],
        // One that is there, so that an answer ends an episode; what comes of it is ignored.
        verify: ["true"]
      }).pipe(Effect.catchAll(notReset(held, spec, client)))
      const told = decodeReset(metadata)
      const named = metadata["sandbox_id"]
      const name = typeof named === "string" ? named : yield* Effect.mapError(
        idInState(client),
        (error) => error._tag === "ProtocolViolation" ? faultOf("create")(error) : uncertain(held, spec)
      )
      const isSilent = Object.keys(metadata).length === 0
      const status = isSilent ? done ? "error" : "ready" : Option.getOrUndefined(told)?.status
      if (status === "error" && (name === null || name === undefined)) {
        return yield* unavailable("refused", "the Terminus server couldn't make a sandbox: its own log says why")
      }
      const id = yield* nameIt(held, name)
      if (status !== "ready") {
        return yield* status === "error"
          ? new TransportFailed({
            operation: "create",
            sandboxId: id,
            detail: "the Terminus server has made a sandbox and couldn't prepare it"
          })
          : misnamed("the Terminus server doesn't say whether its sandbox is ready")
      }
      const control = yield* Effect.catchTags(adopt(held, id), {
        SandboxLost: () => elsewhere(id),
        TransportFailed: ({ detail }) => unreached(id, detail)
      })
      const session: Session = { client, id, control, scope: held.scope, held: Option.none() }
      yield* probe(session)
      return handle(session)
    })

    // What is known of a sandbox by now decides whether it can be found and deleted, so it is looked at before the
    // server is told to forget it.
    const giveUp = (held: Held) =>
      Effect.suspend(() => {
        held.isGivenUp = true
        if (held.id === undefined) {
          allHeld.delete(held)
          return disconnect(held)
        }
        const adopting = Effect.interruptible(adopt(held, held.id))
        return CurrentBudgets.pipe(
          Effect.flatMap((budgets) => Effect.timeoutOption(adopting, budgets.control)),
          Effect.exit,
          Effect.zipRight(disconnect(held))
        )
      })

    const createPolicy = (spec: SandboxSpec): Effect.Effect<Sandbox, CreateFault> =>
      Effect.uninterruptibleMask((restore) =>
        Effect.gen(function*() {
          const word = yield* Guest.freshMark
          const held: Held = {
            allocation: spec.labels[allocationLabel] ?? word,
            labels: spec.labels,
            word,
            place: SandboxPath.make(`/tmp/.episode-${word}`),
            scope: yield* Scope.fork(ownScope, ExecutionStrategy.sequential),
            isGivenUp: false
          }
          allHeld.add(held)
          return yield* restore(open(held, spec)).pipe(Effect.onError(() => giveUp(held)))
        })
      ).pipe(Effect.withSpan("Terminus.create"))

    const create = (spec: SandboxSpec): Effect.Effect<Sandbox, CreateFault> =>
      spec.role === "verifier"
        ? inner.create(spec)
        : spec.network === "offline" || spec.templateId !== undefined
        ? unavailable(
          "unsupported",
          "the network and the template of its sandboxes are the Terminus server's own to choose"
        )
        : createPolicy(spec)

    // ------------------------------------------------------------------------
    // using
    // ------------------------------------------------------------------------

    const answerOf = ({ control, id }: Session, observation: Readonly<Record<string, unknown>>) =>
      Option.match(textOf(observation), {
        onNone: () =>
          new ProtocolViolation({
            operation: "exec",
            sandboxId: id,
            detail: "what the Terminus server answered is no result of a tool"
          }),
        onSome: Option.match({
          // How a command ends is no failure of the tool. What isn't an answer is never taken for one.
          onNone: () =>
            Effect.zipRight(
              control.health,
              new TransportFailed({
                operation: "exec",
                sandboxId: id,
                detail: "the Terminus server's tool couldn't run a command"
              })
            ),
          onSome: Effect.succeed
        })
      })

    // Ends a command that should have ended by itself, and lets go on what was stopped. `held`: a guest has a hand in all that
    // runs there, as a program that does nothing but look doesn't come to its end.
    const rescue = (
      { control }: Session,
      mark: string
    ): Effect.Effect<"untouched" | "stopped" | "held", SandboxFault> =>
      Effect.map(
        control.exec(Guest.rescue(mark), { timeLimit: rescueLimit, outputCap: 64 }),
        ({ exitCode, stdout }) =>
          exitCode === 0 && sameBytes(stdout.head, Guest.untouched)
            ? "untouched"
            : exitCode === 0 && sameBytes(stdout.head, Guest.stoppedSome)
            ? "stopped"
            : "held"
      )

    // Whether a guest keeps a reply from coming. That something was stopped isn't enough: it may have been long ago, and the
    // server be what is silent. So it is looked at again when what was stopped has had time to go on.
    const isKept = (session: Session, calling: Calling, mark: string): Effect.Effect<boolean, SandboxFault> =>
      Effect.gen(function*() {
        const found = yield* rescue(session, mark)
        if (found === "untouched" || Option.isSome(yield* Effect.timeoutOption(Fiber.await(calling), Guest.grace))) {
          return false
        }
        return found === "held" || (yield* rescue(session, mark)) !== "untouched"
      })

    // One command, by the server's tool. None where it is too long for that.
    const run = Effect.fnUntraced(function*(session: Session, command: string, limits: ExecLimits) {
      const { client } = session
      if (Option.isSome(session.held)) {
        if (Option.isNone(yield* Fiber.poll(session.held.value))) {
          return Option.some(unanswered)
        }
        session.held = Option.none()
      }
      const mark = yield* Guest.freshMark
      const line = Guest.run(mark, command, limits).pipe(
        Option.flatMap(Guest.commandLine),
        // It is all ASCII.
        Option.filter((line) => line.length <= longestLine)
      )
      if (Option.isNone(line)) {
        return Option.none<Ran>()
      }
      const calling = yield* client.callTool(tool, { command: line.value }).pipe(
        Effect.interruptible,
        Effect.forkIn(session.scope)
      )
      return yield* outcomeOf(session, calling, mark, limits).pipe(
        // Nobody else waits for it: so the connection is of no more use.
        Effect.onInterrupt(() => Fiber.interruptFork(calling))
      )
    })

    const outcomeOf = Effect.fnUntraced(
      function*(session: Session, calling: Calling, mark: string, limits: ExecLimits) {
        const { control, id } = session
        const limit = Duration.sum(limits.timeLimit, Guest.grace)
        const isOverdue = Option.isNone(yield* Effect.timeoutOption(Fiber.await(calling), limit))
        if (isOverdue && (yield* isKept(session, calling, mark))) {
          session.held = Option.some(calling)
          return Option.some(unanswered)
        }
        const { observation } = yield* Effect.catchAll(Fiber.join(calling), (error) =>
          Effect.zipRight(
            // The control connection may know better why: a server's error or its silence can have its reason there.
            error._tag === "EnvironmentRefused" || error._tag === "ConnectionLost" ? control.health : Effect.void,
            Effect.fail(faultOf("exec", id)(error))
          ))
        const reply = Guest.replyInText(mark, yield* answerOf(session, observation))
        return Option.some<Ran>({ reply, result: Guest.endIn(reply, limits), isOverdue })
      }
    )

    // Whether our program runs there, and whether its longest reply comes back whole, is found out while nobody else
    // can have a hand in it. From then on a reply that isn't there is a guest's doing.
    const probe = Effect.fnUntraced(function*(session: Session) {
      const { commandLimit, observationCap: outputCap } = yield* CurrentBudgets
      const flood = `head -c ${outputCap} /dev/zero`
      const ran = yield* run(session, `${flood}; ${flood} >&2`, { timeLimit: commandLimit, outputCap })
      const isWhole = Option.flatMap(ran, ({ result }) => result).pipe(
        Option.exists(({ stderr, stdout }) => stdout.totalBytes === outputCap && stderr.totalBytes === outputCap)
      )
      if (!isWhole) {
        return yield* new ProtocolViolation({
          operation: "exec",
          sandboxId: session.id,
          detail: Option.exists(ran, ({ reply }) => reply.isReady)
            ? `the Terminus server doesn't pass on outputs of ${2 * outputCap} bytes as they are`
            : Guest.noPython
        })
      }
    })

    const handle = (session: Session): Sandbox => {
      const { control, id } = session

      const exec = Effect.fn("Terminus.exec")(function*(command: string, limits: ExecLimits) {
        const ran = yield* run(session, command, limits)
        if (Option.isNone(ran)) {
          return Guest.notRun("Argument list too long", limits)
        }
        const { isOverdue, result } = ran.value
        if (Option.isSome(result)) {
          return result.value
        }
        // As long as the sandbox lives, a guest has seen to that: it can end our program, or write in its place.
        yield* control.health
        return Guest.stopped(isOverdue)
      })

      return {
        id,
        role: "policy",
        get resources() {
          return control.resources
        },
        exec,
        readFile: (path, limits) => control.readFile(path, limits),
        writeFiles: (files) => control.writeFiles(files),
        health: control.health,
        extend: (lifetime) => control.extend(lifetime)
      }
    }

    // ------------------------------------------------------------------------
    // deleting
    // ------------------------------------------------------------------------

    const destroy = (id: SandboxId): Effect.Effect<void, SandboxFault> =>
      Effect.suspend(() => {
        const held = holderOf(id)
        return held === undefined ? inner.destroy(id) : inner.destroy(id).pipe(
          Effect.zipLeft(Effect.sync(() => allHeld.delete(held))),
          // Afterwards, so that a command under way is told that its sandbox is gone, and not that we are.
          Effect.ensuring(disconnect(held))
        )
      }).pipe(Effect.withSpan("Terminus.destroy"))

    // A sandbox of a failed create is found when it was seen, also if it is gone by now: then its absence can be
    // proved.
    const isFound = (held: Held, id: SandboxId): Effect.Effect<boolean, SandboxFault> =>
      held.isGivenUp || held.control === undefined
        ? Effect.as(adopt(held, id), true).pipe(
          Effect.catchTags({
            SandboxLost: () => Effect.succeed(false),
            ProtocolViolation: () => Effect.succeed(false)
          })
        )
        : Effect.map(inner.inspect(id), (state) => state === "running")

    const find = Effect.fn("Terminus.find")(function*(labels: Labels) {
      const found = new Map<SandboxId, SandboxSummary>()
      for (const held of allHeld) {
        if (held.id !== undefined && carries(held.labels, labels) && (yield* isFound(held, held.id))) {
          found.set(held.id, { id: held.id, labels: held.labels })
        }
      }
      const allocation = labels[allocationLabel]
      if (allocation !== undefined && found.size > 0) {
        return [...found.values()]
      }
      // Verifiers have their labels; and a Terminus server of ours gives its sandboxes the name of the episode.
      const others = yield* Effect.forEach(
        allocation === undefined ? [labels] : [labels, { [Terminus.episodeLabel]: allocation }],
        (labels) => inner.find(labels),
        { concurrency: 2 }
      )
      for (const summary of others.flat()) {
        if (!found.has(summary.id)) {
          found.set(summary.id, summary)
        }
      }
      return [...found.values()]
    })

    return {
      name: "openenv",
      allocationPacing: inner.allocationPacing,
      create,
      attach: inner.attach,
      destroy,
      inspect: inner.inspect,
      find
    }
  })

// ----------------------------------------------------------------------------
// layers
// ----------------------------------------------------------------------------

/**
 * @example
 * ```ts
 * import * as Layer from "effect/Layer"
 * import * as NodeTransport from "episode/OpenEnv/NodeTransport"
 * import * as TerminusProvider from "episode/OpenEnv/TerminusProvider"
 * import * as Local from "episode/Sandbox/Local"
 *
 * const SandboxLive = TerminusProvider.layer({ url: "ws://127.0.0.1:8011" }).pipe(
 *   Layer.provide(NodeTransport.layerWebSocketConstructor({ headers: { authorization: "Bearer 0123" } })),
 *   Layer.provide(Local.layer())
 * )
 * ```
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (
  options: Options
): Layer.Layer<SandboxProvider, never, SandboxProvider | Socket.WebSocketConstructor> =>
  Layer.scoped(SandboxProvider, make(options))

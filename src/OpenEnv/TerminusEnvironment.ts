/**
 * The native Terminus environment: a bare terminal in one sandbox, with commands of the client's own before and after.
 *
 * Its reward is what upstream's is, and no more to be trusted: the verify commands run where the policy worked. Only the
 * file by which a policy could write its own reward is never read. What our own episodes are worth is decided elsewhere.
 *
 * Unlike upstream, a sandbox that an episode can't go on with is deleted at once, and its absence proved: after a setup
 * that failed, after a failure of the infrastructure, and after a request that was cut off.
 *
 * @since 0.1.0
 */
import * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Exit from "effect/Exit"
import * as JSONSchema from "effect/JSONSchema"
import * as Option from "effect/Option"
import * as Ref from "effect/Ref"
import * as Scope from "effect/Scope"
import { type BudgetExceeded, CurrentBudgets } from "../Budgets.ts"
import * as Observations from "../Episode/Observation.ts"
import type { InfrastructureError } from "../Episode/Outcome.ts"
import { EpisodeInterrupted } from "../Episode/Outcome.ts"
import type { Restore } from "../internal/requests.ts"
import * as Requests from "../internal/requests.ts"
import type { Phase, Sandbox } from "../Sandbox.ts"
import { CleanupUnresolved } from "../Sandbox.ts"
import { call as request } from "../Sandbox/Call.ts"
import * as Journal from "../Sandbox/Journal.ts"
import { Sandboxes } from "../Sandbox/Sandboxes.ts"
import type { Environment, Kind, RequestRefused } from "./Environment.ts"
import * as Environments from "./Environment.ts"
import * as Terminus from "./Terminus.ts"
import * as Wire from "./Wire.ts"

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /** Arguments of `reset` that are taken and ignored. */
  readonly columns: ReadonlySet<string>
  /** The longest command, in bytes. */
  readonly maxCommandBytes: number
  /** After this long the provider ends a sandbox by itself. */
  readonly lifetime: Duration.Duration
  /** How long one command may take: a setup's, the policy's, or a verification's. */
  readonly commandLimit: Duration.Duration
  /** What is kept of one stream of a command, in bytes: head and tail. */
  readonly outputCap: number
}

// ----------------------------------------------------------------------------
// the tool
// ----------------------------------------------------------------------------

const tools: Kind["tools"] = [
  {
    name: "terminal",
    description: "Run one shell command in a fresh bash in /home/user and get its output, or hand in a final answer. "
      + "With an answer the command isn't run.",
    input_schema: {
      type: "object",
      properties: {
        command: { type: "string", default: "", description: "The command line to run." },
        final_answer: { type: "string", default: "", description: "The answer; the verify commands run on it." }
      },
      additionalProperties: false
    }
  }
]

type Call =
  | { readonly _tag: "Command"; readonly command: string }
  | { readonly _tag: "Answer"; readonly answer: string }
  | { readonly _tag: "Neither" }

const readCall = (
  name: string,
  args: Readonly<Record<string, unknown>>,
  maxCommandBytes: number
): Either.Either<Call, Wire.ToolError> => {
  if (name !== "terminal") {
    return Either.left({ error_type: "tool_not_found", message: "there is no such tool; the only one is terminal" })
  }
  const invalid = (message: string): Wire.ToolError => ({ error_type: "invalid_args", message: `terminal: ${message}` })
  return Either.flatMap(
    Either.mapLeft(Terminus.TerminalArguments(args), (issues) => invalid(Environments.said(issues))),
    ({ command = "", final_answer: answer = "" }) => {
      if (answer !== "") {
        return Either.right<Call>({ _tag: "Answer", answer })
      }
      const issue = Environments.commandIssue(command, maxCommandBytes)
      return issue !== undefined
        ? Either.left(invalid(issue))
        : Either.right<Call>(command.trim() === "" ? { _tag: "Neither" } : { _tag: "Command", command })
    }
  )
}

// ----------------------------------------------------------------------------
// the arguments of reset
// ----------------------------------------------------------------------------

interface Asked {
  readonly name: string | undefined
  readonly setup: ReadonlyArray<string>
  readonly verify: ReadonlyArray<string>
}

// As many as state can show.
const maxCommands = 256

const decodeReset = Wire.strict(Terminus.ResetArguments)

const readReset = (
  given: Readonly<Record<string, unknown>>,
  known: ReadonlySet<string>,
  maxCommandBytes: number
): Either.Either<Asked, RequestRefused> =>
  Either.flatMap(
    Either.mapLeft(decodeReset(given), (issues) => Environments.refused("the arguments are not valid", issues)),
    (args) => {
      const issues = [...Environments.unknownArguments(args, known)]
      const report = (loc: ReadonlyArray<string | number>, msg: string) =>
        issues.push({ type: "value_error", loc, msg })
      const commands = (name: "setup" | "verify"): ReadonlyArray<string> => {
        const other = `${name}_scripts` as const
        const value = args[name] ?? args[other] ?? []
        if (!isAbsent(args[name]) && !isAbsent(args[other])) {
          report([other], `is another name of ${name}; give one of them`)
        }
        const lines = (typeof value === "string" ? [value] : value).filter((line) => line.trim() !== "")
        if (lines.length > maxCommands) {
          report([name], `at most ${maxCommands} commands, not ${lines.length}`)
        }
        for (const [index, line] of lines.slice(0, maxCommands).entries()) {
          const issue = Environments.commandIssue(line, maxCommandBytes)
          if (issue !== undefined) {
            report([name, index], issue)
          }
        }
        return lines
      }
      // No name is as good as none.
      const name = args.episode_id === null || args.episode_id === "" ? undefined : args.episode_id
      const asked = { name, setup: commands("setup"), verify: commands("verify") }
      return issues.length === 0
        ? Either.right(asked)
        : Either.left(Environments.refused("the arguments are not valid", issues.slice(0, 20)))
    }
  )

const isAbsent = (value: unknown): boolean => value === undefined || value === null

// ----------------------------------------------------------------------------
// results
// ----------------------------------------------------------------------------

// How many of the policy's commands state keeps. All of it was said once, in a reply.
const maxRecords = 64

// What it keeps of all the texts of one sort, in bytes as they are sent. There are seven sorts, and state is one reply.
const sortCap = 1024 * 1024

// What it keeps of one of them, where there are so many.
const recordCap = (count: number): number => Math.min(16 * 1024, sortCap / count)

type CommandRecord = Terminus.State["commands"][number]

/** What came of one command. */
interface Ran {
  readonly text: string
  readonly record: CommandRecord
  readonly meta: Readonly<Record<string, unknown>>
}

const ran = (
  command: string,
  observed: Observations.Observation,
  limit: Duration.Duration,
  recordCap: number
): Ran => {
  const { exitCode, killedAtLimit, stderr, stdout, truncated } = observed
  // The words that upstream has them from: a program that it runs, and what ends it.
  const error = killedAtLimit
    ? `TimeoutExpired: killed after ${Duration.format(limit)}`
    : exitCode === 0
    ? null
    : `SystemExit: ${exitCode}`
  const blocks = [stdout.trimEnd(), stderr.trimEnd(), error === null ? "" : `ERROR:\n${error}`]
  const text = blocks.filter((block) => block !== "").join("\n") || "(no output)"
  return {
    text,
    record: {
      command: Environments.excerpt(command, recordCap),
      output: Environments.excerpt(text, recordCap),
      error,
      success: error === null
    },
    meta: { exit_code: exitCode, killed_at_limit: killedAtLimit, truncated }
  }
}

/** What the tool says. */
interface Said {
  readonly text: string
  readonly meta: Readonly<Record<string, unknown>> | null
}

const toResult = ({ meta, text }: Said): Wire.CallToolResult => Environments.toResult(text, meta)

// A fraction as Python writes it: it stands in a text that clients of upstream read.
const written = (reward: number): string => Number.isInteger(reward) ? reward.toFixed(1) : String(reward)

// ----------------------------------------------------------------------------
// answers
// ----------------------------------------------------------------------------

const idle: Terminus.State = {
  episode_id: null,
  step_count: 0,
  sandbox_id: null,
  setup_results: [],
  verify_commands: [],
  verify_results: [],
  commands: [],
  submitted_answer: null,
  last_reward: null,
  last_error: null
}

interface Envelope {
  readonly reward: number | null
  readonly done: boolean
  readonly metadata: Terminus.StepMetadata | Terminus.ResetMetadata
}

const envelope = (
  { done, metadata, reward }: Envelope,
  observation: Readonly<Record<string, unknown>> = {}
): Wire.StepResult => ({ observation: { ...observation, metadata }, reward, done, metadata })

// A bare sandbox is made with it, for verify commands that write there. Nothing in it is ever read.
const makeLogs = "mkdir -p /home/user/logs/verifier"

// ----------------------------------------------------------------------------
// episodes
// ----------------------------------------------------------------------------

interface Episode {
  readonly journal: Journal.Journal
  readonly scope: Scope.CloseableScope
}

interface Active extends Episode {
  readonly sandbox: Sandbox
  readonly verify: ReadonlyArray<string>
}

type Standing =
  /** Before a reset, and after one that failed. */
  | { readonly _tag: "Idle" }
  | { readonly _tag: "Active"; readonly episode: Active }
  /** What the infrastructure failed with is the answer to everything until the next reset. */
  | { readonly _tag: "Failed"; readonly error: InfrastructureError }

const begin: Effect.Effect<Episode> = Effect.zipWith(Journal.make, Scope.make(), (journal, scope) => ({
  // Which sandboxes there were, and whether they are gone. Its requests are no part of a receipt here, and may be many.
  journal: { ...journal, operation: () => (effect) => effect },
  scope
}))

// Deletes what an episode holds. Some where that isn't proved gone.
const end = ({ journal, scope }: Episode): Effect.Effect<Option.Option<CleanupUnresolved>> =>
  Scope.close(scope, Exit.void).pipe(
    Effect.zipRight(journal.resources),
    Effect.map((resources) => {
      const left = resources.filter(({ confirmedAbsentAt }) => confirmedAbsentAt === null).map((resource) => ({
        sandboxId: resource.id,
        role: resource.role,
        attempts: resource.deleteAttempts
      }))
      return Arr.isNonEmptyReadonlyArray(left)
        ? Option.some(new CleanupUnresolved({ operation: "destroy", phase: "policy-cleanup", sandboxes: left }))
        : Option.none()
    })
  )

// The sandbox that is still there, as far as an error knows of one.
const leftBy = (error: InfrastructureError): string | null =>
  error._tag === "CleanupUnresolved" ? error.sandboxes[0].sandboxId : null

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

/**
 * Terminus environments, as they are served.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = Effect.fnUntraced(function*(options: Options) {
  const sandboxes = yield* Sandboxes
  const budgets = yield* CurrentBudgets
  // The command ends first: what comes after it is the way of its reply.
  const responseLimit = Duration.sum(options.commandLimit, budgets.control)
  const known = new Set([...Object.keys(Terminus.ResetArguments.fields), ...options.columns])

  // `among`: of how many commands it is one.
  const run = (sandbox: Sandbox, phase: Phase, command: string, among = 1) =>
    sandbox.exec(command, { timeLimit: options.commandLimit, outputCap: options.outputCap }).pipe(
      request({ operation: "exec", phase, sandboxId: sandbox.id, budget: "commandResponse", limit: responseLimit }),
      Effect.map((result) => ran(command, Observations.fromResult(result), options.commandLimit, recordCap(among)))
    )

  const acquire = (episode: Episode, name: string | undefined) =>
    sandboxes.acquire({
      role: "policy",
      lifetime: options.lifetime,
      network: "default",
      labels: name === undefined ? {} : { [Terminus.episodeLabel]: name },
      phases: { create: "reset", cleanup: "policy-cleanup" }
    }).pipe(Scope.extend(episode.scope))

  const open: Kind["open"] = Effect.gen(function*() {
    const current = yield* Ref.make<Standing>({ _tag: "Idle" })
    const told = yield* Ref.make<Terminus.State>(idle)
    const requests = yield* Requests.make
    const { inTurn } = requests

    const tell = (change: Partial<Terminus.State>) => Ref.update(told, (state) => ({ ...state, ...change }))

    // Runs a request's work. When it doesn't succeed, for whatever reason, the episode is over: what was done isn't known.
    const attempt = <A>(
      episode: Episode,
      phase: Phase,
      restore: Restore,
      work: Effect.Effect<A, InfrastructureError | BudgetExceeded>
    ): Effect.Effect<A, InfrastructureError> =>
      requests.work(
        restore,
        work.pipe(
          // A budget around a request: there is none.
          Effect.catchTag("BudgetExceeded", Effect.die),
          Effect.provideService(Journal.CurrentJournal, episode.journal)
        )
      ).pipe(
        Effect.catchAllCause((cause) =>
          Effect.gen(function*() {
            const fault = Option.getOrUndefined(Cause.failureOption(cause))
            const left = yield* end(episode)
            const error = Option.getOrElse(
              left,
              () => fault === undefined || fault === "closing" ? new EpisodeInterrupted({ phase }) : fault
            )
            yield* Ref.set(current, { _tag: "Failed", error })
            yield* tell({ sandbox_id: leftBy(error), last_error: error.message })
            // An interruption, or a bug, goes on as what it is.
            return yield* fault === undefined ? Effect.failCause(Cause.stripFailures(cause)) : Effect.fail(error)
          })
        )
      )

    // ------------------------------------------------------------------------
    // reset
    // ------------------------------------------------------------------------

    // No error frame: it's an episode that is over before it began, and upstream's clients look at its status.
    const notReady = (
      sandboxId: string | null,
      about: {
        readonly message: string
        readonly error?: string
        readonly setup_results?: ReadonlyArray<CommandRecord>
      }
    ) =>
      Effect.as(
        Effect.zipRight(
          Ref.set(current, { _tag: "Idle" }),
          tell({ sandbox_id: sandboxId, last_error: about.error ?? about.message })
        ),
        envelope({
          done: true,
          reward: null,
          metadata: { status: "error", ...(sandboxId === null ? {} : { sandbox_id: sandboxId }), ...about }
        })
      )

    const failed = (error: InfrastructureError) =>
      notReady(leftBy(error), {
        error: `${error._tag}: ${error.message}`,
        message: leftBy(error) === null
          ? "There is no environment, and reset left no sandbox that is known of."
          : "There is no environment, and a sandbox is not proved gone."
      })

    const prepare = (episode: Episode, { name, setup }: Asked) =>
      Effect.gen(function*() {
        const { sandbox } = yield* acquire(episode, name)
        yield* tell({ sandbox_id: sandbox.id })
        yield* run(sandbox, "reset", makeLogs)
        const results: Array<CommandRecord> = []
        for (const command of setup) {
          const { record } = yield* run(sandbox, "reset", command, setup.length)
          results.push(record)
          yield* tell({ setup_results: [...results] })
          if (!record.success) {
            break
          }
        }
        return { sandbox, results }
      })

    const start = (asked: Asked, restore: Restore) =>
      Effect.gen(function*() {
        const { setup, verify } = asked
        const episode = yield* begin
        const { results, sandbox } = yield* attempt(episode, "reset", restore, prepare(episode, asked))
        if (results.some(({ success }) => !success)) {
          const left = yield* end(episode)
          return yield* notReady(Option.getOrNull(Option.map(left, leftBy)), {
            message: `Setup command failed. ${
              Option.match(left, {
                onNone: () => "The sandbox is deleted, absence confirmed.",
                onSome: ({ message }) => `The sandbox is ${message}.`
              })
            }`,
            setup_results: results
          })
        }
        yield* Ref.set(current, { _tag: "Active", episode: { ...episode, sandbox, verify } })
        return envelope({
          done: false,
          reward: null,
          metadata: {
            status: "ready",
            sandbox_id: sandbox.id,
            message: "Terminus environment ready: call terminal with a command, or with a final_answer."
              + (setup.length === 0 ? "" : ` Setup commands run: ${setup.length}.`)
              + (verify.length === 0 ? "" : ` Verify commands registered: ${verify.length}.`),
            setup_results: results,
            verify_commands: verify
          }
        })
      })

    const reset: Environment["reset"] = (args) =>
      Effect.flatMap(
        readReset(args, known, options.maxCommandBytes),
        (asked) =>
          inTurn((restore) =>
            Effect.gen(function*() {
              if (yield* requests.isClosing) {
                return yield* new EpisodeInterrupted({ phase: "reset" })
              }
              const { name, verify } = asked
              const episodeId = name ?? (yield* Effect.sync(() => globalThis.crypto.randomUUID()))
              yield* Ref.set(told, { ...idle, episode_id: episodeId, verify_commands: verify })
              const before = yield* Ref.get(current)
              const left = before._tag === "Active" ? yield* end(before.episode) : Option.none()
              // One sandbox at a time: an old one that may be there is in the way of a new one.
              return yield* Option.match(left, { onNone: () => start(asked, restore), onSome: Effect.fail })
            }).pipe(Effect.catchAll(failed))
          )
      )

    // ------------------------------------------------------------------------
    // the terminal
    // ------------------------------------------------------------------------

    const execute = (episode: Active, restore: Restore, command: string) =>
      Effect.gen(function*() {
        const { meta, record, text } = yield* attempt(
          episode,
          "policy",
          restore,
          run(episode.sandbox, "policy", command, maxRecords)
        )
        yield* Ref.update(told, (state) => ({
          ...state,
          commands: [...state.commands, record].slice(-maxRecords)
        }))
        return { text, meta }
      })

    const submit = (episode: Active, restore: Restore, answer: string) =>
      Effect.gen(function*() {
        const { sandbox, verify } = episode
        yield* tell({ submitted_answer: Environments.excerpt(answer, sortCap), verify_results: [], last_reward: null })
        if (verify.length === 0) {
          return { text: `Answer submitted: ${answer}`, meta: null }
        }
        const results = yield* attempt(
          episode,
          "verify",
          restore,
          Effect.zipRight(
            run(sandbox, "verify", makeLogs),
            Effect.forEach(verify, (command) =>
              Effect.map(run(sandbox, "verify", command, verify.length), ({ record }) => record))
          )
        )
        const total = results.length
        const passed = results.filter(({ success }) =>
          success
        ).length
        const reward = passed / total
        yield* tell({ verify_results: results, last_reward: reward })
        return {
          text: `Answer submitted: ${answer}\nVerification: ${passed}/${total} passed; reward=${written(reward)}`,
          meta: { passed, total, reward }
        }
      })

    const perform = (call: Call, hint = ""): Effect.Effect<Said, InfrastructureError> =>
      inTurn((restore) =>
        Effect.flatMap(Ref.get(current), (now): Effect.Effect<Said, InfrastructureError> => {
          switch (now._tag) {
            case "Idle":
              return Effect.succeed({
                text: `Error: environment not reset. A reset that succeeds comes before the terminal${hint}.`,
                meta: null
              })
            case "Failed":
              return Effect.fail(now.error)
            case "Active":
              return call._tag === "Command"
                ? execute(now.episode, restore, call.command)
                : call._tag === "Answer"
                ? submit(now.episode, restore, call.answer)
                : Effect.succeed({ text: "Error: command or final_answer is required.", meta: null })
          }
        })
      )

    // ------------------------------------------------------------------------
    // steps
    // ------------------------------------------------------------------------

    const standing = Effect.zipWith(
      Ref.get(current),
      Ref.get(told),
      (now, { episode_id, last_reward }): Either.Either<Envelope, InfrastructureError> => {
        const name = episode_id === null ? {} : { episode_id }
        switch (now._tag) {
          case "Idle":
            return Either.right({ reward: null, done: false, metadata: { status: "idle", graded: false, ...name } })
          case "Failed":
            return Either.left(now.error)
          case "Active":
            return Either.right(
              last_reward === null
                ? { reward: 0, done: false, metadata: { status: "active", graded: false, ...name } }
                : { reward: last_reward, done: true, metadata: { status: "finished", graded: true, ...name } }
            )
        }
      }
    ).pipe(Effect.flatten)

    // Counts what was taken on, also where it brought an error.
    const counted = Ref.update(told, (state) => ({ ...state, step_count: state.step_count + 1 }))

    const observe = (action: Wire.Action): Effect.Effect<Readonly<Record<string, unknown>>, InfrastructureError> => {
      if (action.type === "list_tools") {
        return Effect.succeed({ tools })
      }
      const { arguments: args = {} } = action
      const tool_name = Wire.shortened(action.tool_name)
      return Either.match(readCall(action.tool_name, args, options.maxCommandBytes), {
        onLeft: (error) => Effect.succeed({ tool_name, result: null, error }),
        onRight: (call) => Effect.map(perform(call), (said) => ({ tool_name, result: toResult(said), error: null }))
      })
    }

    const step: Environment["step"] = (action) =>
      counted.pipe(
        Effect.zipRight(observe(action)),
        Effect.zipWith(standing, (observation, standing) => envelope(standing, observation))
      )

    const call: Environment["call"] = (name, args) =>
      Either.match(readCall(name, args, options.maxCommandBytes), {
        onLeft: (error) => Effect.succeed(Either.left(error)),
        onRight: (call) =>
          Effect.map(perform(call, `; ${Environments.resetOverMcp}`), (said) => Either.right(toResult(said)))
      })

    yield* Effect.addFinalizer(() =>
      Effect.zipRight(
        requests.close,
        inTurn(() => Effect.flatMap(Ref.get(current), (now) => now._tag === "Active" ? end(now.episode) : Effect.void))
      )
    )

    return { reset, step, call, state: Ref.get(told) }
  })

  const kind: Kind = {
    name: "terminus",
    description: "A bare terminal in a disposable sandbox: setup commands before, verify commands on a final answer.",
    tools,
    schemas: {
      action: { ...JSONSchema.make(Wire.Action) },
      observation: { ...JSONSchema.make(Terminus.StepObservation) },
      reset_observation: { ...JSONSchema.make(Terminus.ResetObservation) },
      state: { ...JSONSchema.make(Terminus.State) }
    },
    reset: { schema: { ...JSONSchema.make(Terminus.ResetArguments) }, decode: decodeReset },
    idle,
    page: Option.none(),
    open
  }
  return kind
})

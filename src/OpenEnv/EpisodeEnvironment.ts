/**
 * An episode as an OpenEnv environment: reset, step and state in the words of the wire.
 *
 * The reward of a step is what the step added, so the rewards of an episode sum up to its score: 0 while nothing is graded,
 * and the score when the episode ends. `metadata.graded` tells one zero from the other. After the end every answer
 * repeats the score.
 *
 * @since 0.1.0
 */
import * as DateTime from "effect/DateTime"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as JSONSchema from "effect/JSONSchema"
import * as Option from "effect/Option"
import * as Ref from "effect/Ref"
import * as Schema from "effect/Schema"
import { Episode } from "../Episode.ts"
import type { Observation } from "../Episode/Observation.ts"
import * as Observations from "../Episode/Observation.ts"
import type { InfrastructureError } from "../Episode/Outcome.ts"
import type { EpisodeReceipt } from "../Episode/Receipt.ts"
import type { Session, SessionState } from "../Episode/Session.ts"
import { lexemes, strictly, stringOf } from "../internal/losslessJson.ts"
import type { Task } from "../Task.ts"
import * as Report from "../Task/Report.ts"
import type { Environment, EnvironmentError, Kind } from "./Environment.ts"
import * as Environments from "./Environment.ts"
import { RequestRefused } from "./Environment.ts"
import * as Page from "./Page.ts"
import * as Wire from "./Wire.ts"

const { refused } = Environments

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /** For a reset that names no task. */
  readonly task: Option.Option<Task>
  /** Arguments of `reset` that are taken and ignored. */
  readonly columns: ReadonlySet<string>
  /** The longest command, in bytes. */
  readonly maxCommandBytes: number
}

// ----------------------------------------------------------------------------
// tools
// ----------------------------------------------------------------------------

const tools: ReadonlyArray<typeof Wire.Tool.Type> = [
  {
    name: "terminal",
    description: "Run one shell command in a fresh bash in /home/user and get its output.",
    input_schema: {
      type: "object",
      properties: { command: { type: "string", description: "The command line to run." } },
      required: ["command"],
      additionalProperties: false
    }
  },
  {
    name: "submit",
    description: "Hand in the repaired file. This ends the episode: no command runs after it.",
    input_schema: { type: "object", properties: {}, additionalProperties: false }
  }
]

const encoder = new TextEncoder()

const terminalArguments = Wire.strict(Schema.Struct({ command: Schema.String }))

type Call = { readonly tool: "terminal"; readonly command: string } | { readonly tool: "submit" }

const readCall = (
  name: string,
  args: Readonly<Record<string, unknown>>,
  maxCommandBytes: number
): Either.Either<Call, Wire.ToolError> => {
  const invalid = (message: string): Wire.ToolError => ({ error_type: "invalid_args", message: `${name}: ${message}` })
  switch (name) {
    case "terminal":
      return Either.flatMap(
        Either.mapLeft(terminalArguments(args), (issues) => invalid(Environments.said(issues))),
        ({ command }) => {
          const issue = Environments.commandIssue(command, maxCommandBytes)
          return issue === undefined
            ? Either.right<Call>({ tool: "terminal", command })
            : Either.left(invalid(issue))
        }
      )
    case "submit":
      return Object.keys(args).length === 0
        ? Either.right({ tool: "submit" })
        : Either.left(invalid("it takes no arguments"))
    default:
      return Either.left({
        error_type: "tool_not_found",
        message: `there is no such tool; the tools are ${tools.map(({ name }) => name).join(" and ")}`
      })
  }
}

const toResult = (observation: Observation, meta: Readonly<Record<string, unknown>> = {}): Wire.CallToolResult =>
  Environments.toResult(Observations.render(observation), {
    exit_code: observation.exitCode,
    killed_at_limit: observation.killedAtLimit,
    truncated: observation.truncated,
    finished: observation.finished,
    ...meta
  })

// ----------------------------------------------------------------------------
// tasks
// ----------------------------------------------------------------------------

interface Level {
  readonly isObject: boolean
  /** The key whose value is being read. */
  key: string | undefined
}

/**
 * The `data.task` of a frame as it is written there, without white space: JavaScript's own reading would take `15.0` for
 * `15` and round long integers. None unless it occurs exactly once.
 */
const taskText = (frame: string): Option.Option<string> =>
  Option.flatMap(strictly(frame), (json) => {
    const levels: Array<Level> = []
    const found: Array<Array<string>> = []
    for (const { raw } of lexemes(json)) {
      const [top, data] = levels
      const level = levels.at(-1)
      const isTask = top?.key === "data" && data?.key === "task"
      const isBetween = levels.length === 2 && [":", ",", "}"].includes(raw)
      if (isTask && !isBetween) {
        found.at(-1)?.push(raw)
      }
      if (raw === "{" || raw === "[") {
        levels.push({ isObject: raw === "{", key: undefined })
      } else if (raw === "}" || raw === "]") {
        levels.pop()
      } else if (level?.isObject === true && raw === ",") {
        level.key = undefined
      } else if (level?.isObject === true && level.key === undefined) {
        level.key = stringOf(raw)
        if (levels.length === 2 && top?.key === "data" && level.key === "task") {
          found.push([])
        }
      }
    }
    const [text, ...more] = found
    return text === undefined || more.length > 0 ? Option.none() : Option.some(text.join(""))
  })

const taskIssue = (message: string, loc: ReadonlyArray<string> = []): RequestRefused =>
  refused("the task can't be used", [{ type: "value_error", loc: ["task", ...loc], msg: message }])

const decodeTask = (text: string): Effect.Effect<Task, RequestRefused> =>
  Environments.hasLoneSurrogate(text)
    ? taskIssue("holds half of a surrogate pair, which can't be written as UTF-8")
    // As text it was one value until now.
    : Option.contains(Either.getLeft(Wire.readJson(text)), "values")
    ? taskIssue(Wire.unread.values)
    : Effect.mapBoth(Report.decode(encoder.encode(text)), {
      onSuccess: ({ task }) => task,
      onFailure: ({ issues }) =>
        refused(
          "the task is not valid",
          issues.slice(0, 20).map(({ message, path }) => ({
            type: "value_error",
            loc: path === "" ? ["task"] : ["task", Wire.shortened(path)],
            msg: Wire.shortened(message)
          }))
        )
    })

// ----------------------------------------------------------------------------
// answers
// ----------------------------------------------------------------------------

/** The records of an episode's sandboxes, for the wire. */
const cleanupOf = (receipt: EpisodeReceipt): ReadonlyArray<Wire.CleanupRecord> =>
  receipt.resources.map(({ confirmedAbsentAt, deleteAttempts, id, role }) => ({
    sandbox_id: id,
    role,
    delete_attempts: deleteAttempts,
    confirmed_absent_at: confirmedAbsentAt === null ? null : DateTime.formatIso(confirmedAbsentAt)
  }))

interface Standing {
  /** Null outside of an episode. */
  readonly reward: 0 | 1 | null
  readonly done: boolean
  readonly metadata: Wire.EpisodeMetadata
}

/** Where an episode stands. One without a score has no standing: every answer to it is its error. */
const standing = (
  state: SessionState,
  name: string | undefined
): Either.Either<Standing, InfrastructureError> => {
  switch (state._tag) {
    case "Idle":
      return Either.right({ reward: null, done: false, metadata: { status: "idle", graded: false } })
    case "Active":
      return Either.right({
        reward: 0,
        done: false,
        metadata: {
          status: "active",
          graded: false,
          episode_id: name ?? state.episodeId,
          task_id: state.taskId,
          window_seconds_left: Duration.toSeconds(state.windowLeft),
          deadline_seconds_left: Duration.toSeconds(state.deadlineLeft)
        }
      })
    case "Finished": {
      const { receipt } = state
      const { outcome } = receipt
      return outcome._tag === "Aborted" ? Either.left(outcome.error) : Either.right({
        reward: outcome.score,
        done: true,
        metadata: {
          status: "finished",
          graded: true,
          reason: outcome.reason,
          ...(outcome.detail === undefined ? {} : { detail: outcome.detail }),
          episode_id: name ?? receipt.episodeId,
          task_id: receipt.taskId,
          receipt_id: receipt.episodeId,
          cleanup: cleanupOf(receipt),
          total_seconds: receipt.totalSeconds,
          sandbox_seconds: receipt.sandboxSeconds,
          estimated_cost_usd: receipt.estimatedCostUsd
        }
      })
    }
  }
}

const idOf = (state: SessionState) =>
  state._tag === "Idle" ? undefined : state._tag === "Active" ? state.episodeId : state.receipt.episodeId

const envelope = (
  { done, metadata, reward }: Standing,
  observation: Readonly<Record<string, unknown>>
): Wire.StepResult => ({ observation: { ...observation, metadata }, reward, done, metadata })

const nothing = {
  status: "idle",
  graded: false,
  reward: null,
  reason: null,
  error: null,
  task_id: null,
  window_seconds_left: null,
  deadline_seconds_left: null,
  sandboxes: [],
  cleanup: []
} as const

const describe = (
  state: SessionState,
  name: string | undefined
): Omit<Wire.EpisodeState, "step_count"> => {
  switch (state._tag) {
    case "Idle":
      return { ...nothing, episode_id: name ?? null }
    case "Active":
      return {
        ...nothing,
        episode_id: name ?? state.episodeId,
        status: "active",
        task_id: state.taskId,
        window_seconds_left: Duration.toSeconds(state.windowLeft),
        deadline_seconds_left: Duration.toSeconds(state.deadlineLeft),
        sandboxes: [{ role: "policy", state: "running" }]
      }
    case "Finished": {
      const { receipt } = state
      const { outcome } = receipt
      const cleanup = cleanupOf(receipt)
      const common = {
        ...nothing,
        episode_id: name ?? receipt.episodeId,
        task_id: receipt.taskId,
        sandboxes: cleanup.map(({ confirmed_absent_at, role }) => ({
          role,
          state: confirmed_absent_at === null ? "not-proved-gone" : "confirmed-absent"
        } as const)),
        cleanup
      }
      return outcome._tag === "Scored"
        ? { ...common, status: "finished", graded: true, reward: outcome.score, reason: outcome.reason }
        : { ...common, status: "aborted", error: { error: outcome.error._tag, message: outcome.error.message } }
    }
  }
}

const idle: Wire.EpisodeState = { ...describe({ _tag: "Idle" }, undefined), step_count: 0 }

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

const readReset = Wire.strict(Wire.ResetArguments)

const over = Effect.fnUntraced(function*(session: Session, options: Options) {
  const told = yield* Ref.make<{ readonly name: string | undefined; readonly steps: number }>({
    name: undefined,
    steps: 0
  })

  const taskOf = (args: Wire.ResetArguments, frame: string): Effect.Effect<Task, RequestRefused> => {
    const { task } = args
    if (task === undefined || task === null) {
      return Option.match(options.task, {
        onNone: () => taskIssue("is missing, and this server has no task of its own"),
        onSome: (task) => Effect.succeed(task)
      })
    }
    return typeof task === "string" ? decodeTask(task) : Option.match(taskText(frame), {
      onNone: () => taskIssue("occurs twice; keep one of them"),
      onSome: decodeTask
    })
  }

  const knownArguments = new Set([...Object.keys(Wire.ResetArguments.fields), ...options.columns])

  // A request waits for the one before, so what is told beside an answer is of the same episode. State waits for nobody.
  const inTurn = (yield* Effect.makeSemaphore(1)).withPermits(1)

  const begin: Environment["reset"] = Effect.fnUntraced(function*(given, frame) {
    const args = yield* Either.mapLeft(readReset(given), (issues) => refused("the arguments are not valid", issues))
    const unknown = Environments.unknownArguments(args, knownArguments)
    if (unknown.length > 0) {
      return yield* refused("unknown arguments", unknown)
    }
    const task = yield* taskOf(args, frame)
    // No name is as good as none.
    const name = args.episode_id || undefined
    const before = idOf(yield* session.state)
    const { prompt } = yield* session.reset(task).pipe(
      // Whatever comes of it, and not before: what is asked meanwhile is about the old episode.
      Effect.ensuring(
        Effect.flatMap(
          session.state,
          (state) => idOf(state) === before ? Effect.void : Ref.set(told, { name, steps: 0 })
        )
      )
    )
    const now = yield* standing(yield* session.state, name)
    return envelope({ ...now, reward: null, metadata: { ...now.metadata, status: "ready" } }, { prompt })
  })

  const reset: Environment["reset"] = (given, frame) => inTurn(begin(given, frame))

  const perform = (call: Call, hint = ""): Effect.Effect<Observation, EnvironmentError> =>
    Effect.catchTag(
      call.tool === "terminal" ? session.terminal(call.command) : session.submit,
      "EpisodeMisuse",
      ({ message }) => new RequestRefused({ code: "EXECUTION_ERROR", message: message + hint, issues: [] })
    )

  // Counts what was taken on, also where it brought an error.
  const counted = Ref.updateAndGet(told, ({ name, steps }) => ({ name, steps: steps + 1 }))

  const now = Effect.flatMap(
    Ref.get(told),
    ({ name }) => Effect.flatMap(session.state, (state) => standing(state, name))
  )

  const step: Environment["step"] = (action) => {
    if (action.type === "list_tools") {
      return inTurn(Effect.zipRight(counted, Effect.map(now, (standing) => envelope(standing, { tools }))))
    }
    const { arguments: args = {} } = action
    const tool_name = Wire.shortened(action.tool_name)
    const call = readCall(action.tool_name, args, options.maxCommandBytes)
    const observation: Effect.Effect<Readonly<Record<string, unknown>>, EnvironmentError> = Either.isLeft(call)
      ? Effect.succeed({ tool_name, result: null, error: call.left })
      : Effect.map(perform(call.right), (observed) => ({ tool_name, result: toResult(observed), error: null }))
    return Effect.zipRight(counted, observation).pipe(
      Effect.zipWith(now, (observation, standing) => envelope(standing, observation)),
      inTurn
    )
  }

  const call: Environment["call"] = (name, args) =>
    Either.match(readCall(name, args, options.maxCommandBytes), {
      onLeft: (error) => Effect.succeed(Either.left(error)),
      onRight: (call) =>
        Effect.zipWith(
          Effect.zipRight(counted, perform(call, `; ${Environments.resetOverMcp}`)),
          now,
          (observation, { done, metadata, reward }) =>
            Either.right(toResult(observation, { done, reward, episode: metadata }))
        ).pipe(inTurn)
    })

  const state = Effect.flatMap(
    Ref.get(told),
    ({ name, steps }) =>
      Effect.map(session.state, (state): Wire.EpisodeState => ({ ...describe(state, name), step_count: steps }))
  )

  return { reset, step, call, state } satisfies Environment
})

/**
 * Episodes, as they are served.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = Effect.fnUntraced(function*(options: Options) {
  const { open } = yield* Episode
  const kind: Kind = {
    name: "episode",
    description:
      "Code-repair episodes in disposable sandboxes: repair a program in a terminal, submit it, get a score of 0 or 1.",
    tools,
    schemas: {
      action: { ...JSONSchema.make(Wire.Action) },
      observation: { ...JSONSchema.make(Wire.StepObservation) },
      reset_observation: { ...JSONSchema.make(Wire.ResetObservation) },
      state: { ...JSONSchema.make(Wire.EpisodeState) }
    },
    reset: { schema: { ...JSONSchema.make(Wire.ResetArguments) }, decode: readReset },
    idle,
    page: Option.some(yield* Page.make({ hasTask: Option.isSome(options.task) })),
    open: Effect.flatMap(open, (session) => over(session, options))
  }
  return kind
})

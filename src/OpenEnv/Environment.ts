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
import * as Option from "effect/Option"
import * as Ref from "effect/Ref"
import * as Schema from "effect/Schema"
import type { Observation } from "../Episode/Observation.ts"
import * as Observations from "../Episode/Observation.ts"
import type { InfrastructureError } from "../Episode/Outcome.ts"
import type { EpisodeReceipt } from "../Episode/Receipt.ts"
import type { Session, SessionState } from "../Episode/Session.ts"
import { lexemes, strictly, stringOf } from "../internal/losslessJson.ts"
import type { Task } from "../Task.ts"
import * as Report from "../Task/Report.ts"
import * as Wire from "./Wire.ts"

// ----------------------------------------------------------------------------
// errors
// ----------------------------------------------------------------------------

/**
 * A request that was refused, and changed nothing. The client's mistake.
 *
 * @since 0.1.0
 * @category errors
 */
export class RequestRefused extends Schema.TaggedError<RequestRefused>("episode/OpenEnv/RequestRefused")(
  "RequestRefused",
  {
    code: Schema.Literal("VALIDATION_ERROR", "EXECUTION_ERROR"),
    message: Schema.String,
    issues: Schema.Array(Wire.Issue)
  }
) {}

const refused = (message: string, issues: ReadonlyArray<Wire.Issue>): RequestRefused =>
  new RequestRefused({ code: "VALIDATION_ERROR", message, issues })

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * What came of a tool call: a result, or why the tool wasn't called.
 *
 * @since 0.1.0
 * @category models
 */
export type ToolOutcome = Either.Either<Wire.CallToolResult, Wire.ToolError>

/**
 * Why a request has no answer.
 *
 * @since 0.1.0
 * @category models
 */
export type EnvironmentError = RequestRefused | InfrastructureError

/**
 * @since 0.1.0
 * @category models
 */
export interface Environment {
  /** `frame` is the text that the arguments were read from: a task's numbers count as they are written there. */
  readonly reset: (args: Wire.ResetArguments, frame: string) => Effect.Effect<Wire.StepResult, EnvironmentError>
  readonly step: (action: Wire.Action) => Effect.Effect<Wire.StepResult, EnvironmentError>
  /** A tool call that is no step: the result alone. Where the episode stands is in the result's `meta`. */
  readonly call: (
    name: string,
    args: Readonly<Record<string, unknown>>
  ) => Effect.Effect<ToolOutcome, EnvironmentError>
  readonly state: Effect.Effect<Wire.EpisodeState>
}

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

/**
 * The tools, all of them.
 *
 * @since 0.1.0
 * @category tools
 */
export const tools: ReadonlyArray<typeof Wire.Tool.Type> = [
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

const hasLoneSurrogate = (text: string): boolean => /\p{Surrogate}/u.test(text)

const terminalArguments = Wire.strict(Schema.Struct({ command: Schema.String }))

type Call = { readonly tool: "terminal"; readonly command: string } | { readonly tool: "submit" }

const said = (issues: ReadonlyArray<Wire.Issue>): string =>
  issues.map(({ loc, msg }) => loc.length === 0 ? msg : `${loc.join(".")}: ${msg}`).join("; ")

const readCall = (
  name: string,
  args: Readonly<Record<string, unknown>>,
  maxCommandBytes: number
): Either.Either<Call, Wire.ToolError> => {
  const invalid = (message: string): Wire.ToolError => ({ error_type: "invalid_args", message: `${name}: ${message}` })
  switch (name) {
    case "terminal":
      return Either.flatMap(
        Either.mapLeft(terminalArguments(args), (issues) => invalid(said(issues))),
        ({ command }) =>
          command.includes("\0")
            ? Either.left(invalid("a command can't hold a NUL character"))
            : hasLoneSurrogate(command)
            ? Either.left(invalid("a command can't hold half of a surrogate pair, which has no UTF-8"))
            : encoder.encode(command).length > maxCommandBytes
            ? Either.left(invalid(`a command is at most ${maxCommandBytes} bytes long`))
            : Either.right<Call>({ tool: "terminal", command })
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

const toResult = (observation: Observation, meta: Readonly<Record<string, unknown>> = {}): Wire.CallToolResult => {
  const text = Observations.render(observation)
  return {
    content: [{ type: "text", text }],
    structured_content: { result: text },
    meta: {
      exit_code: observation.exitCode,
      killed_at_limit: observation.killedAtLimit,
      truncated: observation.truncated,
      finished: observation.finished,
      ...meta
    },
    data: text,
    is_error: false
  }
}

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
  hasLoneSurrogate(text)
    ? taskIssue("holds half of a surrogate pair, which can't be written as UTF-8")
    : Effect.mapBoth(Report.decode(encoder.encode(text)), {
      onSuccess: ({ task }) => task,
      onFailure: ({ issues }) =>
        refused(
          "the task is not valid",
          issues.map(({ message, path }) => ({
            type: "value_error",
            loc: path === "" ? ["task"] : ["task", path],
            msg: message
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

/** The state of an environment that has never been reset. */
export const idleState: Wire.EpisodeState = { ...describe({ _tag: "Idle" }, undefined), step_count: 0 }

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

/**
 * An environment over a session. Requests that overlap wait for each other in the session.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = Effect.fnUntraced(function*(session: Session, options: Options) {
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

  const reset: Environment["reset"] = Effect.fnUntraced(function*(args, frame) {
    const unknown = Object.keys(args).filter((name) => !knownArguments.has(name))
    if (unknown.length > 0) {
      return yield* refused(
        "unknown arguments",
        unknown.slice(0, 20).map((name) => ({
          type: "extra_forbidden",
          loc: [name.slice(0, 64)],
          msg: `reset takes ${[...knownArguments].join(", ")}`
        }))
      )
    }
    const task = yield* taskOf(args, frame)
    const name = args.episode_id ?? undefined
    yield* Ref.set(told, { name, steps: 0 })
    const { prompt } = yield* session.reset(task)
    const now = yield* standing(yield* session.state, name)
    return envelope({ ...now, reward: null, metadata: { ...now.metadata, status: "ready" } }, { prompt })
  })

  const misused = ({ message }: { readonly message: string }) =>
    new RequestRefused({ code: "EXECUTION_ERROR", message, issues: [] })

  const perform = (call: Call): Effect.Effect<Observation, EnvironmentError> =>
    Effect.catchTag(
      call.tool === "terminal" ? session.terminal(call.command) : session.submit,
      "EpisodeMisuse",
      misused
    )

  // Counts what was taken on, also where it brought an error.
  const counted = Ref.updateAndGet(told, ({ name, steps }) => ({ name, steps: steps + 1 }))

  const now = Effect.flatMap(
    Ref.get(told),
    ({ name }) => Effect.flatMap(session.state, (state) => standing(state, name))
  )

  const step: Environment["step"] = (action) => {
    if (action.type === "list_tools") {
      return Effect.zipRight(counted, Effect.map(now, (standing) => envelope(standing, { tools })))
    }
    const { arguments: args = {}, tool_name } = action
    const call = readCall(tool_name, args, options.maxCommandBytes)
    const observation: Effect.Effect<Readonly<Record<string, unknown>>, EnvironmentError> = Either.isLeft(call)
      ? Effect.succeed({ tool_name, result: null, error: call.left })
      : Effect.map(perform(call.right), (observed) => ({ tool_name, result: toResult(observed), error: null }))
    return Effect.zipRight(counted, observation).pipe(
      Effect.zipWith(now, (observation, standing) => envelope(standing, observation))
    )
  }

  const call: Environment["call"] = (name, args) =>
    Either.match(readCall(name, args, options.maxCommandBytes), {
      onLeft: (error) => Effect.succeed(Either.left(error)),
      onRight: (call) =>
        Effect.zipWith(Effect.zipRight(counted, perform(call)), now, (observation, { done, metadata, reward }) =>
          Either.right(toResult(observation, { done, reward, episode: metadata })))
    })

  const state = Effect.flatMap(
    Ref.get(told),
    ({ name, steps }) =>
      Effect.map(session.state, (state): Wire.EpisodeState => ({ ...describe(state, name), step_count: steps }))
  )

  return { reset, step, call, state } satisfies Environment
})

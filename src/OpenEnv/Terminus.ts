/**
 * The native Terminus environment on the wire: a bare terminal in a sandbox, which runs setup commands at its reset and
 * verify commands when an answer is given. Its own words only; what it shares with other environments is in `Wire`.
 *
 * Facts are upstream's `envs/terminus_env`, as of OpenEnv 0.8. Both sides use these definitions.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import * as Wire from "./Wire.ts"

const exact = { exact: true } as const

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * One command line, or several that are run one after another.
 *
 * @since 0.1.0
 * @category models
 */
export const Commands = Schema.Union(Schema.String, Schema.Array(Schema.String))

/**
 * The arguments of `reset`. `setup_scripts` and `verify_scripts` are other names of the same.
 *
 * @since 0.1.0
 * @category models
 */
export const ResetArguments = Schema.Struct(
  {
    seed: Schema.optionalWith(Schema.NullOr(Schema.NonNegativeInt), exact),
    /** A name of the client's own. Our server puts it on the sandbox, as the label `episodeLabel`. */
    episode_id: Schema.optionalWith(Schema.NullOr(Wire.EpisodeName), exact),
    setup: Schema.optionalWith(Schema.NullOr(Commands), exact),
    setup_scripts: Schema.optionalWith(Schema.NullOr(Commands), exact),
    verify: Schema.optionalWith(Schema.NullOr(Commands), exact),
    verify_scripts: Schema.optionalWith(Schema.NullOr(Commands), exact)
  },
  { key: Schema.String, value: Schema.Unknown }
)

/**
 * @since 0.1.0
 * @category models
 */
export type ResetArguments = typeof ResetArguments.Type

/**
 * What came of a reset, in the observation's metadata. A failed one is no error frame: it has the status `error`, and may
 * have left a sandbox.
 *
 * @since 0.1.0
 * @category models
 */
export const ResetMetadata = Schema.Struct(
  {
    status: Schema.Literal("ready", "error"),
    /** Left out by servers before 0.8: there `state` has it. */
    sandbox_id: Schema.optionalWith(Schema.NullOr(Schema.String), exact),
    message: Schema.optionalWith(Schema.NullOr(Schema.String), exact),
    error: Schema.optionalWith(Schema.NullOr(Schema.String), exact)
  },
  { key: Schema.String, value: Schema.Unknown }
)

/**
 * @since 0.1.0
 * @category models
 */
export type ResetMetadata = typeof ResetMetadata.Type

/**
 * The label of a sandbox of our Terminus server that holds the `episode_id` of its reset: by it a client finds a sandbox
 * whose reset had no reply.
 *
 * @since 0.1.0
 * @category models
 */
export const episodeLabel = "terminus.episode"

/**
 * The arguments of its one tool. An answer comes first: a command beside it isn't run.
 *
 * @since 0.1.0
 * @category models
 */
export const TerminalArguments = Wire.strict(Schema.Struct({
  command: Schema.optionalWith(Schema.String, exact),
  final_answer: Schema.optionalWith(Schema.String, exact)
}))

/**
 * How one command ended, in its state.
 *
 * @since 0.1.0
 * @category models
 */
export const CommandRecord = Schema.Struct({
  command: Schema.String,
  output: Schema.String,
  error: Schema.NullOr(Schema.String),
  success: Schema.Boolean
})

/**
 * Its state. Whoever may ask for it sees the verify commands: a policy must not.
 *
 * @since 0.1.0
 * @category models
 */
export const State = Schema.Struct({
  episode_id: Schema.NullOr(Schema.String),
  step_count: Schema.NonNegativeInt,
  sandbox_id: Schema.NullOr(Schema.String),
  setup_results: Schema.Array(CommandRecord),
  verify_commands: Schema.Array(Schema.String),
  verify_results: Schema.Array(CommandRecord),
  commands: Schema.Array(CommandRecord),
  submitted_answer: Schema.NullOr(Schema.String),
  last_reward: Schema.NullOr(Schema.Number.pipe(Schema.between(0, 1))),
  last_error: Schema.NullOr(Schema.String)
})

/**
 * @since 0.1.0
 * @category models
 */
export type State = typeof State.Type

/**
 * What our server says beside the observation of a step. `graded` says whether the reward is one of verify commands.
 *
 * @since 0.1.0
 * @category models
 */
export const StepMetadata = Schema.Struct({
  status: Schema.Literal("idle", "active", "finished"),
  graded: Schema.Boolean,
  episode_id: Schema.optionalWith(Schema.String, exact)
})

/**
 * @since 0.1.0
 * @category models
 */
export type StepMetadata = typeof StepMetadata.Type

/**
 * The answer to `reset`.
 *
 * @since 0.1.0
 * @category models
 */
export const ResetObservation = Schema.Struct({ metadata: ResetMetadata })

/**
 * The answer to `step`: to `list_tools` the first, to `call_tool` the second.
 *
 * @since 0.1.0
 * @category models
 */
export const StepObservation = Schema.Union(
  Schema.Struct({ tools: Schema.Array(Wire.Tool), metadata: StepMetadata }),
  Schema.Struct({
    tool_name: Schema.String,
    result: Schema.NullOr(Wire.CallToolResult),
    error: Schema.NullOr(Wire.ToolError),
    metadata: StepMetadata
  })
)

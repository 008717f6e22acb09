/**
 * How long, how large, how often: the one configuration of every limit, and the combinators that enforce it.
 *
 * Durations are `Duration`s in code and milliseconds in JSON; sizes are bytes.
 *
 * @since 0.1.0
 */
import * as Arr from "effect/Array"
import * as Clock from "effect/Clock"
import * as Config from "effect/Config"
import type * as ConfigError from "effect/ConfigError"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Exit from "effect/Exit"
import { dual } from "effect/Function"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import { ArrayFormatter } from "effect/ParseResult"
import * as Schema from "effect/Schema"
import * as Detached from "./internal/detached.ts"

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

// Timers hold 31 bits of milliseconds: Node fires a longer one at once.
const longest = Duration.days(24)

const Limit = Schema.DurationFromMillis.pipe(
  Schema.filter((limit) => Duration.greaterThan(limit, Duration.zero) && Duration.lessThanOrEqualTo(limit, longest), {
    message: () => "a limit is longer than zero and at most 24 days"
  })
)

const Size = Schema.Int.pipe(
  Schema.between(1, 16 * 1024 * 1024, { message: () => "a size is 1 byte to 16 MiB" })
)

const fields = Schema.Struct({
  /** Lifetime the policy sandbox is created with: a backstop for a create whose reply is lost. Default 300 s. */
  policyLifetimeAtCreate: Limit,
  /** Lifetime the policy sandbox is given as soon as its id is known. Default 600 s. */
  policyLifetime: Limit,
  /** What a policy has from ready until submit: waiting, generation and commands. Default 120 s. */
  policyWindow: Limit,
  /** A whole episode: reset through verification and cleanup. Default 600 s. */
  episodeDeadline: Limit,
  /** One command inside a sandbox, ended there with SIGKILL. Default 10 s. */
  commandLimit: Limit,
  /** The host's wait for one reply to a policy's command. Default 25 s. */
  commandResponse: Limit,
  /** Lifetime of the verifier sandbox. Default 120 s. */
  verifierLifetime: Limit,
  /** The host's wait for the candidate's run. Default 20 s. */
  verifierResponse: Limit,
  /** One upload, export or output read. Default 10 s. */
  fileTransfer: Limit,
  /** The largest submission, and the largest candidate output that is read. Default 64 KiB. */
  fileCap: Size,
  /** What a policy gets back of one stream: head and tail are kept. Default 64 KiB. */
  observationCap: Size,
  /** The host's wait for one sandbox to be created. Default 60 s. */
  allocation: Limit,
  /** One health check, lifetime extension, deletion request or proof of absence. Default 10 s. */
  control: Limit,
  /** Deleting one sandbox and proving it gone, all attempts together. Default 30 s. */
  cleanup: Limit,
  /** How often deletion and proof are tried. Default 3. */
  cleanupAttempts: Schema.Int.pipe(Schema.between(1, 10, { message: () => "1 to 10 attempts" })),
  /** The pause after the first failed attempt; each later one is four times as long. Default 250 ms. */
  cleanupPause: Limit,
  /** The least time between two creates. Default: what the provider asks for (E2B 1.1 s, Local none). */
  allocationPacing: Schema.optionalWith(Limit, { exact: true })
})

// A wait that is not shorter than the one around it can never be the one that fires.
const shorter: ReadonlyArray<readonly [inner: DurationKey, outer: DurationKey]> = [
  ["commandLimit", "commandResponse"],
  ["commandLimit", "verifierResponse"],
  ["commandLimit", "policyWindow"],
  ["policyWindow", "policyLifetime"],
  ["policyWindow", "episodeDeadline"],
  ["verifierResponse", "verifierLifetime"],
  ["control", "cleanup"]
]

/**
 * Every limit of an episode. A value of this class is valid: zero, negative, NaN and endless limits are refused when it
 * is made, and so are limits that contradict each other.
 *
 * @since 0.1.0
 * @category models
 */
export class Budgets extends Schema.Class<Budgets>("episode/Budgets")(
  fields.pipe(
    Schema.filter((budgets) =>
      Arr.filterMap(
        shorter,
        ([inner, outer]) =>
          Duration.lessThan(budgets[inner], budgets[outer]) ? Option.none() : Option.some({
            path: [inner],
            message: `${Duration.format(budgets[inner])} must be shorter than ${outer}, ${
              Duration.format(budgets[outer])
            }`
          })
      )
    )
  )
) {}

type Fields = typeof fields.Type

type DurationKey = {
  [K in keyof Fields]-?: Fields[K] extends Duration.Duration ? K : never
}[keyof Fields]

/**
 * The budgets that a wait on the host can run out of. Each is the name of a field of {@link Budgets}.
 *
 * @since 0.1.0
 * @category models
 */
export const BudgetName = Schema.Literal(
  "policyWindow",
  "episodeDeadline",
  "commandResponse",
  "verifierResponse",
  "fileTransfer",
  "allocation",
  "control",
  "cleanup"
)

/**
 * @since 0.1.0
 * @category models
 */
export type BudgetName = typeof BudgetName.Type

/**
 * Changes to the defaults. Times are anything that `Duration` decodes, such as `"90 seconds"`.
 *
 * @since 0.1.0
 * @category models
 */
export type Overrides = {
  readonly [K in keyof Fields]?:
    | (Exclude<Fields[K], undefined> extends Duration.Duration ? Duration.DurationInput : Fields[K])
    | undefined
}

// ----------------------------------------------------------------------------
// errors
// ----------------------------------------------------------------------------

/**
 * The budgets asked for can't be. A mistake of the caller, not of the infrastructure.
 *
 * @since 0.1.0
 * @category errors
 */
export class InvalidBudgets extends Schema.TaggedError<InvalidBudgets>("episode/InvalidBudgets")("InvalidBudgets", {
  issues: Schema.NonEmptyArray(Schema.Struct({ field: Schema.String, message: Schema.String }))
}) {
  override get message(): string {
    return `these budgets can't be: ${this.issues.map((issue) => `${issue.field}: ${issue.message}`).join("; ")}`
  }
}

/**
 * A wait ran out. It names the budget that fired, which may be an enclosing one.
 *
 * @since 0.1.0
 * @category errors
 */
export class BudgetExceeded extends Schema.TaggedError<BudgetExceeded>("episode/BudgetExceeded")("BudgetExceeded", {
  budget: BudgetName,
  /** The whole budget, also when a part of it was spent before this wait began. */
  limit: Schema.DurationFromMillis
}) {
  override get message(): string {
    return `the ${this.budget} budget of ${Duration.format(this.limit)} ran out`
  }
}

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category defaults
 */
export const defaults: Budgets = new Budgets({
  policyLifetimeAtCreate: Duration.seconds(300),
  policyLifetime: Duration.seconds(600),
  policyWindow: Duration.seconds(120),
  episodeDeadline: Duration.seconds(600),
  commandLimit: Duration.seconds(10),
  commandResponse: Duration.seconds(25),
  verifierLifetime: Duration.seconds(120),
  verifierResponse: Duration.seconds(20),
  fileTransfer: Duration.seconds(10),
  fileCap: 64 * 1024,
  observationCap: 64 * 1024,
  allocation: Duration.seconds(60),
  control: Duration.seconds(10),
  cleanup: Duration.seconds(30),
  cleanupAttempts: 3,
  cleanupPause: Duration.millis(250)
})

const sizes: ReadonlySet<string> = new Set<keyof Fields>(["fileCap", "observationCap", "cleanupAttempts"])

const toMillis = (field: string, input: unknown): unknown =>
  sizes.has(field) ? input : Option.match(Duration.decodeUnknown(input), {
    // Not a duration at all: NaN is refused by the schema, in the field's own words.
    onNone: () => Number.NaN,
    onSome: Duration.toMillis
  })

const given = (overrides: Overrides): Overrides =>
  Object.fromEntries(Object.entries(overrides).filter(([, input]) => input !== undefined))

const decode = Schema.decodeUnknownEither(Budgets, { errors: "all", onExcessProperty: "error" })

/**
 * The defaults with some limits changed, or what is wrong with them.
 *
 * @example
 * ```ts
 * import * as Budgets from "episode/Budgets"
 *
 * const budgets = Budgets.make({ policyWindow: "5 minutes" })
 * ```
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = (overrides: Overrides = {}): Either.Either<Budgets, InvalidBudgets> => {
  const encoded: Record<string, unknown> = { ...Schema.encodeSync(Budgets)(defaults) }
  for (const [field, input] of Object.entries(given(overrides))) {
    encoded[field] = toMillis(field, input)
  }
  return Either.mapLeft(decode(encoded), (error) => {
    const issues = ArrayFormatter.formatErrorSync(error).map((issue) => ({
      field: issue.path.map(String).join(".") || "budgets",
      message: issue.message
    }))
    return new InvalidBudgets({
      issues: Arr.isNonEmptyArray(issues) ? issues : [{ field: "budgets", message: error.message }]
    })
  })
}

// ----------------------------------------------------------------------------
// context
// ----------------------------------------------------------------------------

/**
 * The budgets in force: for an `Episode` those where its layer is built, and for a provider those of the episode that asks
 * it. The defaults, unless a layer of this module is provided.
 *
 * @since 0.1.0
 * @category context
 */
export class CurrentBudgets extends Context.Reference<CurrentBudgets>()("episode/Budgets/CurrentBudgets", {
  defaultValue: (): Budgets => defaults
}) {}

const variable = (field: string): string => `EPISODE_${field.replace(/[A-Z]/g, (letter) => `_${letter}`).toUpperCase()}`

const settings = Arr.map(Object.keys(fields.fields), (field) =>
  (sizes.has(field)
    ? Config.integer(variable(field))
    : Config.map(Config.duration(variable(field)), Duration.toMillis)).pipe(
      Config.withDescription(`the ${field} budget, such as ${sizes.has(field) ? "65536" : "\"90 seconds\""}`),
      Config.option,
      Config.map(Option.map((value) => [field, value] as const))
    ))

/**
 * Changes to the defaults from the environment: `EPISODE_` and the field's name in capitals, such as
 * `EPISODE_POLICY_WINDOW="5 minutes"` or `EPISODE_FILE_CAP=131072`.
 *
 * @since 0.1.0
 * @category config
 */
export const config: Config.Config<Overrides> = Config.map(
  Config.all(settings),
  (found): Overrides => Object.fromEntries(Arr.getSomes(found))
)

const layerOf = <E>(budgets: Effect.Effect<Budgets, E>): Layer.Layer<CurrentBudgets, E> =>
  Layer.effectContext(Effect.map(budgets, (value) => Context.make(CurrentBudgets, value)))

/**
 * @since 0.1.0
 * @category layers
 */
export const layer = (overrides?: Overrides): Layer.Layer<CurrentBudgets, InvalidBudgets> => layerOf(make(overrides))

/**
 * The environment's changes, and on top of them those given in code.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerFromEnv = (
  overrides?: Overrides
): Layer.Layer<CurrentBudgets, InvalidBudgets | ConfigError.ConfigError> =>
  layerOf(Effect.flatMap(config, (found) => make({ ...found, ...given(overrides ?? {}) })))

// ----------------------------------------------------------------------------
// combinators
// ----------------------------------------------------------------------------

/**
 * A moment by which something has to be over, and the budget that says so.
 *
 * @since 0.1.0
 * @category models
 */
export interface Deadline {
  readonly budget: BudgetName
  readonly limit: Duration.Duration
  /** Milliseconds since the epoch, by the fiber's `Clock`. */
  readonly at: number
}

/**
 * Starts a budget now.
 *
 * @since 0.1.0
 * @category combinators
 */
export const startDeadline = (budget: BudgetName, limit: Duration.Duration): Effect.Effect<Deadline> =>
  Effect.map(Clock.currentTimeMillis, (now) => ({ budget, limit, at: now + Duration.toMillis(limit) }))

/**
 * What is left of a deadline; zero when it has passed.
 *
 * @since 0.1.0
 * @category combinators
 */
export const remaining = (deadline: Deadline): Effect.Effect<Duration.Duration> =>
  Effect.map(Clock.currentTimeMillis, (now) => Duration.millis(Math.max(0, deadline.at - now)))

/**
 * @since 0.1.0
 * @category models
 */
export interface WithinOptions {
  readonly budget: BudgetName
  readonly limit: Duration.Duration
  readonly enclosing?: ReadonlyArray<Deadline> | undefined
}

/**
 * Bounds a wait by its own budget and by every deadline around it; the error names the one that fired. Where two end at
 * the same moment it is the outer one. The effect isn't started when an enclosing deadline has passed already.
 *
 * The wait ends on time even in an uninterruptible region, and even if the effect can't be interrupted: it then goes on
 * in the background and its result is lost. So the acquisition of a resource under it needs an owner of its own. Whoever
 * interrupts the wait itself waits for the effect's own end, two seconds at most. What the effect does to a `FiberRef` stays
 * its own.
 *
 * @since 0.1.0
 * @category combinators
 */
export const within: {
  (options: WithinOptions): <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E | BudgetExceeded, R>
  <A, E, R>(effect: Effect.Effect<A, E, R>, options: WithinOptions): Effect.Effect<A, E | BudgetExceeded, R>
} = dual(
  2,
  <A, E, R>(effect: Effect.Effect<A, E, R>, options: WithinOptions): Effect.Effect<A, E | BudgetExceeded, R> =>
    Effect.flatMap(
      startDeadline(options.budget, options.limit),
      (own) => until(effect, [own, ...options.enclosing ?? []])
    )
)

/**
 * The same for a wait that has no budget of its own.
 *
 * @since 0.1.0
 * @category combinators
 */
export const until: {
  (deadlines: ReadonlyArray<Deadline>): <A, E, R>(
    effect: Effect.Effect<A, E, R>
  ) => Effect.Effect<A, E | BudgetExceeded, R>
  <A, E, R>(
    effect: Effect.Effect<A, E, R>,
    deadlines: ReadonlyArray<Deadline>
  ): Effect.Effect<A, E | BudgetExceeded, R>
} = dual(2, <A, E, R>(
  effect: Effect.Effect<A, E, R>,
  deadlines: ReadonlyArray<Deadline>
): Effect.Effect<A, E | BudgetExceeded, R> => {
  if (!Arr.isNonEmptyReadonlyArray(deadlines)) {
    return effect
  }
  const first = Arr.reduce(deadlines, deadlines[0], (soonest, next) => next.at <= soonest.at ? next : soonest)
  // Made when it is needed: an error has a stack trace, which takes longer than most waits.
  const exceeded = () => new BudgetExceeded({ budget: first.budget, limit: first.limit })
  return Effect.flatMap(
    remaining(first),
    (left) => Duration.equals(left, Duration.zero) ? exceeded() : cutOff(effect, left, exceeded)
  )
})

// What is interrupted has this long to end.
const grace = Duration.seconds(2)

// The effect has a fiber of its own, so that it can be left behind; it is waited for in the caller's.
const cutOff = <A, E, R, E2>(
  effect: Effect.Effect<A, E, R>,
  left: Duration.Duration,
  onTimeout: () => E2
): Effect.Effect<A, E | E2, R> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.flatMap(
      Detached.start(effect),
      (working) =>
        working.unsafePoll() ?? Effect.flatMap(Detached.start(Effect.sleep(left)), (timer) =>
          Effect.async<A, E | E2>((resume) => {
            working.addObserver(resume)
            timer.addObserver((exit) => Exit.isSuccess(exit) ? resume(Effect.fail(onTimeout())) : undefined)
          }).pipe(
            restore,
            // Of one that is interrupted the finalizers are a part, but what comes next may be a deletion.
            Effect.onInterrupt(() =>
              Effect.zipRight(
                working.interruptAsFork(working.id()),
                Effect.flatMap(Detached.start(Effect.sleep(Duration.min(left, grace))), (patience) =>
                  Effect.async<void>((resume) => {
                    const over = () => resume(Effect.void)
                    working.addObserver(over)
                    patience.addObserver(over)
                  }).pipe(Effect.ensuring(patience.interruptAsFork(patience.id()))))
              )
            ),
            // In the background: neither is waited for.
            Effect.ensuring(Effect.zipRight(working.interruptAsFork(working.id()), timer.interruptAsFork(timer.id())))
          ))
    )
  )

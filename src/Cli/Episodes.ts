/**
 * What `demo`, `run` and `task check --run` have in common: a provider, episodes that are told as they run, a receipt.
 */
import * as HelpDoc from "@effect/cli/HelpDoc"
import * as Options from "@effect/cli/Options"
import * as ValidationError from "@effect/cli/ValidationError"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as Option from "effect/Option"
import * as Ref from "effect/Ref"
import * as Budgets from "../Budgets.ts"
import * as Episode from "../Episode.ts"
import type { InfrastructureError } from "../Episode/Outcome.ts"
import type { EpisodeReceipt } from "../Episode/Receipt.ts"
import * as Receipts from "../Episode/Receipt.ts"
import * as Ledger from "../Sandbox/Ledger.ts"
import type { Task } from "../Task.ts"
import * as Files from "./Files.ts"
import type { Screen } from "./Screen.ts"
import * as Screens from "./Screen.ts"
import * as Telling from "./Telling.ts"

/** A choice whose error says which flag it is about. */
export const choice = <const Value extends string>(
  name: string,
  values: ReadonlyArray<Value>
): Options.Options<Value> =>
  Options.text(name).pipe(
    Options.withPseudoName(values.join(" | ")),
    Options.mapEffect((given) => {
      const value = values.find((value) => value === given)
      return value === undefined
        ? Effect.fail(ValidationError.invalidValue(HelpDoc.p(`--${name} is ${values.join(" or ")}, not '${given}'`)))
        : Effect.succeed(value)
    })
  )

export const provider = choice("provider", ["local", "e2b"]).pipe(
  Options.withDefault("local" as const),
  Options.withDescription(
    "where sandboxes come from: Linux namespaces on this machine, or E2B with the key in E2B_API_KEY"
  )
)

export const json = Options.boolean("json").pipe(
  Options.withDescription("print the receipt as one JSON document on standard output, and all else on standard error")
)

export const receipt = Options.text("receipt").pipe(
  Options.withPseudoName("file"),
  Options.optional,
  Options.withDescription("write the receipt to a file as well")
)

export interface Flags {
  readonly provider: "local" | "e2b"
  readonly json: boolean
  readonly receipt: Option.Option<string>
}

// Loaded when it is needed: what one provider brings along must not slow down, or break, the others.
export const providerOf = {
  local: Layer.unwrapEffect(
    Effect.map(Effect.promise(() => import("../Sandbox/Local.ts")), ({ layerFromEnv }) => layerFromEnv())
  ),
  e2b: Layer.unwrapEffect(
    Effect.map(Effect.promise(() => import("../Sandbox/E2b.ts")), ({ layerFromEnv }) => layerFromEnv())
  )
}

export interface Stage {
  readonly screen: Screen
  /** Runs one episode and tells of it. An episode without a score is an error, after it was told and kept. */
  readonly run: <E, R>(
    task: Task,
    policy: (tools: Episode.PolicyTools) => Effect.Effect<unknown, E, R>
  ) => Effect.Effect<EpisodeReceipt, E | InfrastructureError, R>
}

/** Sets the stage for episodes, and at their end, also at a bad one, prints and writes the receipt. */
export const perform = Effect.fnUntraced(function*<A, E, R>(
  flags: Flags,
  body: (stage: Stage) => Effect.Effect<A, E, R>
) {
  const screen = yield* Screens.make(flags)
  const write = yield* Files.receiptWriter(flags.receipt)
  const ledger = yield* Telling.ledger(screen, yield* Ledger.Ledger)
  const episodes = yield* Ref.make<ReadonlyArray<EpisodeReceipt>>([])
  const started = yield* Clock.currentTimeMillis

  const layer = Episode.layerWithLedger().pipe(
    Layer.provide(providerOf[flags.provider]),
    Layer.provide(Layer.succeed(Ledger.Ledger, ledger)),
    Layer.provide(Budgets.layerFromEnv())
  )
  const end = Effect.gen(function*() {
    const seconds = Math.max(0, (yield* Clock.currentTimeMillis) - started) / 1000
    const receipt = Receipts.fromEpisodes(yield* Ref.get(episodes), seconds)
    if (receipt.episodes.length === 0) {
      return
    }
    // Encoding what this program made itself can't fail.
    const document = yield* Effect.orDie(Files.receiptJson(receipt))
    yield* Telling.summary(screen, receipt)
    yield* flags.json ? screen.document(document) : Effect.void
    yield* write(document)
  })
  const stage = Effect.map(Episode.Episode, (service): Stage => ({
    screen,
    run: Effect.fnUntraced(function*(task, policy) {
      const receipt = yield* service.record(task, (tools) => policy(Telling.tools(screen, tools)))
      yield* Ref.update(episodes, (before) => [...before, receipt])
      yield* screen.line(Telling.outcome(screen, receipt))
      return receipt.outcome._tag === "Aborted" ? yield* receipt.outcome.error : receipt
    })
  }))
  const exit = yield* Effect.flatMap(stage, body).pipe(Effect.provide(layer), Effect.exit)
  yield* end
  return yield* exit
})

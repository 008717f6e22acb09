/**
 * What `demo`, `run` and `task check --run` have in common: a provider, episodes that are told as they run, a receipt.
 */
import * as HelpDoc from "@effect/cli/HelpDoc"
import * as Options from "@effect/cli/Options"
import * as ValidationError from "@effect/cli/ValidationError"
import * as Clock from "effect/Clock"
import * as Config from "effect/Config"
import type { ConfigError } from "effect/ConfigError"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Ref from "effect/Ref"
import * as Budgets from "../Budgets.ts"
import * as Episode from "../Episode.ts"
import type { InfrastructureError } from "../Episode/Outcome.ts"
import type { EpisodeReceipt } from "../Episode/Receipt.ts"
import * as Receipts from "../Episode/Receipt.ts"
import type { SandboxProvider } from "../Sandbox.ts"
import * as Ledger from "../Sandbox/Ledger.ts"
import type { Task } from "../Task.ts"
import * as Files from "./Files.ts"
import type { Screen } from "./Screen.ts"
import * as Screens from "./Screen.ts"
import * as Telling from "./Telling.ts"

const misused = (message: string) => Effect.fail(ValidationError.invalidValue(HelpDoc.p(message)))

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
        ? misused(`--${name} is ${values.join(" or ")}, not '${given}'`)
        : Effect.succeed(value)
    })
  )

/** A number whose error says which flag it is about. */
export const integer = (
  name: string,
  options: { readonly default: number; readonly min: number; readonly max?: number }
): Options.Options<number> =>
  Options.text(name).pipe(
    Options.withPseudoName("number"),
    Options.mapEffect((given) => {
      const { max = Number.MAX_SAFE_INTEGER, min } = options
      const value = Number(given)
      return /^-?[0-9]+$/.test(given) && value >= min && value <= max
        ? Effect.succeed(value)
        : misused(
          `--${name} is ${options.max === undefined ? `at least ${min}` : `${min} to ${max}`}, not '${given}'`
        )
    }),
    Options.withDefault(options.default)
  )

export const port = (defaultPort: number): Options.Options<number> =>
  integer("port", { default: defaultPort, min: 0, max: 65535 })

/** The address of a server. */
export const host: Options.Options<string> = Options.text("host").pipe(
  Options.withPseudoName("address"),
  Options.mapEffect((given) => given.trim() === "" ? misused("--host is empty") : Effect.succeed(given)),
  Options.withDefault("127.0.0.1")
)

export const provider = choice("provider", ["local", "e2b"]).pipe(
  Options.withDefault("local" as const),
  Options.withDescription(
    "where sandboxes come from: Linux namespaces on this machine, or E2B with the key in E2B_API_KEY"
  )
)

const sandboxes = ["local", "e2b"] as const

/** Where sandboxes come from. */
export type Source =
  | { readonly name: typeof sandboxes[number] }
  | {
    readonly name: "openenv"
    readonly url: string
    /** Which provider reaches the sandboxes of that server, where it was said. */
    readonly sandboxes: Option.Option<typeof sandboxes[number]>
  }

// A password there could be read by whoever sees the processes of this machine.
const isServer = (url: string): boolean =>
  /^(?:ws|http)s?:[/][/][^/?#@\s]+(?:[/][^?#\s]*)?$/.test(url) && URL.canParse(url)

/** `--provider`, where a Terminus server may make the policies' sandboxes. */
export const source: Options.Options<Source> = Options.all({
  provider: choice("provider", [...sandboxes, "openenv"]).pipe(
    Options.withDefault("local" as const),
    Options.withDescription(
      "where sandboxes come from: Linux namespaces on this machine, E2B with the key in E2B_API_KEY, or, for policies, "
        + "a Terminus server at --openenv-url"
    )
  ),
  url: Options.text("openenv-url").pipe(
    Options.withPseudoName("url"),
    Options.optional,
    Options.withDescription(
      "with --provider openenv: the Terminus server, such as ws://127.0.0.1:8000; EPISODE_OPENENV_TOKEN is its token"
    )
  ),
  sandboxes: choice("openenv-sandboxes", sandboxes).pipe(
    Options.optional,
    Options.withDescription(
      "with --provider openenv: where that server has its sandboxes, and verifiers run; unless given, e2b where "
        + "E2B_API_KEY is set, also in .env, and local where it isn't"
    )
  )
}).pipe(
  Options.mapEffect(({ provider, sandboxes, url }) => {
    if (provider !== "openenv") {
      return Option.isSome(url) || Option.isSome(sandboxes)
        ? misused("--openenv-url and --openenv-sandboxes go with --provider openenv")
        : Effect.succeed<Source>({ name: provider })
    }
    return Option.isNone(url)
      ? misused("--provider openenv needs --openenv-url, the address of a Terminus server such as ws://127.0.0.1:8000")
      : isServer(url.value)
      ? Effect.succeed<Source>({ name: provider, url: url.value, sandboxes })
      : misused(
        "--openenv-url is a ws, wss, http or https URL without a password, a query or a fragment; "
          + "a token goes into EPISODE_OPENENV_TOKEN"
      )
  })
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
  readonly provider: Source
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

/** The token of an OpenEnv server, for both sides. One that no header can carry is none. */
export const openenvToken: Config.Config<Option.Option<Redacted.Redacted>> = Config.string(
  "EPISODE_OPENENV_TOKEN"
).pipe(
  // The message is all that an error shows. That of `Config.redacted` would hide it.
  Config.validate({
    message: "a token isn't empty, and has no spaces and no characters beyond ASCII",
    validation: (token) => /^[!-~]+$/.test(token)
  }),
  Config.map(Redacted.make),
  Config.withDescription("what clients have to know: a bearer token, or the password in http://any:TOKEN@host:port"),
  Config.option
)

/** The headers that a server wants to see, if it has a token. */
export const openenvHeaders: Config.Config<Readonly<Record<string, string>>> = Config.map(
  openenvToken,
  Option.match({
    onNone: () => ({}),
    onSome: (token) => ({ authorization: `Bearer ${Redacted.value(token)}` })
  })
)

/** Which provider reaches the sandboxes of a Terminus server, and why that one. */
export const reachOf = (source: Source & { readonly name: "openenv" }) =>
  Option.match(source.sandboxes, {
    onSome: (name) => Effect.succeed({ name, words: name }),
    onNone: () =>
      Effect.map(
        Config.option(Config.nonEmptyString("E2B_API_KEY")),
        Option.match({
          onNone: () => ({ name: "local" as const, words: "local, since E2B_API_KEY isn't set" }),
          onSome: () => ({ name: "e2b" as const, words: "e2b, since E2B_API_KEY is set" })
        })
      )
  })

/** Where sandboxes come from, for people. */
export const told = (source: Source): Effect.Effect<string, ConfigError> =>
  source.name === "openenv"
    ? Effect.map(reachOf(source), ({ words }) => `openenv (sandboxes: ${words})`)
    : Effect.succeed(source.name)

export const layerOf = (source: Source): Layer.Layer<SandboxProvider, ConfigError> =>
  source.name !== "openenv"
    ? providerOf[source.name]
    : Layer.unwrapEffect(Effect.gen(function*() {
      const [TerminusProvider, NodeTransport] = yield* Effect.promise(() =>
        Promise.all([import("../OpenEnv/TerminusProvider.ts"), import("../OpenEnv/NodeTransport.ts")])
      )
      const names = { url: "--openenv-url", token: "EPISODE_OPENENV_TOKEN", sandboxes: "--openenv-sandboxes" }
      return TerminusProvider.layer({ url: source.url, names }).pipe(
        Layer.provide(NodeTransport.layerWebSocketConstructor({ headers: yield* openenvHeaders })),
        Layer.provide(providerOf[(yield* reachOf(source)).name])
      )
    }))

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
    Layer.provide(layerOf(flags.provider)),
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
    yield* Telling.summary(screen, receipt, yield* ledger.open)
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

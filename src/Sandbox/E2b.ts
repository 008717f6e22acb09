/**
 * Sandboxes of E2B, or of any service that speaks its protocol, through the `e2b` package. That is loaded when a provider
 * is made, and not before.
 *
 * A sandbox ends when it is deleted and with its lifetime; the end of a layer or of a process doesn't end it.
 *
 * The package keeps connections for at most 200 commands at a time, in a process: further ones wait. Where more are to run
 * at once over plain HTTP, set `E2B_ENVD_RPC_CONNECTIONS` in the environment that the process is started with.
 *
 * @since 0.1.0
 */
import * as Config from "effect/Config"
import type * as ConfigError from "effect/ConfigError"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import type * as Scope from "effect/Scope"
import { type Provider, SandboxProvider } from "../Sandbox.ts"
import { type Names, namesOf, variables } from "./E2b/Names.ts"
import * as Implementation from "./E2b/Provider.ts"

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  readonly apiKey: Redacted.Redacted
  /** The template of sandboxes that don't ask for another. It needs a `python3` and a user named `user`. Default `base`. */
  readonly template?: string | undefined
  /** Default `e2b.app`. */
  readonly domain?: string | undefined
  /** Where sandboxes are created and deleted. Default `https://api.DOMAIN`. */
  readonly apiUrl?: string | undefined
  /** Where sandboxes are reached. Default: what the package makes of the domain. */
  readonly sandboxUrl?: string | undefined
}

/**
 * @since 0.1.0
 * @category defaults
 */
export const defaults = { template: "base", domain: "e2b.app" } as const satisfies Partial<Options>

// ----------------------------------------------------------------------------
// config
// ----------------------------------------------------------------------------

const url = (name: string) =>
  Config.nonEmptyString(name).pipe(
    Config.validate({
      message: "not an http or https URL, such as http://127.0.0.1:3100",
      validation: (text) => /^https?:[/][/]/.test(text) && URL.canParse(text)
    })
  )

const optional = (setting: Config.Config<string>, description: string) =>
  setting.pipe(Config.withDescription(description), Config.option, Config.map(Option.getOrUndefined))

const settings = {
  apiKey: Config.nonEmptyString(variables.apiKey).pipe(
    // The message is all that an error shows. That of `Config.redacted` would hide what is missing.
    Config.validate({
      message: "an API key has no spaces and no characters beyond ASCII",
      validation: (key) => /^[!-~]+$/.test(key)
    }),
    Config.map(Redacted.make),
    Config.withDescription("a key of e2b.dev/dashboard?tab=keys, or of the service that E2B_API_URL names")
  ),
  template: optional(Config.nonEmptyString(variables.template), "the template of sandboxes"),
  domain: optional(Config.nonEmptyString(variables.domain), "the domain of the service"),
  apiUrl: optional(url(variables.apiUrl), "where sandboxes are created and deleted"),
  sandboxUrl: optional(url(variables.sandboxUrl), "where sandboxes are reached")
}

const unlessGiven = <A>(given: A | undefined, setting: Config.Config<A>): Config.Config<A> =>
  given === undefined ? setting : Config.succeed(given)

// What is given is not looked for.
const around = (given: Partial<Options>): Config.Config<Options> =>
  Config.all({
    apiKey: unlessGiven(given.apiKey, settings.apiKey),
    template: unlessGiven(given.template, settings.template),
    domain: unlessGiven(given.domain, settings.domain),
    apiUrl: unlessGiven(given.apiUrl, settings.apiUrl),
    sandboxUrl: unlessGiven(given.sandboxUrl, settings.sandboxUrl)
  })

/**
 * Options from the environment: `E2B_API_KEY`, `E2B_DOMAIN`, `E2B_API_URL`, `E2B_SANDBOX_URL`, `EPISODE_E2B_TEMPLATE`.
 *
 * @since 0.1.0
 * @category config
 */
export const config: Config.Config<Options> = around({})

// The package reads it from the process itself, so a ConfigProvider that says otherwise would be wrong about it.
const commandConnections = Config.nonEmptyString("E2B_ENVD_RPC_CONNECTIONS").pipe(
  Config.validate({ message: "not a whole number above 0", validation: (text) => /^0*[1-9][0-9]{0,8}$/.test(text) }),
  Config.map(Number),
  Config.withDefault(200),
  Effect.withConfigProvider(ConfigProvider.fromEnv())
)

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

const make = (
  options: Options,
  names: Names
): Effect.Effect<Provider, ConfigError.ConfigError, Scope.Scope> =>
  Effect.flatMap(commandConnections, (connections) =>
    Implementation.make({
      connection: { ...options, domain: options.domain ?? defaults.domain, names },
      template: options.template ?? defaults.template,
      commandConnections: connections
    }))

/**
 * A provider of E2B sandboxes. It asks for nothing until the first request. How long one may take is said by the budgets of
 * whoever makes it.
 *
 * An `E2B_ENVD_RPC_CONNECTIONS` that the package can't use is a defect.
 *
 * @since 0.1.0
 * @category constructors
 */
export const provider = (options: Options): Effect.Effect<Provider, never, Scope.Scope> =>
  // Whoever gives everything in code has no settings that could be wrong: this one is the package's own.
  Effect.orDie(make(options, namesOf(() => true)))

// ----------------------------------------------------------------------------
// layers
// ----------------------------------------------------------------------------

/**
 * @example
 * ```ts
 * import * as Redacted from "effect/Redacted"
 * import * as E2b from "episode/Sandbox/E2b"
 *
 * const SandboxLive = E2b.layer({ apiKey: Redacted.make("e2b_0123"), template: "my-template" })
 * ```
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (options: Options): Layer.Layer<SandboxProvider> =>
  Layer.scoped(SandboxProvider, provider(options))

/**
 * The options given in code, and the environment's for those that aren't.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerFromEnv = (given: Partial<Options> = {}): Layer.Layer<SandboxProvider, ConfigError.ConfigError> =>
  Layer.scoped(
    SandboxProvider,
    Effect.flatMap(around(given), (options) => make(options, namesOf((option) => given[option] !== undefined)))
  )

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
import { CurrentBudgets } from "../Budgets.ts"
import { type Provider, SandboxProvider } from "../Sandbox.ts"
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
    }),
    Config.option
  )

/**
 * Options from the environment: `E2B_API_KEY`, `E2B_DOMAIN`, `E2B_API_URL`, `E2B_SANDBOX_URL`, `EPISODE_E2B_TEMPLATE`.
 *
 * @since 0.1.0
 * @category config
 */
export const config: Config.Config<Options> = Config.map(
  Config.all({
    apiKey: Config.nonEmptyString("E2B_API_KEY").pipe(
      // The message is all that an error shows. That of `Config.redacted` would hide what is missing.
      Config.validate({
        message: "an API key has no spaces and no characters beyond ASCII",
        validation: (key) => /^[!-~]+$/.test(key)
      }),
      Config.map(Redacted.make),
      Config.withDescription("a key of e2b.dev/dashboard?tab=keys, or of the service that E2B_API_URL names")
    ),
    template: Config.nonEmptyString("EPISODE_E2B_TEMPLATE").pipe(
      Config.withDescription("the template of sandboxes"),
      Config.option
    ),
    domain: Config.nonEmptyString("E2B_DOMAIN").pipe(
      Config.withDescription("the domain of the service"),
      Config.option
    ),
    apiUrl: url("E2B_API_URL").pipe(Config.withDescription("where sandboxes are created and deleted")),
    sandboxUrl: url("E2B_SANDBOX_URL").pipe(Config.withDescription("where sandboxes are reached"))
  }),
  (found) => ({
    apiKey: found.apiKey,
    template: Option.getOrUndefined(found.template),
    domain: Option.getOrUndefined(found.domain),
    apiUrl: Option.getOrUndefined(found.apiUrl),
    sandboxUrl: Option.getOrUndefined(found.sandboxUrl)
  })
)

// The package reads it from the process itself, so a ConfigProvider that says otherwise would be wrong about it.
const commandConnections = Config.integer("E2B_ENVD_RPC_CONNECTIONS").pipe(
  Config.withDefault(200),
  Effect.withConfigProvider(ConfigProvider.fromEnv())
)

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

/**
 * A provider of E2B sandboxes. It asks for nothing until the first request.
 *
 * @since 0.1.0
 * @category constructors
 */
export const provider = (options: Options): Effect.Effect<Provider, ConfigError.ConfigError, Scope.Scope> =>
  Effect.gen(function*() {
    return yield* Implementation.make({
      connection: { ...options, domain: options.domain ?? defaults.domain },
      template: options.template ?? defaults.template,
      budgets: yield* CurrentBudgets,
      commandConnections: yield* commandConnections
    })
  })

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
export const layer = (options: Options): Layer.Layer<SandboxProvider, ConfigError.ConfigError> =>
  Layer.scoped(SandboxProvider, provider(options))

/**
 * The environment's options, and on top of them those given in code.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerFromEnv = (options?: Partial<Options>): Layer.Layer<SandboxProvider, ConfigError.ConfigError> =>
  Layer.scoped(SandboxProvider, Effect.flatMap(config, (found) => provider({ ...found, ...options })))

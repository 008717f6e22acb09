/**
 * The SDK: loaded when it is needed, bound to one configuration, and each call of it an effect.
 *
 * The SDK has clocks and defaults of its own for everything. They are set for every call, so that none of its own is ever
 * in force, and longer than the budget of the same request, so that ours runs out first and says which it was.
 */
import type * as E2bSdk from "e2b"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import type * as Scope from "effect/Scope"
import * as Failure from "./Failure.ts"
import type { Names } from "./Names.ts"
import * as Pauses from "./Pauses.ts"

export type Sdk = typeof E2bSdk

/** A sandbox as the SDK has it. */
export type Machine = InstanceType<Sdk["Sandbox"]>

export interface Connection {
  readonly apiKey: Redacted.Redacted
  readonly domain: string
  /** `https://api.DOMAIN` unless given. */
  readonly apiUrl?: string | undefined
  /** What the SDK makes of the domain, unless given. */
  readonly sandboxUrl?: string | undefined
  readonly names: Names
}

/** What is passed on to a call of a sandbox. */
export interface DataOptions {
  readonly signal: AbortSignal
  readonly requestTimeoutMs: number
}

/** What is passed on to a call of the control plane. */
export interface ControlOptions extends DataOptions {
  /** After a 429 with a `Retry-After` that ends within the time of the request. */
  readonly retries: number
  readonly apiHeaders: Record<string, string>
}

/** Interruption aborts a request. */
export interface Client {
  readonly apiUrl: string
  /** Pages of a list. Nothing is asked before a page is. */
  readonly list: Sdk["Sandbox"]["list"]
  /** A request to the control plane, which knows of every sandbox. */
  readonly control: <A>(
    budget: Duration.Duration,
    request: (Sandbox: Sdk["Sandbox"], options: ControlOptions) => Promise<A>
  ) => Effect.Effect<A, Failure.Failure>
  /** A request to a sandbox itself. */
  readonly data: <A>(
    budget: Duration.Duration,
    request: (options: DataOptions) => Promise<A>
  ) => Effect.Effect<A, Failure.Failure>
}

const margin = Duration.seconds(1)

const retries = 5

// A URL can hold a password.
const hostOf = (url: string): string => URL.canParse(url) ? new URL(url).host : "what isn't a URL"

const sandboxPlace = ({ apiUrl, domain, names, sandboxUrl }: Connection): string =>
  sandboxUrl !== undefined
    ? `the sandbox at ${hostOf(sandboxUrl)}`
    : `the sandbox at ${domain}${apiUrl === undefined ? "" : ` (${names.sandboxUrl} isn't set)`}`

/** For the SDK, which rounds seconds up. */
export const millis = (duration: Duration.Duration): number => Math.ceil(Duration.toMillis(duration))

export const make = (connection: Connection): Effect.Effect<Client, never, Scope.Scope> =>
  Effect.zipWith(Effect.promise(() => import("e2b")), Pauses.make, (sdk, pauses) => {
    const { apiKey, domain, sandboxUrl } = connection
    const apiUrl = connection.apiUrl ?? `https://api.${domain}`
    const { Sandbox } = new sdk.E2B({
      apiKey: Redacted.value(apiKey),
      domain,
      apiUrl,
      ...(sandboxUrl === undefined ? {} : { sandboxUrl }),
      debug: false,
      // It has nothing to say on our console, whatever E2B_USER_AGENT_SOURCE is.
      logger: {}
    })
    const within = (budget: Duration.Duration) => millis(Duration.sum(budget, margin))
    return {
      apiUrl,
      list: (options) => Sandbox.list(options),
      control: (budget, request) =>
        pauses.observed((headers) =>
          Effect.tryPromise({
            try: (signal) =>
              request(Sandbox, { signal, requestTimeoutMs: within(budget), retries, apiHeaders: { ...headers } }),
            catch: Failure.ofControl(sdk, `the E2B API at ${hostOf(apiUrl)}`)
          })
        ),
      data: (budget, request) =>
        Effect.tryPromise({
          try: (signal) => request({ signal, requestTimeoutMs: within(budget) }),
          catch: Failure.ofData(sdk, sandboxPlace(connection))
        })
    }
  })

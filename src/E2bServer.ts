/**
 * A server that speaks E2B: its control plane and its envd over HTTP, on top of any provider of sandboxes. An unmodified
 * E2B SDK runs against it, with no account.
 *
 * The provider alone gives the control plane and health checks. With a `MachineProvider` (`Sandbox/Machine`) beside it,
 * as `Sandbox/Local` has one, there are commands, terminals, files and the code interpreter, too. Without one those are
 * answered with `unimplemented`, as are snapshots, pausing, forking, volumes and templates with any provider.
 *
 * @since 0.1.0
 */
import type * as HttpServer from "@effect/platform/HttpServer"
import type { ServeError } from "@effect/platform/HttpServerError"
import * as HttpServerRequest from "@effect/platform/HttpServerRequest"
import * as Arr from "effect/Array"
import * as Config from "effect/Config"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import { controlPlane, Settings } from "./E2bServer/ControlPlane.ts"
import { dataPlane, signedFiles } from "./E2bServer/Envd.ts"
import * as Fleet from "./E2bServer/Fleet.ts"
import * as NodeServer from "./E2bServer/NodeServer.ts"
import * as Refused from "./E2bServer/Refused.ts"
import * as Secrets from "./E2bServer/Secrets.ts"
import { Transport } from "./E2bServer/Transport.ts"
import * as Rules from "./internal/options.ts"
import type { SandboxProvider } from "./Sandbox.ts"
import type { Ledger } from "./Sandbox/Ledger.ts"
import * as Sandboxes from "./Sandbox/Sandboxes.ts"

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /** Default: a free one. */
  readonly port?: number | undefined
  /**
   * Where to listen, on the same port. More than one loopback address is for clients of many sandboxes: the SDK has 200
   * connections for commands and 10 for files to each. Default `127.0.0.1`.
   */
  readonly hosts?: Arr.NonEmptyReadonlyArray<string> | undefined
  /** Any of them is good. Default: one that is made up. */
  readonly apiKeys?: Arr.NonEmptyReadonlyArray<Redacted.Redacted> | undefined
  /** Names that a sandbox can be asked for by, all for the provider's own template. */
  readonly templates?: ReadonlyArray<string> | undefined
  /** How many sandboxes there may be at once. Default 256. */
  readonly maxSandboxes?: number | undefined
  /** The longest life of a sandbox, counted from its start; at most 24 days. Default a day. */
  readonly maxLifetime?: Duration.DurationInput | undefined
}

/**
 * A running server, as its clients need to know it.
 *
 * @since 0.1.0
 * @category models
 */
export interface Address {
  /** One for each host: what the SDK takes for `apiUrl` and `sandboxUrl`. */
  readonly urls: Arr.NonEmptyReadonlyArray<string>
  readonly apiKey: Redacted.Redacted
}

// ----------------------------------------------------------------------------
// errors
// ----------------------------------------------------------------------------

/**
 * A server can't be as it is asked for. A mistake of the program that makes it.
 *
 * @since 0.1.0
 * @category errors
 */
export class InvalidOptions extends Schema.TaggedError<InvalidOptions>("episode/E2bServer/InvalidOptions")(
  "InvalidOptions",
  { issues: Schema.NonEmptyArray(Schema.Struct({ field: Schema.String, message: Schema.String })) }
) {
  override get message(): string {
    return Rules.sentence(this.issues)
  }
}

// ----------------------------------------------------------------------------
// tag
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category tags
 */
export class E2bServer extends Context.Tag("episode/E2bServer")<E2bServer, Address>() {}

// ----------------------------------------------------------------------------
// config
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category defaults
 */
export const defaults = {
  hosts: ["127.0.0.1"],
  templates: ["base", "code-interpreter-v1"],
  maxSandboxes: 256,
  maxLifetime: Duration.days(1)
} as const

/**
 * The key from the environment: `EPISODE_E2B_SERVER_KEY`.
 *
 * @since 0.1.0
 * @category config
 */
export const config: Config.Config<Pick<Options, "apiKeys">> = Config.map(
  Config.redacted(Config.nonEmptyString("EPISODE_E2B_SERVER_KEY")).pipe(
    Config.withDescription("the API key that clients of the E2B server have"),
    Config.option
  ),
  Option.match({ onNone: () => ({}), onSome: (key) => ({ apiKeys: [key] as const }) })
)

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

const app = Effect.gen(function*() {
  const { headers, url } = yield* HttpServerRequest.HttpServerRequest
  const sandboxId = headers["e2b-sandbox-id"]
  const port = headers["e2b-sandbox-port"]
  if (sandboxId !== undefined || port !== undefined) {
    return yield* dataPlane(sandboxId, port)
  }
  return yield* url.split("?")[0] === "/files" ? signedFiles : controlPlane
}).pipe(Effect.catchAllDefect(Refused.defect), Effect.interruptible)

const urlOf = ({ address }: HttpServer.HttpServer): string =>
  address._tag === "TcpAddress"
    ? `http://${address.hostname.includes(":") ? `[${address.hostname}]` : address.hostname}:${address.port}`
    : address.path

const portOf = ({ address }: HttpServer.HttpServer): number => address._tag === "TcpAddress" ? address.port : 0

const isKey = (key: unknown): boolean => Redacted.isRedacted(key) && String(Redacted.value(key)).trim() !== ""

const rules: { readonly [K in keyof Options]-?: Rules.Rule } = {
  port: Rules.wholeNumber(0, 65_535),
  hosts: {
    isMet: (hosts) => Arr.isArray(hosts) && hosts.length > 0 && hosts.every((host) => typeof host === "string"),
    message: "at least one address"
  },
  apiKeys: {
    isMet: (keys) => Arr.isArray(keys) && keys.length > 0 && keys.every(isKey),
    message: "at least one key, and none is blank"
  },
  templates: {
    isMet: (names) => Arr.isArray(names) && names.every((name) => typeof name === "string"),
    message: "names"
  },
  maxSandboxes: Rules.wholeNumber(1),
  maxLifetime: Rules.time
}

const check = (options: Options): Effect.Effect<void, InvalidOptions> =>
  Option.match(Rules.issuesOf(rules, options), {
    onNone: () => Effect.void,
    onSome: (issues) => new InvalidOptions({ issues })
  })

const listen = (options: Options, limits: Fleet.Limits) =>
  Effect.gen(function*() {
    const [first, ...others] = options.hosts ?? defaults.hosts
    const apiKeys = options.apiKeys ?? [yield* Secrets.apiKey]
    const settings = {
      apiKeys,
      templates: options.templates ?? defaults.templates,
      limits
    }
    const open = (host: string, port: number) =>
      Effect.tap(NodeServer.listen({ host, port }), (server) =>
        server.serve(
          app.pipe(Effect.provideService(Settings, settings), Effect.provideService(Transport, NodeServer.transport))
        ))
    const server = yield* open(first, options.port ?? 0)
    const more = yield* Effect.forEach(others, (host) => open(host, portOf(server)))
    const urls = [urlOf(server), ...more.map(urlOf)] as const
    return { urls, apiKey: apiKeys[0] }
  })

// ----------------------------------------------------------------------------
// layers
// ----------------------------------------------------------------------------

/**
 * Serves until the layer's end. Then connections break, and every sandbox is ended and proved gone; what can't be proved
 * stays in the ledger.
 *
 * @example
 * ```ts
 * import * as E2bServer from "episode/E2bServer"
 * import * as Ledger from "episode/Sandbox/Ledger"
 * import * as Local from "episode/Sandbox/Local"
 * import { NodeRuntime } from "@effect/platform-node"
 * import { Effect, Layer, Redacted } from "effect"
 *
 * const ServerLive = E2bServer.layer({ port: 3000 }).pipe(
 *   Layer.provide(Local.layer({ root: "writable" })),
 *   Layer.provide(Local.layerMachine()),
 *   Layer.provide(Ledger.layerMemory)
 * )
 *
 * const program = Effect.gen(function*() {
 *   const { apiKey, urls } = yield* E2bServer.E2bServer
 *   yield* Effect.log(`E2B_API_URL=${urls[0]} E2B_SANDBOX_URL=${urls[0]} E2B_API_KEY=${Redacted.value(apiKey)}`)
 *   return yield* Effect.never
 * })
 *
 * // Until it is interrupted.
 * NodeRuntime.runMain(Effect.provide(program, ServerLive))
 * ```
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (
  options: Options = {}
): Layer.Layer<E2bServer, ServeError | InvalidOptions, SandboxProvider | Ledger> =>
  Layer.unwrapEffect(Effect.map(check(options), () => {
    const limits: Fleet.Limits = {
      sandboxes: options.maxSandboxes ?? defaults.maxSandboxes,
      lifetime: Duration.decode(options.maxLifetime ?? defaults.maxLifetime)
    }
    return Layer.scoped(E2bServer, listen(options, limits)).pipe(
      Layer.provide(Fleet.layer(limits)),
      // Its own: an `Episode` beside it may own sandboxes of another provider, and layers are shared by reference.
      Layer.provide(Layer.fresh(Sandboxes.layer))
    )
  }))

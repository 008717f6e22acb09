/**
 * Environments for OpenEnv clients: a server that speaks WebSocket, HTTP and MCP, over the `Episode` service, or with a bare
 * terminal over `Sandboxes`.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import { Episode } from "./Episode.ts"
import * as Rules from "./internal/options.ts"
import * as Connection from "./OpenEnv/Connection.ts"
import type { Kind } from "./OpenEnv/Environment.ts"
import * as EpisodeEnvironment from "./OpenEnv/EpisodeEnvironment.ts"
import * as Guards from "./OpenEnv/Guard.ts"
import * as Routes from "./OpenEnv/Routes.ts"
import * as Sessions from "./OpenEnv/Sessions.ts"
import * as TerminusEnvironment from "./OpenEnv/TerminusEnvironment.ts"
import type { Handshake, HandshakeAnswer, ListenFailed } from "./OpenEnv/Transport.ts"
import { Transport } from "./OpenEnv/Transport.ts"
import type { LedgerEntry } from "./Sandbox/Ledger.ts"
import { Sandboxes } from "./Sandbox/Sandboxes.ts"
import type { Task } from "./Task.ts"

export type { ListenFailed }

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * What every server can be told.
 *
 * @since 0.1.0
 * @category models
 */
export interface ServerOptions {
  /** Default `127.0.0.1`. Any other than this machine's own loopback needs a token. */
  readonly host?: string | undefined
  /** 0 for a free one. Default 8010; 8000 for Terminus. */
  readonly port?: number | undefined
  /** What a client has to know; a blank one is refused. Default: nothing. */
  readonly token?: Redacted.Redacted | undefined
  /** How many sessions there may be at a time; each can hold one sandbox. Default 2; 4 for Terminus. */
  readonly maxSessions?: number | undefined
  /**
   * Arguments of `reset` that are taken and ignored, because trainers pass on every column of their dataset. Any other
   * that the environment doesn't know is refused. Default: see `defaults`.
   */
  readonly columns?: ReadonlyArray<string> | undefined
  /** How long a session may do nothing. Default 15 minutes. */
  readonly idleTimeout?: Duration.DurationInput | undefined
  /** How long a session of MCP may do nothing while no socket is attached to it. Default 10 seconds. */
  readonly detachedTimeout?: Duration.DurationInput | undefined
  /** How often a socket is asked for a sign of life. Default 20 seconds. */
  readonly pingInterval?: Duration.DurationInput | undefined
  /** How long it may take to give one. Default 20 seconds. */
  readonly pingTimeout?: Duration.DurationInput | undefined
  /** How long the end of the server waits for sandboxes to be proved gone. Default 60 seconds. */
  readonly shutdownTimeout?: Duration.DurationInput | undefined
  /** The largest message or request body. Default 8 MiB: a task file can have 4. */
  readonly maxFrameBytes?: number | undefined
  /** The longest command. Default 96 KiB: Linux takes no argument of more than 128. */
  readonly maxCommandBytes?: number | undefined
}

/**
 * @since 0.1.0
 * @category models
 */
export interface Options extends ServerOptions {
  /** For a reset that names no task. Default: none, so that every reset has to. */
  readonly task?: Task | undefined
}

/**
 * @since 0.1.0
 * @category models
 */
export interface TerminusOptions extends ServerOptions {
  /** After this long the provider ends a sandbox by itself. Default 300 seconds. */
  readonly lifetime?: Duration.DurationInput | undefined
  /** How long one command may take; then it is killed. Default 120 seconds. */
  readonly commandLimit?: Duration.DurationInput | undefined
  /**
   * What is kept of each stream of a command, in bytes; the middle of more is left out. Default 1 MiB. A reply has 8 MiB at
   * most, in which a control character takes 18 bytes: what is too much for that is left out as well.
   */
  readonly outputCap?: number | undefined
}

/**
 * What a server uses where its options say nothing.
 *
 * @since 0.1.0
 * @category defaults
 */
export const defaults = {
  host: "127.0.0.1",
  port: 8010,
  maxSessions: 2,
  columns: ["prompt", "environment", "task_id"],
  idleTimeout: Duration.minutes(15),
  detachedTimeout: Duration.seconds(10),
  pingInterval: Duration.seconds(20),
  pingTimeout: Duration.seconds(20),
  shutdownTimeout: Duration.seconds(60),
  maxFrameBytes: 8 * 1024 * 1024,
  maxCommandBytes: 96 * 1024
} as const

/**
 * The same for a server of Terminus.
 *
 * @since 0.1.0
 * @category defaults
 */
export const terminusDefaults = {
  ...defaults,
  port: 8000,
  maxSessions: 4,
  lifetime: Duration.seconds(300),
  commandLimit: Duration.seconds(120),
  outputCap: 1024 * 1024
} as const

// ----------------------------------------------------------------------------
// errors
// ----------------------------------------------------------------------------

/**
 * The server would be reachable from other machines, and has no token to tell its clients by.
 *
 * @since 0.1.0
 * @category errors
 */
export class TokenRequired extends Schema.TaggedError<TokenRequired>("episode/OpenEnv/TokenRequired")("TokenRequired", {
  host: Schema.String
}) {
  override get message(): string {
    return `${this.host} can be reached from other machines, and whoever reaches it can run commands in sandboxes: `
      + "a server there needs a token"
  }
}

/**
 * A server can't be as it is asked for. A mistake of the program that makes it.
 *
 * @since 0.1.0
 * @category errors
 */
export class InvalidOptions extends Schema.TaggedError<InvalidOptions>("episode/OpenEnv/InvalidOptions")(
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
 * A server that is running.
 *
 * @since 0.1.0
 * @category tags
 */
export class OpenEnvServer extends Context.Tag("episode/OpenEnv/OpenEnvServer")<OpenEnvServer, {
  readonly host: string
  readonly port: number
  /** What clients are given as their base URL. */
  readonly url: string
  /** How many places are taken. */
  readonly sessions: Effect.Effect<number>
  /** Sandboxes that aren't proved gone. */
  readonly open: Effect.Effect<ReadonlyArray<LedgerEntry>>
}>() {}

// ----------------------------------------------------------------------------
// layers
// ----------------------------------------------------------------------------

type Given<A> = { readonly [K in keyof A]: Exclude<A[K], undefined> }

const given = <A extends ServerOptions>(options: A): Given<A> =>
  // The same fields, without those that are undefined.
  Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as Given<A>

const handshake =
  (guard: Guards.Guard, connection: Connection.Options) =>
  ({ headers, url }: Handshake): Effect.Effect<HandshakeAnswer> =>
    Effect.map(guard(headers), (refusal): HandshakeAnswer => {
      if (Option.isSome(refusal)) {
        return { _tag: "Refuse", status: refusal.value }
      }
      const [path, query = ""] = url.split("?", 2)
      switch (path) {
        case "/ws":
          return {
            _tag: "Accept",
            serve: Connection.frameSocket(
              connection,
              Option.fromNullable(new URLSearchParams(query).get("session_id"))
            )
          }
        case "/mcp":
          return { _tag: "Accept", serve: Connection.rpcSocket(connection) }
        default:
          return { _tag: "Refuse", status: 404 }
      }
    })

type Settings = Given<Required<Omit<ServerOptions, "token">>> & Pick<ServerOptions, "token">

const isToken = (token: unknown): boolean => Redacted.isRedacted(token) && Guards.isToken(String(Redacted.value(token)))

const rules: { readonly [K in keyof ServerOptions | keyof TerminusOptions]?: Rules.Rule } = {
  port: Rules.wholeNumber(0, 65_535),
  token: { isMet: isToken, message: "a token that isn't blank" },
  maxSessions: Rules.wholeNumber(1),
  idleTimeout: Rules.time,
  detachedTimeout: Rules.time,
  pingInterval: Rules.time,
  pingTimeout: Rules.time,
  shutdownTimeout: Rules.time,
  maxFrameBytes: Rules.wholeNumber(1),
  maxCommandBytes: Rules.wholeNumber(1),
  lifetime: Rules.time,
  commandLimit: Rules.time,
  outputCap: Rules.wholeNumber(1)
}

const check = (settings: Settings & TerminusOptions): Effect.Effect<void, InvalidOptions> =>
  Option.match(Rules.issuesOf(rules, settings), {
    onNone: () => Effect.void,
    onSome: (issues) => new InvalidOptions({ issues })
  })

// A server of any environment. The environment's own options are good when it is made.
const serving = <E, R, R2>(
  settings: Settings,
  environment: () => Effect.Effect<Kind, E, R>,
  ownerOf: Effect.Effect<{ readonly held: Effect.Effect<ReadonlyArray<LedgerEntry>> }, never, R2>
) =>
  Layer.scoped(
    OpenEnvServer,
    Effect.gen(function*() {
      const token = Option.fromNullable(settings.token)
      if (!Option.exists(token, isToken) && !Guards.isLoopback(settings.host)) {
        return yield* new TokenRequired({ host: settings.host })
      }
      yield* check(settings)
      const { held } = yield* ownerOf
      const transport = yield* Transport
      yield* Effect.addFinalizer(() =>
        Effect.flatMap(held, (left) =>
          left.length === 0 ? Effect.void : Effect.logWarning("sandboxes that are not proved gone", left))
      )
      const kind = yield* environment()
      const sessions = yield* Sessions.make({
        kind,
        maxSessions: settings.maxSessions,
        idleTimeout: Duration.decode(settings.idleTimeout),
        detachedTimeout: Duration.decode(settings.detachedTimeout),
        shutdownTimeout: Duration.decode(settings.shutdownTimeout)
      })
      const guard = yield* Guards.make({ host: settings.host, token })
      const { app } = yield* Routes.make({ kind, sessions, guard, held, maxFrameBytes: settings.maxFrameBytes })
      const { host, port } = yield* transport.listen({
        host: settings.host,
        port: settings.port,
        maxFrameBytes: settings.maxFrameBytes,
        http: app,
        handshake: handshake(guard, {
          sessions,
          pingInterval: Duration.decode(settings.pingInterval),
          pingTimeout: Duration.decode(settings.pingTimeout)
        })
      })
      return {
        host,
        port,
        url: `http://${host.includes(":") ? `[${host}]` : host}:${port}`,
        sessions: sessions.count,
        open: held
      }
    })
  )

/**
 * A server of episodes. At its end nobody is let in any more, every episode ends and its sandboxes are deleted; what isn't
 * proved gone within `shutdownTimeout` is logged.
 *
 * @example
 * ```ts
 * import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import * as Episode from "episode/Episode"
 * import * as OpenEnv from "episode/OpenEnv"
 * import * as NodeTransport from "episode/OpenEnv/NodeTransport"
 * import * as Local from "episode/Sandbox/Local"
 *
 * const server = OpenEnv.layer({ maxSessions: 8 }).pipe(
 *   Layer.provide(NodeTransport.layer),
 *   Layer.provide(Episode.layer),
 *   Layer.provide(Local.layer())
 * )
 *
 * const program = Effect.gen(function*() {
 *   const { url } = yield* OpenEnv.OpenEnvServer
 *   yield* Effect.log(`serving at ${url}, with a page for people at ${url}/web`)
 *   return yield* Effect.never
 * })
 *
 * // Until it is interrupted.
 * NodeRuntime.runMain(Effect.provide(program, server))
 * ```
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (
  options: Options = {}
): Layer.Layer<OpenEnvServer, ListenFailed | TokenRequired | InvalidOptions, Episode | Transport> => {
  const settings = { ...defaults, ...given(options) }
  return serving(
    settings,
    () =>
      EpisodeEnvironment.make({
        task: Option.fromNullable(settings.task),
        columns: new Set(settings.columns),
        maxCommandBytes: settings.maxCommandBytes
      }),
    Episode
  )
}

/**
 * A server of the native Terminus environment: a bare terminal, with setup and verify commands that the client brings. Its
 * reward is no score of ours, because it is found out where the policy worked. At the server's end all is as with `layer`.
 *
 * @example
 * ```ts
 * import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import * as OpenEnv from "episode/OpenEnv"
 * import * as NodeTransport from "episode/OpenEnv/NodeTransport"
 * import * as Ledger from "episode/Sandbox/Ledger"
 * import * as Local from "episode/Sandbox/Local"
 * import * as Sandboxes from "episode/Sandbox/Sandboxes"
 *
 * const server = OpenEnv.layerTerminus({ lifetime: "10 minutes" }).pipe(
 *   Layer.provide(NodeTransport.layer),
 *   Layer.provide(Sandboxes.layer),
 *   Layer.provide(Ledger.layerMemory),
 *   Layer.provide(Local.layer())
 * )
 *
 * const program = Effect.gen(function*() {
 *   const { url } = yield* OpenEnv.OpenEnvServer
 *   yield* Effect.log(`serving at ${url}`)
 *   return yield* Effect.never
 * })
 *
 * // Until it is interrupted.
 * NodeRuntime.runMain(Effect.provide(program, server))
 * ```
 *
 * @since 0.1.0
 * @category layers
 */
export const layerTerminus = (
  options: TerminusOptions = {}
): Layer.Layer<OpenEnvServer, ListenFailed | TokenRequired | InvalidOptions, Sandboxes | Transport> => {
  const settings = { ...terminusDefaults, ...given(options) }
  return serving(
    settings,
    () =>
      TerminusEnvironment.make({
        columns: new Set(settings.columns),
        maxCommandBytes: settings.maxCommandBytes,
        lifetime: Duration.decode(settings.lifetime),
        commandLimit: Duration.decode(settings.commandLimit),
        outputCap: settings.outputCap
      }),
    Sandboxes
  )
}

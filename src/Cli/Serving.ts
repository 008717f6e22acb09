/**
 * What the servers of OpenEnv environments have in common: where they listen, whom they let in, and until when.
 */
import * as Options from "@effect/cli/Options"
import * as Config from "effect/Config"
import type { ConfigError } from "effect/ConfigError"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type { InvalidBudgets } from "../Budgets.ts"
import type * as OpenEnv from "../OpenEnv.ts"
import type { Transport } from "../OpenEnv/Transport.ts"
import type { Ledger } from "../Sandbox/Ledger.ts"
import * as Episodes from "./Episodes.ts"
import { NotReady, Usage } from "./Exit.ts"

export const flags = (defaults: { readonly port: number; readonly maxSessions: number }) => ({
  port: Options.integer("port").pipe(
    Options.withDefault(defaults.port),
    Options.withDescription("where to listen; 0 for a free port")
  ),
  host: Options.text("host").pipe(
    Options.withDefault("127.0.0.1"),
    Options.withDescription("the address to listen on; any but this machine's own needs EPISODE_OPENENV_TOKEN")
  ),
  maxSessions: Options.integer("max-sessions").pipe(
    Options.withDefault(defaults.maxSessions),
    Options.withDescription("how many clients at a time; each can hold one sandbox")
  ),
  column: Options.text("column").pipe(
    Options.repeated,
    Options.withDescription("a dataset column that reset takes and ignores, beside prompt, environment and task_id")
  ),
  provider: Episodes.provider
})

export interface Flags {
  readonly port: number
  readonly host: string
  readonly maxSessions: number
  readonly column: ReadonlyArray<string>
}

const token = Config.redacted("EPISODE_OPENENV_TOKEN").pipe(
  Config.withDescription("what clients have to know: a bearer token, or the password in http://any:TOKEN@host:port"),
  Config.option
)

// Loaded when it is needed: no other command opens a port.
const modules = Effect.promise(() => Promise.all([import("../OpenEnv.ts"), import("../OpenEnv/NodeTransport.ts")]))

type Server = Layer.Layer<
  OpenEnv.OpenEnvServer,
  OpenEnv.ListenFailed | OpenEnv.TokenRequired | InvalidBudgets | ConfigError,
  Transport | Ledger
>

/** Serves until it is interrupted. The URL is all that standard output gets. */
export const serve = <E, R>(
  { column, host, maxSessions, port }: Flags,
  server: (module: typeof OpenEnv, options: OpenEnv.ServerOptions) => Effect.Effect<Server, E, R>,
  welcome: (url: string) => string
) =>
  Effect.gen(function*() {
    if (maxSessions < 1) {
      return yield* new Usage({ message: `--max-sessions is at least 1, not ${maxSessions}` })
    }
    if (port < 0 || port > 65535) {
      return yield* new Usage({ message: `--port is 0 to 65535, not ${port}` })
    }
    const [module, NodeTransport] = yield* modules
    const layer = yield* server(module, {
      host,
      port,
      maxSessions,
      columns: [...module.defaults.columns, ...column],
      token: Option.getOrUndefined(yield* token)
    })
    return yield* Effect.flatMap(module.OpenEnvServer, ({ url }) =>
      Console.log(url).pipe(
        Effect.zipRight(Console.error(welcome(url))),
        Effect.zipRight(Console.error("serving until it is interrupted")),
        Effect.zipRight(Effect.never)
      )).pipe(
        Effect.provide(Layer.provide(layer, NodeTransport.layer)),
        Effect.catchTags({
          ListenFailed: ({ message }) => new NotReady({ message }),
          TokenRequired: ({ message }) => new Usage({ message: `${message}; set EPISODE_OPENENV_TOKEN` })
        })
      )
  })

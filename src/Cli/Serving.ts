/**
 * What the servers of OpenEnv environments have in common: where they listen, whom they let in, and until when.
 */
import * as Options from "@effect/cli/Options"
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
import * as Hosts from "./Hosts.ts"

export const flags = (defaults: { readonly port: number; readonly maxSessions: number }) => ({
  port: Episodes.port(defaults.port).pipe(
    Options.withDescription(`where to listen, ${defaults.port} unless given; 0 for a free port`)
  ),
  host: Episodes.host.pipe(
    Options.withDescription(
      "the address to listen on, 127.0.0.1 unless given; any but this machine's own needs EPISODE_OPENENV_TOKEN"
    )
  ),
  maxSessions: Episodes.integer("max-sessions", { default: defaults.maxSessions, min: 1 }).pipe(
    Options.withDescription(
      `how many clients at a time, ${defaults.maxSessions} unless given; each can hold one sandbox`
    )
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

// Loaded when it is needed: no other command opens a port.
const modules = Effect.promise(() => Promise.all([import("../OpenEnv.ts"), import("../OpenEnv/NodeTransport.ts")]))

type Server = Layer.Layer<
  OpenEnv.OpenEnvServer,
  OpenEnv.ListenFailed | OpenEnv.TokenRequired | OpenEnv.InvalidOptions | InvalidBudgets | ConfigError,
  Transport | Ledger
>

/** Serves until it is interrupted. The URL is all that standard output gets. */
export const serve = <E, R>(
  { column, host, maxSessions, port }: Flags,
  server: (module: typeof OpenEnv, options: OpenEnv.ServerOptions) => Effect.Effect<Server, E, R>,
  about: {
    /** The arguments that a reset knows. */
    readonly resetArguments: Effect.Effect<ReadonlyArray<string>>
    readonly welcome: (url: string) => ReadonlyArray<string>
  }
) =>
  Effect.gen(function*() {
    const known = yield* about.resetArguments
    const own = column.find((name) => known.includes(name))
    if (own !== undefined) {
      return yield* new Usage({ message: `--column ${own}: a reset has an argument of that name, which isn't ignored` })
    }
    const [module, NodeTransport] = yield* modules
    const layer = yield* server(module, {
      host,
      port,
      maxSessions,
      columns: [...module.defaults.columns, ...column],
      token: Option.getOrUndefined(yield* Episodes.openenvToken)
    })
    return yield* Effect.flatMap(module.OpenEnvServer, (server) => {
      const url = Hosts.reachable(host, server.url)
      return Console.log(url).pipe(
        Effect.zipRight(
          Effect.forEach(
            [...about.welcome(url), ...Hosts.elsewhere(host, url), "serving until it is interrupted"],
            (line) => Console.error(line)
          )
        ),
        Effect.zipRight(Effect.never)
      )
    }).pipe(
      Effect.provide(Layer.provide(layer, NodeTransport.layer)),
      Effect.catchTags({
        ListenFailed: ({ message }) => new NotReady({ message }),
        InvalidOptions: ({ message }) => new Usage({ message }),
        TokenRequired: ({ message }) =>
          Effect.flatMap(Hosts.isKnown(host), (known) =>
            known
              ? new Usage({ message: `${message}; set EPISODE_OPENENV_TOKEN` })
              : new Usage({ message: `--host ${host}: this machine has no such address` }))
      })
    )
  })

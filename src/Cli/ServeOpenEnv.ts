/**
 * `episode serve openenv`: episodes for OpenEnv clients, on any provider.
 */
import * as Command from "@effect/cli/Command"
import * as Options from "@effect/cli/Options"
import * as Config from "effect/Config"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Budgets from "../Budgets.ts"
import * as Episode from "../Episode.ts"
import * as Episodes from "./Episodes.ts"
import { NotReady, Usage } from "./Exit.ts"
import * as Files from "./Files.ts"

const flags = {
  port: Options.integer("port").pipe(
    Options.withDefault(8010),
    Options.withDescription("where to listen; 0 for a free port")
  ),
  host: Options.text("host").pipe(
    Options.withDefault("127.0.0.1"),
    Options.withDescription("the address to listen on; any but this machine's own needs EPISODE_OPENENV_TOKEN")
  ),
  maxSessions: Options.integer("max-sessions").pipe(
    Options.withDefault(2),
    Options.withDescription("how many clients at a time; each can hold one sandbox")
  ),
  column: Options.text("column").pipe(
    Options.repeated,
    Options.withDescription("a dataset column that reset takes and ignores, beside prompt, environment and task_id")
  ),
  task: Options.text("task").pipe(
    Options.withPseudoName("file"),
    Options.optional,
    Options.withDescription("the task for a reset that names none")
  ),
  provider: Episodes.provider
}

const token = Config.redacted("EPISODE_OPENENV_TOKEN").pipe(
  Config.withDescription("what clients have to know: a bearer token, or the password in http://any:TOKEN@host:port"),
  Config.option
)

// Loaded when it is needed: no other command opens a port.
const modules = Effect.promise(() => Promise.all([import("../OpenEnv.ts"), import("../OpenEnv/NodeTransport.ts")]))

/** A subcommand of `episode serve`. */
export const openenv = Command.make(
  "openenv",
  flags,
  ({ column, host, maxSessions, port, provider, task }) =>
    Effect.gen(function*() {
      if (maxSessions < 1) {
        return yield* new Usage({ message: `--max-sessions is at least 1, not ${maxSessions}` })
      }
      if (port < 0 || port > 65535) {
        return yield* new Usage({ message: `--port is 0 to 65535, not ${port}` })
      }
      const [OpenEnv, NodeTransport] = yield* modules
      const server = OpenEnv.layer({
        host,
        port,
        maxSessions,
        columns: [...OpenEnv.defaults.columns, ...column],
        token: Option.getOrUndefined(yield* token),
        task: Option.getOrUndefined(yield* Effect.transposeOption(Option.map(task, Files.readTask)))?.task
      }).pipe(
        Layer.provide(NodeTransport.layer),
        Layer.provide(Episode.layerWithLedger()),
        Layer.provide(Episodes.providerOf[provider]),
        Layer.provide(Budgets.layerFromEnv())
      )
      return yield* Effect.flatMap(OpenEnv.OpenEnvServer, ({ url }) =>
        Console.log(url).pipe(
          Effect.zipRight(Console.error(`clients connect to ${url}; a page for people is at ${url}/web`)),
          Effect.zipRight(Console.error("serving until it is interrupted")),
          Effect.zipRight(Effect.never)
        )).pipe(
          Effect.provide(server),
          Effect.catchTags({
            ListenFailed: ({ message }) => new NotReady({ message }),
            TokenRequired: ({ message }) => new Usage({ message: `${message}; set EPISODE_OPENENV_TOKEN` })
          })
        )
    })
).pipe(Command.withDescription("Serve episodes to OpenEnv clients, until it is interrupted"))

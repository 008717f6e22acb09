/**
 * `episode serve terminus`: the native Terminus environment for OpenEnv clients, on any provider.
 */
import * as Command from "@effect/cli/Command"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Budgets from "../Budgets.ts"
import * as Sandboxes from "../Sandbox/Sandboxes.ts"
import * as Episodes from "./Episodes.ts"
import * as Serving from "./Serving.ts"

/** A subcommand of `episode serve`. */
export const terminus = Command.make(
  "terminus",
  Serving.flags({ port: 8000, maxSessions: 4 }),
  ({ provider, ...flags }) =>
    Serving.serve(
      flags,
      (OpenEnv, options) =>
        Effect.succeed(
          OpenEnv.layerTerminus(options).pipe(
            Layer.provide(Sandboxes.layer),
            Layer.provide(Episodes.providerOf[provider]),
            Layer.provide(Budgets.layerFromEnv())
          )
        ),
      {
        resetArguments: Effect.map(
          Effect.promise(() => import("../OpenEnv/Terminus.ts")),
          ({ ResetArguments }) => Object.keys(ResetArguments.fields)
        ),
        welcome: (url) => [`clients connect to ${url}; its rewards can be trusted as far as the policies can`]
      }
    )
).pipe(Command.withDescription("Serve bare terminals to OpenEnv clients, until it is interrupted"))

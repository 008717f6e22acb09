/**
 * `episode serve openenv`: episodes for OpenEnv clients, on any provider.
 */
import * as Command from "@effect/cli/Command"
import * as Options from "@effect/cli/Options"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Budgets from "../Budgets.ts"
import * as Episode from "../Episode.ts"
import * as Episodes from "./Episodes.ts"
import * as Files from "./Files.ts"
import * as Serving from "./Serving.ts"

const flags = {
  ...Serving.flags({ port: 8010, maxSessions: 2 }),
  task: Options.text("task").pipe(
    Options.withPseudoName("file"),
    Options.optional,
    Options.withDescription("the task for a reset that names none; without it every reset has to bring one")
  )
}

/** A subcommand of `episode serve`. */
export const openenv = Command.make("openenv", flags, ({ provider, task, ...flags }) =>
  Serving.serve(
    flags,
    (OpenEnv, options) =>
      Effect.map(Effect.transposeOption(Option.map(task, Files.readTask)), (read) =>
        OpenEnv.layer({ ...options, task: Option.getOrUndefined(read)?.task }).pipe(
          Layer.provide(Episode.layerWithLedger()),
          Layer.provide(Episodes.providerOf[provider]),
          Layer.provide(Budgets.layerFromEnv())
        )),
    {
      resetArguments: Effect.map(
        Effect.promise(() =>
          import("../OpenEnv/Wire.ts")
        ),
        ({ ResetArguments }) => Object.keys(ResetArguments.fields)
      ),
      welcome: (url) => [
        `clients connect to ${url}; a page for people is at ${url}/web`,
        ...(Option.isNone(task) ? ["every reset has to bring a task: there is no --task"] : [])
      ]
    }
  )).pipe(Command.withDescription("Serve episodes to OpenEnv clients, until it is interrupted"))

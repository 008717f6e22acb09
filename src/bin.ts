/**
 * The entry point: layers and runMain, nothing else.
 */
import * as NodeFileSystem from "@effect/platform-node/NodeFileSystem"
import * as NodePath from "@effect/platform-node/NodePath"
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as NodeTerminal from "@effect/platform-node/NodeTerminal"
import * as PlatformConfigProvider from "@effect/platform/PlatformConfigProvider"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import { main } from "./Cli.ts"
import { ShippedTask } from "./Cli/Demo.ts"
import { codes } from "./Cli/Exit.ts"
import * as Ledger from "./Sandbox/Ledger.ts"

const layer = Layer.mergeAll(
  NodeFileSystem.layer,
  NodePath.layer,
  NodeTerminal.layer,
  Ledger.layerMemory,
  // Settings of the working directory, where there are any. The environment's come first.
  Layer.provide(PlatformConfigProvider.layerDotEnvAdd(".env"), NodeFileSystem.layer),
  // Standard output belongs to the command's result.
  Logger.replace(Logger.defaultLogger, Logger.withConsoleError(Logger.logfmtLogger)),
  Layer.succeed(ShippedTask, new URL(import.meta.resolve("episode/task.json")))
)

// A program that was interrupted has no result to give, so its exit code is kept where the teardown finds it.
let exitCode: number = codes.infrastructure

main(process.argv, (code) => {
  exitCode = code
}).pipe(
  Effect.provide(layer),
  NodeRuntime.runMain({
    disableErrorReporting: true,
    disablePrettyLogger: true,
    teardown: (_, onExit) => onExit(exitCode)
  })
)

/**
 * Sandboxes on this machine: Linux namespaces made with util-linux, without a key and without Docker, for root and for
 * ordinary users.
 *
 * A sandbox has its own root, processes, users and, unless it is asked to share the host's, its own network with loopback
 * alone. It ends with the layer, with its lifetime, and with the process that made it, however that one ends. Other
 * processes of the same user know it by its id.
 *
 * @since 0.1.0
 */
import * as Config from "effect/Config"
import * as ConfigError from "effect/ConfigError"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import { type Provider, SandboxProvider } from "../Sandbox.ts"
import { runtimeDirectory } from "./Local/Directory.ts"
import { toolPath } from "./Local/Host.ts"
import * as Machine from "./Local/Machine.ts"
import * as Implementation from "./Local/Provider.ts"
import { MachineProvider } from "./Machine.ts"

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /**
   * What one sandbox may use, its files included, 64 at least. Over it all its commands are killed, which is their
   * result. Default 512.
   */
  readonly memoryMiB?: number | undefined
  /**
   * What the `default` network of a sandbox is. `host` shares this machine's network, with all that listens on it.
   * Default `offline`.
   */
  readonly policyNetwork?: "offline" | "host" | undefined
  /**
   * Whether files can be made in `/` itself, and not only in `/home/user`, `/tmp`, `/var/tmp`, `/dev/shm` and `/run`.
   * What is there already stays root's, and below `/usr` nothing can be written. Default `read-only`.
   */
  readonly root?: "read-only" | "writable" | undefined
  /**
   * Where this user's sandboxes are written down, for processes that want to share them: a directory that is made with
   * mode 0700, in one that exists. Default `episode` below `XDG_RUNTIME_DIR` or `/run`, or `/tmp/episode-UID`.
   */
  readonly directory?: string | undefined
}

/**
 * @since 0.1.0
 * @category defaults
 */
export const defaults = { memoryMiB: 512, policyNetwork: "offline", root: "read-only" } as const

// ----------------------------------------------------------------------------
// config
// ----------------------------------------------------------------------------

const minimumMiB = 64

/**
 * Options from the environment: `EPISODE_LOCAL_MEMORY_MIB`, `EPISODE_LOCAL_POLICY_NETWORK`, `EPISODE_LOCAL_DIRECTORY`.
 *
 * @since 0.1.0
 * @category config
 */
export const config: Config.Config<Options> = Config.map(
  Config.all({
    memoryMiB: Config.integer("EPISODE_LOCAL_MEMORY_MIB").pipe(
      Config.validate({ message: `${minimumMiB} at least`, validation: (size) => size >= minimumMiB }),
      Config.withDescription("what one local sandbox may use, in MiB"),
      Config.option
    ),
    policyNetwork: Config.literal("offline", "host")("EPISODE_LOCAL_POLICY_NETWORK").pipe(
      Config.withDescription("the network of local policy sandboxes: offline or host"),
      Config.option
    ),
    directory: Config.nonEmptyString("EPISODE_LOCAL_DIRECTORY").pipe(
      Config.validate({ message: "an absolute path", validation: (directory) => directory.startsWith("/") }),
      Config.withDescription("where this user's local sandboxes are written down"),
      Config.option
    )
  }),
  (found) => ({
    memoryMiB: Option.getOrUndefined(found.memoryMiB),
    policyNetwork: Option.getOrUndefined(found.policyNetwork),
    directory: Option.getOrUndefined(found.directory)
  })
)

// What is taken from the environment whatever the options: where python3 is, and where a user's runtime files go.
const surroundings = Config.all({
  searchPath: Config.withDefault(Config.nonEmptyString("PATH"), toolPath),
  runtime: Config.option(Config.nonEmptyString("XDG_RUNTIME_DIR"))
})

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

const checkMemory = (memoryMiB: number): Either.Either<number, ConfigError.ConfigError> =>
  Number.isInteger(memoryMiB) && memoryMiB >= minimumMiB
    ? Either.right(memoryMiB)
    : Either.left(ConfigError.InvalidData(["memoryMiB"], `a whole number, ${minimumMiB} at least`))

/**
 * A provider of local sandboxes. Closing the scope deletes those that it made. It allocates nothing until the first
 * create, which is also where a machine that can't have local sandboxes is found out.
 *
 * @since 0.1.0
 * @category constructors
 */
export const provider = (options: Options = {}): Effect.Effect<Provider, ConfigError.ConfigError, Scope.Scope> =>
  Effect.gen(function*() {
    const { runtime, searchPath } = yield* surroundings
    const memoryMiB = yield* checkMemory(options.memoryMiB ?? defaults.memoryMiB)
    return yield* Implementation.make({
      memoryMiB,
      filesMiB: Math.floor(memoryMiB / 2),
      policyNetwork: options.policyNetwork ?? defaults.policyNetwork,
      writableRoot: (options.root ?? defaults.root) === "writable",
      directory: options.directory ?? runtimeDirectory(Option.getOrUndefined(runtime)),
      searchPath
    })
  })

// ----------------------------------------------------------------------------
// layers
// ----------------------------------------------------------------------------

/**
 * @example
 * ```ts
 * import * as Local from "episode/Sandbox/Local"
 *
 * const SandboxLive = Local.layer({ memoryMiB: 1024 })
 * ```
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (options?: Options): Layer.Layer<SandboxProvider, ConfigError.ConfigError> =>
  Layer.scoped(SandboxProvider, provider(options))

/**
 * The environment's options, and on top of them those given in code.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerFromEnv = (options?: Options): Layer.Layer<SandboxProvider, ConfigError.ConfigError> =>
  Layer.scoped(SandboxProvider, Effect.flatMap(config, (found) => provider({ ...found, ...options })))

/**
 * Programs with streams and signals in the sandboxes of a directory, whoever made them. Closing the scope ends the
 * programs.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerMachine = (
  options?: Pick<Options, "directory">
): Layer.Layer<MachineProvider, ConfigError.ConfigError> =>
  Layer.scoped(
    MachineProvider,
    Effect.flatMap(surroundings, ({ runtime }) =>
      Machine.make({ directory: options?.directory ?? runtimeDirectory(Option.getOrUndefined(runtime)) }))
  )

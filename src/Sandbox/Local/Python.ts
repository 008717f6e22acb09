/**
 * Where this machine's Python lives, if it isn't below /usr: then a sandbox gets its directory too.
 */
import * as Effect from "effect/Effect"
import * as fs from "node:fs"
import * as os from "node:os"
import { findTool, toolPath } from "./Host.ts"
import { attempt } from "./Proc.ts"
import { run } from "./Spawn.ts"

export interface Python {
  /** The directory it is installed in. */
  readonly prefix: string
  /** Not below /usr, which every sandbox has. */
  readonly isOutside: boolean
}

const isBelowUsr = (file: string): boolean => file === "/usr" || file.startsWith("/usr/")

// A whole home directory, or one of the system's, is not a Python.
const isBindable = (prefix: string, home: string): boolean =>
  !`${home}/`.startsWith(`${prefix}/`) && !/^\/(?:[a-z]*|(?:etc|proc|dev|sys)\/.*)$/.test(prefix)

/** Asks the first `python3` of a path where it is installed: it may be a script that starts another. */
export const find = (searchPath: string): Effect.Effect<Python | undefined> => {
  const first = findTool("python3", searchPath)
  const real = first === undefined ? undefined : attempt(() => fs.realpathSync(first))
  const system = findTool("python3") === undefined ? undefined : { prefix: "/usr", isOutside: false }
  if (first === undefined || real === undefined || isBelowUsr(real)) {
    return Effect.succeed(system)
  }
  // A user whom nobody wrote down has none.
  const home = attempt(() => os.homedir()) ?? "/"
  return run([first, "-I", "-c", "import sys; print(sys.base_prefix)"], {
    limit: "10 seconds",
    environment: { PATH: `${searchPath}:${toolPath}`, HOME: home }
  }).pipe(
    Effect.map(({ code, stdout }) => {
      const prefix = code === 0 ? attempt(() => fs.realpathSync(stdout.trim())) : undefined
      return prefix === undefined || isBelowUsr(prefix) || !isBindable(prefix, home)
        ? system
        : { prefix, isOutside: true }
    }),
    Effect.catchAll(() => Effect.succeed(system))
  )
}

/**
 * Runs a test file as an ordinary user, from root: namespaces, ids and permissions differ between the two.
 */
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import * as fs from "node:fs"
import * as path from "node:path"
import { text } from "node:stream/consumers"
import { fileURLToPath } from "node:url"

const repository = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..")
const user = 64_000

export interface Run {
  /** What was printed, if it failed. */
  readonly failure: Promise<string | undefined>
  readonly stop: () => void
}

const result = async (child: ChildProcess): Promise<string | undefined> => {
  const output = Promise.all([child.stdout, child.stderr].map((stream) => stream === null ? "" : text(stream)))
  const [code] = await once(child, "exit")
  return code === 0 ? undefined : (await output).join("\n")
}

export const start = (file: string): Run => {
  const home = fs.mkdtempSync("/tmp/episode-user-")
  fs.chownSync(home, user, user)
  // Without what the whole suite builds beforehand, into directories that are root's.
  const config = path.join(home, "vitest.config.mjs")
  fs.writeFileSync(config, "export default { test: { setupFiles: ['test/setup.ts'], pool: 'forks' } }")
  const child = spawn("unshare", [
    ...["--mount", "--propagation", "private", "--", "sh", "-c"],
    // The checkout and node may lie below a directory that is root's alone: bind them, in a private namespace, to places
    // that everybody can reach.
    "mount --rbind \"$0\" /mnt && mount --bind \"$1\" /media && shift && cd /mnt && exec \"$@\"",
    ...[repository, path.dirname(process.execPath)],
    ...["setpriv", `--reuid=${user}`, `--regid=${user}`, "--clear-groups", "--pdeathsig=KILL", "--"],
    ...["env", "-i", "PATH=/media:/usr/local/bin:/usr/bin:/bin", `HOME=${home}`, `TMPDIR=${home}`],
    ...[`/media/${path.basename(process.execPath)}`, "node_modules/vitest/vitest.mjs", "run", "--root", "."],
    ...["--config", config, "--configLoader", "runner", "--reporter", "verbose", file]
  ], { detached: true, stdio: ["ignore", "pipe", "pipe"] })
  return {
    failure: result(child),
    stop: () => {
      // Its workers too, which would go on writing to the directory.
      if (child.pid !== undefined && child.exitCode === null && child.signalCode === null) {
        process.kill(-child.pid, "SIGKILL")
      }
      fs.rmSync(home, { recursive: true, force: true, maxRetries: 5, retryDelay: 50 })
    }
  }
}

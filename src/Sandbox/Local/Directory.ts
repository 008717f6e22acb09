/**
 * The directory in which the sandboxes of a user are written down.
 */
import * as fs from "node:fs"
import { attempt } from "./Proc.ts"

const isOwn = (directory: string, uid: number): boolean => {
  const found = attempt(() => fs.statSync(directory))
  return found !== undefined && found.isDirectory() && found.uid === uid
}

/** The first place that this user's processes can agree on. Root's isn't taken from an environment it may inherit. */
export const runtimeDirectory = (runtime: string | undefined): string => {
  const uid = process.getuid?.() ?? -1
  const candidates = uid === 0 ? ["/run"] : [...(runtime === undefined ? [] : [runtime]), `/run/user/${uid}`]
  const parent = candidates.find((directory) => isOwn(directory, uid))
  return parent === undefined ? `/tmp/episode-${uid}` : `${parent}/episode`
}

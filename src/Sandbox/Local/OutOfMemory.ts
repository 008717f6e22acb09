/**
 * Whether the kernel ended processes for want of memory: of whichever sandbox, and for whatever another used.
 */
import * as fs from "node:fs"
import { attempt } from "./Proc.ts"

/** The number of processes that the kernel has ended so, by its `/proc/vmstat`. Older kernels don't tell. */
export const parse = (vmstat: string): number | undefined => {
  const [, count] = /^oom_kill ([0-9]+)$/m.exec(vmstat) ?? []
  return count === undefined ? undefined : Number(count)
}

/** The same for this machine, since it was started. */
export const kills = (): number | undefined => parse(attempt(() => fs.readFileSync("/proc/vmstat", "latin1")) ?? "")

/** Whether there were more between two looks, as far as both told. */
export const rose = (before: number | undefined, after: number | undefined): boolean =>
  before !== undefined && after !== undefined && after > before

/**
 * Processes as the host's `/proc` shows them.
 */
import * as fs from "node:fs"

/** The value, or nothing where it can't be had, for whatever reason. */
export const attempt = <A>(read: () => A): A | undefined => {
  try {
    return read()
  } catch {
    return undefined
  }
}

export const errorCode = (error: unknown): string | undefined =>
  error instanceof Error && "code" in error && typeof error.code === "string" ? error.code : undefined

const isAnswer: ReadonlySet<string | undefined> = new Set(["ENOENT", "ESRCH", "EACCES", "EPERM"])

/**
 * The value, or nothing where there is none or it is another user's. That we have no descriptor left isn't an answer, and
 * must not pass for the absence of anything: it throws.
 */
export const found = <A>(read: () => A): A | undefined => {
  try {
    return read()
  } catch (error) {
    if (isAnswer.has(errorCode(error))) {
      return undefined
    }
    throw error
  }
}

export interface Status {
  readonly state: string
  readonly parent: number
  readonly session: number
  /** It has begun to end and can't stop doing so: with the first process of a namespace all others end. */
  readonly isEnding: boolean
  /** Clock ticks since boot: with the pid it names a process for good. */
  readonly start: string
}

const PF_EXITING = 0x4

export const status = (pid: number): Status | undefined => {
  const text = found(() => fs.readFileSync(`/proc/${pid}/stat`, "utf8"))
  if (text === undefined) {
    return undefined
  }
  // The name before it may hold anything, also ") ".
  const [state, parent, , session, ...rest] = text.slice(text.lastIndexOf(")") + 2).split(" ")
  const start = rest[15]
  return state === undefined || start === undefined
    ? undefined
    : { state, parent: Number(parent), session: Number(session), isEnding: (Number(rest[2]) & PF_EXITING) !== 0, start }
}

/**
 * The memory of a process by its `status`: anonymous, shared that it maps, and the tables of what it maps, pages or not.
 * Pages of programs and libraries are the host's own.
 */
export const memoryBytes = (status: string): number =>
  ["RssAnon", "RssShmem", "VmPTE"].reduce(
    (sum, field) => sum + Number(new RegExp(`^${field}:\\s+([0-9]+)`, "m").exec(status)?.[1] ?? 0),
    0
  ) * 1024

/** What a process has used so far: its own memory, and its time. */
export const usage = (
  pid: number
): { readonly residentBytes: number; readonly cpuTicks: number } | undefined => {
  const text = found(() => fs.readFileSync(`/proc/${pid}/stat`, "utf8"))
  const memory = found(() => fs.readFileSync(`/proc/${pid}/status`, "utf8"))
  if (text === undefined || memory === undefined) {
    return undefined
  }
  const fields = text.slice(text.lastIndexOf(")") + 2).split(" ")
  return {
    residentBytes: memoryBytes(memory),
    cpuTicks: Number(fields[11]) + Number(fields[12])
  }
}

/** A dead process that its parent hasn't collected yet holds nothing any more. */
export const isDead = (found: Status | undefined): boolean =>
  found === undefined || found.state === "Z" || found.state === "X"

export const name = (pid: number): string | undefined =>
  found(() => fs.readFileSync(`/proc/${pid}/comm`, "utf8").trim())

/** The pid namespace a process is in, such as `pid:[4026532198]`. */
export const namespace = (pid: number): string | undefined => found(() => fs.readlinkSync(`/proc/${pid}/ns/pid`))

/** The pid of a process in its own pid namespace. */
export const ownPid = (pid: number): number | undefined => {
  const last = /^NSpid:.*\s([0-9]+)$/m.exec(found(() => fs.readFileSync(`/proc/${pid}/status`, "utf8")) ?? "")?.[1]
  return last === undefined ? undefined : Number(last)
}

/** Whether a process is the first of its pid namespace. */
export const isInit = (pid: number): boolean => ownPid(pid) === 1

export const pids = (): ReadonlyArray<number> =>
  fs.readdirSync("/proc").map(Number).filter((pid) => Number.isInteger(pid) && pid > 0)

export const children = (pid: number): ReadonlyArray<number> => {
  const text = found(() => fs.readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8"))
  // Kernels without CONFIG_PROC_CHILDREN don't have the file.
  return text === undefined
    ? pids().filter((candidate) => status(candidate)?.parent === pid)
    : text.split(" ").filter((word) => word !== "").map(Number)
}

/** Sends a signal; a process that is gone has had it. */
export const signal = (pid: number, name: NodeJS.Signals): void => {
  attempt(() => process.kill(pid, name))
}

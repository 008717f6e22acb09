/**
 * Reading a file of a sandbox from the host, without anything running inside: it works while a fork bomb runs, the disk
 * is full or every process is stopped.
 *
 * The path is walked one part at a time, each opened relative to the one before and never through a symbolic link: links
 * below `/proc/PID/root` would be followed on the host.
 */
import * as fs from "node:fs"
import { FileRead } from "../../Sandbox.ts"
import type { SandboxPath } from "../../Task.ts"
import * as Absence from "./Absence.ts"
import * as Proc from "./Proc.ts"
import type { Place } from "./Recipe.ts"

/** The sandbox's user, as the host numbers it. */
export interface Reader {
  readonly uid: number
  readonly gid: number
}

// Only names a file: it is neither opened (a FIFO would wait, a device would act) nor followed. Node has no name for it.
const O_PATH = 0o10000000

const { O_DIRECTORY, O_NOCTTY, O_NOFOLLOW, O_NONBLOCK, O_RDONLY } = fs.constants

type Permission = 1 | 4

const search: Permission = 1
const read: Permission = 4

// Asked of the bits themselves, as root may read everything and the answer is the same whoever runs this.
const permits = (reader: Reader, stats: fs.Stats, permission: Permission): boolean =>
  (stats.mode >> (stats.uid === reader.uid ? 6 : stats.gid === reader.gid ? 3 : 0) & permission) !== 0

// What a guest itself would be told, for each way in which the walk can end.
const refused = (error: unknown): FileRead => {
  switch (Proc.errorCode(error)) {
    case "ENOENT":
    case "ENOTDIR":
    case "ENAMETOOLONG":
      return FileRead.Missing()
    case "EACCES":
    case "EPERM":
    // Somebody has a lease on it, and doesn't give it up.
    case "EAGAIN":
      return FileRead.Unreadable()
    default:
      throw error
  }
}

const withDescriptor = <A>(file: string, flags: number, use: (descriptor: number) => A): A => {
  const descriptor = fs.openSync(file, flags)
  try {
    return use(descriptor)
  } finally {
    fs.closeSync(descriptor)
  }
}

const contents = (descriptor: number, maxBytes: number): FileRead => {
  // The size is what it was: a file may grow while it is read.
  const bytes = Buffer.allocUnsafe(maxBytes + 1)
  let length = 0
  while (length < bytes.length) {
    const found = fs.readSync(descriptor, bytes, length, bytes.length - length, length)
    if (found === 0) {
      return FileRead.Bytes({ bytes: Uint8Array.from(bytes.subarray(0, length)) })
    }
    length += found
  }
  return FileRead.TooLarge()
}

const walk = (
  directory: number,
  parts: ReadonlyArray<string>,
  options: { readonly reader: Reader; readonly kernel: number; readonly maxBytes: number }
): FileRead => {
  const [name, ...rest] = parts
  if (name === undefined) {
    return FileRead.NotRegular()
  }
  if (!permits(options.reader, fs.fstatSync(directory), search)) {
    return FileRead.Unreadable()
  }
  return withDescriptor(`/proc/self/fd/${directory}/${name}`, O_PATH | O_NOFOLLOW, (found) => {
    const stats = fs.fstatSync(found)
    if (stats.isSymbolicLink()) {
      return FileRead.NotRegular()
    }
    if (rest.length > 0) {
      return stats.isDirectory() ? walk(found, rest, options) : FileRead.Missing()
    }
    // Nor what the kernel makes up below /proc, which it may tell us and not a guest.
    if (!stats.isFile() || stats.dev === options.kernel) {
      return FileRead.NotRegular()
    }
    if (!permits(options.reader, stats, read)) {
      return FileRead.Unreadable()
    }
    if (stats.size > options.maxBytes) {
      return FileRead.TooLarge()
    }
    // The very file that was looked at, whatever has its name by now.
    return withDescriptor(
      `/proc/self/fd/${found}`,
      O_RDONLY | O_NONBLOCK | O_NOCTTY,
      (descriptor) => contents(descriptor, options.maxBytes)
    )
  })
}

/** What is at a path, or nothing where the sandbox is gone. It throws where the host can't tell. */
export const readFile = (
  place: Place,
  file: SandboxPath,
  options: { readonly reader: Reader; readonly maxBytes: number }
): FileRead | undefined => {
  const root = Proc.found(() => fs.openSync(`/proc/${place.pid}/root/.`, O_PATH | O_DIRECTORY))
  if (root === undefined) {
    return undefined
  }
  try {
    // Asked after the root was opened: so it is the root of that process, and stays there while it is held.
    const kernel = Proc.found(() => fs.statSync(`/proc/self/fd/${root}/proc/.`).dev)
    if (kernel === undefined || !Absence.isAlive(place)) {
      return undefined
    }
    return walk(root, file.split("/").slice(1), { ...options, kernel })
  } catch (error) {
    return refused(error)
  } finally {
    fs.closeSync(root)
  }
}

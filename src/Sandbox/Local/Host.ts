/**
 * What this machine is and has, as far as the recipe needs to know it. Reads, never writes, and starts nothing.
 */
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import { attempt } from "./Proc.ts"

/** Where our own tools are looked for: system directories, whatever the caller's PATH is. */
export const toolPath = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"

/** The only environment that any of our helper processes sees. */
export const cleanEnvironment: Readonly<Record<string, string>> = { PATH: toolPath, LC_ALL: "C" }

/** The file that a tool's name stands for. */
export const findTool = (name: string, searchPath: string = toolPath): string | undefined =>
  searchPath.split(":").filter((directory) => directory.startsWith("/")).map((directory) => path.join(directory, name))
    .find((file) =>
      attempt(() => {
        fs.accessSync(file, fs.constants.X_OK)
        return true
      }) ?? false
    )

/** A tool as a sandbox has it, by its whole name: by a bare one a guest's own could be found. */
export const toolFile = (name: string): string => findTool(name) ?? `/usr/bin/${name}`

/** Everything that a sandbox is made, used and looked at with, and the package it comes in. */
export const tools: ReadonlyArray<readonly [name: string, from: string]> = [
  ["unshare", "util-linux"],
  ["nsenter", "util-linux"],
  ["setpriv", "util-linux"],
  ["mount", "mount (util-linux)"],
  ["env", "coreutils"],
  ["mkfifo", "coreutils"],
  ["sleep", "coreutils"],
  ["timeout", "coreutils"],
  ["bash", "bash"],
  ["sh", "dash or bash"],
  ["tar", "tar"]
]

/** Whether a pid in `/proc` is the process that we know by that pid. */
export const isOwnProc = (): boolean => attempt(() => fs.readlinkSync("/proc/self")) === String(process.pid)

/** How many descriptors this process may have. Node takes as many as it may at its start. */
export const descriptorLimit = (): number => {
  const limits = attempt(() => fs.readFileSync("/proc/self/limits", "utf8")) ?? ""
  const [, soft] = /^Max open files\s+([0-9]+)/m.exec(limits) ?? []
  return soft === undefined ? Infinity : Number(soft)
}

/** Enough for anything; with fewer than this, none are held in reserve. */
export const enoughDescriptors = 256

/** A mount as `/proc/PID/mountinfo` lists it. */
export interface Mount {
  readonly root: string
  readonly target: string
  readonly options: ReadonlyArray<string>
}

/** Reads the text of a `mountinfo` file, in its order: of two mounts on one target the later one is visible. */
export const parseMounts = (text: string): ReadonlyArray<Mount> => {
  const unescape = (field: string | undefined): string =>
    (field ?? "").replace(/\\([0-7]{3})/g, (_, octal: string) => String.fromCharCode(parseInt(octal, 8)))
  return text.split("\n").filter((line) => line !== "").map((line) => {
    const fields = line.split(" ")
    return { root: unescape(fields[3]), target: unescape(fields[4]), options: (fields[5] ?? "").split(",") }
  })
}

export const readMounts = (pid: number | "self"): ReadonlyArray<Mount> =>
  parseMounts(fs.readFileSync(`/proc/${pid}/mountinfo`, "utf8"))

/** Perl or Python: what makes the system calls that no tool makes, or not in time. */
export interface Interpreter {
  readonly language: "perl" | "python3"
  readonly file: string
}

/** What doesn't change while the program runs. */
export interface Machine {
  readonly architecture: string
  readonly littleEndian: boolean
  readonly uid: number
  readonly gid: number
  /** Started as root a sandbox gets host user ids of its own, otherwise it runs under the caller's. */
  readonly isRoot: boolean
  readonly interpreter: Interpreter | undefined
  /** The directory of a Python that isn't below /usr. */
  readonly pythonPrefix: string | undefined
}

// A tool that a sandbox has too, because it really lies in a tree that is bound.
const findShared = (name: string): string | undefined => {
  const file = findTool(name)
  const real = file === undefined ? undefined : attempt(() => fs.realpathSync(file))
  return real !== undefined && /^\/(?:usr|bin|sbin|nix\/store|gnu\/store)\//.test(real) ? file : undefined
}

export const machine = (pythonPrefix: string | undefined): Machine => {
  const uid = process.getuid?.() ?? -1
  const perl = findShared("perl")
  const python = findShared("python3") ?? (pythonPrefix === undefined ? undefined : `${pythonPrefix}/bin/python3`)
  return {
    architecture: process.arch,
    littleEndian: os.endianness() === "LE",
    uid,
    gid: process.getgid?.() ?? -1,
    isRoot: uid === 0,
    // Perl starts in a tenth of the time.
    interpreter: perl !== undefined
      ? { language: "perl", file: perl }
      : python !== undefined
      ? { language: "python3", file: python }
      : undefined,
    pythonPrefix
  }
}

/** A directory or file of the host that a sandbox sees, read-only, under `target`. */
export interface Bind {
  readonly source: string
  readonly target: string
  readonly kind: "directory" | "file" | "device"
}

export interface Link {
  readonly target: string
  readonly to: string
  /** What it leads to, where that is anything. */
  readonly bind: Bind | undefined
}

/** What the root of a sandbox is made of on this machine, at this moment. */
export interface Survey {
  readonly mounts: ReadonlyArray<Mount>
  readonly binds: ReadonlyArray<Bind>
  /** Top-level symbolic links such as `/bin`. */
  readonly links: ReadonlyArray<Link>
  /** Kernel files that would tell a guest about the host. */
  readonly masks: ReadonlyArray<string>
  /** Switches that say how many namespaces of a kind may be made. */
  readonly namespaceLimits: ReadonlyArray<string>
  /** Existing directories that a new root may be assembled on: they are covered in a private namespace only. */
  readonly mountPoints: ReadonlyArray<string>
}

// What programs below /usr expect in /etc. Never passwd, shadow, ssh, hostname, machine-id or private keys.
const configuration = [
  "alternatives",
  "ssl/certs",
  "ssl/openssl.cnf",
  "pki/ca-trust",
  "pki/tls/certs",
  "ca-certificates",
  "ld.so.cache",
  "ld.so.conf",
  "ld.so.conf.d",
  "localtime",
  "services",
  "protocols",
  "mime.types",
  "magic",
  "fonts",
  "java"
]

const maskable = [
  "cmdline",
  "keys",
  "key-users",
  "kcore",
  "kallsyms",
  "kmsg",
  "timer_list",
  "sched_debug",
  "sysrq-trigger",
  // What all sandboxes could count in.
  "sys/fs/aio-nr",
  "sys/fs/dentry-state",
  "sys/fs/file-nr",
  "sys/fs/inode-nr",
  "sys/fs/inode-state",
  "sys/kernel/pty/nr"
]

export const devices = ["null", "zero", "full", "random", "urandom", "tty"]

export const survey = (pythonPrefix: string | undefined): Survey => {
  const binds: Array<Bind> = []
  const links: Array<Link> = []
  const bindOf = (source: string, target: string): Bind | undefined => {
    const real = attempt(() => fs.realpathSync.native(source))
    const kind = real === undefined ? undefined : attempt(() => fs.statSync(real))
    return real !== undefined && kind !== undefined && (kind.isDirectory() || kind.isFile())
      ? { source: real, target, kind: kind.isDirectory() ? "directory" : "file" }
      : undefined
  }
  const bind = (source: string, target: string): void => {
    const found = bindOf(source, target)
    if (found !== undefined) {
      binds.push(found)
    }
  }
  bind("/usr", "/usr")
  for (const target of ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"]) {
    const to = attempt(() => fs.readlinkSync(target))
    if (to === undefined) {
      bind(target, target)
    } else {
      links.push({ target, to, bind: bindOf(target, target) })
    }
  }
  bind("/nix/store", "/nix/store")
  bind("/gnu/store", "/gnu/store")
  for (const name of configuration) {
    bind(`/etc/${name}`, `/etc/${name}`)
  }
  for (const name of devices) {
    binds.push({ source: `/dev/${name}`, target: `/dev/${name}`, kind: "device" })
  }
  if (pythonPrefix !== undefined) {
    // At its own path: a shared libpython is found by an absolute one.
    bind(pythonPrefix, pythonPrefix)
  }
  const covers = (directory: string): boolean =>
    binds.some(({ source }) => source === directory || source.startsWith(`${directory}/`))
  return {
    mounts: readMounts("self"),
    binds,
    links,
    masks: maskable.filter((name) => fs.existsSync(`/proc/${name}`)).map((name) => `/proc/${name}`),
    namespaceLimits: fs.readdirSync("/proc/sys/user").filter((name) => /^max_.*_namespaces$/.test(name)),
    mountPoints: ["/tmp", "/mnt", "/media", "/srv", "/var/tmp", "/home", "/run"].filter((directory) =>
      attempt(() => fs.realpathSync.native(directory)) === directory && !covers(directory)
    )
  }
}

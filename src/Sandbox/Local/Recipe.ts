/**
 * How a sandbox is made and entered, as plain data: the steps of its setup, and argument lists.
 *
 * There are two user namespaces. The outer one owns the mount, pid, network, ipc, uts and cgroup namespaces; only setup,
 * the first process and our own short-lived helpers run in it. The inner one, pinned at `/.ns/user`, owns nothing: every
 * process of a guest lives there, so that none of them has any power over what the outer one owns.
 *
 * ```
 * node - perl, then sh                   dies with node
 *          perl, then sleep infinity     the first process: outer namespace, no capabilities; ends everything with it
 * node - setpriv - nsenter               one for each call
 *                    timeout             inner namespace, user 1000
 *                      bash
 * ```
 */
import { innerNamespace } from "./Confinement.ts"
import type { Bind, Interpreter, Machine, Mount, Survey } from "./Host.ts"
import { devices, findTool, toolFile } from "./Host.ts"
import type { Calls } from "./Seccomp.ts"
import { argv, mountFlags, type Step } from "./Setup.ts"

export const guest = { uid: 1000, name: "user", home: "/home/user", hostname: "sandbox" } as const

export const superuser = { uid: 0, name: "root", home: "/root" } as const

/** How many host user ids a sandbox made by root has to itself. */
export const idRange = 65536

/** What may be written to: one size and one number of files for all of it. */
const writable: ReadonlyArray<readonly [directory: string, mode: number, owner: number]> = [
  [guest.home, 0o755, guest.uid],
  ["/run", 0o755, guest.uid],
  ["/tmp", 0o1777, 0],
  ["/var/tmp", 0o1777, 0],
  ["/dev/shm", 0o1777, 0]
]

/** What else every root has. */
const plain = ["/var", "/opt", "/root", "/mnt", "/srv"]

/** What to make. */
export interface Plan {
  readonly isRoot: boolean
  readonly interpreter: Interpreter
  readonly offline: boolean
  readonly filesMiB: number
  /** Everybody may make files in `/` itself, as in a machine of one's own; what is there already stays as it is. */
  readonly writableRoot?: boolean | undefined
  /** The host's `/etc/resolv.conf`, for a sandbox on the host's network. */
  readonly resolver: string
  /** The directory of a Python outside /usr. */
  readonly pythonPrefix: string | undefined
  readonly survey: Survey
}

/** A plan that can't be: no directory is left to assemble the new root on. */
export type NoMountPoint = "no-mount-point"

/** What the first process is to do, and from where. */
export interface Setup {
  readonly steps: ReadonlyArray<Step>
  /** Where root makes a Python from below a 0700 directory reachable, in a private mount namespace. */
  readonly stage: string | undefined
}

// ----------------------------------------------------------------------------
// the new root
// ----------------------------------------------------------------------------

const { bind, noDevices, noExecution, noSuid, noSymlinks, readOnly, recursive, remount } = mountFlags

const mount = (source: string, target: string, type: string, flags: number, data = ""): Step => [
  ...["mount", source, target.slice(1), type, flags, data] as const
]

const bindTo = (source: string, target: string): Step => mount(source, target, "none", bind | recursive)

// The kernel keeps what it was told about access times.
const change = (target: string, flags: number): Step => mount("none", target, "none", remount | bind | flags)

// Flags that whoever remounts another's mount must repeat.
const locked: ReadonlyMap<string, number> = new Map([
  ["nosuid", noSuid],
  ["nodev", noDevices],
  ["noexec", noExecution],
  ["nosymfollow", noSymlinks]
])

const isWithin = (target: string, directory: string): boolean =>
  target === directory || target.startsWith(directory === "/" ? "/" : `${directory}/`)

const lockedFlags = (mounts: ReadonlyArray<Mount>, target: string): number => {
  let nearest: Mount | undefined
  for (const mount of mounts) {
    if (isWithin(target, mount.target) && (nearest === undefined || mount.target.length >= nearest.target.length)) {
      nearest = mount
    }
  }
  return (nearest?.options ?? []).reduce((flags, option) => flags | (locked.get(option) ?? 0), 0)
}

const show = (one: Bind, mounts: ReadonlyArray<Mount>, at: string): ReadonlyArray<Step> => {
  if (one.kind === "device") {
    return [mount(one.source, one.target, "none", bind)]
  }
  // Recursive: an ordinary user may not leave out what is mounted below. Read-only isn't, so each of those is changed.
  const below = mounts.filter(({ target }) => target.startsWith(`${one.source}/`))
  return [
    bindTo(at, one.target),
    change(one.target, readOnly | lockedFlags(mounts, one.source)),
    ...below.map(({ target }) =>
      change(one.target + target.slice(one.source.length), readOnly | lockedFlags(mounts, target))
    )
  ]
}

// In a root that can be written to, what our own programs need to start is mounted, which nobody can move away or replace:
// they find their shell and their loader there before anything confines them.
const bindsOf = ({ survey: { binds, links }, writableRoot }: Plan): ReadonlyArray<Bind> =>
  writableRoot === true ? [...binds, ...links.flatMap(({ bind }) => bind === undefined ? [] : [bind])] : binds

// Likewise the directories in such a root. An ordinary user's sandbox has one id, which owns all of them; in root's they are
// its superuser's, who goes on writing where nothing of ours depends on it.
const fixed = (plan: Plan): ReadonlyArray<string> => {
  const mounted = [...writable.map(([path]) => path), ...bindsOf(plan).map(({ target }) => target)]
  const tops = new Set(["/etc", "/dev", ...plain, ...mounted].map((path) => path.split("/", 2).join("/")))
  return plan.writableRoot !== true
    ? []
    : plan.isRoot
    ? ["/etc", "/home"]
    : [...tops].filter((path) => !mounted.includes(path))
}

const mountSteps = (stage: string | undefined, plan: Plan): ReadonlyArray<Step> => {
  const { masks, mounts, namespaceLimits } = plan.survey
  return [
    ...fixed(plan).flatMap((directory) => [
      bindTo(directory.slice(1), directory),
      change(directory, readOnly | noSuid | noDevices)
    ]),
    // First, so that a Python below a home directory is mounted on top of it.
    ...writable.flatMap((
      [directory]
    ) => [bindTo(directory.slice(1), directory), change(directory, noSuid | noDevices)]),
    ...bindsOf(plan).flatMap((one) =>
      show(one, mounts, one.source === plan.pythonPrefix && stage !== undefined ? stage : one.source)
    ),
    mount("proc", "/proc", "proc", noSuid | noDevices | noExecution),
    // A mount of its own: nobody can move it away, and what enters the sandbox goes by it.
    bindTo(".ns", "/.ns"),
    change("/.ns", readOnly | noSuid | noDevices),
    // All terminals of the machine are counted together.
    mount("devpts", "/dev/pts", "devpts", noSuid | noExecution, "newinstance,ptmxmode=0666,mode=620,max=64"),
    // An ordinary user's has one id.
    ["pin", innerNamespace.slice(1), plan.isRoot ? `0 0 ${idRange}` : `${guest.uid} 0 1`],
    // A guest makes no namespaces: in one of its own it would have every capability, and most of the kernel to try them
    // on.
    ...namespaceLimits.map((name): Step => ["set", `proc/sys/user/${name}`, "0"]),
    // What is charged to our host user as well, and what no watchdog sees: older kernels may refuse these.
    ["try", "proc/sys/user/max_inotify_instances", "32"],
    ["try", "proc/sys/user/max_inotify_watches", "16384"],
    ["try", "proc/sys/kernel/shmall", "4096"],
    ["try", "proc/sys/kernel/shmmni", "64"],
    ["try", "proc/sys/kernel/msgmni", "16"],
    // Switches of the kernel can be read and not set.
    bindTo("proc/sys", "/proc/sys"),
    change("/proc/sys", readOnly | noSuid | noDevices | noExecution),
    // Names of the host's keys, its symbols, its log.
    ...masks.map((file) => mount("/dev/null", file, "none", bind))
  ]
}

const skeleton = (plan: Plan): ReadonlyArray<Step> => {
  // Ids are those of the outer namespace, where an ordinary user has one alone.
  const owned = (uid: number) => plan.isRoot ? uid : 0
  const steps: Array<Step> = []
  const made = new Set(["/"])
  const directory = (path: string, mode = 0o755, owner = 0) => {
    if (!made.has(path)) {
      parent(path)
      made.add(path)
      steps.push(["directory", path.slice(1), mode, owner])
    }
  }
  const parent = (path: string) => directory(path.slice(0, path.lastIndexOf("/")) || "/")
  const file = (path: string, content = "") => {
    parent(path)
    steps.push(["file", path.slice(1), content])
  }
  const link = (path: string, to: string) => {
    parent(path)
    steps.push(["link", path.slice(1), to])
  }

  // What setup leaves there says where things are on the host.
  directory("/.ns", 0o700)
  for (const [path, mode, owner] of writable) {
    directory(path, mode, owned(owner))
  }
  for (const path of ["/proc", "/dev/pts", ...plain, oldRoot]) {
    directory(path)
  }
  for (const { kind, target } of bindsOf(plan)) {
    if (kind === "directory") {
      directory(target)
    } else {
      file(target)
    }
  }
  const bound = new Set(bindsOf(plan).map(({ target }) => target))
  for (const { target, to } of plan.survey.links) {
    if (!bound.has(target)) {
      link(target, to)
    }
  }
  link("/dev/fd", "/proc/self/fd")
  link("/dev/stdin", "/proc/self/fd/0")
  link("/dev/stdout", "/proc/self/fd/1")
  link("/dev/stderr", "/proc/self/fd/2")
  link("/dev/ptmx", "pts/ptmx")
  link("/var/run", "/run")
  link("/etc/mtab", "/proc/self/mounts")
  file(
    "/etc/passwd",
    "root:x:0:0:root:/root:/bin/bash\n"
      + `${guest.name}:x:${guest.uid}:${guest.uid}:${guest.name}:${guest.home}:/bin/bash\n`
      + "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
  )
  file("/etc/group", `root:x:0:\n${guest.name}:x:${guest.uid}:\nnogroup:x:65534:\n`)
  file("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
  file("/etc/hosts", `127.0.0.1 localhost ${guest.hostname}\n::1 localhost\n`)
  file("/etc/hostname", `${guest.hostname}\n`)
  file("/etc/resolv.conf", plan.offline ? "# no network\n" : plan.resolver)
  file(innerNamespace)
  return steps
}

/** Where the host's root is until it is let go of. */
const oldRoot = "/.old"

/** The whole of a new root, and what else the first process does before it does nothing any more. */
export const setup = (plan: Plan): Setup | NoMountPoint => {
  const [root, second] = plan.survey.mountPoints
  const staged = plan.isRoot && plan.pythonPrefix !== undefined
  if (root === undefined || (staged && second === undefined)) {
    return "no-mount-point"
  }
  const stage = staged ? second : undefined
  const isWritable = plan.writableRoot === true
  const size = `size=${plan.filesMiB}m,nr_inodes=65536,mode=${isWritable ? "1777" : "755"}`
  return {
    steps: [
      // Nothing of what follows is seen outside, nor does a mount of the host's come in.
      ["mount", "none", "/", "none", recursive | mountFlags.private, ""],
      ["mount", "sandbox", root, "tmpfs", noSuid | noDevices, size],
      ["enter", root],
      ...skeleton(plan),
      ...mountSteps(stage, plan),
      ["hostname", guest.hostname],
      ...(plan.offline ? [["loopback"] as const] : []),
      ["pivot", oldRoot.slice(1)],
      ...(isWritable
        ? []
        : [["mount", "none", "/", "none", remount | bind | readOnly | noSuid | noDevices, ""] as const])
    ],
    stage
  }
}

/**
 * Where a finished sandbox has its mounts, each target as often as it is mounted on: what the steps mount, and what of the
 * host's comes with that, which they make read-only.
 */
const plannedMounts = ({ steps }: Setup): ReadonlyArray<string> => {
  const made: Array<string> = []
  const changed: Array<string> = []
  for (const step of steps) {
    if (step[0] === "pin") {
      made.push(`/${step[1]}`)
    } else if (step[0] === "mount" && (step[4] & mountFlags.private) === 0) {
      // The new root itself is named before it is entered.
      const target = step[2].startsWith("/") ? "/" : `/${step[2]}`
      const list = (step[4] & remount) === 0 ? made : changed
      list.push(target)
    }
  }
  return [...made, ...changed.filter((target) => !made.includes(target))]
}

/** What of the mounts of a finished sandbox isn't as planned: there must be exactly those that the setup makes. */
export const unplannedMounts = (
  mounts: ReadonlyArray<Mount>,
  setup: Setup
): { readonly surplus: ReadonlyArray<string>; readonly missing: ReadonlyArray<string> } => {
  const missing = [...plannedMounts(setup)]
  const surplus: Array<string> = []
  for (const { target } of mounts) {
    const index = missing.indexOf(target)
    if (index < 0) {
      surplus.push(target)
    } else {
      missing.splice(index, 1)
    }
  }
  return { surplus, missing }
}

/** Where a mount may be writable. */
const writableMounts: ReadonlySet<string> = new Set([
  ...writable.map(([directory]) => directory),
  "/proc",
  "/dev/pts",
  innerNamespace,
  ...devices.map((device) => `/dev/${device}`)
])

/**
 * Mounts of a finished sandbox that could be written to and shouldn't, such as one that came while it was made. There
 * must be none.
 */
export const unexpectedlyWritable = (
  mounts: ReadonlyArray<Mount>,
  plan: Pick<Plan, "writableRoot">
): ReadonlyArray<string> => {
  const visible = new Map(mounts.map((mount) => [mount.target, mount]))
  return [...visible.values()].filter(({ options, root, target }) =>
    !options.includes("ro") && !writableMounts.has(target) && !(plan.writableRoot === true && target === "/")
    && !(target.startsWith("/proc/") && root === "/null")
  ).map(({ target }) => target)
}

// ----------------------------------------------------------------------------
// argument lists
// ----------------------------------------------------------------------------

// The first thing that runs: dies with node, and wasn't started by another. Closes what node itself was started with,
// as node hands descriptors without close-on-exec on. Bash, as dash can't close those above 9.
const guard = (nodePid: number, keep: 2 | 3, then: string): ReadonlyArray<string> => [
  ...["setpriv", "--nnp", "--pdeathsig", "KILL", "--", "bash", "--norc", "--noprofile", "-c"],
  // A nsenter ends as its child did, by a signal that Node may have no name for: then by an exit code, if it ignores that.
  `[ "$PPID" = "$0" ] || exit 120; trap '' {34..64}; `
  + `for f in /proc/self/fd/*; do f=\${f##*/}; [ "$f" -gt ${keep} ] && exec {f}>&-; done; ${then}`,
  String(nodePid)
]

/** Makes the namespaces and runs the setup, whose steps it reads from its standard input. */
export const createArguments = (options: {
  readonly nodePid: number
  readonly machine: Pick<Machine, "isRoot" | "uid" | "gid">
  readonly calls: Calls
  readonly plan: Pick<Plan, "interpreter" | "offline" | "pythonPrefix">
  readonly setup: Setup
  /** The first of the host's ids that root's sandbox has to itself. */
  readonly firstId: number
}): ReadonlyArray<string> => {
  const { machine, plan, setup } = options
  const range = `0 ${options.firstId} ${idRange}`
  return argv({
    nodePid: options.nodePid,
    interpreter: plan.interpreter,
    calls: options.calls,
    offline: plan.offline,
    uidMap: machine.isRoot ? range : `0 ${machine.uid} 1`,
    gidMap: machine.isRoot ? range : `0 ${machine.gid} 1`,
    firstId: machine.isRoot ? options.firstId : undefined,
    stage: setup.stage === undefined || plan.pythonPrefix === undefined
      ? undefined
      : { source: plan.pythonPrefix, target: setup.stage },
    sleep: findTool("sleep") ?? "/bin/sleep"
  })
}

const namespaces = (offline: boolean): ReadonlyArray<string> => [
  ...["--mount", "--pid", "--ipc", "--uts", "--cgroup"],
  ...(offline ? ["--net"] : [])
]

/** A sandbox as its processes know it. */
export interface Place {
  /** The host's pid of its first process. */
  readonly pid: number
  /** When that process started: together they name it for good. */
  readonly start: string
  readonly namespace: string
  readonly isRoot: boolean
  readonly offline: boolean
  readonly memoryMiB: number
  readonly pythonPrefix: string | undefined
}

// Only into the very process that was meant: its pid may be another's by now.
const isStill = (place: Place): string =>
  `read -ra s </proc/${place.pid}/stat && [ "\${s[21]}" = ${place.start} ] || exit 121; exec "$@"`

const asOwner = (place: Place): ReadonlyArray<string> =>
  place.isRoot ? ["-S", "0", "-G", "0"] : ["--preserve-credentials"]

/** Whom a program runs as. `superuser` is there where root made the sandbox, and has no power outside of it. */
export type User = Pick<typeof guest | typeof superuser, "uid" | "name" | "home">

/** Where a program's file is looked for in a sandbox, but for what its user has installed. */
export const systemPath = (pythonPrefix: string | undefined): string =>
  `${
    pythonPrefix === undefined ? "" : `${pythonPrefix}/bin:`
  }/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`

const environment = (pythonPrefix: string | undefined, user: User): ReadonlyArray<string> => [
  `PATH=${user.home}/.local/bin:${systemPath(pythonPrefix)}`,
  `HOME=${user.home}`,
  `USER=${user.name}`,
  `LOGNAME=${user.name}`,
  "SHELL=/bin/bash",
  "LANG=C.UTF-8",
  "TERM=dumb"
]

/**
 * Runs a program in a sandbox, as its user unless another is given. Descriptor 3 gets one byte at the last moment before
 * the program is the guest's: without it whatever went wrong was not the guest's doing.
 */
export const enterArguments = (options: {
  readonly nodePid: number
  readonly place: Place
  /** What `Confinement` puts in front, and what else is to run before it. */
  readonly filter: ReadonlyArray<string>
  /** None for a program that the host ends by itself. */
  readonly limitSeconds: number | undefined
  readonly program: ReadonlyArray<string>
  readonly user?: User | undefined
  /** Where it begins. Default: the user's home, which is always there. */
  readonly directory?: string | undefined
}): ReadonlyArray<string> => {
  const { place, user = guest } = options
  const { directory = user.home } = options
  return [
    ...guard(options.nodePid, 3, isStill(place)),
    ...["nsenter", "-t", String(place.pid), "--user", ...namespaces(place.offline), ...asOwner(place), "--"],
    ...options.filter,
    // An ordinary user's sandbox knows one id, which it has already.
    ...[String(place.memoryMiB * 1024 * 1024), user.home, place.isRoot ? String(user.uid) : "same"],
    directory === user.home ? "" : directory,
    ...[...environment(place.pythonPrefix, user), "--"],
    // The second line: the host's own timer is the first.
    ...(options.limitSeconds === undefined
      ? []
      : [toolFile("timeout"), "--signal=KILL", String(options.limitSeconds + 1)]),
    ...options.program
  ]
}

/** Kills every process of a sandbox but its first: the kernel walks the list under one lock, no bomb outruns it. */
export const killAllArguments = (nodePid: number, place: Place): ReadonlyArray<string> => [
  ...guard(nodePid, 2, isStill(place)),
  ...["nsenter", "-t", String(place.pid), "--user", "--pid", ...asOwner(place), "--", "sh", "-c", "kill -9 -1"]
]

const bash = () => [toolFile("bash"), "--norc", "--noprofile", "-c"]

/** A shell for one command line; what doesn't fit into an argument goes through its standard input. */
export const shell = (
  command: string
): { readonly program: ReadonlyArray<string>; readonly input: string | undefined } =>
  Buffer.byteLength(command) < 100 * 1024 && !command.includes("\0")
    ? { program: [...bash(), command, "bash"], input: undefined }
    : { program: [...bash(), "c=$(cat; printf .); exec </dev/null; eval \"${c%.}\"", "bash"], input: command }

/** Unpacks an archive: what is in the way is removed and not opened. */
export const unpack = (): ReadonlyArray<string> => [
  ...[toolFile("tar"), "-x", "-p", "-m", "--no-same-owner", "--unlink-first", "-C", "/", "-f", "-"]
]

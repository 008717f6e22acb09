/**
 * How a sandbox is made and entered, as plain data: a shell script, the entries of an archive, and argument lists.
 *
 * There are two user namespaces. The outer one owns the mount, pid, network, ipc, uts and cgroup namespaces; only setup,
 * the first process and our own short-lived helpers run in it. The inner one, pinned at `/.ns/user`, owns nothing: every
 * process of a guest lives there, so that none of them has any power over what the outer one owns.
 *
 * ```
 * node - setpriv - unshare               dies with node
 *                    sleep infinity      the first process: outer namespace, no capabilities; ends everything with it
 * node - setpriv - nsenter               one for each call
 *                    timeout             inner namespace, user 1000
 *                      bash
 * ```
 */
import type { Entry } from "./Archive.ts"
import type { Bind, Interpreter, Mount, Survey } from "./Host.ts"
import { devices } from "./Host.ts"

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

/** What to make. */
export interface Plan {
  readonly isRoot: boolean
  readonly interpreter: Interpreter
  readonly offline: boolean
  readonly filesMiB: number
  /** Everybody may make files in `/` itself, as in a machine of one's own; what is there already stays root's. */
  readonly writableRoot?: boolean | undefined
  /** The host's `/etc/resolv.conf`, for a sandbox on the host's network. */
  readonly resolver: string
  /** The directory of a Python outside /usr. */
  readonly pythonPrefix: string | undefined
  readonly survey: Survey
}

/** A plan that can't be: no directory is left to assemble the new root on. */
export type NoMountPoint = "no-mount-point"

/** What to run as the first process, and what to feed it. */
export interface Setup {
  readonly script: string
  readonly entries: ReadonlyArray<Entry>
  /** Where root makes a Python from below a 0700 directory reachable, in a private mount namespace. */
  readonly stage: string | undefined
}

// ----------------------------------------------------------------------------
// the new root
// ----------------------------------------------------------------------------

const escapeField = (text: string): string =>
  text.replace(/[\\ \t\n]/g, (character) => `\\${character.charCodeAt(0).toString(8).padStart(3, "0")}`)

// Flags that whoever remounts another's mount must repeat.
const locked = new Set(["nosuid", "nodev", "noexec", "noatime", "nodiratime", "relatime"])

const isWithin = (target: string, directory: string): boolean =>
  target === directory || target.startsWith(directory === "/" ? "/" : `${directory}/`)

const lockedFlags = (mounts: ReadonlyArray<Mount>, target: string): ReadonlyArray<string> => {
  let nearest: Mount | undefined
  for (const mount of mounts) {
    if (isWithin(target, mount.target) && (nearest === undefined || mount.target.length >= nearest.target.length)) {
      nearest = mount
    }
  }
  return nearest === undefined ? [] : nearest.options.filter((option) => locked.has(option))
}

const bindLines = (root: string, bind: Bind, mounts: ReadonlyArray<Mount>, at: string): ReadonlyArray<string> => {
  const line = (source: string, target: string, flags: ReadonlyArray<string>) =>
    `${escapeField(source)} ${escapeField(root + target)} none ${flags.join(",")} 0 0`
  if (bind.kind === "device") {
    return [line(bind.source, bind.target, ["bind"])]
  }
  // Recursive: an ordinary user may not leave out what is mounted below. `ro` isn't, so each of those gets a line.
  const below = mounts.filter(({ target }) => target.startsWith(`${bind.source}/`))
  return [
    line(at, bind.target, ["rbind", "ro", ...lockedFlags(mounts, bind.source)]),
    ...below.map(({ target }) => {
      const rest = target.slice(bind.source.length)
      return line(at + rest, bind.target + rest, ["rbind", "ro", ...lockedFlags(mounts, target)])
    })
  ]
}

const fstab = (root: string, stage: string | undefined, plan: Plan): string => {
  const { binds, masks, mounts } = plan.survey
  return [
    // First, so that a Python below a home directory is mounted on top of it.
    ...writable.map(([directory]) => `${root}${directory} ${root}${directory} none bind,nosuid,nodev 0 0`),
    ...binds.flatMap((bind) =>
      bindLines(root, bind, mounts, bind.source === plan.pythonPrefix && stage !== undefined ? stage : bind.source)
    ),
    `proc ${root}/proc proc nosuid,nodev,noexec 0 0`,
    // Switches of the kernel can be read and not set.
    `${root}/proc/sys ${root}/proc/sys none bind,ro,nosuid,nodev,noexec 0 0`,
    // Names of the host's keys, its symbols, its log.
    ...masks.map((file) => `/dev/null ${root}${file} none bind 0 0`),
    // A mount of its own: nobody can move it away, and what enters the sandbox goes by it.
    `${root}/.ns ${root}/.ns none bind,ro,nosuid,nodev 0 0`,
    `devpts ${root}/dev/pts devpts newinstance,ptmxmode=0666,mode=620,nosuid,noexec 0 0`,
    ""
  ].join("\n")
}

const skeleton = (plan: Plan): ReadonlyArray<Entry> => {
  // Ids in the archive are those of the outer namespace, where an ordinary user has one alone.
  const owned = (uid: number) => plan.isRoot ? uid : 0
  const entries: Array<Entry> = []
  const directory = (path: string, mode?: number, owner?: number) =>
    entries.push({ path: path.slice(1), type: "directory", mode, owner })
  const file = (path: string, content = "") => entries.push({ path: path.slice(1), type: "file", content })
  const link = (path: string, to: string) => entries.push({ path: path.slice(1), type: "symlink", to })

  for (const path of ["/proc", "/dev/pts", "/var", "/opt", "/root", "/mnt", "/srv", "/.old"]) {
    directory(path)
  }
  // What setup leaves there says where things are on the host.
  directory("/.ns", 0o700)
  for (const [path, mode, owner] of writable) {
    directory(path, mode, owned(owner))
  }
  for (const { kind, target } of plan.survey.binds) {
    if (kind === "directory") {
      directory(target)
    } else {
      file(target)
    }
  }
  for (const { target, to } of plan.survey.links) {
    link(target, to)
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
  file("/.ns/user")
  entries.push({ path: ".ns/step", type: "fifo" })
  return entries
}

// ----------------------------------------------------------------------------
// the first process
// ----------------------------------------------------------------------------

const quote = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`

// Names the machine and raises lo: SIOCSIFFLAGS with IFF_UP. In one process, as each costs a millisecond.
const identify: Record<Interpreter["language"], (offline: boolean, sethostname: string) => string> = {
  perl: (offline, sethostname) =>
    `my $n = '${guest.hostname}'; syscall(${sethostname}, $n, length $n) == 0 or die 'hostname'; `
    + (offline
      ? "my $f = pack('a16 s x14', 'lo', 73); socket(S, 2, 2, 0) && ioctl(S, 0x8914, $f) or die 'loopback'"
      : ""),
  python3: (offline) =>
    `import fcntl, socket, struct; socket.sethostname('${guest.hostname}')`
    + (offline
      ? "; fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8914, struct.pack('16sH14x', b'lo', 73))"
      : "")
}

// Pins the inner user namespace by a bind mount of its file. The FIFO orders the steps: namespace made, maps written,
// pinned, end of the helper.
const pin = (isRoot: boolean): string =>
  `unshare --user ${isRoot ? "" : `--map-user=${guest.uid} --map-group=${guest.uid} `}-- \\
  sh -c 'echo >.ns/step; read -r _ <.ns/step' & inner=$!
read -r _ <.ns/step
${
    isRoot
      ? `echo '0 0 ${idRange}' >proc/$inner/gid_map\necho '0 0 ${idRange}' >proc/$inner/uid_map\n`
      : ""
  }mount --bind proc/$inner/ns/user .ns/user
echo >.ns/step
wait $inner`

const setupScript = (root: string, plan: Plan, hostnameCall: string): string =>
  `set -eu
umask 022
# /proc is still the host's. If unshare has died before it could tie us to itself, so do we.
read -r host_pid _ _ host_parent _ </proc/self/stat
[ "$host_parent" = "$0" ] || exit 120
mount -t tmpfs -o size=${plan.filesMiB}m,nr_inodes=65536,mode=${
    plan.writableRoot === true ? "1777" : "755"
  },nosuid,nodev sandbox ${root}
cd ${root}
tar -x -p --numeric-owner -f -
mount -a -T ${root}/.ns/fstab
${pin(plan.isRoot)}
# A guest makes no namespaces: in one of its own it would have every capability, and most of the kernel to try them on.
for limit in /proc/sys/user/max_*_namespaces; do echo 0 >$limit; done
# What is charged to our host user as well, and what no watchdog sees: older kernels may refuse these.
set_limit() { { echo "$2" >/proc/sys/$1; } 2>/dev/null || :; }
set_limit user/max_inotify_instances 32
set_limit user/max_inotify_watches 16384
set_limit kernel/shmall 4096
set_limit kernel/shmmni 64
set_limit kernel/msgmni 16
${plan.interpreter.file} ${plan.interpreter.language === "perl" ? "-e" : "-I -S -c"} ${
    quote(identify[plan.interpreter.language](plan.offline, hostnameCall))
  }
pivot_root . .old
cd /
umount -l /.old
${plan.writableRoot === true ? "" : "mount -o remount,bind,ro,nosuid,nodev /\n"}echo "ready $host_pid"
exec setpriv --nnp --bounding-set=-all --inh-caps=-all --ambient-caps=-all -- \\
  env -i --ignore-signal=CHLD sleep infinity </dev/null >/dev/null 2>&1
`

/** The whole of a new root. Its script reads the archive from its standard input and prints `ready` and its host pid. */
export const setup = (plan: Plan, sethostname: number): Setup | NoMountPoint => {
  const [root, second] = plan.survey.mountPoints
  const staged = plan.isRoot && plan.pythonPrefix !== undefined
  if (root === undefined || (staged && second === undefined)) {
    return "no-mount-point"
  }
  const stage = staged ? second : undefined
  return {
    script: setupScript(root, plan, String(sethostname)),
    entries: [...skeleton(plan), { path: ".ns/fstab", type: "file", content: fstab(root, stage, plan) }],
    stage
  }
}

/** Where a mount may be writable. */
const writableMounts: ReadonlySet<string> = new Set([
  ...writable.map(([directory]) => directory),
  "/proc",
  "/dev/pts",
  "/.ns/user",
  ...devices.map((device) => `/dev/${device}`)
])

/**
 * Mounts of a finished sandbox that could be written to and shouldn't: `mount` of some versions leaves a bind writable
 * without an error. There must be none.
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
  `[ "$PPID" = "$0" ] || exit 120; `
  + `for f in /proc/self/fd/*; do f=\${f##*/}; [ "$f" -gt ${keep} ] && exec {f}>&-; done; ${then}`,
  String(nodePid)
]

/** A process of root's that only holds a user namespace: it says so on stdout and ends with its stdin. */
export const holderArguments: ReadonlyArray<string> = ["unshare", "--user", "--", "sh", "-c", "echo; read -r _"]

/** Makes the namespaces and runs the setup. `holder` is the process whose user namespace root enters first. */
export const createArguments = (options: {
  readonly nodePid: number
  readonly plan: Pick<Plan, "offline" | "pythonPrefix">
  readonly setup: Setup
  readonly holder: number | undefined
}): ReadonlyArray<string> => [
  ...(options.setup.stage === undefined || options.plan.pythonPrefix === undefined ? [] : [
    ...["unshare", "--mount", "--propagation", "private", "--"],
    ...["sh", "-c", "mount --rbind \"$0\" \"$1\" && shift && exec \"$@\""],
    ...[options.plan.pythonPrefix, options.setup.stage]
  ]),
  // Before the guard: a change of user takes the parent-death signal away.
  ...(options.holder === undefined
    ? []
    : ["nsenter", `--user=/proc/${options.holder}/ns/user`, "-S", "0", "-G", "0", "--"]),
  ...guard(options.nodePid, 2, "exec \"$@\" $$"),
  ...["unshare", ...(options.holder === undefined ? ["--user", "--map-root-user"] : [])],
  ...namespaces(options.plan.offline),
  ...["--fork", "--kill-child=KILL", "--", "sh", "-c", options.setup.script]
]

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

const environment = (pythonPrefix: string | undefined, user: User): ReadonlyArray<string> => [
  `PATH=${user.home}/.local/bin:${
    pythonPrefix === undefined ? "" : `${pythonPrefix}/bin:`
  }/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`,
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
}): ReadonlyArray<string> => {
  const { place, user = guest } = options
  return [
    ...guard(options.nodePid, 3, isStill(place)),
    ...["nsenter", "-t", String(place.pid), "--user", ...namespaces(place.offline), ...asOwner(place), "--"],
    ...options.filter,
    // An ordinary user's sandbox knows one id, which it has already.
    ...[String(place.memoryMiB * 1024 * 1024), user.home, place.isRoot ? String(user.uid) : "same"],
    ...[...environment(place.pythonPrefix, user), "--"],
    // The second line: the host's own timer is the first.
    ...(options.limitSeconds === undefined ? [] : ["timeout", "--signal=KILL", String(options.limitSeconds + 1)]),
    ...options.program
  ]
}

/** Kills every process of a sandbox but its first: the kernel walks the list under one lock, no bomb outruns it. */
export const killAllArguments = (nodePid: number, place: Place): ReadonlyArray<string> => [
  ...guard(nodePid, 2, isStill(place)),
  ...["nsenter", "-t", String(place.pid), "--user", "--pid", ...asOwner(place), "--", "sh", "-c", "kill -9 -1"]
]

const bash = ["bash", "--norc", "--noprofile", "-c"]

/** A shell for one command line; what doesn't fit into an argument goes through its standard input. */
export const shell = (
  command: string
): { readonly program: ReadonlyArray<string>; readonly input: string | undefined } =>
  Buffer.byteLength(command) < 100 * 1024 && !command.includes("\0")
    ? { program: [...bash, command, "bash"], input: undefined }
    : { program: [...bash, "c=$(cat; printf .); exec </dev/null; eval \"${c%.}\"", "bash"], input: command }

/** Unpacks an archive: what is in the way is removed and not opened. */
export const unpack: ReadonlyArray<string> = [
  ...["tar", "-x", "-p", "-m", "--no-same-owner", "--unlink-first", "-C", "/", "-f", "-"]
]

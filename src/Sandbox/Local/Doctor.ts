/**
 * Whether this machine can have local sandboxes, and what to do where it can't.
 *
 * @since 0.1.0
 */
import * as Config from "effect/Config"
import * as ConfigError from "effect/ConfigError"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as fs from "node:fs"
import * as os from "node:os"
import * as Local from "../Local.ts"
import {
  descriptorLimit,
  enoughDescriptors,
  findTool,
  isOwnProc,
  machine,
  readMounts,
  toolPath,
  tools
} from "./Host.ts"
import * as Proc from "./Proc.ts"
import { advice } from "./Provider.ts"
import * as Python from "./Python.ts"
import * as Seccomp from "./Seccomp.ts"
import * as Spawn from "./Spawn.ts"

/**
 * One thing that was looked at. A `failed` one makes local sandboxes impossible; a `warning` makes them less than they
 * could be.
 *
 * @since 0.1.0
 * @category models
 */
export class Check extends Schema.Class<Check>("episode/Sandbox/Local/Doctor/Check")({
  /** Stable, for programs. */
  id: Schema.String,
  title: Schema.String,
  status: Schema.Literal("ok", "warning", "failed"),
  found: Schema.optionalWith(Schema.String, { exact: true }),
  todo: Schema.optionalWith(Schema.String, { exact: true })
}) {}

const ok = (id: string, title: string, found?: string): Check =>
  new Check({ id, title, status: "ok", ...(found === undefined ? {} : { found }) })

const not = (status: "warning" | "failed", id: string, title: string, found: string, todo: string): Check =>
  new Check({ id, title, status, found, todo })

const probe = (argv: ReadonlyArray<string>): Effect.Effect<Spawn.ToolResult> =>
  Effect.catchAll(
    Spawn.run(argv, { limit: "10 seconds" }),
    ({ detail }) => Effect.succeed({ code: 127, stdout: "", stderr: detail })
  )

const firstLine = (text: string): string => text.trim().split("\n")[0] ?? ""

const setting = (name: string): string | undefined =>
  Proc.attempt(() => fs.readFileSync(`/proc/sys/${name}`, "utf8").trim())

// ----------------------------------------------------------------------------
// the system
// ----------------------------------------------------------------------------

const system = Effect.sync((): Check =>
  process.platform === "linux"
    ? ok("linux", "Linux", `${os.type()} ${os.release()}, ${process.arch}`)
    : not(
      "failed",
      "linux",
      "Linux",
      process.platform,
      "local sandboxes are made of Linux namespaces: run this in a Linux virtual machine, or take another provider"
    )
)

const kernel = Effect.sync((): Check => {
  const [major = 0, minor = 0] = os.release().split(".").map((part) => parseInt(part, 10))
  return major > 5 || (major === 5 && minor >= 14)
    ? ok("kernel", "kernel 5.14 or newer", os.release())
    : not(
      "warning",
      "kernel",
      "kernel 5.14 or newer",
      os.release(),
      "before 5.14 the process limit of a sandbox counts all processes of its user: update the kernel"
    )
})

const missingTools = Effect.sync((): Check => {
  const missing = tools.filter(([name]) => findTool(name) === undefined)
  return missing.length === 0 ? ok("tools", "tools of util-linux, coreutils, bash and tar") : not(
    "failed",
    "tools",
    "tools of util-linux, coreutils, bash and tar",
    `not in ${toolPath}: ${missing.map(([name]) => name).join(", ")}`,
    `install ${[...new Set(missing.map(([, from]) => from))].join(", ")}`
  )
})

const options: ReadonlyArray<readonly [tool: string, needs: ReadonlyArray<string>, from: string]> = [
  ["unshare", ["--map-root-user", "--kill-child", "--cgroup"], "util-linux 2.36"],
  ["nsenter", ["--preserve-credentials", "--setuid", "--user", "--cgroup"], "util-linux 2.36"],
  ["setpriv", ["--pdeathsig", "--nnp"], "util-linux 2.36"],
  ["env", ["--chdir"], "coreutils 8.28"]
]

const toolOptions = Effect.forEach(options, ([tool, needs, from]) => {
  const title = `${tool} of ${from} or newer`
  return Effect.map(Effect.all([probe([tool, "--help"]), probe([tool, "--version"])]), ([help, version]) => {
    const lacks = needs.filter((option) => !help.stdout.includes(option))
    return lacks.length === 0 ? ok(`options-${tool}`, title, firstLine(version.stdout)) : not(
      "failed",
      `options-${tool}`,
      title,
      `${firstLine(version.stdout) || "an unknown version"} without ${lacks.join(", ")}`,
      `install ${from} or newer; the tools of busybox won't do`
    )
  })
})

const interpreter = (pythonPrefix: string | undefined) =>
  Effect.sync((): Check => {
    const found = machine(pythonPrefix)
    const title = "loader of the system call filter"
    return Seccomp.callsOf(found) === undefined
      ? not("failed", "seccomp", title, process.arch, "the filter is known for x64 and arm64 alone")
      : found.interpreter === undefined
      ? not("failed", "seccomp", title, "neither perl nor python3", "install perl, or a python3 below /usr")
      : ok("seccomp", title, found.interpreter.file)
  })

const python = (found: Python.Python | undefined): Check =>
  found === undefined
    ? not("failed", "python3", "python3", "not in PATH", "install it, or set PATH so that `python3` starts")
    : ok("python3", "python3", found.prefix)

const ownProc = Effect.sync((): Check => {
  const title = "a /proc of this pid namespace"
  return isOwnProc() ? ok("own-proc", title) : not(
    "failed",
    "own-proc",
    title,
    "/proc/self is another process",
    "the pids in /proc are those of another namespace: mount -t proc proc /proc, or unshare --mount-proc"
  )
})

const descriptors = Effect.sync((): Check => {
  const limit = descriptorLimit()
  const title = `${enoughDescriptors} descriptors`
  return limit >= enoughDescriptors ? ok("descriptors", title) : not(
    "warning",
    "descriptors",
    title,
    `${limit}`,
    "each command that runs takes some: ulimit -n 1024, or only a few can run at the same time"
  )
})

// ----------------------------------------------------------------------------
// namespaces
// ----------------------------------------------------------------------------

// What unshare says, and what it means.
const reason = (stderr: string): string => {
  const isFiltered = /^Seccomp:\s+[12]/m.test(
    Proc.attempt(() => fs.readFileSync("/proc/self/status", "utf8")) ?? ""
  )
  if (/No space left/.test(stderr)) {
    return "the limit is reached or zero: sudo sysctl -w user.max_user_namespaces=15000"
  }
  if (/_map|setgroups/.test(stderr)) {
    return "the id map may not be written, as AppArmor has it on Ubuntu 24.04: "
      + "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, "
      + "or give node an AppArmor profile with `userns,`, or start as root"
  }
  if (/Operation not permitted/.test(stderr)) {
    return isFiltered
      ? "a system call filter forbids it, as in a container: docker run --security-opt seccomp=unconfined"
      : "sudo sysctl -w kernel.unprivileged_userns_clone=1, or start as root, and not in a chroot"
  }
  if (/Invalid argument/.test(stderr)) {
    return "this kernel lacks a kind of namespace: use one built with all of them"
  }
  return "see what it says, and `man unshare`"
}

const switches = Effect.sync((): ReadonlyArray<Check> => {
  const most = setting("user/max_user_namespaces")
  const title = "user namespaces are on"
  const isRoot = process.getuid?.() === 0
  const limit = most === undefined
    ? not("failed", "userns-limit", title, "no /proc/sys/user", "use a kernel with CONFIG_USER_NS")
    : Number(most) > 0
    ? ok("userns-limit", title, `user.max_user_namespaces=${most}`)
    : not("failed", "userns-limit", title, `user.max_user_namespaces=${most}`, reason("No space left"))
  const armor = setting("kernel/apparmor_restrict_unprivileged_userns") === "1" && !isRoot
    ? [not(
      "warning",
      "apparmor",
      "AppArmor leaves user namespaces alone",
      "kernel.apparmor_restrict_unprivileged_userns=1",
      `if the probes below fail: ${reason("setgroups")}`
    )]
    : []
  return [limit, ...armor]
})

const namespaces = [
  ...["unshare", "--user", "--map-root-user", "--mount", "--pid", "--ipc", "--uts", "--cgroup", "--net"],
  ...["--fork", "--kill-child=KILL", "--"]
]

const user = ["unshare", "--user", "--map-root-user", "--"]

const maskedProc = (): string => {
  const masked = (Proc.attempt(() => readMounts("self")) ?? []).map(({ target }) => target).filter((target) =>
    target.startsWith("/proc/")
  )
  return masked.length === 0
    ? "something forbids it: a security module, or the policy of a container"
    : `parts of /proc are masked (${masked.slice(0, 3).join(", ")}), as in a container: `
      + "docker run --security-opt systempaths=unconfined, podman run --security-opt unmask=ALL, "
      + "procMount: Unmasked in Kubernetes"
}

interface Probe {
  readonly id: string
  readonly title: string
  readonly argv: ReadonlyArray<string>
  readonly todo: (stderr: string) => string
}

const probes: ReadonlyArray<Probe> = [
  { id: "userns", title: "a user namespace", argv: [...user, "true"], todo: reason },
  // The guest's is made inside of ours, so it may be refused where the first wasn't.
  {
    id: "userns-nested",
    title: "a user namespace in a user namespace",
    argv: [...user, ...user, "true"],
    todo: reason
  },
  { id: "namespaces", title: "all other namespaces", argv: [...namespaces, "true"], todo: reason },
  {
    id: "tmpfs",
    title: "a file system of its own",
    argv: [...namespaces, "mount", "-t", "tmpfs", "probe", "/tmp"],
    todo: () => "something forbids mount: AppArmor, SELinux, or the policy of a container"
  },
  {
    id: "proc",
    title: "a /proc of its own",
    argv: [...namespaces, "mount", "-t", "proc", "proc", "/proc"],
    todo: maskedProc
  },
  {
    id: "bind",
    title: "read-only binds",
    argv: [
      ...namespaces,
      ...["sh", "-c", "mount --rbind /usr /tmp && mount -o remount,bind,ro /tmp && ! touch /tmp/.probe 2>/dev/null"]
    ],
    todo: () => "a bind can't be made read-only here: without that nothing of the host may be shown to a sandbox"
  }
]

const runProbe = ({ argv, id, title, todo }: Probe): Effect.Effect<Check> =>
  Effect.map(probe(argv), ({ code, stderr }) =>
    code === 0
      ? ok(id, title)
      : not("failed", id, title, firstLine(stderr) || `code ${code}`, todo(stderr)))

// A process whose parent is gone, and which then ends, has to be collected by somebody.
const reaping: Effect.Effect<Check> = Effect.gen(function*() {
  const title = "the machine's first process collects orphans"
  if (process.pid === 1) {
    return not("warning", "init", title, "node is PID 1 here", "start it under an init: docker run --init")
  }
  const { stdout } = yield* probe(["sh", "-c", "sleep 0 >/dev/null 2>&1 & echo $!"])
  yield* Effect.sleep("150 millis")
  return Proc.status(Number(stdout))?.state === "Z"
    ? not(
      "warning",
      "init",
      title,
      `late or never, by ${Proc.name(1) ?? "PID 1"}`,
      "use an init (docker run --init), or dead processes stay in the list for a while after a crash"
    )
    : ok("init", title)
})

// ----------------------------------------------------------------------------
// a sandbox
// ----------------------------------------------------------------------------

const sandboxTitle = "a sandbox: made, used, deleted and gone"

const trialTodo = (message: string, hasPythonOutside: boolean): string | undefined => {
  const isRoot = process.getuid?.() === 0
  if (isRoot && /_map|: id [0-9]/.test(message)) {
    return "root gives every sandbox ids of its own: start where root has CAP_SETUID, CAP_SETGID and all ids, or as an "
      + "ordinary user"
  }
  if (isRoot && hasPythonOutside && /unshare|mount/.test(message)) {
    return "root needs CAP_SYS_ADMIN to show a Python outside /usr: docker run --cap-add SYS_ADMIN, or set PATH so that "
      + "`python3` is one below /usr, or start as an ordinary user"
  }
  if (/EMFILE|ENFILE/.test(message)) {
    return "ulimit -n 1024"
  }
  return /_map|Operation not permitted|No space left/.test(message) ? reason(message) : undefined
}

const refused = (message: string, hasPythonOutside = false): Check => {
  const todo = trialTodo(message, hasPythonOutside)
  return not("failed", "sandbox", sandboxTitle, message, todo === undefined ? message : `${message}: ${todo}`)
}

// The only check that knows: each of the others is a guess at what making one takes.
const trial = (hasPythonOutside: boolean): Effect.Effect<Check> =>
  Effect.gen(function*() {
    const provider = yield* Effect.flatMap(Local.config, Local.provider)
    const { exec, id } = yield* provider.create({
      role: "policy",
      lifetime: Duration.minutes(2),
      network: "offline",
      labels: { "episode.doctor": "trial" }
    })
    const { exitCode } = yield* exec("exit 7", { timeLimit: Duration.seconds(10), outputCap: 0 })
    yield* provider.destroy(id)
    const state = yield* provider.inspect(id)
    return exitCode !== 7
      ? refused(`\`exit 7\` ended with ${exitCode}`)
      : state === "absent"
      ? ok("sandbox", sandboxTitle)
      : refused("it was deleted, and is there")
  }).pipe(
    Effect.scoped,
    Effect.timeoutOption("1 minute"),
    Effect.map(Option.getOrElse(() => refused("it took longer than a minute"))),
    Effect.catchAll((error) =>
      Effect.succeed(refused(
        ConfigError.isConfigError(error) ? String(error) : error.message.replace(advice, ""),
        hasPythonOutside
      ))
    )
  )

/**
 * Looks at everything a local sandbox needs, and, where nothing speaks against it, makes one and deletes it, which takes
 * about a second. It leaves nothing.
 *
 * @since 0.1.0
 * @category constructors
 */
export const checks: Effect.Effect<ReadonlyArray<Check>> = Effect.gen(function*() {
  const linux = yield* system
  if (linux.status === "failed") {
    return [linux]
  }
  const searchPath = yield* Effect.orElseSucceed(Config.nonEmptyString("PATH"), () => toolPath)
  const foundPython = yield* Python.find(searchPath)
  const hasPythonOutside = foundPython?.isOutside === true
  const found = [
    linux,
    yield* kernel,
    yield* missingTools,
    ...(yield* toolOptions),
    python(foundPython),
    yield* interpreter(hasPythonOutside ? foundPython.prefix : undefined),
    yield* ownProc,
    yield* descriptors,
    ...(yield* switches),
    ...(yield* Effect.forEach(probes, runProbe)),
    yield* reaping
  ]
  return found.some(({ status }) => status === "failed") ? found : [...found, yield* trial(hasPythonOutside)]
})

/**
 * Making one sandbox. Whatever ends it halfway, an interruption too, nothing of it is left.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Predicate from "effect/Predicate"
import * as Scope from "effect/Scope"
import * as fs from "node:fs"
import type { Readable } from "node:stream"
import type * as Archive from "./Archive.ts"
import { findTool, type Machine, readMounts, survey, tools } from "./Host.ts"
import * as Kill from "./Kill.ts"
import * as Proc from "./Proc.ts"
import * as Recipe from "./Recipe.ts"
import * as Seccomp from "./Seccomp.ts"
import * as Spawn from "./Spawn.ts"

/** How calls are confined on this machine; or what it lacks for that. */
export const confinement = (
  machine: Machine
): Effect.Effect<{
  readonly interpreter: NonNullable<Machine["interpreter"]>
  readonly calls: Seccomp.Calls
}, Spawn.HostFailed> => {
  const calls = Seccomp.callsOf(machine)
  if (process.platform !== "linux") {
    return new Spawn.HostFailed({
      detail: `a local sandbox is made of Linux namespaces and this is ${process.platform}`
    })
  }
  if (calls === undefined) {
    return new Spawn.HostFailed({
      detail: `the system calls of ${machine.architecture} aren't known here: x64 and arm64 are`
    })
  }
  if (machine.interpreter === undefined) {
    return new Spawn.HostFailed({ detail: "neither perl nor python3 is installed below /usr: one of them is needed" })
  }
  const missing = tools.find(([name]) => findTool(name) === undefined)
  return missing === undefined
    ? Effect.succeed({ interpreter: machine.interpreter, calls })
    : new Spawn.HostFailed({ detail: `${missing[0]} is missing: install ${missing[1]}` })
}

const setupLimit = Duration.seconds(20)

// The text that a stream has given when it matches, or when it has ended.
const awaitText = (stream: Readable | null, pattern: RegExp): Effect.Effect<RegExpExecArray | undefined> =>
  Effect.async((resume) => {
    let found = ""
    const settle = () => resume(Effect.succeed(pattern.exec(found) ?? undefined))
    stream?.setEncoding("utf8").on("data", (chunk: string) => {
      found = (found + chunk).slice(0, 1024)
      if (pattern.test(found)) {
        settle()
      }
    }).once("close", settle)
  })

// Root alone: a user namespace that has 65536 host ids of its own, none of them root.
const holdUserNamespace = (
  firstId: number
): Effect.Effect<Spawn.Child, Spawn.HostFailed, Scope.Scope> =>
  Effect.gen(function*() {
    const holder = yield* Spawn.start({
      argv: Recipe.holderArguments,
      stdio: ["pipe", "pipe", "ignore"],
      stop: Spawn.stopTool
    })
    if ((yield* awaitText(holder.stdout, /\n/)) === undefined) {
      return yield* new Spawn.HostFailed({ detail: "unshare: a user namespace can't be created" })
    }
    yield* Spawn.io(() => {
      for (const map of ["gid_map", "uid_map"]) {
        fs.writeFileSync(`/proc/${holder.pid}/${map}`, `0 ${firstId} ${Recipe.idRange}\n`)
      }
    })
    return holder
  })

// What our own tools said about the setup: no guest has run yet.
const explain = (stderr: string): string => {
  const line = stderr.split("\n").map((part) => part.trim()).find((part) => part !== "")
  return line === undefined ? "the setup ended without a word" : line.slice(0, 200)
}

// Ready is said just before the first process becomes what it stays.
const settled = (pid: number): Effect.Effect<void, Spawn.HostFailed> =>
  Effect.suspend(() => {
    const name = Proc.name(pid)
    return name === "sleep"
      ? Effect.void
      : name === undefined
      ? new Spawn.HostFailed({ detail: "the first process ended at once" })
      : Effect.andThen(Effect.sleep("1 millis"), settled(pid))
  })

export interface Options {
  readonly machine: Machine
  readonly offline: boolean
  readonly memoryMiB: number
  readonly filesMiB: number
  readonly writableRoot: boolean
  /** The first of the host's ids that the sandbox may use, where root makes it. */
  readonly firstId: number
  readonly pack: (entries: ReadonlyArray<Archive.Entry>) => Effect.Effect<Buffer>
}

/** Makes a sandbox that lives until the scope closes. */
export const create = (options: Options): Effect.Effect<Recipe.Place, Spawn.HostFailed, Scope.Scope> =>
  Effect.gen(function*() {
    const { machine, offline } = options
    const { calls, interpreter } = yield* confinement(machine)
    const plan = yield* Spawn.io((): Recipe.Plan => ({
      isRoot: machine.isRoot,
      interpreter,
      offline,
      filesMiB: options.filesMiB,
      writableRoot: options.writableRoot,
      resolver: offline ? "" : Proc.attempt(() => fs.readFileSync("/etc/resolv.conf", "utf8")) ?? "",
      pythonPrefix: machine.pythonPrefix,
      survey: survey(machine.pythonPrefix)
    }))
    const setup = Recipe.setup(plan, calls.sethostname)
    if (setup === "no-mount-point") {
      return yield* new Spawn.HostFailed({ detail: "no directory such as /tmp or /mnt is left to make a new root on" })
    }
    const archive = yield* options.pack(setup.entries)
    const lifetime = yield* Effect.scope
    // The holder isn't needed any more once the sandbox is ready.
    const made = yield* Spawn.within(
      Effect.scoped(Effect.gen(function*() {
        const holder = machine.isRoot ? yield* holdUserNamespace(options.firstId) : undefined
        const chain = yield* Spawn.start({
          argv: Recipe.createArguments({ nodePid: process.pid, plan, setup, holder: holder?.pid }),
          stdio: ["pipe", "pipe", "pipe"],
          stop: Kill.chain
        }).pipe(Scope.extend(lifetime))
        const stderr = Spawn.text(chain.stderr)
        chain.stdin?.end(archive)
        const ready = yield* awaitText(chain.stdout, /^ready ([0-9]+)\n/m)
        if (ready === undefined) {
          return yield* new Spawn.HostFailed({ detail: explain(stderr()) })
        }
        yield* settled(Number(ready[1]))
        chain.stdout?.destroy()
        chain.stderr?.destroy()
        return Number(ready[1])
      })),
      setupLimit
    )
    if (Option.isNone(made)) {
      return yield* new Spawn.HostFailed({ detail: `the setup took longer than ${Duration.format(setupLimit)}` })
    }
    const pid = made.value
    return yield* Effect.filterOrFail(
      Spawn.io((): Recipe.Place | undefined => {
        const start = Proc.status(pid)?.start
        const namespace = Proc.namespace(pid)
        return start === undefined || namespace === undefined ? undefined : {
          pid,
          start,
          namespace,
          isRoot: machine.isRoot,
          offline,
          memoryMiB: options.memoryMiB,
          pythonPrefix: machine.pythonPrefix
        }
      }),
      Predicate.isNotUndefined,
      () => new Spawn.HostFailed({ detail: "the first process ended at once" })
    ).pipe(Effect.tap((place) => audit(place, plan)))
  })

// Trust nothing: a mount that could be written to, and isn't one of ours, would be the host's.
const audit = (place: Recipe.Place, plan: Recipe.Plan): Effect.Effect<void, Spawn.HostFailed> =>
  Effect.flatMap(
    Spawn.io(() => Recipe.unexpectedlyWritable(readMounts(place.pid), plan)),
    ([first]) =>
      first === undefined
        ? Effect.void
        : new Spawn.HostFailed({ detail: `mount left ${first} of the host writable: update util-linux` })
  )

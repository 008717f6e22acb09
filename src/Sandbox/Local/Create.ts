/**
 * Making one sandbox. Whatever ends it halfway, an interruption too, nothing of it is left.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Predicate from "effect/Predicate"
import type * as Scope from "effect/Scope"
import * as fs from "node:fs"
import { findTool, type Machine, readMounts, survey, tools } from "./Host.ts"
import * as Kill from "./Kill.ts"
import * as Proc from "./Proc.ts"
import * as Recipe from "./Recipe.ts"
import * as Seccomp from "./Seccomp.ts"
import * as Setup from "./Setup.ts"
import * as Spawn from "./Spawn.ts"

interface Confinement {
  readonly interpreter: NonNullable<Machine["interpreter"]>
  readonly calls: Seccomp.Calls
}

// What isn't there can be installed; what is there is asked for once.
const complete = new WeakMap<Machine, Confinement>()

/** How calls are confined on this machine; or what it lacks for that. */
export const confinement = (machine: Machine): Effect.Effect<Confinement, Spawn.HostFailed> => {
  const known = complete.get(machine)
  if (known !== undefined) {
    return Effect.succeed(known)
  }
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
  if (missing !== undefined) {
    return new Spawn.HostFailed({ detail: `${missing[0]} is missing: install ${missing[1]}` })
  }
  const confined = { interpreter: machine.interpreter, calls }
  complete.set(machine, confined)
  return Effect.succeed(confined)
}

const setupLimit = Duration.seconds(20)

/** What our own tools said about the setup: no guest has run yet. */
export const explain = (stderr: string): Spawn.HostFailed => {
  const line = stderr.split("\n").map((part) => part.trim()).find((part) => part !== "")
  return new Spawn.HostFailed({
    detail: line === undefined ? "the first process ended without a word" : line.slice(0, 200),
    // EAGAIN, which the setup is told when there is no room for a process.
    quota: line?.endsWith(": Resource temporarily unavailable") === true ? Spawn.processQuota : undefined
  })
}

export interface Options {
  readonly machine: Machine
  readonly offline: boolean
  readonly memoryMiB: number
  readonly filesMiB: number
  readonly writableRoot: boolean
  /** The first of the host's ids that the sandbox may use, where root makes it. */
  readonly firstId: number
  readonly preparations: Preparations
}

interface Prepared {
  readonly plan: Recipe.Plan
  readonly setup: Recipe.Setup
  readonly steps: Buffer
}

/** What sandboxes are made from. Looking all of that up takes a tenth of a create, so it is kept. */
export interface Preparations {
  readonly get: (
    options: Pick<Options, "machine" | "offline" | "filesMiB" | "writableRoot"> & {
      readonly interpreter: Recipe.Plan["interpreter"]
    }
  ) => Prepared | Recipe.NoMountPoint
  readonly forget: () => void
}

/** Kept while the host's mounts and its resolver stay what they are. */
export const preparations = (): Preparations => {
  const kept = new Map<string, Prepared>()
  return {
    forget: () => kept.clear(),
    get: ({ filesMiB, interpreter, machine, offline, writableRoot }) => {
      const resolver = offline ? "" : Proc.attempt(() => fs.readFileSync("/etc/resolv.conf", "utf8")) ?? ""
      const mounts = fs.readFileSync("/proc/self/mountinfo", "utf8")
      const key = [offline, filesMiB, writableRoot, resolver, mounts].join("\n")
      const found = kept.get(key)
      if (found !== undefined) {
        return found
      }
      const { isRoot, pythonPrefix } = machine
      const plan: Recipe.Plan = {
        isRoot,
        interpreter,
        offline,
        filesMiB,
        writableRoot,
        resolver,
        pythonPrefix,
        survey: survey(pythonPrefix)
      }
      const setup = Recipe.setup(plan)
      if (setup === "no-mount-point") {
        return setup
      }
      const prepared = { plan, setup, steps: Setup.encode(setup.steps) }
      // Each is for mounts that are gone by now, but for the two kinds of network.
      if (kept.size > 3) {
        kept.clear()
      }
      kept.set(key, prepared)
      return prepared
    }
  }
}

/** Makes a sandbox that lives until the scope closes. */
export const create = (options: Options): Effect.Effect<Recipe.Place, Spawn.HostFailed, Scope.Scope> =>
  Effect.gen(function*() {
    const { machine, offline } = options
    const { calls, interpreter } = yield* confinement(machine)
    const prepared = yield* Spawn.io(() => options.preparations.get({ ...options, interpreter }))
    if (prepared === "no-mount-point") {
      return yield* new Spawn.HostFailed({ detail: "no directory such as /tmp or /mnt is left to make a new root on" })
    }
    const { plan, setup, steps } = prepared
    const chain = yield* Spawn.start({
      argv: Recipe.createArguments({ nodePid: process.pid, machine, calls, plan, setup, firstId: options.firstId }),
      stdio: ["pipe", "pipe", "pipe"],
      stop: Kill.chain
    })
    const stdout = Spawn.text(chain.stdout)
    const stderr = Spawn.text(chain.stderr)
    chain.stdin?.end(steps)
    const made = yield* Spawn.within(
      Effect.gen(function*() {
        // Both close when the first process has become what it stays, or has failed.
        yield* Spawn.closing(chain.stdout)
        yield* Spawn.closing(chain.stderr)
        const [, ready] = /^ready ([0-9]+)\n/m.exec(stdout()) ?? []
        if (ready === undefined) {
          return yield* explain(stderr())
        }
        return Number(ready)
      }),
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
        return start === undefined || namespace === undefined || Proc.name(pid) !== "sleep" ? undefined : {
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
      () => explain(stderr())
    ).pipe(Effect.tap((place) => audit(place, prepared)))
  }).pipe(
    // What it was made from may have gone: the next one looks again.
    Effect.tapError(() => Effect.sync(options.preparations.forget))
  )

// Trust nothing: a mount that isn't one of ours, or could be written to and shouldn't, would be the host's.
const audit = (place: Recipe.Place, { plan, setup }: Prepared): Effect.Effect<void, Spawn.HostFailed> =>
  Effect.gen(function*() {
    const mounts = yield* Spawn.io(() => readMounts(place.pid))
    const { missing: [missing], surplus: [surplus] } = Recipe.unplannedMounts(mounts, setup)
    const [writable] = Recipe.unexpectedlyWritable(mounts, plan)
    const detail = surplus !== undefined
      ? `a mount on ${surplus} came into the sandbox while it was made`
      : missing !== undefined
      ? `the sandbox has no mount on ${missing}`
      : writable !== undefined
      ? `${writable} of the host was left writable`
      : undefined
    if (detail !== undefined) {
      return yield* new Spawn.HostFailed({ detail })
    }
  })

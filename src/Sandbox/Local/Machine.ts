/**
 * Programs that run in a sandbox for as long as they like: entered as every call is, with pipes that are read only as
 * fast as somebody takes what comes out of them.
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as fs from "node:fs"
import { constants } from "node:os"
import { getSystemErrorName } from "node:util"
import type { SandboxFault, SandboxId } from "../../Sandbox.ts"
import { SandboxLost, TransportFailed } from "../../Sandbox.ts"
import type { Ended, MachineProvider, Program, Running, Usage } from "../Machine.ts"
import { ProgramRefused } from "../Machine.ts"
import * as Absence from "./Absence.ts"
import { SIGKILL_CODE } from "./Call.ts"
import * as Census from "./Census.ts"
import * as Conduit from "./Conduit.ts"
import * as Confinement from "./Confinement.ts"
import * as Create from "./Create.ts"
import * as Host from "./Host.ts"
import * as Kill from "./Kill.ts"
import * as Pipes from "./Pipes.ts"
import * as Proc from "./Proc.ts"
import * as Recipe from "./Recipe.ts"
import * as Registry from "./Registry.ts"
import * as Spawn from "./Spawn.ts"

// Before it enters, a program says which pid it has there; it keeps it through every exec that follows.
const announce = () => [Host.toolFile("bash"), "--norc", "--noprofile", "-c", "echo $$ >&3; exec \"$@\"", "bash"]

// Its pid, and then a byte when the program is the guest's; or why it can't be in its directory.
const announced = /^([0-9]+)\n/
const entered = /^[0-9]+\ne$/
const misplaced = /^[0-9]+\nd([0-9]+)\n$/

// No process has this one: the kernel's numbers end below it.
const noPid = 2 ** 22

// Of what comes before the sandbox is entered: somebody it depends on has ended.
const hostCodes: ReadonlySet<number> = new Set([120, 121])

// An nsenter stops itself when its child is stopped, which nobody but a guest does.
const pidOfStopped = (child: Spawn.Child): number | undefined => {
  if (Proc.status(child.pid)?.state !== "T") {
    return undefined
  }
  const [leader] = Proc.children(child.pid)
  return leader === undefined ? undefined : Proc.ownPid(leader)
}

const users = { user: Recipe.guest, root: Recipe.superuser } as const

// The kernel's bound on one argument.
const longestArgument = 128 * 1024 - 1

// `env` says what is wrong with a file that can't be run. It takes a first word with a `=` in it for a variable.
const named = (argv: Program["argv"]): ReadonlyArray<string> =>
  argv[0].includes("=") ? [Host.toolFile("sh"), "-c", "exec \"$0\" \"$@\"", ...argv] : argv

const wordsOf = (
  { argv: [file, ...rest], search }: Program,
  { pythonPrefix }: Recipe.Place
): ReadonlyArray<string> => [
  ...[Host.toolFile("env"), "--"],
  // What a sandbox has there is the host's, under the same names.
  ...named([search === "system" ? Host.findTool(file, Recipe.systemPath(pythonPrefix)) ?? file : file, ...rest])
]

const whatIsWrong = (program: Program, place: Recipe.Place): string | undefined => {
  const variables = Object.entries(Confinement.carried(program.environment)).map(([name, word]) => `${name}=${word}`)
  const words = [program.directory, ...wordsOf(program, place), ...variables]
  return Object.keys(program.environment).some((name) => name === "" || name.includes("="))
    ? "a variable's name is empty or has a `=` in it"
    : words.some((word) => word.includes("\0"))
    ? "an argument or a variable has a NUL in it"
    : words.some((word) => Buffer.byteLength(word) > longestArgument)
    ? `an argument or a variable is longer than ${longestArgument} bytes`
    : undefined
}

const whyNotIn = (directory: string, code: number): string =>
  code === constants.errno.ENOENT
    ? `cwd '${directory}' does not exist`
    : code === constants.errno.ENOTDIR
    ? `cwd '${directory}' is not a directory`
    : `cwd '${directory}' can't be entered: ${getSystemErrorName(-code)}`

// A guest may stop it, too, just when it has become one of its own and hasn't said so.
const stopped = (child: Spawn.Child): Effect.Effect<number, Spawn.HostFailed> =>
  Effect.flatMap(
    Effect.delay(Spawn.io(() => pidOfStopped(child)), "500 millis"),
    (pid) => pid === undefined ? stopped(child) : Effect.succeed(pid)
  )

const endOf = ({ code, signal }: Spawn.Ended): Ended =>
  signal === null
    ? { exitCode: code ?? undefined, signal: undefined }
    : { exitCode: undefined, signal }

const signalGroup = (child: Spawn.Child): void => {
  for (const leader of Proc.children(child.pid)) {
    // Just after it entered it may not lead a group yet.
    if (Proc.attempt(() => process.kill(-leader, "SIGTERM")) === undefined) {
      Proc.signal(leader, "SIGTERM")
    }
  }
}

// Its streams may outlive it, and its pid may be another's by then.
const terminate = (child: Spawn.Child): Effect.Effect<void> =>
  Effect.asVoid(Effect.unlessEffect(Effect.sync(() => signalGroup(child)), child.hasEnded))

const failed = (sandboxId: SandboxId) => ({ detail }: Spawn.HostFailed) =>
  new TransportFailed({ operation: "exec", sandboxId, detail })

/** Programs in the sandboxes that are written down in a directory. */
export const make = (settings: {
  readonly directory: string
}): Effect.Effect<Context.Tag.Service<MachineProvider>, never, Scope.Scope> =>
  Effect.gen(function*() {
    const registry = Registry.make({ directory: settings.directory, uid: process.getuid?.() ?? -1 })
    const pipes = yield* Pipes.make({ directory: registry.directory })
    const filterFor = yield* Effect.cachedFunction((pythonPrefix: string | undefined) =>
      Effect.map(
        Effect.suspend(() => Create.confinement(Host.machine(pythonPrefix))),
        ({ calls, interpreter }) => [...announce(), ...Confinement.loader(calls, interpreter)]
      )
    )

    const locate = (id: SandboxId): Effect.Effect<Registry.Entry, SandboxFault> =>
      Effect.gen(function*() {
        const entry = yield* registry.read(id)
        return Option.isSome(entry) && (yield* Spawn.io(() => Absence.isAlive(entry.value)))
          ? entry.value
          : yield* new SandboxLost({ operation: "exec", sandboxId: id, reason: "absent" })
      }).pipe(Effect.catchTag("HostFailed", failed(id)))

    // The pid that a program has there, once it is the guest's.
    const announcement = (
      child: Spawn.Child,
      status: Stream.Stream<Uint8Array>,
      place: Registry.Entry,
      directory: string
    ): Effect.Effect<number, Spawn.HostFailed | SandboxFault | ProgramRefused> =>
      Effect.gen(function*() {
        const said = yield* status.pipe(
          Stream.decodeText(),
          Stream.scan("", (before, text) => before + text),
          Stream.takeUntil((text) => entered.test(text) || misplaced.test(text)),
          Stream.runLast,
          Effect.map(Option.getOrElse(() => ""))
        )
        const pid = Number(announced.exec(said)?.[1] ?? noPid)
        if (entered.test(said)) {
          return pid
        }
        const [, wrong] = misplaced.exec(said) ?? []
        if (wrong !== undefined) {
          const detail = whyNotIn(directory, Number(wrong))
          return yield* new ProgramRefused({ sandboxId: place.id, reason: "directory", detail })
        }
        const ended = yield* child.ended
        const code = Spawn.exitCode(ended)
        yield* locate(place.id)
        // A guest may end what is about to become one of its own. By a signal that has no name in Node, that is code 0.
        return code === SIGKILL_CODE || code === 0 || ended.signal !== null
          ? pid
          : hostCodes.has(code)
          ? yield* new Spawn.HostFailed({ detail: `entering the sandbox ended with code ${code}` })
          : yield* new ProgramRefused({
            sandboxId: place.id,
            reason: "ended",
            detail: `entering the sandbox ended with code ${code}`
          })
      })

    const start = (
      place: Registry.Entry,
      program: Program
    ): Effect.Effect<Running, Spawn.HostFailed | SandboxFault | ProgramRefused, Scope.Scope> =>
      Effect.gen(function*() {
        const filter = yield* filterFor(place.pythonPrefix)
        const waits = program.outputs === "writers"
        const stdout = yield* Conduit.output(pipes, waits)
        const stderr = yield* Conduit.output(pipes, waits)
        const stdin = program.stdin === "open" ? yield* Conduit.input(pipes) : undefined
        const status = yield* Conduit.output(pipes)
        const child = yield* Spawn.start({
          argv: Recipe.enterArguments({
            nodePid: process.pid,
            place,
            filter,
            limitSeconds: undefined,
            program: wordsOf(program, place),
            user: users[program.user],
            directory: program.directory
          }),
          environment: { ...Host.cleanEnvironment, ...Confinement.carried(program.environment) },
          stdio: [stdin === undefined ? "ignore" : stdin.childEnd, stdout.childEnd, stderr.childEnd, status.childEnd],
          stop: (child) => Kill.call(child, place)
        })
        for (const end of [stdout, stderr, status, ...(stdin === undefined ? [] : [stdin])]) {
          yield* end.closeChildEnd
        }
        yield* Effect.forkScoped(Effect.interruptible(Kill.keepGoing(child)))
        const pid = yield* Effect.raceFirst(
          announcement(child, status.stream(child), place, program.directory),
          stopped(child)
        )
        return {
          pid,
          stdout: stdout.stream(child),
          stderr: stderr.stream(child),
          write: stdin?.write ?? (() => Effect.succeed(false)),
          closeStdin: stdin?.close ?? Effect.void,
          signal: (name) => name === "SIGKILL" ? Kill.call(child, place) : terminate(child),
          ended: Effect.map(child.ended, endOf),
          letGo: Effect.zipRight(stdout.letGo, stderr.letGo)
        }
      })

    return {
      spawn: Effect.fn("Local.spawn")(function*(sandboxId: SandboxId, program: Program) {
        const place = yield* locate(sandboxId)
        const wrong = whatIsWrong(program, place)
        if (wrong !== undefined) {
          return yield* new ProgramRefused({ sandboxId, reason: "arguments", detail: wrong })
        }
        if (program.user === "root" && !place.isRoot) {
          return yield* new ProgramRefused({
            sandboxId,
            reason: "user",
            detail: "an ordinary user's sandbox has no superuser"
          })
        }
        return yield* Effect.catchTag(start(place, program), "HostFailed", failed(sandboxId))
      }),
      usage: Effect.fn("Local.usage")(function*(sandboxId: SandboxId) {
        const place = yield* locate(sandboxId)
        const members = Effect.map(Census.take, (census) => Absence.membersIn(census, place.namespace))
        return yield* members.pipe(
          Effect.flatMap((pids) => Spawn.io(() => usageOf(place, pids))),
          Effect.mapError(failed(sandboxId))
        )
      })
    }
  })

const KIB = 1024

// Clock ticks of the kernel's user interface: 100 a second on every architecture that has namespaces.
const ticks = 100

const usageOf = (place: Registry.Entry, pids: ReadonlyArray<number>): Usage => {
  let memoryBytes = 0
  let cpuTicks = 0
  for (const pid of pids) {
    const found = Proc.usage(pid)
    memoryBytes += found?.residentBytes ?? 0
    cpuTicks += found?.cpuTicks ?? 0
  }
  const disk = fs.statfsSync(`/proc/${place.pid}/root/tmp/.`)
  return {
    cpuSeconds: cpuTicks / ticks,
    memoryBytes,
    memoryLimitBytes: place.memoryMiB * KIB * KIB,
    diskBytes: (disk.blocks - disk.bfree) * disk.bsize,
    diskLimitBytes: disk.blocks * disk.bsize
  }
}

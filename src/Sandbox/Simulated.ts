/**
 * A provider without machines, for tests: sandboxes in memory, time by the `Clock`, faults on demand, and a true account of
 * everything that happened.
 *
 * Every request has a number. A fault script says which of them go wrong and how; {@link World} knows what really became of
 * them, so a test can compare what a program says with what is so. Nothing here waits for real time: under a `TestClock`,
 * or any other clock, a run is deterministic.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import * as DateTime from "effect/DateTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FiberId from "effect/FiberId"
import * as Layer from "effect/Layer"
import type { FileRead, Labels, Operation, Provider, Role, Sandbox, SandboxFault, SandboxSpec } from "../Sandbox.ts"
import {
  ProtocolViolation,
  Resources,
  SandboxId,
  SandboxLost,
  SandboxProvider,
  SandboxUnavailable,
  TransportFailed
} from "../Sandbox.ts"
import type { SandboxFile } from "../Task.ts"
import { collector } from "./Output.ts"
import type { FileSystem } from "./Simulated/FileSystem.ts"
import * as Files from "./Simulated/FileSystem.ts"
import type { CommandResult, Program, Shell } from "./Simulated/Shell.ts"
import * as Shells from "./Simulated/Shell.ts"

export type { CommandResult, FileSystem, Program, Shell }

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * A request to the provider, as it begins.
 *
 * @since 0.1.0
 * @category models
 */
export interface Call {
  /** Counts all requests, from 1. */
  readonly number: number
  readonly operation: Operation
  /** Counts the requests of this operation, from 1. */
  readonly nth: number
  /** None for a create and a find. */
  readonly sandboxId?: SandboxId | undefined
  /** None for a find, and for a sandbox that never was. */
  readonly role?: Role | undefined
}

/**
 * What goes wrong with a request.
 *
 * @since 0.1.0
 * @category models
 */
export type Fault = Data.TaggedEnum<{
  /** Refused at the door: no effect. A create is `SandboxUnavailable`, anything else `TransportFailed`. */
  Refused: {}
  /** `TransportFailed`, before (`effect: false`) or after the request had its effect. */
  ReplyLost: { readonly effect: boolean }
  /** The effect at once, the reply this much later. */
  Late: { readonly by: Duration.DurationInput }
  /** No reply, ever. One that isn't interruptible can't even be given up. */
  Hangs: { readonly effect: boolean; readonly interruptible: boolean }
  /**
   * At this moment the request's sandbox ends (`absent`, `expired`) or stops to answer (`unhealthy`); the request then takes
   * its course. For a create that is the sandbox it makes. Nothing for a find.
   */
  Lost: { readonly reason: SandboxLost["reason"] }
  /** The effect, and a reply that can't be read: `ProtocolViolation`. */
  Malformed: {}
  /** A deletion that is accepted but not done. Other requests take their course. */
  NotDone: {}
  /** A bug in the provider: the request dies. */
  Dies: { readonly effect: boolean }
}>

/**
 * @since 0.1.0
 * @category constructors
 */
export const Fault = Data.taggedEnum<Fault>()

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /** Which requests go wrong, and how. Default: none. See {@link atCalls}. */
  readonly faults?: ((call: Call) => Fault | undefined) | undefined
  /** Runs as a request begins and holds it up while it runs: the place to interrupt its caller. Default: nothing. */
  readonly onCall?: ((call: Call) => Effect.Effect<void>) | undefined
  /** How long a request takes beside what it does: one half before its effect, one half after. Default: no time. */
  readonly latency?: Duration.DurationInput | undefined
  /** What `python3` does, by the program's source text. Default: no program is known. See `Simulated/Shell`. */
  readonly programs?: ReadonlyMap<string, Program> | undefined
  /** A shell of your own, in place of the one of `Simulated/Shell`. */
  readonly shell?: Shell | undefined
  /** Whether sandboxes that don't ask for `offline` have a network. Default: no. */
  readonly network?: boolean | undefined
  /** Default: no pacing. */
  readonly allocationPacing?: Duration.DurationInput | undefined
}

/**
 * A request, as it went.
 *
 * @since 0.1.0
 * @category models
 */
export interface CallRecord extends Call {
  readonly startedAt: DateTime.Utc
  readonly endedAt?: DateTime.Utc | undefined
  /** `pending` for one that isn't answered yet. */
  readonly result: "pending" | "ok" | "failed" | "interrupted"
  readonly fault?: Fault["_tag"] | undefined
}

/**
 * A sandbox, as it is or was.
 *
 * @since 0.1.0
 * @category models
 */
export interface SandboxRecord {
  readonly id: SandboxId
  readonly role: Role
  readonly labels: Labels
  readonly templateId: string
  readonly network: boolean
  readonly createdAt: DateTime.Utc
  /** None while it runs. */
  readonly ended?: { readonly at: DateTime.Utc; readonly how: "deleted" | "lost" | "expired" } | undefined
  /** Everything that was ever written into it from outside, in order. */
  readonly received: ReadonlyArray<SandboxFile & { readonly at: DateTime.Utc }>
  /** Every command it was given, in order. */
  readonly commands: ReadonlyArray<{ readonly command: string; readonly at: DateTime.Utc }>
  /** Its regular files. */
  readonly files: ReadonlyMap<string, Uint8Array>
}

// ----------------------------------------------------------------------------
// tags
// ----------------------------------------------------------------------------

/**
 * What really happened, whatever the replies said.
 *
 * @since 0.1.0
 * @category tags
 */
export class World extends Context.Tag("episode/Sandbox/Simulated/World")<World, {
  /** Every request, in the order in which they began. */
  readonly calls: Effect.Effect<ReadonlyArray<CallRecord>>
  /** Every sandbox that ever was, in the order of creation. */
  readonly sandboxes: Effect.Effect<ReadonlyArray<SandboxRecord>>
  /** Those that exist now. */
  readonly running: Effect.Effect<ReadonlyArray<SandboxRecord>>
  /** Ends a sandbox behind everybody's back, or makes it stop to answer. */
  readonly lose: (id: SandboxId, reason: SandboxLost["reason"]) => Effect.Effect<void>
}>() {}

// ----------------------------------------------------------------------------
// constructors
// ----------------------------------------------------------------------------

/**
 * A fault script by call number.
 *
 * @since 0.1.0
 * @category constructors
 */
export const atCalls = (faults: Readonly<Record<number, Fault>>): (call: Call) => Fault | undefined => (call) =>
  faults[call.number]

interface Machine extends Omit<SandboxRecord, "ended" | "files"> {
  readonly files: FileSystem
  readonly received: Array<SandboxRecord["received"][number]>
  readonly commands: Array<SandboxRecord["commands"][number]>
  readonly resources: Resources
  healthy: boolean
  expiresAt: number
  /** Done when it ends before its time. */
  readonly gone: Deferred.Deferred<void>
  ended: { readonly at: number; readonly how: "deleted" | "lost" | "expired" } | undefined
}

type Mutable<A> = { -readonly [K in keyof A]: A[K] }

const utc = DateTime.unsafeMake

const killed = 128 + 9

const make = (options: Options) => {
  const calls: Array<Mutable<CallRecord>> = []
  const counts = new Map<Operation, number>()
  const machines = new Map<SandboxId, Machine>()
  const shell = options.shell ?? Shells.make({ programs: options.programs })
  // Without a latency nothing else happens while a request is under way.
  const halfway = options.latency === undefined
    ? Effect.void
    : Effect.sleep(Duration.times(Duration.decode(options.latency), 0.5))

  // A lifetime is enforced by looking at the clock whenever somebody looks at the sandbox.
  const endedBy = (machine: Machine, now: number): Machine["ended"] => {
    if (machine.ended === undefined && now >= machine.expiresAt) {
      machine.ended = { at: machine.expiresAt, how: "expired" }
    }
    return machine.ended
  }

  const end = (machine: Machine, now: number, how: "deleted" | "lost" | "expired"): void => {
    machine.ended = endedBy(machine, now) ?? { at: now, how }
    Deferred.unsafeDone(machine.gone, Exit.void)
  }

  const lose = (machine: Machine, now: number, reason: SandboxLost["reason"]): void => {
    if (reason === "unhealthy") {
      machine.healthy = false
    } else {
      end(machine, now, reason === "expired" ? "expired" : "lost")
    }
  }

  const living = (operation: Operation, id: SandboxId): Effect.Effect<Machine, SandboxLost> =>
    Effect.flatMap(Clock.currentTimeMillis, (now) => {
      const machine = machines.get(id)
      const ended = machine === undefined ? undefined : endedBy(machine, now)
      return machine === undefined || ended !== undefined || !machine.healthy
        ? new SandboxLost({
          operation,
          sandboxId: id,
          reason: ended?.how === "expired" ? "expired" : ended !== undefined || machine === undefined
            ? "absent"
            : "unhealthy"
        })
        : Effect.succeed(machine)
    })

  const begin = (operation: Operation, sandboxId: SandboxId | undefined, role: Role | undefined) =>
    Effect.map(DateTime.now, (startedAt) => {
      const nth = (counts.get(operation) ?? 0) + 1
      counts.set(operation, nth)
      const record: Mutable<CallRecord> = {
        number: calls.length + 1,
        operation,
        nth,
        sandboxId,
        role: role ?? (sandboxId === undefined ? undefined : machines.get(sandboxId)?.role),
        startedAt,
        result: "pending"
      }
      calls.push(record)
      const fault = options.faults?.(record)
      record.fault = fault?._tag
      return { fault, record }
    })

  const lost = (operation: Operation, sandboxId: SandboxId | undefined, detail: string) =>
    new TransportFailed({ operation, ...(sandboxId === undefined ? {} : { sandboxId }), detail })

  // One request: its number, its fault, and its true effect.
  const request = <A, E>(
    about: { readonly operation: Operation; readonly sandboxId?: SandboxId; readonly role?: Role },
    effect: Effect.Effect<A, E>,
    special: {
      /** What `Lost` does, where that isn't to end the sandbox at the beginning. */
      readonly loses?: (reason: SandboxLost["reason"]) => Effect.Effect<A, E>
      readonly refuses?: Effect.Effect<never, E>
      readonly notDone?: Effect.Effect<A>
    } = {}
  ): Effect.Effect<A, E | SandboxFault> =>
    Effect.flatMap(begin(about.operation, about.sandboxId, about.role), ({ fault, record }) => {
      const { operation, sandboxId } = about
      const course = Effect.zipRight(halfway, effect)
      const maybe = (happens: boolean) => happens ? Effect.exit(course) : halfway
      const answered = (): Effect.Effect<A, E | SandboxFault> => {
        switch (fault?._tag) {
          case undefined:
            return course
          case "Refused":
            return special.refuses ?? lost(operation, sandboxId, "the request was refused")
          case "ReplyLost":
            return Effect.zipRight(maybe(fault.effect), lost(operation, sandboxId, "the connection was closed"))
          case "Late":
            return Effect.exit(course).pipe(Effect.zipLeft(Effect.sleep(fault.by)), Effect.flatten)
          case "Hangs":
            return Effect.zipRight(
              maybe(fault.effect),
              fault.interruptible ? Effect.never : Effect.uninterruptible(Effect.never)
            )
          case "Lost":
            return special.loses?.(fault.reason) ?? Effect.zipRight(
              Effect.map(Clock.currentTimeMillis, (now) => {
                const machine = sandboxId === undefined ? undefined : machines.get(sandboxId)
                if (machine !== undefined) {
                  lose(machine, now, fault.reason)
                }
              }),
              course
            )
          case "Malformed":
            return Effect.zipRight(
              maybe(true),
              new ProtocolViolation({
                operation,
                ...(sandboxId === undefined ? {} : { sandboxId }),
                detail: "the reply isn't what was asked for"
              })
            )
          case "NotDone":
            return special.notDone ?? course
          case "Dies":
            return Effect.zipRight(maybe(fault.effect), Effect.dieMessage("a bug of the simulated provider"))
        }
      }
      return Effect.zipRight(options.onCall?.(record) ?? Effect.void, answered()).pipe(
        Effect.zipLeft(halfway),
        Effect.onExit((exit) =>
          Effect.map(DateTime.now, (now) => {
            record.endedAt = now
            record.result = Exit.isSuccess(exit) ? "ok" : Exit.isInterrupted(exit) ? "interrupted" : "failed"
          })
        )
      )
    })

  // A command ends with its sandbox, however that ends.
  const runUntil = (machine: Machine, end: number): Effect.Effect<void, SandboxLost> =>
    Effect.flatMap(Clock.currentTimeMillis, (now) =>
      now >= end
        ? Effect.void
        : Effect.sleep(Duration.millis(Math.min(end, machine.expiresAt) - now)).pipe(
          Effect.raceFirst(Deferred.await(machine.gone)),
          Effect.zipRight(living("exec", machine.id)),
          Effect.zipRight(Effect.suspend(() => runUntil(machine, end)))
        ))

  const run = (machine: Machine, command: string, limits: Parameters<Sandbox["exec"]>[1]) =>
    Effect.gen(function*() {
      machine.commands.push({ command, at: yield* DateTime.now })
      const result = shell(command, machine.files)
      const duration = Duration.decode(result.duration ?? Duration.zero)
      const killedAtLimit = Duration.greaterThanOrEqualTo(duration, limits.timeLimit)
      const now = yield* Clock.currentTimeMillis
      yield* runUntil(machine, now + Duration.toMillis(Duration.min(duration, limits.timeLimit)))
      const capture = (output: string | Uint8Array = "") => {
        const collected = collector(limits.outputCap)
        collected.push(typeof output === "string" ? new TextEncoder().encode(output) : output)
        return collected.result()
      }
      return {
        stdout: capture(result.stdout),
        stderr: capture(result.stderr),
        exitCode: killedAtLimit ? killed : result.exitCode ?? 0,
        killedAtLimit
      }
    })

  const handle = (machine: Machine): Sandbox => {
    const { id, resources, role } = machine
    const on = <A>(operation: Operation, use: (machine: Machine) => Effect.Effect<A, SandboxFault>) =>
      request({ operation, sandboxId: id, role }, Effect.flatMap(living(operation, id), use))
    return {
      id,
      role,
      resources,
      exec: (command, limits) => on("exec", (there) => run(there, command, limits)),
      readFile: (path, limits): Effect.Effect<FileRead, SandboxFault> =>
        on("readFile", ({ files }) => Effect.sync(() => files.inspect(path, limits.maxBytes))),
      writeFiles: (written) =>
        on("writeFiles", ({ files, received }) =>
          Effect.map(DateTime.now, (at) => {
            for (const { bytes, mode, path } of written) {
              received.push({ path, bytes: bytes.slice(), mode, at })
              files.put(path, Files.Node.Regular({ bytes: bytes.slice(), mode: mode ?? 0o644 }))
            }
          })),
      health: on("health", () => Effect.void),
      extend: (lifetime) =>
        on("extend", (there) =>
          Effect.map(Clock.currentTimeMillis, (now) => {
            there.expiresAt = now + Duration.toMillis(lifetime)
          }))
    }
  }

  const allocate = (spec: SandboxSpec) =>
    Effect.map(DateTime.now, (createdAt) => {
      const templateId = spec.templateId ?? "simulated"
      const machine: Machine = {
        id: SandboxId.make(`sim-${machines.size + 1}`),
        role: spec.role,
        labels: { ...spec.labels },
        templateId,
        network: spec.network === "default" && options.network === true,
        createdAt,
        received: [],
        commands: [],
        files: Files.make(),
        resources: new Resources({ cpuCount: 2, memoryMiB: 512, templateId, startedAt: createdAt }),
        healthy: true,
        gone: Deferred.unsafeMake(FiberId.none),
        expiresAt: DateTime.toEpochMillis(createdAt) + Duration.toMillis(spec.lifetime),
        ended: undefined
      }
      machines.set(machine.id, machine)
      return machine
    })

  const provider: Provider = {
    name: "simulated",
    allocationPacing: Duration.decode(options.allocationPacing ?? Duration.zero),
    create: (spec) =>
      request({ operation: "create", role: spec.role }, Effect.map(allocate(spec), handle), {
        loses: (reason) =>
          Effect.zipRight(halfway, allocate(spec)).pipe(
            Effect.tap((machine) => Effect.map(Clock.currentTimeMillis, (now) => lose(machine, now, reason))),
            Effect.map(handle)
          ),
        refuses: Effect.fail(
          new SandboxUnavailable({ operation: "create", reason: "refused", detail: "the request was refused" })
        )
      }),
    attach: (id, role) =>
      request({ operation: "attach", sandboxId: id, role }, Effect.map(living("attach", id), handle)),
    destroy: (id) =>
      request(
        { operation: "destroy", sandboxId: id },
        Effect.map(Clock.currentTimeMillis, (now) => {
          const machine = machines.get(id)
          if (machine !== undefined) {
            end(machine, now, "deleted")
          }
        }),
        { notDone: Effect.void }
      ),
    inspect: (id) =>
      request(
        { operation: "inspect", sandboxId: id },
        Effect.map(Clock.currentTimeMillis, (now) => {
          const machine = machines.get(id)
          return machine === undefined || endedBy(machine, now) !== undefined ? "absent" : "running"
        })
      ),
    find: (labels) =>
      request(
        { operation: "find" },
        Effect.map(Clock.currentTimeMillis, (now) =>
          [...machines.values()]
            .filter((machine) =>
              endedBy(machine, now) === undefined
              && Object.entries(labels).every(([name, value]) => machine.labels[name] === value)
            )
            .map((machine) => ({ id: machine.id, labels: machine.labels })))
      )
  }

  const toRecord = (machine: Machine, now: number): SandboxRecord => {
    const ended = endedBy(machine, now)
    return {
      id: machine.id,
      role: machine.role,
      labels: machine.labels,
      templateId: machine.templateId,
      network: machine.network,
      createdAt: machine.createdAt,
      ended: ended === undefined ? undefined : { at: utc(ended.at), how: ended.how },
      received: [...machine.received],
      commands: [...machine.commands],
      files: machine.files.regular()
    }
  }

  const sandboxes = Effect.map(
    Clock.currentTimeMillis,
    (now) => [...machines.values()].map((machine) => toRecord(machine, now))
  )

  const world: Context.Tag.Service<World> = {
    calls: Effect.sync(() => calls.map((call) => ({ ...call }))),
    sandboxes,
    running: Effect.map(sandboxes, (all) => all.filter(({ ended }) => ended === undefined)),
    lose: (id, reason) =>
      Effect.map(Clock.currentTimeMillis, (now) => {
        const machine = machines.get(id)
        if (machine !== undefined) {
          lose(machine, now, reason)
        }
      })
  }

  return Context.make(SandboxProvider, provider).pipe(Context.add(World, world))
}

// ----------------------------------------------------------------------------
// layers
// ----------------------------------------------------------------------------

/**
 * A new world, and the provider that acts on it.
 *
 * @example
 * ```ts
 * import * as Effect from "effect/Effect"
 * import * as Layer from "effect/Layer"
 * import * as Episode from "episode/Episode"
 * import * as Simulated from "episode/Sandbox/Simulated"
 * import type { Task } from "episode/Task"
 *
 * declare const task: Task
 *
 * // The reply to the first shell command is lost: no score, and nothing is left behind.
 * const sandboxes = Simulated.layer({
 *   faults: ({ nth, operation }) =>
 *     operation === "exec" && nth === 1 ? Simulated.Fault.ReplyLost({ effect: true }) : undefined
 * })
 *
 * const program = Effect.gen(function*() {
 *   const episodes = yield* Episode.Episode
 *   const world = yield* Simulated.World
 *   const receipt = yield* episodes.record(task, ({ terminal }) => Effect.ignore(terminal("cat report.py")))
 *   return { outcome: receipt.outcome, left: yield* world.running }
 * })
 *
 * program.pipe(Effect.provide(Episode.layer.pipe(Layer.provideMerge(sandboxes))))
 * ```
 *
 * @since 0.1.0
 * @category layers
 */
export const layer = (options: Options = {}): Layer.Layer<SandboxProvider | World> =>
  Layer.effectContext(Effect.sync(() => make(options)))

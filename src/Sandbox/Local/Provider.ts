/**
 * The requests of a provider, put together from the parts beside it.
 */
import * as Clock from "effect/Clock"
import * as DateTime from "effect/DateTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as ExecutionStrategy from "effect/ExecutionStrategy"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Scope from "effect/Scope"
import { randomBytes, randomInt } from "node:crypto"
import * as os from "node:os"
import {
  type ExecLimits,
  type ExecResult,
  type FileLimits,
  type Labels,
  type Operation,
  type Provider,
  Resources,
  type Role,
  type Sandbox,
  type SandboxFault,
  SandboxId,
  SandboxLost,
  type SandboxSpec,
  type SandboxSummary,
  SandboxUnavailable,
  TransportFailed
} from "../../Sandbox.ts"
import type { SandboxFile, SandboxPath } from "../../Task.ts"
import * as Absence from "./Absence.ts"
import * as Archive from "./Archive.ts"
import * as Call from "./Call.ts"
import * as Confinement from "./Confinement.ts"
import * as Create from "./Create.ts"
import * as Endings from "./Endings.ts"
import * as Files from "./Files.ts"
import * as Host from "./Host.ts"
import * as OutOfMemory from "./OutOfMemory.ts"
import * as Pipes from "./Pipes.ts"
import * as Python from "./Python.ts"
import * as Recipe from "./Recipe.ts"
import * as Registry from "./Registry.ts"
import * as Spawn from "./Spawn.ts"
import * as Turns from "./Turns.ts"
import * as Watchdog from "./Watchdog.ts"

export interface Settings {
  readonly memoryMiB: number
  readonly filesMiB: number
  readonly writableRoot: boolean
  readonly policyNetwork: "offline" | "host"
  readonly directory: string
  /** Where `python3` is looked for. */
  readonly searchPath: string
  /** How many processes the kernel has ended for want of memory. Default: as it says. */
  readonly outOfMemoryKills?: (() => number | undefined) | undefined
}

const template = "local"

// Host ids above those that systemd gives to containers, in ranges that no two sandboxes share.
const firstRange = 1879048192
const ranges = 4096

const anyRange = (isFree: (range: number) => boolean): number | undefined => {
  const first = randomInt(ranges)
  for (let n = 0; n < ranges; n++) {
    const range = (first + n) % ranges
    if (isFree(range)) {
      return range
    }
  }
  return undefined
}

const transportFailed = (operation: Operation, sandboxId: SandboxId) => ({ detail }: Spawn.HostFailed) =>
  new TransportFailed({ operation, sandboxId, detail })

/** What is added where a sandbox can't be made. */
export const advice = "; run `episode doctor`"

const unavailable = ({ detail, quota }: Spawn.HostFailed): SandboxUnavailable =>
  new SandboxUnavailable({
    operation: "create",
    ...(quota === undefined
      ? { reason: "unsupported", detail: detail + advice }
      : { reason: "quota", detail: `${detail}; ${quota}` })
  })

const later = (lifetime: Duration.Duration): Effect.Effect<DateTime.Utc> =>
  Effect.map(DateTime.now, DateTime.addDuration(lifetime))

const carries = (labels: Labels, wanted: Labels): boolean =>
  Object.entries(wanted).every(([key, value]) => labels[key] === value)

// How often another process's change of a lifetime is looked for.
const longestNap = Duration.seconds(1)

// Packing and unpacking is quick: this ends only what is stuck.
const unpackLimit = Duration.seconds(60)

/** A provider whose sandboxes live no longer than the scope. */
export const make = (settings: Settings): Effect.Effect<Provider, never, Scope.Scope> =>
  Effect.gen(function*() {
    const uid = process.getuid?.() ?? -1
    const { outOfMemoryKills = OutOfMemory.kills } = settings
    const ownScope = yield* Effect.scope
    const registry = Registry.make({ directory: settings.directory, uid })
    // Added first, so it runs when everything else has ended.
    // Once more, what a killed process left: where orphans are collected late, it hadn't ended at the start.
    yield* Effect.addFinalizer(() =>
      Effect.zipRight(Effect.when(Effect.ignore(Registry.sweep(registry)), registry.isUsed), registry.tidy)
    )
    const pipes = yield* Pipes.make({ directory: registry.directory })
    const endings = yield* Endings.make
    const watchdog = yield* Watchdog.make
    const preparations = Create.preparations()
    /** Sandboxes made here, and the ranges of host ids they have. */
    const owned = new Map<SandboxId, Scope.CloseableScope>()
    const reserved = new Set<number>()

    // Looked into at the first create, once, and not given up because that create is.
    const machine = yield* Deferred.make<Host.Machine>()
    const look = yield* Effect.once(
      Python.find(settings.searchPath).pipe(
        Effect.map((python) => Host.machine(python?.isOutside === true ? python.prefix : undefined)),
        Effect.intoDeferred(machine),
        Effect.interruptible,
        Effect.forkIn(ownScope),
        Effect.zipRight(Effect.ignore(Registry.sweep(registry)))
      )
    )
    const knownMachine = Effect.zipRight(Effect.uninterruptible(look), Deferred.await(machine))

    let filter: ReadonlyArray<string> | undefined
    const knownFilter = Effect.suspend(() =>
      filter === undefined
        ? Effect.map(Effect.flatMap(knownMachine, Create.confinement), ({ calls, interpreter }) => {
          filter = Confinement.loader(calls, interpreter)
          return filter
        })
        : Effect.succeed(filter)
    )

    // The entry of a sandbox that can be used.
    const locate = (
      operation: Operation,
      sandboxId: SandboxId,
      /** When it should have ended, as far as the handle knows. */
      expected?: DateTime.Utc
    ): Effect.Effect<Registry.Entry, SandboxLost | TransportFailed> =>
      Effect.gen(function*() {
        const now = yield* DateTime.now
        const entry = yield* registry.read(sandboxId)
        const end = Option.match(entry, { onNone: () => expected, onSome: ({ expiresAt }) => expiresAt })
        if (end !== undefined && DateTime.lessThanOrEqualTo(end, now)) {
          return yield* new SandboxLost({ operation, sandboxId, reason: "expired" })
        }
        if (Option.isNone(entry) || !(yield* Spawn.io(() => Absence.isAlive(entry.value)))) {
          return yield* new SandboxLost({ operation, sandboxId, reason: "absent" })
        }
        return entry.value
      }).pipe(Effect.catchTag("HostFailed", transportFailed(operation, sandboxId)))

    const call = (
      operation: "exec" | "writeFiles",
      entry: Registry.Entry,
      request: Pick<Call.Request, "program" | "input" | "timeLimit" | "outputCap">
    ): Effect.Effect<ExecResult, SandboxLost | TransportFailed> =>
      Effect.gen(function*() {
        const filter = yield* knownFilter
        const before = { kernel: outOfMemoryKills(), own: watchdog.kills(entry) }
        const { entered, result, signalled } = yield* Call.run(pipes, { ...request, place: entry, filter })
        if (entered && !signalled) {
          return result
        }
        if (!(yield* Spawn.io(() => Absence.isAlive(entry)))) {
          return yield* Effect.andThen(
            locate(operation, entry.id, entry.expiresAt),
            new SandboxLost({ operation, sandboxId: entry.id, reason: "absent" })
          )
        }
        // The kernel doesn't ask whose fault it is. Whom we ended ourselves had taken too much of its own.
        const ofKernel = result.exitCode === Call.SIGKILL_CODE && !result.killedAtLimit
          && watchdog.kills(entry) === before.own && OutOfMemory.rose(before.kernel, outOfMemoryKills())
        if (ofKernel) {
          return yield* new Spawn.HostFailed({
            detail: "the machine ran out of memory, and the kernel ended processes; use fewer sandboxes at once"
          })
        }
        // A guest may kill what is about to become one of its own. It can't make it end otherwise.
        return entered || signalled ? result : yield* new Spawn.HostFailed({
          detail: `entering the sandbox ended with code ${result.exitCode}`
        })
      }).pipe(Effect.catchTag("HostFailed", transportFailed(operation, entry.id)))

    // Many that are deleted at once leave everybody else time between them.
    const turn = Turns.queue()

    const destroy = (id: SandboxId): Effect.Effect<void, TransportFailed> =>
      Effect.gen(function*() {
        yield* turn
        const entry = yield* registry.read(id)
        const isGone = Option.isNone(entry) || (yield* endings.end(entry.value))
        const scope = owned.get(id)
        yield* turn
        if (scope !== undefined && isGone) {
          yield* Scope.close(scope, Exit.void)
        } else if (isGone) {
          yield* registry.remove(id)
        }
      }).pipe(Effect.catchTag("HostFailed", transportFailed("destroy", id)))

    // Ends a sandbox when its time is over, as its entry has it by then.
    const enforceLifetime = (id: SandboxId): Effect.Effect<void> =>
      Effect.gen(function*() {
        const now = yield* Clock.currentTimeMillis
        const entry = yield* Effect.option(registry.read(id))
        if (Option.isSome(entry) && Option.isNone(entry.value)) {
          return
        }
        const left = Option.match(Option.flatten(entry), {
          // It couldn't be read this time.
          onNone: () => longestNap,
          onSome: ({ expiresAt }) => Duration.millis(Math.max(0, DateTime.toEpochMillis(expiresAt) - now))
        })
        yield* Duration.greaterThan(left, Duration.zero)
          ? Effect.sleep(Duration.min(left, longestNap))
          : Effect.catchAll(
            destroy(id),
            ({ message }) =>
              Effect.zipRight(Effect.logWarning("could not end an expired sandbox", message), Effect.sleep(longestNap))
          )
        yield* enforceLifetime(id)
      })

    const reserve: Effect.Effect<
      { readonly id: SandboxId; readonly firstId: number },
      Spawn.HostFailed,
      Scope.Scope
    > = Effect.gen(function*() {
      const taken = new Set((yield* registry.ids).map((id) => parseInt(id.slice(4, 7), 16)))
      const range = anyRange((one) => !taken.has(one) && !reserved.has(one))
      if (range === undefined) {
        return yield* new Spawn.HostFailed({
          detail: `${ranges} sandboxes of this user live already`,
          quota: "delete some, or wait until they end"
        })
      }
      yield* Effect.acquireRelease(
        Effect.sync(() => reserved.add(range)),
        () => Effect.sync(() => reserved.delete(range))
      )
      // The range is told by the id, so that a list of names tells which are taken.
      const id = SandboxId.make(`sbx-${range.toString(16).padStart(3, "0")}${randomBytes(7).toString("hex")}`)
      return { id, firstId: firstRange + range * Recipe.idRange }
    })

    const register = (entry: Registry.Entry): Effect.Effect<void, Spawn.HostFailed, Scope.Scope> =>
      Effect.acquireRelease(
        registry.write(entry),
        () =>
          endings.end(entry).pipe(
            Effect.filterOrFail(
              (gone) => gone,
              () => new Spawn.HostFailed({ detail: `sandbox ${entry.id} won't end` })
            ),
            Effect.andThen(registry.remove(entry.id)),
            Effect.catchAll(({ detail }) => Effect.logWarning("could not delete a sandbox", detail))
          )
      )

    const open = (spec: SandboxSpec): Effect.Effect<Registry.Entry, Spawn.HostFailed, Scope.Scope> =>
      Effect.gen(function*() {
        const host = yield* knownMachine
        const { firstId, id } = yield* reserve
        const place = yield* Create.create({
          machine: host,
          offline: spec.network === "offline" || settings.policyNetwork === "offline",
          memoryMiB: settings.memoryMiB,
          filesMiB: settings.filesMiB,
          writableRoot: settings.writableRoot,
          firstId,
          preparations
        })
        const startedAt = yield* DateTime.now
        const entry = new Registry.Entry({
          ...place,
          version: 1,
          id,
          uid: host.isRoot ? firstId + Recipe.guest.uid : host.uid,
          gid: host.isRoot ? firstId + Recipe.guest.uid : host.gid,
          cpuCount: os.availableParallelism(),
          role: spec.role,
          labels: spec.labels,
          startedAt,
          expiresAt: DateTime.addDuration(startedAt, spec.lifetime)
        })
        const scope = yield* Effect.scope
        yield* Effect.acquireRelease(
          Effect.sync(() => owned.set(id, scope as Scope.CloseableScope)),
          () => Effect.sync(() => owned.delete(id))
        )
        yield* register(entry)
        yield* watchdog.watch(place)
        // A create may be uninterruptible, which what it forks must not inherit.
        yield* Effect.forkScoped(Effect.interruptible(enforceLifetime(id)))
        return entry
      })

    const handle = (entry: Registry.Entry, role: Role): Sandbox => {
      const { id } = entry
      let expected = entry.expiresAt
      const located = (operation: Operation) =>
        Effect.tap(locate(operation, id, expected), ({ expiresAt }) =>
          Effect.sync(() => {
            expected = expiresAt
          }))
      return {
        id,
        role,
        resources: new Resources({
          cpuCount: entry.cpuCount,
          memoryMiB: entry.memoryMiB,
          templateId: template,
          startedAt: entry.startedAt
        }),
        exec: Effect.fn("Local.exec")(function*(command: string, limits: ExecLimits) {
          const current = yield* located("exec")
          return yield* call("exec", current, { ...Recipe.shell(command), ...limits })
        }),
        readFile: Effect.fn("Local.readFile")(function*(file: SandboxPath, { maxBytes }: FileLimits) {
          const current = yield* located("readFile")
          const found = yield* Spawn.io(() => Files.readFile(current, file, { reader: current, maxBytes })).pipe(
            Effect.mapError(transportFailed("readFile", id))
          )
          return found ?? (yield* new SandboxLost({ operation: "readFile", sandboxId: id, reason: "absent" }))
        }),
        writeFiles: Effect.fn("Local.writeFiles")(function*(files: ReadonlyArray<SandboxFile>) {
          const current = yield* located("writeFiles")
          const archive = yield* Archive.pack(files.map((file) => ({
            path: file.path.slice(1),
            mode: file.mode,
            content: file.bytes
          })))
          const { exitCode } = yield* call("writeFiles", current, {
            program: Recipe.unpack(),
            input: archive,
            timeLimit: unpackLimit,
            outputCap: 0
          })
          if (exitCode !== 0) {
            return yield* new TransportFailed({
              operation: "writeFiles",
              sandboxId: id,
              detail: `the files could not be unpacked there (code ${exitCode})`
            })
          }
        }),
        health: Effect.asVoid(Effect.suspend(() => located("health"))),
        extend: Effect.fn("Local.extend")(function*(lifetime: Duration.Duration) {
          const current = yield* located("extend")
          const expiresAt = yield* later(lifetime)
          yield* registry.write(new Registry.Entry({ ...current, expiresAt })).pipe(
            Effect.mapError(transportFailed("extend", id))
          )
          expected = expiresAt
          // It may have ended meanwhile: then its entry mustn't come back.
          if (!(yield* Effect.mapError(Spawn.io(() => Absence.isAlive(current)), transportFailed("extend", id)))) {
            yield* destroy(id)
            return yield* new SandboxLost({ operation: "extend", sandboxId: id, reason: "absent" })
          }
        })
      }
    }

    const summary = (id: SandboxId, labels: Labels): Effect.Effect<Option.Option<SandboxSummary>, SandboxFault> =>
      locate("find", id).pipe(
        Effect.map((entry) =>
          carries(entry.labels, labels) ? Option.some({ id, labels: entry.labels }) : Option.none()
        ),
        Effect.catchTag("SandboxLost", () => Effect.succeedNone)
      )

    return {
      name: template,
      allocationPacing: Duration.zero,
      create: Effect.fn("Local.create")(function*(spec: SandboxSpec) {
        if (spec.templateId !== undefined && spec.templateId !== template) {
          return yield* new SandboxUnavailable({
            operation: "create",
            reason: "template",
            detail: `there is one template here, ${template}`
          })
        }
        return yield* Effect.uninterruptibleMask((restore) =>
          Effect.gen(function*() {
            const scope = yield* Scope.fork(ownScope, ExecutionStrategy.sequential)
            const entry = yield* restore(Scope.extend(open(spec), scope)).pipe(
              Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
            )
            return handle(entry, spec.role)
          })
        ).pipe(Effect.catchTag("HostFailed", unavailable))
      }),
      attach: (id, role) => Effect.map(locate("attach", id), (entry) => handle(entry, role)),
      destroy,
      inspect: Effect.fn("Local.inspect")(function*(id: SandboxId) {
        const entry = yield* registry.read(id)
        if (Option.isNone(entry)) {
          return "absent"
        }
        if (!(yield* Absence.isGone(entry.value))) {
          return "running"
        }
        yield* registry.remove(id)
        return "absent"
      }, (effect, id) => Effect.catchTag(effect, "HostFailed", transportFailed("inspect", id))),
      find: Effect.fn("Local.find")(function*(labels: Labels) {
        const ids = yield* registry.ids.pipe(
          Effect.mapError(({ detail }) => new TransportFailed({ operation: "find", detail }))
        )
        const found = yield* Effect.forEach(ids, (id) => summary(id, labels))
        return found.flatMap(Option.toArray)
      })
    } satisfies Provider
  })

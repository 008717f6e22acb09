/**
 * The sandboxes of this server, from their creation to the proof that they are gone.
 */
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import * as DateTime from "effect/DateTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as ExecutionStrategy from "effect/ExecutionStrategy"
import * as Exit from "effect/Exit"
import * as FiberHandle from "effect/FiberHandle"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type * as Redacted from "effect/Redacted"
import * as Ref from "effect/Ref"
import * as Scope from "effect/Scope"
import type { BudgetExceeded } from "../Budgets.ts"
import type { CleanupUnresolved, CreateFault, Sandbox, SandboxFault } from "../Sandbox.ts"
import { MachineProvider, type Program, type ProgramRefused, type Running, type Usage } from "../Sandbox/Machine.ts"
import { type OwnedSandbox, Sandboxes } from "../Sandbox/Sandboxes.ts"
import type { Metric } from "./ControlWire.ts"
import * as Files from "./Files.ts"
import * as Processes from "./Processes.ts"
import * as Secrets from "./Secrets.ts"
import * as Watchers from "./Watchers.ts"

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/** What a sandbox can do where its provider can run programs for a server. */
export interface Inside {
  readonly processes: Processes.Processes
  readonly files: Files.Files
  readonly watchers: Watchers.Watchers
  readonly spawn: (program: Program) => Effect.Effect<Running, SandboxFault | ProgramRefused, Scope.Scope>
  readonly usage: Effect.Effect<Usage, SandboxFault>
}

export interface Member {
  readonly id: string
  readonly sandbox: Sandbox
  readonly templateId: string
  readonly metadata: Readonly<Record<string, string>>
  readonly environment: Readonly<Record<string, string>>
  readonly allowInternetAccess: boolean
  readonly accessToken: Redacted.Redacted
  readonly startedAt: DateTime.Utc
  readonly endsAt: Effect.Effect<DateTime.Utc>
  readonly inside: Option.Option<Inside>
  /** Comes when the sandbox is gone, or about to be. */
  readonly gone: Effect.Effect<void>
  readonly metrics: Effect.Effect<ReadonlyArray<Metric>, SandboxFault>
}

export interface CreateOptions {
  readonly templateId: string
  readonly lifetime: Duration.Duration
  readonly metadata: Readonly<Record<string, string>>
  readonly environment: Readonly<Record<string, string>>
  readonly allowInternetAccess: boolean
}

/** As many sandboxes as there may be live already. */
export class FleetFull extends Data.TaggedError("FleetFull")<{ readonly limit: number }> {}

export interface Limits {
  readonly sandboxes: number
  /** Counted from the start of a sandbox. */
  readonly lifetime: Duration.Duration
}

export class Fleet extends Context.Tag("episode/E2bServer/Fleet")<Fleet, {
  readonly create: (
    options: CreateOptions
  ) => Effect.Effect<Member, FleetFull | CreateFault | CleanupUnresolved | BudgetExceeded>
  readonly find: (id: string) => Option.Option<Member>
  readonly members: Effect.Effect<ReadonlyArray<Member>>
  /** It ends then, and neither before nor after; at the latest at the end of the longest lifetime. */
  readonly endAt: (member: Member, time: DateTime.Utc) => Effect.Effect<void, SandboxFault>
  /** Ends it and proves it gone; false where it was gone or on its way already. */
  readonly end: (member: Member) => Effect.Effect<boolean, CleanupUnresolved>
  /** Ends it where a fault says that it is gone. */
  readonly notice: (member: Member, fault: SandboxFault) => Effect.Effect<void>
}>() {}

// ----------------------------------------------------------------------------
// layers
// ----------------------------------------------------------------------------

// The provider's own limit on a lifetime is a backstop.
const slack = Duration.seconds(30)

// Making one is work for every core: whoever asks for another meanwhile is answered at once. An end is mostly waiting.
const creates = 8
const endings = 64

// What is kept of one sandbox, an hour at one sample in five seconds.
const samples = 720

const sampling = Duration.seconds(5)

/** The end of the layer ends every sandbox, proves it gone, and waits for that. */
export const layer = (limits: Limits): Layer.Layer<Fleet, never, Sandboxes> =>
  Layer.scoped(
    Fleet,
    Effect.gen(function*() {
      const sandboxes = yield* Sandboxes
      const machine = yield* Effect.serviceOption(MachineProvider)
      const ownScope = yield* Effect.flatMap(Effect.scope, (scope) => Scope.fork(scope, ExecutionStrategy.parallel))
      const creating = yield* Effect.makeSemaphore(creates)
      const ending = yield* Effect.makeSemaphore(endings)
      const places = yield* Ref.make(0)
      const live = new Map<string, Place>()

      const takePlace = Effect.acquireRelease(
        Effect.filterOrFail(
          Ref.modify(places, (taken) => taken < limits.sandboxes ? [true, taken + 1] : [false, taken]),
          (had) => had,
          () => new FleetFull({ limit: limits.sandboxes })
        ),
        () => Ref.update(places, (taken) => taken - 1)
      )

      // From the first moment on it is gone for everybody: connections break before anything inside ends.
      const retire = (place: Place): Effect.Effect<boolean, CleanupUnresolved> =>
        Effect.uninterruptible(Effect.suspend(() => {
          const { gone, member, owned, scope } = place
          if (live.get(member.id) !== place) {
            return Effect.succeed(false)
          }
          live.delete(member.id)
          return Deferred.succeed(gone, undefined).pipe(
            Effect.zipRight(Effect.yieldNow()),
            Effect.zipRight(ending.withPermits(1)(owned.discard)),
            Effect.ensuring(Scope.close(scope, Exit.void)),
            Effect.as(true)
          )
        }))

      const retireLater = (place: Place): Effect.Effect<void> =>
        Effect.asVoid(Effect.forkIn(
          Effect.catchAll(retire(place), ({ message }) => Effect.logError(message)),
          ownScope
        ))

      const notice = (member: Member, fault: SandboxFault): Effect.Effect<void> =>
        Effect.suspend(() => {
          const place = live.get(member.id)
          return fault._tag === "SandboxLost" && place !== undefined ? retireLater(place) : Effect.void
        })

      const insideOf = (member: Pick<Member, "id" | "sandbox">): Effect.Effect<
        Option.Option<Inside>,
        never,
        Scope.Scope
      > =>
        Option.match(machine, {
          onNone: () => Effect.succeedNone,
          onSome: (machine) =>
            Effect.gen(function*() {
              const sandboxId = member.sandbox.id
              const isSandboxAlive = member.sandbox.health.pipe(
                Effect.as(true),
                Effect.catchAll((fault) => {
                  const place = live.get(member.id)
                  return Effect.as(
                    place === undefined ? Effect.void : notice(place.member, fault),
                    fault._tag !== "SandboxLost"
                  )
                })
              )
              return Option.some({
                processes: yield* Processes.make({ machine, sandboxId, isSandboxAlive }),
                files: yield* Files.make(machine, sandboxId),
                watchers: yield* Watchers.make(machine, sandboxId),
                spawn: (program) => machine.spawn(sandboxId, program),
                usage: machine.usage(sandboxId)
              })
            })
        })

      const open = (options: CreateOptions) =>
        Effect.gen(function*() {
          yield* takePlace
          const owned = yield* creating.withPermits(1)(sandboxes.acquire({
            role: "policy",
            lifetime: Duration.sum(options.lifetime, slack),
            network: options.allowInternetAccess ? "default" : "offline",
            phases: { create: "reset", cleanup: "policy-cleanup" }
          }))
          const { sandbox } = owned
          const startedAt = yield* DateTime.now
          const id = yield* Secrets.sandboxId
          const gone = yield* Deferred.make<void>()
          const endsAt = yield* Ref.make(DateTime.addDuration(startedAt, options.lifetime))
          const inside = yield* insideOf({ id, sandbox })
          const member: Member = {
            ...options,
            id,
            sandbox,
            accessToken: yield* Secrets.accessToken,
            startedAt,
            endsAt: Ref.get(endsAt),
            inside,
            gone: Deferred.await(gone),
            metrics: Option.match(inside, {
              onNone: () => Effect.succeed([]),
              onSome: ({ usage }) => sampler(sandbox, startedAt, usage)
            })
          }
          const timer = yield* FiberHandle.make()
          return { member, owned, gone, endsAt, timer }
        })

      const startTimer = (place: Place): Effect.Effect<void> =>
        Effect.gen(function*() {
          const left = DateTime.distance(yield* DateTime.now, yield* Ref.get(place.endsAt))
          yield* FiberHandle.run(
            place.timer,
            Effect.interruptible(
              Effect.andThen(Effect.sleep(Duration.millis(Math.max(0, left))), retireLater(place))
            )
          )
        })

      const create = (options: CreateOptions) =>
        Effect.uninterruptibleMask((restore) =>
          Effect.gen(function*() {
            const scope = yield* Scope.fork(ownScope, ExecutionStrategy.sequential)
            const opened = yield* restore(Scope.extend(open(options), scope)).pipe(
              Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
            )
            const place: Place = { ...opened, scope }
            live.set(opened.member.id, place)
            // The end of the server is one for everybody, too.
            yield* Scope.addFinalizer(scope, Effect.ignore(retire(place)))
            yield* startTimer(place)
            return place.member
          })
        )

      return {
        create,
        find: (id) => Option.map(Option.fromNullable(live.get(id)), ({ member }) => member),
        members: Effect.sync(() => Array.from(live.values(), ({ member }) => member)),
        endAt: (member, time) =>
          Effect.gen(function*() {
            const place = live.get(member.id)
            const now = yield* DateTime.now
            const end = DateTime.min(time, DateTime.addDuration(member.startedAt, limits.lifetime))
            if (place === undefined) {
              return
            }
            yield* member.sandbox.extend(
              Duration.sum(Duration.millis(Math.max(0, DateTime.distance(now, end))), slack)
            ).pipe(Effect.tapError((fault) => notice(member, fault)))
            yield* Ref.set(place.endsAt, end)
            yield* startTimer(place)
          }),
        end: (member) =>
          Effect.suspend(() => {
            const place = live.get(member.id)
            return place === undefined ? Effect.succeed(false) : retire(place)
          }),
        notice
      }
    })
  )

interface Place {
  readonly member: Member
  readonly owned: OwnedSandbox
  readonly scope: Scope.CloseableScope
  readonly gone: Deferred.Deferred<void>
  readonly endsAt: Ref.Ref<DateTime.Utc>
  readonly timer: FiberHandle.FiberHandle
}

// What a sandbox used, at the times when somebody asked.
const sampler = (
  { resources: { cpuCount } }: Sandbox,
  startedAt: DateTime.Utc,
  usage: Effect.Effect<Usage, SandboxFault>
): Effect.Effect<ReadonlyArray<Metric>, SandboxFault> => {
  const taken: Array<Metric> = []
  let before = { at: startedAt, cpuSeconds: 0 }
  return Effect.gen(function*() {
    const now = yield* DateTime.now
    const elapsed = DateTime.distance(before.at, now)
    if (taken.length === 0 || elapsed >= Duration.toMillis(sampling)) {
      const used = yield* usage
      // The time of a program that has ended isn't counted any more.
      const cpuSeconds = Math.max(0, used.cpuSeconds - before.cpuSeconds)
      before = { at: now, cpuSeconds: used.cpuSeconds }
      taken.push({
        timestamp: now,
        timestampUnix: Math.floor(DateTime.toEpochMillis(now) / 1000),
        cpuUsedPct: Math.round((cpuSeconds / Math.max(0.001, elapsed / 1000)) * 10000) / 100,
        cpuCount,
        memUsed: used.memoryBytes,
        memTotal: used.memoryLimitBytes,
        memCache: 0,
        diskUsed: used.diskBytes,
        diskTotal: used.diskLimitBytes
      })
      taken.splice(0, taken.length - samples)
    }
    return taken.slice()
  })
}

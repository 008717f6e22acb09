/**
 * The sandboxes of this server, from their creation to the proof that they are gone.
 *
 * One that ends is on its way out until it is proved gone: dead to everybody, but not absent. Where the proof can't be had it
 * stays so, keeps its place, and is deleted again when somebody asks, after a while, and at the end.
 */
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import * as DateTime from "effect/DateTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as ExecutionStrategy from "effect/ExecutionStrategy"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as FiberHandle from "effect/FiberHandle"
import * as FiberId from "effect/FiberId"
import * as FiberSet from "effect/FiberSet"
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
  /** A connection, until the scope closes: broken when the sandbox is on its way out, before anything inside ends. */
  readonly breaks: (hangUp: Effect.Effect<void>) => Effect.Effect<void, never, Scope.Scope>
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

/** Why there is no new sandbox. */
export type CreateFailure = FleetFull | CreateFault | CleanupUnresolved | BudgetExceeded

export interface Limits {
  readonly sandboxes: number
  /** Counted from the start of a sandbox. */
  readonly lifetime: Duration.Duration
}

export class Fleet extends Context.Tag("episode/E2bServer/Fleet")<Fleet, {
  /** Ends with the layer, whatever becomes of who asked for it. */
  readonly create: (options: CreateOptions) => Effect.Effect<Member, CreateFailure>
  /** One that isn't on its way out. */
  readonly find: (id: string) => Option.Option<Member>
  /** Those that aren't on their way out. */
  readonly live: Effect.Effect<ReadonlyArray<Member>>
  /** All that aren't proved gone. */
  readonly members: Effect.Effect<ReadonlyArray<Member>>
  /** Whether there is none: proved, where there was one. It waits a little for the proof of one on its way out. */
  readonly isAbsent: (id: string) => Effect.Effect<boolean>
  /** It ends then, and neither before nor after; at the latest at the end of the longest lifetime. */
  readonly endAt: (member: Member, time: DateTime.Utc) => Effect.Effect<void, SandboxFault>
  /** Ends it and proves it gone; false where it was gone, or where another's deletion of it was joined. */
  readonly end: (id: string) => Effect.Effect<boolean, CleanupUnresolved>
  /** It is on its way out from now on where a fault says that it is gone. */
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

// Most deletions take less. Who asks meanwhile has patience of its own.
const proofPatience = Duration.seconds(5)

// What is kept of one sandbox, an hour at one sample in five seconds.
const samples = 720

const sampling = Duration.seconds(5)

/** The end of the layer ends every sandbox, also one that is being made, proves it gone, and waits for that. */
export const layer = (limits: Limits): Layer.Layer<Fleet, never, Sandboxes> =>
  Layer.scoped(
    Fleet,
    Effect.gen(function*() {
      const sandboxes = yield* Sandboxes
      const machine = yield* Effect.serviceOption(MachineProvider)
      const ownScope = yield* Effect.flatMap(Effect.scope, (scope) => Scope.fork(scope, ExecutionStrategy.parallel))
      // Its end comes first: what is made then is nobody's any more, and `Sandboxes` deletes it.
      const making = yield* FiberSet.make<Member, CreateFailure>()
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

      // What stays of it when the proof can't be had is its place, and the sandbox.
      const remove = (place: Place): Effect.Effect<void, CleanupUnresolved> => {
        const { member, owned, parts, scope } = place
        return (place.hasFailed ? owned.discardAgain : owned.discard).pipe(
          ending.withPermits(1),
          Effect.zipRight(Effect.suspend(() => {
            live.delete(member.id)
            return Scope.close(scope, Exit.void)
          })),
          Effect.tapError((unresolved) =>
            Effect.suspend(() => {
              place.hasFailed = true
              return Effect.logError(unresolved.message)
            }).pipe(
              Effect.zipRight(Scope.close(parts, Exit.void)),
              Effect.zipRight(FiberHandle.run(place.timer, Effect.interruptible(Effect.delay(leave(place), slack))))
            )
          )
        )
      }

      /**
       * It is on its way out from here on: connections break before anything inside ends. The deletion that is under way is
       * the answer, or a new one; whoever has asked for it, it runs to its end.
       */
      const leave = (place: Place): Effect.Effect<Deferred.Deferred<void, CleanupUnresolved>> =>
        Effect.uninterruptible(Effect.suspend(() => {
          if (place.deletion !== undefined) {
            return Effect.succeed(place.deletion)
          }
          const deletion = Deferred.unsafeMake<void, CleanupUnresolved>(FiberId.none)
          place.isLeaving = true
          place.deletion = deletion
          return Effect.forEach(place.connections, Effect.ignoreLogged, { discard: true }).pipe(
            Effect.zipRight(
              remove(place).pipe(
                Effect.ensuring(Effect.sync(() => {
                  place.deletion = undefined
                })),
                Effect.intoDeferred(deletion),
                // Nobody's interruption reaches it. The end of the place waits for it.
                Effect.forkDaemon
              )
            ),
            Effect.as(deletion)
          )
        }))

      const notice = (member: Member, fault: SandboxFault): Effect.Effect<void> =>
        Effect.suspend(() => {
          const place = live.get(member.id)
          return fault._tag === "SandboxLost" && place !== undefined && !place.isLeaving
            ? Effect.asVoid(leave(place))
            : Effect.void
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
          const endsAt = yield* Ref.make(DateTime.addDuration(startedAt, options.lifetime))
          const timer = yield* FiberHandle.make()
          const parts = yield* Effect.flatMap(Effect.scope, (scope) => Scope.fork(scope, ExecutionStrategy.sequential))
          const inside = yield* Scope.extend(insideOf({ id, sandbox }), parts)
          const connections = new Set<Effect.Effect<void>>()
          const member: Member = {
            ...options,
            // As envd has them: who creates a sandbox doesn't overwrite them.
            environment: {
              ...options.environment,
              E2B_SANDBOX: "true",
              E2B_SANDBOX_ID: id,
              E2B_TEMPLATE_ID: options.templateId
            },
            id,
            sandbox,
            accessToken: yield* Secrets.accessToken,
            startedAt,
            endsAt: Ref.get(endsAt),
            inside,
            breaks: (hangUp) =>
              Effect.acquireRelease(
                Effect.suspend(() => {
                  connections.add(hangUp)
                  return live.get(id)?.isLeaving === false ? Effect.void : hangUp
                }),
                () => Effect.sync(() => connections.delete(hangUp))
              ),
            metrics: Option.match(inside, {
              onNone: () => Effect.succeed([]),
              onSome: ({ usage }) => sampler(sandbox, startedAt, usage)
            })
          }
          return { member, owned, parts, connections, endsAt, timer }
        })

      const startTimer = (place: Place): Effect.Effect<void> =>
        Effect.gen(function*() {
          const left = DateTime.distance(yield* DateTime.now, yield* Ref.get(place.endsAt))
          yield* FiberHandle.run(
            place.timer,
            Effect.interruptible(
              Effect.andThen(Effect.sleep(Duration.millis(Math.max(0, left))), leave(place))
            )
          )
        })

      const make = (options: CreateOptions): Effect.Effect<Member, CreateFailure> =>
        Effect.uninterruptibleMask((restore) =>
          Effect.gen(function*() {
            const scope = yield* Scope.fork(ownScope, ExecutionStrategy.sequential)
            const opened = yield* restore(Scope.extend(open(options), scope)).pipe(
              Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
            )
            const place: Place = {
              ...opened,
              scope,
              isLeaving: false,
              deletion: undefined,
              hasFailed: false
            }
            live.set(opened.member.id, place)
            // The end of the server is one for everybody, too. Not for one that is proved gone: that closes the scope itself.
            yield* Scope.addFinalizer(
              scope,
              Effect.suspend(() =>
                live.get(place.member.id) === place
                  ? Effect.ignore(Effect.flatMap(leave(place), Deferred.await))
                  : Effect.void
              )
            )
            yield* startTimer(place)
            return place.member
          })
        )

      const create = (options: CreateOptions): Effect.Effect<Member, CreateFailure> =>
        Effect.uninterruptibleMask((restore) =>
          Effect.flatMap(FiberSet.run(making, Effect.interruptible(make(options))), (making) =>
            restore(Fiber.join(making)).pipe(
              Effect.onInterrupt(() =>
                Fiber.interrupt(making)
              )
            ))
        )

      return {
        create,
        find: (id) =>
          Option.fromNullable(live.get(id)).pipe(
            Option.filter(({ isLeaving }) => !isLeaving),
            Option.map(({ member }) => member)
          ),
        live: Effect.sync(() => [...live.values()].filter(({ isLeaving }) => !isLeaving).map(({ member }) => member)),
        members: Effect.sync(() => Array.from(live.values(), ({ member }) => member)),
        isAbsent: (id) =>
          Effect.suspend(() => {
            const deletion = live.get(id)?.deletion
            return deletion === undefined
              ? Effect.void
              : Effect.exit(Effect.timeoutOption(Deferred.await(deletion), proofPatience))
          }).pipe(Effect.map(() => !live.has(id))),
        endAt: (member, time) =>
          Effect.gen(function*() {
            const place = live.get(member.id)
            const now = yield* DateTime.now
            const end = DateTime.min(time, DateTime.addDuration(member.startedAt, limits.lifetime))
            if (place === undefined || place.isLeaving) {
              return
            }
            yield* member.sandbox.extend(
              Duration.sum(Duration.millis(Math.max(0, DateTime.distance(now, end))), slack)
            ).pipe(Effect.tapError((fault) => notice(member, fault)))
            yield* Ref.set(place.endsAt, end)
            // Once it is on its way out the timer is for the next deletion.
            yield* Effect.suspend(() => place.isLeaving ? Effect.void : startTimer(place))
          }),
        end: (id) =>
          Effect.suspend(() => {
            const place = live.get(id)
            if (place === undefined) {
              return Effect.succeed(false)
            }
            const isFirst = place.deletion === undefined
            return Effect.as(Effect.flatMap(leave(place), Deferred.await), isFirst)
          }),
        notice
      }
    })
  )

interface Place {
  readonly member: Member
  readonly owned: OwnedSandbox
  /** Of the sandbox, and its place among the others. */
  readonly scope: Scope.CloseableScope
  /** Of what works inside it. */
  readonly parts: Scope.CloseableScope
  readonly connections: ReadonlySet<Effect.Effect<void>>
  readonly endsAt: Ref.Ref<DateTime.Utc>
  readonly timer: FiberHandle.FiberHandle
  /** From the first deletion on. */
  isLeaving: boolean
  /** The one that is under way. */
  deletion: Deferred.Deferred<void, CleanupUnresolved> | undefined
  /** The last one couldn't be proved. */
  hasFailed: boolean
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

/**
 * The requests of a provider, made of calls of the SDK.
 */
import * as DateTime from "effect/DateTime"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { CurrentBudgets } from "../../Budgets.ts"
import {
  type CreateFault,
  Labels,
  ProtocolViolation,
  type Provider,
  Resources,
  type Role,
  type Sandbox,
  type SandboxFault,
  SandboxId,
  SandboxLost,
  type SandboxSpec,
  type SandboxSummary
} from "../../Sandbox.ts"
import * as Guest from "../Guest.ts"
import * as Client from "./Client.ts"
import { Failure } from "./Failure.ts"
import * as Handle from "./Handle.ts"
import * as Inquiry from "./Inquiry.ts"
import * as Runner from "./Runner.ts"

export interface Settings {
  readonly connection: Client.Connection
  readonly template: string
  /** How many connections the SDK has for commands. */
  readonly commandConnections: number
}

// What E2B gives unless a template says otherwise. It stands in only until the first request on a sandbox has succeeded.
const assumed = { cpuCount: 2, memoryMiB: 512 }

const decodeId = Inquiry.decode(SandboxId)

const decodeListed = Inquiry.decode(Schema.Array(Schema.Struct({ sandboxId: SandboxId, metadata: Labels })))

const carries = (labels: Labels, wanted: Labels): boolean =>
  Object.entries(wanted).every(([key, value]) => labels[key] === value)

const stranger = new Failure({ kind: "malformed", detail: "the API answered a create with another one's sandbox" })

/** A provider. What it does in the background ends with the scope; sandboxes don't. */
export const make = (settings: Settings): Effect.Effect<Provider, never, Scope.Scope> =>
  Effect.gen(function*() {
    const scope = yield* Effect.scope
    const client = yield* Client.make(settings.connection)
    const inquiry = Inquiry.make(client)
    const runner = yield* Runner.make({ client, connections: settings.commandConnections })
    const service: Handle.Service = { client, inquiry, runner }
    const { control } = client
    // What is being asked about those that were just created.
    const asked = new Map<SandboxId, Fiber.Fiber<unknown, Failure>>()
    // Those that came with a create and aren't what it asked for: others'.
    const strangers = new Set<SandboxId>()

    const destroy = (id: SandboxId): Effect.Effect<void, SandboxFault> =>
      Effect.gen(function*() {
        const budgets = yield* CurrentBudgets
        const asking = asked.get(id)
        if (asking !== undefined) {
          yield* Effect.timeoutOption(Fiber.await(asking), Duration.times(budgets.control, 0.5))
        }
        yield* strangers.has(id) ? stranger : control(budgets.control, (Sandbox, options) => Sandbox.kill(id, options))
      }).pipe(
        Effect.mapError((failure) => Inquiry.faultOf("destroy", id, failure)),
        Effect.withSpan("E2b.destroy")
      )

    const createNow = Effect.fn("E2b.create")(function*(spec: SandboxSpec) {
      const templateId = spec.templateId ?? settings.template
      const budgets = yield* CurrentBudgets
      const startedAt = yield* DateTime.now
      const machine = yield* control(budgets.allocation, (Sandbox, options) =>
        Sandbox.create(templateId, {
          ...options,
          timeoutMs: Client.millis(spec.lifetime),
          metadata: { ...spec.labels },
          lifecycle: { onTimeout: "kill" },
          ...(spec.network === "offline" ? { allowInternetAccess: false } : {})
        })).pipe(Effect.mapError(Inquiry.createFaultOf(templateId, settings.connection.names)))
      const id = yield* Effect.mapError(
        decodeId(machine.sandboxId),
        (failure) => Inquiry.faultOf("create", undefined, failure)
      )
      let resources = new Resources({ ...assumed, templateId, startedAt })
      const asking = yield* inquiry.info(id).pipe(
        Effect.flatMap((info) => {
          if (!carries(info.metadata, spec.labels)) {
            strangers.add(id)
            return stranger
          }
          resources = Inquiry.resourcesOf(info)
          return Effect.void
        }),
        Effect.interruptible,
        Effect.forkIn(scope)
      )
      asked.set(id, asking)
      asking.addObserver(() => asked.delete(id))
      return Handle.make(service, {
        machine,
        id,
        role: spec.role,
        resources: () => resources,
        informed: Fiber.join(asking),
        isPristine: true,
        expiresAt: DateTime.toEpochMillis(startedAt) + Duration.toMillis(spec.lifetime)
      })
    })

    // A create that is aborted may have its effect yet, later than a list would show. So an interruption waits for the reply,
    // no longer than for a control request, and deletes what it brings. What comes still later carries its owner's label.
    const create = (spec: SandboxSpec): Effect.Effect<Sandbox, CreateFault> =>
      Effect.uninterruptibleMask((restore) =>
        Effect.gen(function*() {
          const budgets = yield* CurrentBudgets
          const creating = yield* Effect.forkDaemon(Effect.interruptible(createNow(spec)))
          return yield* restore(Fiber.join(creating)).pipe(
            Effect.onInterrupt(() =>
              Fiber.join(creating).pipe(
                Effect.flatMap(({ id }) => destroy(id)),
                Effect.interruptible,
                Effect.timeoutOption(budgets.control),
                Effect.exit,
                Effect.zipRight(Fiber.interrupt(creating))
              )
            )
          )
        })
      )

    const attach = Effect.fn("E2b.attach")(function*(id: SandboxId, role: Role) {
      const budgets = yield* CurrentBudgets
      const explain = inquiry.explain("attach", id)
      const info = yield* Effect.catchAll(inquiry.info(id), explain)
      if (info.state === "paused") {
        return yield* new SandboxLost({ operation: "attach", sandboxId: id, reason: "unhealthy" })
      }
      // It never shortens a lifetime, and this long doesn't lengthen it.
      const machine = yield* control(budgets.control, (Sandbox, options) =>
        Sandbox.connect(id, { ...options, timeoutMs: 1000 })).pipe(Effect.catchAll(explain))
      // A guest may have run there, or not. So whether our programs run at all is found out now, while it is nobody's doing.
      const probe = yield* runner.run(machine, Guest.read("probe", "/", 0), { timeLimit: budgets.control }).pipe(
        Effect.catchAll(explain)
      )
      if (!probe.reply.isReady) {
        return yield* new ProtocolViolation({ operation: "attach", sandboxId: id, detail: Guest.noPython })
      }
      const resources = Inquiry.resourcesOf(info)
      return Handle.make(service, {
        machine,
        id,
        role,
        resources: () =>
          resources,
        informed: Effect.void,
        isPristine: false,
        expiresAt: DateTime.toEpochMillis(info.endAt)
      })
    })

    const find = Effect.fn("E2b.find")(function*(labels: Labels) {
      const budgets = yield* CurrentBudgets
      const pages = client.list({ query: { metadata: { ...labels }, state: ["running", "paused"] }, limit: 100 })
      const found: Array<SandboxSummary> = []
      do {
        const page = yield* control(budgets.control, (_, options) => pages.nextItems(options)).pipe(
          Effect.flatMap(decodeListed),
          Effect.mapError((failure) => Inquiry.faultOf("find", undefined, failure))
        )
        found.push(...page.map(({ metadata, sandboxId }) => ({ id: sandboxId, labels: metadata })))
      } while (pages.hasNext)
      // Those that didn't ask are no concern of ours, whatever a list holds.
      return found.filter((summary) => carries(summary.labels, labels))
    })

    return {
      name: "e2b",
      // One a second is what the smallest plan allows.
      allocationPacing: Duration.millis(1100),
      create,
      attach,
      destroy,
      // Paused is there, too. Only the API's own "not found" says that one isn't.
      inspect: Effect.fn("E2b.inspect")((id: SandboxId) =>
        inquiry.info(id).pipe(
          Effect.as("running" as const),
          Effect.catchIf(({ kind }) => kind === "not-found", () => Effect.succeed("absent" as const)),
          Effect.mapError((failure) => Inquiry.faultOf("inspect", id, failure))
        )
      ),
      find
    }
  })

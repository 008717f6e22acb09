/**
 * What the control plane tells of a sandbox, and with that what a failure means.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { CurrentBudgets } from "../../Budgets.ts"
import {
  type CreateFault,
  Labels,
  type Operation,
  ProtocolViolation,
  Resources,
  type SandboxFault,
  SandboxId,
  SandboxLost,
  SandboxUnavailable,
  TransportFailed
} from "../../Sandbox.ts"
import type { Client } from "./Client.ts"
import { Failure } from "./Failure.ts"
import type { Names } from "./Names.ts"

// ----------------------------------------------------------------------------
// replies
// ----------------------------------------------------------------------------

export const unexpected = new Failure({ kind: "malformed", detail: "the reply is not what was asked for" })

/** Reads what the SDK made of a reply. It passes on whatever that held. */
export const decode = <A, I>(schema: Schema.Schema<A, I>) => {
  const parse = Schema.decodeUnknown(schema)
  return (reply: unknown): Effect.Effect<A, Failure> => Effect.mapError(parse(reply), () => unexpected)
}

const Info = Schema.Struct({
  sandboxId: SandboxId,
  templateId: Schema.NonEmptyString,
  state: Schema.Literal("running", "paused"),
  cpuCount: Schema.Positive,
  memoryMB: Schema.Positive,
  startedAt: Schema.DateTimeUtcFromDate,
  endAt: Schema.DateTimeUtcFromDate,
  metadata: Labels
})

export type Info = typeof Info.Type

const decodeInfo = decode(Info)

export const resourcesOf = ({ cpuCount, memoryMB, startedAt, templateId }: Info): Resources =>
  new Resources({ cpuCount, memoryMiB: memoryMB, templateId, startedAt })

// ----------------------------------------------------------------------------
// faults
// ----------------------------------------------------------------------------

/** A fault of a request that no sandbox's end explains. */
export const faultOf = (
  operation: Operation,
  sandboxId: SandboxId | undefined,
  { detail, kind }: Failure
): TransportFailed | ProtocolViolation => {
  const about = { operation, detail, ...(sandboxId === undefined ? {} : { sandboxId }) }
  return kind === "malformed" ? new ProtocolViolation(about) : new TransportFailed(about)
}

/**
 * The fault of a create. Only what E2B refuses for a reason of its own is known to have had no effect: an error 500 or 503
 * may come from something in between, after a sandbox was made.
 */
export const createFaultOf = (template: string, names: Names) => (failure: Failure): CreateFault => {
  const unavailable = (reason: SandboxUnavailable["reason"], detail: string) =>
    new SandboxUnavailable({ operation: "create", reason, detail })
  switch (failure.kind === "status" ? failure.status : failure.kind) {
    case "unauthorized":
      return unavailable("unauthorized", `E2B doesn't accept the API key (HTTP 401): check ${names.apiKey}`)
    case 403:
      return unavailable("unauthorized", "this API key may not do that (HTTP 403): check the account it belongs to")
    case "rate-limited":
      return unavailable(
        "quota",
        "too many requests, or as many sandboxes as the plan allows (HTTP 429): wait, or run fewer at once"
      )
    case 404:
      return unavailable("template", `there is no template '${template}' (HTTP 404): check ${names.template}`)
    case "template":
      return unavailable("template", `template '${template}' is too old for the e2b package: build it again`)
    case 400:
      return unavailable(
        "refused",
        `E2B refuses the request (HTTP 400): is the lifetime above the plan's, or '${template}' no template?`
      )
    case "unreachable":
      return unavailable("refused", `${failure.detail}: check the network, ${names.apiUrl} and ${names.domain}`)
    default:
      return faultOf("create", undefined, failure)
  }
}

/** Questions about sandboxes. */
export interface Inquiry {
  readonly info: (id: SandboxId) => Effect.Effect<Info, Failure>
  /**
   * The fault of a request to a sandbox. The control plane is asked, as it alone can tell a sandbox that is gone from one
   * that can't be reached. `expiresAt` is when it should have ended by itself, in milliseconds since the epoch.
   */
  readonly explain: (
    operation: Operation,
    id: SandboxId,
    expiresAt?: () => number
  ) => (failure: Failure) => Effect.Effect<never, SandboxFault>
}

export const make = ({ control }: Client): Inquiry => {
  const info = (id: SandboxId) =>
    CurrentBudgets.pipe(
      Effect.flatMap((budgets) => control(budgets.control, (Sandbox, options) => Sandbox.getInfo(id, options))),
      Effect.flatMap(decodeInfo),
      Effect.filterOrFail(({ sandboxId }) => sandboxId === id, () => unexpected)
    )

  const stateOf = (id: SandboxId) =>
    CurrentBudgets.pipe(
      Effect.flatMap((budgets) => Effect.timeoutOption(info(id), budgets.control)),
      Effect.map(Option.match({ onNone: () => "unknown" as const, onSome: ({ state }) => state })),
      Effect.catchAll(({ kind }) => Effect.succeed(kind === "not-found" ? "absent" as const : "unknown" as const))
    )

  return {
    info,
    explain: (operation, id, expiresAt) =>
      Effect.fnUntraced(function*(failure) {
        switch (failure.kind === "not-found" ? "absent" : yield* stateOf(id)) {
          case "absent": {
            const end = expiresAt?.()
            const isOver = end !== undefined && (yield* Clock.currentTimeMillis) >= end
            return yield* new SandboxLost({ operation, sandboxId: id, reason: isOver ? "expired" : "absent" })
          }
          case "paused":
            return yield* new SandboxLost({ operation, sandboxId: id, reason: "unhealthy" })
          default:
            return yield* faultOf(operation, id, failure)
        }
      })
  }
}

/**
 * One caller inside one sandbox.
 */
import * as HttpServerRequest from "@effect/platform/HttpServerRequest"
import * as Effect from "effect/Effect"
import * as Encoding from "effect/Encoding"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type { SandboxFault } from "../Sandbox.ts"
import { type ProgramRefused, User } from "../Sandbox/Machine.ts"
import type { FileError } from "./Files.ts"
import { Fleet, type Inside, type Member } from "./Fleet.ts"
import * as Refused from "./Refused.ts"
import { type Code, type RpcError, rpcError } from "./Rpc.ts"

export interface Session extends Inside {
  readonly member: Member
  /** Takes notice where a fault says that the sandbox is gone. */
  readonly notice: (fault: Fault) => Effect.Effect<void>
}

export type Fault = FileError | SandboxFault | ProgramRefused

/** What a provider without programs for a server comes to. */
export const notHere = Refused.unimplemented("the inside of a sandbox of this provider")

export const of = (member: Member): Effect.Effect<Session, Refused.Refused, Fleet> =>
  Effect.gen(function*() {
    const fleet = yield* Fleet
    const inside = yield* Effect.mapError(member.inside, () => notHere)
    return {
      ...inside,
      member,
      notice: (fault) => fault._tag === "SandboxLost" ? fleet.notice(member, fault) : Effect.void
    }
  })

// ----------------------------------------------------------------------------
// users
// ----------------------------------------------------------------------------

/** Whom envd takes where nobody is named. */
const defaultUser: User = "user"

const isUser = Schema.is(User)

/** A user by name; nothing for one that a sandbox doesn't have. */
export const userNamed = (name: string): Option.Option<User> =>
  name === "" ? Option.some(defaultUser) : Option.liftPredicate(isUser)(name)

/** The user whom a remote procedure is called for. */
export const user: Effect.Effect<User, RpcError, HttpServerRequest.HttpServerRequest> = Effect.flatMap(
  HttpServerRequest.HttpServerRequest,
  ({ headers }) => {
    const [, coded = ""] = /^basic +([A-Za-z0-9+/=]*)$/i.exec(headers["authorization"] ?? "") ?? []
    const name = Option.getOrElse(Option.getRight(Encoding.decodeBase64String(coded)), () => "?").split(":")[0] ?? ""
    return Option.match(userNamed(name), {
      onNone: () => rpcError("unauthenticated", `invalid username: '${name}'`),
      onSome: Effect.succeed
    })
  }
)

// ----------------------------------------------------------------------------
// faults
// ----------------------------------------------------------------------------

const codeOf = (fault: Fault): Code => {
  switch (fault._tag) {
    case "FileError":
      // A client takes it for what it is: the sandbox's own doing.
      return fault.code === "no_space" ? "internal" : fault.code === "unanswered" ? "invalid_argument" : fault.code
    case "SandboxLost":
      return "unavailable"
    case "ProgramRefused":
      return fault.reason === "user" ? "unauthenticated" : "invalid_argument"
    default:
      return "internal"
  }
}

/** As a client is told, who knows the sandbox by another id than the provider. */
export const messageOf = (fault: Fault): string => fault._tag === "ProgramRefused" ? fault.detail : fault.message

/** A fault as a remote procedure call tells it. */
export const explain = ({ notice }: Session) => (fault: Fault): Effect.Effect<never, RpcError> =>
  Effect.andThen(notice(fault), rpcError(codeOf(fault), messageOf(fault)))

/**
 * The inside of a sandbox, as envd offers it: who may come in, and what for.
 */
import * as HttpServerRequest from "@effect/platform/HttpServerRequest"
import * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as CodeInterpreter from "./CodeInterpreter.ts"
import * as FilesystemRpc from "./FilesystemRpc.ts"
import * as FileTransfer from "./FileTransfer.ts"
import { Fleet, type Member } from "./Fleet.ts"
import * as ProcessRpc from "./ProcessRpc.ts"
import * as Refused from "./Refused.ts"
import * as Rpc from "./Rpc.ts"
import * as Secrets from "./Secrets.ts"
import * as Sessions from "./Session.ts"
import { Transport } from "./Transport.ts"

const ports = { envd: 49983, codeInterpreter: 49999 } as const

const request = HttpServerRequest.HttpServerRequest

/** The path and the query of a request. */
export const address = Effect.map(request, ({ url }) => {
  const [path = "/", ...rest] = url.split("?")
  return { path, query: new URLSearchParams(rest.join("?")) }
})

/** The connection of a request breaks with the sandbox, in the middle of the reply if need be. */
const breakWith = (member: Member) =>
  Effect.gen(function*() {
    const { hangUp } = yield* Transport
    const current = yield* request
    yield* member.breaks(hangUp(current))
  })

const hasToken = (member: Member) =>
  Effect.flatMap(request, ({ headers }) => {
    const token = headers["x-access-token"]
    return token === undefined
      ? Effect.succeed(false)
      : Secrets.same(token, Redacted.value(member.accessToken))
  })

const health = (member: Member, alive: HttpServerResponse.HttpServerResponse) =>
  Effect.as(member.sandbox.health, alive).pipe(
    Effect.catchAll((fault) =>
      Effect.flatMap(Fleet, (fleet) =>
        Effect.andThen(
          fleet.notice(member, fault),
          fault._tag === "SandboxLost" ? Refused.absent(member.id) : Refused.refuse(503, fault.message)
        ))
    )
  )

// ----------------------------------------------------------------------------
// signed addresses
// ----------------------------------------------------------------------------

interface SignedRequest {
  readonly signed: Secrets.Signed
  readonly signature: string
}

const signedRequest = Effect.gen(function*() {
  const { method } = yield* request
  const { query } = yield* address
  const signature = query.get("signature")
  if (signature === null) {
    return Option.none<SignedRequest>()
  }
  const signed: Secrets.Signed = {
    path: query.get("path") ?? "",
    operation: method === "GET" ? "read" : "write",
    username: query.get("username") ?? "",
    expiration: query.get("signature_expiration") ?? undefined
  }
  return Option.some<SignedRequest>({ signed, signature })
})

const isSignedWith = ({ accessToken }: Member, { signature, signed }: SignedRequest) =>
  Effect.flatMap(Secrets.signature(signed, accessToken), (expected) => Secrets.same(signature, expected))

const checkExpiration = ({ signed }: SignedRequest) =>
  Effect.flatMap(
    Clock.currentTimeMillis,
    (now) =>
      signed.expiration !== undefined &&
        !(/^[0-9]{1,15}$/.test(signed.expiration) && Number(signed.expiration) >= Math.floor(now / 1000))
        ? Refused.refuse(401, "signature is already expired")
        : Effect.void
  )

/** A signed address names no sandbox: it is the one whose token it was signed with. */
export const signedFiles = Effect.gen(function*() {
  const fleet = yield* Fleet
  const signed = yield* signedRequest
  if (Option.isNone(signed)) {
    return yield* Refused.wrongToken
  }
  const member = yield* Effect.findFirst(yield* fleet.live, (member) => isSignedWith(member, signed.value))
  if (Option.isNone(member)) {
    return yield* Refused.wrongToken
  }
  yield* checkExpiration(signed.value)
  yield* breakWith(member.value)
  return yield* FileTransfer.route(yield* Sessions.of(member.value))
}).pipe(Effect.catchTag("Refused", Refused.respond))

const mayTransferFiles = (member: Member) =>
  Effect.gen(function*() {
    const signed = yield* signedRequest
    const isSigned = Option.isSome(signed) && (yield* isSignedWith(member, signed.value))
    if (isSigned) {
      yield* checkExpiration(signed.value)
    }
    return isSigned || (yield* hasToken(member))
  })

// ----------------------------------------------------------------------------
// the ports of a sandbox
// ----------------------------------------------------------------------------

const services = ["process.Process", "filesystem.Filesystem"]

const envd = (member: Member) =>
  Effect.gen(function*() {
    const { path } = yield* address
    if (path === "/health") {
      return yield* health(member, HttpServerResponse.empty({ status: 204 }))
    }
    if (!(yield* path === "/files" ? mayTransferFiles(member) : hasToken(member))) {
      return yield* Refused.wrongToken
    }
    const [, service = "", method = ""] = /^\/([^/]+)\/([^/]+)$/.exec(path) ?? []
    if (Option.isNone(member.inside) && services.includes(service)) {
      return yield* Rpc.refuse(Rpc.rpcError("unimplemented", Sessions.notHere.message))
    }
    const session = yield* Sessions.of(member)
    switch (path) {
      case "/files":
        return yield* FileTransfer.route(session)
      case "/envs":
        return yield* HttpServerResponse.json(member.environment).pipe(Effect.orDie)
      default:
        return service === "process.Process"
          ? yield* ProcessRpc.route(session, method)
          : service === "filesystem.Filesystem"
          ? yield* FilesystemRpc.route(session, method)
          : yield* Refused.refuse(404, "there is no such route")
    }
  })

const codeInterpreter = (member: Member) =>
  Effect.gen(function*() {
    const { path } = yield* address
    if (path === "/health") {
      return yield* health(member, HttpServerResponse.text("\"OK\"", { contentType: "application/json" }))
    }
    // The SDK sends no token for a context, and there is none to have.
    if (!/^\/contexts(?:\/|$)/.test(path) && !(yield* hasToken(member))) {
      return yield* Refused.wrongToken
    }
    return yield* CodeInterpreter.route(yield* Sessions.of(member), path)
  })

/** A request for what listens on a port of a sandbox. */
export const dataPlane = (sandboxId: string | undefined, port: string | undefined) =>
  Effect.gen(function*() {
    if (sandboxId === undefined || port === undefined || !/^[0-9]{1,5}$/.test(port)) {
      return HttpServerResponse.text("e2b-sandbox-id and e2b-sandbox-port come together", { status: 400 })
    }
    const fleet = yield* Fleet
    const found = fleet.find(sandboxId.split("-")[0] ?? "")
    if (Option.isNone(found)) {
      return yield* Refused.absent(sandboxId)
    }
    const member = found.value
    yield* breakWith(member)
    switch (Number(port)) {
      case ports.envd:
        return yield* envd(member)
      case ports.codeInterpreter:
        return yield* codeInterpreter(member)
      default:
        return yield* new Refused.Refused({
          status: 502,
          message: "The sandbox is running but this server reaches no port of its programs",
          sandboxId,
          port: Number(port)
        })
    }
  }).pipe(Effect.catchTag("Refused", Refused.respond))

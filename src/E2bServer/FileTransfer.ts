/**
 * `/files`: contents of files, in and out.
 */
import * as HttpServerRequest from "@effect/platform/HttpServerRequest"
import * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import type { User } from "../Sandbox/Machine.ts"
import type { Written } from "./Files.ts"
import * as Multipart from "./Multipart.ts"
import * as Refused from "./Refused.ts"
import * as Sessions from "./Session.ts"
import { Transport } from "./Transport.ts"

type Session = Sessions.Session

const request = HttpServerRequest.HttpServerRequest

// ----------------------------------------------------------------------------
// faults
// ----------------------------------------------------------------------------

const statuses = {
  not_found: 404,
  already_exists: 409,
  invalid_argument: 400,
  permission_denied: 403,
  resource_exhausted: 429,
  no_space: 507,
  unanswered: 400,
  internal: 500
} as const

const refusalOf = (session: Session, fault: Sessions.Fault): Refused.Refused => {
  switch (fault._tag) {
    case "FileError":
      return Refused.refuse(statuses[fault.code], fault.message)
    case "SandboxLost":
      return Refused.absent(session.member.id)
    case "ProgramRefused":
      return Refused.refuse(fault.reason === "user" ? 401 : 400, Sessions.messageOf(fault))
    default:
      return Refused.refuse(500, fault.message)
  }
}

const explain = (session: Session) => (fault: Sessions.Fault | Refused.Refused) =>
  fault._tag === "Refused" ? fault : Effect.andThen(session.notice(fault), refusalOf(session, fault))

// ----------------------------------------------------------------------------
// reading
// ----------------------------------------------------------------------------

// Compressing costs more than it saves where the way is this short, so it is done only for who takes nothing else.
const codingFor = (accepted: string | undefined): "gzip" | "identity" | undefined => {
  const refused = (text: string) => /;\s*q=0(?:\.0*)?$/.test(text)
  const codings = (accepted ?? "").toLowerCase().split(",").map((text) => text.trim()).filter((text) => text !== "")
  const names = codings.filter((text) => !refused(text)).map((text) => text.split(";")[0]?.trim() ?? "")
  const noIdentity = codings.some((text) => refused(text) && /^(?:identity|\*)\s*;/.test(text))
  return names.length === 1 && names[0] === "gzip" || noIdentity && names.includes("gzip")
    ? "gzip"
    : noIdentity && !names.includes("identity")
    ? undefined
    : "identity"
}

const download = (session: Session, user: User, path: string) =>
  Effect.gen(function*() {
    const { gzip } = yield* Transport
    const { headers } = yield* request
    const coding = codingFor(headers["accept-encoding"])
    if (coding === undefined) {
      return yield* Refused.refuse(406, "a file comes as it is, or in gzip")
    }
    const { content, size } = yield* session.files.read(user, path).pipe(Effect.catchAll(explain(session)))
    // Where the rest can't be read, the reply breaks off: it must not look whole.
    const whole = Stream.catchAll(
      content,
      (fault) => Stream.fromEffect(Effect.andThen(session.notice(fault), breakOff))
    )
    const context = yield* Effect.context<Transport | HttpServerRequest.HttpServerRequest>()
    const bytes = Stream.provideContext(whole, context)
    return HttpServerResponse.stream(coding === "gzip" ? gzip(bytes) : bytes, {
      contentType: "application/octet-stream",
      contentLength: coding === "gzip" ? undefined : Option.getOrUndefined(size),
      headers: { vary: "accept-encoding", ...(coding === "gzip" ? { "content-encoding": "gzip" } : {}) }
    })
  })

const breakOff = Effect.gen(function*() {
  const { hangUp } = yield* Transport
  yield* hangUp(yield* request)
  return yield* Effect.never
})

// ----------------------------------------------------------------------------
// writing
// ----------------------------------------------------------------------------

const Uploaded = Schema.Array(Schema.Struct({
  name: Schema.String,
  path: Schema.String,
  type: Schema.Literal("file"),
  metadata: Schema.optional(Schema.Record({ key: Schema.String, value: Schema.String }))
}))

const prefix = "x-metadata-"

const metadataIn = (headers: Readonly<Record<string, string>>) => {
  const entries = Object.entries(headers).filter(([name]) => name.startsWith(prefix)).map(([name, value]) =>
    [name.slice(prefix.length), value] as const
  )
  const stored = "user.e2b.".length
  return entries.some(([name, value]) => name === "" || !/^[\x20-\x7e]*$/.test(value))
    ? Refused.refuse(400, "metadata has a name, and values of printable ASCII")
    : entries.some(([name]) => name.length > 255 - stored)
        || entries.reduce((size, [name, value]) => size + stored + name.length + value.length, 0) > 4096
    ? Refused.refuse(400, "the name of metadata has at most 246 bytes, and all of it at most 4096")
    : Effect.succeed(Object.fromEntries(entries))
}

const broken = Refused.refuse(400, "the upload broke off, or isn't what it says it is")

const bodyBytes = Effect.gen(function*() {
  const { gunzip } = yield* Transport
  const { headers, stream } = yield* request
  const bytes = Stream.mapError(stream, () => broken)
  switch (headers["content-encoding"] ?? "identity") {
    case "identity":
      return bytes
    case "gzip":
      return Stream.mapError(gunzip(bytes), () => broken)
    default:
      return yield* Refused.refuse(400, "an upload comes as it is, or in gzip")
  }
})

const upload = (session: Session, user: User, path: string | undefined) =>
  Effect.gen(function*() {
    const { headers } = yield* request
    const metadata = yield* metadataIn(headers)
    const bytes = yield* bodyBytes
    const type = headers["content-type"]?.split(";")[0]?.trim().toLowerCase()
    const write = (path: string, content: Stream.Stream<Uint8Array, Refused.Refused>) =>
      session.files.write(user, path, { metadata, content }).pipe(Effect.catchAll(explain(session)))
    const written: Array<Written> = []
    if (type === "multipart/form-data") {
      const boundary = Multipart.boundaryOf(headers["content-type"] ?? "")
      if (Option.isNone(boundary)) {
        return yield* broken
      }
      const taken = new Set<string>()
      const target = (filename: string | undefined): Effect.Effect<string, Refused.Refused> => {
        const name = path ?? filename ?? ""
        if (name === "") {
          return Refused.refuse(400, "a part has neither a path nor a file name")
        }
        if (taken.has(name)) {
          return Refused.refuse(400, `you cannot upload multiple files to the same path '${name}'`)
        }
        taken.add(name)
        return Effect.succeed(name)
      }
      // As with one file, all of them are taken before a refusal is told.
      let refused: Option.Option<Refused.Refused> = Option.none()
      yield* Multipart.forEachPart(bytes, boundary.value, ({ content, filename, name }) =>
        name !== "file" || Option.isSome(refused)
          ? Effect.void
          : target(filename).pipe(
            Effect.flatMap((target) =>
              write(
                target,
                Stream.mapError(content, () =>
                  broken)
              )
            ),
            Effect.match({
              onFailure: (error) => {
                refused = Option.some(error)
              },
              onSuccess: (one) => {
                written.push(one)
              }
            })
          )).pipe(Effect.mapError(() =>
            broken
          ))
      yield* Option.match(refused, { onNone: () => Effect.void, onSome: (error) => error })
    } else if (type === "application/octet-stream") {
      if (path === undefined) {
        return yield* Refused.refuse(400, "an upload of bytes has a path")
      }
      written.push(yield* write(path, bytes))
    } else {
      return yield* Refused.refuse(415, "an upload is multipart/form-data or application/octet-stream")
    }
    const stored = Object.keys(metadata).length === 0 ? {} : { metadata }
    return yield* Effect.orDie(
      HttpServerResponse.schemaJson(Uploaded)(written.map((one) => ({ ...one, type: "file", ...stored })))
    )
  })

// ----------------------------------------------------------------------------
// route
// ----------------------------------------------------------------------------

export const route = (session: Session) =>
  Effect.gen(function*() {
    const { method, url } = yield* request
    const query = new URLSearchParams(url.split("?").slice(1).join("?"))
    const username = query.get("username") ?? ""
    const user = Sessions.userNamed(username)
    if (Option.isNone(user)) {
      return yield* Refused.refuse(401, `invalid username: '${username}'`)
    }
    switch (method) {
      case "GET":
        return yield* download(session, user.value, query.get("path") ?? "")
      case "POST":
        return yield* upload(session, user.value, query.get("path") ?? undefined)
      default:
        return yield* Refused.refuse(405, "files are read with GET and written with POST")
    }
  })

/**
 * The code interpreter: one Python program after the other, each by itself.
 */
import * as HttpServerRequest from "@effect/platform/HttpServerRequest"
import * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import { homeOf } from "../Sandbox/Machine.ts"
import { concat, utf8 } from "./Bytes.ts"
import * as Helpers from "./Helper.ts"
import * as Json from "./Json.ts"
import { notebook } from "./Programs/Notebook.ts"
import * as Refused from "./Refused.ts"
import { messageOf, type Session } from "./Session.ts"

const readRequest = Json.reader(Schema.Struct({
  code: Schema.String,
  context_id: Schema.optional(Schema.NullOr(Schema.String)),
  language: Schema.optional(Schema.NullOr(Schema.String)),
  env_vars: Schema.optional(Schema.NullOr(Schema.Record({ key: Schema.String, value: Schema.String })))
}))

const Assignment = Schema.parseJson(Schema.Struct({
  code: Schema.String,
  variables: Schema.Record({ key: Schema.String, value: Schema.String }),
  limit: Schema.Number
}))

const largestRequest = 16 * 1024 * 1024

/** In seconds. */
const limit = 300

const over = utf8("{\"type\": \"end_of_execution\"}\n")

const lost =
  "{\"type\": \"error\", \"name\": \"ExecutionLost\", \"value\": \"the program that ran the code was ended\", "
  + "\"traceback\": \"\"}\n"

// A client takes an end for a success, and the code can end the helper: then that is the error.
const untilOver = <E>(events: Stream.Stream<Uint8Array, E>): Stream.Stream<Uint8Array, E> =>
  Stream.suspend(() => {
    let last = new Uint8Array()
    return events.pipe(
      Stream.map((part) => {
        last = concat([last, part.subarray(-over.length)]).slice(-over.length)
        return part
      }),
      Stream.concat(Stream.suspend(() =>
        last.length === over.length && last.every((byte, index) => byte === over[index])
          ? Stream.empty
          : Stream.make(concat([utf8((last.at(-1) ?? 10) === 10 ? lost : `\n${lost}`), over]))
      ))
    )
  })

const execute = (session: Session) =>
  Effect.gen(function*() {
    const asked = yield* Effect.mapError(
      Effect.flatMap(Refused.text(largestRequest), readRequest),
      (wrong) => typeof wrong === "string" ? Refused.refuse(400, "the request isn't one to execute code") : wrong
    )
    const context = asked.context_id ?? ""
    const language = asked.language ?? ""
    if (context !== "" && language !== "") {
      return yield* Refused.refuse(400, "a request has a context or a language, not both")
    }
    if (context !== "") {
      return HttpServerResponse.text(`Context ${context} not found`, { status: 404 })
    }
    if (language !== "" && language !== "python" && language !== "python3") {
      return yield* Refused.unimplemented(`code in ${language.slice(0, 32)}`)
    }
    const assignment = yield* Effect.orDie(
      Schema.encode(Assignment)({ code: asked.code, variables: asked.env_vars ?? {}, limit })
    )
    // In the scope of the request: who hangs up ends the program.
    const running = yield* session.spawn({
      ...Helpers.python(notebook),
      user: "user",
      environment: session.member.environment,
      directory: homeOf("user"),
      stdin: "open"
    }).pipe(
      Effect.catchAll((fault) =>
        Effect.andThen(
          session.notice(fault),
          Refused.refuse(
            fault._tag === "SandboxLost" ? 502 : fault._tag === "ProgramRefused" ? 400 : 500,
            messageOf(fault)
          )
        )
      )
    )
    yield* running.write(utf8(assignment))
    yield* running.closeStdin
    return HttpServerResponse.stream(untilOver(running.stdout), { contentType: "application/json" })
  })

/** There is no kernel, so there is nothing that a context could keep. */
export const route = (session: Session, path: string) =>
  Effect.flatMap(HttpServerRequest.HttpServerRequest, ({ method }) =>
    method === "POST" && path === "/execute"
      ? execute(session)
      : path === "/contexts" || path.startsWith("/contexts/")
      ? Refused.unimplemented("a context of the code interpreter")
      : Refused.refuse(404, "there is no such route"))

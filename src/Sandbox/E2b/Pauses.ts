/**
 * How often, and how long, a request was put off because the API asked for that.
 *
 * The SDK waits out a 429 with a `Retry-After` by itself and says nothing of it. So the HTTP client that it brings is
 * listened to, through Node's own channel for that; each request is known by a header. What is heard goes into the trace of
 * the episode at once, as a request that runs out of time is written down before it has ended, and on the span of the request.
 */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Runtime from "effect/Runtime"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as diagnostics from "node:diagnostics_channel"
import { CurrentWaits, Wait } from "../../Sandbox.ts"

const channel = "undici:request:headers"

const header = "x-request-id"

const Refused = Schema.Struct({
  request: Schema.Struct({ headers: Schema.Array(Schema.String) }),
  response: Schema.Struct({
    statusCode: Schema.Literal(429),
    headers: Schema.Array(Schema.Union(Schema.Uint8ArrayFromSelf, Schema.String))
  })
})

const decodeRefused = Schema.decodeUnknownOption(Refused)

// Names and values, one after another.
const valueOf = (headers: ReadonlyArray<string>, name: string): string | undefined => {
  const at = headers.findIndex((word, index) => index % 2 === 0 && word.toLowerCase() === name)
  return at === -1 ? undefined : headers[at + 1]
}

export interface Pauses {
  /** Runs a request that is made with these headers. */
  readonly observed: <A, E>(
    request: (headers: Readonly<Record<string, string>>) => Effect.Effect<A, E>
  ) => Effect.Effect<A, E>
}

/** Listens for as long as the scope is open. */
export const make: Effect.Effect<Pauses, never, Scope.Scope> = Effect.gen(function*() {
  const requests = new Map<string, (seconds: number) => void>()
  const listen = (message: unknown): void => {
    const refused = decodeRefused(message)
    if (Option.isSome(refused)) {
      const { request, response } = refused.value
      const seconds = valueOf(response.headers.map((word) => Buffer.from(word).toString("latin1")), "retry-after")
      requests.get(valueOf(request.headers, header) ?? "")?.(/^[0-9]{1,6}$/.test(seconds ?? "") ? Number(seconds) : 0)
    }
  }
  yield* Effect.acquireRelease(
    Effect.sync(() => diagnostics.subscribe(channel, listen)),
    () => Effect.sync(() => diagnostics.unsubscribe(channel, listen))
  )
  return {
    observed: (request) =>
      Effect.gen(function*() {
        const { add } = yield* CurrentWaits
        const runtime = yield* Effect.runtime<never>()
        const id = globalThis.crypto.randomUUID()
        const heard: Array<number> = []
        requests.set(id, (seconds) => {
          heard.push(seconds)
          Runtime.runFork(runtime)(add(new Wait({ reason: "rate-limited", milliseconds: seconds * 1000 })))
        })
        return yield* request({ [header]: id }).pipe(
          Effect.ensuring(Effect.suspend(() => {
            requests.delete(id)
            return heard.length === 0
              ? Effect.void
              : Effect.annotateCurrentSpan({ "e2b.rateLimited": heard.length, "e2b.retryAfterSeconds": heard })
          }))
        )
      })
  }
})

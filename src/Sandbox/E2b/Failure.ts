/**
 * What an error of the SDK says, and what it doesn't.
 *
 * One class stands for many things there: a `TimeoutError` is a deadline, an abort, a broken connection or a sandbox that is
 * gone; a `SandboxNotFoundError` at the start of a command is any of 429, 502, 503 and 504. So nothing here says that a
 * sandbox is gone, except for the control plane's own "not found".
 */
import * as Data from "effect/Data"
import * as Predicate from "effect/Predicate"
import type { Sdk } from "./Client.ts"

/**
 * - `not-found`: the control plane knows no such sandbox
 * - `unauthorized`: the key isn't accepted
 * - `rate-limited`: 429
 * - `template`: the template can't be used with this SDK
 * - `status`: any other refusal of the control plane
 * - `declined`: envd answered in good order that it won't
 * - `unavailable`: something between us and envd, or envd itself, answered 429, 502, 503 or 504
 * - `malformed`: a reply that nobody should give
 * - `unreachable`: no connection, so nothing was asked
 * - `broken`: no whole reply
 *
 * The detail is ours: an SDK error's own text may quote a reply.
 */
export class Failure extends Data.TaggedError("Failure")<{
  readonly kind:
    | "not-found"
    | "unauthorized"
    | "rate-limited"
    | "template"
    | "status"
    | "declined"
    | "unavailable"
    | "malformed"
    | "unreachable"
    | "broken"
  readonly status?: number
  readonly detail: string
}> {}

const malformed = (detail: string) => new Failure({ kind: "malformed", detail })
const broken = (detail: string) => new Failure({ kind: "broken", detail })

const noReply = broken("no reply within the time of the request")

const unconnected: ReadonlySet<unknown> = new Set([
  "ECONNREFUSED",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOTFOUND",
  "EAI_AGAIN",
  "UND_ERR_CONNECT_TIMEOUT"
])

// Below the SDK: fetch, and what it is made of.
const ofTransport = (place: string) => (error: unknown): Failure => {
  if (error instanceof SyntaxError) {
    return malformed("the reply is not JSON")
  }
  if (error instanceof DOMException) {
    return noReply
  }
  const message = error instanceof Error ? error.message : ""
  if (message === "fetch failed") {
    const cause = error instanceof Error ? error.cause : undefined
    return Predicate.hasProperty(cause, "code") && unconnected.has(cause.code)
      ? new Failure({ kind: "unreachable", detail: `no connection to ${place}` })
      : broken(`the connection to ${place} broke before a reply`)
  }
  return message.includes("terminated")
    ? broken("the connection broke within the reply")
    : malformed("the reply is not what was asked for")
}

/** What a request to the control plane, at that place, failed with. */
export const ofControl = (sdk: Sdk, place: string) => (error: unknown): Failure => {
  if (error instanceof sdk.SandboxNotFoundError) {
    return new Failure({ kind: "not-found", detail: "there is no such sandbox" })
  }
  if (error instanceof sdk.AuthenticationError) {
    return new Failure({ kind: "unauthorized", status: 401, detail: "the API key is not accepted (HTTP 401)" })
  }
  if (error instanceof sdk.RateLimitError) {
    return new Failure({ kind: "rate-limited", status: 429, detail: "too many requests or sandboxes (HTTP 429)" })
  }
  if (error instanceof sdk.TemplateError) {
    return new Failure({ kind: "template", detail: "the template is too old for this version of the e2b package" })
  }
  const status = error instanceof sdk.ServiceBusyError || error instanceof sdk.SandboxError
    ? error.statusCode
    : undefined
  return status === undefined
    ? ofTransport(place)(error)
    : new Failure({ kind: "status", status, detail: `the API answered with HTTP ${status}` })
}

/** What a request to envd, at that place, failed with. */
export const ofData = (sdk: Sdk, place: string) => (error: unknown): Failure => {
  if (error instanceof sdk.AuthenticationError) {
    return new Failure({ kind: "unauthorized", detail: "the sandbox does not accept its own access token" })
  }
  if (error instanceof sdk.RateLimitError) {
    return new Failure({ kind: "unavailable", detail: "too many requests (HTTP 429)" })
  }
  if (error instanceof sdk.SandboxNotFoundError) {
    return new Failure({ kind: "unavailable", detail: `${place} can't be reached (HTTP 429, 502, 503 or 504)` })
  }
  if (error instanceof sdk.NotFoundError || error instanceof sdk.NotEnoughSpaceError) {
    return new Failure({ kind: "declined", detail: "the sandbox answered that it can't" })
  }
  if (error instanceof sdk.InvalidArgumentError) {
    return error.message.includes("protocol error")
      ? malformed("the reply ends within a message")
      : new Failure({ kind: "declined", detail: "the sandbox answered that it can't" })
  }
  if (error instanceof sdk.TimeoutError) {
    return error.message.startsWith("[canceled]") || error.message.startsWith("[deadline_exceeded]")
      ? noReply
      : error.message.includes("terminated")
      ? broken("the connection broke within the reply")
      : new Failure({ kind: "unavailable", detail: `${place} can't be reached` })
  }
  return error instanceof sdk.SandboxError ? ofConnect(place, error.message) : ofTransport(place)(error)
}

// Connect errors without a class of their own are "CODE: [name] text". Transport errors are of the kind `unknown`.
const ofConnect = (place: string, message: string): Failure => {
  if (message.startsWith("2: ")) {
    return /terminated|fetch failed|EndStream/.test(message)
      // Why a fetch has failed is lost in the SDK.
      ? broken(
        message.includes("fetch failed")
          ? `no connection to ${place}, or it broke before the reply`
          : "the connection broke before the end of the reply"
      )
      : new Failure({ kind: "unavailable", detail: "the sandbox answered with an error of its own" })
  }
  return /^\d+: /.test(message)
    ? new Failure({ kind: "unavailable", detail: "the sandbox answered with an error" })
    : malformed("the reply has no end")
}

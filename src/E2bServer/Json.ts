/**
 * Reading the JSON of a request.
 */
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import type * as ParseResult from "effect/ParseResult"
import * as Schema from "effect/Schema"
import * as ForeignJson from "../internal/foreignJson.ts"

/** What is wrong, in one line. */
export const issues = (error: ParseResult.ParseError): string =>
  ForeignJson.issuesOf(error.issue).map(({ message, path }) => `${ForeignJson.shortened(path.join("."))}: ${message}`)
    .join("; ")

/** Reads a text; it fails with what is wrong with that. */
export const reader = <A, I>(schema: Schema.Schema<A, I>) => {
  const decode = Schema.decodeUnknown(schema)
  return (text: string): Effect.Effect<A, string> =>
    Either.match(ForeignJson.read(text), {
      onLeft: (why) => Effect.fail(`it ${ForeignJson.unread[why]}`),
      onRight: (json) => Effect.mapError(decode(json), issues)
    })
}

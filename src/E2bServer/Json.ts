/**
 * Reading the JSON of a request.
 */
import * as Effect from "effect/Effect"
import * as ParseResult from "effect/ParseResult"
import * as Schema from "effect/Schema"

/** What is wrong, in one line. */
export const issues = (error: ParseResult.ParseError): string =>
  ParseResult.ArrayFormatter.formatErrorSync(error).map(({ message, path }) =>
    `${path.join(".")}: ${message}`.slice(0, 200)
  ).join("; ")

/** Reads a text; it fails with what is wrong with that. */
export const reader = <A, I>(schema: Schema.Schema<A, I>) => {
  const parse = Schema.decodeUnknown(Schema.parseJson(schema))
  return (text: string): Effect.Effect<A, string> =>
    parse(text).pipe(
      Effect.mapError(issues),
      // What is nested without end takes all of the stack, at the latest where it is told.
      Effect.catchAllDefect(() => Effect.fail("it is nested too deeply"))
    )
}

/**
 * What an output of totals is worth: one strict JSON object with exactly the expected integers, or nothing.
 *
 * @since 0.1.0
 */
import * as Either from "effect/Either"
import { pipe } from "effect/Function"
import * as Option from "effect/Option"
import { decodeUtf8, isInteger, lexemes, locate, showPlace, strictly, stringOf } from "../internal/losslessJson.ts"
import type { GradedReason, Verdict } from "../Task.ts"

const zero = (reason: Exclude<GradedReason, "correct">, detail: string): Verdict => ({ score: 0, reason, detail })

const malformed = (detail: string): Verdict => zero("output-malformed", detail)

// Finding the place of an error takes far more memory than finding that there is one.
const locatable = 64 * 1024

const notJson = (text: string): Verdict =>
  Option.match(text.length > locatable ? Option.none() : locate(text), {
    onNone: () => malformed("not JSON"),
    onSome: (place) => malformed(`${showPlace(place)}: not JSON`)
  })

/** The totals that a text states, as canonical decimal text. */
const stated = (text: string): Either.Either<ReadonlyMap<string, string>, Verdict> =>
  Either.gen(function*() {
    const json = yield* Either.fromOption(strictly(text), () => notJson(text))
    const totals = new Map<string, string>()
    let opened = false
    let key: string | undefined
    for (const { raw } of lexemes(json)) {
      if (!opened) {
        if (raw !== "{") {
          return yield* Either.left(malformed("not an object"))
        }
        opened = true
      } else if (raw === ":" || raw === "," || raw === "}") {
        continue
      } else if (key === undefined) {
        key = stringOf(raw)
        if (totals.has(key)) {
          return yield* Either.left(malformed("a key occurs twice"))
        }
      } else if (isInteger(raw)) {
        totals.set(key, raw)
        key = undefined
      } else {
        return yield* Either.left(malformed("the value of a key is not an integer as written"))
      }
    }
    return totals
  })

/**
 * Grades an output against the totals it should state.
 *
 * **Details**
 *
 * The output has to be UTF-8 and one JSON object, with JSON white space around it and nothing else. A byte order mark,
 * comments, trailing commas, `NaN` and keys that are equal once decoded make it malformed, and so does a value that
 * isn't an integer as written: `15` is one; `15.0`, `1.5e1`, `"15"`, `true` and `-0` are not. Integers are exact at any
 * size, and the order of the keys doesn't matter. The result is total: no output makes it throw, however deep or large.
 *
 * A verdict's detail quotes neither the output nor what was expected.
 *
 * @example
 * ```ts
 * import { grade } from "episode/Grading/Totals"
 *
 * const verdict = grade(new Map([["east", 15n]]))(new TextEncoder().encode(`{"east": 15}\n`))
 *
 * console.log(verdict) // { score: 1, reason: "correct" }
 * ```
 *
 * @since 0.1.0
 * @category grading
 */
export const grade = (expected: ReadonlyMap<string, bigint>): (output: Uint8Array) => Verdict => {
  const canonical = new Map(Array.from(expected, ([key, total]) => [key, total.toString()]))
  return (output) =>
    pipe(
      Either.fromOption(decodeUtf8(output), () => zero("output-not-utf8", "not UTF-8")),
      Either.flatMap(stated),
      Either.map((totals): Verdict =>
        totals.size !== canonical.size || Array.from(totals.keys()).some((key) => !canonical.has(key))
          ? zero("wrong-totals", "not the right keys")
          : Array.from(totals).some(([key, total]) => canonical.get(key) !== total)
          ? zero("wrong-totals", "the right keys, a wrong total")
          : { score: 1, reason: "correct" }
      ),
      Either.merge
    )
}

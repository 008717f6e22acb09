/**
 * What the options of a layer may be. Looked at in the way of JavaScript: a program without types may give anything.
 */
import * as Arr from "effect/Array"
import * as Duration from "effect/Duration"
import * as Option from "effect/Option"

/** Whether a value is one that an option can have, and what those are. */
export interface Rule {
  readonly isMet: (value: unknown) => boolean
  readonly message: string
}

export interface Issue {
  readonly field: string
  readonly message: string
}

export const wholeNumber = (from: number, to = Number.MAX_SAFE_INTEGER): Rule => ({
  isMet: (value) => typeof value === "number" && Number.isSafeInteger(value) && value >= from && value <= to,
  message: to === Number.MAX_SAFE_INTEGER
    ? `a whole number of at least ${from}`
    : `a whole number from ${from} to ${to}`
})

// Timers hold 31 bits of milliseconds: what is further away would have none.
const isTime = Duration.between({ minimum: Duration.nanos(1n), maximum: Duration.days(24) })

export const time: Rule = {
  isMet: (value) => Option.exists(Duration.decodeUnknown(value), isTime),
  message: "a time longer than zero and of at most 24 days"
}

/** What is wrong with options. One that is undefined isn't given. */
export const issuesOf = (
  rules: Readonly<Record<string, Rule>>,
  options: object
): Option.Option<Arr.NonEmptyReadonlyArray<Issue>> => {
  const values = new Map<string, unknown>(Object.entries(options))
  const issues = Object.entries(rules).flatMap(([field, { isMet, message }]) => {
    const value = values.get(field)
    return value === undefined || isMet(value) ? [] : [{ field, message }]
  })
  return Arr.isNonEmptyArray(issues) ? Option.some(issues) : Option.none()
}

/** The same in a sentence. */
export const sentence = (issues: ReadonlyArray<Issue>): string =>
  `a server can't have these options: ${issues.map(({ field, message }) => `${field} is ${message}`).join("; ")}`

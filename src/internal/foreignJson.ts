/**
 * Reading JSON that a stranger sent, and saying what is wrong with it, at a cost that what was sent doesn't decide.
 */
import * as Arr from "effect/Array"
import * as Either from "effect/Either"
import * as Option from "effect/Option"
import * as ParseResult from "effect/ParseResult"
import * as Predicate from "effect/Predicate"
import * as Schema from "effect/Schema"

/** How deep a text may be nested: more than any of ours, and little enough for everything that recurses. */
export const maxDepth = 64

/**
 * How many values a request may hold: more than any of ours, and few enough to look at each of them. A task that is given
 * as text is one.
 */
export const maxValues = 50_000

/** Why a text wasn't read. */
export type Unread = "syntax" | "depth" | "values" | "prototype"

/**
 * The same in words, to be put behind what was to be read.
 */
export const unread: Readonly<Record<Unread, string>> = {
  syntax: "is not JSON",
  depth: `is nested deeper than ${maxDepth} levels`,
  values: `holds more than ${maxValues} values`,
  prototype: "holds a key __proto__"
}

// Before anything is made of a text: what is in it costs many times what it takes to write it.
const excess = (text: string, maxValues: number): Option.Option<Unread> => {
  let depth = 0
  let values = 1
  let quoted = false
  for (let index = 0; index < text.length; index++) {
    switch (text.charCodeAt(index)) {
      case 0x22: // "
        quoted = !quoted
        break
      case 0x5c: // \
        index += quoted ? 1 : 0
        break
      case 0x5b: // [
      case 0x7b: // {
        depth += quoted ? 0 : 1
        values += quoted ? 0 : 1
        break
      case 0x5d: // ]
      case 0x7d: // }
        depth -= quoted ? 0 : 1
        break
      case 0x2c: // ,
        values += quoted ? 0 : 1
        break
    }
    if (depth > maxDepth) {
      return Option.some("depth")
    }
    if (values > maxValues) {
      return Option.some("values")
    }
  }
  return Option.none()
}

const parse = ParseResult.decodeEither(Schema.parseJson())

const childrenOf = (value: unknown): ReadonlyArray<unknown> =>
  typeof value === "object" && value !== null ? Object.values(value) : []

// In a copy that is made key by key, what stands behind this key is the prototype, and its fields seem to be there.
const hasPrototype = (value: unknown): boolean =>
  (typeof value === "object" && value !== null && Object.hasOwn(value, "__proto__"))
  || childrenOf(value).some(hasPrototype)

/**
 * Reads JSON text that a stranger sent. None for what isn't JSON, is nested deeper than {@link maxDepth}, holds more than
 * so many values, or has a key `__proto__`.
 */
export const read = (text: string, limit = maxValues): Either.Either<unknown, Unread> =>
  Option.match(excess(text, limit), {
    onSome: Either.left,
    onNone: () =>
      Either.filterOrLeft(
        Either.mapLeft(parse(text), (): Unread => "syntax"),
        (json) => !hasPrototype(json),
        (): Unread => "prototype"
      )
  })

// How much of what was given a message shows.
const shownLength = 240

/**
 * A text that quotes what was given, which can be as long as a frame. Half of a surrogate pair, given or left by the cut,
 * would be an error to a client that prints it.
 */
export const shortened = (text: string, length = shownLength): string =>
  (text.length > length ? `${text.slice(0, length)}...` : text).replace(/\p{Surrogate}/gu, "\ufffd")

const maxIssues = 20

// As much of a value as a message shows of it: each value that is looked at is a character of it, at least.
const glimpse = (value: unknown): unknown => {
  let left = shownLength
  const first = <A>(items: ReadonlyArray<A>): ReadonlyArray<A> => items.slice(0, Math.max(0, left))
  const look = (value: unknown): unknown => {
    left -= 1
    return typeof value === "string"
      ? value.slice(0, shownLength)
      : Array.isArray(value)
      ? first(value).map(look)
      : Predicate.isRecord(value)
      ? Object.fromEntries(first(Object.entries(value)).map(([key, value]) => [key.slice(0, shownLength), look(value)]))
      : value
  }
  return look(value)
}

// An issue with no more in it than is shown: a message quotes the whole of what was given, and each issue has one.
const inShort = (issue: ParseResult.ParseIssue): ParseResult.ParseIssue => {
  const actual = glimpse(issue.actual)
  switch (issue._tag) {
    case "Type":
      return new ParseResult.Type(issue.ast, actual, issue.message)
    case "Pointer":
      return new ParseResult.Pointer(issue.path, actual, inShort(issue.issue))
    case "Composite": {
      const issues = "_tag" in issue.issues ? Arr.of(issue.issues) : issue.issues
      const [few] = Arr.splitNonEmptyAt(issues, maxIssues)
      return new ParseResult.Composite(issue.ast, actual, Arr.map(few, inShort))
    }
    case "Refinement":
      return new ParseResult.Refinement(issue.ast, actual, issue.kind, inShort(issue.issue))
    case "Transformation":
      return new ParseResult.Transformation(issue.ast, actual, issue.kind, inShort(issue.issue))
    case "Forbidden":
    case "Missing":
    case "Unexpected":
      return issue
  }
}

/** What is wrong with a value: the first of all issues, and what they quote cut short. */
export const issuesOf = (error: ParseResult.ParseIssue): ReadonlyArray<ParseResult.ArrayFormatterIssue> =>
  ParseResult.ArrayFormatter.formatIssueSync(inShort(error)).slice(0, maxIssues).map((issue) => ({
    ...issue,
    message: shortened(issue.message)
  }))

// So many values have few enough issues for all of them to be found.
const smallValues = 1000

/** Whether a value is small enough for all of its issues to be looked for. */
export const isSmall = (value: unknown): boolean => {
  let left = smallValues
  const fits = (value: unknown): boolean => {
    left -= 1
    return left >= 0 && childrenOf(value).every(fits)
  }
  return fits(value)
}

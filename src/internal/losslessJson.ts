/**
 * Strict JSON reading that loses nothing: numbers keep their text, and a key that occurs twice is seen.
 *
 * V8's parser has the word on what JSON is: it is strict and doesn't recurse. A text it accepts is then read once more,
 * lexeme by lexeme, for what the parser throws away. Both run in memory that doesn't depend on the nesting.
 */
import { parse, tokenize } from "@humanwhocodes/momoa"
import * as Arr from "effect/Array"
import * as Data from "effect/Data"
import * as Either from "effect/Either"
import * as Option from "effect/Option"
import * as ParseResult from "effect/ParseResult"
import * as Schema from "effect/Schema"

/** Where something stands in a text; both count from 1. */
export interface Place {
  readonly line: number
  readonly column: number
}

export const showPlace = (place: Place): string => `line ${place.line}, column ${place.column}`

/** Well-formed UTF-8 only, and a byte order mark stays where it is. */
export const decodeUtf8 = (bytes: Uint8Array): Option.Option<string> =>
  Option.liftThrowable(() => new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes))()

// ----------------------------------------------------------------------------
// syntax
// ----------------------------------------------------------------------------

const parseStrictly = ParseResult.decodeEither(Schema.parseJson())

const StrictJson = Schema.String.pipe(
  Schema.filter((text) => Either.isRight(parseStrictly(text))),
  Schema.brand("StrictJson")
)

/** A text that is one JSON value with nothing but JSON white space around it. */
export type StrictJson = typeof StrictJson.Type

export const strictly: (text: string) => Option.Option<StrictJson> = Schema.decodeOption(StrictJson)

const isPlace = Schema.is(Schema.Struct({ line: Schema.Int, column: Schema.Int }))

/**
 * Where a text stops being JSON. None for a text that is JSON, or is nested too deep for the parser that knows places.
 * It takes some 300 bytes for each byte of text at worst.
 */
export const locate = (text: string): Option.Option<Place> =>
  Either.match(Either.try({ try: () => parse(text), catch: (error) => error }), {
    onLeft: (error) => isPlace(error) ? Option.some({ line: error.line, column: error.column }) : Option.none(),
    // The one thing that parser lets pass: a raw control character in a string.
    onRight: () =>
      Arr.findFirst(
        tokenize(text),
        ({ loc, type }) =>
          type === "String" && /[^\u0020-\u{10ffff}]/u.test(text.slice(loc.start.offset, loc.end.offset))
      ).pipe(Option.map(({ loc }) => ({ line: loc.start.line, column: loc.start.column })))
  })

// ----------------------------------------------------------------------------
// lexemes
// ----------------------------------------------------------------------------

/** One of `{ } [ ] : ,`, or a string, number or word as written. */
export interface Lexeme extends Place {
  readonly raw: string
}

const endOfString = (text: StrictJson, start: number): number => {
  let end = start + 1
  while (text.charAt(end) !== "\"") {
    end += text.charAt(end) === "\\" ? 2 : 1
  }
  return end + 1
}

const endOfWord = (text: StrictJson, start: number): number => {
  let end = start + 1
  while (end < text.length && !",]} \t\r\n".includes(text.charAt(end))) {
    end += 1
  }
  return end
}

/** The lexemes of a text, made one at a time: a list of them can take a hundred times the text's own memory. */
export function* lexemes(text: StrictJson): Generator<Lexeme, void> {
  let line = 1
  let lineStart = 0
  let start = 0
  while (start < text.length) {
    const char = text.charAt(start)
    if (" \t\r\n".includes(char)) {
      start += 1
      if (char === "\n") {
        line += 1
        lineStart = start
      }
    } else {
      const end = "{}[]:,".includes(char)
        ? start + 1
        : char === "\""
        ? endOfString(text, start)
        : endOfWord(text, start)
      yield { raw: text.slice(start, end), line, column: start - lineStart + 1 }
      start = end
    }
  }
}

/** An integer as written: no fraction, no exponent, no minus zero. Two of them are equal if their texts are. */
export const isInteger = (raw: string): boolean => /^(?:0|-?[1-9][0-9]*)$/.test(raw)

const unescape = Schema.decodeSync(Schema.parseJson(Schema.String))

/** What a string lexeme stands for. */
export const stringOf = (raw: string): string => raw.includes("\\") ? unescape(raw) : raw.slice(1, -1)

const quote = Schema.encodeSync(Schema.parseJson(Schema.String))

// JSON leaves characters raw that can drive a terminal or turn its text around.
const quoteVisibly = (name: string): string =>
  quote(name).replace(/\p{C}/gu, (char) => `\\u{${char.codePointAt(0)?.toString(16)}}`)

/** A path as people write it, such as `verification.expected.north` or `expected["New York"]`. */
export const showPath = (path: ReadonlyArray<PropertyKey>): string =>
  path.reduce<string>((shown, part) => {
    const name = String(part)
    return typeof part === "number" ? `${shown}[${name}]` : !/^[\p{L}\p{N}_-]+$/u.test(name)
      ? `${shown}[${quoteVisibly(name)}]`
      : shown === ""
      ? name
      : `${shown}.${name}`
  }, "")

// ----------------------------------------------------------------------------
// trees
// ----------------------------------------------------------------------------

/** A number that isn't an integer as written. */
export class OtherNumber extends Data.TaggedClass("OtherNumber")<{ readonly raw: string }> {}

/** An object without a prototype: `__proto__` is a key like any other. */
export interface JsonObject {
  readonly [key: string]: Json
}

export type Json = null | boolean | string | bigint | OtherNumber | ReadonlyArray<Json> | JsonObject

export interface JsonDocument {
  readonly root: Json
  /** Keys that an object already had. The tree holds their first values. */
  readonly duplicates: ReadonlyArray<{ readonly path: ReadonlyArray<PropertyKey>; readonly place: Place }>
}

export type JsonFault =
  | { readonly _tag: "Syntax"; readonly place: Option.Option<Place> }
  | { readonly _tag: "Depth"; readonly place: Place }

/** How deep a tree may be nested. */
export const maxDepth = 64

type Frame =
  | { readonly _tag: "Array"; readonly value: Array<Json> }
  | { readonly _tag: "Object"; readonly value: Record<string, Json>; key: string | undefined }

const scalar = (raw: string): Json =>
  raw.startsWith("\"")
    ? stringOf(raw)
    : raw === "null"
    ? null
    : raw === "true" || raw === "false"
    ? raw === "true"
    : isInteger(raw)
    ? BigInt(raw)
    : new OtherNumber({ raw })

const frame = (raw: "{" | "["): Frame =>
  raw === "[" ? { _tag: "Array", value: [] } : { _tag: "Object", value: Object.create(null), key: undefined }

const tree = (text: StrictJson): Either.Either<JsonDocument, JsonFault> => {
  const stack: Array<Frame> = []
  const duplicates: Array<JsonDocument["duplicates"][number]> = []
  let root: Json = null
  const put = (value: Json): void => {
    const parent = stack.at(-1)
    if (parent === undefined) {
      root = value
    } else if (parent._tag === "Array") {
      parent.value.push(value)
    } else if (parent.key !== undefined) {
      if (!Object.hasOwn(parent.value, parent.key)) {
        parent.value[parent.key] = value
      }
      parent.key = undefined
    }
  }
  for (const { raw, ...place } of lexemes(text)) {
    const parent = stack.at(-1)
    if (raw === "{" || raw === "[") {
      if (stack.length === maxDepth) {
        return Either.left({ _tag: "Depth", place })
      }
      stack.push(frame(raw))
    } else if (raw === "}" || raw === "]") {
      stack.pop()
      if (parent !== undefined) {
        put(parent.value)
      }
    } else if (raw === ":" || raw === ",") {
      continue
    } else if (parent?._tag === "Object" && parent.key === undefined) {
      parent.key = stringOf(raw)
      if (Object.hasOwn(parent.value, parent.key)) {
        duplicates.push({
          path: stack.map((each) => each._tag === "Array" ? each.value.length : each.key ?? ""),
          place
        })
      }
    } else {
      put(scalar(raw))
    }
  }
  return Either.right({ root, duplicates })
}

/** Reads a text into a tree. */
export const read = (text: string): Either.Either<JsonDocument, JsonFault> =>
  Option.match(strictly(text), {
    onNone: () => Either.left({ _tag: "Syntax", place: locate(text) }),
    onSome: tree
  })

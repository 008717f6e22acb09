/** JSON texts as people and programs write them, and texts that are nearly JSON. */
import { FastCheck as fc } from "effect"

export const space = fc.string({ unit: fc.constantFrom(" ", "\t", "\n", "\r"), maxLength: 3 })

const unusualKeys = [
  "",
  "a",
  "b",
  "__proto__",
  "constructor",
  "toString",
  "\u00e9",
  "e\u0301",
  "\u{1f600}",
  "0",
  "\"\\/"
]

export const key = fc.oneof(fc.constantFrom(...unusualKeys), fc.string({ unit: "binary", maxLength: 6 }))

const escaped = (text: string): string =>
  `"${
    Array.from({ length: text.length }, (_, index) => `\\u${text.charCodeAt(index).toString(16).padStart(4, "0")}`)
      .join("")
  }"`

/** Either of the two ends of the ways to write the same string. */
export const written = (text: string): fc.Arbitrary<string> => fc.constantFrom(JSON.stringify(text), escaped(text))

const digits = fc.string({ unit: fc.constantFrom(..."0123456789"), minLength: 1, maxLength: 30 })

const number = fc.oneof(
  fc.bigInt().map(String),
  fc.constantFrom("0", "-0", "1.5e1", "15.0", "1E400", "-2e-3"),
  digits.map((text) => `1${text}.${text}`)
)

const between = (open: string, close: string, parts: fc.Arbitrary<ReadonlyArray<string>>): fc.Arbitrary<string> =>
  fc.tuple(parts, space, space).map(([each, before, after]) =>
    `${open}${before}${each.join(`${before},${after}`)}${after}${close}`
  )

const grammar = fc.letrec<{ value: string; array: string; object: string }>((tie) => ({
  value: fc.oneof(
    { maxDepth: 4, withCrossShrink: true },
    number,
    fc.constantFrom("true", "false", "null"),
    key.chain(written),
    tie("array"),
    tie("object")
  ),
  array: between("[", "]", fc.array(tie("value"), { maxLength: 4 })),
  object: between(
    "{",
    "}",
    fc.array(
      fc.tuple(key.chain(written), space, tie("value")).map(([name, gap, value]) => `${name}${gap}:${gap}${value}`),
      { maxLength: 4 }
    )
  )
}))

/** Valid JSON of any kind; keys may occur twice. */
export const json: fc.Arbitrary<string> = fc.tuple(space, grammar.value, space).map((parts) => parts.join(""))

/** One edit of a text: something put in place of a short piece of it. */
export const edited = (text: fc.Arbitrary<string>): fc.Arbitrary<string> =>
  fc.tuple(
    text,
    fc.nat(),
    fc.nat(3),
    fc.oneof(
      fc.constantFrom(
        ..."{}[]:,\"\\0-.eE",
        "NaN",
        "Infinity",
        "//",
        "/**/",
        "'",
        "\u0000",
        "\u001f",
        "\u00a0",
        "\ufeff"
      ),
      fc.string({ unit: "binary", maxLength: 2 })
    )
  ).map(([whole, at, length, piece]) => {
    const start = at % (whole.length + 1)
    return whole.slice(0, start) + piece + whole.slice(start + length)
  })

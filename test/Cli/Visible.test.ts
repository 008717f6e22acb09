import { assert, describe, it } from "@effect/vitest"
import { FastCheck as fc } from "effect"
import { stripVTControlCharacters } from "node:util"
import { visible } from "../../src/Cli/Visible.ts"

// Said in Unicode's own words, where the code lists characters: neither is made from the other.
const dangerous = /[\p{Cc}\p{Bidi_Control}\p{Zl}\p{Zp}]/u

const nasty = fc.constantFrom(
  ..."\u0000\u0007\b\t\n\v\f\r\u001b\u007f\u0080\u009b\u009d\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069",
  "\u001b[31m",
  "\u001b]0;title\u0007",
  "\ud800"
)

const anything = fc.string({ unit: fc.oneof(fc.fullUnicode(), nasty, fc.char()), maxLength: 60 })

describe("Visible", () => {
  it.prop("leaves no control or direction character but line feed and tab", [anything], ([text]) => {
    const shown = visible(text).replaceAll(/[\n\t]/g, "")
    return !dangerous.test(shown) && stripVTControlCharacters(shown) === shown
  }, { fastCheck: { numRuns: 3000 } })

  it.prop("leaves everything else as it is", [anything], ([text]) => {
    const harmless = [...text].filter((character) => !dangerous.test(character)).join("")
    return visible(harmless) === harmless
  })

  it.prop("does nothing to what is visible already", [anything], ([text]) => visible(visible(text)) === visible(text))

  it("shows which character there was", () => {
    assert.strictEqual(
      visible("a\u001b[31mb\u0007\rc\u009b\u202ed\u2028\te\nf"),
      "a\\x1b[31mb\\x07\\rc\\x9b\\u202ed\\u2028\te\nf"
    )
  })
})

/**
 * Bytes in JSON, and numbers in front of them.
 */
import * as ParseResult from "effect/ParseResult"
import * as Schema from "effect/Schema"

const canonical = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?$/

/** Standard base64, with or without padding. The platform's own: it is the innermost loop of a command's output. */
export const Base64 = Schema.transformOrFail(Schema.String, Schema.Uint8ArrayFromSelf, {
  strict: true,
  decode: (text, _, ast) =>
    canonical.test(text)
      ? ParseResult.succeed(new Uint8Array(Buffer.from(text, "base64")))
      : ParseResult.fail(new ParseResult.Type(ast, text, "not base64")),
  encode: (bytes) =>
    ParseResult.succeed(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64"))
})

export const utf8 = (text: string): Uint8Array => new TextEncoder().encode(text)

export const concat = (parts: ReadonlyArray<Uint8Array>): Uint8Array => {
  const whole = new Uint8Array(parts.reduce((length, part) => length + part.length, 0))
  let offset = 0
  for (const part of parts) {
    whole.set(part, offset)
    offset += part.length
  }
  return whole
}

/** Four bytes, the highest first. */
export const uint32 = (value: number): Uint8Array => {
  const bytes = new Uint8Array(4)
  new DataView(bytes.buffer).setUint32(0, value)
  return bytes
}

export const readUint32 = (bytes: Uint8Array, offset: number): number =>
  new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength).getUint32(offset)

/** Where a pattern begins, or -1. */
export const indexOf = (bytes: Uint8Array, pattern: Uint8Array): number =>
  Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).indexOf(pattern)

/**
 * Bytes in JSON, and numbers in front of them.
 */
import * as Effect from "effect/Effect"
import * as ParseResult from "effect/ParseResult"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"

// One letter at a time: a repeated group takes stack for each, and a request may have millions.
const isBase64 = (text: string): boolean => {
  const end = text.indexOf("=")
  const letters = end < 0 ? text.length : end
  const padding = text.slice(letters)
  return !/[^A-Za-z0-9+/=]/.test(text) && letters % 4 !== 1
    && (padding === "" || padding === (letters % 4 === 2 ? "==" : letters % 4 === 3 ? "=" : ""))
}

/** Standard base64, with or without padding. The platform's own: it is the innermost loop of a command's output. */
export const Base64 = Schema.transformOrFail(Schema.String, Schema.Uint8ArrayFromSelf, {
  strict: true,
  decode: (text, _, ast) =>
    isBase64(text)
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

/** Cuts bytes into lines of text. It fails at a longer line, of which no more than that is held. */
export const lines = <E, E2>(
  bytes: Stream.Stream<Uint8Array, E>,
  options: { readonly longest: number; readonly tooLong: E2 }
): Stream.Stream<string, E | E2> =>
  Stream.suspend(() => {
    const held = new Uint8Array(options.longest)
    let length = 0
    const hold = (part: Uint8Array): boolean => {
      if (length + part.length > held.length) {
        return false
      }
      held.set(part, length)
      length += part.length
      return true
    }
    return Stream.mapConcatEffect(bytes, (part) =>
      Effect.suspend((): Effect.Effect<ReadonlyArray<string>, E2> => {
        const found: Array<string> = []
        let from = 0
        for (let at = part.indexOf(10); at >= 0; at = part.indexOf(10, from)) {
          if (!hold(part.subarray(from, at))) {
            return Effect.fail(options.tooLong)
          }
          found.push(new TextDecoder().decode(held.subarray(0, length)))
          length = 0
          from = at + 1
        }
        return hold(part.subarray(from)) ? Effect.succeed(found) : Effect.fail(options.tooLong)
      }))
  })

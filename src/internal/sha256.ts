import * as Effect from "effect/Effect"
import * as Encoding from "effect/Encoding"

/** SHA-256 in hexadecimal. Web Crypto, so that rooms without Node modules can use it. */
export const sha256 = (bytes: Uint8Array): Effect.Effect<string> =>
  // A copy: digest reads it later, and wants memory that isn't shared.
  Effect.map(
    Effect.promise(() => globalThis.crypto.subtle.digest("SHA-256", new Uint8Array(bytes))),
    (digest) => Encoding.encodeHex(new Uint8Array(digest))
  )

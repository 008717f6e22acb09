/**
 * Ids, access tokens, and comparing what a caller knows with what it should know.
 */
import * as Effect from "effect/Effect"
import * as Encoding from "effect/Encoding"
import * as Redacted from "effect/Redacted"
import { utf8 } from "./Bytes.ts"

const letters = "0123456789abcdefghijklmnopqrstuvwxyz"

const randomBytes = (length: number): Effect.Effect<Uint8Array> =>
  Effect.sync(() => globalThis.crypto.getRandomValues(new Uint8Array(length)))

const idLength = 20

// The highest multiple of 36 in a byte is 252: what is not below it would favour the first four letters.
const fair = 256 - 256 % letters.length

/** As E2B writes them: an `i` and 20 letters or digits. */
export const sandboxId: Effect.Effect<string> = randomBytes(2 * idLength).pipe(
  Effect.map((bytes) => Array.from(bytes).filter((byte) => byte < fair).slice(0, idLength)),
  Effect.repeat({ until: ({ length }) => length === idLength }),
  Effect.map((bytes) => `i${bytes.map((byte) => letters[byte % letters.length] ?? "").join("")}`)
)

export const accessToken: Effect.Effect<Redacted.Redacted> = Effect.map(
  randomBytes(32),
  (bytes) => Redacted.make(Encoding.encodeHex(bytes))
)

/** A key of the form that every version of the SDK takes. */
export const apiKey: Effect.Effect<Redacted.Redacted> = Effect.map(
  randomBytes(20),
  (bytes) => Redacted.make(`e2b_${Encoding.encodeHex(bytes)}`)
)

const digest = (text: string): Effect.Effect<Uint8Array> =>
  Effect.map(
    Effect.promise(() => globalThis.crypto.subtle.digest("SHA-256", new Uint8Array(utf8(text)))),
    (bytes) => new Uint8Array(bytes)
  )

/** Whether they are the same, in a time that doesn't depend on where they differ. */
export const same = (given: string, secret: string): Effect.Effect<boolean> =>
  Effect.map(Effect.all([digest(given), digest(secret)]), ([a, b]) => {
    let difference = 0
    for (let index = 0; index < a.length; index++) {
      difference |= (a[index] ?? 0) ^ (b[index] ?? 0)
    }
    return difference === 0
  })

/** Whether it is one of them. All are looked at. */
export const isOneOf = (given: string, secrets: ReadonlyArray<Redacted.Redacted>): Effect.Effect<boolean> =>
  Effect.map(
    Effect.forEach(secrets, (secret) => same(given, Redacted.value(secret))),
    (found) => found.includes(true)
  )

export interface Signed {
  readonly path: string
  readonly operation: "read" | "write"
  /** Empty for the default user. */
  readonly username: string
  /** Seconds since 1970, as written. */
  readonly expiration: string | undefined
}

/** What signs a file's address. */
export const signature = (signed: Signed, token: Redacted.Redacted): Effect.Effect<string> =>
  Effect.map(
    digest(
      [
        signed.path,
        signed.operation,
        signed.username,
        Redacted.value(token),
        ...(signed.expiration === undefined ? [] : [signed.expiration])
      ].join(":")
    ),
    (bytes) => `v1_${Encoding.encodeBase64(bytes).replace(/=+$/, "")}`
  )

/**
 * Who may talk to the server.
 *
 * With a token: whoever has it, as a bearer token or as the password of basic authentication, which a URL can carry and a
 * browser asks for. Without one: programs on this machine. Web pages are told apart from them, because a browser lets any
 * page connect to a loopback address: the page's origin has to be the server itself, and the name the server is called by has
 * to be one of this machine's own.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Encoding from "effect/Encoding"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import { sha256 } from "../internal/sha256.ts"

/**
 * The status to refuse a request with; none for one that is welcome.
 *
 * @since 0.1.0
 * @category models
 */
export type Guard = (
  headers: Readonly<Record<string, string | undefined>>
) => Effect.Effect<Option.Option<401 | 403>>

/**
 * Whether an address is this machine's alone.
 *
 * @since 0.1.0
 * @category predicates
 */
export const isLoopback = (host: string): boolean =>
  host === "localhost" || host === "::1" || host === "[::1]" || /^127(?:\.\d{1,3}){3}$/.test(host)

/**
 * Whether a text tells anybody apart: a blank one is no token, whoever gives it.
 *
 * @since 0.1.0
 * @category predicates
 */
export const isToken = (text: string): boolean => text.trim() !== ""

const encoder = new TextEncoder()

const given = (authorization: string): Option.Option<string> => {
  const [, scheme = "", credentials = ""] = /^(\S+) +(\S+)$/.exec(authorization) ?? []
  switch (scheme.toLowerCase()) {
    case "bearer":
      return Option.some(credentials)
    case "basic":
      return Either.getRight(Encoding.decodeBase64String(credentials)).pipe(
        Option.map((pair) => pair.slice(pair.indexOf(":") + 1))
      )
    default:
      return Option.none()
  }
}

const hostname = (host: string): string => host.replace(/:\d+$/, "").toLowerCase()

const isOwnOrigin = (origin: string, host: string): boolean => /^https?:\/\/(.*)$/.exec(origin)?.[1] === host

/**
 * @since 0.1.0
 * @category constructors
 */
export const make = (options: {
  readonly host: string
  readonly token: Option.Option<Redacted.Redacted>
}): Effect.Effect<Guard> =>
  Effect.gen(function*() {
    const digest = (token: string) => sha256(encoder.encode(token))
    const expected = yield* Effect.transposeMapOption(options.token, (token) => digest(Redacted.value(token)))
    const isWelcome = (authorization: string | undefined): Effect.Effect<boolean> =>
      Option.match(expected, {
        onNone: () => Effect.succeed(true),
        onSome: (expected) =>
          Option.match(Option.filter(Option.flatMap(Option.fromNullable(authorization), given), isToken), {
            onNone: () => Effect.succeed(false),
            // Digests: how long it takes to compare them says nothing about the token.
            onSome: (token) => Effect.map(digest(token), (actual) => actual === expected)
          })
      })
    return ({ authorization, host = "", origin }) => {
      const isNamed = Option.isSome(options.token) || isLoopback(hostname(host)) || hostname(host) === options.host
      return isNamed && (origin === undefined || isOwnOrigin(origin, host))
        ? Effect.map(isWelcome(authorization), (welcome) => welcome ? Option.none() : Option.some(401 as const))
        : Effect.succeedSome(403 as const)
    }
  })

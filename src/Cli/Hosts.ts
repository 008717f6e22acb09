/**
 * The addresses of servers, for people and for their clients.
 */
import * as Effect from "effect/Effect"
import * as dns from "node:dns/promises"

const loopbackOf: Readonly<Record<string, string>> = { "0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]" }

/** Whether a server there listens on all addresses of this machine. */
export const isWildcard = (host: string): boolean => loopbackOf[host] !== undefined

/** What clients on this machine are given: nobody can connect to "all addresses". */
export const reachable = (host: string, url: string): string => {
  const loopback = loopbackOf[host]
  if (loopback === undefined) {
    return url
  }
  const local = new URL(url)
  local.hostname = loopback
  return local.origin
}

/** For clients elsewhere, where there may be any. */
export const elsewhere = (host: string, url: string): ReadonlyArray<string> =>
  isWildcard(host)
    ? [`on other machines they need this machine's name or address in place of ${new URL(url).hostname}`]
    : []

/** Whether a name or an address stands for anything at all. */
export const isKnown = (host: string): Effect.Effect<boolean> =>
  Effect.isSuccess(Effect.tryPromise(() => dns.lookup(host.replace(/^\[(.*)\]$/, "$1"))))

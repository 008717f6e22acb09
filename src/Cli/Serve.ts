/**
 * `episode serve e2b`: sandboxes of this machine for every program that speaks E2B.
 */
import * as Command from "@effect/cli/Command"
import * as Options from "@effect/cli/Options"
import * as Arr from "effect/Array"
import * as Config from "effect/Config"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Predicate from "effect/Predicate"
import * as Redacted from "effect/Redacted"
import * as Episodes from "./Episodes.ts"
import { NotReady, Usage } from "./Exit.ts"
import * as Hosts from "./Hosts.ts"
import { openenv } from "./ServeOpenEnv.ts"
import { terminus } from "./ServeTerminus.ts"

const flags = {
  port: Episodes.port(0).pipe(Options.withDescription("where to listen; a free port unless given")),
  host: Options.text("host").pipe(
    Options.withPseudoName("address"),
    Options.repeated,
    Options.withDescription(
      "an address to listen on, 127.0.0.1 unless given; several are for clients of many sandboxes"
    )
  )
}

// What a server of ours says of its own, in place of the platform's words.
const failureOf = (cause: unknown, host: string, port: number) =>
  Effect.flatMap(Effect.promise(() => import("../OpenEnv/Transport.ts")), ({ listenFailed }) => {
    const failed = Predicate.hasProperty(cause, "address") ? String(cause.address) : host
    const code = Predicate.hasProperty(cause, "code") ? cause.code : undefined
    const tried = Predicate.hasProperty(cause, "port") && Number.isInteger(cause.port) ? Number(cause.port) : port
    return new NotReady({ message: listenFailed(failed, tried, code).message })
  })

const isLoopback = (host: string): boolean => host === "localhost" || host === "::1" || host.startsWith("127.")

// Loaded when it is needed.
const modules = Effect.promise(() => Promise.all([import("../E2bServer.ts"), import("../Sandbox/Local.ts")]))

/** What a client needs, in the form that a shell and `.env` files read. */
const lines = (
  apiKey: Redacted.Redacted,
  urls: ReadonlyArray<string>,
  isKeyGiven: boolean
): ReadonlyArray<string> => [
  isKeyGiven ? "# E2B_API_KEY: the value of EPISODE_E2B_SERVER_KEY" : `E2B_API_KEY=${Redacted.value(apiKey)}`,
  `E2B_API_URL=${urls[0]}`,
  `E2B_SANDBOX_URL=${urls[0]}`,
  ...urls.slice(1).map((url) => `# E2B_SANDBOX_URL=${url}`)
]

const e2b = Command.make("e2b", flags, ({ host, port }) =>
  Effect.gen(function*() {
    const [{ config, E2bServer, layer }, Local] = yield* modules
    const { apiKeys } = yield* config
    const local = yield* Local.config
    const hosts = Arr.isNonEmptyReadonlyArray(host) ? host : undefined
    const server = layer({ port, hosts, apiKeys }).pipe(
      Layer.provide(Local.layer({ ...local, root: "writable" })),
      Layer.provide(Local.layerMachine(local))
    )
    return yield* Effect.provide(
      Effect.gen(function*() {
        const address = yield* E2bServer
        const urls = address.urls.map((url, index) => Hosts.reachable(host[index] ?? "", url))
        for (const line of lines(address.apiKey, urls, apiKeys !== undefined)) {
          yield* Console.log(line)
        }
        const other = yield* Config.option(Config.nonEmptyString("E2B_API_KEY"))
        if (Option.exists(other, (key) => key !== Redacted.value(address.apiKey))) {
          yield* Console.error(
            "the E2B_API_KEY that is set is another one: this server takes its own alone, which EPISODE_E2B_SERVER_KEY sets"
          )
        }
        for (const line of host.flatMap((host, index) => Hosts.elsewhere(host, urls[index] ?? ""))) {
          yield* Console.error(line)
        }
        const open = host.filter((address) => !isLoopback(address))
        if (open.length > 0) {
          yield* Console.error(
            `other machines may reach ${open.map((host) => Hosts.isWildcard(host) ? "this one" : host).join(" and ")}: `
              + "whoever has the key can run programs here"
          )
        }
        yield* Console.error(
          local.policyNetwork === "host"
            ? "sandboxes have this machine's network"
            : "sandboxes have no network; EPISODE_LOCAL_POLICY_NETWORK=host gives them this machine's"
        )
        yield* Console.error("serving until it is interrupted")
        return yield* Effect.never
      }),
      server
    ).pipe(
      Effect.catchTags({
        ServeError: ({ cause }) => failureOf(cause, host.join(" or "), port),
        InvalidOptions: ({ message }) => new Usage({ message })
      })
    )
  })).pipe(Command.withDescription("Serve local sandboxes to E2B's SDKs, until it is interrupted"))

export const serve = Command.make("serve").pipe(
  Command.withDescription("Offer sandboxes to other programs"),
  Command.withSubcommands([e2b, openenv, terminus])
)

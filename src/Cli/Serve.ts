/**
 * `episode serve e2b`: sandboxes of this machine for every program that speaks E2B.
 */
import * as Command from "@effect/cli/Command"
import * as Options from "@effect/cli/Options"
import * as Arr from "effect/Array"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as Schema from "effect/Schema"
import type * as E2bServer from "../E2bServer.ts"
import { NotReady } from "./Exit.ts"
import { openenv } from "./ServeOpenEnv.ts"
import { terminus } from "./ServeTerminus.ts"

const flags = {
  port: Options.integer("port").pipe(
    Options.withSchema(Schema.Int.pipe(Schema.between(0, 65535))),
    Options.withDefault(0),
    Options.withDescription("where to listen; a free port unless given")
  ),
  host: Options.text("host").pipe(
    Options.repeated,
    Options.withDescription(
      "an address to listen on, 127.0.0.1 unless given; several are for clients of many sandboxes"
    )
  )
}

const isLoopback = (host: string): boolean => host === "localhost" || host === "::1" || host.startsWith("127.")

// Loaded when it is needed.
const modules = Effect.promise(() => Promise.all([import("../E2bServer.ts"), import("../Sandbox/Local.ts")]))

/** What a client needs, in the form that a shell and `.env` files read. */
const lines = ({ apiKey, urls }: E2bServer.Address, isKeyGiven: boolean): ReadonlyArray<string> => [
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
        for (const line of lines(address, apiKeys !== undefined)) {
          yield* Console.log(line)
        }
        const open = host.filter((address) => !isLoopback(address))
        if (open.length > 0) {
          yield* Console.error(
            `other machines may reach ${open.join(" and ")}: whoever has the key can run programs here`
          )
        }
        yield* Console.error("serving until it is interrupted")
        return yield* Effect.never
      }),
      server
    ).pipe(
      Effect.catchTag("ServeError", ({ cause }) =>
        new NotReady({
          message: `the server can't listen on port ${port}: ${cause instanceof Error ? cause.message : String(cause)}`
        }))
    )
  })).pipe(Command.withDescription("Serve local sandboxes to E2B's SDKs, until it is interrupted"))

export const serve = Command.make("serve").pipe(
  Command.withDescription("Offer sandboxes to other programs"),
  Command.withSubcommands([e2b, openenv, terminus])
)

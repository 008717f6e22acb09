/** The real SDK against our own server over local sandboxes, straight or through the proxy. */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as Redacted from "effect/Redacted"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import * as E2bServer from "../../../src/E2bServer.ts"
import { SandboxProvider } from "../../../src/Sandbox.ts"
import * as E2b from "../../../src/Sandbox/E2b.ts"
import * as Ledger from "../../../src/Sandbox/Ledger.ts"
import * as Local from "../../../src/Sandbox/Local.ts"
import type { Call, Proxy } from "./faultyProxy.ts"
import * as FaultyProxy from "./faultyProxy.ts"

/** A server of its own, over sandboxes in a directory of its own. */
export const server = Layer.unwrapScoped(
  Effect.map(
    Effect.acquireRelease(
      Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "episode-e2b-test-"))),
      (made) => Effect.sync(() => fs.rmSync(made, { recursive: true, force: true }))
    ),
    (made) => {
      const directory = path.join(made, "run")
      // The server's own sandboxes are made of other layers than those of its clients.
      return Layer.fresh(E2bServer.layer()).pipe(
        Layer.provide(Local.layer({ directory, root: "writable" })),
        Layer.provide(Local.layerMachine({ directory })),
        Layer.provide(Ledger.layerMemory)
      )
    }
  )
)

/** Where the provider is pointed at, and the server behind it. */
export class Wire extends Context.Tag("test/E2b/Wire")<Wire, {
  readonly proxy: Proxy
  readonly apiKey: Redacted.Redacted
  /** The server without the proxy. */
  readonly direct: string
}>() {}

export const wire = (latency?: (call: Call) => number): Layer.Layer<Wire, unknown> =>
  Layer.scoped(
    Wire,
    Effect.gen(function*() {
      const { apiKey, urls } = yield* E2bServer.E2bServer
      const proxy = yield* FaultyProxy.make({ target: urls[0], ...(latency === undefined ? {} : { latency }) })
      return { proxy, apiKey, direct: urls[0] }
    })
  ).pipe(Layer.provide(server))

const at = (url: string, apiKey: Redacted.Redacted) => E2b.layer({ apiKey, apiUrl: url, sandboxUrl: url })

/** The provider through the proxy. */
export const provider: Layer.Layer<SandboxProvider, unknown, Wire> = Layer.unwrapEffect(
  Effect.map(Wire, ({ apiKey, proxy }) => at(proxy.url, apiKey))
)

/** The provider without it, to see what is really there. */
export const truth = Effect.flatMap(
  Wire,
  ({ apiKey, direct }) => Effect.map(Layer.build(at(direct, apiKey)), Context.get(SandboxProvider))
)

/** The provider straight at the server. */
export const straight: Layer.Layer<SandboxProvider, unknown> = Layer.unwrapEffect(
  Effect.map(E2bServer.E2bServer, ({ apiKey, urls }) => at(urls[0], apiKey))
).pipe(Layer.provide(server))

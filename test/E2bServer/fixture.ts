/**
 * A server over local sandboxes on a free port, and the real SDK bound to it.
 */
import { E2B, type SandboxOpts } from "e2b"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import { randomUUID } from "node:crypto"
import * as fs from "node:fs"
import * as os from "node:os"
import * as path from "node:path"
import * as E2bServer from "../../src/E2bServer.ts"
import * as Ledger from "../../src/Sandbox/Ledger.ts"
import * as Local from "../../src/Sandbox/Local.ts"

export type Sdk = InstanceType<typeof E2B>["Sandbox"]
export type Sandbox = Awaited<ReturnType<Sdk["create"]>>

/** The SDK as a client of the server has it. */
export class Client extends Context.Tag("test/E2bServer/Client")<Client, {
  readonly Sandbox: Sdk
  readonly url: string
  /** One for each host. */
  readonly urls: ReadonlyArray<string>
  readonly apiKey: string
  /** Where the provider writes its sandboxes down. */
  readonly directory: string
}>() {}

const scratch = Effect.acquireRelease(
  Effect.sync(() => fs.mkdtempSync(path.join(os.tmpdir(), "episode-e2b-server-"))),
  (directory) => Effect.sync(() => fs.rmSync(directory, { recursive: true, force: true }))
)

/** A server, with the ledger that it reports to; `narrow`: over a provider that offers no more than it must. */
export const layerWith = (
  { narrow = false, ...options }: E2bServer.Options & { readonly narrow?: boolean } = {}
): Layer.Layer<Client | Ledger.Ledger> =>
  Layer.unwrapScoped(Effect.map(scratch, (parent) => {
    const directory = path.join(parent, "runtime")
    const client = Layer.effect(
      Client,
      Effect.map(E2bServer.E2bServer, ({ apiKey, urls }) => {
        const key = Redacted.value(apiKey)
        const [url] = urls
        const { Sandbox } = new E2B({ apiKey: key, apiUrl: url, sandboxUrl: url })
        return { Sandbox, url, urls, apiKey: key, directory }
      })
    )
    return client.pipe(
      Layer.provide(E2bServer.layer(options)),
      Layer.provide(Local.layer({ directory, memoryMiB: 256, root: "writable" })),
      Layer.provide(narrow ? Layer.empty : Local.layerMachine({ directory })),
      Layer.provideMerge(Ledger.layerMemory),
      Layer.orDie
    )
  }))

export const layer = layerWith()

/** Something asked of the SDK. */
export const ask = <A>(request: () => Promise<A>): Effect.Effect<A> => Effect.promise(request)

/** What a request of the SDK fails with. */
export const failure = (request: () => Promise<unknown>): Effect.Effect<Error> =>
  Effect.flatMap(
    Effect.promise(() => request().then(() => undefined, (error: unknown) => error)),
    (error) => error instanceof Error ? Effect.succeed(error) : Effect.dieMessage(`it didn't fail: ${String(error)}`)
  )

/** A sandbox that is killed with the scope. */
export const sandbox = (options: SandboxOpts = {}) =>
  Effect.flatMap(Client, ({ Sandbox }) =>
    Effect.acquireRelease(
      ask(() => Sandbox.create({ timeoutMs: 60_000, metadata: { test: randomUUID() }, ...options })),
      (sandbox) => Effect.promise(() => sandbox.kill())
    ))

/** One test's work in a sandbox of its own. */
export const within = <A>(
  work: (sandbox: Sandbox) => Promise<A>,
  options?: SandboxOpts
): Effect.Effect<A, never, Client> =>
  Effect.scoped(Effect.flatMap(sandbox(options), (sandbox) => ask(() => work(sandbox))))

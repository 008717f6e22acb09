import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import { vi } from "vitest"
import * as E2bServer from "../../src/E2bServer.ts"
import * as Secrets from "../../src/E2bServer/Secrets.ts"
import * as Ledger from "../../src/Sandbox/Ledger.ts"
import * as Simulated from "../../src/Sandbox/Simulated.ts"

const built = (options: E2bServer.Options) =>
  Layer.build(E2bServer.layer(options)).pipe(
    Effect.provide(Layer.merge(Simulated.layer(), Ledger.layerMemory)),
    Effect.scoped
  )

// What a program without types could give.
const untyped = (options: Readonly<Record<string, unknown>>) => options as E2bServer.Options

describe("E2bServer: options", () => {
  it.effect("those that can't be are refused when the layer is built", () =>
    Effect.gen(function*() {
      for (
        const [field, values] of Object.entries({
          port: [-1, 65_536, 1.5, Number.NaN, "80"],
          hosts: [[], "127.0.0.1", [1]],
          apiKeys: [[], [Redacted.make(" ")], ["e2b_key"]],
          templates: ["base", [1]],
          maxSandboxes: [Number.NaN, Infinity, -1, 0, 1.5, "5"],
          maxLifetime: [Number.NaN, 0, -1, "nonsense", Infinity, "25 days", {}]
        })
      ) {
        for (const value of values) {
          const error = yield* Effect.flip(built(untyped({ [field]: value })))
          assert.instanceOf(error, E2bServer.InvalidOptions)
          assert.deepStrictEqual(error.issues.map(({ field }) => field), [field])
        }
      }
      const error = yield* Effect.flip(built({ maxSandboxes: 0, maxLifetime: "25 days" }))
      assert.strictEqual(
        error._tag === "InvalidOptions" ? error.message : undefined,
        "a server can't have these options: maxSandboxes is a whole number of at least 1; "
          + "maxLifetime is a time longer than zero and of at most 24 days"
      )
    }))

  it.effect("the others are taken", () =>
    Effect.zipRight(
      built({ maxSandboxes: 1, maxLifetime: "24 days", port: 0, apiKeys: [Redacted.make("e2b_key")] }),
      built(untyped({ maxSandboxes: undefined, maxLifetime: undefined, hosts: undefined }))
    ))
})

describe("E2bServer: ids", () => {
  it.effect("a byte that would favour a letter is drawn again", () =>
    Effect.gen(function*() {
      let drawn = 0
      const spy = vi.spyOn(globalThis.crypto, "getRandomValues").mockImplementation((array) => {
        if (array instanceof Uint8Array) {
          drawn += 1
          array.fill(drawn < 3 ? 251 + drawn : 35)
        }
        return array
      })
      const id = yield* Effect.ensuring(Secrets.sandboxId, Effect.sync(() => spy.mockRestore()))
      assert.deepStrictEqual([id, drawn], [`i${"z".repeat(20)}`, 3])
    }))
})

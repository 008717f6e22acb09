import { assert, describe, it } from "@effect/vitest"
import { Effect, Option, Redacted } from "effect"
import * as Guards from "../../src/OpenEnv/Guard.ts"

describe("a blank credential", () => {
  it.effect("opens nothing, not even where it is the token", () =>
    Effect.gen(function*() {
      const headers = { host: "127.0.0.1", authorization: `Basic ${Buffer.from("me:").toString("base64")}` }
      for (const token of ["", " ", "secret"]) {
        const guard = yield* Guards.make({ host: "0.0.0.0", token: Option.some(Redacted.make(token)) })
        assert.strictEqual(Option.getOrUndefined(yield* guard(headers)), 401)
        const blank = { ...headers, authorization: `Basic ${Buffer.from("me: ").toString("base64")}` }
        assert.strictEqual(Option.getOrUndefined(yield* guard(blank)), 401)
      }
    }))
})

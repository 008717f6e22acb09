import { assert, describe, it } from "@effect/vitest"
import { Effect, Redacted } from "effect"
import { World } from "../../src/Sandbox/Simulated.ts"
import { http, Network, served, shipped } from "./fixture.ts"

describe("the HTTP side", () => {
  it.effect("passes what upstream's validator asks of a running server", () =>
    served(
      {},
      Effect.gen(function*() {
        const openApi = (yield* http("GET", "/openapi.json")).json() as {
          readonly info: { readonly version: string }
          readonly paths: Record<string, unknown>
        }
        assert.match(openApi.info.version, /^1\./)
        assert.includeMembers(Object.keys(openApi.paths), ["/reset", "/step", "/state"])
        assert.deepStrictEqual((yield* http("GET", "/health")).json(), { status: "healthy" })
        const metadata = (yield* http("GET", "/metadata")).json()
        assert.isString(metadata["name"])
        assert.isString(metadata["description"])
        const schemas = (yield* http("GET", "/schema")).json()
        for (const name of ["action", "observation", "state", "reset_observation"]) {
          assert.isObject(schemas[name])
        }
        const mcp = yield* http("POST", "/mcp", {})
        assert.strictEqual(mcp.status, 200)
        assert.strictEqual(mcp.json()["jsonrpc"], "2.0")
      })
    ))

  it.effect("refuses a reset and a step outside of a session, and never allocates for one", () =>
    served(
      { task: undefined },
      Effect.gen(function*() {
        const step = { action: { type: "call_tool", tool_name: "terminal", arguments: { command: "true" } } }
        for (
          const [path, body] of [["/reset", {}], ["/reset", { task: shipped, seed: 1 }], ["/reset", ""], [
            "/step",
            step
          ]] as const
        ) {
          const { json, status } = yield* http("POST", path, body)
          assert.strictEqual(status, 409)
          assert.include(json()["detail"], "/ws")
        }
        for (
          const [path, body] of [["/reset", { seed: -1 }], ["/reset", "{"], ["/step", {}], ["/step", "[]"]] as const
        ) {
          const { json, status } = yield* http("POST", path, body)
          assert.strictEqual(status, 422)
          assert.isArray(json()["detail"])
        }
        assert.deepInclude((yield* http("GET", "/state")).json(), { episode_id: null, step_count: 0, status: "idle" })
        assert.deepStrictEqual(yield* (yield* World).calls, [])
      })
    ))

  it.effect("looks into no request that holds too much, and says nothing long again", () =>
    served(
      {},
      Effect.gen(function*() {
        const many = Array.from({ length: 50_000 }, () => ({}))
        for (const path of ["/reset", "/step"]) {
          for (const body of [{ seed: many }, { action: {}, request_id: "x".repeat(1_000_000) }]) {
            const { status, text } = yield* http("POST", path, body)
            assert.strictEqual(status, path === "/reset" && "action" in body ? 409 : 422)
            assert.isBelow(text.length, 2000)
          }
        }
        assert.include((yield* http("POST", "/reset", { seed: many })).text, "holds more than 50000 values")
        const request = { jsonrpc: "2.0", method: "tools/list", id: 1 }
        for (const bad of [{ ...request, params: { many } }, { ...request, id: "x".repeat(1025) }]) {
          const { text } = yield* http("POST", "/mcp", bad)
          assert.deepInclude(JSON.parse(text), { id: null })
          assert.include(text, "-32600")
          assert.isBelow(text.length, 2000)
        }
        const id = "x".repeat(1024)
        assert.strictEqual((yield* http("POST", "/mcp", { ...request, id })).json()["id"], id)
      })
    ))

  it.effect("has a page that runs its own script only", () =>
    served(
      {},
      Effect.gen(function*() {
        const { headers, status, text } = yield* http("GET", "/web")
        assert.strictEqual(status, 200)
        assert.match(
          headers.get("content-security-policy") ?? "",
          /^default-src 'none'; script-src 'sha256-[\w+/=]+'; /
        )
        assert.notMatch(text, /https?:\/\/|innerHTML|\son\w+=/)
        assert.strictEqual((yield* http("GET", "/")).headers.get("location"), "/web")
        assert.strictEqual((yield* http("GET", "/web/")).status, 200)
      })
    ))

  it.effect("has nothing else, and no other sockets", () =>
    served(
      {},
      Effect.gen(function*() {
        for (const path of ["/docs", "/etc/passwd", "/web/../ledger", "/reset"]) {
          const { status } = yield* http("GET", path)
          assert.include([404, 200], status)
          assert.strictEqual(status === 200, path === "/web/../ledger")
        }
        const network = yield* Network
        assert.strictEqual(yield* Effect.flip(network.connect("/elsewhere")), 404)
      })
    ))

  it.effect("is for those who have the token, all of it", () =>
    served(
      { host: "0.0.0.0", token: Redacted.make("open-sesame") },
      Effect.gen(function*() {
        for (const path of ["/health", "/web", "/schema", "/ledger", "/openapi.json", "/nowhere"]) {
          const refused = yield* http("GET", path)
          assert.strictEqual(refused.status, 401)
          assert.include(refused.headers.get("www-authenticate") ?? "", "Basic")
          const wrong = yield* http("GET", path, undefined, { authorization: "Bearer open" })
          assert.strictEqual(wrong.status, 401)
          const welcome = yield* http("GET", path, undefined, {
            authorization: "Bearer open-sesame",
            host: "example.org"
          })
          assert.strictEqual(welcome.status, path === "/nowhere" ? 404 : 200)
        }
      })
    ))

  it.effect("takes no request from a page of another origin", () =>
    served(
      {},
      Effect.gen(function*() {
        for (
          const origin of ["https://example.org", "null", "http://127.0.0.1:9999", "http://127.0.0.1:8010.example.org"]
        ) {
          const { status } = yield* http("POST", "/mcp", {}, { origin })
          assert.strictEqual(status, 403)
        }
        assert.strictEqual((yield* http("GET", "/health", undefined, { host: "example.org" })).status, 403)
        assert.strictEqual((yield* http("POST", "/mcp", {}, { origin: "http://127.0.0.1:8010" })).status, 200)
      })
    ))
})

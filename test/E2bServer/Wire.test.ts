import { assert, layer as withLayer } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { createHash } from "node:crypto"
import { ask, Client, layer, type Sandbox, sandbox } from "./fixture.ts"

const timeout = 30_000

const key = Effect.map(Client, ({ apiKey, url }) => ({ apiKey, url }))

const envelope = (message: unknown): Buffer => {
  const payload = Buffer.from(JSON.stringify(message))
  const head = Buffer.alloc(5)
  head.writeUInt32BE(payload.length, 1)
  return Buffer.concat([head, payload])
}

/** The messages of a reply, flags first. */
const messages = (bytes: Buffer): ReadonlyArray<readonly [flags: number, message: unknown]> => {
  const found: Array<readonly [number, unknown]> = []
  for (let at = 0; at < bytes.length;) {
    const length = bytes.readUInt32BE(at + 1)
    found.push([bytes[at] ?? -1, JSON.parse(bytes.subarray(at + 5, at + 5 + length).toString())])
    at += 5 + length
  }
  return found
}

// The token is nobody's business but the SDK's.
const tokenOf = async (sandbox: Sandbox, url: string, apiKey: string): Promise<string> => {
  const reply = await fetch(`${url}/sandboxes/${sandbox.sandboxId}`, { headers: { "x-api-key": apiKey } })
  const { envdAccessToken } = await reply.json() as { envdAccessToken: string }
  return envdAccessToken
}

const headersFor = (sandbox: Sandbox, token: string, port = "49983") => ({
  "e2b-sandbox-id": sandbox.sandboxId,
  "e2b-sandbox-port": port,
  "x-access-token": token
})

withLayer(layer, { excludeTestServices: true, timeout })("E2bServer: on the wire", (it) => {
  it.scoped("without a key every route of the control plane is the same", () =>
    Effect.gen(function*() {
      const { url } = yield* key
      const { sandboxId } = yield* sandbox()
      const replies = yield* ask(() =>
        Promise.all(
          [
            ["GET", "/v2/sandboxes"],
            ["POST", "/v2/sandboxes"],
            ["GET", `/sandboxes/${sandboxId}`],
            ["DELETE", `/sandboxes/${sandboxId}`],
            ["GET", "/sandboxes/inever"],
            ["GET", "/nowhere"],
            ["POST", "/templates"]
          ].flatMap(([method = "", path = ""]) =>
            [{}, { "x-api-key": "" }, { "x-api-key": "e2b_00" }].map(async (headers: Record<string, string>) => {
              const reply = await fetch(url + path, { method, headers })
              return [reply.status, await reply.json()]
            })
          )
        )
      )
      const first = [401, { code: 401, message: "the API key is missing or wrong" }]
      for (const reply of replies) {
        assert.deepStrictEqual(reply, first)
      }
    }), timeout)

  it.scoped("without its token a sandbox is closed", () =>
    Effect.gen(function*() {
      const { url } = yield* key
      const made = yield* sandbox()
      const other = yield* sandbox()
      const token = yield* Effect.flatMap(key, ({ apiKey, url }) => ask(() => tokenOf(other, url, apiKey)))
      for (const headers of [headersFor(made, "wrong"), headersFor(made, token), headersFor(made, "", "49999")]) {
        for (const path of ["/process.Process/List", "/files?path=/etc/passwd", "/envs", "/execute", "/nowhere"]) {
          const reply = yield* ask(() =>
            fetch(url + path, {
              method: path.startsWith("/files") ? "GET" : "POST",
              headers: { ...headers, "content-type": "application/json" },
              ...(path.startsWith("/files") ? {} : { body: "{}" })
            })
          )
          assert.strictEqual(reply.status, 401, path)
          const body: unknown = yield* ask(() => reply.json())
          assert.propertyVal(body, "code", 401)
        }
      }
    }), timeout)

  it.scoped("requests for nobody, for half a sandbox, and for a port that isn't open", () =>
    Effect.gen(function*() {
      const { apiKey, url } = yield* key
      const made = yield* sandbox()
      const token = yield* ask(() => tokenOf(made, url, apiKey))
      const unknown = yield* ask(() =>
        fetch(`${url}/health`, { headers: { "e2b-sandbox-id": "inever", "e2b-sandbox-port": "49983" } })
      )
      assert.deepStrictEqual([unknown.status, yield* ask(() => unknown.json())], [
        502,
        { code: 502, message: "The sandbox was not found", sandboxId: "inever" }
      ])
      const half = yield* ask(() => fetch(`${url}/health`, { headers: { "e2b-sandbox-id": made.sandboxId } }))
      assert.strictEqual(half.status, 400)
      const closed = yield* ask(() => fetch(url, { headers: headersFor(made, token, "8000") }))
      assert.strictEqual(closed.status, 502)
      const alive = yield* ask(() => fetch(`${url}/health`, { headers: headersFor(made, token) }))
      assert.strictEqual(alive.status, 204)
    }), timeout)

  it.scoped("malformed requests are refused, each in the way of its protocol", () =>
    Effect.gen(function*() {
      const { apiKey, url } = yield* key
      const made = yield* sandbox()
      const token = yield* ask(() => tokenOf(made, url, apiKey))
      const post = (path: string, type: string, body: string | Buffer, more: Record<string, string> = {}) =>
        ask(async () => {
          const reply = await fetch(url + path, {
            method: "POST",
            headers: { ...headersFor(made, token), "content-type": type, ...more },
            body: new Uint8Array(Buffer.from(body))
          })
          return [reply.status, Buffer.from(await reply.arrayBuffer())] as const
        })
      for (const body of ["", "{", "[]", "{\"process\":{}}", "\xff"]) {
        const [status, bytes] = yield* post(
          "/process.Process/SendSignal",
          "application/json",
          Buffer.from(body, "latin1")
        )
        assert.deepStrictEqual([status, JSON.parse(bytes.toString()).code], [400, "invalid_argument"], body)
      }
      assert.strictEqual((yield* post("/process.Process/List", "application/proto", ""))[0], 415)
      assert.strictEqual((yield* post("/process.Process/Nonesuch", "application/json", "{}"))[0], 501)
      for (const body of [Buffer.of(), Buffer.of(0, 0, 0, 0, 9), envelope({ process: {} }), envelope("x")]) {
        const [status, bytes] = yield* post("/process.Process/Start", "application/connect+json", body)
        const [[flags, message] = []] = messages(bytes)
        assert.strictEqual(status, 200)
        assert.strictEqual(flags, 2)
        assert.nestedPropertyVal(message, "error.code", "invalid_argument")
      }
      assert.strictEqual((yield* post("/files?path=x", "text/plain", "x"))[0], 415)
      assert.strictEqual((yield* post("/files", "application/octet-stream", "x"))[0], 400)
      assert.strictEqual(
        (yield* post("/files?path=x", "application/octet-stream", "no gzip", { "content-encoding": "gzip" }))[0],
        400
      )
      assert.strictEqual((yield* post("/files?path=x", "multipart/form-data; boundary=b", "--b\r\n"))[0], 400)
      const control = (path: string, body: string) =>
        ask(async () => {
          const reply = await fetch(url + path, { method: "POST", headers: { "x-api-key": apiKey }, body })
          return [reply.status, (await reply.json() as { code: number }).code]
        })
      for (const body of ["{", "{}", "{\"templateID\":1}", "{\"templateID\":\"base\",\"timeout\":-1}"]) {
        assert.deepStrictEqual(yield* control("/v2/sandboxes", body), [400, 400], body)
      }
      assert.deepStrictEqual(yield* control(`/sandboxes/${made.sandboxId}/timeout`, "{}"), [400, 400])
      assert.deepStrictEqual(yield* control(`/sandboxes/${made.sandboxId}/fork`, "{}"), [501, 501])
      // What isn't there is that before it is anything else.
      assert.deepStrictEqual(yield* control("/sandboxes/gone/fork", "{}"), [404, 404])
      assert.deepStrictEqual(yield* control("/nowhere", "{}"), [404, 404])
      const alias = (name: string) =>
        ask(async () => {
          const reply = await fetch(`${url}/templates/aliases/${name}`, { headers: { "x-api-key": apiKey } })
          return [reply.status, await reply.json() as unknown] as const
        })
      assert.deepStrictEqual(yield* alias("base"), [200, { templateID: "base", public: true }])
      assert.strictEqual((yield* alias("nonesuch"))[0], 404)
      const metadata = (name: string, value: string) =>
        post("/files?path=x", "application/octet-stream", "x", { [`x-metadata-${name}`]: value })
      assert.strictEqual((yield* metadata("n".repeat(247), "v"))[0], 400)
      assert.strictEqual((yield* metadata("name", "v".repeat(4096)))[0], 400)
    }), timeout)

  it.scoped("a stream begins with the pid, says that it is there, and ends as it should", () =>
    Effect.gen(function*() {
      const { apiKey, url } = yield* key
      const made = yield* sandbox()
      const token = yield* ask(() => tokenOf(made, url, apiKey))
      const start = (command: string, more: Record<string, string> = {}) =>
        ask(async () => {
          const reply = await fetch(`${url}/process.Process/Start`, {
            method: "POST",
            headers: { ...headersFor(made, token), "content-type": "application/connect+json", ...more },
            body: new Uint8Array(
              envelope({ process: { cmd: "/bin/bash", args: ["-c", command] }, stdin: false, unknown: 1 })
            )
          })
          return messages(Buffer.from(await reply.arrayBuffer()))
        })
      const quiet = yield* start("sleep 1.5; printf x", { "keepalive-ping-interval": "1" })
      assert.deepStrictEqual(quiet.slice(1), [
        [0, { event: { keepalive: {} } }],
        [0, { event: { data: { stdout: "eA==" } } }],
        [0, { event: { end: { exitCode: 0, exited: true, status: "exit status 0" } } }],
        [2, {}]
      ])
      assert.nestedProperty(quiet[0]?.[1], "event.start.pid")
      const cut = yield* start("sleep 60", { "connect-timeout-ms": "500" })
      assert.deepStrictEqual(cut.slice(1), [
        [0, { event: { end: { exitCode: -1, exited: false, status: "signal: killed", error: "signal: killed" } } }],
        [2, { error: { code: "deadline_exceeded", message: "context deadline exceeded" } }]
      ])
    }), timeout)

  it.scoped(
    "a file's address is signed, for one path, one user, one operation and a time",
    () =>
      Effect.gen(function*() {
        const { apiKey, url } = yield* key
        yield* sandbox()
        const made = yield* sandbox()
        const token = yield* ask(() => tokenOf(made, url, apiKey))
        yield* ask(() => made.files.write("signed", "content"))
        const get = (address: string) =>
          ask(async () => {
            const reply = await fetch(address)
            return [reply.status, await reply.text()]
          })
        const address = yield* ask(() => made.downloadUrl("signed", { useSignatureExpiration: 60 }))
        assert.deepStrictEqual(yield* get(address), [200, "content"])
        assert.strictEqual((yield* get(address.replace("signed", "other")))[0], 401)
        assert.strictEqual(
          (yield* get(address.replace(/(?<=signature=v1_)./, (letter) => letter === "A" ? "B" : "A")))[0],
          401
        )
        assert.strictEqual((yield* get(`${url}/files?path=signed`))[0], 401)
        const late = yield* ask(() => made.downloadUrl("signed", { useSignatureExpiration: -60 }))
        assert.deepStrictEqual(yield* get(late), [401, "{\"code\":401,\"message\":\"signature is already expired\"}"])
        const odd = createHash("sha256").update(`signed:read::${token}:soon`).digest("base64").replace(/=+$/, "")
        assert.strictEqual(
          (yield* get(
            `${url}/files?path=signed&signature=${encodeURIComponent(`v1_${odd}`)}&signature_expiration=soon`
          ))[0],
          401
        )
        const upload = yield* ask(() => made.uploadUrl("sent"))
        const form = new FormData()
        form.append("file", "through a form")
        const sent = yield* ask(() => fetch(upload, { method: "POST", body: form }))
        assert.deepStrictEqual(yield* ask(() => sent.json()), [
          { name: "sent", path: "/home/user/sent", type: "file" }
        ])
        assert.strictEqual(yield* ask(() => made.files.read("sent")), "through a form")
        assert.strictEqual((yield* ask(() => fetch(upload))).status, 401)
      }),
    timeout
  )

  it.scoped(
    "a sandbox that is killed breaks what is under way, and is absent from then on",
    () =>
      Effect.gen(function*() {
        const { apiKey, url } = yield* key
        const made = yield* sandbox()
        const token = yield* ask(() => tokenOf(made, url, apiKey))
        const watching = yield* ask(() => made.files.watchDir("/tmp", () => {}, { onExit: () => {} }))
        const command = yield* ask(() => made.commands.run("sleep 60", { background: true }))
        const ended = command.wait().catch((error: unknown) => error)
        yield* ask(() => made.kill())
        const error = yield* ask(() => ended)
        assert.propertyVal(error, "name", "TimeoutError")
        assert.include(String(error), "killed or reached its end of life")
        for (const path of ["/health", "/files?path=x", "/process.Process/List"]) {
          const reply = yield* ask(() => fetch(url + path, { headers: headersFor(made, token) }))
          assert.deepStrictEqual([reply.status, yield* ask(() => reply.json())], [
            502,
            { code: 502, message: "The sandbox was not found", sandboxId: made.sandboxId }
          ])
        }
        const gone = yield* ask(() => fetch(`${url}/sandboxes/${made.sandboxId}`, { headers: { "x-api-key": apiKey } }))
        assert.propertyVal(yield* ask(() => gone.json()), "code", 404)
        yield* ask(() => watching.stop().catch(() => {}))
      }),
    timeout
  )

  it.scoped("directories are watched by asking, too", () =>
    Effect.gen(function*() {
      const { apiKey, url } = yield* key
      const made = yield* sandbox()
      const token = yield* ask(() => tokenOf(made, url, apiKey))
      const call = (method: string, message: unknown) =>
        ask(async () => {
          const reply = await fetch(`${url}/filesystem.Filesystem/${method}`, {
            method: "POST",
            headers: { ...headersFor(made, token), "content-type": "application/json" },
            body: JSON.stringify(message)
          })
          return await reply.json() as { watcherId?: string; events?: ReadonlyArray<{ name: string }>; code?: string }
        })
      const { watcherId } = yield* call("CreateWatcher", { path: "/tmp" })
      yield* ask(() => made.files.write("/tmp/new", "x"))
      let names: ReadonlyArray<string> = []
      while (!names.includes("new")) {
        names = ((yield* call("GetWatcherEvents", { watcherId })).events ?? []).map(({ name }) => name)
      }
      assert.deepStrictEqual(yield* call("RemoveWatcher", { watcherId }), {})
      assert.strictEqual((yield* call("GetWatcherEvents", { watcherId })).code, "not_found")
    }), timeout)

  it.scoped("the code interpreter runs Python, one program at a time", () =>
    Effect.gen(function*() {
      const { apiKey, url } = yield* key
      const made = yield* sandbox({ template: "code-interpreter-v1" })
      const token = yield* ask(() => tokenOf(made, url, apiKey))
      const headers = headersFor(made, token, "49999")
      const execute = (message: unknown) =>
        ask(async () => {
          const reply = await fetch(`${url}/execute`, { method: "POST", headers, body: JSON.stringify(message) })
          const text = await reply.text()
          return [
            reply.status,
            reply.status === 200 ? text.split("\n").slice(0, -1).map((line): unknown => JSON.parse(line)) : text
          ] as const
        })
      const clean = (events: unknown) =>
        JSON.parse(
          JSON.stringify(events, (name, value: unknown) => name === "timestamp" ? undefined : value)
        ) as unknown
      assert.strictEqual((yield* ask(() => fetch(`${url}/health`, { headers }))).status, 200)
      const [, found] = yield* execute({
        code:
          "import os, sys\nprint('out', os.environ['A'])\nprint('err', file=sys.stderr)\nos.system('echo below')\n6 * 7",
        context_id: null,
        language: null,
        env_vars: { A: "ü" }
      })
      assert.deepStrictEqual(clean(found), [
        { type: "number_of_executions", execution_count: 1 },
        { type: "stdout", text: "below\nout ü\n" },
        { type: "stderr", text: "err\n" },
        { type: "result", is_main_result: true, text: "42", extra: {} },
        { type: "end_of_execution" }
      ])
      const [, exited] = yield* execute({ code: "raise SystemExit(3)" })
      assert.propertyVal(Array.isArray(exited) ? exited[1] : undefined, "value", "3")
      assert.propertyVal(Array.isArray(exited) ? exited[1] : undefined, "name", "SystemExit")
      const [, fine] = yield* execute({ code: "raise SystemExit(0)", language: "python" })
      assert.deepStrictEqual(fine, [
        { type: "number_of_executions", execution_count: 1 },
        { type: "end_of_execution" }
      ])
      const [, killed] = yield* execute({ code: "import os; os.kill(os.getpid(), 9)" })
      assert.propertyVal(Array.isArray(killed) ? killed[1] : undefined, "type", "error")
      assert.strictEqual((yield* execute({ code: "", context_id: "x" }))[0], 404)
      assert.strictEqual((yield* execute({ code: "", context_id: "x", language: "python" }))[0], 400)
      assert.strictEqual((yield* execute({ code: "", language: "r" }))[0], 501)
      const shown = (code: string) =>
        Effect.map(execute({ code }), ([, events]) => Array.isArray(events) ? events[1] : events)
      assert.propertyVal(yield* shown("'it\\'s'"), "text", "it's")
      assert.propertyVal(yield* shown("\n    x = 'a'\n    if x:\n        x += 'b'\n    x\n"), "text", "ab")
      // Its SDK sends no token along.
      const { "x-access-token": _, ...open } = headers
      const contexts = yield* ask(() => fetch(`${url}/contexts`, { method: "POST", headers: open, body: "{}" }))
      assert.strictEqual(contexts.status, 501)
    }), timeout)
})

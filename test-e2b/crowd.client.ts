/** Many sandboxes from one process: each runs a command, all are asked for their health, all are killed. */
import { E2B } from "e2b"

const [apiKey = "", count = "", ...urls] = process.argv.slice(2)

const clients = urls.map((url) => new E2B({ apiKey, apiUrl: url, sandboxUrl: url }).Sandbox)

const started = performance.now()
const seconds = () => Math.round(performance.now() - started) / 1000

const timed = async <A>(request: () => Promise<A>): Promise<readonly [A, number]> => {
  const before = performance.now()
  return [await request(), Math.round(performance.now() - before)]
}

const sandboxes = await Promise.all(
  Array.from({ length: Number(count) }, (_, n) => {
    const client = clients[n % clients.length]
    return client === undefined
      ? Promise.reject(new Error("no url"))
      : client.create({ timeoutMs: 280_000, requestTimeoutMs: 120_000 })
  })
)
const created = seconds()
const commands = await Promise.all(
  sandboxes.map((sandbox) =>
    sandbox.commands.run("while :; do echo tick; sleep 1; done", {
      background: true,
      timeoutMs: 0,
      requestTimeoutMs: 120_000
    })
  )
)
const ends = commands.map((command) => command.wait().catch((error: unknown) => error))
// While 200 commands print all the time. What isn't answered in time is an error: health is asked with the budget that an
// episode has for it, kills with the SDK's own.
const health = await Promise.all(
  sandboxes.map((sandbox) => timed(() => sandbox.isRunning({ requestTimeoutMs: 10_000 })))
)
const kills = await Promise.all(sandboxes.map((sandbox) => timed(() => sandbox.kill())))
const names: Record<string, number> = {}
for (const end of await Promise.all(ends)) {
  const name = end instanceof Error ? end.name : "no error"
  names[name] = (names[name] ?? 0) + 1
}
const left = await clients[0]?.list().nextItems()

process.send?.({
  created,
  running: health.filter(([isRunning]) => isRunning).length,
  health: Math.max(...health.map(([, milliseconds]) => milliseconds)),
  kill: Math.max(...kills.map(([, milliseconds]) => milliseconds)),
  left: left?.length,
  ends: names
}, () => process.exit(0))

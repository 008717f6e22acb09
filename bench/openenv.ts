/**
 * Many sessions on one server: ours over simulated sandboxes, and upstream's Python server with an echo environment, under
 * the same load in one run.
 *
 *     npx tsx bench/openenv.ts [SESSIONS] [STEPS]
 *
 * Each server is a process of its own, and they take turns. The load is the same client for both: every session is reset,
 * then asked for its steps one by one, and every reply is compared with what was sent. Memory is what the server's resident
 * set grew by with every session open: at the end of the load as it is, and when both servers have collected their garbage.
 *
 * Upstream's needs Python 3.12 with `openenv` (OPENENV_PYTHON, default: the environment that the interop suite makes).
 * Its echo environment isn't in the package; the one here is written after its description: an `MCPEnvironment` with the one
 * tool `echo_message`.
 */
import { NodeRuntime } from "@effect/platform-node"
import { Console, Effect, Layer, Schedule } from "effect"
import { build } from "esbuild"
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import * as fs from "node:fs"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { WebSocket } from "ws"
import * as Budgets from "../src/Budgets.ts"
import * as Episode from "../src/Episode.ts"
import * as OpenEnv from "../src/OpenEnv.ts"
import * as NodeTransport from "../src/OpenEnv/NodeTransport.ts"
import * as Ledger from "../src/Sandbox/Ledger.ts"
import * as Simulated from "../src/Sandbox/Simulated.ts"
import * as Report from "../src/Task/Report.ts"

const root = fileURLToPath(new URL("..", import.meta.url))
const python = process.env["OPENENV_PYTHON"] ?? path.join(root, "node_modules/.cache/interop/newest/bin/python")

// ----------------------------------------------------------------------------
// servers
// ----------------------------------------------------------------------------

/** What the child process does: serves until it is told to stop. */
const serveOurs = (sessions: number) =>
  Effect.gen(function*() {
    process.on("SIGUSR2", () => void globalThis.gc?.())
    const { task } = yield* Report.decode(fs.readFileSync("task.json"))
    const server = OpenEnv.layer({ port: 0, maxSessions: sessions, task }).pipe(
      Layer.provide(NodeTransport.layer),
      Layer.provide(Episode.layerWithLedger()),
      // The load takes longer than a policy has, on a machine that is busy enough.
      Layer.provide(
        Budgets.layer({ policyWindow: "5 minutes", policyLifetime: "20 minutes", episodeDeadline: "10 minutes" })
      ),
      Layer.provide(Ledger.layerMemory),
      Layer.provide(Simulated.layer())
    )
    yield* Effect.flatMap(OpenEnv.OpenEnvServer, ({ url }) => Effect.zipRight(Console.log(url), Effect.never)).pipe(
      Effect.provide(server)
    )
  })

const echoServer = (sessions: number) => `
import gc
import signal
import socket
import uvicorn
from uuid import uuid4
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State


class Echo(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("echo")

        @server.tool
        def echo_message(message: str) -> str:
            return message

        super().__init__(server)
        self._state = State(episode_id=str(uuid4()), step_count=0)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return Observation(done=False, reward=0.0, metadata={"status": "ready"})

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation(done=False, reward=0.0, metadata={"error": "unknown action"})

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        return super().step(action, timeout_s=timeout_s, **kwargs)

    async def step_async(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        return await super().step_async(action, timeout_s=timeout_s, **kwargs)

    @property
    def state(self):
        return self._state


app = create_app(Echo, CallToolAction, CallToolObservation, reset_observation_cls=Observation, env_name="echo",
                 max_concurrent_envs=${sessions})
signal.signal(signal.SIGUSR2, lambda *_: gc.collect())
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
`

interface Server {
  readonly url: string
  readonly child: ChildProcess
}

const start = async (command: string, ...args: ReadonlyArray<string>): Promise<Server> => {
  const child = spawn(command, args, { stdio: ["ignore", "pipe", "inherit"], cwd: root })
  for await (const chunk of child.stdout.iterator({ destroyOnReturn: false })) {
    const found = /http:\/\/[\d.:]+/.exec(String(chunk))
    if (found !== null) {
      child.stdout.resume()
      return { url: found[0], child }
    }
  }
  throw new Error(`${command} ended before it served`)
}

const stop = async ({ child }: Server): Promise<void> => {
  const gone = once(child, "exit")
  child.kill("SIGTERM")
  await Promise.race([gone, new Promise((resolve) => setTimeout(resolve, 5000))])
  child.kill("SIGKILL")
}

const residentMiB = ({ child }: Server): number =>
  Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${child.pid}/status`, "utf8"))?.[1]) / 1024

/** Processor time so far: unlike a rate, it doesn't depend on what else the machine does. */
const cpuSeconds = ({ child }: Server): number => {
  const fields = fs.readFileSync(`/proc/${child.pid}/stat`, "utf8").replace(/^.*\) /, "").split(" ")
  // Clock ticks, of which Linux has 100 a second.
  return (Number(fields[11]) + Number(fields[12])) / 100
}

const healthy = (url: string): Promise<void> =>
  Effect.runPromise(
    Effect.tryPromise(() => fetch(`${url}/health`)).pipe(
      Effect.retry(Schedule.spaced("200 millis").pipe(Schedule.intersect(Schedule.recurs(300)))),
      Effect.asVoid
    )
  )

// ----------------------------------------------------------------------------
// the load
// ----------------------------------------------------------------------------

interface Dialect {
  readonly step: (word: string) => unknown
  /** The word that came back. */
  readonly word: (reply: string) => string | undefined
}

const wordOf = (reply: string): string | undefined =>
  /"data":"([\w-]+)"/.exec(reply)?.[1] ?? /"text": ?"([\w-]+)"/.exec(reply)?.[1]

const ours: Dialect = {
  step: (word) => ({ type: "call_tool", tool_name: "terminal", arguments: { command: `echo ${word}` } }),
  word: wordOf
}

const upstream: Dialect = {
  step: (word) => ({ type: "call_tool", tool_name: "echo_message", arguments: { message: word } }),
  word: wordOf
}

const connect = async (url: string) => {
  const socket = new WebSocket(`${url.replace("http", "ws")}/ws`, { perMessageDeflate: false })
  await once(socket, "open")
  const ask = (frame: unknown): Promise<string> =>
    new Promise((resolve, reject) => {
      socket.once("close", reject)
      socket.once("message", (data) => {
        socket.off("close", reject)
        resolve(String(data))
      })
      socket.send(JSON.stringify(frame))
    })
  return { socket, ask }
}

const quantile = (sorted: ReadonlyArray<number>, q: number): number => sorted[Math.floor(q * (sorted.length - 1))] ?? 0

/** A server with all its sessions open, and what was measured so far. */
const play = async (server: Server, dialect: Dialect, sessions: number) => {
  await healthy(server.url)
  // Twice: V8 gives back at the second what the first has found empty.
  const settle = async () => {
    for (let collection = 0; collection < 2; collection++) {
      server.child.kill("SIGUSR2")
      await new Promise((resolve) => setTimeout(resolve, 2000))
    }
  }
  await settle()
  const before = residentMiB(server)
  const opened = await Promise.all(Array.from({ length: sessions }, () => connect(server.url)))
  await Promise.all(opened.map(({ ask }) => ask({ type: "reset", data: {} })))
  const latencies: Array<number> = []
  let wrong = 0
  let seconds = 0
  let cpu = 0

  const round = async (number: number, steps: number) => {
    const cpuBefore = cpuSeconds(server)
    const started = performance.now()
    await Promise.all(opened.map(async ({ ask }, session) => {
      for (let step = 0; step < steps; step++) {
        const word = `w-${session}-${number}-${step}`
        const asked = performance.now()
        const reply = await ask({ type: "step", data: dialect.step(word) })
        latencies.push(performance.now() - asked)
        wrong += dialect.word(reply) === word ? 0 : 1
      }
    }))
    seconds += (performance.now() - started) / 1000
    cpu += cpuSeconds(server) - cpuBefore
  }

  const end = async () => {
    const loaded = residentMiB(server)
    await settle()
    const settled = residentMiB(server)
    opened.forEach(({ socket }) => socket.close())
    latencies.sort((a, b) => a - b)
    const steps = latencies.length
    return {
      "steps/s": Math.round(steps / seconds),
      "cpu ms/step": Math.round(cpu * 1e6 / steps) / 1000,
      "p50 ms": Math.round(quantile(latencies, 0.5)),
      "p95 ms": Math.round(quantile(latencies, 0.95)),
      "p99 ms": Math.round(quantile(latencies, 0.99)),
      "KiB/session, loaded": Math.round((loaded - before) * 1024 / sessions),
      "KiB/session": Math.round((settled - before) * 1024 / sessions),
      "wrong replies": wrong
    }
  }

  return { round, end }
}

// ----------------------------------------------------------------------------
// the run
// ----------------------------------------------------------------------------

const cache = path.join(root, "node_modules/.cache/bench")

// As it is shipped: what `tsx` makes of the sources gives every closure a name of its own, in time and in memory.
const compiled = path.join(cache, "openenv.mjs")

const startOurs = async (sessions: number): Promise<Server> => {
  await build({
    entryPoints: [fileURLToPath(import.meta.url)],
    outfile: compiled,
    bundle: true,
    packages: "external",
    format: "esm",
    platform: "node",
    target: "node20.18"
  })
  return start(process.execPath, "--expose-gc", compiled, "serve", String(sessions))
}

const startUpstream = (sessions: number): Promise<Server> => {
  const script = path.join(cache, "echo_server.py")
  fs.writeFileSync(script, echoServer(sessions))
  return start(python, script)
}

// The servers take turns, so that whatever else the machine does falls on both.
const rounds = 4

const main = async (sessions: number, steps: number) => {
  if (!fs.existsSync(python)) {
    throw new Error(`there is no ${python} for upstream's server; npm run test:interop makes it`)
  }
  const servers: Array<Server> = []
  const started = async (server: Promise<Server>) => {
    servers.push(await server)
    return server
  }
  try {
    const us = await play(await started(startOurs(sessions)), ours, sessions)
    const them = await play(await started(startUpstream(sessions)), upstream, sessions)
    for (let number = 0; number < rounds; number++) {
      await us.round(number, Math.ceil(steps / rounds))
      await them.round(number, Math.ceil(steps / rounds))
    }
    report(sessions, steps, await us.end(), await them.end())
  } finally {
    await Promise.all(servers.map(stop))
  }
}

type Measured = Awaited<ReturnType<Awaited<ReturnType<typeof play>>["end"]>>

const report = (sessions: number, steps: number, us: Measured, them: Measured) => {
  console.log(`${sessions} sessions, ${steps} steps each`)
  console.table({ episode: us, "openenv (Python)": them })
  console.log(`steps/s: ${(us["steps/s"] / them["steps/s"]).toFixed(1)} times (at least 5)`)
  console.log(`memory per session: ${(us["KiB/session"] / them["KiB/session"]).toFixed(2)} of upstream's (less than 1)`)
  process.exitCode =
    us["wrong replies"] === 0 && us["steps/s"] >= 5 * them["steps/s"] && us["KiB/session"] < them["KiB/session"]
      ? 0
      : 1
}

const [first = "500", second = "20"] = process.argv.slice(2)
if (first === "serve") {
  NodeRuntime.runMain(serveOurs(Number(second)))
} else {
  await main(Number(first), Number(second))
}

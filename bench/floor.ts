/**
 * The sandbox recipe driven straight: the argument lists of the local provider, spawned by plain Node with plain pipes.
 * No limits on the host, no proof, no record: nothing but the time that the kernel and the tools take.
 */
import * as Effect from "effect/Effect"
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import * as fs from "node:fs"
import { text } from "node:stream/consumers"
import * as Archive from "../src/Sandbox/Local/Archive.ts"
import * as Confinement from "../src/Sandbox/Local/Confinement.ts"
import * as Host from "../src/Sandbox/Local/Host.ts"
import * as Proc from "../src/Sandbox/Local/Proc.ts"
import * as Python from "../src/Sandbox/Local/Python.ts"
import * as Recipe from "../src/Sandbox/Local/Recipe.ts"
import * as Seccomp from "../src/Sandbox/Local/Seccomp.ts"
import * as Setup from "../src/Sandbox/Local/Setup.ts"
import type { SandboxFile } from "../src/Task.ts"

const start = (argv: ReadonlyArray<string>, stdio: "pipe" | ["pipe", "pipe", "pipe", "pipe"] = "pipe") => {
  const [command = "", ...args] = argv
  return spawn(command, args, { env: Host.cleanEnvironment, cwd: "/", detached: true, stdio })
}

const said = async (child: ChildProcess): Promise<number> => {
  const [, pid] = /^ready ([0-9]+)\n/m.exec(child.stdout === null ? "" : await text(child.stdout)) ?? []
  if (pid === undefined) {
    throw new Error("a sandbox could not be made")
  }
  return Number(pid)
}

export interface Machine {
  readonly place: Recipe.Place
  readonly exec: (command: string) => Promise<void>
  readonly write: (files: ReadonlyArray<SandboxFile>) => Promise<void>
  readonly read: (path: string) => Uint8Array
  readonly end: () => Promise<void>
}

/** Looks at this machine once, as a provider does, and gives what makes sandboxes. */
export const prepare = async (): Promise<() => Promise<Machine>> => {
  const python = await Effect.runPromise(Python.find(process.env["PATH"] ?? Host.toolPath))
  const host = Host.machine(python?.isOutside === true ? python.prefix : undefined)
  const calls = Seccomp.callsOf(host)
  const { interpreter } = host
  if (calls === undefined || interpreter === undefined) {
    throw new Error("run `episode doctor`")
  }
  let made = 0

  const exec = async (place: Recipe.Place, program: ReadonlyArray<string>, input?: Uint8Array) => {
    const child = start(
      Recipe.enterArguments({
        nodePid: process.pid,
        place,
        filter: Confinement.loader(calls, interpreter),
        limitSeconds: 10,
        program
      }),
      ["pipe", "pipe", "pipe", "pipe"]
    )
    child.stdin?.end(input)
    child.stdout?.resume()
    child.stderr?.resume()
    await once(child, "exit")
  }

  return async () => {
    const plan = {
      isRoot: host.isRoot,
      interpreter,
      offline: true,
      filesMiB: 256,
      resolver: "",
      pythonPrefix: host.pythonPrefix,
      survey: Host.survey(host.pythonPrefix)
    }
    const setup = Recipe.setup(plan)
    if (setup === "no-mount-point") {
      throw new Error(setup)
    }
    const firstId = 0x7000_0000 + made++ * Recipe.idRange
    const chain = start(
      Recipe.createArguments({ nodePid: process.pid, machine: host, calls, plan, setup, firstId })
    )
    chain.stdin?.end(Setup.encode(setup.steps))
    const pid = await said(chain)
    const place: Recipe.Place = {
      pid,
      start: Proc.status(pid)?.start ?? "",
      namespace: "",
      isRoot: host.isRoot,
      offline: true,
      memoryMiB: 512,
      pythonPrefix: host.pythonPrefix
    }
    return {
      place,
      exec: (command) => exec(place, Recipe.shell(command).program),
      write: async (files) => {
        const entries = files.map(({ bytes, path }) => ({ path: path.slice(1), content: bytes }))
        await exec(place, Recipe.unpack(), await Effect.runPromise(Archive.pack(entries)))
      },
      read: (path) => fs.readFileSync(`/proc/${pid}/root${path}`),
      end: async () => {
        process.kill(pid, "SIGKILL")
        if (chain.exitCode === null && chain.signalCode === null) {
          await once(chain, "exit")
        }
      }
    }
  }
}

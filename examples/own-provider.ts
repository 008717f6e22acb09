/**
 * A provider and a task of one's own: `npx tsx examples/own-provider.ts`
 *
 * The "sandbox" is a few files in memory, and its only command runs a JavaScript program in `node:vm`. That isolates
 * nothing: it is here to show what a provider owes, in as few lines as possible.
 */
import { NodeRuntime } from "@effect/platform-node"
import { Console, DateTime, Duration, Effect, Layer, Ref } from "effect"
import * as Episode from "episode/Episode"
import * as Sandbox from "episode/Sandbox"
import * as Output from "episode/Sandbox/Output"
import * as Task from "episode/Task"
import { randomUUID } from "node:crypto"
import * as vm from "node:vm"

const bytes = (text: string) => new TextEncoder().encode(text)
const text = (data: Uint8Array | undefined) => new TextDecoder().decode(data)

// ---------------------------------------------------------------------------- the provider

interface Machine {
  readonly spec: Sandbox.SandboxSpec
  readonly startedAt: DateTime.Utc
  readonly files: Map<string, Uint8Array>
}

const captured = (output: string, cap: number) => {
  const collector = Output.collector(cap)
  collector.push(bytes(output))
  return collector.result()
}

// Two commands: `write PATH TEXT`, and whatever else runs the program at the path it ends with. A program gets
// `input` and prints by `print`.
const runCommand = ({ files }: Machine, command: string) => {
  const write = /^write (\S+) (.*)$/s.exec(command)
  if (write !== null) {
    files.set(write[1] ?? "", bytes(write[2] ?? ""))
    return { output: "", exitCode: 0 }
  }
  const path = /([^\s']+\.js)/.exec(command)?.[1] ?? ""
  const printed: Array<string> = []
  try {
    const scope = { input: text(files.get("/work/input.txt")), print: (line: unknown) => printed.push(String(line)) }
    vm.runInNewContext(text(files.get(path)), scope, { timeout: 1000 })
    return { output: printed.join("\n"), exitCode: 0 }
  } catch {
    return { output: printed.join("\n"), exitCode: 1 }
  }
}

const handle = (id: Sandbox.SandboxId, machine: Machine, alive: Effect.Effect<void, Sandbox.SandboxLost>) => {
  const self: Sandbox.Sandbox = {
    id,
    role: machine.spec.role,
    resources: new Sandbox.Resources({ cpuCount: 1, memoryMiB: 1, templateId: "vm", startedAt: machine.startedAt }),
    exec: (command, { outputCap }) =>
      Effect.as(alive, runCommand(machine, command)).pipe(
        Effect.tap(({ output }) => {
          // What a shell would do with `>FILE`.
          const redirected = />(\S+) 2>/.exec(command)?.[1]
          return Effect.sync(() => redirected === undefined || machine.files.set(redirected, bytes(output)))
        }),
        Effect.map(({ exitCode, output }) => ({
          stdout: captured(output, outputCap),
          stderr: captured("", outputCap),
          exitCode,
          killedAtLimit: false
        }))
      ),
    readFile: (path, { maxBytes }) =>
      Effect.map(alive, () => {
        const found = machine.files.get(path)
        return found === undefined
          ? Sandbox.FileRead.Missing()
          : found.length > maxBytes
          ? Sandbox.FileRead.TooLarge()
          : Sandbox.FileRead.Bytes({ bytes: found })
      }),
    writeFiles: (files) => Effect.map(alive, () => files.forEach(({ bytes, path }) => machine.files.set(path, bytes))),
    health: alive,
    extend: () => alive
  }
  return self
}

const provider = Layer.effect(
  Sandbox.SandboxProvider,
  Effect.gen(function*() {
    const machines = yield* Ref.make<ReadonlyMap<Sandbox.SandboxId, Machine>>(new Map())
    // A request to a sandbox that isn't there is a fault; whatever a program does is not.
    const alive = (operation: Sandbox.Operation, id: Sandbox.SandboxId) =>
      Effect.flatMap(
        Ref.get(machines),
        (all) => all.has(id) ? Effect.void : new Sandbox.SandboxLost({ operation, sandboxId: id, reason: "absent" })
      )
    return {
      name: "vm",
      allocationPacing: Duration.zero,
      create: (spec) =>
        Effect.gen(function*() {
          const id = Sandbox.SandboxId.make(`vm-${randomUUID()}`)
          const machine = { spec, startedAt: yield* DateTime.now, files: new Map() }
          yield* Ref.update(machines, (all) => new Map(all).set(id, machine))
          return handle(id, machine, alive("exec", id))
        }),
      attach: (id) =>
        Effect.flatMap(Ref.get(machines), (all) => {
          const machine = all.get(id)
          return machine === undefined
            ? new Sandbox.SandboxLost({ operation: "attach", sandboxId: id, reason: "absent" })
            : Effect.succeed(handle(id, machine, alive("exec", id)))
        }),
      destroy: (id) => Ref.update(machines, (all) => new Map([...all].filter(([key]) => key !== id))),
      // The proof is asked for by itself, and never taken from what `destroy` said.
      inspect: (id) => Effect.map(Ref.get(machines), (all) => all.has(id) ? "running" : "absent"),
      find: (labels) =>
        Effect.map(
          Ref.get(machines),
          (all) =>
            [...all].flatMap(([id, { spec }]) =>
              Object.entries(labels).every(([key, value]) => spec.labels[key] === value)
                ? [{ id, labels: spec.labels }]
                : []
            )
        )
    }
  })
)

// ---------------------------------------------------------------------------- the task

const program = Task.SandboxPath.make("/work/program.js")
const input = Task.SandboxPath.make("/work/input.txt")

const task: Task.Task = {
  id: Task.TaskId.make("shout"),
  digest: "made in code",
  prompt: "Make /work/program.js print its input in capitals.",
  workspace: [{ path: program, bytes: bytes("print(input)") }, { path: input, bytes: bytes("hello") }],
  submission: program,
  verification: Task.verification({
    files: [{ path: input, bytes: bytes("good morning") }],
    command: ["run", program],
    cwd: Task.SandboxPath.make("/work"),
    grader: {
      _tag: "Custom",
      grade: (output) =>
        text(output) === "GOOD MORNING" ? { score: 1, reason: "correct" } : { score: 0, reason: "wrong-totals" }
    }
  })
}

// ---------------------------------------------------------------------------- an episode

Effect.gen(function*() {
  const episodes = yield* Episode.Episode
  const receipt = yield* episodes.run(
    task,
    ({ submit, terminal }) => terminal(`write ${program} print(input.toUpperCase())`).pipe(Effect.zipRight(submit))
  )
  yield* Console.log(receipt.outcome)
}).pipe(
  Effect.provide(Episode.layer.pipe(Layer.provide(provider))),
  NodeRuntime.runMain
)

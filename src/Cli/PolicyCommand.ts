/**
 * A program on the host as the policy: one JSON object a line, requests on its standard output, answers on its standard
 * input. Any language will do.
 */
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { type ChildProcess, spawn } from "node:child_process"
import type { Readable, Writable } from "node:stream"
import type { PolicyTools } from "../Episode.ts"
import * as Observation from "../Episode/Observation.ts"
import { Usage } from "./Exit.ts"

const Request = Schema.parseJson(Schema.Union(
  Schema.Struct({ tool: Schema.Literal("terminal"), command: Schema.String }),
  Schema.Struct({ tool: Schema.Literal("submit") })
))

const Reply = Schema.parseJson(Schema.Union(
  Schema.Struct({
    /** The text for a model. */
    observation: Schema.String,
    /** The same, structured. */
    result: Observation.Observation
  }),
  Schema.Struct({ error: Schema.Struct({ type: Schema.String, message: Schema.String }) })
))

const form = `one JSON object a line: {"tool":"terminal","command":"..."} or {"tool":"submit"}`

const longestLine = 4 * 1024 * 1024

// Takes lines off a stream one by one, but for blank ones, and leaves the rest in its pipe, so that a flood waits there. A
// program that has ended has no more lines, even if one of its children holds the pipe open.
const makeReader = (child: ChildProcess, stream: Readable) => {
  let buffered: Buffer = Buffer.alloc(0)
  const next = (): Option.Option<string> | "wait" | "too long" => {
    for (;;) {
      const end = buffered.indexOf(0x0a)
      if (end >= 0) {
        const line = buffered.subarray(0, end).toString("utf8")
        buffered = buffered.subarray(end + 1)
        if (line.trim() === "") {
          continue
        }
        return Option.some(line)
      }
      if (buffered.length > longestLine) {
        return "too long"
      }
      const chunk: Buffer | null = stream.read()
      if (chunk === null) {
        const over = stream.readableEnded || child.exitCode !== null || child.signalCode !== null
        return over ? Option.none() : "wait"
      }
      buffered = Buffer.concat([buffered, chunk])
    }
  }
  return Effect.async<Option.Option<string>, Usage>((resume) => {
    const look = () => {
      const found = next()
      if (found === "wait") {
        return
      }
      stop()
      resume(
        found === "too long"
          ? new Usage({ message: `the policy command wrote a line of more than ${longestLine} bytes` })
          : Effect.succeed(found)
      )
    }
    const stop = () => {
      stream.off("readable", look)
      stream.off("end", look)
      child.off("exit", look)
    }
    stream.on("readable", look)
    stream.on("end", look)
    child.on("exit", look)
    look()
    return Effect.sync(stop)
  })
}

interface Program {
  readonly child: ChildProcess
  readonly stdin: Writable
  readonly stdout: Readable
}

// In a process group of its own: Ctrl-C is for this program, which then ends the group as a whole.
const start = (command: string, context: { readonly prompt: string; readonly taskId: string }) =>
  Effect.acquireRelease(
    Effect.async<Program, Usage>((resume) => {
      // `env` adds to the environment that the policy inherits. An environment can't hold NUL.
      const variables = [`EPISODE_TASK_ID=${context.taskId}`, `EPISODE_PROMPT=${context.prompt.replaceAll("\0", "")}`]
      const child = spawn("env", [...variables, "sh", "-c", command], {
        stdio: ["pipe", "pipe", "inherit"],
        detached: true
      })
      child.once("error", () => resume(new Usage({ message: "the policy command can't be started: no `env` or `sh`" })))
      child.once("spawn", () => {
        // A policy may end without reading its last answer.
        child.stdin.on("error", () => {})
        resume(Effect.succeed({ child, stdin: child.stdin, stdout: child.stdout }))
      })
    }),
    ({ child }) =>
      Effect.sync(() => {
        try {
          // The child leads its group, so this reaches what it started as well.
          if (child.pid !== undefined) {
            process.kill(-child.pid, "SIGKILL")
          }
        } catch {
          // The whole group has ended by itself.
        }
      })
  )

// A program that doesn't read its answers is waited for, so that they don't pile up here.
const write = ({ child, stdin }: Program, text: string) =>
  Effect.async<void>((resume) => {
    const done = () => {
      stdin.off("drain", done)
      stdin.off("close", done)
      child.off("exit", done)
      resume(Effect.void)
    }
    stdin.on("drain", done)
    stdin.on("close", done)
    child.on("exit", done)
    if (stdin.write(text) || stdin.destroyed || child.exitCode !== null || child.signalCode !== null) {
      done()
    }
    return Effect.sync(done)
  })

const exited = (child: ChildProcess) =>
  Effect.async<number | null>((resume) => {
    const done = () => resume(Effect.succeed(child.exitCode))
    if (child.exitCode !== null || child.signalCode !== null) {
      return done()
    }
    child.once("exit", done)
    return Effect.sync(() => child.off("exit", done))
  })

// What is answered at once may be asked without a pause. Everything else here gets its turn all the same: timers, the end
// of the window, the deletion of the sandbox.
const turn = Effect.async<void>((resume) => {
  const handle = setImmediate(() => resume(Effect.void))
  return Effect.sync(() => clearImmediate(handle))
})

/** The policy. It ends when the program does. */
export const policy =
  (command: string, context: { readonly prompt: string; readonly taskId: string }) => (tools: PolicyTools) =>
    Effect.scoped(Effect.gen(function*() {
      const program = yield* start(command, context)
      const nextLine = makeReader(program.child, program.stdout)
      const reply = (answer: typeof Reply.Type) =>
        // Encoding what this program made itself can't fail.
        Effect.flatMap(Effect.orDie(Schema.encode(Reply)(answer)), (line) => write(program, `${line}\n`))

      const serve = (line: string) =>
        Schema.decode(Request, { onExcessProperty: "error" })(line).pipe(
          Effect.matchEffect({
            // The policy's own mistake: it is told, and may try again.
            onFailure: () => reply({ error: { type: "InvalidRequest", message: form } }),
            onSuccess: (request) =>
              (request.tool === "submit" ? tools.submit : tools.terminal(request.command)).pipe(
                Effect.tapError((error) => reply({ error: { type: error._tag, message: error.message } })),
                Effect.flatMap((result) => reply({ observation: Observation.render(result), result }))
              )
          })
        )

      let requests = 0
      for (let line = yield* nextLine; Option.isSome(line); line = yield* nextLine) {
        requests += 1
        yield* serve(line.value)
        yield* turn
      }
      const exitCode = yield* exited(program.child)
      if (requests === 0 && (exitCode === 126 || exitCode === 127)) {
        return yield* new Usage({ message: "the policy command can't be started: its shell says so above" })
      }
      if (exitCode !== 0) {
        // Its score is what it is, but somebody may want to know why.
        yield* Console.error(
          `the policy command ended with ${exitCode === null ? "a signal" : `exit code ${exitCode}`}`
        )
      }
    }))

/**
 * Real pipes. What Node calls a pipe is a socket, and a guest can't open `/dev/stdout` if that is a socket.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { randomUUID } from "node:crypto"
import * as fs from "node:fs"
import { Socket } from "node:net"
import * as path from "node:path"
import type { CapturedOutput } from "../../Sandbox.ts"
import { collector } from "../Output.ts"
import { descriptorLimit, enoughDescriptors } from "./Host.ts"
import { attempt } from "./Proc.ts"
import { owner } from "./Registry.ts"
import { HostFailed, io, run } from "./Spawn.ts"

/** Both ends are its owner's to close. */
export interface Pipe {
  /** Doesn't block. */
  readonly readEnd: number
  readonly writeEnd: number
}

/** A pipe that is being read under a cap. */
export interface Capture {
  /** What a child gets; closed here once it has it. */
  readonly writeEnd: number
  readonly closeWriteEnd: Effect.Effect<void>
  /**
   * What was written so far. It doesn't wait for the end of the stream, which a process in the background may hold open
   * for ever: what a command wrote before it ended is in the pipe when it has ended.
   */
  readonly finish: Effect.Effect<CapturedOutput>
}

/** A supply of pipes. */
export interface Pipes {
  readonly capture: (cap: number) => Effect.Effect<Capture, HostFailed, Scope.Scope>
  readonly take: Effect.Effect<Pipe, HostFailed>
}

// One mkfifo makes many, as starting it is what costs. They are opened and unlinked at once: nothing stays on the disk.
// Where descriptors are few, it makes those of one call.
const batchOf = (descriptors: number): number => descriptors < enoughDescriptors ? 3 : 24

const close = (descriptor: number): void => fs.closeSync(descriptor)

const open = (file: string): Pipe => {
  const readEnd = fs.openSync(file, fs.constants.O_RDONLY | fs.constants.O_NONBLOCK)
  try {
    return { readEnd, writeEnd: fs.openSync(file, fs.constants.O_WRONLY) }
  } catch (error) {
    close(readEnd)
    throw error
  }
}

// It says the same of each, and the path before the reason.
const whyNot = (stderr: string): string => {
  const [line = ""] = stderr.split("\n")
  return `mkfifo failed: ${line.slice(line.lastIndexOf(": ") + 1).trim().slice(0, 200) || "without a word"}`
}

const makeBatch = (parent: string, batch: number): Effect.Effect<ReadonlyArray<Pipe>, HostFailed> =>
  Effect.acquireUseRelease(
    io(() => {
      const directory = path.join(parent, `pipes-${owner()}-${randomUUID()}`)
      // With its parent, which another process removes when it finds it empty.
      fs.mkdirSync(directory, { mode: 0o700, recursive: true })
      return directory
    }),
    (directory) => {
      const files = Array.from({ length: batch }, (_, index) => path.join(directory, String(index)))
      // 666, as a guest opens it once more, under another host user.
      return run(["mkfifo", "-m", "666", "--", ...files], { limit: "5 seconds" }).pipe(
        Effect.filterOrFail(({ code }) => code === 0, ({ stderr }) => new HostFailed({ detail: whyNot(stderr) })),
        Effect.andThen(io(() => {
          const opened: Array<Pipe> = []
          try {
            for (const file of files) {
              opened.push(open(file))
            }
          } catch (error) {
            opened.forEach(({ readEnd, writeEnd }) => [readEnd, writeEnd].forEach(close))
            throw error
          }
          return opened
        }))
      )
    },
    (directory) => Effect.sync(() => fs.rmSync(directory, { recursive: true, force: true }))
  )

/** A supply below a private directory, closed with the scope. */
export const make = (options: {
  readonly directory: Effect.Effect<string, HostFailed>
}): Effect.Effect<Pipes, never, Scope.Scope> =>
  Effect.gen(function*() {
    const supply: Array<Pipe> = []
    const batch = batchOf(descriptorLimit())
    const one = yield* Effect.makeSemaphore(1)
    let isClosed = false
    // Who asked for a batch may be gone, and nobody else waits for what is on the disk while it is made.
    yield* Effect.addFinalizer(() =>
      Effect.zipRight(
        Effect.sync(() => {
          isClosed = true
        }),
        one.withPermits(1)(
          Effect.sync(() => supply.splice(0).forEach(({ readEnd, writeEnd }) => [readEnd, writeEnd].forEach(close)))
        )
      )
    )
    const refill = one.withPermits(1)(Effect.suspend(() =>
      isClosed
        ? new HostFailed({ detail: "the supply of pipes is closed" })
        : supply.length > 0
        ? Effect.void
        : options.directory.pipe(
          Effect.flatMap((directory) => makeBatch(directory, batch)),
          Effect.map((pipes) => {
            supply.push(...pipes)
          })
        )
    ))
    const next: Effect.Effect<Pipe, HostFailed> = Effect.suspend(() => {
      const pipe = supply.pop()
      return pipe === undefined ? Effect.andThen(refill, next) : Effect.succeed(pipe)
    })
    return {
      take: next,
      capture: (cap) => Effect.acquireRelease(Effect.map(next, (pipe) => capture(pipe, cap)), ({ release }) => release)
    }
  })

// A process that goes on writing must not hold us.
const drainLimit = 1024 * 1024

const capture = (pipe: Pipe, cap: number): Capture & { readonly release: Effect.Effect<void> } => {
  const collected = collector(cap)
  let writable = true
  let ended = false
  // It owns the read end from now on.
  const socket = new Socket({ fd: pipe.readEnd, readable: true, writable: false })
  socket.on("data", collected.push)
  socket.on("error", () => {})
  socket.once("end", () => {
    ended = true
  })
  const closeWriteEnd = Effect.sync(() => {
    if (writable) {
      writable = false
      close(pipe.writeEnd)
    }
  })
  return {
    writeEnd: pipe.writeEnd,
    closeWriteEnd,
    finish: Effect.sync(() => {
      const chunk = Buffer.allocUnsafe(65536)
      for (let drained = 0; !ended && !socket.destroyed && drained < drainLimit;) {
        // Fails with EAGAIN when there is nothing left and somebody still holds the other end.
        const read = attempt(() => fs.readSync(pipe.readEnd, chunk, 0, chunk.length, null)) ?? 0
        if (read === 0) {
          break
        }
        collected.push(chunk.subarray(0, read))
        drained += read
      }
      socket.destroy()
      return collected.result()
    }),
    release: Effect.andThen(closeWriteEnd, Effect.sync(() => socket.destroy()))
  }
}

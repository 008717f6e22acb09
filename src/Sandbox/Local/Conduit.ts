/**
 * Pipes between the host and a program of a guest that carry as much as they like, and hold as little as they can.
 */
import * as Chunk from "effect/Chunk"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as fs from "node:fs"
import { Socket } from "node:net"
import type { Pipes } from "./Pipes.ts"
import { attempt } from "./Proc.ts"
import type { Child, HostFailed } from "./Spawn.ts"
import { io } from "./Spawn.ts"

interface End {
  /** What a child gets; closed here once it has it. */
  readonly childEnd: number
  readonly closeChildEnd: Effect.Effect<void>
}

export interface Output extends End {
  readonly stream: (writer: Child) => Stream.Stream<Uint8Array>
  /** From now on the stream ends with its child, whoever else can still write. */
  readonly letGo: Effect.Effect<void>
}

export interface Input extends End {
  readonly write: (bytes: Uint8Array) => Effect.Effect<boolean>
  readonly close: Effect.Effect<void>
}

const closedOnce = (descriptor: number): Effect.Effect<Effect.Effect<void>, never, Scope.Scope> =>
  Effect.flatMap(
    Effect.once(Effect.sync(() => fs.closeSync(descriptor))),
    (close) => Effect.as(Effect.addFinalizer(() => close), close)
  )

// What a program wrote before its end is in the pipe at its end. One that it left behind may go on writing.
const drainLimit = 1024 * 1024

const chunkSize = 64 * 1024

/** A pipe that a child writes to. Its stream ends with the child, or `waits` until nobody can write to it any more. */
export const output = (pipes: Pipes, waits = false): Effect.Effect<Output, HostFailed, Scope.Scope> =>
  Effect.gen(function*() {
    const { closeChildEnd, pipe, socket } = yield* Effect.uninterruptible(Effect.gen(function*() {
      const pipe = yield* pipes.take
      const socket = new Socket({ fd: pipe.readEnd, readable: true, writable: false })
      yield* Effect.addFinalizer(() => Effect.sync(() => socket.destroy()))
      return { closeChildEnd: yield* closedOnce(pipe.writeEnd), pipe, socket }
    }))
    const news = Effect.unsafeMakeLatch(false)
    let isOver = false
    let isHeld = waits
    let drained = 0
    const over = () => {
      isOver = true
      news.unsafeOpen()
    }
    socket.on("readable", () => news.unsafeOpen()).on("end", over).on("close", over).on("error", over)

    // Past the end of the writer nothing is waited for: what can be read at once is the rest.
    const rest = (): Uint8Array | undefined => {
      const chunk = Buffer.alloc(chunkSize)
      const length = drained < drainLimit && !socket.destroyed
        ? attempt(() => fs.readSync(pipe.readEnd, chunk, 0, chunk.length, null)) ?? 0
        : 0
      drained += length
      return length === 0 ? undefined : chunk.subarray(0, length)
    }
    const next = (writer: Child): Effect.Effect<Chunk.Chunk<Uint8Array>, Option.Option<never>> =>
      Effect.flatMap(writer.hasEnded, (isGone) => {
        news.unsafeClose()
        const hasEnded = isGone && !isHeld
        const chunk = attempt((): unknown => socket.read()) ?? (hasEnded && !isOver ? rest() : undefined)
        return chunk instanceof Uint8Array
          ? Effect.succeed(Chunk.of(chunk))
          : hasEnded || isOver
          ? Effect.fail(Option.none())
          : Effect.andThen(news.await, next(writer))
      })
    return {
      childEnd: pipe.writeEnd,
      closeChildEnd,
      letGo: Effect.sync(() => {
        isHeld = false
        news.unsafeOpen()
      }),
      stream: (writer) =>
        Stream.unwrapScoped(
          Effect.as(
            Effect.forkScoped(Effect.andThen(writer.ended, news.open)),
            Stream.repeatEffectChunkOption(next(writer))
          )
        )
    }
  })

/** A pipe that a child reads from. */
export const input = (pipes: Pipes): Effect.Effect<Input, HostFailed, Scope.Scope> =>
  Effect.uninterruptible(Effect.gen(function*() {
    const pipe = yield* pipes.take
    const socket = new Socket({ fd: pipe.writeEnd, readable: false, writable: true })
    yield* Effect.addFinalizer(() => Effect.sync(() => socket.destroy()))
    // Each write that waits listens for the end, and there may be any number.
    socket.setMaxListeners(0)
    // That the child has gone is told by each write.
    socket.on("error", () => {})
    const closeReadEnd = yield* closedOnce(pipe.readEnd)
    // Opened once more: ours doesn't block, which a child's standard input must.
    const childEnd = yield* io(() => fs.openSync(`/proc/self/fd/${pipe.readEnd}`, fs.constants.O_RDONLY))
    const closeChildEnd = yield* closedOnce(childEnd)
    return {
      childEnd,
      closeChildEnd: Effect.andThen(closeReadEnd, closeChildEnd),
      write: (bytes) =>
        Effect.async<boolean>((resume) => {
          if (socket.destroyed || socket.writableEnded) {
            return resume(Effect.succeed(false))
          }
          const settle = (taken: boolean) => () => {
            socket.off("close", gone)
            resume(Effect.succeed(taken))
          }
          const gone = settle(false)
          socket.once("close", gone)
          socket.write(bytes, (error) => settle(error === undefined || error === null)())
          return Effect.sync(() => socket.off("close", gone))
        }),
      close: Effect.sync(() => {
        socket.end()
      })
    }
  }))

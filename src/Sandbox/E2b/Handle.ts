/**
 * A sandbox, as the provider's users have it.
 */
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { CurrentBudgets } from "../../Budgets.ts"
import {
  type ExecLimits,
  type FileLimits,
  FileRead,
  type Operation,
  ProtocolViolation,
  type Resources,
  type Role,
  type Sandbox,
  type SandboxFault,
  type SandboxId,
  SandboxLost,
  TransportFailed
} from "../../Sandbox.ts"
import type { SandboxFile, SandboxPath } from "../../Task.ts"
import * as Guest from "../Guest.ts"
import { type Client, type Machine, millis } from "./Client.ts"
import { Failure } from "./Failure.ts"
import { decode, type Inquiry, unexpected } from "./Inquiry.ts"
import { type Ended, type Runner, user } from "./Runner.ts"

/** What handles are made with. */
export interface Service {
  readonly client: Client
  readonly inquiry: Inquiry
  readonly runner: Runner
}

export interface Options {
  readonly machine: Machine
  readonly id: SandboxId
  readonly role: Role
  /** What is known of it so far. */
  readonly resources: () => Resources
  /** Succeeds when it is known from the control plane. */
  readonly informed: Effect.Effect<unknown, Failure>
  /** Nothing that a guest wrote has run there. */
  readonly isPristine: boolean
  /** Milliseconds since the epoch. */
  readonly expiresAt: number
}

// The header of an upload, and envd's reading of it, leave these as they are.
const isPlain = ({ mode = 0o644, path }: SandboxFile): boolean =>
  mode === 0o644 && /^[A-Za-z0-9/._ +=,@~-]+$/.test(path)

const decodeWritten = decode(Schema.Array(Schema.Struct({ path: Schema.String })))

export const make = ({ client, inquiry, runner }: Service, options: Options): Sandbox => {
  const { id, machine, role } = options
  const { control, data } = client
  let { expiresAt, isPristine } = options

  const explain = (operation: Operation) => inquiry.explain(operation, id, () => expiresAt)

  // What is still being asked about the sandbox is asked beside the first request on it, and not before it.
  const request = <A>(operation: Operation, effect: Effect.Effect<A, SandboxFault>): Effect.Effect<A, SandboxFault> =>
    Effect.zipLeft(effect, Effect.catchAll(options.informed, explain(operation)), { concurrent: true })

  // Why a program of ours ended without a reply, where no guest can have seen to that.
  const violation = (operation: Operation, { exitCode, reply }: Ended) =>
    new ProtocolViolation({
      operation,
      sandboxId: id,
      detail: reply.isReady || exitCode === 0 ? "the end of the reply is missing" : Guest.noPython
    })

  // Where a guest has run, and envd answers in good order that it can't start a process: processes are used up, or the user
  // is gone.
  const unlessDeclined = (wasPristine: boolean, operation: Operation) => (running: Effect.Effect<Ended, Failure>) =>
    running.pipe(
      Effect.asSome,
      Effect.catchIf(({ kind }) => kind === "declined" && !wasPristine, () => Effect.succeedNone),
      Effect.catchAll(explain(operation))
    )

  const exec = Effect.fn("E2b.exec")(function*(command: string, limits: ExecLimits) {
    const launch = Guest.run(yield* Guest.freshMark, command, limits)
    if (Option.isNone(launch)) {
      return Guest.notRun("Argument list too long", limits)
    }
    const wasPristine = isPristine
    isPristine = false
    const ended = yield* runner.run(machine, launch.value, {
      timeLimit: limits.timeLimit,
      overdueAfter: Duration.sum(limits.timeLimit, Guest.grace)
    }).pipe(unlessDeclined(wasPristine, "exec"))
    if (Option.isNone(ended)) {
      return Guest.notRun("the sandbox can't start a process", limits)
    }
    const { exitCode, isOverdue, reply } = ended.value
    const result = Guest.endIn(reply, limits)
    if (Option.isSome(result)) {
      return result.value
    }
    // Whatever the code: a guest can end our program, write in its place, and take away what it writes.
    return wasPristine && !reply.isReady ? yield* violation("exec", ended.value) : Guest.stopped(isOverdue, exitCode)
  })

  const readFile = Effect.fn("E2b.readFile")(function*(path: SandboxPath, limits: FileLimits) {
    const { fileTransfer } = yield* CurrentBudgets
    const ended = yield* runner.run(machine, Guest.read(yield* Guest.freshMark, path, limits.maxBytes), {
      timeLimit: fileTransfer,
      // A guest can stop what reads its files, or starve it. Before one has run, whatever is late isn't a guest's doing.
      overdueAfter: isPristine ? undefined : Duration.times(fileTransfer, 0.5)
    }).pipe(unlessDeclined(isPristine, "readFile"))
    if (Option.isNone(ended)) {
      return FileRead.Unreadable()
    }
    const found = Guest.foundIn(ended.value.reply, limits)
    if (Option.isSome(found)) {
      return found.value
    }
    return isPristine ? yield* violation("readFile", ended.value) : FileRead.Unreadable()
  })

  const upload = (files: ReadonlyArray<{ readonly path: string; readonly bytes: Uint8Array }>) =>
    CurrentBudgets.pipe(
      Effect.flatMap(({ fileTransfer }) =>
        data(fileTransfer, (request) =>
          machine.files.writeFiles(
            files.map(({ bytes, path }) => ({ path, data: new Blob([new Uint8Array(bytes)]) })),
            { ...request, user }
          ))
      ),
      Effect.flatMap(decodeWritten),
      Effect.filterOrFail(
        (written) => written.length === files.length && written.every(({ path }, index) => path === files[index]?.path),
        () => unexpected
      ),
      Effect.catchAll(explain("writeFiles"))
    )

  // An upload follows links, opens what is in the way, and knows no permissions. In a sandbox that nobody has touched, that
  // is no matter. Elsewhere the files are put aside, and a second request gives them their places.
  const writeFiles = Effect.fn("E2b.writeFiles")(function*(files: ReadonlyArray<SandboxFile>) {
    if (files.length === 0 || isPristine && files.every(isPlain)) {
      return yield* files.length === 0 ? Effect.void : upload(files)
    }
    const { fileTransfer } = yield* CurrentBudgets
    const key = yield* Guest.freshMark
    const aside = `/tmp/.${key}`
    yield* upload(files.map(({ bytes }, index) => ({ path: `${aside}/${index}`, bytes })))
    const { reply } = yield* runner.run(machine, Guest.place(key, aside, files), { timeLimit: fileTransfer }).pipe(
      Effect.catchAll(explain("writeFiles"))
    )
    if (!Guest.isPlaced(reply)) {
      return yield* new TransportFailed({
        operation: "writeFiles",
        sandboxId: id,
        detail: reply.isReady ? "the files couldn't be put in their places there" : Guest.noPython
      })
    }
  })

  const health = CurrentBudgets.pipe(
    Effect.flatMap((budgets) => data(budgets.control, (request) => machine.isRunning(request))),
    Effect.catchAll(explain("health")),
    Effect.filterOrElse((isRunning) => isRunning, () =>
      // It is gone, or it is there and doesn't answer.
      explain("health")(new Failure({ kind: "unavailable", detail: "the sandbox doesn't answer" })).pipe(
        Effect.catchTag("TransportFailed", () =>
          new SandboxLost({ operation: "health", sandboxId: id, reason: "unhealthy" }))
      )),
    Effect.asVoid,
    Effect.withSpan("E2b.health")
  )

  const extend = Effect.fn("E2b.extend")(function*(lifetime: Duration.Duration) {
    const budgets = yield* CurrentBudgets
    yield* control(budgets.control, (Sandbox, request) => Sandbox.setTimeout(id, millis(lifetime), request)).pipe(
      Effect.catchAll(explain("extend"))
    )
    expiresAt = (yield* Clock.currentTimeMillis) + Duration.toMillis(lifetime)
  })

  return {
    id,
    role,
    get resources() {
      return options.resources()
    },
    exec: (command, limits) => request("exec", exec(command, limits)),
    readFile: (path, limits) => request("readFile", readFile(path, limits)),
    writeFiles: (files) => request("writeFiles", writeFiles(files)),
    health: request("health", health),
    extend: (lifetime) => request("extend", extend(lifetime))
  }
}

/**
 * A program as it was asked for: with pipes, or in a terminal that a helper program inside the sandbox makes.
 */
import type * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type { SandboxFault, SandboxId } from "../Sandbox.ts"
import { type Ended, type MachineProvider, ProgramRefused } from "../Sandbox/Machine.ts"
import { concat, lines, uint32, utf8 } from "./Bytes.ts"
import * as Helpers from "./Helper.ts"
import type { Process, Spec } from "./Processes.ts"
import { terminal } from "./Programs/Terminal.ts"

export interface Started extends Omit<Process, "tag" | "config"> {
  readonly outputs: ReadonlyArray<{
    readonly name: "stdout" | "stderr" | "pty"
    readonly bytes: Stream.Stream<Uint8Array>
  }>
  readonly ended: Effect.Effect<Ended>
}

interface Where {
  readonly machine: Context.Tag.Service<MachineProvider>
  readonly sandboxId: SandboxId
  /** Whether a pid is that of another program. */
  readonly isTaken: (pid: number) => boolean
}

/** Starts it; the end of the scope kills it. */
export const start = (
  where: Where,
  spec: Spec
): Effect.Effect<Started, SandboxFault | ProgramRefused, Scope.Scope> =>
  spec.size === undefined ? startPlain(where, spec) : startInTerminal(where, spec, spec.size)

const startPlain = ({ machine, sandboxId }: Where, spec: Spec) =>
  Effect.map(
    machine.spawn(sandboxId, {
      argv: [spec.config.cmd, ...spec.config.args],
      user: spec.user,
      environment: spec.environment,
      directory: spec.directory,
      stdin: spec.stdin ? "open" : "closed",
      // As envd has it: what a command leaves in the background goes on writing to the caller.
      outputs: "writers"
    }),
    (running): Started => ({
      ...running,
      isTerminal: false,
      hasInput: spec.stdin,
      resize: () => Effect.void,
      signal: (name) => Effect.zipRight(running.signal(name), running.letGo),
      outputs: [{ name: "stdout", bytes: running.stdout }, { name: "stderr", bytes: running.stderr }]
    })
  )

const signals = { SIGTERM: 15, SIGKILL: 9 } as const

// The helper passes a signal on and ends when the shell has. One that doesn't is killed itself.
const patience = Duration.seconds(1)

const frame = (letter: "i" | "r" | "s", payload: Uint8Array): Uint8Array =>
  concat([utf8(letter), uint32(payload.length), payload])

const sizeFrame = ({ cols, rows }: { readonly cols: number; readonly rows: number }): Uint8Array =>
  frame("r", Uint8Array.of(rows >> 8, rows & 255, cols >> 8, cols & 255))

const makingLimit = Duration.seconds(10)

// The kernel's numbers of processes end below it.
const pidLimit = 2 ** 22

const startInTerminal = ({ isTaken, machine, sandboxId }: Where, spec: Spec, size: NonNullable<Spec["size"]>) =>
  Effect.gen(function*() {
    const helper = yield* machine.spawn(sandboxId, {
      ...Helpers.python(terminal, String(size.rows), String(size.cols), spec.config.cmd, ...spec.config.args),
      user: spec.user,
      environment: spec.environment,
      directory: spec.directory,
      stdin: "open"
    })
    const said = yield* lines(helper.stderr, { longest: 64, tooLong: undefined }).pipe(
      Stream.runHead,
      Effect.timeoutOption(makingLimit),
      Effect.match({ onFailure: () => Option.none(), onSuccess: Option.flatten })
    )
    // A guest can end the helper, stop it, or write where it does.
    const pid = Option.filter(said, (text) => /^[1-9][0-9]{0,6}$/.test(text) && Number(text) < pidLimit)
    if (Option.isNone(pid) || isTaken(Number(pid.value))) {
      return yield* new ProgramRefused({ sandboxId, reason: "ended", detail: "no terminal could be made there" })
    }
    const started: Started = {
      pid: Number(pid.value),
      isTerminal: true,
      hasInput: true,
      outputs: [{ name: "pty", bytes: helper.stdout }],
      ended: helper.ended,
      write: (bytes) => helper.write(frame("i", bytes)),
      // The end of a terminal's input is a character.
      closeStdin: Effect.asVoid(helper.write(frame("i", Uint8Array.of(4)))),
      resize: (size) => Effect.asVoid(helper.write(sizeFrame(size))),
      signal: (name) =>
        Effect.gen(function*() {
          yield* Effect.timeoutOption(helper.write(frame("s", Uint8Array.of(signals[name]))), patience)
          if (name === "SIGKILL") {
            yield* Effect.timeoutOption(helper.ended, patience)
            yield* helper.signal(name)
          }
        })
    }
    return started
  })

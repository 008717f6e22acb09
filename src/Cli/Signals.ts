/**
 * What a person is told who presses Ctrl-C. The interruption itself is the runtime's.
 */
import * as Effect from "effect/Effect"
import { Ledger, type LedgerEntry } from "../Sandbox/Ledger.ts"
import { codes } from "./Exit.ts"

// One keystroke can come as several signals: from the terminal, and once more from whoever passes it on.
const sameKeystrokeNanos = 500_000_000n

/** Tells which keystroke a signal is of. */
export const keystrokes = Effect.map(Effect.clock, (clock) => {
  let first: bigint | undefined
  return (): "first" | "same" | "another" => {
    const now = clock.unsafeCurrentTimeNanos()
    if (first === undefined) {
      first = now
      return "first"
    }
    return now - first < sameKeystrokeNanos ? "same" : "another"
  }
})

const count = (n: number): string => n === 1 ? "1 sandbox" : `${n} sandboxes`

/** One line for each sandbox that isn't proved gone. */
export const listed = (entries: ReadonlyArray<LedgerEntry>): ReadonlyArray<string> =>
  entries.map(({ allocation, provider, role, sandboxId, state }) =>
    `  ${sandboxId ?? `label episode.allocation=${allocation}`} (${provider}, ${role}, ${state})`
  )

const say = (line: string): void => void process.stderr.write(`${line}\n`)

/**
 * While it is in scope: the first signal says how many sandboxes are being deleted, a later one lists what is left and
 * ends the program at once. A terminal that is closed counts as a signal, and so does an output that nobody reads or that
 * can't be written. Gives the effect that waits for what was written, and tells whether it came through.
 */
export const watch = Effect.flatMap(Effect.all([Ledger, keystrokes]), ([ledger, keystroke]) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      // Once, and only where nobody was quicker: an output may break at each write, and also because a pipe's reader was
      // interrupted as well. That isn't somebody's second thought.
      let isEnding = false
      let isInterrupted = false
      const onSignal = () => {
        const pressed = keystroke()
        if (pressed === "same") {
          return
        }
        // The ledger is in memory: its answer is there at once.
        const open = Effect.runSync(ledger.open)
        if (pressed === "first") {
          isInterrupted = true
          say(
            `\n${isEnding ? "ending" : "interrupted"}: deleting ${count(open.length)}; press again to give up on that`
          )
          return
        }
        say(open.length === 0 ? "\nnothing is left" : `\nleft behind:\n${listed(open).join("\n")}`)
        process.exit(open.length === 0 ? codes.interrupted : codes.unresolved)
      }
      const end = (reason: string) => {
        if (!isEnding) {
          isEnding = true
          say(`\n${reason}`)
          if (!isInterrupted) {
            process.kill(process.pid, "SIGTERM")
          }
        }
      }
      const onHangup = () => end("the terminal was closed")
      const onBroken = ({ code, message }: NodeJS.ErrnoException) =>
        end(code === "EPIPE" ? "the output was closed" : `the output can't be written: ${message}`)
      process.on("SIGINT", onSignal)
      process.on("SIGTERM", onSignal)
      process.on("SIGHUP", onHangup)
      process.stdout.on("error", onBroken)
      process.stderr.on("error", onBroken)
      const stop = () => {
        process.off("SIGINT", onSignal)
        process.off("SIGTERM", onSignal)
        process.off("SIGHUP", onHangup)
        process.stdout.off("error", onBroken)
        process.stderr.off("error", onBroken)
      }
      const isWritten = Effect.async<boolean>((resume) => {
        // Comes after the errors of all writes before it.
        process.stdout.write("", () => resume(Effect.sync(() => !isEnding)))
      })
      return { stop, isWritten }
    }),
    ({ stop }) => Effect.sync(stop)
  ).pipe(Effect.map(({ isWritten }) => isWritten)))

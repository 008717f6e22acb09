/**
 * What a policy sees of a command.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import type { CapturedOutput, ExecResult } from "../Sandbox.ts"

/**
 * One answer to a policy, structured. {@link render} is the one text form of it.
 *
 * @since 0.1.0
 * @category models
 */
export class Observation extends Schema.Class<Observation>("episode/Observation")({
  /** Invalid UTF-8 is replaced; where the middle is missing a line says how much. */
  stdout: Schema.String,
  stderr: Schema.String,
  /** As a shell reports it. Null when no command ran, because the episode is finished. */
  exitCode: Schema.NullOr(Schema.Int),
  killedAtLimit: Schema.Boolean,
  /** Whether the middle of a stream was left out. */
  truncated: Schema.Boolean,
  /** Whether the episode is finished: nothing runs any more. */
  finished: Schema.Boolean
}) {}

const ended = (stdout: string): Observation =>
  new Observation({ stdout, stderr: "", exitCode: null, killedAtLimit: false, truncated: false, finished: true })

/**
 * The answer to whatever is asked after the end. It says nothing about the score.
 *
 * @since 0.1.0
 * @category constructors
 */
export const finished: Observation = ended("")

/**
 * The answer to the `submit` that ends an episode. It says nothing about the score, either, and is the same for each.
 *
 * @since 0.1.0
 * @category constructors
 */
export const submitted: Observation = ended("Submitted. The episode is finished.")

const isCut = (output: CapturedOutput): boolean => output.totalBytes > output.head.length + output.tail.length

const isContinuation = (byte: number): boolean => (byte & 0xc0) === 0x80

const text = (output: CapturedOutput): string => {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true })
  if (!isCut(output)) {
    return decoder.decode(output.head, { stream: true }) + decoder.decode(output.tail)
  }
  // A character that was cut in two is dropped, not shown as a broken one: at most three bytes on either side.
  const head = decoder.decode(output.head, { stream: true })
  const start = output.tail.subarray(0, 4).findIndex((byte) => !isContinuation(byte))
  // None in four is no UTF-8 anyway; none in fewer is the rest of one character.
  const whole = start >= 0 ? start : output.tail.length < 4 ? output.tail.length : 0
  const tail = new TextDecoder("utf-8", { ignoreBOM: true }).decode(output.tail.subarray(whole))
  const missing = output.totalBytes - output.head.length - output.tail.length
  return `${head}\n[... ${missing} of ${output.totalBytes} bytes left out ...]\n${tail}`
}

/**
 * @since 0.1.0
 * @category constructors
 */
export const fromResult = (result: ExecResult): Observation =>
  new Observation({
    stdout: text(result.stdout),
    stderr: text(result.stderr),
    exitCode: result.exitCode,
    killedAtLimit: result.killedAtLimit,
    truncated: isCut(result.stdout) || isCut(result.stderr),
    finished: false
  })

const lines = (stream: string): string => stream === "" || stream.endsWith("\n") ? stream : `${stream}\n`

/**
 * The text for a model: standard output, then standard error, then a last line for a non-zero exit or a kill. Never
 * empty.
 *
 * @since 0.1.0
 * @category combinators
 */
export const render = (observation: Observation): string => {
  if (observation.finished) {
    return observation.stdout || "The episode is finished; nothing was run."
  }
  const end = observation.killedAtLimit
    ? "[killed at the time limit]"
    : observation.exitCode === 0
    ? ""
    : `[exit code ${observation.exitCode}]`
  return (lines(observation.stdout) + lines(observation.stderr) + end).trimEnd() || "(no output)"
}

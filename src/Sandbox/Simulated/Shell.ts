/**
 * The shell of a simulated sandbox: a few commands, no processes.
 *
 * @since 0.1.0
 */
import * as Duration from "effect/Duration"
import type { FileSystem } from "./FileSystem.ts"
import { Node, resolve } from "./FileSystem.ts"

/**
 * What a command or a program does.
 *
 * @since 0.1.0
 * @category models
 */
export interface CommandResult {
  readonly stdout?: string | Uint8Array | undefined
  readonly stderr?: string | Uint8Array | undefined
  /** Default 0. */
  readonly exitCode?: number | undefined
  /** How long it takes by the `Clock`; `Duration.infinity` for one that never ends. Default: no time. */
  readonly duration?: Duration.DurationInput | undefined
}

/**
 * Runs one command line. What it does to the files it does at once, also when it is killed at its limit.
 *
 * @since 0.1.0
 * @category models
 */
export type Shell = (command: string, files: FileSystem) => CommandResult

/**
 * Stands for a Python program: what it would do with these files.
 *
 * @since 0.1.0
 * @category models
 */
export type Program = (files: FileSystem) => CommandResult

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /** By source text: what `python3` does with a file of that text. Default none. */
  readonly programs?: ReadonlyMap<string, Program> | undefined
}

// ----------------------------------------------------------------------------
// syntax
// ----------------------------------------------------------------------------

interface Line {
  readonly words: Array<string>
  /** Files by stream. */
  readonly to: Map<"stdin" | "stdout" | "stderr", string>
  document?: string
  /** Whether it runs only if what stands before it succeeded. */
  readonly onlyIf: boolean
}

const tokens =
  /[ \t]+|(?<separator>&&|;|\n)|(?<redirect>2>|>|<(?!<))|<<(?<quote>['"]?)(?<end>\w+)\k<quote>|(?<word>(?:'[^']*'|"(?:[^"\\$`]|\\.)*"|\\.|[^\s'"\\|&;<>()$`])+)/suy

const streams = { "<": "stdin", ">": "stdout", "2>": "stderr" } as const

const unquote = (word: string): string =>
  word.replace(
    /'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)/gsu,
    (_, single?: string, double?: string, escaped?: string) =>
      single ?? double?.replace(/\\(["\\$`])/gu, "$1") ?? escaped ?? ""
  )

const parse = (command: string): ReadonlyArray<Line> | undefined => {
  const lines: Array<Line> = []
  let line: Line = { words: [], to: new Map(), onlyIf: false }
  let pending: { readonly line: Line; readonly end: string } | undefined
  let stream: "stdin" | "stdout" | "stderr" | undefined
  let index = 0
  while (index < command.length) {
    tokens.lastIndex = index
    const groups = tokens.exec(command)?.groups
    if (groups === undefined) {
      return undefined
    }
    index = tokens.lastIndex
    const { end, redirect, separator, word } = groups
    if (word !== undefined) {
      if (stream === undefined) {
        line.words.push(unquote(word))
      } else {
        line.to.set(stream, unquote(word))
        stream = undefined
      }
    } else if (redirect === "<" || redirect === ">" || redirect === "2>") {
      stream = streams[redirect]
    } else if (end !== undefined) {
      pending = { line, end }
    } else if (separator !== undefined) {
      lines.push(line)
      line = { words: [], to: new Map(), onlyIf: separator === "&&" }
      if (separator === "\n" && pending !== undefined) {
        const body = new RegExp(`(?<document>.*?)^${pending.end}(?:\\n|$)`, "smy")
        body.lastIndex = index
        const document = body.exec(command)?.groups?.["document"]
        if (document === undefined) {
          return undefined
        }
        pending.line.document = document
        pending = undefined
        index = body.lastIndex
      }
    }
  }
  return pending !== undefined || stream !== undefined
    ? undefined
    : [...lines, line].filter(({ to, words }) => words.length > 0 || to.size > 0)
}

// ----------------------------------------------------------------------------
// commands
// ----------------------------------------------------------------------------

const encoder = new TextEncoder()
const decoder = new TextDecoder()

const toBytes = (output: string | Uint8Array = ""): Uint8Array =>
  typeof output === "string" ? encoder.encode(output) : output

const concat = (chunks: ReadonlyArray<Uint8Array>): Uint8Array => {
  const whole = new Uint8Array(chunks.reduce((sum, { length }) => sum + length, 0))
  chunks.reduce((offset, chunk) => {
    whole.set(chunk, offset)
    return offset + chunk.length
  }, 0)
  return whole
}

const failed = (stderr: string, exitCode = 1): CommandResult => ({ stderr: `${stderr}\n`, exitCode })

/**
 * A shell that knows
 *
 * - `cat [PATH...]`, `echo WORD...`, `head -c N /dev/zero`, `true`, `false`, `exit N`, `sleep SECONDS`
 * - `cat >PATH <<'END'`, the way to write a file; `rm [-rf] PATH...`, `mkdir [-p] PATH...`, `mkfifo PATH`,
 *   `ln -s TARGET PATH`, `chmod MODE PATH`
 * - `python3 [-B] PATH`, for programs it was told of
 * - `cd DIR`, `exec COMMAND`, quotes, `<`, `>` and `2>`, and lines joined by `&&`, `;` or a line break
 *
 * Everything else exits 127.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = ({ programs }: Options = {}): Shell => (command, files) => {
  const lines = parse(command)
  if (lines === undefined) {
    return failed("simulated shell: syntax it doesn't know", 127)
  }
  const stdout: Array<Uint8Array> = []
  const stderr: Array<Uint8Array> = []
  let directory = "/home/user"
  let exitCode = 0
  let duration = Duration.zero
  let over = false

  const path = (name: string): string => resolve(directory, name)

  const run = (words: ReadonlyArray<string>, input: Uint8Array): CommandResult => {
    const [name = "true", ...rest] = words
    const operands = rest.filter((word) => !word.startsWith("-"))
    const [first = "", second = ""] = operands
    switch (name) {
      case "true":
        return {}
      case "false":
        return { exitCode: 1 }
      case "exec":
        return run(rest, input)
      case "exit":
        over = true
        return { exitCode: Number(rest[0] ?? exitCode) }
      case "sleep":
        return { duration: first === "infinity" ? Duration.infinity : Duration.seconds(Number(first)) }
      case "echo":
        return { stdout: `${rest.join(" ")}\n` }
      case "cd":
        if (files.at(path(first))?._tag !== "Directory") {
          return failed(`cd: ${first}: No such file or directory`)
        }
        directory = path(first)
        return {}
      case "cat": {
        const missing = operands.filter((operand) => files.read(path(operand)) === undefined)
        return {
          stdout: operands.length === 0
            ? input
            : concat(operands.map((operand) => files.read(path(operand)) ?? new Uint8Array())),
          stderr: missing.map((operand) => `cat: ${operand}: No such file or directory\n`).join(""),
          exitCode: missing.length === 0 ? 0 : 1
        }
      }
      case "head":
        return rest[0] === "-c" && rest[2] === "/dev/zero"
          ? { stdout: new Uint8Array(Number(rest[1])) }
          : failed("head: simulated only as head -c N /dev/zero", 127)
      case "rm":
        operands.forEach((operand) => files.remove(path(operand)))
        return {}
      case "mkdir":
        operands.forEach((operand) => files.put(path(operand), Node.Directory()))
        return {}
      case "mkfifo":
        files.put(path(first), Node.Special())
        return {}
      case "ln":
        files.put(path(second), Node.Link({ target: first }))
        return {}
      case "chmod": {
        const node = files.at(path(second))
        if (node?._tag !== "Regular") {
          return failed(`chmod: cannot access '${second}': No such file or directory`)
        }
        files.put(path(second), Node.Regular({ ...node, mode: Number.parseInt(first, 8) }))
        return {}
      }
      case "python3": {
        const source = files.read(path(first))
        if (source === undefined) {
          return failed(`python3: can't open file '${first}': [Errno 2] No such file or directory`, 2)
        }
        const program = programs?.get(decoder.decode(source))
        return program === undefined ? failed(`python3: ${first}: no program that was told of`, 127) : program(files)
      }
      default:
        return failed(`${name}: command not found`, 127)
    }
  }

  // Output to a file that can't be made is the command's failure, as in a real shell.
  const send = (target: string | undefined, bytes: Uint8Array, otherwise: Array<Uint8Array>): boolean => {
    if (target === undefined) {
      otherwise.push(bytes)
      return true
    }
    const to = path(target)
    if (to === "/dev/null") {
      return true
    }
    if (
      files.at(to.slice(0, to.lastIndexOf("/")) || "/")?._tag !== "Directory" || files.at(to)?._tag === "Directory"
    ) {
      stderr.push(encoder.encode(`bash: ${target}: No such file or directory\n`))
      return false
    }
    files.put(to, Node.Regular({ bytes, mode: 0o644 }))
    return true
  }

  for (const line of lines) {
    if (over) {
      break
    }
    if (line.onlyIf && exitCode !== 0) {
      continue
    }
    const from = line.to.get("stdin")
    const input = line.document !== undefined
      ? encoder.encode(line.document)
      : from === undefined || from === "/dev/null"
      ? new Uint8Array()
      : files.read(path(from))
    const result = input === undefined ? failed(`bash: ${from}: No such file or directory`) : run(line.words, input)
    const sent = [
      send(line.to.get("stdout"), toBytes(result.stdout), stdout),
      send(line.to.get("stderr"), toBytes(result.stderr), stderr)
    ]
    exitCode = sent.every(Boolean) ? result.exitCode ?? 0 : 1
    duration = Duration.sum(duration, Duration.decode(result.duration ?? Duration.zero))
  }
  return { stdout: concat(stdout), stderr: concat(stderr), exitCode, duration }
}

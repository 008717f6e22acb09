/**
 * Where a command's words go: people's on one stream, a program's document on the other.
 */
import * as Config from "effect/Config"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import { styleText } from "node:util"

type Style = Parameters<typeof styleText>[0]

export interface Screen {
  /** For people. On standard error when standard output belongs to a document. */
  readonly line: (text?: string) => Effect.Effect<void>
  /** The one document on standard output. */
  readonly document: (text: string) => Effect.Effect<void>
  readonly paint: (style: Style, text: string) => string
}

/** Whether colours are wanted on a stream: it is a terminal, and nobody said no. */
export const isColoured = (stream: { readonly isTTY: boolean }): Effect.Effect<boolean> =>
  Effect.map(Effect.isSuccess(Config.nonEmptyString("NO_COLOR")), (plain) => stream.isTTY && !plain)

/** `json`: standard output is for the document alone. */
export const make = (options: { readonly json: boolean }): Effect.Effect<Screen> =>
  Effect.gen(function*() {
    const coloured = yield* isColoured(options.json ? process.stderr : process.stdout)
    return {
      line: (text = "") => options.json ? Console.error(text) : Console.log(text),
      document: Console.log,
      // Else it would look at standard output, whichever stream the text is for.
      paint: (style, text) => coloured ? styleText(style, text, { validateStream: false }) : text
    }
  })

/** A table without lines: columns as wide as their widest cell, two blanks between. */
export const table = (rows: ReadonlyArray<ReadonlyArray<string>>): ReadonlyArray<string> => {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => (row[column] ?? "").length)))
  return rows.map((row) => row.map((cell, column) => cell.padEnd(widths[column] ?? 0)).join("  ").trimEnd())
}

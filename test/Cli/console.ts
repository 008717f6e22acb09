import { Console, Effect } from "effect"

/** A console that keeps what is said, one string a call. */
export const capture = () => {
  const stdout: Array<string> = []
  const stderr: Array<string> = []
  const nothing = () => Effect.void
  const keep = (lines: Array<string>) => (...words: ReadonlyArray<unknown>) =>
    Effect.sync(() => void lines.push(words.map(String).join(" ")))
  const console: Console.Console = {
    [Console.TypeId]: Console.TypeId,
    log: keep(stdout),
    info: keep(stdout),
    debug: keep(stdout),
    error: keep(stderr),
    warn: keep(stderr),
    trace: keep(stderr),
    assert: nothing,
    clear: Effect.void,
    count: nothing,
    countReset: nothing,
    dir: nothing,
    dirxml: nothing,
    group: nothing,
    groupEnd: Effect.void,
    table: nothing,
    time: nothing,
    timeEnd: nothing,
    timeLog: nothing,
    unsafe: globalThis.console
  }
  return { console, stdout, stderr }
}

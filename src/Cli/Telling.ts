/**
 * Tells people what happens in an episode while it happens, and what came of it.
 */
import * as Arr from "effect/Array"
import * as DateTime from "effect/DateTime"
import * as Effect from "effect/Effect"
import * as Ref from "effect/Ref"
import type { PolicyTools } from "../Episode.ts"
import * as Observation from "../Episode/Observation.ts"
import type { Outcome } from "../Episode/Outcome.ts"
import type { Receipt } from "../Episode/Receipt.ts"
import type { Ledger, LedgerEntry } from "../Sandbox/Ledger.ts"
import type { Screen } from "./Screen.ts"
import { table } from "./Screen.ts"
import { visible } from "./Visible.ts"

const indented = (text: string): string => visible(text).split("\n").map((line) => `    ${line}`.trimEnd()).join("\n")

/** A ledger that says what becomes of sandboxes. */
export const ledger = Effect.fnUntraced(function*(screen: Screen, inner: typeof Ledger.Service) {
  const ids = yield* Ref.make<ReadonlyMap<string, LedgerEntry>>(new Map())
  const sentence = (entry: LedgerEntry): string | undefined => {
    switch (entry.state) {
      case "creating":
        return undefined
      case "held":
        return screen.paint("dim", `  + ${entry.role} sandbox ${entry.sandboxId}`)
      case "deleting":
        return undefined
      case "unresolved":
        return screen.paint("red", `  ! ${entry.role} sandbox ${entry.sandboxId}: not proved gone`)
      case "uncertain":
        return screen.paint(
          "red",
          `  ! ${entry.role} sandbox, label ${entry.allocation}: it isn't known whether it exists`
        )
    }
  }
  const service: typeof Ledger.Service = {
    open: inner.open,
    put: (entry) => {
      const said = sentence(entry)
      return inner.put(entry).pipe(
        Effect.zipRight(Ref.update(ids, (known) => new Map(known).set(entry.allocation, entry))),
        Effect.zipRight(said === undefined ? Effect.void : screen.line(said))
      )
    },
    remove: (allocation) =>
      Effect.gen(function*() {
        yield* inner.remove(allocation)
        const entry = (yield* Ref.get(ids)).get(allocation)
        yield* Ref.update(ids, (known) => new Map(Arr.filter([...known], ([key]) => key !== allocation)))
        if (entry?.sandboxId !== undefined) {
          yield* screen.line(
            screen.paint("dim", `  - ${entry.role} sandbox ${entry.sandboxId} deleted, absence confirmed`)
          )
        }
      })
  }
  return service
})

// A command can be as long as a file that is written with it.
const shortened = (command: string): string =>
  command.length > 400 ? `${command.slice(0, 300)} ... (${command.length} characters)` : command

// A policy sees all of it; a person who reads along sees the start.
const shownLines = 40

const excerpt = (text: string): string => {
  const lines = text.split("\n").map((line) => line.length > 400 ? `${line.slice(0, 400)} ...` : line)
  return lines.length > shownLines
    ? [...lines.slice(0, shownLines), `... (${lines.length} lines)`].join("\n")
    : lines.join("\n")
}

/** Tools that show every command and its observation. */
export const tools = (screen: Screen, inner: PolicyTools): PolicyTools => ({
  terminal: (command) =>
    screen.line(`  ${screen.paint("bold", "$")} ${indented(shortened(command)).trimStart()}`).pipe(
      Effect.zipRight(inner.terminal(command)),
      Effect.tap((observation) => screen.line(indented(excerpt(Observation.render(observation)))))
    ),
  submit: Effect.zipRight(screen.line(`  ${screen.paint("bold", "submit")}`), inner.submit)
})

export const outcome = (screen: Screen, { outcome }: { readonly outcome: Outcome }): string =>
  outcome._tag === "Aborted"
    ? screen.paint("red", `  no score: ${outcome.error._tag}`)
    : screen.paint(outcome.score === 1 ? "green" : "yellow", `  score ${outcome.score}`) + `  ${outcome.reason}`
      + (outcome.detail === undefined ? "" : ` (${outcome.detail})`)

const ago = (from: DateTime.Utc, to: DateTime.Utc): string => `${(DateTime.distance(from, to) / 1000).toFixed(2)} s`

const usd = (amount: number): string => `$${amount.toPrecision(2)}`

/** The table at the end. */
export const summary = Effect.fnUntraced(function*(
  screen: Screen,
  receipt: Receipt,
  open: ReadonlyArray<LedgerEntry>
) {
  const resources = receipt.episodes.flatMap(({ resources }, index) =>
    resources.map((resource) => ({ index, resource }))
  )
  const rows = [
    ["episode", "sandbox", "role", "lived", "deletion"],
    ...resources.map(({ index, resource }) => [
      String(index + 1),
      resource.id,
      resource.role,
      resource.confirmedAbsentAt === null ? "-" : ago(resource.startedAt, resource.confirmedAbsentAt),
      resource.confirmedAbsentAt === null ? "NOT CONFIRMED" : "confirmed"
    ])
  ]
  yield* screen.line()
  if (resources.length === 0) {
    // What is still in the ledger may exist.
    return yield* screen.line(open.length === 0 ? "no sandbox was made" : "no sandbox is known of")
  }
  yield* Effect.forEach(table(rows), (row, index) => screen.line(index === 0 ? screen.paint("dim", row) : row))
  yield* screen.line()
  const gone = resources.filter(({ resource }) => resource.confirmedAbsentAt !== null).length
  const cost = receipt.episodes.reduce((sum, episode) => sum + episode.estimatedCostUsd, 0)
  const asOf = receipt.episodes[0]?.rates.asOf
  yield* screen.line(
    `rewards ${screen.paint("bold", `[${receipt.rewards.map((reward) => reward ?? "none").join(", ")}]`)}`
      + `, ${receipt.totalSeconds.toFixed(2)} s, ${gone} of ${resources.length} sandboxes confirmed absent`
      + (asOf === undefined ? "" : `, about ${usd(cost)} at the rates of ${asOf}`)
  )
})

/**
 * What this program owns at a provider and hasn't proved gone yet.
 *
 * An entry is written before a create is asked for, gets its id as soon as there is one, and is removed by the proof of
 * absence alone. Whatever is still here when a program ends is what it left behind.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as HashMap from "effect/HashMap"
import * as Layer from "effect/Layer"
import * as Ref from "effect/Ref"
import * as Schema from "effect/Schema"
import { Role, SandboxId } from "../Sandbox.ts"

/**
 * One sandbox that may exist.
 *
 * - `creating`: asked for, no reply yet
 * - `held`: in use
 * - `deleting`: deletion is under way
 * - `unresolved`: every attempt to delete it and to prove it gone failed
 * - `uncertain`: the reply to the create was lost, and no sandbox with its label was found
 *
 * @since 0.1.0
 * @category models
 */
export class LedgerEntry extends Schema.Class<LedgerEntry>("episode/Sandbox/LedgerEntry")({
  /** The value of the `episode.allocation` label, by which the provider can be asked for the sandbox. */
  allocation: Schema.NonEmptyString,
  provider: Schema.NonEmptyString,
  role: Role,
  sandboxId: Schema.optionalWith(SandboxId, { exact: true }),
  state: Schema.Literal("creating", "held", "deleting", "unresolved", "uncertain")
}) {}

/**
 * @since 0.1.0
 * @category tags
 */
export class Ledger extends Context.Tag("episode/Sandbox/Ledger")<Ledger, {
  /** Adds an entry, or replaces the one of the same allocation. */
  readonly put: (entry: LedgerEntry) => Effect.Effect<void>
  readonly remove: (allocation: string) => Effect.Effect<void>
  /** What isn't proved gone, in no particular order. */
  readonly open: Effect.Effect<ReadonlyArray<LedgerEntry>>
}>() {}

/**
 * A ledger for as long as the program runs.
 *
 * @since 0.1.0
 * @category layers
 */
export const layerMemory: Layer.Layer<Ledger> = Layer.effect(
  Ledger,
  Effect.map(Ref.make(HashMap.empty<string, LedgerEntry>()), (entries) => ({
    put: (entry) => Ref.update(entries, HashMap.set(entry.allocation, entry)),
    remove: (allocation) => Ref.update(entries, HashMap.remove(allocation)),
    open: Effect.map(Ref.get(entries), HashMap.toValues)
  }))
)

import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as Screens from "../../src/Cli/Screen.ts"
import * as Telling from "../../src/Cli/Telling.ts"
import * as Receipts from "../../src/Episode/Receipt.ts"
import { LedgerEntry } from "../../src/Sandbox/Ledger.ts"
import { capture } from "./console.ts"

describe("Telling.summary", () => {
  it.effect("doesn't say that no sandbox was made where one may have been", () =>
    Effect.gen(function*() {
      const { console, stdout } = capture()
      const screen = yield* Screens.make({ json: false })
      const receipt = Receipts.fromEpisodes([], 1)
      const uncertain = new LedgerEntry({ allocation: "a", provider: "p", role: "policy", state: "uncertain" })
      yield* Telling.summary(screen, receipt, []).pipe(Effect.withConsole(console))
      yield* Telling.summary(screen, receipt, [uncertain]).pipe(Effect.withConsole(console))
      assert.deepStrictEqual(stdout.filter((line) => line !== ""), ["no sandbox was made", "no sandbox is known of"])
    }))
})

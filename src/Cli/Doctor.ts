/**
 * `episode doctor`: whether this machine has what a provider needs, and what to do where it hasn't.
 */
import * as Command from "@effect/cli/Command"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Episodes from "./Episodes.ts"
import { NotReady } from "./Exit.ts"
import * as Screens from "./Screen.ts"

const marks = { ok: "ok", warning: "warning", failed: "MISSING" } as const
const styles = { ok: "green", warning: "yellow", failed: "red" } as const

const doctorOf = {
  local: Effect.promise(() => import("../Sandbox/Local/Doctor.ts")),
  e2b: Effect.promise(() => import("../Sandbox/E2b/Doctor.ts"))
}

export const doctor = Command.make(
  "doctor",
  { provider: Episodes.provider, json: Episodes.json },
  ({ json, provider }) =>
    Effect.gen(function*() {
      const screen = yield* Screens.make({ json })
      const { Check, checks } = yield* doctorOf[provider]
      const found = yield* checks
      if (json) {
        // Encoding what this program made itself can't fail.
        yield* Effect.orDie(Schema.encode(Schema.parseJson(Schema.Array(Check), { space: 2 }))(found)).pipe(
          Effect.flatMap(Console.log)
        )
      }
      for (const check of found) {
        const detail = check.status === "ok" ? check.found ?? "" : check.todo ?? ""
        yield* screen.line(
          `${screen.paint(styles[check.status], marks[check.status].padEnd(8))} ${check.title}${
            detail === "" ? "" : `: ${detail}`
          }`
        )
      }
      const missing = found.filter((check) => check.status === "failed").length
      if (missing > 0) {
        return yield* new NotReady({
          message: `the ${provider} provider can't run here: ${missing} of ${found.length} checks failed`
        })
      }
      yield* screen.line(`the ${provider} provider can run here`)
    })
).pipe(Command.withDescription("Check what a provider needs, without making a sandbox"))

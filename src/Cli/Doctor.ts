/**
 * `episode doctor`: whether this machine has what a provider needs, and what to do where it hasn't.
 */
import * as Command from "@effect/cli/Command"
import * as Options from "@effect/cli/Options"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as Episodes from "./Episodes.ts"
import { NotReady } from "./Exit.ts"
import * as Screens from "./Screen.ts"

const marks = { ok: "ok", warning: "warning", failed: "MISSING" } as const
const styles = { ok: "green", warning: "yellow", failed: "red" } as const

/** What the doctors of all providers say. */
const Check = Schema.Struct({
  id: Schema.String,
  title: Schema.String,
  status: Schema.Literal("ok", "warning", "failed"),
  found: Schema.optionalWith(Schema.String, { exact: true }),
  todo: Schema.optionalWith(Schema.String, { exact: true })
})

// Loaded when it is needed.
const doctorOf = {
  local: Effect.promise(() => import("../Sandbox/Local/Doctor.ts")),
  e2b: Effect.promise(() => import("../Sandbox/E2b/Doctor.ts"))
}

const checksOf = (source: Episodes.Source) =>
  Effect.gen(function*() {
    if (source.name !== "openenv") {
      return yield* (yield* doctorOf[source.name]).checks
    }
    const { check } = yield* Effect.promise(() => import("./DoctorOpenEnv.ts"))
    const { name, words } = yield* Episodes.reachOf(source)
    const { checks } = yield* doctorOf[name]
    return [
      yield* check(source.url, yield* Episodes.openenvHeaders),
      { id: "sandboxes", title: "where its sandboxes are looked for", status: "ok" as const, found: words },
      ...(yield* checks)
    ]
  })

const json = Options.boolean("json").pipe(
  Options.withDescription("print the checks as one JSON document on standard output, and all else on standard error")
)

export const doctor = Command.make(
  "doctor",
  { provider: Episodes.source, json },
  ({ json, provider }) =>
    Effect.gen(function*() {
      const screen = yield* Screens.make({ json })
      const found: ReadonlyArray<typeof Check.Type> = yield* checksOf(provider)
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
          message: `the ${provider.name} provider can't run here: ${missing} of ${found.length} checks failed`
        })
      }
      yield* screen.line(`the ${provider.name} provider can run here`)
    })
).pipe(Command.withDescription("Check what a provider needs; a local one by making a sandbox"))

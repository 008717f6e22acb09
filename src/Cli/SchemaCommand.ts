/**
 * `episode schema`: the forms of files, as JSON Schema.
 */
import * as Args from "@effect/cli/Args"
import * as Command from "@effect/cli/Command"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as JSONSchema from "effect/JSONSchema"
import * as Schema from "effect/Schema"
import { Receipt } from "../Episode/Receipt.ts"
import { TaskFile } from "../Task/Report.ts"

const schemaOf = (name: "receipt" | "task"): JSONSchema.JsonSchema7Root =>
  name === "receipt" ? JSONSchema.make(Receipt) : JSONSchema.make(TaskFile)

export const schema = Command.make(
  "schema",
  {
    name: Args.choice<"receipt" | "task">([["receipt", "receipt"], ["task", "task"]], { name: "name" }).pipe(
      Args.withDescription("what `--json` prints, or what a task file holds")
    )
  },
  ({ name }) =>
    Effect.flatMap(
      // A JSON Schema is JSON.
      Effect.orDie(Schema.encode(Schema.parseJson(Schema.Unknown, { space: 2 }))(schemaOf(name))),
      Console.log
    )
).pipe(Command.withDescription("Print a JSON Schema"))

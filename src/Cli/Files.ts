/**
 * The files that commands read and write.
 */
import type { PlatformError } from "@effect/platform/Error"
import * as FileSystem from "@effect/platform/FileSystem"
import * as Path from "@effect/platform/Path"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { Receipt } from "../Episode/Receipt.ts"
import * as Report from "../Task/Report.ts"
import { NotReady, Usage } from "./Exit.ts"

const because = (error: PlatformError): string => {
  switch (error._tag === "SystemError" ? error.reason : error._tag) {
    case "NotFound":
      return "there is no such file or directory"
    case "PermissionDenied":
      return "permission denied"
    default:
      return "it can't be used; is it a regular file?"
  }
}

const unusable = (path: string) => (error: PlatformError) => new Usage({ message: `${path}: ${because(error)}` })

const read = (path: string) =>
  Effect.flatMap(FileSystem.FileSystem, (fs) => fs.readFile(path)).pipe(Effect.mapError(unusable(path)))

const indented = (lines: ReadonlyArray<string>): string => lines.map((line) => `\n  ${line}`).join("")

/** A task file. Whatever is wrong with it is told with the file's name. */
export const readTask = (path: string) =>
  Effect.flatMap(
    read(path),
    (bytes) =>
      Effect.mapError(Report.decode(bytes), (invalid) =>
        new Usage({ message: `${path} is not a valid task:${indented(invalid.message.split("\n"))}` }))
  )

const Json = Schema.parseJson()

// Looked at by hand: a schema's words quote the file, which may be a task with what is held out.
const script = (text: string): Either.Either<ReadonlyArray<string>, string> =>
  Either.gen(function*() {
    const parsed = yield* Either.mapLeft(Schema.decodeEither(Json)(text), () => "it isn't JSON")
    if (!Array.isArray(parsed)) {
      return yield* Either.left("it is something else")
    }
    const commands: ReadonlyArray<unknown> = parsed
    const wrong = commands.findIndex((command) => typeof command !== "string")
    return wrong < 0 ? commands.map(String) : yield* Either.left(`number ${wrong + 1} isn't a string`)
  })

/** A script: a JSON array of shell commands. */
export const readScript = (path: string) =>
  Effect.flatMap(
    read(path),
    (bytes) =>
      Either.mapLeft(script(new TextDecoder().decode(bytes)), (problem) =>
        new Usage({ message: `${path} is not a script, which is a JSON array of shell commands: ${problem}` }))
  )

const isReceipt = Schema.is(Schema.Struct({ version: Schema.Number, rewards: Schema.Array(Schema.Unknown) }))

const holdsReceipt = (text: string): boolean => Option.exists(Schema.decodeOption(Json)(text), isReceipt)

/**
 * Looks whether a receipt can be written, before an episode is run for it, and gives the effect that writes it: whole or
 * not at all. An older receipt is removed, so that it isn't taken for this run's; anything else is left as it is.
 */
export const receiptWriter = Effect.fnUntraced(function*(path: Option.Option<string>) {
  if (Option.isNone(path)) {
    return () => Effect.void
  }
  const fs = yield* FileSystem.FileSystem
  const target = path.value
  const failed = Effect.mapError(unusable(target))
  const directory = (yield* Path.Path).dirname(target)
  yield* failed(fs.access(directory, { writable: true }))
  if (yield* failed(fs.exists(target))) {
    const { type } = yield* failed(fs.stat(target))
    if (type !== "File") {
      return yield* new Usage({ message: `${target}: there is something that isn't a regular file` })
    }
    const text = new TextDecoder().decode(yield* failed(fs.readFile(target)))
    if (text.trim() !== "" && !holdsReceipt(text)) {
      return yield* new Usage({ message: `${target}: there is a file that isn't a receipt; name another one` })
    }
    yield* failed(fs.remove(target))
  }
  const partial = `${target}.partial`
  return (json: string) =>
    Effect.zipRight(fs.writeFileString(partial, `${json}\n`), fs.rename(partial, target)).pipe(
      Effect.tapError(() => Effect.ignore(fs.remove(partial, { force: true }))),
      // The episode has been: the command was given well, and it is the machine that lacks something.
      Effect.mapError((error) =>
        new NotReady({ message: `${target}: the receipt could not be written: ${error.description ?? because(error)}` })
      )
    )
})

/** The document that `--json` prints and `--receipt` writes. */
export const receiptJson = Schema.encode(Schema.parseJson(Receipt, { space: 2 }))

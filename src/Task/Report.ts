/**
 * The `task.json` format: a small Python program sums the amounts of a CSV file by region, wrongly, and is to be
 * repaired.
 *
 * @since 0.1.0
 */
import * as Arr from "effect/Array"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import { pipe } from "effect/Function"
import * as Option from "effect/Option"
import * as ParseResult from "effect/ParseResult"
import * as Schema from "effect/Schema"
import {
  decodeUtf8,
  type JsonDocument,
  type JsonFault,
  type JsonObject,
  maxDepth,
  read,
  showPath,
  showPlace
} from "../internal/losslessJson.ts"
import { sha256 } from "../internal/sha256.ts"
import { InvalidTask, SandboxPath, type Task, TaskId, verification } from "../Task.ts"

// ----------------------------------------------------------------------------
// the format
// ----------------------------------------------------------------------------

const KiB = 1024
const MiB = 1024 * KiB

const encoder = new TextEncoder()

// A surrogate without its partner has no UTF-8: it would silently become another character on its way into a sandbox.
const textProblem = (text: string, maxBytes: number): string | undefined =>
  text === ""
    ? "is empty; write some text or, if the field is optional, leave it out"
    : /\p{Surrogate}/u.test(text)
    ? "holds half of a surrogate pair, which can't be written as UTF-8; remove the lone \\ud800 to \\udfff escape"
    : encoder.encode(text).length > maxBytes
    ? `is longer than ${maxBytes / KiB} KiB as UTF-8; shorten it`
    : undefined

const text = (maxBytes: number, description: string) =>
  Schema.String.annotations({ message: () => "is not a string; put the text in double quotes" }).pipe(
    Schema.filter((value) => textProblem(value, maxBytes), {
      description: `${description} At most ${maxBytes / KiB} KiB as UTF-8.`,
      jsonSchema: { minLength: 1 }
    })
  )

const Tree = Schema.declare(
  (input: unknown): input is JsonObject => typeof input === "object" && input !== null && !Array.isArray(input),
  {
    message: () => "is not an object; write it as {\"region\": total, ...}",
    jsonSchema: { type: "object", additionalProperties: { type: "integer" } }
  }
)

const notInteger = "is not an integer; write it in digits, without quotes, fraction, exponent or minus zero"

// Not a Schema.Record: that one would lose `__proto__`.
const Totals = Schema.transformOrFail(
  Tree,
  Schema.ReadonlyMapFromSelf({ key: Schema.String, value: Schema.BigIntFromSelf }),
  {
    strict: true,
    decode: (tree, _, ast) => {
      const [wrong, totals] = Arr.partitionMap(Object.entries(tree), ([region, total]) =>
        typeof total === "bigint"
          ? Either.right([region, total] as const)
          : Either.left(new ParseResult.Pointer(region, tree, new ParseResult.Type(ast, total, notInteger))))
      return Arr.isNonEmptyArray(wrong)
        ? ParseResult.fail(new ParseResult.Composite(ast, tree, wrong))
        : ParseResult.succeed(new Map(totals))
    },
    encode: (totals) => ParseResult.succeed(Object.fromEntries(totals))
  }
).annotations({ description: "An integer of any size for each key that a right program prints." })

const required = <S extends Schema.Schema.Any>(schema: S) =>
  Schema.propertySignature(schema).annotations({ missingMessage: () => "is missing; add it" })

const object = "is not an object; write it in braces"

/**
 * What a `task.json` holds. It is meant for the tree of a lossless reader, in which an integer is a `bigint`; use
 * {@link decode} for files, and `JSONSchema.make` for a description that editors understand.
 *
 * A total may have any number of digits. Python programs, though, convert integers of more than 4300 digits to and from
 * text only after `sys.set_int_max_str_digits(0)`.
 *
 * @since 0.1.0
 * @category schemas
 */
export const TaskFile = Schema.Struct({
  id: required(
    TaskId.annotations({
      description: "Names the task in receipts.",
      message: () => ({
        message:
          "is not an id; write a string of 1 to 64 of a-z, 0-9, '.', '_' and '-' that starts with a letter or digit",
        override: true
      })
    })
  ),
  prompt: required(text(64 * KiB, "What the policy is told.")),
  input: required(text(MiB, "The CSV file the policy sees, at /home/user/work/sales.csv.")),
  expected: required(Totals),
  verification: required(
    Schema.Struct({
      input: required(text(MiB, "The CSV file the repaired program is run on. The policy never sees it.")),
      expected: required(Totals)
    }).annotations({ message: () => object, description: "The held-out half. It never enters a policy sandbox." })
  ),
  starter: Schema.optionalWith(
    text(64 * KiB, "The program to repair, at /home/user/work/report.py. Left out: a built-in one."),
    { exact: true }
  ),
  solution: Schema.optionalWith(
    text(64 * KiB, "A repaired program, for checking the task. It stays on the host."),
    { exact: true }
  )
}).annotations({
  title: "Episode task",
  description: "A Python program that reads a CSV file and prints one JSON object of integers, to be repaired.",
  message: () => object
})

/**
 * @since 0.1.0
 * @category models
 */
export type TaskFile = typeof TaskFile.Type

/**
 * The program to repair where a task file names none: a region's later amounts replace the earlier ones.
 *
 * @since 0.1.0
 * @category defaults
 */
export const defaultStarter = `import csv
import json


def main():
    totals = {}
    with open("/home/user/work/sales.csv", newline="", encoding="utf-8") as sales:
        for row in csv.DictReader(sales):
            totals[row["region"]] = int(row["amount"])
    print(json.dumps(totals))


if __name__ == "__main__":
    main()
`

// ----------------------------------------------------------------------------
// decoding
// ----------------------------------------------------------------------------

/**
 * A task read from a file, and what of the file is for the host alone.
 *
 * @since 0.1.0
 * @category models
 */
export interface ReportTask {
  readonly task: Task
  /** What a repaired program prints for the input that the policy sees. For the host: it isn't part of the workspace. */
  readonly visible: { readonly expected: ReadonlyMap<string, bigint> }
  /** The program to repair. */
  readonly starter: string
  /** A repaired program, if the file has one. For the host: it isn't part of the workspace. */
  readonly solution: Option.Option<string>
}

interface Issue {
  readonly path: string
  readonly message: string
}

const wholeFile = (message: string): Issue => ({ path: "", message })

const invalid = (issue: Issue): InvalidTask => new InvalidTask({ issues: [issue] })

const report = SandboxPath.make("/home/user/work/report.py")
const sales = SandboxPath.make("/home/user/work/sales.csv")
const directory = SandboxPath.make("/home/user/work")

const maxFile = 4 * MiB

const toText = (bytes: Uint8Array): Either.Either<string, Issue> => {
  if (bytes.length > maxFile) {
    return Either.left(wholeFile(`the file is longer than ${maxFile / MiB} MiB; shorten it`))
  }
  return pipe(
    Either.fromOption(decodeUtf8(bytes), () => wholeFile("the file is not UTF-8; save it as UTF-8")),
    Either.filterOrLeft(
      (decoded) => !decoded.startsWith("\ufeff"),
      () => wholeFile("the file starts with a byte order mark; save it as UTF-8 without one")
    )
  )
}

const faultIssue = (fault: JsonFault): Issue => {
  switch (fault._tag) {
    case "Syntax": {
      const where = Option.match(fault.place, { onNone: () => "", onSome: (place) => `${showPlace(place)}: ` })
      return wholeFile(`${where}not JSON; mind that comments, single quotes and trailing commas aren't allowed`)
    }
    case "Depth":
      return wholeFile(`${showPlace(fault.place)}: nested deeper than ${maxDepth} levels; the format has three`)
  }
}

const decodeFile = ParseResult.decodeUnknownEither(TaskFile, { errors: "all", onExcessProperty: "error" })

const schemaIssues = (issue: ParseResult.ParseIssue): ReadonlyArray<Issue> =>
  Arr.map(
    ParseResult.ArrayFormatter.formatIssueSync(issue),
    ({ _tag, message, path }) =>
      path.length === 0 ? wholeFile(`the file ${message}`) : {
        path: showPath(path),
        message: _tag === "Unexpected" ? `${message}; remove it or correct its name` : message
      }
  )

const duplicateIssues = (document: JsonDocument): ReadonlyArray<Issue> =>
  Arr.map(document.duplicates, ({ path, place }) => ({
    path: showPath(path),
    message: `occurs twice, again at ${showPlace(place)}; keep one of them`
  }))

// Nobody reads more, and a file can have hundreds of thousands.
const maxIssues = 100

const firstOf = (issues: Arr.NonEmptyReadonlyArray<Issue>): Arr.NonEmptyReadonlyArray<Issue> => {
  const [first, rest] = Arr.splitNonEmptyAt(issues, maxIssues)
  return rest.length === 0 ? first : [...first, wholeFile(`and ${rest.length} more mistakes; correct these first`)]
}

const toFile = (document: JsonDocument): Either.Either<TaskFile, InvalidTask> => {
  const decoded = decodeFile(document.root)
  const issues = [...duplicateIssues(document), ...Either.match(decoded, { onLeft: schemaIssues, onRight: () => [] })]
  return Arr.isNonEmptyArray(issues)
    ? Either.left(new InvalidTask({ issues: firstOf(issues) }))
    // Whatever is refused has an issue.
    : Either.right(Either.getOrThrow(decoded))
}

const toTask = (file: TaskFile, digest: string): ReportTask => {
  const starter = file.starter ?? defaultStarter
  return {
    task: {
      id: file.id,
      digest,
      prompt: file.prompt,
      workspace: [
        { path: report, bytes: encoder.encode(starter) },
        { path: sales, bytes: encoder.encode(file.input) }
      ],
      submission: report,
      verification: verification({
        files: [{ path: sales, bytes: encoder.encode(file.verification.input) }],
        command: ["python3", "-B", report],
        cwd: directory,
        grader: { _tag: "Totals", expected: file.verification.expected }
      })
    },
    visible: { expected: file.expected },
    starter,
    solution: Option.fromNullable(file.solution)
  }
}

/**
 * Reads a task file, or says what is wrong with it: all of it, up to a hundred mistakes.
 *
 * **Details**
 *
 * The file is strict JSON in UTF-8 without a byte order mark, of at most 4 MiB. Unknown fields, keys that occur twice and
 * numbers that aren't integers as written are refused, each with its path. Totals are exact at any size.
 *
 * @example
 * ```ts
 * import { FileSystem } from "@effect/platform"
 * import { Effect } from "effect"
 * import * as Report from "episode/Task/Report"
 *
 * const program = Effect.gen(function*() {
 *   const fs = yield* FileSystem.FileSystem
 *   const { task } = yield* Report.decode(yield* fs.readFile("task.json"))
 *   yield* Effect.log(`${task.id}, sha256 ${task.digest}`)
 * })
 * ```
 *
 * @since 0.1.0
 * @category decoding
 */
export const decode: (bytes: Uint8Array) => Effect.Effect<ReportTask, InvalidTask> = Effect.fn("Report.decode")(
  function*(bytes: Uint8Array) {
    const decoded = yield* Either.mapLeft(toText(bytes), invalid)
    const document = yield* Either.mapLeft(read(decoded), (fault) => invalid(faultIssue(fault)))
    const file = yield* toFile(document)
    return toTask(file, yield* sha256(bytes))
  }
)

import * as PlatformError from "@effect/platform/Error"
import * as FileSystem from "@effect/platform/FileSystem"
import * as Path from "@effect/platform/Path"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Layer, Option } from "effect"
import { receiptWriter } from "../../src/Cli/Files.ts"

describe("a receipt", () => {
  const over = (before: string) => {
    const removed: Array<string> = []
    const disk = FileSystem.layerNoop({
      access: () => Effect.void,
      exists: () => Effect.succeed(true),
      // Nothing else of it is looked at.
      stat: () => Effect.succeed({ type: "File" } as FileSystem.File.Info),
      readFile: () => Effect.succeed(new TextEncoder().encode(before)),
      remove: (path) => Effect.sync(() => void removed.push(path))
    })
    return Effect.exit(receiptWriter(Option.some("/somewhere/file"))).pipe(
      Effect.provide(Layer.merge(disk, Path.layer)),
      Effect.map((exit) => [exit._tag, removed] as const)
    )
  }

  it.effect("takes the place of an older one, which goes at once, and of nothing else", () =>
    Effect.gen(function*() {
      for (const before of ["", "\n", "{ \"version\": 1, \"rewards\": [1] }"]) {
        assert.deepStrictEqual(yield* over(before), ["Success", ["/somewhere/file"]], before)
      }
      for (const before of ["[\"ls\"]", "{ \"id\": \"a-task\" }", "text", "{ \"version\": 1 }"]) {
        assert.deepStrictEqual(yield* over(before), ["Failure", []], before)
      }
    }))

  it.effect("that can't be written leaves no half of it, and says why", () => {
    const removed: Array<string> = []
    const full = new PlatformError.SystemError({
      reason: "Unknown",
      module: "FileSystem",
      method: "writeFile",
      description: "ENOSPC: no space left on device, write"
    })
    const disk = FileSystem.layerNoop({
      access: () => Effect.void,
      exists: () => Effect.succeed(false),
      writeFile: () => full,
      writeFileString: () => full,
      remove: (path) => Effect.sync(() => void removed.push(path))
    })
    return Effect.gen(function*() {
      const write = yield* receiptWriter(Option.some("/somewhere/receipt.json"))
      const error = yield* Effect.flip(write("{}"))
      assert.strictEqual(error._tag, "NotReady")
      assert.include(error.message, "/somewhere/receipt.json: the receipt could not be written: ENOSPC: no space left")
      assert.deepStrictEqual(removed, ["/somewhere/receipt.json.partial"])
    }).pipe(Effect.provide(Layer.merge(disk, Path.layer)))
  })
})

import { assert, describe, it } from "@effect/vitest"
import * as Environments from "../../src/OpenEnv/Environment.ts"

describe("an excerpt", () => {
  const sizeOf = (text: string) => Buffer.byteLength(JSON.stringify(text))

  it.each(["x", "\u0001", "é", "🙂", "\"\n"])(
    "of %j is as long as its size allows, with head, tail and the cut",
    (char) => {
      const text = `first${char.repeat(50_000)}last`
      const cut = Environments.excerpt(text, 20_000)
      assert.match(cut, /^first.*\n\[\.\.\. \d+ of \d+ characters left out \.\.\.\]\n.*last$/su)
      assert.notMatch(cut, /\p{Surrogate}/u)
      assert.isBelow(sizeOf(cut), 20_100)
      assert.isAbove(sizeOf(cut), 18_000)
      const [, left] = /\[\.\.\. (\d+) of/.exec(cut) ?? []
      assert.closeTo(cut.length + Number(left), text.length, 60)
      assert.strictEqual(Environments.excerpt(text, sizeOf(text)), text)
    }
  )
})

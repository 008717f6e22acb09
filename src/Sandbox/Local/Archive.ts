/**
 * A tar archive of files, in memory.
 */
import * as Effect from "effect/Effect"
import { buffer } from "node:stream/consumers"
import { pack as makePack } from "tar-stream"

export interface Entry {
  /** Relative to where the archive is unpacked. */
  readonly path: string
  readonly mode?: number | undefined
  readonly content: Uint8Array
}

const collect = (entries: ReadonlyArray<Entry>): Promise<Buffer> => {
  const archive = makePack()
  for (const { content, mode, path } of entries) {
    archive.entry({ name: path, type: "file", mode: mode ?? 0o644, uid: 0, gid: 0 }, Buffer.from(content))
  }
  archive.finalize()
  return buffer(archive)
}

/** Packs names of any length and any characters. */
export const pack = (entries: ReadonlyArray<Entry>): Effect.Effect<Buffer> => Effect.promise(() => collect(entries))

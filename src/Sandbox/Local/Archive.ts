/**
 * A tar archive in memory.
 */
import * as Effect from "effect/Effect"
import { buffer } from "node:stream/consumers"
import { pack as makePack } from "tar-stream"

export interface Entry {
  /** Relative to where the archive is unpacked. */
  readonly path: string
  readonly type: "file" | "directory" | "symlink" | "fifo"
  readonly mode?: number | undefined
  readonly owner?: number | undefined
  readonly content?: Uint8Array | string | undefined
  readonly to?: string | undefined
}

const defaultModes = { file: 0o644, directory: 0o755, symlink: 0o777, fifo: 0o600 }

const collect = (entries: ReadonlyArray<Entry>): Promise<Buffer> => {
  const archive = makePack()
  for (const entry of entries) {
    const header = {
      name: entry.path,
      type: entry.type,
      mode: entry.mode ?? defaultModes[entry.type],
      uid: entry.owner ?? 0,
      gid: entry.owner ?? 0,
      ...(entry.to === undefined ? {} : { linkname: entry.to })
    }
    if (entry.type === "file") {
      archive.entry(header, Buffer.from(entry.content ?? ""))
    } else {
      archive.entry(header)
    }
  }
  archive.finalize()
  return buffer(archive)
}

/** Packs names of any length and any characters. */
export const pack = (entries: ReadonlyArray<Entry>): Effect.Effect<Buffer> => Effect.promise(() => collect(entries))

/**
 * Packs what it packed last time at once: the roots of one machine's sandboxes are the same, and packing one would be a
 * quarter of making it.
 */
export const remembering = (): typeof pack => {
  let last: { readonly key: string; readonly archive: Buffer } | undefined
  return (entries) =>
    Effect.suspend(() => {
      const key = entries.flatMap(({ content, mode, owner, path, to, type }) => [path, type, mode, owner, to, content])
        .join("\0")
      return last?.key === key ? Effect.succeed(last.archive) : Effect.tap(pack(entries), (archive) =>
        Effect.sync(() => {
          last = { key, archive }
        }))
    })
}

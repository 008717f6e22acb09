/**
 * The files of a simulated sandbox.
 *
 * @since 0.1.0
 */
import * as Data from "effect/Data"
import { FileRead } from "../../Sandbox.ts"

/**
 * What stands at a path.
 *
 * @since 0.1.0
 * @category models
 */
export type Node = Data.TaggedEnum<{
  Regular: { readonly bytes: Uint8Array; readonly mode: number }
  Directory: {}
  Link: { readonly target: string }
  /** A FIFO, socket or device. */
  Special: {}
}>

/**
 * @since 0.1.0
 * @category constructors
 */
export const Node = Data.taggedEnum<Node>()

/**
 * A small file system. Paths are absolute.
 *
 * @since 0.1.0
 * @category models
 */
export interface FileSystem {
  /** What stands at a path, links not followed; undefined where nothing does. */
  readonly at: (path: string) => Node | undefined
  /** A regular file's bytes, links followed, as a program sees it; undefined where there is none or it is unreadable. */
  readonly read: (path: string) => Uint8Array | undefined
  /** Creates or replaces whatever stands at a path, and makes its parent directories. */
  readonly put: (path: string, node: Node) => void
  /** Removes what stands at a path and below it. */
  readonly remove: (path: string) => void
  /** What the sandbox interface's `readFile` says of a path. */
  readonly inspect: (path: string, maxBytes: number) => FileRead
  /** Every regular file. */
  readonly regular: () => ReadonlyMap<string, Uint8Array>
}

const parents = (path: string): ReadonlyArray<string> => {
  const parts = path.split("/").slice(1, -1)
  return parts.map((_, index) => `/${parts.slice(0, index + 1).join("/")}`)
}

// As many as Linux follows before it gives up.
const maxLinks = 40

const isReadable = (mode: number): boolean => (mode & 0o400) !== 0

/**
 * An absolute path without `.`, `..` and empty parts, as seen from a working directory.
 *
 * @since 0.1.0
 * @category combinators
 */
export const resolve = (directory: string, path: string): string =>
  `/${
    (path.startsWith("/") ? path : `${directory}/${path}`).split("/").reduce<ReadonlyArray<string>>(
      (parts, part) => part === "" || part === "." ? parts : part === ".." ? parts.slice(0, -1) : [...parts, part],
      []
    ).join("/")
  }`

/**
 * A file system with a home directory, `/tmp` and two devices.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = (): FileSystem => {
  const nodes = new Map<string, Node>([
    ...["/", "/home", "/home/user", "/tmp", "/dev"].map((path) => [path, Node.Directory()] as const),
    ["/dev/null", Node.Special()],
    ["/dev/zero", Node.Special()]
  ])

  const at: FileSystem["at"] = (path) => nodes.get(path)

  const follow = (path: string, left = maxLinks): Node | undefined => {
    const node = nodes.get(path)
    return node?._tag !== "Link"
      ? node
      : left === 0
      ? undefined
      : follow(resolve(path.slice(0, path.lastIndexOf("/")), node.target), left - 1)
  }

  return {
    at,
    read: (path) => {
      const node = follow(path)
      return node?._tag === "Regular" && isReadable(node.mode) ? node.bytes : undefined
    },
    put: (path, node) => {
      parents(path).forEach((parent) => {
        if (nodes.get(parent)?._tag !== "Directory") {
          nodes.set(parent, Node.Directory())
        }
      })
      nodes.set(path, node)
    },
    remove: (path) => {
      for (const other of [...nodes.keys()]) {
        if (other === path || other.startsWith(`${path}/`)) {
          nodes.delete(other)
        }
      }
    },
    inspect: (path, maxBytes) => {
      if (parents(path).some((parent) => nodes.get(parent)?._tag === "Link")) {
        return FileRead.NotRegular()
      }
      const node = nodes.get(path)
      return node === undefined
        ? FileRead.Missing()
        : node._tag !== "Regular"
        ? FileRead.NotRegular()
        : !isReadable(node.mode)
        ? FileRead.Unreadable()
        : node.bytes.length > maxBytes
        ? FileRead.TooLarge()
        : FileRead.Bytes({ bytes: node.bytes.slice() })
    },
    regular: () =>
      new Map([...nodes].flatMap(([path, node]) => node._tag === "Regular" ? [[path, node.bytes] as const] : []))
  }
}

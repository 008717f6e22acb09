// Bundles the command line, because module loading is most of its start: `--version` takes 160 ms instead of 530 ms.
import { build } from "esbuild"
import { readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { basename, join } from "node:path"
import { fileURLToPath } from "node:url"

const fromRoot = (/** @type {string} */ path) => fileURLToPath(new URL(`../${path}`, import.meta.url))

// Not dist/cli.js: on a file system that ignores case that is dist/Cli.js, which tsc writes.
const outdir = fromRoot("dist/bundle")

const { metafile } = await build({
  absWorkingDir: fromRoot("."),
  entryPoints: { episode: "src/bin.ts" },
  outdir,
  metafile: true,
  bundle: true,
  format: "esm",
  platform: "node",
  target: "node20.18",
  // A dynamic import becomes a file of its own: a provider is loaded only when it is chosen.
  splitting: true,
  chunkNames: "chunk-[hash]",
  // The E2B SDK is only for those who use it; the watcher is a native addon that the command line never calls.
  external: ["e2b", "@parcel/watcher"],
  // CommonJS dependencies ask for Node's modules by `require`.
  banner: {
    js:
      "import { createRequire as __createRequire } from \"node:module\"\nconst require = __createRequire(import.meta.url)"
  },
  // Neither minified nor mapped: the names in a bug's stack trace stay readable, and errors for people have no stack.
  logLevel: "warning"
})

// Whoever gets the bundle gets the licences of what is in it.
const packages = new Set(
  Object.keys(metafile.inputs).flatMap((path) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(path) ?? [])
)
const licences = [...packages].toSorted().map((folder) => {
  const { license, name, version } = JSON.parse(readFileSync(fromRoot(`${folder}/package.json`), "utf8"))
  const file = readdirSync(fromRoot(folder)).find((entry) => /^licen[cs]e/i.test(entry))
  const text = file === undefined ? "" : `\n${readFileSync(join(fromRoot(folder), file), "utf8").trim()}\n`
  return `${name} ${version} (${license})\n${text}`
})
writeFileSync(join(outdir, "THIRD-PARTY.txt"), licences.join(`\n${"-".repeat(80)}\n\n`))

// Last, and not the whole folder first: a command line that is being started meanwhile finds all of its files.
const made = new Set(["THIRD-PARTY.txt", ...Object.keys(metafile.outputs).map((path) => basename(path))])
for (const stale of readdirSync(outdir).filter((name) => !made.has(name))) {
  rmSync(join(outdir, stale), { recursive: true })
}

#!/usr/bin/env node
import { existsSync } from "node:fs"

// The build makes it; this file is committed so that it is executable in a fresh clone, whatever npm does.
const bundle = new URL("../dist/bundle/episode.js", import.meta.url)

if (existsSync(bundle)) {
  try {
    await import(bundle.href)
  } catch (error) {
    // Before there is a program that could say so: a machine without descriptors, say.
    process.stderr.write(`episode: it can't start here: ${error instanceof Error ? error.message : String(error)}\n`)
    process.exitCode = 3
  }
} else {
  process.stderr.write("episode isn't built yet: run `npm run build` in its folder\n")
  process.exitCode = 2
}

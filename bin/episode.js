#!/usr/bin/env node
import { existsSync } from "node:fs"

// The build makes it; this file is committed so that it is executable in a fresh clone, whatever npm does.
const bundle = new URL("../dist/bundle/episode.js", import.meta.url)

if (existsSync(bundle)) {
  await import(bundle.href)
} else {
  process.stderr.write("episode isn't built yet: run `npm run build` in its folder\n")
  process.exitCode = 2
}

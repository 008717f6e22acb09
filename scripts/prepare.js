// Builds, unless what is built is newer than all that it is made from. `npx` in a checkout prepares the package once more
// for every user, who may not be allowed to write here.
import { execSync } from "node:child_process"
import { readdirSync, statSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"

const root = fileURLToPath(new URL("..", import.meta.url))

const changed = (/** @type {string} */ path) => {
  try {
    return statSync(join(root, path)).mtimeMs
  } catch {
    // Not built yet.
    return 0
  }
}

const sources = [
  ...readdirSync(join(root, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(root.length)),
  ...["scripts/bundle.js", "tsconfig.base.json", "tsconfig.build.json", "package-lock.json", "package.json"]
]

const built = Math.min(changed("dist/index.js"), changed("dist/bundle/episode.js"))
if (sources.some((path) => changed(path) > built)) {
  execSync("npm run build", { cwd: root, stdio: "inherit" })
}

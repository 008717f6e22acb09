import { execFileSync } from "node:child_process"
import { fileURLToPath } from "node:url"

// Tests that spawn bin/episode.js run what is in src now, not what was built last.
export default (): void => {
  execFileSync(process.execPath, [fileURLToPath(new URL("../scripts/bundle.js", import.meta.url))], {
    stdio: "inherit",
    timeout: 60_000
  })
}

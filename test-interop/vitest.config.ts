import { defineConfig } from "vitest/config"

// Apart from the other suites: it installs Python packages.
export default defineConfig({
  test: {
    include: ["test-interop/**/*.test.ts"],
    globalSetup: ["test/globalSetup.ts"],
    pool: "forks"
  }
})

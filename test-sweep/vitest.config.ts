import { defineConfig } from "vitest/config"

// Every single fault, and pairs of faults by seed: `npm run sweep`.
export default defineConfig({
  test: {
    include: ["test/Episode/sweep/*.test.ts", "test-sweep/**/*.test.ts"],
    setupFiles: ["test/setup.ts"],
    pool: "forks"
  }
})

import { defineConfig } from "vitest/config"

// The E2B SDK against our own server: minutes, not seconds. `npm run test:e2b`.
export default defineConfig({
  test: {
    include: ["test-e2b/**/*.test.ts", "test/E2bServer/**/*.test.ts", "test/Sandbox/E2b.test.ts"],
    globalSetup: ["test/globalSetup.ts"],
    setupFiles: ["test/setup.ts"],
    pool: "forks",
    // Each file has a server and hundreds of processes of its own.
    fileParallelism: false,
    testTimeout: 60_000,
    hookTimeout: 60_000
  }
})

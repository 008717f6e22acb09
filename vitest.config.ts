import { defineConfig } from "vitest/config"

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    // Suites of their own: `npm run test:e2b` has what speaks E2B, `npm run sweep` the fault sweep.
    exclude: ["test/E2bServer/**", "test/Sandbox/E2b.test.ts", "test/Episode/sweep/**"],
    globalSetup: ["test/globalSetup.ts"],
    setupFiles: ["test/setup.ts"],
    // Sandboxes are processes: a worker of their own keeps signals and working directories apart.
    pool: "forks",
    // As many as there are cores: by default one is left idle, which of two is half.
    maxWorkers: "100%",
    minWorkers: 1,
    // Nothing waits for real time, so a test that takes this long hangs.
    testTimeout: 20_000,
    hookTimeout: 20_000
  }
})

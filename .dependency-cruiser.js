/**
 * Which module may import which; type imports and dynamic imports count too. Cycles are oxlint's business.
 *
 *     bin -> Cli -> OpenEnv, E2bServer, Rollout -> Episode -> Grading -> Sandbox -> Budgets, Task
 *
 * A room is `src/X.ts` and `src/X/`. It imports itself, the rooms named here and `src/internal`, and no other.
 */
const below = {
  Task: [],
  Budgets: [],
  Sandbox: ["Task", "Budgets"],
  Grading: ["Task", "Budgets", "Sandbox"],
  Episode: ["Task", "Budgets", "Sandbox", "Grading"],
  OpenEnv: ["Task", "Budgets", "Sandbox", "Grading", "Episode"],
  E2bServer: ["Task", "Budgets", "Sandbox", "Grading", "Episode"],
  Rollout: ["Task", "Budgets", "Sandbox", "Grading", "Episode"],
  Cli: ["Task", "Budgets", "Sandbox", "Grading", "Episode", "OpenEnv", "E2bServer", "Rollout"],
  bin: ["Task", "Budgets", "Sandbox", "Grading", "Episode", "OpenEnv", "E2bServer", "Rollout", "Cli"],
  // The package's front door: the library, without the command line.
  index: ["Task", "Budgets", "Sandbox", "Grading", "Episode", "OpenEnv", "E2bServer", "Rollout"]
}

/** Parts of the Sandbox room that are met only as layers. A new provider is added here. */
const providers = ["Local", "E2b", "Simulated"]

/**
 * A regular expression for the files of rooms, such as `Sandbox` or `Sandbox/E2b`.
 *
 * @param {ReadonlyArray<string>} names
 */
const room = (...names) => `^src/(${names.join("|")})(/|[.]ts$)`

const aProvider = `^src/Sandbox/(${providers.join("|")})`

export default {
  forbidden: [
    {
      name: "every-module-has-a-room",
      comment: "A new room needs a line in `below`.",
      severity: "error",
      from: {},
      to: { path: "^src/", pathNot: room(...Object.keys(below), "internal") }
    },
    ...Object.entries(below).map(([name, rooms]) => ({
      name: `room-${name}`,
      comment: `src/${name} imports ${[name, ...rooms, "internal"].join(", ")} and nothing else of src.`,
      severity: "error",
      from: { path: room(name) },
      to: { path: "^src/", pathNot: room(name, ...rooms, "internal") }
    })),
    {
      name: "room-internal",
      comment: "Helpers know no room. The sealed half of a task is made of a task's types.",
      severity: "error",
      from: { path: "^src/internal/" },
      to: { path: "^src/", pathNot: ["^src/internal/", "^src/Task[.]ts$"] }
    },
    {
      name: "seal",
      comment: "Task seals a verification and Grading opens it; nobody else knows there is a seal.",
      severity: "error",
      from: { path: "^src/", pathNot: ["^src/Task[.]ts$", room("Grading"), "^src/internal/verification[.]ts$"] },
      to: { path: "^src/internal/verification[.]ts$" }
    },
    {
      name: "providers-are-layers",
      comment: "Only the command line chooses a provider; everything else meets one as a layer.",
      severity: "error",
      from: { path: "^src/", pathNot: [room("bin", "Cli"), aProvider] },
      to: { path: aProvider }
    },
    ...providers.map((name) => ({
      name: `provider-${name}`,
      comment: "A provider knows what a sandbox is, and no other part of the room.",
      severity: "error",
      from: { path: `^src/Sandbox/${name}` },
      to: {
        path: room("Sandbox"),
        pathNot: [`^src/Sandbox/${name}`, "^src/Sandbox[.]ts$", "^src/Sandbox/(Guest|Machine|Output)[.]ts$"]
      }
    })),
    ...[
      { name: "pure-of-node", to: { dependencyTypes: ["core"] } },
      { name: "pure-of-platform-node", to: { path: "node_modules/@effect/platform-node" } }
    ].map((rule) => ({
      ...rule,
      comment: "The rooms that hold the rules meet the machine only as layers.",
      severity: "error",
      from: {
        path: [room("Task", "Budgets", "Sandbox", "Grading", "Episode", "internal", "index")],
        pathNot: aProvider
      }
    })),
    ...[
      { name: "E2bServer-pure-of-node", to: { dependencyTypes: ["core"] } },
      { name: "E2bServer-pure-of-platform-node", to: { path: "node_modules/@effect/platform-node" } }
    ].map((rule) => ({
      ...rule,
      comment: "Of the E2B server only the adapter knows what it runs on.",
      severity: "error",
      from: { path: room("E2bServer"), pathNot: "^src/E2bServer/NodeServer[.]ts$" }
    })),
    ...[
      { name: "OpenEnv-pure-of-node", to: { dependencyTypes: ["core"] } },
      { name: "OpenEnv-pure-of-platform-node", to: { path: "node_modules/(@effect/platform-node|ws)/" } }
    ].map((rule) => ({
      ...rule,
      comment: "Of the OpenEnv room only the adapter knows what it runs on.",
      severity: "error",
      from: { path: room("OpenEnv"), pathNot: "^src/OpenEnv/NodeTransport[.]ts$" }
    })),
    ...[
      { name: "only-E2b-knows-e2b", owner: room("Sandbox/E2b"), of: "e2b" },
      { name: "only-Local-knows-tar", owner: "^src/Sandbox/Local", of: "tar-stream" },
      { name: "only-Cli-knows-cli", owner: room("bin", "Cli"), of: "@effect/(cli|printer|printer-ansi)" }
    ].map(({ name, of, owner }) => ({
      name,
      comment: "A heavy package is loaded only where it is used.",
      severity: "error",
      from: { path: "^src/", pathNot: owner },
      to: { path: `node_modules/${of}/` }
    })),
    {
      name: "resolvable",
      severity: "error",
      from: {},
      to: { couldNotResolve: true }
    },
    {
      name: "declared",
      comment: "What the library imports is in dependencies or peerDependencies.",
      severity: "error",
      from: { path: "^src/" },
      to: { dependencyTypes: ["npm-dev", "npm-no-pkg", "npm-unknown"], dependencyTypesNot: ["npm-peer", "type-only"] }
    }
  ],
  options: {
    doNotFollow: { path: "node_modules" },
    tsPreCompilationDeps: true,
    enhancedResolveOptions: { exportsFields: ["exports"], conditionNames: ["import", "types", "node", "default"] }
  }
}

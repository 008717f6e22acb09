/**
 * Code-repair episodes in disposable sandboxes, with scores that can be trusted.
 *
 * Every module can also be imported by itself, such as `episode/Episode` or `episode/Sandbox/Local`: providers can only
 * be had that way, so that nothing is loaded for a provider that isn't used.
 *
 * @since 0.1.0
 */
export * as Budgets from "./Budgets.ts"
export * as Episode from "./Episode.ts"
export * as Observation from "./Episode/Observation.ts"
export * as Outcome from "./Episode/Outcome.ts"
export * as Receipt from "./Episode/Receipt.ts"
export * as Grading from "./Grading.ts"
export * as Sandbox from "./Sandbox.ts"
export * as Ledger from "./Sandbox/Ledger.ts"
export * as Sandboxes from "./Sandbox/Sandboxes.ts"
export * as Task from "./Task.ts"
export * as Report from "./Task/Report.ts"

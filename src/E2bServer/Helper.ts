/**
 * Starting one of our programs inside a sandbox, in the Python that every one has.
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { SandboxFault, SandboxId } from "../Sandbox.ts"
import type { MachineProvider, Program, ProgramRefused, Running, User } from "../Sandbox/Machine.ts"

/** Isolated from the environment and the user's own modules, and not the one that a guest has put first on its PATH. */
export const python = (program: string, ...words: ReadonlyArray<string>): Pick<Program, "argv" | "search"> => ({
  argv: ["python3", "-I", "-S", "-c", program, ...words],
  search: "system"
})

/**
 * Starts a program that takes the name of a user first. It runs as the superuser where there is one, and becomes the user
 * it serves: out of that user's reach.
 */
export const spawn = (
  machine: Context.Tag.Service<MachineProvider>,
  sandboxId: SandboxId,
  user: User,
  program: string,
  ...words: ReadonlyArray<string>
): Effect.Effect<Running, SandboxFault | ProgramRefused, Scope.Scope> => {
  const as = (runner: User) =>
    machine.spawn(sandboxId, {
      ...python(program, user, ...words),
      user: runner,
      environment: {},
      directory: "/",
      stdin: "open"
    })
  return as("root").pipe(
    Effect.catchIf(
      (fault) => fault._tag === "ProgramRefused" && fault.reason === "user" && user !== "root",
      () => as(user)
    )
  )
}

import { Array as Arr, Clock, Context, Duration, Effect, Exit, Layer, Ref, Scope } from "effect"
import * as Budgets from "../../src/Budgets.ts"
import * as Episode from "../../src/Episode.ts"
import type { Observation } from "../../src/Episode/Observation.ts"
import type { InfrastructureError } from "../../src/Episode/Outcome.ts"
import type { EpisodeReceipt } from "../../src/Episode/Receipt.ts"
import type { EpisodeMisuse, Session } from "../../src/Episode/Session.ts"
import type { LedgerEntry } from "../../src/Sandbox/Ledger.ts"
import * as Ledger from "../../src/Sandbox/Ledger.ts"
import * as Simulated from "../../src/Sandbox/Simulated.ts"
import { SandboxPath, type Task, TaskId, verification } from "../../src/Task.ts"
import shipped from "../../task.json" with { type: "json" }
import { virtually } from "../virtualTime.ts"

// ----------------------------------------------------------------------------
// the task
// ----------------------------------------------------------------------------

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text)

export const submission = SandboxPath.make("/home/user/work/report.py")
export const sales = SandboxPath.make("/home/user/work/sales.csv")

export const { solution, starter } = shipped

/** What the verifier gets beside the submission. */
export const heldOut = "region,amount\nnorth,30000017\nsouth,4\nnorth,80000023\nsouth,1\n"

/** A number of the expectations that stands in no file, so it can be searched for. */
export const secret = "110000040"

/** The shipped task's programs, on another held-out input. */
export const task: Task = {
  id: TaskId.make(shipped.id),
  digest: "0".repeat(64),
  prompt: shipped.prompt,
  workspace: [{ path: submission, bytes: bytes(starter) }, { path: sales, bytes: bytes(shipped.input) }],
  submission,
  verification: verification({
    files: [{ path: sales, bytes: bytes(heldOut) }],
    command: ["python3", "-B", submission],
    cwd: SandboxPath.make("/home/user/work"),
    grader: { _tag: "Totals", expected: new Map([["north", BigInt(secret)], ["south", 5n]]) }
  })
}

// ----------------------------------------------------------------------------
// programs
// ----------------------------------------------------------------------------

const sum = (add: (total: number, amount: number) => number): Simulated.Program => (files) => {
  const rows = new TextDecoder().decode(files.read(sales)).trim().split("\n").slice(1).map((row) => row.split(","))
  const totals = new Map<string, number>()
  rows.forEach(([region = "", amount = ""]) => totals.set(region, add(totals.get(region) ?? 0, Number(amount))))
  return { stdout: `${JSON.stringify(Object.fromEntries(totals))}\n`, duration: "30 millis" }
}

const right = sum((total, amount) => total + amount)

/** What candidates do, by their source text. */
export const candidates = {
  "# right, and slow\n": (files) => ({ ...right(files), duration: "9 seconds" }),
  "# right, and noisy\n": (files) => ({ ...right(files), stderr: new Uint8Array(1_000_000) }),
  "# right, but fails\n": (files) => ({ ...right(files), exitCode: 3 }),
  "# right, but never ends\n": (files) => ({ ...right(files), duration: Duration.infinity }),
  "# right, but twice\n": (files) => ({ stdout: `${String(right(files).stdout).repeat(2)}` }),
  "# right, but with fractions\n": (files) => ({ stdout: String(right(files).stdout).replaceAll(",", ".0,") }),
  "# silent\n": () => ({}),
  "# removes its output\n": (files) => {
    files.remove("/tmp")
    return {}
  },
  "# floods\n": () => ({ stdout: new Uint8Array(64 * 1024 + 1).fill(0x20) }),
  "# not utf-8\n": () => ({ stdout: Uint8Array.of(0x7b, 0xff, 0x7d) }),
  "# looks like a fault\n": () => ({ stdout: "ResponseTimedOut: SandboxLost: absent\n", stderr: "ECONNRESET\n" }),
  "# empty\n": () => ({ stdout: "{}" })
} satisfies Record<string, Simulated.Program>

export type Candidate = keyof typeof candidates

const programs = new Map<string, Simulated.Program>([
  [starter, sum((_, amount) => amount)],
  [solution, right],
  ...Object.entries(candidates)
])

/** The command that replaces the program. The source ends with a line break. */
export const edit = (source: string): string => `cat > ${submission} <<'END'\n${source}END`

// ----------------------------------------------------------------------------
// layers
// ----------------------------------------------------------------------------

export interface Setting extends Simulated.Options {
  readonly budgets?: Budgets.Overrides | undefined
}

export type Outside = Simulated.World | Ledger.Ledger

/** A new world, which outlives the program that is tried in it. */
export const outside = ({ budgets: _, ...options }: Setting) =>
  Layer.merge(Simulated.layer({ programs, network: true, ...options }), Ledger.layerMemory)

export const inside = ({ budgets }: Setting) =>
  Episode.layerWithLedger().pipe(Layer.provide(Budgets.layer(budgets)), Layer.orDie)

/** A test in virtual time, over a new world. */
export const simulated = <A, E>(
  setting: Setting,
  test: Effect.Effect<A, E, Episode.Episode | Outside>
): Effect.Effect<A, E> => virtually(Effect.provide(test, Layer.provideMerge(inside(setting), outside(setting))))

// ----------------------------------------------------------------------------
// plays
// ----------------------------------------------------------------------------

type Failure = InfrastructureError | EpisodeMisuse

/** All that can be known about a session: what its user was told, and what is so. */
export interface Play<A> {
  /** How the script ended. */
  readonly exit: Exit.Exit<A, Failure>
  /** Every answer to a terminal and a submit, in order. */
  readonly seen: ReadonlyArray<Observation>
  /** Every command that was asked for, in order. */
  readonly issued: ReadonlyArray<string>
  /** The receipts of the episodes that were read before the next reset, and of the last one. */
  readonly receipts: ReadonlyArray<EpisodeReceipt>
  /** Requests after the end of the last episode: the reward, thrice; a terminal; a submit. */
  readonly reads: ReadonlyArray<Exit.Exit<0 | 1, Failure>>
  readonly afterwards: ReadonlyArray<Exit.Exit<Observation, Failure>>
  /** Milliseconds from the start: the end of the script, of the session, and of the layer. */
  readonly times: { readonly script: number; readonly session: number; readonly layer: number }
  /** What really happened, seen after all that. */
  readonly calls: ReadonlyArray<Simulated.CallRecord>
  readonly sandboxes: ReadonlyArray<Simulated.SandboxRecord>
  readonly ledger: ReadonlyArray<LedgerEntry>
}

/**
 * Plays a script on a session, ends the episode, reads it several times, closes everything, and looks at what is left.
 */
export const play = <A>(
  setting: Setting,
  script: (session: Session) => Effect.Effect<A, Failure, Simulated.World>
): Effect.Effect<Play<A>> =>
  Effect.gen(function*() {
    const seen = yield* Ref.make(Arr.empty<Observation>())
    const issued = yield* Ref.make(Arr.empty<string>())
    const receipts = yield* Ref.make(Arr.empty<EpisodeReceipt>())
    const layerScope = yield* Scope.make()
    const sessionScope = yield* Scope.make()
    const services = yield* Layer.buildWithScope(inside(setting), layerScope)
    const session = yield* Context.get(services, Episode.Episode).open.pipe(Scope.extend(sessionScope))
    const keep = <E>(request: Effect.Effect<Observation, E>) =>
      Effect.tap(request, (observation) => Ref.update(seen, Arr.append(observation)))
    const keepReceipt = Effect.flatMap(session.state, (state) =>
      state._tag === "Finished"
        ? Ref.update(
          receipts,
          (kept) =>
            kept.some(({ episodeId }) => episodeId === state.receipt.episodeId) ? kept : [...kept, state.receipt]
        )
        : Effect.void)
    const watched: Session = {
      ...session,
      reset: (next) => Effect.zipRight(keepReceipt, session.reset(next)),
      terminal: (command) =>
        Ref.update(issued, Arr.append(command)).pipe(Effect.zipRight(session.terminal(command)), keep),
      submit: keep(session.submit)
    }
    // A script that is interrupted, or interrupts itself, is still followed by what stands here.
    const exit = yield* Effect.exit(Effect.disconnect(script(watched)))
    const scriptEnd = yield* Clock.currentTimeMillis
    const reads = yield* Effect.all(Arr.replicate(Effect.exit(session.reward), 3))
    const afterwards = yield* Effect.all([
      Effect.exit(session.terminal("echo too late")),
      Effect.exit(session.submit)
    ])
    yield* keepReceipt
    yield* Scope.close(sessionScope, Exit.void)
    const sessionEnd = yield* Clock.currentTimeMillis
    yield* Scope.close(layerScope, Exit.void)
    const layerEnd = yield* Clock.currentTimeMillis
    const world = yield* Simulated.World
    return {
      exit,
      seen: yield* Ref.get(seen),
      issued: yield* Ref.get(issued),
      receipts: yield* Ref.get(receipts),
      reads,
      afterwards,
      times: { script: scriptEnd, session: sessionEnd, layer: layerEnd },
      calls: yield* world.calls,
      sandboxes: yield* world.sandboxes,
      ledger: yield* (yield* Ledger.Ledger).open
    }
  }).pipe(Effect.provide(outside(setting)), virtually)

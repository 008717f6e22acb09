import { assert, describe, it } from "@effect/vitest"
import { Clock, Effect, Either, Exit, FastCheck as fc, Option, Runtime, Scope } from "effect"
import * as Episode from "../../src/Episode.ts"
import type { Session } from "../../src/Episode/Session.ts"
import * as Ledger from "../../src/Sandbox/Ledger.ts"
import { World } from "../../src/Sandbox/Simulated.ts"
import { edit, simulated, solution, submission, task } from "./fixture.ts"

// ----------------------------------------------------------------------------
// actions
// ----------------------------------------------------------------------------

type Request =
  | { readonly _tag: "Terminal"; readonly seconds: number; readonly writes?: "right" | "wrong" | "nothing" }
  | { readonly _tag: "Submit" }
  | { readonly _tag: "Reward" }

type Action =
  | Request
  | { readonly _tag: "Reset" }
  | { readonly _tag: "Close" }
  | { readonly _tag: "Pass"; readonly millis: number }
  /** A terminal whose caller goes away after a second. */
  | { readonly _tag: "Interrupted" }
  | { readonly _tag: "AtOnce"; readonly requests: readonly [Request, Request] }

const request: fc.Arbitrary<Request> = fc.oneof(
  fc.record({ _tag: fc.constant("Terminal" as const), seconds: fc.integer({ min: 0, max: 12 }) }),
  fc.record({
    _tag: fc.constant("Terminal" as const),
    seconds: fc.constant(0),
    writes: fc.constantFrom("right" as const, "wrong" as const, "nothing" as const)
  }),
  fc.constant({ _tag: "Submit" as const }),
  fc.constant({ _tag: "Reward" as const })
)

const action: fc.Arbitrary<Action> = fc.oneof(
  { weight: 6, arbitrary: request },
  { weight: 3, arbitrary: fc.constant({ _tag: "Reset" as const }) },
  { weight: 1, arbitrary: fc.constant({ _tag: "Close" as const }) },
  // An odd number, so that nothing ends at the same moment as a window.
  {
    weight: 3,
    arbitrary: fc.nat(100_000).map((half) => ({ _tag: "Pass" as const, millis: 2 * half + 1 }))
  },
  { weight: 1, arbitrary: fc.constant({ _tag: "Interrupted" as const }) },
  { weight: 3, arbitrary: fc.record({ _tag: fc.constant("AtOnce" as const), requests: fc.tuple(request, request) }) }
)

// ----------------------------------------------------------------------------
// the model
// ----------------------------------------------------------------------------

type Phase =
  | { readonly _tag: "Idle" }
  | { readonly _tag: "Active"; readonly windowEnd: number; readonly file: "right" | "wrong" | "nothing" }
  /** With a score, or without one because the caller went away. */
  | { readonly _tag: "Finished"; readonly score: Option.Option<0 | 1> }

interface Model {
  phase: Phase
  closed: boolean
}

const latency = 100

/** More than a health check, a deletion and its proof take. */
const cleanup = 500

type Finished = Extract<Phase, { readonly _tag: "Finished" }>

const interrupted: Finished = { _tag: "Finished", score: Option.none() }

const scored = (score: 0 | 1): Finished => ({ _tag: "Finished", score: Option.some(score) })

/** What a request answers, and what the session is like after it. */
const predict = (phase: Phase, now: number, asked: Request): { readonly answer: string; readonly next: Phase } => {
  if (phase._tag === "Idle") {
    return { answer: "EpisodeMisuse", next: phase }
  }
  const atEnd = (next: Finished) => ({
    answer: Option.match(next.score, {
      onNone: () => "EpisodeInterrupted",
      onSome: (score) => asked._tag === "Reward" ? `score ${score}` : "finished"
    }),
    next
  })
  if (phase._tag === "Finished") {
    return atEnd(phase)
  }
  const over = scored(0)
  switch (asked._tag) {
    case "Terminal":
      return now + latency + Math.min(asked.seconds, 10) * 1000 > phase.windowEnd
        ? atEnd(over)
        : { answer: "observation", next: { ...phase, file: asked.writes ?? phase.file } }
    case "Submit":
      return atEnd(
        now > phase.windowEnd || phase.file !== "right" ? over : scored(1)
      )
    case "Reward":
      return atEnd(over)
  }
}

// ----------------------------------------------------------------------------
// the session
// ----------------------------------------------------------------------------

interface Real {
  readonly session: Session
  readonly close: Effect.Effect<void>
  readonly run: <A>(effect: Effect.Effect<A, never, World>) => Promise<A>
}

const sources = { right: edit(solution), wrong: edit("# silent\n"), nothing: `rm ${submission}` }

const answerOf = <A>(asked: Effect.Effect<A, { readonly _tag: string }>, show: (value: A) => string) =>
  Effect.map(Effect.either(asked), Either.match({ onLeft: ({ _tag }) => _tag, onRight: show }))

const ask = (session: Session, asked: Request): Effect.Effect<string> => {
  switch (asked._tag) {
    case "Terminal":
      return answerOf(
        session.terminal(asked.writes === undefined ? `sleep ${asked.seconds}` : sources[asked.writes]),
        ({ finished }) => finished ? "finished" : "observation"
      )
    case "Submit":
      return answerOf(session.submit, ({ finished }) => finished ? "finished" : "observation")
    case "Reward":
      return answerOf(session.reward, (score) => `score ${score}`)
  }
}

/** Takes the model and the session through an action, and compares. */
const act = (model: Model, { close, session }: Real, taken: Action): Effect.Effect<void, never, World> =>
  Effect.gen(function*() {
    const now = yield* Clock.currentTimeMillis
    switch (taken._tag) {
      case "Reset": {
        const answer = yield* answerOf(session.reset(task), () => "ready")
        assert.strictEqual(answer, model.closed ? "EpisodeInterrupted" : "ready")
        if (!model.closed) {
          const windowEnd = (yield* Clock.currentTimeMillis) + 120_000
          model.phase = { _tag: "Active", windowEnd, file: "wrong" }
        }
        break
      }
      case "Close":
        yield* close
        model.phase = model.phase._tag === "Active" ? interrupted : model.phase
        model.closed = true
        break
      case "Pass":
        yield* Effect.sleep(taken.millis)
        if (model.phase._tag === "Active" && now + taken.millis > model.phase.windowEnd) {
          yield* Effect.sleep(cleanup)
          model.phase = scored(0)
        }
        break
      case "Interrupted": {
        // Not at the end of a window: whichever comes first decides.
        if (model.phase._tag === "Active" && now + 1000 > model.phase.windowEnd) {
          yield* Effect.sleep(1000 + cleanup)
          model.phase = scored(0)
        } else {
          yield* session.terminal("sleep 5").pipe(Effect.timeout("1 second"), Effect.exit)
          model.phase = model.phase._tag === "Active" ? interrupted : model.phase
        }
        break
      }
      case "AtOnce": {
        const [first, second] = taken.requests
        const answers = yield* Effect.all([ask(session, first), ask(session, second)], { concurrency: 2 })
        const one = predict(model.phase, now, first)
        // The second waits for the first: what there is to wait for is a command.
        const waited = one.answer === "observation" && first._tag === "Terminal"
          ? latency + Math.min(first.seconds, 10) * 1000
          : 0
        const two = predict(one.next, now + waited, second)
        assert.deepStrictEqual(answers, [one.answer, two.answer])
        model.phase = two.next
        break
      }
      default: {
        const { answer, next } = predict(model.phase, now, taken)
        assert.strictEqual(yield* ask(session, taken), answer)
        model.phase = next
      }
    }
    const state = yield* session.state
    assert.strictEqual(state._tag, model.phase._tag, `at ${now} ms`)
    const running = yield* Effect.flatMap(World, (world) => world.running)
    // At most one sandbox, and none outside of an episode.
    assert.isAtMost(running.length, model.phase._tag === "Active" ? 1 : 0)
  })

const command = (taken: Action): fc.AsyncCommand<Model, Real> => ({
  check: () => true,
  run: (model, real) => real.run(act(model, real, taken)),
  toString: () => JSON.stringify(taken)
})

describe("a session", () => {
  it.effect.prop(
    "does what its model does, whatever is asked of it, and leaves nothing",
    [fc.commands([action.map(command)], { maxCommands: 15 })],
    ([commands]) =>
      simulated(
        { latency },
        Effect.gen(function*() {
          const runtime = yield* Effect.runtime<World>()
          const scope = yield* Scope.make()
          const session = yield* Effect.flatMap(Episode.Episode, ({ open }) => Scope.extend(open, scope))
          const close = Scope.close(scope, Exit.void)
          const run = Runtime.runPromise(runtime)
          yield* Effect.promise(() =>
            fc.asyncModelRun(
              (): { readonly model: Model; readonly real: Real } => ({
                model: { phase: { _tag: "Idle" }, closed: false },
                real: { session, close, run }
              }),
              commands
            )
          )
          yield* close
          assert.deepStrictEqual(yield* (yield* World).running, [])
          assert.deepStrictEqual(yield* (yield* Ledger.Ledger).open, [])
        })
      ),
    { fastCheck: { numRuns: 200 }, timeout: 60_000 }
  )
})

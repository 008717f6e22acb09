/**
 * Every single wire fault of a whole episode: for each request that it makes, and each thing that can happen to that, an
 * episode runs. It ends with its score or with a typed error, and nothing is left behind that isn't reported.
 */
import { assert, layer as withLayer } from "@effect/vitest"
import { Effect, Layer, Redacted, Ref } from "effect"
import * as Budgets from "../src/Budgets.ts"
import * as Episode from "../src/Episode.ts"
import type { Outcome } from "../src/Episode/Outcome.ts"
import * as E2b from "../src/Sandbox/E2b.ts"
import * as Ledger from "../src/Sandbox/Ledger.ts"
import { solution, submission, task } from "../test/Episode/fixture.ts"
import type { Call, Kind } from "../test/Sandbox/E2b/faultyProxy.ts"
import * as FaultyProxy from "../test/Sandbox/E2b/faultyProxy.ts"
import { truth, Wire, wire } from "../test/Sandbox/E2b/served.ts"

const { Fault } = FaultyProxy

// Short, and longer than this machine needs.
const budgets = Budgets.layer({
  commandLimit: "3 seconds",
  commandResponse: "10 seconds",
  verifierResponse: "10 seconds",
  fileTransfer: "8 seconds",
  allocation: "12 seconds",
  control: "6 seconds",
  cleanup: "25 seconds",
  cleanupPause: "50 millis",
  allocationPacing: "1 millis"
})

/** One repaired episode, through a proxy of its own. */
const play = (faults: (call: Call) => FaultyProxy.Fault | undefined) =>
  Effect.scoped(Effect.gen(function*() {
    const { apiKey, direct } = yield* Wire
    const proxy = yield* FaultyProxy.make({ target: direct })
    proxy.set(faults)
    const ledger = yield* Layer.build(Ledger.layerMemory)
    const layer = Episode.layerWithLedger().pipe(
      Layer.provide(E2b.layer({ apiKey, apiUrl: proxy.url, sandboxUrl: proxy.url })),
      Layer.provide(Layer.succeedContext(ledger)),
      Layer.provide(budgets)
    )
    const receipt = yield* Effect.flatMap(Episode.Episode, (episodes) =>
      episodes.record(task, ({ submit, terminal }) =>
        terminal(`cat >${submission} <<'EOF'\n${solution}\nEOF`).pipe(Effect.zipRight(submit)))).pipe(
        Effect.provide(layer)
      )
    const open = yield* Effect.provide(
      Effect.flatMap(Ledger.Ledger, ({ open }) =>
        open),
      ledger
    )
    return { receipt, open, calls: proxy.calls() }
  }))

interface Case {
  readonly kind: Kind
  readonly nth: number
  readonly fault: FaultyProxy.Fault
}

const faults: ReadonlyArray<FaultyProxy.Fault> = [
  Fault.Latency({ millis: 300 }),
  Fault.Dropped({ effect: false }),
  Fault.Dropped({ effect: true }),
  Fault.ResetInBody(),
  Fault.Truncated(),
  Fault.Stalled({ effect: true }),
  Fault.StalledInBody(),
  Fault.Answered({ status: 429, effect: false }),
  Fault.Answered({ status: 429, effect: false, retryAfter: "1" }),
  Fault.Answered({ status: 500, effect: true }),
  Fault.Answered({ status: 503, effect: false }),
  Fault.Answered({ status: 504, effect: true, json: false }),
  Fault.Malformed({ body: "{" })
]

const isControl = (kind: Kind): boolean => ["create", "info", "extend", "kill"].includes(kind)

// What the outcome table and the design say of one fault: the tags that may come, `Scored` among them where it has to be
// got over.
const expected = ({ fault, kind, nth }: Case, infoOfCreate: ReadonlySet<number>): ReadonlyArray<string> => {
  const isCleanup = kind === "kill" || kind === "info" && !infoOfCreate.has(nth)
  if (fault._tag === "Latency" || isCleanup) {
    return ["Scored"]
  }
  if (fault._tag === "Answered" && fault.retryAfter !== undefined && isControl(kind)) {
    return ["Scored"]
  }
  // Without a body there is nothing to break in it: 204.
  const isBodiless = kind === "extend"
  if (isBodiless && ["ResetInBody", "Truncated", "Malformed"].includes(fault._tag)) {
    return ["Scored", "TransportFailed", "ProtocolViolation", "ResponseTimedOut"]
  }
  switch (fault._tag) {
    case "Stalled":
    case "StalledInBody":
      return kind === "create" ? ["ResponseTimedOut"] : ["ResponseTimedOut", "TransportFailed"]
    case "Malformed":
    case "Truncated":
      return ["ProtocolViolation", "TransportFailed"]
    case "Answered":
      return kind === "create" && fault.status === 429
        ? ["SandboxUnavailable"]
        : kind === "create"
        ? [fault.effect ? "TransportFailed" : "AllocationUncertain"]
        : ["TransportFailed"]
    case "Dropped":
      return kind === "create" && !fault.effect ? ["AllocationUncertain"] : ["TransportFailed"]
    case "ResetInBody":
      return ["TransportFailed"]
  }
}

const tagOf = (outcome: Outcome): string => outcome._tag === "Scored" ? "Scored" : outcome.error._tag

withLayer(wire(), { excludeTestServices: true, timeout: 60_000 })("an episode over a bad wire", (it) => {
  it.scoped(
    "comes to its score, or to the designed error, and leaves nothing that isn't reported",
    () =>
      Effect.gen(function*() {
        const { apiKey } = yield* Wire
        const { find } = yield* truth
        const good = yield* play(() => undefined)
        assert.strictEqual(tagOf(good.receipt.outcome), "Scored", JSON.stringify(good.receipt.outcome))
        const kinds = good.calls.map(({ kind, nth }) => ({ kind, nth }))
        // The first info after a create asks what was made; the one after a kill is the proof.
        const infoOfCreate = new Set(
          good.calls.filter(({ kind }, index) =>
            kind === "info" && good.calls.slice(0, index).filter((before) => before.kind === "create").length
              > good.calls.slice(0, index).filter((before) => before.kind === "kill").length
          ).map(({ nth }) => nth)
        )
        const cases: ReadonlyArray<Case> = kinds.flatMap(({ kind, nth }) =>
          faults.map((fault) => ({ kind, nth, fault }))
        )
        const wrong = yield* Ref.make<ReadonlyArray<string>>([])
        const tally = yield* Ref.make<Readonly<Record<string, number>>>({})
        yield* Effect.forEach(cases, (one) =>
          Effect.gen(function*() {
            const { open, receipt } = yield* play(({ kind, nth }) =>
              kind === one.kind && nth === one.nth ? one.fault : undefined
            )
            const { outcome } = receipt
            const name = `${one.kind} ${one.nth} ${JSON.stringify(one.fault)}`
            const tag = tagOf(outcome)
            const row = `${one.kind} ${one.fault._tag}${one.fault._tag === "Answered" ? one.fault.status : ""}: ${tag}`
            yield* Ref.update(tally, (before) => ({ ...before, [row]: (before[row] ?? 0) + 1 }))
            const complain = (what: string) => Ref.update(wrong, (before) => [...before, `${name}: ${what}`])
            if (!expected(one, infoOfCreate).includes(tag)) {
              yield* complain(
                tag === "Scored" ? "scored" : `${tag} ${outcome._tag === "Aborted" ? outcome.error.message : ""}`
              )
            }
            if (outcome._tag === "Scored" && outcome.score !== 1) {
              yield* complain(`score ${outcome.score}, ${outcome.reason}`)
            }
            if (outcome._tag === "Aborted") {
              const { message } = outcome.error
              if (/SECRET|region|amount/.test(message) || message.includes(Redacted.value(apiKey))) {
                yield* complain(`not safe: ${message}`)
              }
            }
            // What is still there carries a label of ours that the ledger names.
            const left = (yield* find({ "episode.id": receipt.episodeId })).map(({ labels }) =>
              labels["episode.allocation"]
            )
            for (const allocation of left) {
              if (!open.some((entry) => entry.allocation === allocation)) {
                yield* complain(`left behind: ${allocation}`)
              }
            }
          }), { concurrency: 3, discard: true })
        const found = yield* Ref.get(tally)
        console.log(Object.keys(found).toSorted().map((key) => `${key} ${found[key]}`).join("\n"))
        console.log(`${cases.length} episodes; requests of one: ${kinds.map(({ kind }) => kind).join(" ")}`)
        assert.deepStrictEqual(yield* Ref.get(wrong), [])
        assert.deepStrictEqual(yield* find({}), [])
      }),
    1_500_000
  )
})

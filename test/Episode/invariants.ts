import { Cause, DateTime, Exit, Option } from "effect"
import { render } from "../../src/Episode/Observation.ts"
import type { EpisodeReceipt } from "../../src/Episode/Receipt.ts"
import type { CallRecord, SandboxRecord } from "../../src/Sandbox/Simulated.ts"
import type { Play } from "./fixture.ts"
import { heldOut, sales, secret, solution, starter, submission } from "./fixture.ts"

const text = (bytes: Uint8Array): string => new TextDecoder().decode(bytes)

const millis = DateTime.toEpochMillis

const endOf = (sandbox: SandboxRecord): number =>
  sandbox.ended === undefined ? Number.POSITIVE_INFINITY : millis(sandbox.ended.at)

/** When an episode's outcome was there. */
const committedAt = (receipt: EpisodeReceipt): number =>
  Math.round(millis(receipt.startedAt) + receipt.totalSeconds * 1000)

const isCleanup = ({ operation }: CallRecord): boolean =>
  operation === "destroy" || operation === "inspect" || operation === "find"

const same = (left: unknown, right: unknown): boolean => JSON.stringify(left) === JSON.stringify(right)

/** What an exit failed with; undefined for one that didn't, and for a defect and an interruption. */
export const failureOf = <A, E>(exit: Exit.Exit<A, E>): E | undefined =>
  Exit.isFailure(exit) ? Option.getOrUndefined(Cause.failureOption(exit.cause)) : undefined

const isHeldOut = (content: string): boolean => content.includes("north") || content.includes("30000017")

/**
 * Everything that has to be true whatever went wrong, by rule: what the program said, against what is so. Gives back
 * what isn't true.
 */
export const violations = (played: Play<unknown>): ReadonlyArray<string> => {
  const { calls, issued, ledger, receipts, sandboxes, seen } = played
  const found: Array<string> = []
  const check = (holds: boolean, rule: string): void => {
    if (!holds) {
      found.push(rule)
    }
  }
  const policies = sandboxes.filter(({ role }) => role === "policy")
  const verifiers = sandboxes.filter(({ role }) => role === "verifier")
  const callsOf = (sandbox: SandboxRecord) => calls.filter(({ sandboxId }) => sandboxId === sandbox.id)

  // R1: no score before everything of the episode is gone, and none in anybody's memory that isn't in the receipt.
  for (const receipt of receipts) {
    const ids = new Set(receipt.resources.map(({ id }) => id))
    const own = sandboxes.filter(({ id, labels }) => ids.has(id) || labels["episode.id"] === receipt.episodeId)
    if (receipt.outcome._tag === "Scored") {
      check(own.every((sandbox) => endOf(sandbox) <= committedAt(receipt)), "R1 a score before every absence")
      check(receipt.resources.every(({ confirmedAbsentAt }) => confirmedAbsentAt !== null), "R1 a score without proof")
      check(
        own.every((sandbox) =>
          callsOf(sandbox).some(({ endedAt, operation, result }) =>
            operation === "inspect" && result === "ok" && endedAt !== undefined
            && millis(endedAt) >= endOf(sandbox) && millis(endedAt) <= committedAt(receipt)
          )
        ),
        "R5 a score without a look at what was deleted"
      )
    }
    check(
      receipt.resources.every(({ confirmedAbsentAt, id }) =>
        confirmedAbsentAt === null
        || sandboxes.some((sandbox) => sandbox.id === id && endOf(sandbox) <= millis(confirmedAbsentAt))
      ),
      "R5 called absent, but isn't"
    )
    check(
      receipt.resources.every((resource) =>
        resource.confirmedAbsentAt !== null
        || ledger.some(({ sandboxId, state }) => sandboxId === resource.id && state === "unresolved")
      ),
      "R4 unresolved in the receipt, but not in the ledger"
    )
  }
  const last = receipts.at(-1)
  check(
    played.reads.every((read) => same(read, played.reads[0])),
    "R1 the reward says different things"
  )
  if (last !== undefined) {
    const { outcome } = last
    check(
      played.reads.every((read) =>
        outcome._tag === "Scored"
          ? read._tag === "Success" && read.value === outcome.score
          : failureOf(read) === outcome.error
      ),
      "R12 the reward isn't the receipt's outcome"
    )
    check(
      played.afterwards.every((answer) =>
        outcome._tag === "Scored"
          ? answer._tag === "Success" && answer.value.finished
          : failureOf(answer) === outcome.error
      ),
      "something was done after the end"
    )
  }

  // R2: the verifier comes after the policy's proved absence, is offline, and holds nothing that isn't meant for it.
  for (const verifier of verifiers) {
    const creation = calls.find(({ endedAt, operation, role, startedAt }) =>
      operation === "create" && role === "verifier" && millis(startedAt) <= millis(verifier.createdAt)
      && (endedAt === undefined || millis(endedAt) >= millis(verifier.createdAt))
    )
    // Its own episode's: one whose create was given up may still come when the next episode has begun.
    const before = policies.filter(({ createdAt, labels }) =>
      creation !== undefined && millis(createdAt) <= millis(creation.startedAt)
      && labels["episode.id"] === verifier.labels["episode.id"]
    )
    const policy = before.at(-1)
    check(
      before.every((sandbox) => endOf(sandbox) <= millis(verifier.createdAt)),
      "R2 a verifier beside a policy sandbox"
    )
    check(
      policy !== undefined && creation !== undefined
        && callsOf(policy).some(({ number, operation, result }) =>
          operation === "inspect" && result === "ok" && number < creation.number
        ),
      "R2 a verifier without a proof of the policy's absence"
    )
    check(!verifier.network, "R2 a verifier with a network")
    const received = verifier.received.map(({ bytes, path }) => [path, text(bytes)])
    const exported = policy?.files.get(submission)
    check(
      received.length === 0
        || (exported !== undefined && same(received, [[submission, text(exported)], [sales, heldOut]])),
      "R2 the verifier holds something else than the submission and the held-out input"
    )
    check(verifier.commands.length <= 1, "R6 the candidate was run twice")
    check(
      verifier.commands.every(({ command }) =>
        command === `cd '/home/user/work' && exec 'python3' '-B' '${submission}' `
            + "</dev/null >/tmp/candidate.stdout 2>/tmp/candidate.stderr"
      ),
      "the verifier ran something else than the fixed command"
    )
  }

  // R3: the held-out half stays away from the policy; expectations never leave the host.
  const visible = [
    ...seen.map(render),
    ...policies.flatMap(({ commands, files, labels, received }) => [
      ...received.map(({ bytes }) => text(bytes)),
      ...[...files.values()].map(text),
      ...commands.map(({ command }) => command),
      JSON.stringify(labels)
    ])
  ]
  check(!visible.some((content) => isHeldOut(content) || content.includes(secret)), "R3 the policy can see too much")
  const given = verifiers.flatMap(({ commands, labels, received }) => [
    ...received.map(({ bytes }) => text(bytes)),
    ...commands.map(({ command }) => command),
    JSON.stringify(labels)
  ])
  check(
    ![...given, JSON.stringify(receipts)].some((content) => content.includes(secret)),
    "R3 expectations left the host"
  )
  for (const policy of policies) {
    check(
      policy.received.every(({ bytes, path }) =>
        (path === submission && text(bytes) === starter) || (path === sales && !isHeldOut(text(bytes)))
      ) && policy.received.length <= 2,
      "the policy sandbox holds something else than the workspace"
    )
  }

  // R4: whatever exists at the end is known by its id, or by its label where the id never came.
  check(
    ledger.every(({ state }) => state === "unresolved" || state === "uncertain"),
    `R4 the ledger was left in the middle of something: ${ledger.map(({ state }) => state).join()}`
  )
  check(
    ledger.every(({ sandboxId, state }) => (state === "unresolved") === (sandboxId !== undefined)),
    "R4 an unresolved sandbox without its id"
  )
  for (const sandbox of sandboxes) {
    const entry = ledger.find(({ allocation }) => allocation === sandbox.labels["episode.allocation"])
    check(
      sandbox.ended !== undefined || entry?.sandboxId === sandbox.id || entry?.state === "uncertain",
      `R4 ${sandbox.id} was left behind and nobody knows`
    )
  }

  // R5: at most three attempts, nothing after the proof.
  for (const sandbox of sandboxes) {
    const cleanup = callsOf(sandbox).filter(isCleanup)
    check(cleanup.filter(({ operation }) => operation === "destroy").length <= 3, "R5 more than three attempts")
    const last = callsOf(sandbox).findLast(({ operation }) => operation === "destroy")
    check(
      last === undefined ||
        callsOf(sandbox).every(({ number, operation }) => number <= last.number || operation === "inspect"),
      `R5 ${sandbox.id} was used after its deletion: ${callsOf(sandbox).map(({ operation }) => operation).join()}`
    )
  }

  // R6: every command at most once, in order, and nothing but cleanup after a request whose effect isn't known.
  const ran = policies.flatMap(({ commands }) => commands.map(({ command }) => command))
  let at = 0
  check(
    ran.every((command) => {
      at = issued.indexOf(command, at) + 1
      return at > 0
    }),
    "R6 a command that wasn't asked for, or again"
  )
  for (const receipt of receipts) {
    const poison = receipt.operations.find(({ name, result }) =>
      result !== "ok" && name !== "destroy" && name !== "inspect" && name !== "find"
    )
    if (receipt.outcome._tag === "Aborted" && poison !== undefined) {
      const since = millis(poison.startedAt) + poison.milliseconds
      check(
        receipt.operations.every(({ name, startedAt }) =>
          millis(startedAt) <= since || name === "destroy" || name === "inspect" || name === "find"
        ),
        "R6 a request after one whose effect isn't known"
      )
    }
  }
  for (const policy of policies) {
    const exported = callsOf(policy).find(({ operation }) => operation === "readFile")
    check(
      exported === undefined
        || callsOf(policy).every(({ number, operation }) => operation !== "exec" || number < exported.number),
      "a command after submit"
    )
  }

  // R9: only what this program made is deleted.
  check(
    calls.every(({ operation, sandboxId }) =>
      operation !== "destroy" ||
      sandboxes.some(({ id, labels }) => id === sandboxId && labels["episode.allocation"] !== undefined)
    ),
    "R9 something was deleted that isn't owned"
  )

  // The only right answer to the task is the repaired program.
  const ones = receipts.filter(({ outcome }) => outcome._tag === "Scored" && outcome.score === 1)
  check(
    ones.length <= verifiers.filter(({ received }) => {
      const source = text(received[0]?.bytes ?? new Uint8Array())
      return source === solution || source.startsWith("# right, and")
    }).length,
    "a 1 that wasn't earned"
  )
  return found
}

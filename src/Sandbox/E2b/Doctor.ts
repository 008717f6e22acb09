/**
 * Whether E2B can be used from here, and what to do where it can't. Nothing is created, and nothing is charged for.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Schema from "effect/Schema"
import { CurrentBudgets } from "../../Budgets.ts"
import { type Problem, problemsOf } from "../../internal/settings.ts"
import * as E2b from "../E2b.ts"
import * as Client from "./Client.ts"
import { Failure } from "./Failure.ts"
import { variables } from "./Names.ts"

/**
 * One thing that was looked at. A `failed` one makes E2B sandboxes impossible.
 *
 * @since 0.1.0
 * @category models
 */
export class Check extends Schema.Class<Check>("episode/Sandbox/E2b/Doctor/Check")({
  /** Stable, for programs. */
  id: Schema.String,
  title: Schema.String,
  status: Schema.Literal("ok", "warning", "failed"),
  found: Schema.optionalWith(Schema.String, { exact: true }),
  todo: Schema.optionalWith(Schema.String, { exact: true })
}) {}

const ok = (id: string, title: string, found: string): Check => new Check({ id, title, status: "ok", found })

const failed = (id: string, title: string, found: string, todo: string): Check =>
  new Check({ id, title, status: "failed", found, todo })

const keyName = "E2B_API_KEY"

const keySet = ok("key", keyName, "set")

const ofProblem = ({ isMissing, name, todo }: Problem): Check =>
  failed(name === keyName ? "key" : "setting", name, isMissing ? "not set" : "can't be used", todo)

// What is asked for sandboxes by a domain's name has no answer from a deployment that has only an API elsewhere.
const places = ({ apiUrl, domain, sandboxUrl }: E2b.Options): ReadonlyArray<Check> =>
  apiUrl === undefined || domain !== undefined || sandboxUrl !== undefined ? [] : [
    new Check({
      id: "sandbox-url",
      title: "E2B_SANDBOX_URL",
      status: "warning",
      found: "not set",
      todo: `E2B_API_URL is set and this isn't, so sandboxes are looked for at ${E2b.defaults.domain}; set it, too`
    })
  ]

const todoOf = ({ kind, status }: Failure): string => {
  switch (kind) {
    case "unreachable":
    case "broken":
      return "check the network, E2B_API_URL and E2B_DOMAIN"
    case "unauthorized":
      return "check E2B_API_KEY, and that it belongs to this service"
    case "rate-limited":
      return "wait, and try again"
    default:
      return status === undefined
        ? "check E2B_API_URL: this isn't an E2B API"
        : "look at https://status.e2b.dev, or ask whoever runs this service"
  }
}

const apiTitle = "the API answers, and accepts the key"

// A list needs a key, and is free.
const api = Effect.fnUntraced(function*(options: E2b.Options) {
  const { control: limit } = yield* CurrentBudgets
  const client = yield* Client.make({ ...options, domain: options.domain ?? E2b.defaults.domain, names: variables })
  const pages = client.list({ limit: 1 })
  return yield* client.control(limit, (_, request) => pages.nextItems(request)).pipe(
    Effect.timeoutFail({
      duration: limit,
      onTimeout: () => new Failure({ kind: "broken", detail: "no answer in time" })
    }),
    Effect.match({
      onFailure: (failure) => failed("api", apiTitle, `${failure.detail}, at ${client.apiUrl}`, todoOf(failure)),
      onSuccess: () => ok("api", apiTitle, client.apiUrl)
    })
  )
}, Effect.scoped)

/**
 * Looks whether there is a key, whether the settings can be used, and whether the API accepts the key.
 *
 * @since 0.1.0
 * @category constructors
 */
export const checks: Effect.Effect<ReadonlyArray<Check>> = Effect.gen(function*() {
  const settings = yield* Effect.either(E2b.config)
  if (Either.isRight(settings)) {
    return [keySet, ...places(settings.right), yield* api(settings.right)]
  }
  const wrong = problemsOf(settings.left)
  return [
    ...(wrong.some(({ name }) => name === keyName) ? [] : [keySet]),
    ...wrong.map(ofProblem),
    failed("api", apiTitle, "not asked", "set what is missing first, and correct what can't be used")
  ]
})

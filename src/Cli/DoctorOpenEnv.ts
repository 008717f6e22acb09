/**
 * Whether a Terminus server can be reached. No session is opened.
 */
import * as FetchHttpClient from "@effect/platform/FetchHttpClient"
import * as HttpClient from "@effect/platform/HttpClient"
import * as HttpClientResponse from "@effect/platform/HttpClientResponse"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Wire from "../OpenEnv/Wire.ts"

// Upstream's Terminus has any name that its author gave it, so a name only tells what certainly is another environment.
const episodes = "episode"

/** Asks a server how it is, and what. */
export const check = (url: string, headers: Readonly<Record<string, string>>) => {
  const about = { id: "server", title: "the server at --openenv-url" }
  const failed = (found: string, todo: string) => ({ ...about, status: "failed" as const, found, todo })
  const get = (path: string) => HttpClient.get(`${url.replace(/^ws/, "http").replace(/\/+$/, "")}${path}`, { headers })
  // Not every server says what it is.
  const nameOf = get("/metadata").pipe(
    Effect.flatMap(HttpClientResponse.schemaBodyJson(Wire.Metadata)),
    Effect.map(({ name }) => name),
    Effect.option
  )
  const answered = ({ status }: typeof Wire.Health.Type) =>
    status === "unhealthy"
      ? Effect.succeed(failed(status, "it says that it is unhealthy: its own log says why"))
      : Effect.map(nameOf, (name) =>
        Option.contains(name, episodes)
          ? failed(
            "a server of episodes",
            "it serves episodes and isn't a Terminus server: start `episode serve terminus`"
          )
          : { ...about, status: "ok" as const, found: status })
  return get("/health").pipe(
    Effect.flatMap((response) =>
      response.status === 401 || response.status === 403
        ? Effect.succeed(failed(
          `HTTP ${response.status}`,
          "authorization" in headers
            ? "it doesn't accept the token in EPISODE_OPENENV_TOKEN"
            : "it wants a token: set EPISODE_OPENENV_TOKEN"
        ))
        : Effect.flatMap(HttpClientResponse.schemaBodyJson(Wire.Health)(response), answered)
    ),
    Effect.timeout("5 seconds"),
    Effect.catchTags({
      RequestError: () => Effect.succeed(failed("no connection", "start it, or correct --openenv-url")),
      ResponseError: () => Effect.succeed(failed("another answer", "--openenv-url isn't that of an OpenEnv server")),
      ParseError: () => Effect.succeed(failed("another answer", "--openenv-url isn't that of an OpenEnv server")),
      TimeoutException: () => Effect.succeed(failed("no answer", "see whether it is busy, or stuck"))
    }),
    Effect.provide(FetchHttpClient.layer)
  )
}

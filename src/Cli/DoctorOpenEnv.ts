/**
 * Whether an OpenEnv server can be reached. No session is opened.
 */
import * as FetchHttpClient from "@effect/platform/FetchHttpClient"
import * as HttpClient from "@effect/platform/HttpClient"
import * as HttpClientResponse from "@effect/platform/HttpClientResponse"
import * as Effect from "effect/Effect"
import * as Wire from "../OpenEnv/Wire.ts"

/** Asks a server how it is. */
export const check = (url: string, headers: Readonly<Record<string, string>>) => {
  const about = { id: "server", title: "the server at --openenv-url" }
  const failed = (found: string, todo: string) => ({ ...about, status: "failed" as const, found, todo })
  return HttpClient.get(`${url.replace(/^ws/, "http").replace(/\/+$/, "")}/health`, { headers }).pipe(
    Effect.flatMap((response) =>
      response.status === 401 || response.status === 403
        ? Effect.succeed(failed(`HTTP ${response.status}`, "it wants a token: set EPISODE_OPENENV_TOKEN"))
        : Effect.map(HttpClientResponse.schemaBodyJson(Wire.Health)(response), ({ status }) =>
          status === "unhealthy"
            ? failed(status, "it says that it is unhealthy: its own log says why")
            : { ...about, status: "ok" as const, found: status })
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

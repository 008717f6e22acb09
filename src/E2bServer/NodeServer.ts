/**
 * The one module of this room that knows Node: the HTTP server, and what `@effect/platform` has no word for, that is
 * destroying a connection and gzip.
 */
import * as NodeHttpServer from "@effect/platform-node/NodeHttpServer"
import * as NodeHttpServerRequest from "@effect/platform-node/NodeHttpServerRequest"
import * as NodeStream from "@effect/platform-node/NodeStream"
import type * as HttpServer from "@effect/platform/HttpServer"
import type { ServeError } from "@effect/platform/HttpServerError"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Http from "node:http"
import * as zlib from "node:zlib"
import { Malformed, type Transport } from "./Transport.ts"

export const transport: Context.Tag.Service<Transport> = {
  hangUp: (request) =>
    Effect.sync(() => {
      const response = NodeHttpServerRequest.toServerResponse(request)
      // Past its end the connection carries another request.
      if (!response.writableFinished) {
        response.socket?.resetAndDestroy()
        response.destroy()
      }
    }),
  gunzip: NodeStream.pipeThroughDuplex(() => zlib.createGunzip(), () => new Malformed()),
  gzip: (bytes) =>
    // What is given to it is bytes, which can always be compressed.
    bytes.pipe(NodeStream.pipeThroughDuplex(() => zlib.createGzip(), () => new Malformed()), Stream.orDie)
}

/** Listens until the scope closes. Then connections are destroyed, as replies may be without an end. */
export const listen = (options: {
  readonly host: string
  readonly port: number
}): Effect.Effect<HttpServer.HttpServer, ServeError, Scope.Scope> =>
  Effect.gen(function*() {
    // An upload takes as long as it takes. And a client that was busy for some seconds, and believes its connection to be
    // open still, must not write into one that was closed meanwhile.
    const server = Http.createServer({ requestTimeout: 0, keepAliveTimeout: 65_000 })
    const listening = yield* NodeHttpServer.make(() => server, options)
    yield* Effect.addFinalizer(() => Effect.sync(() => server.closeAllConnections()))
    return listening
  })

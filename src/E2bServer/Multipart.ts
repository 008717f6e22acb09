/**
 * `multipart/form-data`, one part after the other, of any size. Its own, as the platform's parser never comes to an end
 * with a body that breaks off in front of a part.
 */
import type * as Chunk from "effect/Chunk"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { concat, indexOf, utf8 } from "./Bytes.ts"
import { Malformed } from "./Transport.ts"

export interface Part<E, R> {
  readonly name: string
  readonly filename: string | undefined
  /** What isn't taken of it is passed over. */
  readonly content: Stream.Stream<Uint8Array, E | Malformed, R>
}

const longestHeader = 16 * 1024

/** What separates the parts, where a content type says it. */
export const boundaryOf = (contentType: string): Option.Option<string> => {
  const [, quoted, plain] = /;\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))/i.exec(contentType) ?? []
  return Option.fromNullable(quoted ?? plain)
}

// As browsers and the SDK write names: these three are escaped, and nothing else.
const unescape = (text: string): string =>
  text.replaceAll("\\\"", "\"").replace(/%22|%0D|%0A/gi, (coded) => decodeURIComponent(coded))

const decodeExtended = (text: string | undefined): string | undefined => {
  const coded = /^utf-8'[^']*'(.*)$/i.exec(text ?? "")?.[1]
  return coded === undefined ? undefined : Option.getOrUndefined(Option.liftThrowable(decodeURIComponent)(coded))
}

const parseHeader = (text: string): Pick<Part<never, never>, "name" | "filename"> => {
  const line = text.split("\r\n").find((line) => /^content-disposition:/i.test(line)) ?? ""
  const parameter = (name: string): string | undefined => {
    const [, quoted, plain] = new RegExp(`;\\s*${name}=(?:"((?:\\\\"|[^"])*)"|([^\\s;"]+))`, "i").exec(line) ?? []
    return quoted === undefined ? plain : unescape(quoted)
  }
  return {
    name: parameter("name") ?? "",
    filename: decodeExtended(parameter("filename\\*")) ?? parameter("filename")
  }
}

/** Does something with each part, in order. The whole body is read, also behind the last part. */
export const forEachPart = <E, R, E2, R2>(
  body: Stream.Stream<Uint8Array, E, R>,
  boundary: string,
  use: (part: Part<E, R>) => Effect.Effect<void, E2, R2>
): Effect.Effect<void, E | E2 | Malformed, R | R2> =>
  Effect.scoped(Effect.flatMap(Stream.toPull(body), (pull) => eachPart(pull, boundary, use)))

const eachPart = <E, R, E2, R2>(
  pull: Effect.Effect<Chunk.Chunk<Uint8Array>, Option.Option<E>, R>,
  boundary: string,
  use: (part: Part<E, R>) => Effect.Effect<void, E2, R2>
): Effect.Effect<void, E | E2 | Malformed, R | R2 | Scope.Scope> => {
  const delimiter = utf8(`\r\n--${boundary}`)
  const endOfHeader = utf8("\r\n\r\n")
  // The first delimiter may have no line in front of it.
  let buffer = utf8("\r\n")

  const more: Effect.Effect<void, E | Malformed, R> = Effect.matchEffect(pull, {
    onFailure: (error) => Effect.fail(Option.getOrElse(error, () => new Malformed())),
    onSuccess: (chunks) =>
      Effect.sync(() => {
        buffer = concat([buffer, ...chunks])
      })
  })

  // What is left up to the next delimiter, as far as it is there.
  const piece: Effect.Effect<Uint8Array, Option.Option<E | Malformed>, R> = Effect.suspend(() => {
    const found = indexOf(buffer, delimiter)
    // A delimiter may begin in the last bytes.
    const length = found === -1 ? buffer.length - delimiter.length + 1 : found
    if (length > 0) {
      const taken = buffer.subarray(0, length)
      buffer = buffer.subarray(length)
      return Effect.succeed(taken)
    }
    return found === 0
      ? Effect.fail(Option.none())
      : Effect.zipRight(Effect.mapError(more, Option.some), piece)
  })
  const content = Stream.repeatEffectOption(piece)

  // The lines behind a delimiter; none behind the last one.
  const header: Effect.Effect<Option.Option<string>, E | Malformed, R> = Effect.suspend(() => {
    const rest = buffer.subarray(delimiter.length)
    if (rest[0] === 0x2d && rest[1] === 0x2d) {
      return Effect.succeedNone
    }
    const end = indexOf(rest, endOfHeader)
    if (end === -1) {
      return rest.length > longestHeader ? new Malformed() : Effect.zipRight(more, header)
    }
    buffer = rest.subarray(end + endOfHeader.length)
    // Empty content is followed by its delimiter at once.
    return Effect.succeedSome(new TextDecoder().decode(rest.subarray(0, end)))
  })

  return Effect.gen(function*() {
    yield* Stream.runDrain(content)
    for (let found = yield* header; Option.isSome(found); found = yield* header) {
      yield* use({ ...parseHeader(found.value), content })
      yield* Stream.runDrain(content)
    }
    yield* Effect.forever(pull).pipe(Effect.catchAll(Option.match({ onNone: () => Effect.void, onSome: Effect.fail })))
  })
}

import { addEqualityTesters } from "@effect/vitest"

// `expect(a).toEqual(b)` asks Effect's `Equal` where a value implements it.
addEqualityTesters()

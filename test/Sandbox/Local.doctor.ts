/** What the doctor finds where this is started, as JSON. */
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import { checks } from "../../src/Sandbox/Local/Doctor.ts"

Effect.runPromise(Effect.flatMap(checks, (found) => Console.log(JSON.stringify(found))))

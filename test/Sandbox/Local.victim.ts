/**
 * A host process of its own: it makes a sandbox, starts daemons in it, says how far it got, and is killed.
 */
import * as Console from "effect/Console"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import { provider as makeProvider } from "../../src/Sandbox/Local.ts"

const limits = { timeLimit: Duration.minutes(1), outputCap: 1024 }

const program = Effect.scoped(Effect.gen(function*() {
  yield* Console.log("start")
  const provider = yield* makeProvider({ directory: process.argv[2] })
  yield* Console.log("creating")
  const machine = yield* provider.create({
    role: "policy",
    lifetime: Duration.minutes(2),
    network: "default",
    labels: { victim: "yes" }
  })
  yield* Console.log("ready")
  const { stdout } = yield* machine.exec(
    "echo victim >made-by; echo confined $(grep -w Seccomp: /proc/self/status | cut -f2) $(ulimit -u) $(id -u); "
      + "printf 'descriptors '; for fd in /proc/self/fd/*; do [ -L $fd ] && printf '%s ' ${fd##*/}; done",
    limits
  )
  yield* Console.log(Buffer.from(stdout.head).toString())
  yield* Effect.fork(machine.exec("setsid sleep 1000 & (sleep 1000 &); sleep 1000 & kill -STOP $!; sleep 1000", limits))
  yield* Console.log("exec")
  const error = yield* Effect.flip(Effect.forever(Effect.andThen(machine.health, Effect.sleep("20 millis"))))
  yield* Console.log("reason" in error ? `lost ${error.reason}` : error._tag)
}))

Effect.runPromise(program)

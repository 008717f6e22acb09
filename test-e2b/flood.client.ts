/** Reads the output of one command through the SDK's callback, and now and then pauses. */
import { E2B } from "e2b"

const [apiKey = "", size = "", url = ""] = process.argv.slice(2)

const { Sandbox } = new E2B({ apiKey, apiUrl: url, sandboxUrl: url })

const started = performance.now()
let bytes = 0
let next = 0
const sandbox = await Sandbox.create({ timeoutMs: 280_000 })
// The SDK keeps all that a command prints, so it comes from many commands.
const part = 64 * 1024 * 1024
for (let left = Number(size); left > 0; left -= part) {
  await sandbox.commands.run(`head -c ${Math.min(part, left)} /dev/zero | tr '\\0' x`, {
    timeoutMs: 0,
    onStdout: async (text) => {
      bytes += text.length
      if (bytes > next) {
        next += 16 * 1024 * 1024
        await new Promise((resolve) => setTimeout(resolve, 50))
      }
    }
  })
}
await sandbox.kill()
process.send?.({ bytes, seconds: Math.round((performance.now() - started) / 1000) }, () => process.exit(0))

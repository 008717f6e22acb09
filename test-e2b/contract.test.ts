import { straight } from "../test/Sandbox/E2b/served.ts"
import { providerContract } from "../test/Sandbox/providerContract.ts"

providerContract("E2b", straight, { timeout: 60_000 })

import * as Local from "../../src/Sandbox/Local.ts"
import { providerContract } from "./providerContract.ts"

providerContract("Local", Local.layer())

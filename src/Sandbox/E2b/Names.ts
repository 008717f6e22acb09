/**
 * What settings are called where they are made: advice is of no use in another's words.
 */
import * as Record from "effect/Record"

/** The variables of the environment. */
export const variables = {
  apiKey: "E2B_API_KEY",
  template: "EPISODE_E2B_TEMPLATE",
  domain: "E2B_DOMAIN",
  apiUrl: "E2B_API_URL",
  sandboxUrl: "E2B_SANDBOX_URL"
} as const

type Setting = keyof typeof variables

export type Names = Readonly<Record<Setting, string>>

/** Of those that were given in code an error says the option, of others the variable. */
export const namesOf = (isGiven: (setting: Setting) => boolean): Names =>
  Record.map(variables, (variable, setting) => isGiven(setting) ? `\`${setting}\`` : variable)

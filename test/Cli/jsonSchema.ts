import { Ajv } from "ajv"

/** What is wrong with a JSON text, by a JSON Schema and by a validator that has nothing to do with ours. */
export const validatorOf = (schema: string) => {
  const parsed: unknown = JSON.parse(schema)
  if (typeof parsed !== "object" || parsed === null) {
    throw new TypeError("a JSON Schema is an object")
  }
  const ajv = new Ajv({ allErrors: true, strict: false, validateFormats: false })
  const validate = ajv.compile(parsed)
  return (document: string): ReadonlyArray<string> =>
    validate(JSON.parse(document))
      ? []
      : (validate.errors ?? []).map((error) => `${error.instancePath} ${error.message}`)
}

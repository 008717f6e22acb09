// Type-checks every `ts` block of the README, of docs/ and of the @example tags in src, as a module of its own that
// imports `episode/...` as a user would. Messages point at the line where the block stands.
//
// The compiler takes such an import from src, whatever package.json exports. So this also checks that the modules which a
// user can import are those that are documented as public: with an @since.
import { existsSync, readdirSync, readFileSync } from "node:fs"
import { extname, join, relative } from "node:path"
import { fileURLToPath } from "node:url"
import ts from "typescript"

const root = fileURLToPath(new URL("..", import.meta.url))

/** @type {(folder: string, recursive: boolean) => Array<string>} */
const filesIn = (folder, recursive) =>
  existsSync(join(root, folder))
    ? readdirSync(join(root, folder), { encoding: "utf8", recursive }).map((path) => join(root, folder, path))
    : []

const sources = [
  ...filesIn("", false).filter((path) => extname(path) === ".md"),
  ...filesIn("docs", true).filter((path) => extname(path) === ".md"),
  ...filesIn("src", true).filter((path) => extname(path) === ".ts")
]

/**
 * The blocks of a file, each preceded by as many empty lines as stand before it there: line numbers agree.
 *
 * @type {(path: string) => Array<{ path: string, line: number, text: string }>}
 */
const blocksOf = (path) => {
  const isMarkdown = extname(path) === ".md"
  const found = []
  let open
  for (const [index, line] of readFileSync(path, "utf8").split("\n").entries()) {
    const text = isMarkdown ? line : /^\s*\* ?(.*)$/.exec(line)?.[1]
    if (open === undefined) {
      if (text !== undefined && /^\s*```(ts|typescript)\b/.test(text)) {
        open = { line: index + 1, lines: /** @type {Array<string>} */ ([]) }
      }
    } else if (text === undefined || /^\s*```\s*$/.test(text)) {
      found.push({ path, line: open.line, text: "\n".repeat(open.line) + open.lines.join("\n") + "\n" })
      open = undefined
    } else {
      open.lines.push(text)
    }
  }
  if (open !== undefined) {
    throw new Error(`${relative(root, path)}:${open.line}: the block isn't closed`)
  }
  return found
}

// They exist only in memory, beside package.json so that imports resolve as they do everywhere in the repository.
const blocks = new Map(
  sources.flatMap(blocksOf).map((block, index) => [join(root, `example-${index}.ts`), block])
)

const configPath = join(root, "tsconfig.json")
const config = ts.readConfigFile(configPath, ts.sys.readFile).config
const options = {
  ...ts.parseJsonConfigFileContent(config, ts.sys, root).options,
  // An example may show a value and leave it there.
  noUnusedLocals: false,
  noUnusedParameters: false
}

const host = ts.createCompilerHost(options)
const { fileExists, readFile } = host
host.fileExists = (/** @type {string} */ path) => blocks.has(path) || fileExists(path)
host.readFile = (/** @type {string} */ path) => blocks.get(path)?.text ?? readFile(path)

// As Node resolves it, by the exports of package.json.
const isExported = (/** @type {string} */ name) => {
  try {
    import.meta.resolve(`episode/${name}`)
    return true
  } catch {
    return false
  }
}

let errors = 0
for (const path of filesIn("src", true).filter((path) => extname(path) === ".ts")) {
  const name = relative(join(root, "src"), path).slice(0, -".ts".length)
  const isPublic = /^ *\* @since /m.test(readFileSync(path, "utf8"))
  if (isPublic !== isExported(name)) {
    errors++
    process.stderr.write(
      `src/${name}.ts: ${
        isPublic ? "has an @since, and package.json doesn't export it" : "is exported, without an @since"
      }\n`
    )
  }
}

const program = ts.createProgram([...blocks.keys()], options, host)
for (const [example, block] of blocks) {
  const file = program.getSourceFile(example)
  for (const [, name = ""] of block.text.matchAll(/"episode\/([^"]+)"/g)) {
    if (!isExported(name)) {
      errors++
      process.stderr.write(`${relative(root, block.path)}:${block.line}: episode/${name} isn't exported\n`)
    }
  }
  for (
    const { messageText, start } of [
      ...program.getSyntacticDiagnostics(file),
      ...program.getSemanticDiagnostics(file)
    ]
  ) {
    errors++
    const { character, line } = ts.getLineAndCharacterOfPosition(/** @type {ts.SourceFile} */ (file), start ?? 0)
    const message = ts.flattenDiagnosticMessageText(messageText, "\n")
    process.stderr.write(`${relative(root, block.path)}:${line + 1}:${character + 1}: ${message}\n`)
  }
}

process.stdout.write(`${blocks.size} examples and what is exported checked, ${errors} errors\n`)
process.exitCode = errors === 0 ? 0 : 1

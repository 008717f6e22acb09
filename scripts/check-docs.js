// Type-checks every `ts` block of the README, of docs/ and of the @example tags in src, as a module of its own that
// imports `episode/...` as a user would. Messages point at the line where the block stands.
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

const program = ts.createProgram([...blocks.keys()], options, host)
let errors = 0
for (const [example, block] of blocks) {
  const file = program.getSourceFile(example)
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

process.stdout.write(`${blocks.size} examples checked, ${errors} errors\n`)
process.exitCode = errors === 0 ? 0 : 1

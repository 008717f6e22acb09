/**
 * Text that came out of a sandbox, made safe for a terminal.
 */

// Everything that can move the cursor, change colours, or reorder what is read: controls but for line feed and tab,
// DEL and the C1 set, line and paragraph separators, marks of writing direction.
const unsafe = /[\p{Cc}\u2028\u2029\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/gu

const escaped = (character: string): string => {
  const code = character.codePointAt(0) ?? 0
  return character === "\n" || character === "\t"
    ? character
    : character === "\r"
    ? "\\r"
    : code < 0x100
    ? `\\x${code.toString(16).padStart(2, "0")}`
    : `\\u${code.toString(16)}`
}

export const visible = (text: string): string => text.replace(unsafe, escaped)

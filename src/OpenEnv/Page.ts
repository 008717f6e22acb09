/**
 * The page at `/web`, where a person plays an episode: one document, nothing loaded from anywhere.
 *
 * It is one more client of `/ws`. What comes out of a sandbox is only ever set as text, and the browser is told to run no
 * other script than this one.
 *
 * @since 0.1.0
 */
import * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import * as Effect from "effect/Effect"
import * as Encoding from "effect/Encoding"

/**
 * @since 0.1.0
 * @category models
 */
export interface Options {
  /** Whether the server has a task for a reset that names none. */
  readonly hasTask: boolean
}

const style = `
:root { color-scheme: light dark; --line: light-dark(#d5d8dc, #3a3f45); --soft: light-dark(#f4f5f6, #1d2023);
  --dim: light-dark(#5d6570, #9aa3ad); --good: light-dark(#12733b, #5ecb8b); --bad: light-dark(#b3261e, #ff8a80); }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.1rem; margin: 0 0 .75rem; }
main { display: grid; grid-template-columns: minmax(0, 1fr) 18rem; gap: 1rem; }
@media (max-width: 50rem) { main { grid-template-columns: minmax(0, 1fr); } }
section, aside > div, details { border: 1px solid var(--line); border-radius: .4rem; padding: .75rem; margin-bottom: 1rem; }
pre { margin: .25rem 0 .75rem; white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.4 ui-monospace, monospace; }
#log { height: 26rem; overflow: auto; background: var(--soft); }
#log .command { font-weight: 600; margin-bottom: 0; }
#log .note { color: var(--dim); }
#log .error { color: var(--bad); }
#prompt { color: var(--dim); margin: 0; }
form, .row { display: flex; gap: .5rem; margin-bottom: 1rem; }
input, textarea { flex: 1; min-width: 0; padding: .45rem .6rem; font: 13px/1.4 ui-monospace, monospace; }
textarea { width: 100%; min-height: 6rem; }
button { padding: .45rem .9rem; font: inherit; }
h2 { font-size: .8rem; color: var(--dim); margin: 0 0 .4rem; text-transform: uppercase; letter-spacing: .04em; }
dl { display: grid; grid-template-columns: auto 1fr; gap: .15rem .75rem; margin: 0; }
dt { color: var(--dim); }
dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
ul { margin: 0; padding-left: 1.1rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
`

const script = `
"use strict"
const byId = (id) => document.getElementById(id)
const shown = { window: null, deadline: null, at: 0 }
let socket = null
let busy = false
let active = false
// The request under way, and what came before it.
let waiting = null
let turn = Promise.resolve()

const note = (text, kind) => {
  const line = document.createElement("pre")
  line.className = kind
  line.textContent = text
  byId("log").append(line)
  byId("log").scrollTop = byId("log").scrollHeight
}

const enable = () => {
  byId("reset").disabled = busy
  byId("submit").disabled = busy || !active
  byId("run").disabled = busy || !active
  byId("status").textContent = busy ? "working" : byId("status").dataset.status || "no session"
}

const connect = () => new Promise((resolve, reject) => {
  const url = new URL("ws", location.origin + "/")
  url.protocol = url.protocol.replace("http", "ws")
  const opening = new WebSocket(url)
  opening.onerror = () => reject(new Error("the server can't be reached"))
  opening.onopen = () => {
    opening.onmessage = ({ data }) => hear(JSON.parse(data))
    opening.onclose = lose
    resolve(opening)
  }
})

const hear = (reply) => {
  if (waiting !== null) {
    waiting.resolve(reply)
    waiting = null
  } else if (reply.type === "error") {
    // Nobody asked: the session is over, and this is why.
    note(reply.data.code + ": " + reply.data.message, "error")
  }
}

const lose = () => {
  if (active || waiting?.type === "reset") {
    note("connection lost: the episode is over, and the server deletes its sandboxes", "error")
    list("sandboxes", ["deleted by the server"], "")
  } else {
    note("connection lost", "note")
  }
  socket = null
  active = false
  shown.window = null
  shown.deadline = null
  byId("status").dataset.status = "connection lost"
  if (waiting !== null) {
    waiting.reject(null)
    waiting = null
  }
  enable()
}

const exchange = async (frame) => {
  // Another connection is another session: only a reset makes one.
  if (socket === null && frame.type === "reset") {
    socket = await connect()
  }
  return new Promise((resolve, reject) => {
    if (socket === null) {
      reject(null)
      return
    }
    waiting = { type: frame.type, resolve, reject }
    socket.send(JSON.stringify(frame))
  })
}

// One request at a time: replies belong to requests by their order.
const ask = (frame) => {
  const asked = turn.then(() => exchange(frame))
  turn = asked.catch(() => {})
  return asked
}

const list = (id, lines, empty) => {
  byId(id).replaceChildren(...(lines.length === 0 ? [empty] : lines).map((text) => {
    const item = document.createElement("li")
    item.textContent = text
    item.className = text.includes("not-proved-gone") || text.includes("unresolved") ? "bad" : ""
    return item
  }))
}

const showState = (state) => {
  active = state.status === "active"
  shown.window = state.window_seconds_left
  shown.deadline = state.deadline_seconds_left
  shown.at = performance.now()
  byId("status").dataset.status = state.status
  byId("steps").textContent = String(state.step_count)
  byId("task").textContent = state.task_id || "-"
  byId("score").textContent = state.graded ? state.reward + " (" + state.reason + ")" : state.error ? "none" : "-"
  byId("score").className = state.graded ? (state.reward === 1 ? "good" : "bad") : ""
  list("sandboxes", state.sandboxes.map(({ role, state }) => role + ": " + state), "none")
}

const refresh = async () => {
  const reply = await ask({ type: "state" })
  if (reply.type === "state") {
    showState(reply.data)
  }
}

const perform = async (frame, onObservation) => {
  if (busy) {
    return
  }
  busy = true
  enable()
  try {
    const reply = await ask(frame)
    if (reply.type === "error") {
      note(reply.data.code + ": " + reply.data.message, "error")
      // The first of them stands in the message.
      for (const { loc, msg } of (reply.data.errors || []).slice(1)) {
        note(loc.join(".") + ": " + msg, "error")
      }
    } else {
      onObservation(reply.data)
    }
    await refresh()
  } catch (error) {
    // Null: there is no connection any more, and it is said.
    if (error !== null) {
      note(error.message, "error")
    }
  }
  busy = false
  enable()
  byId("command").focus()
}

const call = (tool_name, args) => ({ type: "step", data: { type: "call_tool", tool_name, arguments: args } })

const showResult = ({ done, metadata, observation, reward }) => {
  note(observation.error ? observation.error.message : observation.result.data, observation.error ? "error" : "output")
  if (done) {
    note("the episode is over: score " + reward + ", " + metadata.reason, "note")
    for (const { confirmed_absent_at, role, sandbox_id } of metadata.cleanup) {
      note(role + " sandbox " + sandbox_id + ": absence confirmed at " + confirmed_absent_at, "note")
    }
  }
}

byId("reset").onclick = () => {
  const task = byId("taskfile").value.trim()
  note("reset", "command")
  perform({ type: "reset", data: task === "" ? {} : { task } }, ({ observation }) => {
    byId("prompt").textContent = observation.prompt
    note("ready", "note")
  })
}

byId("submit").onclick = () => {
  note("submit", "command")
  perform(call("submit", {}), showResult)
}

byId("form").onsubmit = (event) => {
  event.preventDefault()
  const command = byId("command").value
  if (!busy && active && command !== "") {
    note("$ " + command, "command")
    byId("command").value = ""
    perform(call("terminal", { command }), showResult)
  }
}

const left = (seconds) =>
  seconds === null ? "-" : Math.max(0, seconds - (performance.now() - shown.at) / 1000).toFixed(0) + " s"

setInterval(() => {
  byId("window").textContent = left(shown.window)
  byId("deadline").textContent = left(shown.deadline)
  if (active && !busy && left(shown.window) === "0 s") {
    refresh().then(enable, () => {})
  }
}, 500)

setInterval(async () => {
  try {
    const { open } = await (await fetch("/ledger")).json()
    list("ledger", open.map(({ role, state }) => role + ": " + state), "none")
  } catch {
    list("ledger", ["the server can't be reached"], "")
  }
}, 700)

enable()
`

const bodyOf = ({ hasTask }: Options) => `
<h1>Episode</h1>
<main>
  <div>
    <section><pre id="prompt">${
  hasTask
    ? "Press reset to begin an episode."
    : "This server has no task of its own. Give it one below, and press reset to begin an episode."
}</pre></section>
    <section id="log" role="log" aria-live="polite" aria-label="Observations"></section>
    <form id="form">
      <input id="command" aria-label="Command" placeholder="a shell command" autocomplete="off" spellcheck="false">
      <button id="run" disabled>Run</button>
    </form>
    <div class="row">
      <button id="submit" type="button" disabled>Submit</button><button id="reset" type="button" disabled>Reset</button>
    </div>
    <details${hasTask ? "" : " open"}><summary>A task of your own</summary>
      <textarea id="taskfile" aria-label="Task" placeholder="the text of a task.json${
  hasTask ? "; empty for the server's own" : ""
}"></textarea>
    </details>
  </div>
  <aside>
    <div><h2>Episode</h2><dl>
      <dt>status</dt><dd id="status">no session</dd><dt>task</dt><dd id="task">-</dd>
      <dt>steps</dt><dd id="steps">0</dd><dt>score</dt><dd id="score">-</dd></dl></div>
    <div><h2>Budgets</h2><dl>
      <dt>until submit</dt><dd id="window">-</dd><dt>whole episode</dt><dd id="deadline">-</dd></dl></div>
    <div><h2>Sandboxes of this episode</h2><ul id="sandboxes"><li>none</li></ul></div>
    <div><h2>Not proved gone, on this server</h2><ul id="ledger"><li>none</li></ul></div>
  </aside>
</main>
`

const documentOf = (options: Options) =>
  "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Episode</title>"
  + "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
  + `<style>${style}</style></head><body>${bodyOf(options)}<script>${script}</script></body></html>`

const hash = (text: string) =>
  Effect.map(
    Effect.promise(() => globalThis.crypto.subtle.digest("SHA-256", new TextEncoder().encode(text))),
    (digest) => `'sha256-${Encoding.encodeBase64(new Uint8Array(digest))}'`
  )

/**
 * The page, and what a browser may do with it.
 *
 * @since 0.1.0
 * @category constructors
 */
export const make = Effect.fnUntraced(function*(options: Options) {
  const policy = [
    "default-src 'none'",
    `script-src ${yield* hash(script)}`,
    `style-src ${yield* hash(style)}`,
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'"
  ]
  return HttpServerResponse.text(documentOf(options), {
    contentType: "text/html; charset=utf-8",
    headers: {
      "content-security-policy": policy.join("; "),
      "x-content-type-options": "nosniff",
      "referrer-policy": "no-referrer",
      "cache-control": "no-store"
    }
  })
})

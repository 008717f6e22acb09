/**
 * What runs in a sandbox on our behalf: three fixed Python programs, how they are started, and how their one line of
 * reply is read. It is for providers that reach a sandbox through somebody else's shell.
 *
 * What comes through such a shell is text, and may be kept whole, joined or trimmed on its way. So output is caught
 * inside: a program runs the command, keeps head and tail of each stream in bounded memory, enforces the time limit,
 * and replies with one line of base64. The host sees no more than the caps, whatever is printed, bytes stay bytes, and
 * a terminal command is one request.
 *
 * A guest has the same user as these programs, and may be root. So no reply is trusted for more than it is: each is
 * bounded, is read strictly, and says nothing that a guest couldn't have brought about by honest means, as the file or
 * the exit code is its own. What it can't do is to get between us and them by its startup files or its PATH.
 *
 * @since 0.1.0
 */
import * as Arr from "effect/Array"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { type CapturedOutput, type ExecLimits, type ExecResult, type FileLimits, FileRead } from "../Sandbox.ts"
import type { SandboxFile } from "../Task.ts"

// ----------------------------------------------------------------------------
// models
// ----------------------------------------------------------------------------

/**
 * A program as it is started: the line for the shell that starts everything there, and its environment.
 *
 * @since 0.1.0
 * @category models
 */
export interface Launch {
  /** Opens every line of the reply, so that nothing else in the output is taken for it. */
  readonly mark: string
  readonly line: string
  readonly environment: Readonly<Record<string, string>>
  /** Characters of output beyond which it isn't our program that is talking. */
  readonly outputCap: number
}

/**
 * What a program said.
 *
 * @since 0.1.0
 * @category models
 */
export interface Reply {
  /** It ran at all: there is a Python. */
  readonly isReady: boolean
  /** What may be its reply: a guest can have written some of these, and have taken others away. */
  readonly candidates: ReadonlyArray<ReadonlyArray<string>>
}

// ----------------------------------------------------------------------------
// programs
// ----------------------------------------------------------------------------

// The first line of a reply says that there is a Python to give one; the second is the reply. That of a command has a
// third, which says that the second is whole, where line breaks can't be relied on.
const preamble = String.raw`
import os, sys
from binascii import a2b_base64, b2a_base64
mark = sys.argv[1].encode()
def base64(data):
    return b2a_base64(data, newline=False)
def say(*fields):
    data = b"\n" + b":".join((mark,) + fields) + b"\n"
    while data:
        data = data[os.write(1, data):]
def parcel(count):
    return a2b_base64(b"".join(os.environb.pop(b"__EPISODE_%d" % n) for n in range(count)))
say(b"ready")
`

// Three processes: this one, which the shell knows; the command, in a session of its own; and between them a watchdog
// that kills the session if this one dies first, as it does when the host kills it.
const runner = String.raw`${preamble}
import select, signal, time
limit, cap = float(sys.argv[2]), int(sys.argv[3])
command = parcel(int(sys.argv[4]))
half = (cap + 1) // 2

class Capture:
    def __init__(self):
        self.head, self.tail, self.total = bytearray(), bytearray(), 0
    def push(self, chunk):
        self.total += len(chunk)
        room = half - len(self.head)
        self.head += chunk[:room]
        self.tail += chunk[room:]
        del self.tail[:max(0, len(self.tail) - (cap - half))]
    def fields(self):
        return b"%d" % self.total, base64(self.head), base64(self.tail)

def end(code, killed, out, err):
    say(b"end", b"%d" % code, b"%d" % killed, *out.fields(), *err.fields())
    say(b"over")
    os._exit(0)

def slay(session):
    for _ in range(100):
        found = False
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/" + pid + "/stat", "rb") as stat:
                    state, _, _, its, *_ = stat.read().rpartition(b")")[2].split()
                if int(its) == session and state not in (b"Z", b"X"):
                    os.kill(int(pid), signal.SIGKILL)
                    found = True
            except (OSError, ValueError):
                pass
        if not found:
            return
        time.sleep(0.01)

def detach():
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)

def write(data, to, other):
    detach()
    os.close(other)
    while data:
        data = data[os.write(to, data):]

def watch(death, alive):
    detach()
    os.close(alive)
    told = b""
    while True:
        chunk = os.read(death, 64)
        if not chunk:
            break
        told += chunk
    if told and not told.endswith(b"."):
        slay(int(told))

def become(stdin, out, err, argv):
    os.setsid()
    for fd, to in ((stdin, 0), (out, 1), (err, 2)):
        os.dup2(fd, to)
    signal.set_wakeup_fd(-1)
    for name in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
        signal.signal(name, signal.SIG_DFL)
    os.umask(0o022)
    home = "/home/user"
    try:
        os.chdir(home)
    except OSError:
        os.chdir("/")
    environment = {**os.environ, "HOME": home}
    for name in ("_", "PWD", "OLDPWD", "SHLVL"):
        environment.pop(name, None)
    os.execve("/bin/bash", argv, environment)

def fork(child, *arguments):
    pid = os.fork()
    if pid == 0:
        try:
            child(*arguments)
        finally:
            os._exit(126)
    return pid

argv = [b"bash", b"--norc", b"--noprofile", b"-c", command, b"bash"]
stdin = os.open("/dev/null", os.O_RDONLY)
# What doesn't fit into an argument goes through the standard input, and through no disk.
isLong = len(command) > 100000 or b"\0" in command
if isLong:
    argv[4] = b'c=$(cat; printf .); exec </dev/null; eval "$' b'{c%.}"'

out, err = Capture(), Capture()
try:
    if isLong:
        stdin, feed = os.pipe()
        fork(write, command, feed, stdin)
        os.close(feed)
    death, alive = os.pipe()
    fork(watch, death, alive)
    os.close(death)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    wake_read, wake_write = os.pipe()
    for fd in (out_read, err_read, wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    leader = fork(become, stdin, out_write, err_write, argv)
except OSError as error:
    err.push(b"bash: fork: " + os.strerror(error.errno).encode() + b"\n")
    end(254, False, out, err)
os.write(alive, b"%d" % leader)
os.close(out_write)
os.close(err_write)

def reap():
    pid, status = os.waitpid(leader, os.WNOHANG)
    if pid == 0:
        return None
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

streams = {out_read: out, err_read: err}
poll = select.poll()
for fd in (*streams, wake_read):
    poll.register(fd, select.POLLIN)
deadline = time.monotonic() + limit
code, killed = reap(), False
while code is None:
    left = deadline - time.monotonic()
    if left <= 0:
        slay(leader)
        code, killed = 137, True
        break
    for fd, _ in poll.poll(int(left * 1000) + 1):
        if fd == wake_read:
            os.read(fd, 4096)
            continue
        chunk = os.read(fd, 65536)
        if chunk:
            streams[fd].push(chunk)
        else:
            poll.unregister(fd)
    code = reap()
os.write(alive, b".")
# What was written before the end is in the pipe, which holds no more than this. Somebody else may write for ever.
for fd, stream in streams.items():
    rest = 1 << 20
    while rest > 0:
        try:
            chunk = os.read(fd, 65536)
        except BlockingIOError:
            break
        if not chunk:
            break
        stream.push(chunk)
        rest -= len(chunk)
end(code, killed, out, err)
`

// The path is walked one part at a time, each opened relative to the one before, and never through a link. What is read
// is the very file that was looked at, whatever has its name by then. Naming a file opens nothing: a FIFO would wait.
const reader = String.raw`${preamble}
import stat
path, most = os.fsencode(sys.argv[2]), int(sys.argv[3])

def look():
    made_up = {os.stat(name).st_dev for name in ("/proc", "/sys") if os.path.ismount(name)}
    names = path.split(b"/")[1:]
    found = os.open("/", os.O_PATH | os.O_DIRECTORY)
    for position, name in enumerate(names):
        above, found = found, os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=found)
        os.close(above)
        about = os.fstat(found)
        if stat.S_ISLNK(about.st_mode):
            return b"NotRegular",
        if position < len(names) - 1 and not stat.S_ISDIR(about.st_mode):
            return b"Missing",
    if not stat.S_ISREG(about.st_mode) or about.st_dev in made_up:
        return b"NotRegular",
    if about.st_size > most:
        return b"TooLarge",
    opened = os.open("/proc/self/fd/%d" % found, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    data = bytearray()
    while len(data) <= most:
        chunk = os.read(opened, min(65536, most + 1 - len(data)))
        if not chunk:
            return b"Bytes", base64(data)
        data += chunk
    return b"TooLarge",

try:
    answer = look()
except (FileNotFoundError, NotADirectoryError):
    answer = b"Missing",
except OSError as error:
    answer = (b"Missing" if error.errno == 36 else b"Unreadable"),
say(*answer)
`

// Files that have been put aside get their places: by renaming, which replaces what is there and neither opens nor
// follows it, and with their permissions.
const placer = String.raw`${preamble}
aside = sys.argv[2]
fields = parcel(int(sys.argv[3])).split(b"\0")
try:
    for number in range(len(fields) // 2):
        mode, path = int(fields[2 * number], 8), fields[2 * number + 1]
        folder, name = os.path.split(path)
        os.makedirs(folder, exist_ok=True)
        beside = os.path.join(folder, b"." + mark + b".new")
        source = os.path.join(aside, str(number))
        with open(source, "rb") as old, open(beside, "xb") as new:
            new.write(old.read())
        os.chmod(beside, mode)
        os.replace(beside, path)
        os.unlink(source)
    os.rmdir(aside)
    say(b"placed")
except OSError:
    say(b"failed")
`

// Ends what carries a mark, and lets go on what was stopped. It forks nothing, since a guest may have seen to that.
const rescuer = String.raw`
import os, signal, sys
mark, found = "".join(sys.argv[1:]).encode(), b"fine"
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open("/proc/" + pid + "/stat", "rb") as stat:
            state = stat.read().rpartition(b")")[2].split()[0]
        if state in (b"T", b"t"):
            found = b"stopped"
        with open("/proc/" + pid + "/cmdline", "rb") as words:
            os.kill(int(pid), signal.SIGKILL if mark in words.read() else signal.SIGCONT if state == b"T" else 0)
    except OSError:
        pass
os.write(1, found)
`

// ----------------------------------------------------------------------------
// starting them
// ----------------------------------------------------------------------------

const quote = (word: string): string => `'${word.replaceAll("'", "'\\''")}'`

// A single string of an environment is at most 128 KiB, and all of it together about 2 MiB.
const parcelSize = 96 * 1024
const largestParcel = 1024 * 1024

// Not Effect's own encoder: it takes 300 times as long, and a command can have a megabyte.
const parcels = (content: Uint8Array): ReadonlyArray<string> =>
  Buffer.from(content).toString("base64").match(new RegExp(`.{1,${parcelSize}}`, "gs")) ?? []

// In a shell, and in its place: what is used up by a guest may be processes.
const python = (words: ReadonlyArray<string>): string =>
  `set -- ${words.map(quote).join(" ")}; for python in /usr/bin/python3 /usr/local/bin/python3 python3; do `
  + "command -v \"$python\" >/dev/null && exec \"$python\" -I -S -c \"$@\"; done; exit 127"

// No process has this number, so nobody can make it.
const noHome = "/proc/0"

// A login shell, which is what envd starts, would read the guest's startup files first: so it gets no home. Neither is
// Python looked for where the guest could put one of its own, unless there is no other.
const launch = (options: {
  readonly mark: string
  readonly program: string
  readonly words: ReadonlyArray<string>
  readonly parcel?: Uint8Array
  readonly replyCap: number
}): Launch => {
  const sent = options.parcel === undefined ? undefined : parcels(options.parcel)
  const words = [options.program, options.mark, ...options.words, ...(sent === undefined ? [] : [String(sent.length)])]
  return {
    mark: options.mark,
    line: python(words),
    environment: {
      HOME: noHome,
      ...Object.fromEntries((sent ?? []).map((part, index) => [`__EPISODE_${index}`, part]))
    },
    // The line that says `ready`, and whatever the template's own startup files say.
    outputCap: options.replyCap + 16 * 1024
  }
}

const encoded = (bytes: number): number => Math.ceil(bytes / 3) * 4 + 32

/**
 * A mark that nobody has used yet.
 *
 * @since 0.1.0
 * @category constructors
 */
export const freshMark: Effect.Effect<string> = Effect.sync(() => globalThis.crypto.randomUUID().replaceAll("-", ""))

/**
 * Runs a command line in a bash; none where it is longer than what the kernel takes.
 *
 * @since 0.1.0
 * @category constructors
 */
export const run = (mark: string, command: string, limits: ExecLimits): Option.Option<Launch> => {
  const parcel = new TextEncoder().encode(command)
  return parcel.length > largestParcel ? Option.none() : Option.some(launch({
    mark,
    program: runner,
    words: [String(Duration.toSeconds(limits.timeLimit)), String(limits.outputCap)],
    parcel,
    replyCap: 2 * encoded(limits.outputCap) + 128
  }))
}

/**
 * Reads one file.
 *
 * @since 0.1.0
 * @category constructors
 */
export const read = (mark: string, path: string, maxBytes: number): Launch =>
  launch({ mark, program: reader, words: [path, String(maxBytes)], replyCap: encoded(maxBytes) + 128 })

/**
 * Puts files from where they were put aside, each under its number, to where they belong.
 *
 * @since 0.1.0
 * @category constructors
 */
export const place = (mark: string, aside: string, files: ReadonlyArray<SandboxFile>): Launch =>
  launch({
    mark,
    program: placer,
    words: [aside],
    parcel: new TextEncoder().encode(
      files.map(({ mode, path }) => `${(mode ?? 0o644).toString(8)}\0${path}\0`).join("")
    ),
    replyCap: 128
  })

/**
 * A command that ends a program of ours, and lets go on whatever was stopped. It prints which of both it found:
 * `untouched` or `stoppedSome`.
 *
 * @since 0.1.0
 * @category constructors
 */
export const rescue = (mark: string): string =>
  // In two parts, so that it isn't taken for what it looks for.
  python([rescuer, mark.slice(0, 16), mark.slice(16)])

/**
 * What `rescue` prints where nothing was stopped.
 *
 * @since 0.1.0
 * @category replies
 */
export const untouched = "fine"

/**
 * What `rescue` prints where something was stopped, which nobody but a guest does.
 *
 * @since 0.1.0
 * @category replies
 */
export const stoppedSome = "stopped"

// What the kernel takes as one argument of a program, its end included.
const longestArgument = 128 * 1024

/**
 * The same as one command line for `sh -c`, where no environment can be given; none where it is longer than what the
 * kernel takes.
 *
 * @since 0.1.0
 * @category constructors
 */
export const commandLine = ({ environment, line }: Launch): Option.Option<string> => {
  const variables = Object.entries(environment).map(([name, value]) => `${name}=${quote(value)}`)
  // `/` is there, whatever a guest did to its home.
  const all = `cd /; export ${variables.join(" ")}; ${line}`
  return new TextEncoder().encode(all).length < longestArgument ? Option.some(all) : Option.none()
}

// ----------------------------------------------------------------------------
// reading what they reply
// ----------------------------------------------------------------------------

/**
 * Finds the replies in an output.
 *
 * @since 0.1.0
 * @category replies
 */
export const replyIn = (mark: string, output: string): Reply => {
  // What isn't ended by a new line was cut off.
  const said = output.split("\n").slice(0, -1).filter((line) => line.startsWith(`${mark}:`)).map((line) =>
    line.slice(mark.length + 1)
  )
  return replyOf(said, said)
}

/**
 * Finds the replies to a command in an output that was trimmed, or joined of pieces with line breaks between them, or
 * that something was added to.
 *
 * @since 0.1.0
 * @category replies
 */
export const replyInText = (mark: string, text: string): Reply => {
  const [, ...said] = text.replaceAll(/\s+/g, "").split(`${mark}:`)
  // The last may have anything behind it.
  return replyOf(said, said.slice(0, -1))
}

const replyOf = (said: ReadonlyArray<string>, whole: ReadonlyArray<string>): Reply => ({
  isReady: said.length > 0,
  candidates: whole.map((line) => line.split(":"))
})

const Count = Schema.NumberFromString.pipe(Schema.int(), Schema.between(0, Number.MAX_SAFE_INTEGER))

const End = Schema.Tuple(
  Schema.Literal("end"),
  Schema.NumberFromString.pipe(Schema.int(), Schema.between(0, 255)),
  Schema.transformLiterals(["0", false], ["1", true]),
  ...[Count, Schema.Uint8ArrayFromBase64, Schema.Uint8ArrayFromBase64],
  ...[Count, Schema.Uint8ArrayFromBase64, Schema.Uint8ArrayFromBase64]
)

const decodeEnd = Schema.decodeUnknownOption(End)

const isCapture = (cap: number) => ({ head, tail, totalBytes }: CapturedOutput): boolean =>
  head.length <= Math.ceil(cap / 2) && tail.length <= Math.floor(cap / 2) && head.length + tail.length <= totalBytes

const endOf = (fields: ReadonlyArray<string>, { outputCap }: ExecLimits): Option.Option<ExecResult> =>
  decodeEnd(fields).pipe(
    Option.map(([_, exitCode, killedAtLimit, outTotal, outHead, outTail, errTotal, errHead, errTail]) => ({
      stdout: { head: outHead, tail: outTail, totalBytes: outTotal },
      stderr: { head: errHead, tail: errTail, totalBytes: errTotal },
      exitCode,
      killedAtLimit
    })),
    Option.filter(({ stderr, stdout }) => [stdout, stderr].every(isCapture(outputCap)))
  )

/**
 * The end of a command, if that was replied. A guest may have said something before it.
 *
 * @since 0.1.0
 * @category replies
 */
export const endIn = ({ candidates }: Reply, limits: ExecLimits): Option.Option<ExecResult> =>
  Arr.findFirst(candidates, (fields) => endOf(fields, limits))

const Found = Schema.Union(
  Schema.Tuple(Schema.Literal("Bytes"), Schema.Uint8ArrayFromBase64),
  Schema.Tuple(Schema.Literal("Missing", "NotRegular", "TooLarge", "Unreadable"))
)

const decodeFound = Schema.decodeUnknownOption(Found)

/**
 * What was found at a path, if that was replied.
 *
 * @since 0.1.0
 * @category replies
 */
export const foundIn = ({ candidates }: Reply, { maxBytes }: FileLimits): Option.Option<FileRead> =>
  Option.map(Arr.findFirst(candidates, (fields) => decodeFound(fields)), (found) =>
    found[0] !== "Bytes"
      ? FileRead[found[0]]()
      : found[1].length > maxBytes
      ? FileRead.TooLarge()
      : FileRead.Bytes({ bytes: found[1] }))

/**
 * Whether files are said to be in their places.
 *
 * @since 0.1.0
 * @category replies
 */
export const isPlaced = ({ candidates }: Reply): boolean => candidates.some(([answer]) => answer === "placed")

// ----------------------------------------------------------------------------
// where there is no reply
// ----------------------------------------------------------------------------

/**
 * What is missing where a program of ours doesn't even begin.
 *
 * @since 0.1.0
 * @category replies
 */
export const noPython = "no python3 runs there: the template needs one as /usr/bin/python3 or /usr/local/bin/python3"

const nothing: CapturedOutput = { head: new Uint8Array(), tail: new Uint8Array(), totalBytes: 0 }

/**
 * The result of a command whose guest stopped our program: no output, and that of a killed process unless another code
 * is known.
 *
 * @since 0.1.0
 * @category replies
 */
export const stopped = (killedAtLimit: boolean, exitCode = 137): ExecResult => ({
  stdout: nothing,
  stderr: nothing,
  exitCode: exitCode > 0 ? exitCode : 137,
  killedAtLimit
})

/**
 * The result of a command that couldn't be run: as bash says it, with its code for that.
 *
 * @since 0.1.0
 * @category replies
 */
export const notRun = (text: string, { outputCap }: ExecLimits): ExecResult => {
  const bytes = new TextEncoder().encode(`bash: ${text}\n`)
  return {
    stdout: nothing,
    stderr: { head: bytes.slice(0, outputCap), tail: new Uint8Array(), totalBytes: bytes.length },
    exitCode: 126,
    killedAtLimit: false
  }
}

/**
 * How long after its limit a command is ended from outside: the limit in the sandbox is the first to act, and where a
 * guest has stopped what enforces it, the host is.
 *
 * @since 0.1.0
 * @category limits
 */
export const grace: Duration.Duration = Duration.seconds(2)

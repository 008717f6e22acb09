/**
 * The program that makes a sandbox and becomes its first process: one process for Perl or Python instead of a script of
 * many tools, as each of those takes longer to start than all of this takes to do. What it does is told in steps.
 *
 * Two processes: the first, `chain`, is Node's child. The second, the first of the new namespaces, is its child and dies
 * with it, as the chain does with Node.
 */
import type { Interpreter } from "./Host.ts"
import type { Calls } from "./Seccomp.ts"

/** One step. Paths are relative to the new root once it is entered. */
export type Step =
  | readonly ["directory", path: string, mode: number, owner: number]
  | readonly ["file", path: string, content: string]
  | readonly ["link", path: string, to: string]
  | readonly ["mount", source: string, target: string, type: string, flags: number, data: string]
  | readonly ["enter", path: string]
  /** Makes a user namespace with a map of ids and pins it at a file, so that it lives without a process. */
  | readonly ["pin", path: string, map: string]
  /** Sets a switch of the kernel. */
  | readonly ["set", path: string, value: string]
  /** The same for those that an older kernel may refuse or not have. */
  | readonly ["try", path: string, value: string]
  | readonly ["hostname", name: string]
  | readonly ["loopback"]
  /** Makes the working directory the root; nothing of the old one is left below. */
  | readonly ["pivot", old: string]

/** Flags of mount(2). */
export const mountFlags = {
  readOnly: 1,
  noSuid: 2,
  noDevices: 4,
  noExecution: 8,
  remount: 32,
  noSymlinks: 256,
  bind: 4096,
  recursive: 16384,
  private: 1 << 18
} as const

/** Flags of clone(2): one for each kind of namespace. */
export const namespaceFlags = {
  mount: 0x00020000,
  cgroup: 0x02000000,
  uts: 0x04000000,
  ipc: 0x08000000,
  user: 0x10000000,
  pid: 0x20000000,
  net: 0x40000000
} as const

const SIGCHLD = 17

/** The steps as the program reads them from its standard input: words of any content, each after its length. */
export const encode = (steps: ReadonlyArray<Step>): Buffer => {
  const words = steps.flat().map(String)
  const bytes = Buffer.alloc(words.reduce((size, word) => size + 4 + Buffer.byteLength(word), 0))
  let end = 0
  for (const word of words) {
    const length = bytes.write(word, end + 4)
    bytes.writeUInt32BE(length, end)
    end += 4 + length
  }
  return bytes
}

// What is left of the chain: a shell is a tenth of Perl. It reads from a pipe that the first process holds open, and then
// waits until that one is collected, which shells do with any child, and at once while they wait for `sleep`: everything in
// its namespace has ended by then. It looks seldom, as many of them may wait at the same time.
const watch = "read -r _; n=0; s=0.01; while [ -d \"/proc/$0\" ] && [ $((n += 1)) -lt 500 ]; do sleep $s; s=0.1; done"

// 120 as an exit code: somebody it depends on ended before it could tie itself to them.
const perl = (calls: Calls): string =>
  `my ($node, $flags, $first, $uids, $gids, $prefix, $stage, $sleep) = @ARGV;
sub call { my ($number, @words) = @_; return syscall($number, @words) != -1 }
sub mount { my ($source, $target, $type, $flags, $data) = @_;
  call(${calls.mount}, $source, $target, $type, $flags + 0, $data) or die "mount $target: $!\\n" }
sub put { my ($path, $text) = @_;
  my $file; return sysopen($file, $path, 01101, 0644) && length($text) == (syswrite($file, $text) || 0) && close($file) }
sub must { my ($path, $text) = @_; put($path, $text) or die "$path: $!\\n" }
# A change of ids takes the parent-death signal away, and makes /proc's files of the process root's: see their uses.
sub become { my $id = $_[0] + 0; (call(${calls.setgroups}, 0, 0) && call(${calls.setresgid}, $id, $id, $id)
  && call(${calls.setresuid}, $id, $id, $id)) or die "id $id: $!\\n" }
sub follow { call(${calls.prctl}, 1, 9, 0, 0, 0) or die "parent: $!\\n" }
follow(); getppid() == $node or exit 120;
call(${calls.prctl}, 38, 1, 0, 0, 0) or die "no_new_privs: $!\\n";
opendir(my $open, '/proc/self/fd') or die "descriptors: $!\\n";
my @open = readdir($open); closedir($open); for (@open) { call(${calls.close}, $_ + 0) if /^[0-9]+$/ && $_ > 2 }
if ($stage ne '') {
  call(${calls.unshare}, ${namespaceFlags.mount}) or die "unshare: $!\\n";
  mount('none', '/', 'none', ${mountFlags.recursive | mountFlags.private}, '');
  mount($prefix, $stage, 'none', ${mountFlags.recursive | mountFlags.bind}, '') }
my $chain = $$;
(pipe(my $told, my $tell) && pipe(my $held, my $hold)) or die "pipe: $!\\n";
my $pid = syscall(${calls.clone}, $flags + ${SIGCHLD}, 0, 0, 0, 0);
$pid >= 0 or die "unshare: $!\\n";
if ($pid > 0) {
  close($hold);
  must("/proc/$pid/setgroups", 'deny') if $first eq 'same';
  must("/proc/$pid/gid_map", $gids); must("/proc/$pid/uid_map", $uids);
  if ($first ne 'same') { become($first); follow(); getppid() == $node or exit 120 }
  syswrite($tell, 'x');
  (open(STDIN, '<&', $held) && open(STDOUT, '>', '/dev/null')) or die "chain: $!\\n";
  open(STDERR, '>', '/dev/null');
  exec('sh', '-c', '${watch}', $pid) or exit 127;
}
close($tell); close($held); sysread($told, my $word, 1) or exit 120;
if ($first ne 'same') { become(0); call(${calls.prctl}, 4, 1, 0, 0, 0) or die "dumpable: $!\\n" }
follow();
open(my $stat, '<', '/proc/self/stat') or die "/proc/self/stat: $!\\n";
# /proc is still the host's.
my ($self, $parent) = (split(/ /, <$stat>))[0, 3]; close($stat); $parent == $chain or exit 120;
umask 0;
my @words = unpack('(N/a)*', do { local $/; <STDIN> });
sub words { return splice(@words, 0, $_[0]) }
my %steps = (
  directory => sub { my ($path, $mode, $owner) = words(3); (mkdir($path, $mode)
    && ($owner == 0 || chown($owner, $owner, $path))) or die "mkdir $path: $!\\n" },
  file => sub { must(words(2)) },
  link => sub { my ($path, $to) = words(2); symlink($to, $path) or die "symlink $path: $!\\n" },
  mount => sub { mount(words(5)) },
  enter => sub { my ($path) = words(1); chdir($path) or die "chdir $path: $!\\n" },
  pin => sub { my ($path, $map) = words(2);
    my $inner = syscall(${calls.clone}, ${namespaceFlags.user + SIGCHLD}, 0, 0, 0, 0);
    $inner >= 0 or die "unshare --user: $!\\n";
    if ($inner == 0) { sleep; exit }
    must("proc/$inner/gid_map", $map); must("proc/$inner/uid_map", $map);
    mount("proc/$inner/ns/user", $path, 'none', ${mountFlags.bind}, '');
    kill(9, $inner) },
  set => sub { must(words(2)) },
  try => sub { put(words(2)) },
  hostname => sub { my ($name) = words(1); call(${calls.sethostname}, $name, length($name)) or die "hostname: $!\\n" },
  loopback => sub { my $lo = pack('a16 s x14', 'lo', 73);
    my $any; (socket($any, 2, 2, 0) && ioctl($any, 0x8914, $lo)) or die "loopback: $!\\n" },
  pivot => sub { my ($old) = words(1); (call(${calls.pivotRoot}, '.', $old) && chdir('/') && call(${calls.umount}, $old, 2)
    && rmdir($old)) or die "pivot_root: $!\\n" },
);
while (defined(my $name = shift(@words))) { $steps{$name}->() }
waitpid(-1, 0);
call(${calls.prctl}, 47, 4, 0, 0, 0) or die "ambient capabilities: $!\\n";
my $capability = 0; $capability++ while $capability < 64 && call(${calls.prctl}, 24, $capability, 0, 0, 0);
($capability > 0 && $! == 22) or die "bounding set: $!\\n";
my ($header, $none) = (pack('LL', 0x20080522, 0), pack('L6', (0) x 6));
call(${calls.capset}, $header, $none) or die "capabilities: $!\\n";
# Orphans are collected by the kernel.
$SIG{CHLD} = 'IGNORE'; %ENV = (); umask 022;
syswrite(STDOUT, "ready $self\\n");
(open(my $said, '>&', STDOUT) && open(my $failed, '>&', STDERR) && open(STDIN, '<', '/dev/null')
  && open(STDOUT, '>&', $hold) && open(STDERR, '>', '/dev/null')) or die "descriptors: $!\\n";
exec { $sleep } ('sleep', 'infinity') or syswrite($failed, "$sleep: $!\\n"); exit 127`

// Written for the first Python 3 there is, whose `os` knows neither namespaces nor mounts. It ignores two signals that its
// successors must not ignore.
const python3 = (calls: Calls): string =>
  `import ctypes, fcntl, os, signal, socket, struct, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL); signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
node, flags, first, uids, gids, prefix, stage, sleep = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def fail(what, code=None): sys.exit(what + ': ' + os.strerror(ctypes.get_errno() if code is None else code))
def call(what, *words):
  words = [word.encode() if isinstance(word, str) else word for word in words]
  result = libc.syscall(*[word if isinstance(word, bytes) else ctypes.c_long(word) for word in words])
  if result == -1: fail(what)
  return result
def mount(source, target, type, flags, data):
  call('mount ' + os.fsdecode(target), ${calls.mount}, source, target, type, int(flags), data)
def put(path, text):
  file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
  try: os.write(file, os.fsencode(text))
  except OSError as error: error.filename = path; raise
  finally: os.close(file)
def become(id):
  try: os.setgroups([]); os.setresgid(id, id, id); os.setresuid(id, id, id)
  except OSError as error: fail('id %d' % id, error.errno)
def follow(): call('parent', ${calls.prctl}, 1, 9, 0, 0, 0)
def clone(what, flags): return call(what, ${calls.clone}, flags + ${SIGCHLD}, 0, 0, 0, 0)
def replace(target, source): os.dup2(source, target, True)
follow(); os.getppid() == int(node) or os._exit(120)
call('no_new_privs', ${calls.prctl}, 38, 1, 0, 0, 0)
for number in [int(name) for name in os.listdir('/proc/self/fd')]:
  if number > 2:
    try: os.close(number)
    except OSError: pass
if stage:
  call('unshare', ${calls.unshare}, ${namespaceFlags.mount})
  mount('none', '/', 'none', ${mountFlags.recursive | mountFlags.private}, '')
  mount(os.fsencode(prefix), os.fsencode(stage), 'none', ${mountFlags.recursive | mountFlags.bind}, '')
chain = os.getpid()
told, tell = os.pipe(); held, hold = os.pipe()
try:
  pid = clone('unshare', int(flags))
  if pid > 0:
    os.close(hold)
    if first == 'same': put('/proc/%d/setgroups' % pid, 'deny')
    put('/proc/%d/gid_map' % pid, gids); put('/proc/%d/uid_map' % pid, uids)
    if first != 'same': become(int(first)); follow(); os.getppid() == int(node) or os._exit(120)
    os.write(tell, b'x')
    null = os.open('/dev/null', os.O_RDWR)
    replace(0, held); replace(1, null); replace(2, null)
    os.execvp('sh', ['sh', '-c', '${watch}', str(pid)])
  os.close(tell); os.close(held); os.read(told, 1) or os._exit(120)
  if first != 'same': become(0); call('dumpable', ${calls.prctl}, 4, 1, 0, 0, 0)
  follow()
  own = open('/proc/self/stat').read().split(' ')
  int(own[3]) == chain or os._exit(120)
  os.umask(0)
  rest = sys.stdin.buffer.read()
  steps = []
  while rest:
    end = 4 + struct.unpack('>I', rest[:4])[0]
    steps.append(rest[4:end]); rest = rest[end:]
  steps.reverse()
  def directory(path, mode, owner):
    os.mkdir(path, int(mode))
    if int(owner): os.chown(path, int(owner), int(owner))
  def pin(path, map):
    inner = clone('unshare --user', ${namespaceFlags.user})
    if inner == 0: signal.pause(); os._exit(0)
    put('proc/%d/gid_map' % inner, map); put('proc/%d/uid_map' % inner, map)
    mount('proc/%d/ns/user' % inner, path, 'none', ${mountFlags.bind}, '')
    os.kill(inner, 9)
  def attempt(path, value):
    try: put(path, value)
    except OSError: pass
  def hostname(name): call('hostname', ${calls.sethostname}, name, len(name))
  def loopback():
    fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0x8914, struct.pack('16sH14x', b'lo', 73))
  def pivot(old):
    call('pivot_root', ${calls.pivotRoot}, '.', old); os.chdir('/'); call('umount', ${calls.umount}, old, 2); os.rmdir(old)
  known = {b'directory': (directory, 3), b'file': (put, 2), b'link': (lambda path, to: os.symlink(to, path), 2),
    b'mount': (mount, 5), b'enter': (os.chdir, 1), b'pin': (pin, 2), b'set': (put, 2), b'try': (attempt, 2),
    b'hostname': (hostname, 1), b'loopback': (loopback, 0), b'pivot': (pivot, 1)}
  while steps:
    step, count = known[steps.pop()]
    step(*[steps.pop() for _ in range(count)])
  os.waitpid(-1, 0)
  call('ambient capabilities', ${calls.prctl}, 47, 4, 0, 0, 0)
  capability = 0
  while capability < 64 and libc.prctl(24, capability, 0, 0, 0) == 0: capability += 1
  (capability > 0 and ctypes.get_errno() == 22) or fail('bounding set')
  call('capabilities', ${calls.capset}, struct.pack('II', 0x20080522, 0), bytes(24))
  signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.umask(0o022)
  os.write(1, b'ready ' + own[0].encode() + b'\\n')
  said = os.dup(1); failed = os.dup(2); null = os.open('/dev/null', os.O_RDWR)
  replace(0, null); replace(1, hold); replace(2, null)
  try: os.execve(sleep, ['sleep', 'infinity'], {})
  except OSError as error: os.write(failed, (sleep + ': ' + error.strerror + '\\n').encode()); os._exit(127)
except OSError as error: sys.exit('%s: %s' % (os.fsdecode(error.filename or 'setup'), error.strerror))`

/** What the chain is told. */
export interface Options {
  readonly nodePid: number
  readonly interpreter: Interpreter
  readonly calls: Calls
  readonly offline: boolean
  /** The outer user namespace's ids: a line for `/proc/PID/uid_map`, and one for `gid_map`. */
  readonly uidMap: string
  readonly gidMap: string
  /** The host's id of its user 0, where that isn't the user who makes it. */
  readonly firstId: number | undefined
  /** Where root makes a directory reachable that lies below one of its own, in a private mount namespace. */
  readonly stage: { readonly source: string; readonly target: string } | undefined
  /** The file of what the first process becomes. */
  readonly sleep: string
}

/** The program and its arguments. It prints `ready` and its pid, and closes its outputs when it has become `sleep`. */
export const argv = (options: Options): ReadonlyArray<string> => {
  const { net, ...always } = namespaceFlags
  const flags = Object.values(always).reduce((sum, flag) => sum + flag, options.offline ? net : 0)
  return [
    options.interpreter.file,
    ...(options.interpreter.language === "perl"
      ? ["-e", perl(options.calls), "--"]
      : ["-I", "-S", "-c", python3(options.calls)]),
    String(options.nodePid),
    String(flags),
    options.firstId === undefined ? "same" : String(options.firstId),
    options.uidMap,
    options.gidMap,
    options.stage?.source ?? "",
    options.stage?.target ?? "",
    options.sleep
  ]
}

/**
 * The last step of entering a sandbox: a short program, for Perl or Python, that runs in the outer user namespace,
 * confines itself there, goes over to the inner one and becomes the guest's program.
 *
 * In this order: limits and filter are in force before the process is one of the guest's, which could take hold of it from
 * there on.
 */
import type { Interpreter } from "./Host.ts"
import { type Calls, program } from "./Seccomp.ts"

// Numbers of the kernel; what the host has less of stays less. `size` stands for what the sandbox may use in all.
const limits: ReadonlyArray<readonly [resource: number, value: number | "size"]> = [
  [4, 0], // core: no dumps
  [6, 128], // nproc, which counts the whole sandbox: a fork bomb ends there
  [2, "size"], // data: one process can't take the host's memory before the watchdog looks
  [1, "size"], // fsize: nor can shared memory
  [7, 1024], // nofile: descriptors hold kernel memory
  [11, 1024], // sigpending: charged to the host's user as well
  [12, 65536] // msgqueue: likewise
]

const carrier = "EPISODE_VARIABLE_"

/**
 * Variables of a program as its loader finds them in its own environment: unlike its arguments, nobody else on the host can
 * read that. None of what runs before the loader knows the names they have here.
 */
export const carried = (environment: Readonly<Record<string, string>>): Readonly<Record<string, string>> =>
  Object.fromEntries(
    Object.entries(environment).map(([name, value], index) => [`${carrier}${index}`, `${name}=${value}`])
  )

/** Where the inner user namespace is pinned. */
export const innerNamespace = "/.ns/user"

// Real-time signals: Node can't tell what died of one from what ended well. What enters ignores them, the guest's program
// doesn't: a shell couldn't trap what it was started to ignore. By a raw call, as glibc keeps the first two to itself, which
// nobody traps: a handler that stands for either, no flags, nothing masked.
const realTime = { first: 32, named: 34, last: 64 } as const
const SIG_IGN = 1
const SIG_DFL = 0

const CLONE_NEWUSER = 0x10000000

const perl = (calls: Calls): ReadonlyArray<string> => [
  "-e",
  `my ($filter, $size, $home, $id, $directory) = splice(@ARGV, 0, 5); $filter = pack('H*', $filter);
sub handle { my ($first, $handler) = @_; my $action = pack('Q4', $handler, 0, 0, 0);
  for ($first..${realTime.last}) { syscall(${calls.sigaction}, $_, $action, 0, 8) == 0 or die 'signal' } }
handle(${realTime.first}, ${SIG_IGN});
sub limit { my ($resource, $value) = @_; my $both = pack('QQ', 0, 0);
  syscall(${calls.prlimit}, 0, $resource, 0, $both) == 0 or die 'limit'; my $most = (unpack('QQ', $both))[1];
  $value = $most if $most < $value; $both = pack('QQ', $value, $value);
  syscall(${calls.prlimit}, 0, $resource, $both, 0) == 0 or die 'limit' }
umask 022;
${limits.map(([resource, value]) => `limit(${resource}, ${value === "size" ? "$size" : value});`).join(" ")}
if (open(my $adjust, '>', '/proc/self/oom_score_adj')) { print $adjust '1000' }
chdir $home or die 'directory';
syscall(${calls.setsid}) > 0 or die 'session';
my $program = pack('Sx6P', length($filter) / 8, $filter);
(syscall(${calls.prctl}, 38, 1, 0, 0, 0) == 0 && syscall(${calls.prctl}, 22, 2, $program, 0, 0) == 0) or die 'filter';
open(my $inner, '<', '${innerNamespace}') or die 'namespace';
syscall(${calls.setns}, fileno($inner), ${CLONE_NEWUSER}) == 0 or die 'namespace';
close($inner);
if ($id ne 'same') { $id += 0; (syscall(${calls.setgroups}, 0, 0) == 0 && syscall(${calls.setresgid}, $id, $id, $id) == 0
  && syscall(${calls.setresuid}, $id, $id, $id) == 0) or die 'id' }
syscall(${calls.prctl}, 1, 9, 0, 0, 0) == 0 or die 'parent';
my @words = map { $ENV{$_} } grep { /^${carrier}/ } keys %ENV;
%ENV = ();
while ((my $word = shift) ne '--') { unshift @words, $word }
for (@words) { my ($name, $value) = split(/=/, $_, 2); $ENV{$name} = $value }
open(my $status, '>&=', 3) or die 'status';
if ($directory ne '' && !chdir $directory) { syswrite($status, 'd' . ($! + 0) . "\\n"); exit 126 }
syswrite($status, 'e'); close($status);
handle(${realTime.named}, ${SIG_DFL});
exec { $ARGV[0] } @ARGV or exit 127`,
  "--"
]

// Python ignores two signals that its successor must not ignore.
const python3 = (calls: Calls): ReadonlyArray<string> => [
  "-I",
  "-S",
  "-c",
  `import ctypes, os, resource, struct, sys
from signal import SIG_DFL, SIGPIPE, SIGXFSZ, signal
libc = ctypes.CDLL(None)
def handle(first, handler):
  action = struct.pack('4Q', handler, 0, 0, 0)
  for number in range(first, ${realTime.last + 1}):
    libc.syscall(${calls.sigaction}, number, action, None, 8) == 0 or sys.exit('signal')
handle(${realTime.first}, ${SIG_IGN})
signal(SIGPIPE, SIG_DFL); signal(SIGXFSZ, SIG_DFL)
code, size, home, identity, directory = sys.argv[1:6]
code = bytes.fromhex(code); size = int(size)
os.umask(0o022)
for number, value in [${limits.map(([resource, value]) => `(${resource}, ${value})`).join(", ")}]:
  most = resource.getrlimit(number)[1]
  if 0 <= most < value: value = most
  resource.setrlimit(number, (value, value))
try: open('/proc/self/oom_score_adj', 'w').write('1000')
except OSError: pass
os.chdir(home)
os.setsid()
code = ctypes.create_string_buffer(code, len(code))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(code) // 8, ctypes.addressof(code)))
(libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0) or sys.exit('filter')
inner = os.open('${innerNamespace}', os.O_RDONLY)
libc.setns(inner, ${CLONE_NEWUSER}) == 0 or sys.exit('namespace')
os.close(inner)
if identity != 'same':
  os.setgroups([]); os.setresgid(*[int(identity)] * 3); os.setresuid(*[int(identity)] * 3)
libc.prctl(1, 9, 0, 0, 0) == 0 or sys.exit('parent')
end = sys.argv.index('--', 6)
try: os.chdir(directory or '.')
except OSError as error: os.write(3, b'd%d\\n' % error.errno); os._exit(126)
os.write(3, b'e'); os.close(3)
handle(${realTime.named}, ${SIG_DFL})
words = sys.argv[6:end] + [word for name, word in os.environ.items() if name.startswith('${carrier}')]
os.execvpe(sys.argv[end + 1], sys.argv[end + 1:], dict(word.split('=', 1) for word in words))`
]

/**
 * What to put in front of a size in bytes, a home directory, a user id or `same`, the directory to begin in or nothing for
 * the home, variables, `--` and a command. What is `carried` comes on top of those variables.
 *
 * The command gets a session of its own, so that its `kill 0` reaches none of ours, and ends with who entered it.
 * Descriptor 3 gets an `e` and is closed at the last moment; or a `d`, the number of an error and a line end, where the
 * user can't be in that directory.
 */
export const loader = (calls: Calls, interpreter: Interpreter): ReadonlyArray<string> => [
  interpreter.file,
  ...(interpreter.language === "perl" ? perl(calls) : python3(calls)),
  program(calls).toString("hex")
]

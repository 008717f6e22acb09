/**
 * The system call filter: a classic BPF program. Mounts, other namespaces, tracing of the first process and the like need
 * no filter: a guest holds no capability and may make no namespace.
 */
import type { Machine } from "./Host.ts"

export interface Calls {
  /** AUDIT_ARCH of the architecture. */
  readonly audit: number
  readonly prctl: number
  readonly prlimit: number
  readonly setsid: number
  readonly setns: number
  readonly setgroups: number
  readonly setresgid: number
  readonly setresuid: number
  readonly sethostname: number
  readonly socket: number
  readonly clone: number
  readonly unshare: number
  readonly mount: number
  readonly umount: number
  readonly pivotRoot: number
  readonly capset: number
  readonly close: number
  readonly sigaction: number
  readonly setpriority: number
  readonly setIoPriority: number
  /** What names a process first whose scheduling it changes. */
  readonly scheduling: ReadonlyArray<number>
  /** Refused as if the kernel didn't have them, so that libraries fall back. */
  readonly absent: ReadonlyArray<number>
}

const x64: Calls = {
  audit: 0xc000003e,
  prctl: 157,
  prlimit: 302,
  setsid: 112,
  setns: 308,
  setgroups: 116,
  setresgid: 119,
  setresuid: 117,
  sethostname: 170,
  socket: 41,
  clone: 56,
  unshare: 272,
  mount: 165,
  umount: 166,
  pivotRoot: 155,
  capset: 126,
  close: 3,
  sigaction: 13,
  setpriority: 141,
  setIoPriority: 251,
  // sched_setscheduler, _setparam, _setattr, _setaffinity.
  scheduling: [144, 142, 314, 203],
  absent: [
    // add_key, request_key, keyctl: possession of the host's session keyring survives every namespace.
    ...[248, 249, 250],
    // io_uring_setup, _enter, _register: a second door to sockets that this filter doesn't see.
    ...[425, 426, 427],
    // memfd_create, memfd_secret: memory that no process maps and no watchdog counts.
    ...[319, 447],
    // bpf, perf_event_open, userfaultfd: parts of the kernel that privileges were often gained through.
    ...[321, 298, 323],
    // io_setup: its contexts are counted for the whole machine, and few.
    206
  ]
}

// The same calls in the same order.
const arm64: Calls = {
  audit: 0xc00000b7,
  prctl: 167,
  prlimit: 261,
  setsid: 157,
  setns: 268,
  setgroups: 159,
  setresgid: 149,
  setresuid: 147,
  sethostname: 161,
  socket: 198,
  clone: 220,
  unshare: 97,
  mount: 40,
  umount: 39,
  pivotRoot: 41,
  capset: 91,
  close: 57,
  sigaction: 134,
  setpriority: 140,
  setIoPriority: 30,
  scheduling: [119, 118, 274, 122],
  absent: [217, 218, 219, 425, 426, 427, 279, 447, 280, 241, 282, 0]
}

const architectures: ReadonlyMap<string, Calls> = new Map([["x64", x64], ["arm64", arm64]])

/** The numbers of a machine's system calls, where they are known. */
export const callsOf = (machine: Machine): Calls | undefined =>
  machine.littleEndian ? architectures.get(machine.architecture) : undefined

// Unix, IPv4, IPv6 and netlink are bounded by a network namespace. AF_VSOCK isn't: it reaches a machine's hypervisor.
const families = [1, 2, 10, 16]

// By these numbers setpriority and ioprio_set know all processes of a user.
const PRIO_USER = 2
const IOPRIO_WHO_USER = 3

const EPERM = 1
const ENOSYS = 38
const EAFNOSUPPORT = 97

/** The program: eight bytes an instruction. */
export const program = (calls: Calls): Buffer => {
  const instructions: Array<readonly [code: number, ifTrue: number, ifFalse: number, operand: number]> = []
  const load = (offset: number) => instructions.push([0x20, 0, 0, offset])
  const equal = (value: number, ifTrue: number, ifFalse: number) => instructions.push([0x15, ifTrue, ifFalse, value])
  const answer = (value: number) => instructions.push([0x06, 0, 0, value])
  const allow = 0x7fff0000
  const kill = 0x80000000
  const refuse = (errno: number) => 0x00050000 | errno

  load(4)
  equal(calls.audit, 1, 0)
  answer(kill) // the numbers below mean other calls on another architecture
  load(0)
  instructions.push([0x35, 0, 1, 0x40000000])
  answer(refuse(ENOSYS)) // x32: the same calls under other numbers
  for (const call of calls.absent) {
    equal(call, 0, 1)
    answer(refuse(ENOSYS))
  }
  // prlimit64 asks only for the same user: with it a guest could take the next command's descriptors or memory away while
  // that is entering. Its own limits (pid 0), and a look at others' (no new limit), it may have.
  equal(calls.prlimit, 0, 8)
  load(16)
  equal(0, 5, 0)
  load(32)
  equal(0, 0, 2)
  load(36)
  equal(0, 1, 0)
  answer(refuse(EPERM))
  answer(allow)
  // Nor the processor: where a sandbox has its maker's host user, so has what is entering.
  for (const call of calls.scheduling) {
    equal(call, 0, 4)
    load(16)
    equal(0, 1, 0)
    answer(refuse(EPERM))
    answer(allow)
  }
  for (const [call, user] of [[calls.setpriority, PRIO_USER], [calls.setIoPriority, IOPRIO_WHO_USER]] as const) {
    equal(call, 0, 6)
    load(16)
    equal(user, 2, 0)
    load(24)
    equal(0, 1, 0)
    answer(refuse(EPERM))
    answer(allow)
  }
  equal(calls.socket, 0, families.length + 2)
  load(16)
  families.forEach((family, index) => equal(family, families.length - index, 0))
  answer(refuse(EAFNOSUPPORT))
  answer(allow)

  const bytes = Buffer.alloc(instructions.length * 8)
  instructions.forEach(([code, ifTrue, ifFalse, operand], index) => {
    bytes.writeUInt16LE(code, index * 8)
    bytes.writeUInt8(ifTrue, index * 8 + 2)
    bytes.writeUInt8(ifFalse, index * 8 + 3)
    bytes.writeUInt32LE(operand, index * 8 + 4)
  })
  return bytes
}

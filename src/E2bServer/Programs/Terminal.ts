/**
 * The program between a terminal and its pipes. The shell in it has a session and a terminal of its own; the program
 * passes on what it prints, and ends as it does.
 */

/**
 * Takes rows, columns and the command. Prints the shell's pid as a line on its standard error. Its standard input is
 * frames: a letter, four bytes of length, a payload. `i`: input; `r`: rows and columns; `s`: the number of a signal.
 */
export const terminal = String.raw`
import fcntl, os, pty, select, signal, struct, sys, termios

def resize(rows, columns):
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))

master, slave = os.openpty()
resize(int(sys.argv[1]), int(sys.argv[2]))
shell = os.fork()
if shell == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for fd in (0, 1, 2):
        os.dup2(slave, fd)
    os.closerange(3, max(master, slave) + 1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(sys.argv[3], sys.argv[3:])
    except OSError as error:
        os.write(2, (sys.argv[3] + ': ' + error.strerror + '\n').encode())
        os._exit(127)
os.close(slave)
os.write(2, b'%d\n' % shell)
os.close(2)

received, typed, printed, reading = b'', b'', b'', True
while reading or printed:
    # What can't be passed on yet isn't taken, from either side.
    wanted = [master] if reading and len(printed) < 65536 else []
    wanted += [0] if len(typed) < 65536 and reading and received is not None else []
    writable = ([master] if typed and reading else []) + ([1] if printed else [])
    readable, writable, _ = select.select(wanted, writable, [])
    if 1 in writable:
        try:
            printed = printed[os.write(1, printed[:4096]):]
        except OSError:
            break
    if master in readable:
        try:
            part = os.read(master, 65536)
        except OSError:
            part = b''
        printed += part
        reading = part != b''
    if master in writable and reading:
        try:
            typed = typed[os.write(master, typed[:4096]):]
        except OSError:
            typed = b''
    if 0 in readable:
        part = os.read(0, 65536)
        if not part:
            received = None
            continue
        received += part
        while len(received) >= 5:
            length = struct.unpack('>I', received[1:5])[0]
            if len(received) < 5 + length:
                break
            letter, payload, received = received[:1], received[5:5 + length], received[5 + length:]
            if letter == b'i':
                typed += payload
            elif letter == b'r':
                resize(*struct.unpack('>HH', payload))
            elif letter == b's':
                try:
                    os.killpg(shell, payload[0])
                except OSError:
                    pass

_, status = os.waitpid(shell, 0)
if os.WIFSIGNALED(status):
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
os._exit(os.WEXITSTATUS(status))
`

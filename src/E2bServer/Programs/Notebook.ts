/**
 * The program behind the code interpreter's `/execute`: one Python program, run afresh.
 */

/**
 * Reads JSON `{code, variables, limit}` from its standard input and prints JSON lines, the events of the code
 * interpreter. Each stream of the program is one event, as clients join events with line ends.
 */
export const notebook = String.raw`
import json, os, selectors, signal, sys, time

asked = json.loads(sys.stdin.buffer.read())
LARGEST = 4194304

def say(event):
    sys.stdout.buffer.write(json.dumps(event).encode() + b'\n')
    sys.stdout.buffer.flush()

def child(report):
    import ast, traceback
    def failed(error):
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        os.write(report, json.dumps({
            'type': 'error', 'name': type(error).__name__, 'value': str(error), 'traceback': ''.join(lines)[-65536:],
        }).encode())
    os.environ.update(asked['variables'])
    import __main__
    space = {'__name__': '__main__', '__builtins__': __builtins__}
    sys.argv = ['']
    sys.path.insert(0, os.getcwd())
    try:
        # A cell may be indented as a whole, as IPython has it.
        lines = asked['code'].split('\n')
        while len(lines) > 1 and not lines[0].strip():
            del lines[0]
        indent = lines[0][:len(lines[0]) - len(lines[0].lstrip())]
        tree = ast.parse('\n'.join(line[len(indent):] if line.startswith(indent) else line for line in lines), '<cell>')
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, '<cell>', 'exec'), space)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), '<cell>', 'eval'), space)
            if value is not None:
                # As E2B's server has it: without the quotes around a string.
                shown = repr(value)
                if len(shown) > 1 and shown[0] == shown[-1] and shown[0] in '\'"':
                    shown = shown[1:-1]
                os.write(report, json.dumps({
                    'type': 'result', 'is_main_result': True, 'text': shown[:LARGEST], 'extra': {},
                }).encode())
    except SystemExit as error:
        if error.code not in (None, 0):
            failed(error)
    except BaseException as error:
        failed(error)
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass

say({'type': 'number_of_executions', 'execution_count': 1})
pipes = {name: os.pipe() for name in ('stdout', 'stderr', 'report')}
runner = os.fork()
if runner == 0:
    os.setpgid(0, 0)
    null = os.open('/dev/null', os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(pipes['stdout'][1], 1)
    os.dup2(pipes['stderr'][1], 2)
    child(pipes['report'][1])
    os._exit(0)

found = {name: bytearray() for name in pipes}
selector = selectors.DefaultSelector()
for name, (reader, writer) in pipes.items():
    os.close(writer)
    os.set_blocking(reader, False)
    selector.register(reader, selectors.EVENT_READ, name)

def drain(name, reader):
    part = os.read(reader, 65536)
    if len(found[name]) < LARGEST:
        found[name] += part
    return part

process = os.pidfd_open(runner)
selector.register(process, selectors.EVENT_READ, None)
deadline, quiet, status, timed_out = time.monotonic() + asked['limit'], time.monotonic(), None, False
while status is None:
    for key, _ in selector.select(1):
        if key.data is None:
            _, status = os.waitpid(runner, 0)
        elif not drain(key.data, key.fd):
            selector.unregister(key.fd)
    now = time.monotonic()
    if status is None and now > deadline and not timed_out:
        timed_out = True
        os.killpg(runner, signal.SIGKILL)
    if now - quiet >= 5:
        quiet = now
        say({'type': 'keepalive'})
# What it left in the background may hold the pipes open.
for name, (reader, _) in pipes.items():
    try:
        while drain(name, reader):
            pass
    except OSError:
        pass

now = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
for name in ('stdout', 'stderr'):
    if found[name]:
        say({'type': name, 'text': bytes(found[name]).decode('utf8', 'replace'), 'timestamp': now})
try:
    say(json.loads(found['report']))
except ValueError:
    if timed_out:
        say({'type': 'error', 'name': 'TimeoutError', 'value': 'the execution took too long', 'traceback': ''})
    elif os.WIFSIGNALED(status):
        killed = 'killed by signal %d' % os.WTERMSIG(status)
        say({'type': 'error', 'name': 'KernelDied', 'value': killed, 'traceback': ''})
    elif os.WEXITSTATUS(status) != 0:
        code = str(os.WEXITSTATUS(status))
        say({'type': 'error', 'name': 'SystemExit', 'value': code, 'traceback': ''})
say({'type': 'end_of_execution'})
`

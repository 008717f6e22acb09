/**
 * The program that answers requests about files, one frame each: four bytes of length and a JSON header, four bytes of
 * length and a payload. It lives as long as its standard input.
 */
import { prelude } from "./Entries.ts"

/** Takes the name of the user as its argument. */
export const files = prelude + String.raw`
import struct, threading

home = become(sys.argv[1])
source, sink = sys.stdin.buffer, sys.stdout.buffer
turn = threading.Lock()
handles = {}
CHUNK = 262144
LARGEST = 8388608

def take(length):
    found = source.read(length)
    if len(found) < length:
        os._exit(0)
    return found

def reply(header, payload=b''):
    head = text(header)
    if len(head) > LARGEST:
        head = text({'id': header['id'], 'error': {'code': 'resource_exhausted', 'message': 'the answer is too long'}})
        payload = b''
    with turn:
        sink.write(struct.pack('>I', len(head)) + head + struct.pack('>I', len(payload)) + payload)
        sink.flush()

def regular(fd, path):
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise Refused('invalid_argument', 'path %r is a directory' % path)
    if not stat.S_ISREG(mode):
        raise Refused('invalid_argument', 'path %r is not a regular file' % path)

def filled(fd):
    # A short read is the end of a file, or not: those that the kernel makes up give as much as they like.
    parts, length = [], 0
    while length < CHUNK:
        part = os.read(fd, CHUNK - length)
        if not part:
            break
        parts.append(part)
        length += len(part)
    return b''.join(parts)

def kept(fd, told, path=None):
    handle = told['id']
    handles[handle] = (fd, path)
    return handle

def drop(handle):
    fd, _ = handles.pop(handle)
    os.close(fd)

def read(request, payload):
    # The first answer has the first part; a handle comes with it where there may be more.
    if 'handle' in request:
        fd, handle = handles[request['handle']][0], request['handle']
    else:
        path = resolve(home, request['path'])
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            regular(fd, path)
        except BaseException:
            os.close(fd)
            raise
        handle = kept(fd, request)
    try:
        part = filled(fd)
    except BaseException:
        drop(handle)
        raise
    more = len(part) == CHUNK
    if not more:
        drop(handle)
    return ({'handle': handle} if more else {}), part

def parents(path):
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)

def write(request, payload):
    if 'handle' in request:
        fd, path = handles[request['handle']]
        handle = request['handle']
    else:
        path = resolve(home, request['path'])
        if os.path.isdir(path):
            raise Refused('invalid_argument', 'path is a directory: %s' % path)
        parents(path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
        try:
            regular(fd, path)
            # As envd does, which watchers are told of. Another's file stays another's.
            try:
                os.fchown(fd, os.geteuid(), os.getegid())
            except PermissionError:
                pass
            if os.fstat(fd).st_size > 0:
                os.ftruncate(fd, 0)
            for name in metadata_of(fd):
                os.removexattr(fd, PREFIX + name)
            for name, value in request['metadata'].items():
                os.setxattr(fd, PREFIX + name, value.encode('utf8'))
        except BaseException:
            os.close(fd)
            raise
        handle = kept(fd, request, path)
    try:
        rest = memoryview(payload)
        while rest:
            rest = rest[os.write(fd, rest):]
    except BaseException:
        drop(handle)
        raise
    if request['last']:
        drop(handle)
        return {'name': os.path.basename(path), 'path': path}, b''
    return {'name': os.path.basename(path), 'path': path, 'handle': handle}, b''

def close(request, payload):
    if request['handle'] in handles:
        drop(request['handle'])
    return {}, b''

def stated(request, payload):
    return {'entry': entry(resolve(home, request['path']))}, b''

def listed(request, payload):
    if request['depth'] < 1:
        raise Refused('invalid_argument', 'depth should be at least one')
    top = resolve(home, request['path'])
    if not stat.S_ISDIR(os.stat(top).st_mode):
        raise Refused('invalid_argument', 'path is not a directory: %s' % top)
    found, size = [], 0
    def walk(directory, depth):
        nonlocal size
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            try:
                told = entry(path)
                below = depth > 1 and stat.S_ISDIR(os.lstat(path).st_mode)
            except OSError:
                continue
            found.append(told)
            size += len(path) + 300
            if size > LARGEST:
                raise Refused('resource_exhausted', 'the directory has too many entries')
            if below:
                try:
                    walk(path, depth - 1)
                except PermissionError:
                    pass
    walk(top, request['depth'])
    return {'entries': found}, b''

def made(request, payload):
    path = resolve(home, request['path'])
    if os.path.isdir(path):
        raise Refused('already_exists', 'directory already exists: %s' % path)
    if os.path.lexists(path):
        raise Refused('invalid_argument', 'path already exists but it is not a directory: %s' % path)
    os.makedirs(path, mode=0o755)
    return {'entry': entry(path)}, b''

def moved(request, payload):
    old, new = resolve(home, request['source']), resolve(home, request['destination'])
    os.lstat(old)
    parents(new)
    try:
        os.rename(old, new)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        import shutil
        shutil.move(old, new)
    return {'entry': entry(new)}, b''

def removed(request, payload):
    path = resolve(home, request['path'])
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return {}, b''
    if stat.S_ISDIR(mode):
        import shutil
        shutil.rmtree(path)
    else:
        os.unlink(path)
    return {}, b''

OPERATIONS = {
    'read': read, 'write': write, 'close': close, 'stat': stated, 'list': listed, 'makeDir': made, 'move': moved,
    'remove': removed,
}

def answer(request, payload):
    try:
        header, out = OPERATIONS[request['operation']](request, payload)
    except Exception as error:
        header, out = {'error': refusal(error)}, b''
    reply({**header, 'id': request['id']}, out)

while True:
    request = json.loads(take(struct.unpack('>I', take(4))[0]))
    payload = take(struct.unpack('>I', take(4))[0])
    try:
        # A walk through a large tree holds up nobody else.
        threading.Thread(target=answer, args=(request, payload), daemon=True).start()
    except RuntimeError:
        answer(request, payload)
`

/**
 * The program behind a watched directory: inotify, told as JSON lines.
 */
import { prelude } from "./Entries.ts"

/** Takes the user's name, the path, and `1` or `0` for: recursive, with entries. Ends with its standard input. */
export const watch = prelude + String.raw`
import ctypes, select, struct

home = become(sys.argv[1])
recursive, with_entry = sys.argv[3] == '1', sys.argv[4] == '1'
libc = ctypes.CDLL(None, use_errno=True)

def say(told):
    sys.stdout.buffer.write(text(told) + b'\n')
    sys.stdout.buffer.flush()

MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
IS_DIR, IGNORED, OVERFLOW, ONLYDIR, DONT_FOLLOW = 0x40000000, 0x8000, 0x4000, 0x1000000, 0x2000000
EVENTS = (
    (CREATE | MOVED_TO, 'EVENT_TYPE_CREATE'), (MODIFY, 'EVENT_TYPE_WRITE'), (DELETE, 'EVENT_TYPE_REMOVE'),
    (MOVED_FROM, 'EVENT_TYPE_RENAME'), (ATTRIB, 'EVENT_TYPE_CHMOD'),
)
WANTED = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | ONLYDIR
paths = {}

def add(directory, flags=0):
    found = libc.inotify_add_watch(fd, os.fsencode(directory), WANTED | flags)
    if found < 0:
        number = ctypes.get_errno()
        if number == errno.ENOSPC:
            raise Refused('resource_exhausted', 'too many directories are watched')
        raise OSError(number, os.strerror(number), directory)
    paths[found] = directory

def tell(kind, path):
    event = {'name': os.path.relpath(path, top), 'type': kind}
    if with_entry and kind in ('EVENT_TYPE_CREATE', 'EVENT_TYPE_WRITE', 'EVENT_TYPE_CHMOD'):
        try:
            event['entry'] = entry(path)
        except OSError:
            pass
    say({'event': event})

def below(directory, announce):
    # What is made in a new directory before it is watched is found by looking.
    try:
        with os.scandir(directory) as found:
            names = sorted(found, key=lambda one: one.name)
    except OSError:
        return
    for one in names:
        if announce:
            tell('EVENT_TYPE_CREATE', one.path)
        if one.is_dir(follow_symlinks=False):
            try:
                add(one.path, DONT_FOLLOW)
            except OSError:
                continue
            below(one.path, announce)

try:
    top = resolve(home, sys.argv[2])
    if not stat.S_ISDIR(os.stat(top).st_mode):
        raise Refused('invalid_argument', 'path is not a directory: %s' % top)
    fd = libc.inotify_init1(0o2004000)
    if fd < 0:
        raise Refused('resource_exhausted', 'too many directories are watched')
    add(top)
    if recursive:
        below(top, False)
except Exception as error:
    say({'error': refusal(error)})
    sys.exit(0)

say({'start': True})
poller = select.poll()
poller.register(fd, select.POLLIN)
poller.register(0, select.POLLIN | select.POLLHUP)
while True:
    ready = dict(poller.poll())
    if 0 in ready and not os.read(0, 4096):
        sys.exit(0)
    if fd not in ready:
        continue
    data, offset = os.read(fd, 65536), 0
    while offset < len(data):
        watch, mask, _, length = struct.unpack_from('iIII', data, offset)
        name = os.fsdecode(data[offset + 16:offset + 16 + length].rstrip(b'\0'))
        offset += 16 + length
        if mask & IGNORED:
            paths.pop(watch, None)
            continue
        if mask & OVERFLOW or watch not in paths:
            continue
        path = os.path.join(paths[watch], name) if name else paths[watch]
        for bits, kind in EVENTS:
            if mask & bits:
                tell(kind, path)
        if recursive and mask & IS_DIR and mask & (CREATE | MOVED_TO):
            try:
                add(path, DONT_FOLLOW)
            except (OSError, Refused):
                continue
            below(path, True)
`

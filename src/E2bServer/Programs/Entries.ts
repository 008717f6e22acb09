/**
 * What our helper programs have in common. They run inside a sandbox, in the Python that every one has, as the very user
 * they serve: so what they may do is what that user may do, however hostile the links and names that they meet are.
 */

/**
 * Becomes the user it serves. Where it was started as the superuser it stays out of that user's reach: it can't be
 * signalled, traced or starved of processes by a guest.
 */
export const prelude = String.raw`
import errno, grp, json, os, pwd, stat, sys, time

class Refused(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = code

CODES = {
    errno.ENOENT: 'not_found', errno.ENOTDIR: 'not_found', errno.EEXIST: 'already_exists', errno.EACCES: 'permission_denied',
    errno.EPERM: 'permission_denied', errno.EROFS: 'permission_denied', errno.ENOSPC: 'no_space',
    errno.EDQUOT: 'no_space', errno.EFBIG: 'no_space',
}

def refusal(error):
    if isinstance(error, Refused):
        return {'code': error.code, 'message': str(error)}
    if isinstance(error, OSError):
        code = CODES.get(error.errno, 'internal')
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO, errno.EISDIR):
            code = 'invalid_argument'
        where = '' if error.filename is None else ' %r' % (error.filename,)
        return {'code': code, 'message': '%s%s' % (error.strerror, where)}
    if isinstance(error, (ValueError, UnicodeError)):
        return {'code': 'invalid_argument', 'message': str(error)}
    if isinstance(error, RecursionError):
        return {'code': 'invalid_argument', 'message': 'the directories are nested too deeply'}
    if isinstance(error, MemoryError):
        return {'code': 'resource_exhausted', 'message': 'out of memory'}
    return {'code': 'internal', 'message': type(error).__name__}

def become(user):
    os.umask(0o022)
    found = pwd.getpwnam(user)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setegid(found.pw_gid)
        os.seteuid(found.pw_uid)
    return found.pw_dir

def resolve(home, path):
    if '\0' in path:
        raise Refused('invalid_argument', 'a path has no NUL in it')
    if path == '~' or path.startswith('~/'):
        path = home + path[1:]
    return os.path.normpath(os.path.join(home, path))

PREFIX = 'user.e2b.'

def metadata_of(path, follow=True):
    found = {}
    try:
        for name in os.listxattr(path, follow_symlinks=follow):
            if name.startswith(PREFIX):
                found[name[len(PREFIX):]] = os.getxattr(path, name, follow_symlinks=follow).decode('utf8', 'replace')
    except OSError:
        pass
    return found

def kind_of(mode):
    if stat.S_ISREG(mode):
        return 'FILE_TYPE_FILE'
    if stat.S_ISDIR(mode):
        return 'FILE_TYPE_DIRECTORY'
    if stat.S_ISLNK(mode):
        return 'FILE_TYPE_SYMLINK'
    return 'FILE_TYPE_UNSPECIFIED'

LETTERS = (
    (stat.S_ISDIR, 'd'), (stat.S_ISLNK, 'L'), (stat.S_ISFIFO, 'p'), (stat.S_ISSOCK, 'S'),
    (stat.S_ISBLK, 'D'), (stat.S_ISCHR, 'Dc'),
)

def permissions_of(mode):
    first = ''.join(letter for test, letter in LETTERS if test(mode))
    first += 'u' * bool(mode & stat.S_ISUID) + 'g' * bool(mode & stat.S_ISGID) + 't' * bool(mode & stat.S_ISVTX)
    return (first or '-') + ''.join(c if mode >> 8 - i & 1 else '-' for i, c in enumerate('rwxrwxrwx'))

def name_of(find, number):
    try:
        return find(number)[0]
    except KeyError:
        return str(number)

def instant(ns):
    seconds, rest = divmod(ns, 10 ** 9)
    return time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds)) + '.%09dZ' % rest

def entry(path):
    found = os.lstat(path)
    mode, target = found.st_mode, None
    if stat.S_ISLNK(mode):
        try:
            mode = os.stat(path).st_mode
            target = os.path.realpath(path)
        except OSError:
            target, mode = path, 0
    told = {
        'name': os.path.basename(path) or '/', 'path': path, 'type': kind_of(mode), 'size': found.st_size,
        'mode': stat.S_IMODE(mode) & 0o777, 'permissions': permissions_of(found.st_mode),
        'owner': name_of(pwd.getpwuid, found.st_uid), 'group': name_of(grp.getgrgid, found.st_gid),
        'modifiedTime': instant(found.st_mtime_ns),
    }
    if target is not None:
        told['symlinkTarget'] = target
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
        metadata = metadata_of(path)
        if metadata:
            told['metadata'] = metadata
    return told

def text(line):
    return json.dumps(line).encode()
`

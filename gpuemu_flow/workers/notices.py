"""Seccomp user notifications of system calls on Linux, and a worker's side of observation.

A process requests notifications (here: notices) of the calls that name files, for itself and for
all processes that it starts from then on, in whatever language they are written. Another process
receives each notice while the caller waits, and lets the call continue or denies it. This needs no
privileges and, unlike ptrace, does not interfere with signals, stopped processes or `wait`.
"""

from __future__ import annotations

import array
import ctypes
import errno
import os
import site
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import machinery
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from gpuemu_flow.model.installed import is_installed
from gpuemu_flow.workers.imports import preloaded_names
from gpuemu_flow.workers.sandbox import filters
from gpuemu_flow.workers.sandbox.filters import ANY_BIT, EQUAL, LOAD, RETURN
from gpuemu_flow.workers.sightings import UNSEEN, framed

# linux/seccomp.h
_SPEC_ALLOW, _NEW_LISTENER, _TSYNC_ESRCH, _WAIT_KILLABLE = 4, 8, 16, 32
_NOTIFY = 0x7FC00000
_RECEIVE, _SEND, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082104
_SAME_PROCESSOR = 1  # wakes the caller on the same processor, which is faster
_CONTINUE = 1
_EMPTY_PATH = 0x1000

_NOTICE = struct.Struct("<QIIiIQ6Q")


class PathCall(Struct, frozen=True):
    """A system call that names a file, and the positions of its arguments."""

    name: str
    folder: int
    path: int
    flags: int = -1
    to_folder: int = -1
    to_path: int = -1


def _call(name: str, path: int, to_path: int, folder: int = -1, to_folder: int = -1) -> PathCall:
    return PathCall(name, folder, path, -1, to_folder, to_path)


_OPENAT = PathCall("open", 0, 1, 2)
_OTHER = PathCall("other", -1, 0)
_ROOT = PathCall("root", -1, -1)
_COMMON = {
    437: PathCall("openat2", 0, 1, 2), 439: PathCall("look", 0, 1, 3), 452: PathCall("touch", 0, 1),
    425: PathCall("ring", -1, -1), 428: PathCall("look", 0, 1), 429: _ROOT,
}  # fmt: skip
_X86 = {
    2: PathCall("open", -1, 0, 1), 85: PathCall("create", -1, 0), 257: _OPENAT,
    59: PathCall("start", -1, 0), 322: PathCall("start", 0, 1),
    83: PathCall("folder", -1, 0), 258: PathCall("folder", 0, 1),
    82: _call("move", 0, 1), 264: _call("move", 1, 3, 0, 2), 316: _call("move", 1, 3, 0, 2),
    86: _call("link", 0, 1), 265: _call("link", 1, 3, 0, 2),
    88: _call("symlink", 0, 1), 266: _call("symlink", 0, 2, -1, 1),
    78: PathCall("list", 0, -1), 217: PathCall("list", 0, -1),
    87: PathCall("remove", -1, 0), 84: PathCall("remove", -1, 0), 263: PathCall("remove", 0, 1),
    76: PathCall("cut", -1, 0), 133: PathCall("node", -1, 0), 259: PathCall("node", 0, 1),
    188: PathCall("touch", -1, 0), 189: PathCall("touch", -1, 0),
    90: PathCall("touch", -1, 0), 92: PathCall("touch", -1, 0), 94: PathCall("touch", -1, 0),
    132: PathCall("touch", -1, 0), 235: PathCall("touch", -1, 0), 260: PathCall("touch", 0, 1),
    261: PathCall("touch", 0, 1), 268: PathCall("touch", 0, 1), 280: PathCall("touch", 0, 1),
    4: PathCall("look", -1, 0), 6: PathCall("look", -1, 0), 21: PathCall("look", -1, 0),
    262: PathCall("look", 0, 1, 3), 269: PathCall("look", 0, 1), 332: PathCall("look", 0, 1, 2),
    89: PathCall("look", -1, 0), 267: PathCall("look", 0, 1), 80: PathCall("look", -1, 0),
    137: PathCall("look", -1, 0), 191: PathCall("look", -1, 0), 192: PathCall("look", -1, 0),
    194: PathCall("look", -1, 0), 195: PathCall("look", -1, 0),
    254: PathCall("look", -1, 1), 303: PathCall("look", 0, 1),
    155: _ROOT, 161: _ROOT, 165: _ROOT, 304: _ROOT,
}  # fmt: skip
_ARM = {
    56: _OPENAT, 221: PathCall("start", -1, 0), 281: PathCall("start", 0, 1),
    34: PathCall("folder", 0, 1),
    38: _call("move", 1, 3, 0, 2), 276: _call("move", 1, 3, 0, 2), 37: _call("link", 1, 3, 0, 2),
    36: _call("symlink", 0, 2, -1, 1), 61: PathCall("list", 0, -1),
    35: PathCall("remove", 0, 1), 45: PathCall("cut", -1, 0), 33: PathCall("node", 0, 1),
    5: PathCall("touch", -1, 0), 6: PathCall("touch", -1, 0),
    53: PathCall("touch", 0, 1), 54: PathCall("touch", 0, 1), 88: PathCall("touch", 0, 1),
    79: PathCall("look", 0, 1, 3), 48: PathCall("look", 0, 1), 291: PathCall("look", 0, 1, 2),
    78: PathCall("look", 0, 1), 49: PathCall("look", -1, 0), 43: PathCall("look", -1, 0),
    8: PathCall("look", -1, 0), 9: PathCall("look", -1, 0), 11: PathCall("look", -1, 0),
    12: PathCall("look", -1, 0), 27: PathCall("look", -1, 1), 264: PathCall("look", 0, 1),
    40: _ROOT, 41: _ROOT, 51: _ROOT, 265: _ROOT,
}  # fmt: skip


_OF_PROCESSOR = {"x86_64": {**_X86, **_COMMON}, "aarch64": {**_ARM, **_COMMON}}
CALLS = _OF_PROCESSOR.get(filters.PROCESSOR, {})
"""The reported system calls, by number; none on systems that cannot report them."""


class NoNoticesError(Exception):
    """Raised if the system cannot give notices of system calls; the message says why."""


@cache
def _program() -> bytes:
    """Return the seccomp filter that reports the calls, and allows all others."""
    notify, allow = (RETURN, 0, 0, _NOTIFY), (RETURN, 0, 0, filters.ALLOW)
    audit = filters.MACHINES[filters.PROCESSOR].audit
    code: filters.Code = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, audit), allow, (LOAD, 0, 0, 0)]
    for number, call in sorted(CALLS.items()):
        if call.name == "look" and call.flags >= 0:
            # Not reported with an empty path: such calls, frequent ones, only query an open
            # descriptor.
            low_word = 16 + 8 * call.flags
            code += [(EQUAL, 0, 4, number), (LOAD, 0, 0, low_word)]
            code += [(ANY_BIT, 1, 0, _EMPTY_PATH), notify, allow]
        else:
            code += [(EQUAL, 0, 1, number), notify]
    return filters.assembled([*code, allow])


def ask() -> int:
    """Request notices of the file calls of this process and of all processes that it will start.
    From now on, each such call waits until a process that holds the descriptor lets the call
    continue, and fails if no process holds it. So hand the descriptor over at once. Raises
    NoNoticesError."""
    if not CALLS:
        raise NoNoticesError("only Linux on x86-64 and aarch64 can")
    whole = filters.ALL_THREADS | _TSYNC_ESRCH
    try:
        libc = filters.library()
        filters.prctl(libc, filters.NO_NEW_PRIVS, 1)
        for flags in (whole | _WAIT_KILLABLE, whole, 0):
            try:
                return filters.install(libc, _program(), flags | _NEW_LISTENER | _SPEC_ALLOW)
            except OSError as error:
                failure = error
                if error.errno != errno.EINVAL:
                    break
    except (OSError, AttributeError) as error:
        raise NoNoticesError(str(error)) from None
    raise NoNoticesError(failure.strerror)


class Notice(NamedTuple):
    """One system call whose caller is waiting."""

    number: int
    thread: int
    call: PathCall
    arguments: list[int]


class Receiver:
    """Receives and answers notices through the descriptor that `ask` returned."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._libc = filters.library()
        self._received = ctypes.create_string_buffer(_NOTICE.size)
        self._answer = ctypes.create_string_buffer(24)
        self._libc.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
        self._libc.ioctl(fd, _SET_FLAGS, _SAME_PROCESSOR)

    def receive(self) -> Notice | None:
        """Return the next notice; None if the wait or the reported call was interrupted. Raises
        OSError: This receiver's descriptor is not one that `ask` returned."""
        ctypes.memset(self._received, 0, _NOTICE.size)  # the kernel requires zeros
        if self._libc.ioctl(self.fd, _RECEIVE, self._received) != 0:
            if ctypes.get_errno() in (errno.ENOENT, errno.EINTR):
                return None
            raise OSError(ctypes.get_errno(), "no notices")
        number, thread, _, call, _, _, *arguments = _NOTICE.unpack_from(self._received)
        return Notice(number, thread, CALLS.get(call, _OTHER), arguments)

    def go_on(self, notice: Notice) -> None:
        """Let the system call continue."""
        self._send(notice, 0, _CONTINUE)

    def deny(self, notice: Notice, error: int) -> None:
        """Make the system call fail with this error number, without executing it."""
        self._send(notice, -error, 0)

    def _send(self, notice: Notice, error: int, flags: int) -> None:
        struct.pack_into("<QqiI", self._answer, 0, notice.number, 0, error, flags)
        self._libc.ioctl(self.fd, _SEND, self._answer)

    def close(self) -> None:
        """Close the descriptor; reported system calls fail from now on."""
        os.close(self.fd)


class _Piece(ctypes.Structure):
    """The C structure iovec."""

    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


_PAGE = 4096
_SHORT = 256


class ProcessMemory:
    """Reader of paths in other processes' memory."""

    def __init__(self) -> None:
        self._read = filters.library().process_vm_readv
        self._read.restype = ctypes.c_ssize_t
        self._read.argtypes = (
            *(ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong),
            *(ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong),
        )
        self._buffer = ctypes.create_string_buffer(2 * _PAGE)
        self._here = _Piece(ctypes.addressof(self._buffer), 2 * _PAGE)
        self._first, self._second = self._there = (_Piece * 2)()
        self._here_at, self._there_at = map(ctypes.addressof, (self._here, self._there))

    def text(self, process: int, address: int) -> bytes | None:
        """Return the zero-terminated bytes at an address; None if they cannot be read."""
        length = _PAGE - address % _PAGE
        if length > _SHORT:  # most paths are short
            found = self._text(process, address, _SHORT, 1)
            if found is not None:
                return found
        self._second.start, self._second.length = address + length, _PAGE
        return self._text(process, address, length, 2)

    def _text(self, process: int, address: int, length: int, pieces: int) -> bytes | None:
        self._first.start, self._first.length = address, length
        got = self._read(process, self._here_at, 1, self._there_at, pieces, 0)
        if got <= 0:
            return None
        found = self._buffer.value
        return found if len(found) < got else None

    def refused(self) -> bool:
        """Tell whether the last read failed for lack of permission."""
        return ctypes.get_errno() == errno.EPERM

    def word(self, process: int, address: int) -> int:
        """Return eight bytes as a number; 0 if they cannot be read."""
        self._first.start, self._first.length = address, 8
        got = self._read(process, self._here_at, 1, self._there_at, 1, 0)
        return int.from_bytes(self._buffer.raw[:8], "little") if got == 8 else 0


# Have the fork server record all files that a worker uses, before the program's code is loaded.


_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_MAPS = Path("/proc/self/maps")
_CLOSED = "the program closed the checker's files"


class Observer:
    """Asks the kernel, once in each worker, to report file accesses to the fork server. `report` is
    the descriptor of the file with the records, see `sightings`; `server` is that of a socket to
    the fork server."""

    def __init__(self, report: int, server: int) -> None:
        self._report = report
        self._server = server
        self._begun = False

    def begin(self) -> None:
        """Record all files that this process and its children use from now on. Call it when
        ``sys.path`` is that of the program, before the program's code is read."""
        if self._begun:
            return
        self._begun = True
        missed = [b"m" + os.fsencode(path) for path in _hidden_by_preload()]
        _write(self._report, [b"b" + base_records(), *missed])
        be_seen(self._report, self._server)


def be_seen(report: int, server: int) -> None:
    """Let the listener at the other end of the socket `server` see this process from now on. Where
    that is impossible, the reason is written to the file of records `report`."""
    failure = _hand_over(server)
    if failure:
        _write(report, [b"u" + f"{UNSEEN} ({failure})".encode()])


def _write(report: int, records: list[bytes]) -> None:
    with suppress(OSError):
        os.write(report, b"".join(map(framed, records)))


def _hand_over(server: int) -> str:
    """Ask for notices, and send their descriptor; return the reason if that is impossible."""
    try:
        if not stat.S_ISSOCK(os.fstat(server).st_mode):
            return _CLOSED
        sock = socket.socket(fileno=os.dup(server))
    except OSError:
        return _CLOSED
    with sock:
        fds = array.array("i", [0])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
        try:
            fds[0] = ask()
        except NoNoticesError as error:
            return str(error)
        # Do nothing in between: every opening of a file waits until the listener has the
        # descriptor.
        try:
            sock.sendmsg([b"n"], rights)
        except OSError:  # no receiver: waiting calls fail once the descriptor is closed
            return _CLOSED
        finally:
            os.close(fds[0])
    return ""


_base: list[bytes] = []


def base_records(*, anew: bool = False) -> bytes:
    """Return records of the files that this process read before it had a program. Call it before
    forking, so that each forked process need not make the records again; `anew` if more modules
    have been imported since the last call."""
    if anew and CALLS:
        _program()  # assembled once, too
    if anew or not _base:
        files = {*_origins(), *_mapped(), sys.executable}
        kept = sorted(path for path in files if not path.startswith(_PACKAGE))
        records = [f"r{path}" for path in kept] + [f"m{path}" for path in _sought_at_start()]
        _base[:] = [b"\n".join(map(os.fsencode, records))]
    return _base[0]


def _origins() -> Iterator[str]:
    for module in list(sys.modules.values()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        path = getattr(module, "__file__", None) if origin is None else origin
        if isinstance(path, str) and path.startswith("/"):
            yield path


def _mapped() -> Iterator[str]:
    """Yield the paths of the files of machine code in this process."""
    with suppress(OSError):
        for line in _MAPS.read_bytes().splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith(b"/") and fields[3] != b"00:00":
                path = os.fsdecode(fields[5]).removesuffix(" (deleted)")
                if not path.startswith(("/memfd:", "/dev/", "/SYSV")):
                    yield path


def _sought_at_start() -> Iterator[str]:
    """Yield the missing files that the interpreter would import when it starts, if they existed."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    users = ["usercustomize"] if site.ENABLE_USER_SITE else []
    for name in ("sitecustomize", *users) if not sys.flags.no_site else ():
        origin = str(getattr(sys.modules.get(name), "__file__", None) or "")
        for folder in (path for path in sys.path if path.startswith("/")):
            path = f"{folder}/{name}"
            if origin.startswith(path):
                break
            if folder in named or "-packages" in folder:
                yield from (p for p in (path, f"{path}.py") if not os.path.lexists(p))


def _hidden_by_preload() -> Iterator[str]:
    """Yield the missing files that would be imported in place of preloaded modules. The import of a
    framework in the fork server did not look into this program's own folders."""
    names = preloaded_names()
    folders = [path for path in sys.path if path.startswith("/") and not is_installed(path)]
    for folder in folders if names else ():
        try:
            there = frozenset(os.listdir(folder))  # noqa: PTH208
        except OSError:
            continue
        candidates = (name + end for name in names for end in ("", *machinery.all_suffixes()))
        yield from (f"{folder}/{name}" for name in candidates if name not in there)

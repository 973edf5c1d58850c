"""Record, in the fork server, which files a worker and all processes that it starts use.

The kernel reports each system call that names a file, and lets the caller wait until it is
recorded; see `notices`. So a call is seen no matter which language makes it. The fork server is an
ancestor of all these processes, outlives them, and never waits for them. On systems that restrict
access to another process's memory (Yama), only an ancestor may read it.
"""

from __future__ import annotations

import errno
import os
import re
import select
import selectors
import socket
import stat
import threading
from pathlib import Path
from typing import NamedTuple

from gpuemu_flow.model.installed import is_installed
from gpuemu_flow.workers import channel
from gpuemu_flow.workers.notices import Notice, ProcessMemory, Receiver
from gpuemu_flow.workers.sightings import Sightings, framed

_MAY_WRITE = os.O_WRONLY | os.O_TRUNC | os.O_EXCL
_TEMPORARY = 0o600  # the mode that `mkstemp` gives
_HERE = -100  # AT_FDCWD
_PACKAGE = os.fsencode(Path(__file__).parent.parent) + b"/"
_AT_ONCE = 64
_READS = (b"r", b"e", b"m", b"f", b"l")
_MOST_LOOKED = 1 << 16
_HEAD = 256
_SYSTEM = (b"/dev/", b"/proc/", b"/sys/")
_SHARED_MEMORY = b"/dev/shm/"
_PROCESS = re.compile(
    r"/proc/(?:self|thread-self|\d+)(?:/task/\d+)?/(?:cwd|root|exe|fd/\d+)(?=/|\Z)"
    r"|/dev/fd/\d+(?=/|\Z)|/dev/std(?:in|out|err)\Z"
)
_MAX_BYTES = 24 << 20
_MAX_LISTENERS = 256
_TOO_MUCH = b"uthe program used more files than are written down"
_UNREADABLE = b"uthe files of a process that the program started with other rights cannot be seen"
_RING = b"uthe program uses io_uring, and the files that it opens by that cannot be seen"
_ROOT = (
    b"uthe program uses another root folder, mounts or file handles: what it opens there is unseen"
)
_NARROW = b"uthe program starts a 32-bit program, whose files cannot be seen"


class _Change(NamedTuple):
    """A record of a change that a call makes, unless it fails: it is seen before it is made."""

    record: bytes
    path: bytes
    target: bytes = b""
    before: tuple[int, ...] = ()

    def is_made(self) -> bool:
        if self.record[:1] in (b"a", b"x"):
            return not os.path.lexists(self.path)
        if self.before:
            return _stamp(self.path) != self.before
        return os.path.lexists(self.target) if self.target else os.path.exists(self.path)  # noqa: PTH110


class Listener:
    """Answers the seccomp notifications of system calls that arrive at one descriptor. `report` is
    the descriptor to write records to; see `sightings`."""

    def __init__(self, receiver: Receiver, report: int) -> None:
        self._receiver = receiver
        self._report = report
        self._memory = ProcessMemory()
        self._written: set[bytes] = set()
        self._looked: set[bytes] = set()
        self._changes: dict[int, _Change] = {}
        self._left = _MAX_BYTES
        self._poll = select.poll()
        self._poll.register(receiver.fd, select.POLLIN)

    @property
    def fd(self) -> int:
        """Return the descriptor to wait for."""
        return self._receiver.fd

    def serve(self) -> bool:
        """Record the system calls that wait for an answer, and let them go on or refuse them."""
        for _ in range(_AT_ONCE):
            events = self._poll.poll(0)
            if not events:
                return True
            if not events[0][1] & select.POLLIN:
                return False
            try:
                notice = self._receiver.receive()
            except OSError:  # the program sent something else
                return False
            if notice is None:
                continue
            try:
                if self._changes:
                    self._settle(notice.thread)
                denied = self._take(notice)
            except (OSError, ValueError, OverflowError):  # the caller has gone, or names nonsense
                denied = False
            except BaseException:
                self._receiver.go_on(notice)
                raise
            if denied:
                self._receiver.deny(notice, errno.ENOENT)
            else:
                self._receiver.go_on(notice)
        return True

    def close(self) -> None:
        """Close the descriptor; receive nothing more."""
        for thread in list(self._changes):
            self._settle(thread)
        self._receiver.close()
        os.close(self._report)

    def _settle(self, thread: int) -> None:
        """Record the changes that are made by now. The last call of `thread` is over: where it made
        no change, it only asked whether it could."""
        for one, change in list(self._changes.items()):
            if change.is_made():
                del self._changes[one]
                self._looked.clear()
                if change.target:
                    self._forget(change.target)
                self._put(change.record)
            elif one == thread:
                del self._changes[one]
                for path in filter(None, (change.path, change.target)):
                    self._read(path, found=b"e")
                    self._read(os.path.dirname(path))  # noqa: PTH120 - it may be what is missing
                    if os.path.isdir(path):  # noqa: PTH112 - which may have to be empty
                        self._write(b"l", path)

    def _expect(self, notice: Notice, kind: bytes, path: bytes) -> None:
        """Record a change when it is made."""
        before = _stamp(path) if kind == b"w" else ()
        if path.startswith(b"/"):
            self._changes[notice.thread] = _Change(kind + path, path, before=before)

    def _take(self, notice: Notice) -> bool:
        """Record the files that a system call uses; return True if the call is to be refused."""
        call = notice.call
        if call.name == "list":
            place = b"/proc/%d/fd/%d" % (notice.thread, _signed(notice.arguments[0]))
            self._write(b"l", os.readlink(place))  # noqa: PTH115 - bytes
            return False
        if call.name == "symlink":
            self._symlink(notice)
            return False
        if call.name in ("ring", "root"):
            self._put(_RING if call.name == "ring" else _ROOT)
            return False
        return self._take_path(notice, self._path(notice, call.folder, call.path))

    def _take_path(self, notice: Notice, path: bytes) -> bool:
        """Record the path that a system call names; return True if the call is to be refused."""
        call = notice.call
        if not path or _is_system(path) or path.startswith(_PACKAGE):
            return False
        if call.name.startswith("open"):
            return self._open(notice, path)
        if call.name == "start":
            self._start(path)
        elif call.name == "create":
            self._expect(notice, b"w", path)
        elif call.name in ("move", "link"):
            target = self._path(notice, call.to_folder, call.to_path)
            self._pair(notice, b"a" if call.name == "move" else b"k", path, target)
        elif call.name == "look":
            self._read(path, found=b"e")
        elif call.name in ("folder", "node") and not os.path.lexists(path):
            self._expect(notice, b"d" if call.name == "folder" else b"w", path)
        elif call.name in ("touch", "folder", "node", "cut"):
            self._read(path, found=b"f")  # whether there is one shows in the answer
            if call.name == "cut" and os.path.lexists(path):
                self._write(b"t", path)
        elif call.name == "remove":
            if os.path.lexists(path):
                self._expect(notice, b"x", path)
            else:
                self._read(path)
        return False

    def _open(self, notice: Notice, path: bytes) -> bool:
        call, arguments = notice.call, notice.arguments
        flags, mode = arguments[call.flags], arguments[call.flags + 1]
        if call.name == "openat2":
            flags, mode = (self._memory.word(notice.thread, flags + n) for n in (0, 8))
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            return False  # it never has a name
        if not flags & (_MAY_WRITE | os.O_CREAT):
            if _is_bytecode(path):
                return True
            self._read(path)
            if flags & os.O_NOFOLLOW:
                self._read(path, found=b"e")
        elif not os.path.lexists(path):
            if flags & os.O_CREAT:
                temporary = flags & os.O_EXCL and mode & 0o777 == _TEMPORARY
                self._expect(notice, b"w" if flags & os.O_TRUNC or temporary else b"c", path)
            else:
                self._read(path)
        elif flags & os.O_EXCL and flags & os.O_CREAT:
            self._read(path, found=b"e")  # it exists, so that opening it fails
        elif flags & os.O_TRUNC:
            self._expect(notice, b"w", path)
        elif flags & os.O_WRONLY:
            self._write(b"t", path)
        else:
            self._read(path)
        return False

    def _symlink(self, notice: Notice) -> None:
        call = notice.call
        source = self._memory.text(notice.thread, notice.arguments[call.path]) or b""
        target = self._path(notice, call.to_folder, call.to_path)
        if source:
            full = os.path.join(os.path.dirname(target), source)  # noqa: PTH118, PTH120
            self._pair(notice, b"k", os.fsencode(_tidied(os.fsdecode(full))), target, soft=True)

    def _pair(
        self, notice: Notice, kind: bytes, source: bytes, target: bytes, *, soft: bool = False
    ) -> None:
        """Record, when it is made, a move or a link by which `target` leads to `source`."""
        if not (source.startswith(b"/") and target.startswith(b"/")):
            return
        if kind == b"k" and os.path.lexists(target):
            self._read(target, found=b"e")  # it exists, so that the call fails
        elif not soft and not os.path.lexists(source):
            self._read(source)
        else:
            record = kind + source + b"/" + target
            self._changes[notice.thread] = _Change(record, source, target)

    def _forget(self, target: bytes) -> None:
        """Let paths at and below the target of a move or link be recorded again."""
        below, led = target + b"/", b"/" + target
        self._written -= {
            known
            for known in self._written
            if known[1:] == target or known[1:].startswith(below) or known.endswith(led)
        }

    def _path(self, notice: Notice, at: int, position: int) -> bytes:
        """Return the absolute path that a system call names, with links not resolved."""
        arguments = notice.arguments
        path = self._memory.text(notice.thread, arguments[position])
        if path is None:
            if self._memory.refused():
                self._put(_UNREADABLE)
            return b""
        if not path.startswith(b"/"):
            descriptor = _signed(arguments[at]) if at >= 0 else _HERE
            place = b"cwd" if descriptor == _HERE else b"fd/%d" % descriptor
            folder = os.readlink(b"/proc/%d/%b" % (notice.thread, place))  # noqa: PTH115 - bytes
            path = folder + b"/" + path if path else folder
        if b"//" in path or b"/." in path:
            path = os.fsencode(_tidied(os.fsdecode(path)))
        if path.startswith((b"/proc/", b"/dev/")):
            own = b"/proc/%d/" % notice.thread
            for name in (b"/proc/self/", b"/proc/thread-self/"):
                path = own + path[len(name) :] if path.startswith(name) else path
            if path.startswith(b"/dev/fd/"):
                path = own + path[len(b"/dev/") :]
            path = os.fsencode(_behind_process(os.fsdecode(path)))
        return path

    def _read(self, path: bytes, *, found: bytes = b"r") -> None:
        # Imports look at the same folders over and over; nothing new can be learned about them
        # until a file is made, moved or linked.
        if found + path in self._looked:
            return
        self._looked.add(found + path)
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116 - bytes, and often
        except OSError:
            self._write(b"m", path)
        else:
            self._write(found if stat.S_ISREG(mode) else b"f", path)

    def _start(self, path: bytes) -> None:
        """Record a started program, and the interpreter that the kernel loads for it. The modes of
        both files are recorded as well, since they decide whether the program may start."""
        for _ in range(4):
            if {b"r" + path, b"e" + path} <= self._written:
                return
            self._read(path)
            self._read(path, found=b"e")
            head = _head(path)
            if head.startswith(b"\x7fELF\x01"):
                self._put(_NARROW)
            path = _interpreter(head)
            if not path.startswith(b"/"):
                return

    def _write(self, kind: bytes, path: bytes) -> None:
        if kind not in _READS or len(self._looked) > _MOST_LOOKED:
            self._looked.clear()
        if path.startswith(b"/"):
            self._put(kind + path)

    def _put(self, record: bytes) -> None:
        if record not in self._written and self._left > 0:
            self._left -= len(record)
            if self._left <= 0:
                record = _TOO_MUCH
            self._written.add(record)
            os.write(self._report, framed(record))


class Incoming:
    """Receives, from one worker, the descriptors at which its notifications arrive."""

    def __init__(self, sock: socket.socket, report: int) -> None:
        self.sock = sock
        self._report = report
        self._taken = 0

    def take(self) -> Listener | None:
        """Receive one descriptor, and return a listener for it; None if the worker has ended."""
        try:
            _, fds, _, _ = socket.recv_fds(self.sock, 1, 1, socket.MSG_DONTWAIT)
        except OSError:
            return None
        if not fds:
            return None
        self._taken += 1
        if self._taken > _MAX_LISTENERS:
            os.close(fds[0])
            return None
        os.set_inheritable(fds[0], False)
        return Listener(Receiver(fds[0]), os.dup(self._report))

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
        os.close(self._report)


def register(selector: selectors.BaseSelector, source: Incoming | Listener) -> None:
    """Let a selector wait for a source; its data is the source, for `react`."""
    fd = source.fd if isinstance(source, Listener) else source.sock
    try:
        selector.register(fd, selectors.EVENT_READ, source)
    except (OSError, KeyError):  # nothing that can be waited for
        source.close()


def react(selector: selectors.BaseSelector, source: Incoming | Listener) -> None:
    """Answer what arrived at a source; drop it when nothing more can."""
    if isinstance(source, Listener):
        if not source.serve():
            selector.unregister(source.fd)
            source.close()
        return
    made = source.take()
    if made is not None:
        register(selector, made)
    else:
        selector.unregister(source.sock)
        source.close()


class Recording:
    """Records, in a thread of this process, what a command and all that it starts use. The command
    has to be started with `fds`, and to call `notices.be_seen` with them. A context manager;
    `sightings` is complete when it ends."""

    def __init__(self) -> None:
        self._report = channel.append_only(channel.create("report"))
        self._taken, self._given = socket.socketpair()
        self._end, self._ended = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.fds = (self._report, self._given.fileno())
        self.sightings = Sightings()

    def __enter__(self) -> Recording:
        self.sightings.follow(self._report)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._ended)
        self._thread.join()
        self.sightings.leave(self._report)
        self._given.close()
        os.close(self._report)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._end, selectors.EVENT_READ)
            register(selector, Incoming(self._taken, os.dup(self._report)))
            try:
                while None not in (ready := [key.data for key, _ in selector.select()]):
                    for source in ready:
                        react(selector, source)
            finally:  # calls that wait fail from now on
                for key in list(selector.get_map().values()):
                    if key.data is not None:
                        key.data.close()
                os.close(self._end)


def _is_system(path: bytes) -> bool:
    return path.startswith(_SYSTEM) and not path.startswith(_SHARED_MEMORY)


def _tidied(text: str) -> str:
    """Remove empty parts and single dots from a path; keep ``..``, since it may follow a link."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    return "/" + "/".join(parts) if ".." in parts else os.path.normpath(text)


def _behind_process(text: str) -> str:
    """Follow the kernel's own links, such as ``/proc/self/cwd``, at the beginning of a path."""
    match = _PROCESS.match(text)
    if match is None:
        return text
    try:
        target = os.readlink(match[0])  # noqa: PTH115
    except OSError:
        return text
    return target.rstrip("/") + text[match.end() :] if target.startswith("/") else text


def _is_bytecode(path: bytes) -> bool:
    """Tell whether a path is the bytecode of a module that is not installed. Observed processes
    must not open such bytecode, which may be outdated: Python compares only the size of the source
    and its modification time in seconds. Without bytecode, Python compiles the source, whose digest
    is in the keys of results."""
    if not path.endswith(b".pyc") or b"/__pycache__/" not in path:
        return False
    return not is_installed(os.fsdecode(path))


def _signed(word: int) -> int:
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word


def _stamp(path: bytes) -> tuple[int, ...]:
    """Return what changes when a file is truncated or replaced; nothing if it does not exist."""
    try:
        s = os.stat(path)  # noqa: PTH116
    except OSError:
        return ()
    return s.st_ctime_ns, s.st_mtime_ns, s.st_ino, s.st_size


def _head(path: bytes) -> bytes:
    """Return the beginning of a program; empty if there is none, or it cannot be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
            return b""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(fd, 4096, 0)
    finally:
        os.close(fd)


def _interpreter(head: bytes) -> bytes:
    """Return the program that runs a script or loads an executable; empty if there is none."""
    if head.startswith(b"#!"):
        words = head[2:_HEAD].split(b"\n")[0].split(maxsplit=1)
        return words[0] if words else b""
    if not head.startswith(b"\x7fELF\x02\x01"):
        return b""
    start = int.from_bytes(head[32:40], "little")
    size, count = (int.from_bytes(head[n : n + 2], "little") for n in (54, 56))
    for offset in range(start, min(start + size * count, len(head) - 56), max(size, 1)):
        if head[offset : offset + 4] == b"\x03\0\0\0":  # PT_INTERP
            place = int.from_bytes(head[offset + 8 : offset + 16], "little")
            return head[place : place + _HEAD].partition(b"\0")[0]
    return b""

"""The coordinator's side of observation: read workers' records into an `Observation`.

A worker appends records to a file that it shares with the coordinator. A record is a letter and a
path or a name, framed by zero bytes. Processes that the program forks, and the tracer in the fork
server, append to the same file. The records remain when the worker is lost.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache

from gpuemu_flow.model.installed import is_installed
from gpuemu_flow.model.let_through import user_cache_of
from gpuemu_flow.model.types import Observation
from gpuemu_flow.workers.sandbox.spec import SCRATCH

READ, LOOKED, FOLDER, MISSED, LISTED = b"refml"
"""First bytes of records of the program's inputs.

READ is a file, LOOKED is a file that was found but not opened, FOLDER is a folder that was found,
MISSED is a path that did not exist, and LISTED is a folder that was listed.
"""
WRITTEN, CREATED, TOUCHED, REMOVED, MADE, MOVED, LINKED = b"wctxdak"
"""First bytes of records of the program's own changes.

WRITTEN is a file whose content comes from the program from now on. CREATED is a file that did not
exist, and was opened in a mode that would have kept existing content. TOUCHED is an existing file
that may be written to. REMOVED is a removed file, and MADE is a new folder. MOVED and LINKED have
two paths, ``SOURCE//TARGET``: from now on, TARGET leads to the file of SOURCE.
"""
UNTRACKED, BASE = b"ub"
"""UNTRACKED is a sentence on what went unseen.

BASE contains the initial records of every worker, with line ends in place of the zero bytes.
"""
_PAIRS = (MOVED, LINKED)
_CHANGES = (WRITTEN, CREATED, TOUCHED, REMOVED, MADE, *_PAIRS)
_SEEN = (READ, LOOKED, FOLDER, MISSED, LISTED)
_PATHS = (*_SEEN, *_CHANGES)
UNSEEN = "the files that programs use are not seen on this system"

_END = b"\x01"
_BYTECODE = "/__pycache__/"
_COMPILED = re.compile(r"/__pycache__(?:/[^/]+\.(?:pyc|nbi|nbc)(?:\.[^/]+)?)?\Z")
"""Matches Python's and Numba's compiled code, and its folder, but no other files there."""
_NO_FOLDER = re.compile(r".*/__editable__\.[^/]*_hook__")
"""Matches entries of ``sys.path`` of editable installs, which only an import hook understands."""
_IN_PACKAGE = re.compile(r".*-packages/[^/]+(?=/)")
MAX_REPORT = 32 << 20
_OWN_LIBRARY = re.compile(r"/kernels/[0-9a-f]{64}\.so\Z")
_TOO_MUCH = "the program used more files than are written down"
_DAMAGED = "the program damaged the record of the files that it used"


def framed(record: bytes) -> bytes:
    """Return a record in its written form: ended by the byte 1, and between two zero bytes. A
    writer may be killed in the middle of a record while others go on. Such a torn record lacks the
    byte 1, and the zero byte at the beginning of the next record separates the two."""
    return b"\0%b%b\0" % (record, _END)


class _OwnChanges:
    """Tracker of the changes that one program makes to files, in the order of the changes."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        self.needed: set[str] = set()
        self._own: set[str] = set()
        self._created: set[str] = set()
        self._gone: set[str] = set()
        self._folders: set[str] = set()
        self._sources: dict[str, str] = {}

    def take(self, kind: int, path: str) -> None:
        """Record one change, whose kind is one of `_CHANGES`."""
        if kind in _PAIRS:
            source, _, target = path.partition("//")
            self._pair(kind, source, f"/{target}")
        elif kind == REMOVED:
            self._sources.pop(path, None)
            self._gone.add(path)
        elif kind == MADE:
            self._folders.add(path)
        else:
            self._write(kind, {path, self.meant(path)})

    def _write(self, kind: int, paths: set[str]) -> None:
        self.written |= paths
        if kind == TOUCHED:
            return
        self._own |= paths
        self._gone -= paths
        if kind == CREATED:
            self._created |= paths
        elif kind == WRITTEN:
            self._created -= paths

    def _pair(self, kind: int, path: str, target: str) -> None:
        source = self.meant(path)
        self.written.add(target)
        self._own.discard(target)
        self._gone.discard(target)
        self._sources.pop(target, None)
        if source in self._folders:
            self._folders.add(target)
        elif self.is_own(source):
            self._own.add(target)
        elif source != target:  # else it is back where it was
            self._sources[target] = source
        if kind == MOVED:
            self._sources.pop(path, None)
            self._gone.add(path)

    def meant(self, path: str) -> str:
        """Return the original path of a file that the program moved or linked; else `path`."""
        for target, source in self._sources.items():
            if path == target or path.startswith(f"{target}/"):
                return source + path[len(target) :]
        return path

    def is_gone(self, path: str) -> bool:
        """Tell whether the program itself moved away or removed a path."""
        return path in self._gone

    def is_own_file(self, path: str) -> bool:
        """Tell whether the program itself wrote the file."""
        return path in self._own

    def is_own(self, path: str) -> bool:
        """Tell whether the program itself made a file or folder, or a folder above it."""
        if "/.." in path:
            path = os.path.normpath(path)
        if path in self._own:
            return True
        return bool(self._folders) and any(f in self._folders for f in _upwards(path))

    def use(self, path: str) -> None:
        """Record that the program uses a file: a file that it created is added to `needed`."""
        if path in self._created:
            self.needed.add(path)


def _upwards(path: str) -> list[str]:
    """List a path and all folders above it."""
    found = [path]
    while "/" in path[1:]:
        path = path.rpartition("/")[0]
        found.append(path)
    return found


class Sightings:
    """Collects the records of the files that a program's workers use. Not thread-safe."""

    def __init__(self) -> None:
        self._seen: dict[int, set[str]] = {kind: set() for kind in _SEEN}
        self._untracked: set[str] = set()
        self._changes = _OwnChanges()
        self._inside: set[str] = set()
        self._followed: dict[int, int] = {}
        self._scratch: set[str] = set()
        self._made = Observation()
        self._is_made = True

    def follow(self, fd: int, scratch: str = "") -> None:
        """Begin to read the records of a worker; `leave` ends this."""
        self._followed.setdefault(fd, 0)
        if scratch:
            around = os.path.dirname(scratch)  # noqa: PTH120
            shared = os.path.basename(around).startswith(SCRATCH)  # noqa: PTH119
            self._scratch.add(around if shared else scratch)

    def leave_out(self, folder: str) -> None:
        """Ignore what workers use in a folder: its content follows from other things they use."""
        self._scratch.add(os.path.realpath(folder))

    def leave(self, fd: int) -> None:
        """Read the remaining records of a worker; its descriptor may be closed afterwards."""
        if fd in self._followed:
            self._drain(fd)
            del self._followed[fd]

    def observation(self) -> Observation:
        """Return everything reported so far; while nothing is new, return the same object."""
        for fd in self._followed:
            self._drain(fd)
        if not self._is_made:
            seen, changes = self._seen, self._changes
            made = Observation(
                # A program may look for its own log and append to it, every time.
                files=frozenset(seen[READ] | (seen[LOOKED] - changes.written)),
                # Temporary folders are gone by now, and others will be made next time.
                missed=frozenset(
                    seen[MISSED] | changes.needed | {p for p in self._inside if os.path.lexists(p)}
                ),
                listed=frozenset(seen[LISTED]),
                looked=frozenset(seen[LOOKED] | seen[FOLDER]),
                untracked=frozenset(self._untracked),
            )
            self._is_made = True
            if made != self._made:  # another worker reports much that is already known
                self._made = made
        return self._made

    def opened(self) -> frozenset[str]:
        """Return the files that were opened or started, and not made or written to."""
        self.observation()
        return frozenset(self._seen[READ] - self._changes.written)

    def _drain(self, fd: int) -> None:
        start = self._followed[fd]
        try:
            size = os.fstat(fd).st_size
            if size < start:  # nobody but the program would cut it
                self._note_damage()
            if size <= start:
                return
            data = os.pread(fd, min(size - start, MAX_REPORT), start)
        except OSError:
            return
        end = data.rfind(b"\0") + 1
        self._followed[fd] = start + end
        self._is_made = False
        if start + end > MAX_REPORT:
            self._untracked.add(_TOO_MUCH)
        for record in data[:end].split(b"\0"):
            if record:
                self._take(record)

    def _note_damage(self) -> None:
        if _DAMAGED not in self._untracked:
            self._untracked.add(_DAMAGED)
            self._is_made = False

    def _take(self, record: bytes) -> None:
        kind, rest = record[0], record[1:].removesuffix(_END)
        if not record.endswith(_END):
            # Its writer was killed before it did what the record announces.
            if kind not in (*_PATHS, BASE, UNTRACKED):
                self._note_damage()
            return
        if kind == BASE:
            base = _base(rest)
            self._seen[READ] |= base.files
            self._seen[MISSED] |= base.missed
            return
        text = os.fsdecode(rest)
        if kind == UNTRACKED:
            self._untracked.add(text[:1000])
        elif text.startswith("/") and kind in _PATHS:
            self._take_path(kind, text)
        else:
            self._note_damage()

    def _take_path(self, kind: int, path: str) -> None:
        """Record one path, unless the program itself made the file. As an exception, a file that
        the program looked for before making it is recorded, since the next run will find the file
        there."""
        changes = self._changes
        if _COMPILED.search(path):
            if kind in (*_CHANGES, MISSED):
                return
            path = _source_of(path)
        if kind in _CHANGES:
            changes.take(kind, path)
            return
        if any(f"{path}/".startswith(f"{folder}/") for folder in self._scratch):
            return
        if _is_own_library(path):
            return
        if kind == MISSED and (changes.is_gone(path) or _NO_FOLDER.fullmatch(path)):
            return
        path = changes.meant(path)
        if changes.is_own(path):
            if kind in (READ, LOOKED):
                changes.use(path)
            elif kind != FOLDER and not changes.is_own_file(path):
                self._inside.add(path)
        elif not _is_in_package(kind, path):
            self._seen[kind].add(path)


def _is_in_package(kind: int, path: str) -> bool:
    """Tell whether a record is about names in an installed package, which changes as a whole."""
    if kind not in (LISTED, MISSED) or not is_installed(path):
        return False
    if kind == LISTED or "-packages" not in path:
        return not path.endswith("-packages")
    package = _IN_PACKAGE.match(path)
    return package is not None and os.path.isdir(package[0])  # noqa: PTH112


def _is_own_library(path: str) -> bool:
    """Tell whether a path is that of a library that the emulator compiled from a kernel. The
    library's results follow from the kernel, which is an input, and from our own code."""
    found = _OWN_LIBRARY.search(path)
    return found is not None and path[: found.start()] == os.path.realpath(
        user_cache_of(os.environ)
    )


def _source_of(path: str) -> str:
    """Return the path of a bytecode file's source; the path itself if there is no source."""
    folder, _, name = path.rpartition(_BYTECODE)
    source = f"{folder}/{name.partition('.')[0]}.py"
    return source if os.path.exists(source) else path  # noqa: PTH110


@lru_cache(maxsize=8)
def _base(records: bytes) -> Observation:
    """Read a worker's initial records, which are the same for every worker of a fork server."""
    lines = records.split(b"\n")

    def named(kind: int) -> frozenset[str]:
        return frozenset(os.fsdecode(line[1:]) for line in lines if line[0] == kind)

    return Observation(files=named(READ), missed=named(MISSED))

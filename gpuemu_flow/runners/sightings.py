"""The coordinator's side of observation: read workers' records into an `Observation`.

A worker appends records to a file that it shares with the coordinator. A record is a letter and a
path or a name, framed by zero bytes. Processes that the program forks, and the tracer in the fork
server, append to the same file. The records remain when the worker is lost.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache

from gpuemu_flow.installed import is_installed
from gpuemu_flow.let_through import user_cache_of
from gpuemu_flow.observed import ALL_VARIABLES, Observation
from gpuemu_flow.runners.own_changes import OwnChanges
from gpuemu_flow.runners.records import (
    BASE,
    CHANGES,
    FOLDER,
    LISTED,
    LISTINGS,
    LOOKED,
    MISSED,
    MODULES,
    PATHS,
    READ,
    SEEN,
    SIZED,
    UNSET,
    UNTRACKED,
    VARIABLE,
)
from gpuemu_flow.runners.sandbox.spec import SCRATCH

_END = b"\x01"
_BYTECODE = "/__pycache__/"
_COMPILED = re.compile(r"/__pycache__(?:/[^/]+\.(?:pyc|nbi|nbc)(?:\.[^/]+)?)?\Z")
"""Matches Python's and Numba's compiled code, and its folder, but no other files there."""
_NO_FOLDER = re.compile(r".*/__editable__\.[^/]*_hook__")
"""Matches entries of ``sys.path`` of editable installs, which only an import hook understands."""
MAX_REPORT = 32 << 20
_OWN_LIBRARY = re.compile(r"/kernels/[0-9a-f]{64}\.so\Z")
_TOO_MUCH = "the program used more files than are written down"
_DAMAGED = "the program damaged the record of the files that it used"


def framed(record: bytes) -> bytes:
    """Return a record in its written form: ended by the byte 1, and between two zero bytes.

    A writer may be killed in the middle of a record while others go on. Such a torn record lacks
    the byte 1, and the zero byte at the beginning of the next record separates the two.
    """
    return b"\0%b%b\0" % (record, _END)


class Sightings:
    """Collects the records of the files and environment variables that a program's workers use.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._seen: dict[int, set[str]] = {kind: set() for kind in SEEN}
        self._variables: set[str] = set()
        self._asked: set[str] = set()
        self._untracked: set[str] = set()
        self._changes = OwnChanges()
        self._inside: set[str] = set()
        self._followed: dict[int, int] = {}
        self._scratch: set[str] = set()
        self._made = Observation()
        self._is_made = True

    def follow(self, fd: int, scratch: str = "") -> None:
        """Begin to read the records of a worker; `leave` ends this.

        Parameters
        ----------
        fd : int
            Descriptor of the file with the records.
        scratch : str
            The worker's own temporary folder; empty if it has none. Uses of files in this folder
            are not recorded. It may lie in a temporary folder that several workers share. Then, no
            uses of files in the shared folder are recorded.
        """
        self._followed.setdefault(fd, 0)
        if scratch:
            around = os.path.dirname(scratch)  # noqa: PTH120
            shared = os.path.basename(around).startswith(SCRATCH)  # noqa: PTH119
            self._scratch.add(around if shared else scratch)

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
            names, seen, changes = self._variables, self._seen, self._changes
            made = Observation(
                # A program may look for its own log and append to it, every time.
                files=frozenset(seen[READ] | (seen[LOOKED] - changes.written)),
                # Temporary folders are gone by now, and others will be made next time.
                missed=frozenset(
                    seen[MISSED] | changes.needed | {p for p in self._inside if os.path.lexists(p)}
                ),
                listed=frozenset(seen[LISTED]),
                modules=frozenset(seen[MODULES]),
                sized=frozenset(seen[SIZED]),
                looked=frozenset(seen[LOOKED] | seen[FOLDER]),
                variables=frozenset({ALL_VARIABLES} if ALL_VARIABLES in names else names),
                untracked=frozenset(self._untracked),
            )
            self._is_made = True
            if made != self._made:  # another worker reports much that is already known
                self._made = made
        return self._made

    def asked_in_vain(self) -> frozenset[str]:
        """Return the environment variables that the program's own code read but did not receive."""
        for fd in self._followed:
            self._drain(fd)
        return frozenset(self._asked)

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
            if kind not in (*PATHS, BASE, VARIABLE, UNSET, UNTRACKED):
                self._note_damage()
            return
        if kind == BASE:
            base = _base(rest)
            self._seen[READ] |= base.files
            self._seen[MISSED] |= base.missed
            self._variables |= base.variables
            return
        text = os.fsdecode(rest)
        if kind == VARIABLE:
            self._variables.add(text)
        elif kind == UNSET:
            self._asked.add(text)
        elif kind == UNTRACKED:
            self._untracked.add(text[:1000])
        elif text.startswith("/") and kind in PATHS:
            self._take_path(kind, text)
        else:
            self._note_damage()

    def _take_path(self, kind: int, path: str) -> None:
        """Record one path, unless the program itself made the file.

        As an exception, a file that the program looked for before making it is recorded, since the
        next run will find the file there.
        """
        changes = self._changes
        if _COMPILED.search(path):
            if kind in (*CHANGES, MISSED):
                return
            path = _source_of(path)
        if kind in CHANGES:
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
        elif kind not in LISTINGS or not is_installed(path):
            self._seen[kind].add(path)


def _is_own_library(path: str) -> bool:
    """Tell whether a path is that of a library that the emulator compiled from a kernel.

    The library's results follow from the kernel, which is an input, and from our own code.
    """
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

    return Observation(files=named(READ), missed=named(MISSED), variables=named(VARIABLE))

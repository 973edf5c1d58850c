"""Have the fork server record all files that a worker uses, before the program's code is loaded."""

from __future__ import annotations

import array
import os
import site
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import machinery
from pathlib import Path

from gpuemu_flow.installed import is_installed
from gpuemu_flow.runners import notices
from gpuemu_flow.runners.preload import preloaded_names
from gpuemu_flow.runners.sightings import UNSEEN, framed

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_MAPS = Path("/proc/self/maps")
_CLOSED = "the program closed the checker's files"


class Observer:
    """Asks the kernel, once in each worker, to report file accesses to the fork server.

    `report` is the descriptor of the file with the records, see `sightings`; `server` is that of a
    socket to the fork server.
    """

    def __init__(self, report: int, server: int) -> None:
        self._report = report
        self._server = server
        self._begun = False

    def begin(self) -> None:
        """Record all files that this process and its children use from now on.

        Call it when ``sys.path`` is that of the program, before the program's code is read.
        """
        if self._begun:
            return
        self._begun = True
        missed = [b"m" + os.fsencode(path) for path in _hidden_by_preload()]
        self._write([b"b" + base_records(), *missed])
        failure = self._listen()
        if failure:
            self._write([b"u" + f"{UNSEEN} ({failure})".encode()])

    def _write(self, records: list[bytes]) -> None:
        with suppress(OSError):
            os.write(self._report, b"".join(map(framed, records)))

    def _listen(self) -> str:
        """Start the listener; return the reason if that is impossible."""
        try:
            if not stat.S_ISSOCK(os.fstat(self._server).st_mode):
                return _CLOSED
            sock = socket.socket(fileno=os.dup(self._server))
        except OSError:
            return _CLOSED
        with sock:
            fds = array.array("i", [0])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
            try:
                fds[0] = notices.ask()
            except notices.NoNoticesError as error:
                return str(error)
            # Do nothing in between: every opening of a file waits until the fork server has the
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
    """Return records of the files that this process read before it had a program.

    Call it before forking, so that each forked process need not make the records again; `anew` if
    more modules have been imported since the last call.
    """
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
    """Yield the missing files that would be imported in place of preloaded modules.

    The import of a framework in the fork server did not look into this program's own folders.
    """
    names = preloaded_names()
    folders = [path for path in sys.path if path.startswith("/") and not is_installed(path)]
    for folder in folders if names else ():
        try:
            there = frozenset(os.listdir(folder))  # noqa: PTH208
        except OSError:
            continue
        candidates = (name + end for name in names for end in ("", *machinery.all_suffixes()))
        yield from (f"{folder}/{name}" for name in candidates if name not in there)

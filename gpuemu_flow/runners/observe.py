"""In a worker: write down what the program reads, looks for, lists and imports.

Python's audit events (PEP 578) tell of every file that is opened, before it happens. A hook cannot
be taken away again and runs for every event, so it does next to nothing for most of them.
"""

from __future__ import annotations

import _posixsubprocess
import importlib.util
import os
import shutil
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from gpuemu_flow.runners import existence, libraries, variables
from gpuemu_flow.runners.api import Program
from gpuemu_flow.runners.diagnose import shown_path
from gpuemu_flow.runners.imports import is_installed
from gpuemu_flow.runners.plain_paths import exists, lexists, realpath
from gpuemu_flow.runners.searches import Searches
from gpuemu_flow.runners.sightings import framed
from gpuemu_flow.runners.tracer import interpreter
from gpuemu_flow.runners.tracing import Tracing

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_BYTECODE = f"{os.sep}__pycache__{os.sep}"
_WRITE_ONLY = os.O_WRONLY | os.O_TRUNC | os.O_EXCL
_SEARCH = "<frozen importlib._bootstrap_external>"
_HELPERS = (
    "pathlib.py", "pathlib/_local.py", "tokenize.py", "linecache.py", "glob.py", "fnmatch.py",
    *(f"{name}.py" for name in ("posixpath", "genericpath", "codecs", "os")),
    *(f"<frozen {name}>" for name in ("posixpath", "genericpath", "codecs", "os")),
)  # fmt: skip
_READS_PROGRAMS = (_PACKAGE + "runners/imports.py", _PACKAGE + "runners/script.py")
_MAX_BYTES = 24 << 20
_MAX_INTERPRETERS = 4
_STDLIB = (sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("platstdlib") + os.sep)


class Observer:
    """Write records for `sightings`; each worker has one, for good.

    Parameters
    ----------
    report : int
        Descriptor of the records, which appends.
    server : int
        Descriptor of the socket on which the fork server takes what traces this process.
    """

    def __init__(self, report: int, server: int) -> None:
        self._report = report
        self._tracing = Tracing(server)
        self._name = ""
        self._known: set[str | bytes] = set()
        self._left = _MAX_BYTES
        self._modules: set[str] = set()
        self._libraries = libraries.Loaded()
        self._searches = Searches()
        self._active = False

    def begin(self, program: Program) -> None:
        """Observe this process from now on, before the program's code is read."""
        self._write(b"b" + base_records())
        self._modules = set(sys.modules)
        self._libraries.changed()
        named = program.path or program.python or program.module
        self._name = shown_path(named, program.root)
        if program.path.startswith("/"):
            self.note(b"r", program.path)
        if program.kind == "command" or program.python:
            self._write(b"v*")
            self._trace(children_only=True)
            for name in (program.python, program.path):
                self._look_at_program(name if "/" in name else shutil.which(name) or "")
        if self._active:
            return
        self._active = True
        variables.watch(lambda name: self._write(b"v" + os.fsencode(name)), program.env)
        self._searches.install()
        existence.watch(self._on_look)
        actions: dict[str, Callable[..., None]] = {
            "open": self._on_open,
            "import": self._on_import,
            "os.listdir": self._on_list,
            "os.scandir": self._on_list,
            "ctypes.dlopen": self._on_library,
            "sqlite3.connect": self._on_database,
            "os.chdir": self._on_enter,
            "os.mkdir": self._on_mkdir,
            "os.rename": self._on_change,
            "os.link": self._on_change,
            "os.symlink": self._on_change,
            "os.remove": self._on_change,
            "subprocess.Popen": self._on_start,
            "os.posix_spawn": self._on_spawn,
            "os.exec": self._on_spawn,
            "os.system": self._on_spawn,
        }

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event in actions:  # nothing more for the others: `id` alone tells of each call
                with suppress(Exception):  # what is watched goes on as if it were not
                    actions[event](*arguments)

        sys.addaudithook(hook)
        self._watch_fork_exec()

    def _watch_fork_exec(self) -> None:
        """Hear of what `multiprocessing` starts, which no event tells of."""
        start = _posixsubprocess.fork_exec

        def fork_exec(*arguments: Any) -> int:
            with suppress(Exception):
                self._on_spawn(arguments[1][0], None, arguments[5])
            return int(start(*arguments))

        _posixsubprocess.fork_exec = fork_exec

    def look(self) -> None:
        """Write down what no event told of: after loading and after each message."""
        if not self._active:
            return
        if len(sys.modules) != len(self._modules):
            names = [name for name in sys.modules.copy() if name not in self._modules]
            self._modules.update(names)
            for path in _origins(names):
                self.note(b"r", path)
        for path in self._searches.missed():
            self.note(b"m", path)
        if self._libraries.changed():
            for path in self._libraries.paths():
                self.note(b"r", path)

    def note(self, kind: bytes, path: str) -> None:
        """Write down one path, once; our own files and the system's are left out."""
        record = kind + os.fsencode(path)
        known = path if kind == b"r" else record
        if known in self._known or path.startswith((*_SYSTEM, _PACKAGE)):
            return
        self._known.add(known)
        self._write(record)

    def _write(self, record: bytes) -> None:
        self._left -= len(record)
        if self._left < 0:
            record = b"uthe program used more files than are written down"
        try:
            os.write(self._report, framed(record))
        except OSError:  # the program closed it, as it then has our socket
            pass

    def _on_open(self, path: object, mode: object, flags: object) -> None:
        if isinstance(path, int) or path in self._known:
            return
        name = _absolute(path)
        if isinstance(flags, int) and (
            flags & _WRITE_ONLY or (flags & os.O_CREAT and not lexists(name))
        ):
            self.note(b"w", name)
        else:
            self._look_at(name)

    def _look_at(self, path: str) -> None:
        """Write down that a file is read, or is looked for in vain."""
        if not (path in self._known or path.startswith(_SYSTEM) or _is_ours(sys._getframe(3))):
            self._note_file(path)

    def _on_look(self, path: Any) -> None:
        """Write down that the program asked whether there is a file."""
        if not isinstance(path, int) and path not in self._known:
            name = _absolute(path)
            if not name.startswith(_SYSTEM) and not _is_ours(sys._getframe(2)):
                self._note_file(name, b"e")

    def _note_file(self, path: str, kind: bytes = b"r") -> None:
        if _BYTECODE in path or path.endswith(".pyc"):
            path = _source_of(path)
        try:
            mode = os.stat(path).st_mode  # noqa: PTH116 - no pathlib in a hook
        except OSError:
            self.note(b"m", path)
        else:
            if stat.S_ISREG(mode):
                self.note(kind, path)
            elif stat.S_ISDIR(mode) and realpath(path) != path:
                self.note(b"r", path)  # where its links lead decides which folder it is

    def _on_enter(self, path: object) -> None:
        """Write down the links that lead to the folder from which relative names start."""
        if isinstance(path, (str, bytes, os.PathLike)):
            self._note_file(_absolute(path))

    def _look_at_program(self, path: str) -> None:
        """Write down a file that is executed, and what the kernel then loads to run it."""
        for _ in range(_MAX_INTERPRETERS):
            if not path.startswith("/"):
                return
            self._note_file(path)
            path = os.fsdecode(interpreter(os.fsencode(path)))

    def _trace(
        self, *, children_only: bool = False, looks: bool = True, quietly: bool = False
    ) -> bool:
        """Have the fork server see what no event tells of: machine code and other processes."""
        failure = self._tracing.begin(children_only=children_only, looks=looks)
        if failure and not quietly:
            self._write(
                os.fsencode(f"u{self._name}: its files cannot be traced on this system ({failure})")
            )
        return not failure

    def _on_import(self, _name: object, path: object = None, *_: object) -> None:
        if path:  # of a compiled extension, which may open files itself
            name = _absolute(path)
            self._look_at(name)
            if not name.startswith(_STDLIB):
                self._trace(looks=False, quietly=is_installed(name))

    def _on_library(self, path: object, *_: object) -> None:
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if os.sep in text or (text and (Path.cwd() / text).is_file()):
            self._look_at(_absolute(text))
        if text:
            self._trace(looks=False)

    def _on_database(self, path: object, *_: object) -> None:
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if text and not text.startswith((":", "file:")):
            name = _absolute(text)
            if exists(name):
                self._look_at(name)
            else:
                self.note(b"w", name)

    def _on_start(self, path: object, _words: object, folder: object, env: object) -> None:
        self._on_enter(folder)
        self._on_spawn(path, None, env)

    def _on_spawn(self, path: object, _words: object = None, env: object = None) -> None:
        if env is None:  # else who made it was seen to
            self._write(b"v*")
        if self._trace():
            return
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        folders = [""] if os.sep in text else os.get_exec_path()
        for folder in folders if text else ():
            found = _absolute(os.path.join(folder, text))  # noqa: PTH118
            self._look_at_program(found)
            if exists(found):
                return

    def _on_list(self, path: object) -> None:
        frame = sys._getframe(2)
        if frame.f_code.co_filename == _SEARCH or isinstance(path, int) or _is_ours(frame):
            return  # who searches for modules looks for certain names only
        name = _absolute("." if path is None else path)
        try:
            os.stat(name)  # noqa: PTH116
        except OSError:
            self.note(b"m", name)
        else:
            self.note(b"l", name)

    def _on_mkdir(self, path: object, *_: object) -> None:
        name = _absolute(path)
        if not lexists(name):
            self.note(b"d", name)

    def _on_change(self, source: object, target: object = None, *_: object) -> None:
        last = source if target is None or isinstance(target, int) else target
        self.note(b"w", _absolute(last))


def _absolute(path: Any) -> str:
    """Return a path as it was named, from the root; ``..`` may leave a linked folder and stays."""
    text = os.fsdecode(path)
    if not text.startswith("/"):
        text = os.getcwd() + "/" + text  # noqa: PTH109
    if "//" in text or "/." in text:
        parts = [part for part in text.split("/") if part not in ("", ".")]
        return "/" + "/".join(parts) if ".." in parts else os.path.normpath(text)
    return text


def _source_of(path: str) -> str:
    """Return the source of a bytecode file, or the file itself when there is none."""
    try:
        source = importlib.util.source_from_cache(path)
    except (ValueError, NotImplementedError):
        return path
    return source if exists(source) else path


def _is_ours(frame: FrameType | None) -> bool:
    """Return True when our own code asked, also through the standard library's helpers.

    Reading a program's source for it does not count as our own.
    """
    while frame is not None and frame.f_code.co_filename.endswith(_HELPERS):
        frame = frame.f_back
    if frame is None:
        return False
    name = frame.f_code.co_filename
    return name.startswith(_PACKAGE) and name not in _READS_PROGRAMS


def _origins(names: Iterable[str]) -> Iterable[str]:
    """List the files that modules come from, as they were found."""
    for name in names:
        module = sys.modules.get(name)
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        path = getattr(module, "__file__", None) if origin is None else origin
        if isinstance(path, str) and path.startswith("/"):
            yield path


_base: list[bytes] = []


def base_records() -> bytes:
    """List what a process had read before it saw any program; computed once, before forks."""
    if not _base:
        libraries.Loaded()  # whose first is dear
        files = {*_origins(list(sys.modules)), *libraries.mapped(), sys.executable}
        kept = sorted(path for path in files if not path.startswith(_PACKAGE))
        records = [f"r{path}" for path in kept] + [f"v{n}" for n in variables.names_at_start()]
        _base.append(b"\n".join(map(os.fsencode, records)))
    return _base[0]

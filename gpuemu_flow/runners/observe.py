"""Record, in a worker, everything that the program reads, looks for, lists and imports.

Python's audit events (PEP 578) report every file before it is opened. A hook cannot be removed and
runs for every event, so it returns quickly for most events.
"""

from __future__ import annotations

import _posixsubprocess
import ctypes
import importlib.util
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from gpuemu_flow.installed import is_installed
from gpuemu_flow.observed import ALL_VARIABLES
from gpuemu_flow.runners import existence, libraries, variables
from gpuemu_flow.runners.api import Program
from gpuemu_flow.runners.changes import Changes
from gpuemu_flow.runners.diagnose import shown_path
from gpuemu_flow.runners.named_paths import absolute, is_environment, is_system, path_of
from gpuemu_flow.runners.newly_loaded import Moment
from gpuemu_flow.runners.plain_paths import exists, lexists, realpath
from gpuemu_flow.runners.plain_paths import stat as plain_stat
from gpuemu_flow.runners.preload import preloaded_searches
from gpuemu_flow.runners.searches import Searches, at_start
from gpuemu_flow.runners.sightings import framed
from gpuemu_flow.runners.stdlib_files import files_of, is_stdlib
from gpuemu_flow.runners.tracer import ANNOUNCED, interpreter
from gpuemu_flow.runners.tracing import Tracing

_PACKAGE = str(Path(__file__).parent.parent) + os.sep
_BYTECODE = f"{os.sep}__pycache__{os.sep}"
_MAY_WRITE = os.O_WRONLY | os.O_TRUNC | os.O_EXCL
_SEARCH = "<frozen importlib._bootstrap_external>"
_HELPERS = files_of(
    "pathlib", "pathlib._local", "tokenize", "linecache", "glob", "fnmatch",
    "posixpath", "genericpath", "codecs", "os",
) | {_PACKAGE + "runners/existence.py"}  # fmt: skip
_READS_PROGRAMS = (_PACKAGE + "runners/imports.py", _PACKAGE + "runners/script.py")
_MAX_BYTES = 24 << 20
_MAX_INTERPRETERS = 4
_MODULES_ONLY = files_of("pkgutil")
_LISTS_ONLY = _HELPERS | files_of("shutil")
_CTYPES = files_of("ctypes")


class Observer:
    """Writer of records in the format of `sightings`; one exists in each worker until it ends.

    Parameters
    ----------
    report : int
        Descriptor of the file that the records are appended to.
    server : int
        Socket over which the fork server gets the descriptor with which it traces this process.
    """

    def __init__(self, report: int, server: int) -> None:
        self._report = report
        self._tracing = Tracing(server)
        self._name = ""
        self._known: set[str | bytes] = set()
        self._left = _MAX_BYTES
        self._modules = Moment(0, "")
        self._libraries = libraries.Loaded()
        self._searches = Searches()
        self._changes = Changes(self._note_change)
        self._active = False

    def begin(self, program: Program) -> None:
        """Observe this process from now on, before the program's code is read."""
        self._write(b"b" + base_records())
        self._modules = Moment.now()
        self._libraries.changed()
        named = program.path or program.python or program.module
        self._name = shown_path(named, program.root)
        if program.path.startswith("/"):
            self.note(b"r", program.path)
        if program.kind == "command" or program.python:
            self._note_variable("*")
            self._trace(children_only=True)
            for name in (program.python, program.path):
                self._look_at_program(name if "/" in name else shutil.which(name) or "")
        if self._active:
            return
        self._active = True
        variables.watch(self._note_variable, self._note_asked, program.env)
        self._searches.install()
        existence.watch(self._on_look)
        actions: dict[str, Callable[..., None]] = {
            "open": self._on_open,
            "import": self._on_import,
            "os.listdir": self._on_list,
            "os.scandir": self._on_scan,
            "ctypes.dlopen": self._on_library,
            "ctypes.dlsym": self._on_symbol,
            "sqlite3.connect": self._on_database,
            "os.chdir": self._on_enter,
            **dict.fromkeys(existence.EVENTS, self._on_event),
            **dict.fromkeys(existence.EVENTS_WITH_FOLDER, self._on_event_with_folder),
            **self._changes.actions(),
            "subprocess.Popen": self._on_start,
            "os.posix_spawn": self._on_spawn,
            "os.exec": self._on_spawn,
            "os.system": self._on_spawn,
        }

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event in actions:  # most events end here: even `id` raises one per call
                with suppress(Exception):  # the program must not notice an error in here
                    actions[event](*arguments)

        sys.addaudithook(hook)
        self._watch_fork_exec()
        self._count_preloaded()

    def _count_preloaded(self) -> None:
        """Record the files that the import of a preloaded framework would have looked for.

        The fork server may import a framework before it forks this worker. It does not look for the
        framework's modules in this program's folders, as an import by the program itself would. If
        a framework was preloaded, this worker is also traced from now on, since the framework's
        machine code may open files.
        """
        searches = preloaded_searches()
        if searches:
            self._searches.add(searches)
            self._trace(looks=False, quietly=True)  # its machine code may open files

    def _watch_fork_exec(self) -> None:
        """Watch processes that `multiprocessing` starts, for which there is no audit event."""
        start = _posixsubprocess.fork_exec

        def fork_exec(*arguments: Any) -> int:
            with suppress(Exception):
                self._on_spawn(arguments[1][0], None, arguments[5])
            return int(start(*arguments))

        _posixsubprocess.fork_exec = fork_exec

    def look(self) -> None:
        """Record the files that no event reports; called after loading and after each request."""
        if not self._active:
            return
        if len(sys.modules) != self._modules.count:
            before, self._modules = self._modules, Moment.now()
            names = before.since()
            for path in _origins(names):
                self.note(b"r", path)
        for path in self._searches.missed():
            self.note(b"m", path)
        for path in self._searches.present():
            self._note_file(path, b"e")
        if self._libraries.changed():
            for path in self._libraries.paths():
                self.note(b"r", path)
                self._note_variables(path)

    def note(self, kind: bytes, path: str) -> None:
        """Record one path if it is new; files of this package and the system are left out."""
        record = kind + os.fsencode(path)
        known = path if kind == b"r" else record
        if known in self._known or is_system(path) or path.startswith(_PACKAGE):
            return
        self._known.add(known)
        self._write(record)

    def _note_change(self, kind: bytes, path: str) -> None:
        """Record a change of a file by the program, and forget earlier records of the path."""
        if kind in (b"a", b"k") and kind + os.fsencode(path) not in self._known:
            target = "/" + path.partition("//")[2]
            self._known -= {known for known in self._known if _is_of(known, target)}
        self.note(kind, path)

    def _note_variable(self, name: str) -> None:
        if f"v{name}" not in self._known:
            self._known.add(f"v{name}")
            self._write(b"v" + os.fsencode(name))

    def _note_asked(self, name: str) -> None:
        if f"q{name}" not in self._known:
            self._known.add(f"q{name}")
            self._write(b"q" + os.fsencode(name))

    def _write(self, record: bytes) -> None:
        self._left -= len(record)
        if self._left < 0:
            record = b"uthe program used more files than are written down"
        try:
            os.write(self._report, framed(record))
        except OSError:  # the program closed it, and then also our socket
            pass

    def _note_variables(self, path: str) -> None:
        """Record the environment variables that a loaded library may read."""
        if f"library {path}" not in self._known and path not in _base_files:
            self._known.add(f"library {path}")
            for name in variables.read_by_library(path):
                self._note_variable(name)

    def _on_open(self, path: object, mode: object, flags: object) -> None:
        if isinstance(path, int) or (path in self._known and isinstance(mode, str) and mode == "r"):
            return
        if isinstance(path, bytes) and path.startswith(ANNOUNCED):
            return
        name = absolute(path, existence.folder_of_open())
        if is_environment(name):
            self._note_variable("*")
        elif isinstance(flags, int) and flags & (_MAY_WRITE | os.O_CREAT):
            self._changes.opened(name, flags, sys._getframe(2))
            if not flags & _MAY_WRITE and lexists(name):
                self._look_at(name)
        else:
            self._look_at(name)

    def _look_at(self, path: str) -> None:
        """Record that a file is read, or looked for in vain."""
        if not (path in self._known or is_system(path) or _is_ours(sys._getframe(3))):
            self._note_file(path)

    def _on_look(self, path: Any, folder: int | None = None) -> None:
        """Record that the program tested the existence of a file."""
        if not isinstance(path, int):
            name = absolute(path, folder)
            if not is_system(name) and not _is_ours(sys._getframe(2)):
                self._note_file(name, b"e")

    def _on_event(self, path: Any, *_: object) -> None:
        """Record that the program reads a file's extended attributes, or tries to."""
        if not isinstance(path, int):
            name = absolute(path)
            if not is_system(name) and not _is_ours(sys._getframe(2)):
                self._note_file(name, b"e")

    def _on_event_with_folder(self, path: Any, *rest: Any) -> None:
        """Record the path of a call that changes the mode, owner or times of a file or folder.

        Only the existence of the path is recorded, not a use of the file's content.
        """
        frame = sys._getframe(2)
        if isinstance(path, int) or frame.f_code.co_name == "touch":  # makes what is missing
            return
        name = absolute(path, rest[-1])
        if not is_system(name) and not _is_ours(frame):
            self.note(b"f" if exists(name) else b"m", name)

    def _note_file(self, path: str, kind: bytes = b"r") -> None:
        if _BYTECODE in path and path.endswith(".pyc"):
            path = _source_of(path)
        try:
            mode = plain_stat(path).st_mode
        except OSError:
            self.note(b"m", path)
            return
        if stat.S_ISREG(mode):
            self.note(kind, path)
            return
        self.note(b"f", path)
        if stat.S_ISDIR(mode) and realpath(path) != path:
            self.note(b"r", path)  # its links decide which folder it is

    def _on_enter(self, path: object) -> None:
        """Record a new working folder, and the symbolic links in its path."""
        if isinstance(path, (str, bytes, os.PathLike)):
            self._note_file(absolute(path))

    def _look_at_program(self, path: str) -> None:
        """Record an executed file, and the interpreter that the kernel loads for it.

        The modes of both files are recorded as well, since they decide whether the program may
        start.
        """
        for _ in range(_MAX_INTERPRETERS):
            if not path.startswith("/"):
                return
            self._note_file(path)
            self._note_file(path, b"e")
            path = os.fsdecode(interpreter(os.fsencode(path)))

    def _trace(
        self, *, children_only: bool = False, looks: bool = True, quietly: bool = False
    ) -> bool:
        """Have the fork server trace the files that machine code and child processes use.

        Returns False if the files cannot be traced. Unless `quietly`, the failure is then recorded
        as a reason why inputs may be missing. For the other parameters, see `Tracing.begin`.
        """
        failure = self._tracing.begin(children_only=children_only, looks=looks)
        if failure and not quietly:
            text = f"{self._name}: its files cannot be traced on this system ({failure})"
            self.note(b"u", text)
        return not failure

    def _on_import(self, _name: object, path: object = None, *_: object) -> None:
        if path:  # of a compiled extension, which may open files itself
            name = absolute(path)
            self._look_at(name)
            if not is_stdlib(name):
                installed = is_installed(name)
                self._trace(looks=not installed, quietly=installed)

    def _on_library(self, path: object, *_: object) -> None:
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if os.sep in text or (text and exists(absolute(text))):
            self._look_at(absolute(text))
        if text:
            self._trace()

    def _on_symbol(self, *asked: object) -> None:
        """Trace a program that looks up a function of a library, since the function may use files.

        If the function reads the environment, all variables are recorded as inputs. Look-ups in the
        interpreter itself, and by this package, are ignored.
        """
        interpreter = any(isinstance(part, ctypes.PyDLL) for part in asked)
        if interpreter or _is_ours(_caller(sys._getframe(2))):
            return
        if variables.FUNCTIONS.intersection(part for part in asked if isinstance(part, str)):
            self._note_variable("*")
        self._trace()

    def _on_database(self, path: object, *_: object) -> None:
        """Record that the program opens a database.

        The process is also traced from now on, since SQLite itself opens the files that a URI or an
        ``ATTACH`` statement names.
        """
        self._trace()
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if text and not text.startswith((":", "file:")):
            name = absolute(text)
            self._look_at(name)
            if not exists(name):
                self.note(b"w", name)

    def _on_start(self, path: object, _words: object, folder: object, env: object) -> None:
        self._on_enter(folder)
        self._on_spawn(path, None, env)

    def _on_spawn(self, path: object, _words: object = None, env: object = None) -> None:
        if env is None:  # else reading the variables for it was observed
            self._note_variable("*")
        if self._trace():
            return
        text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        folders = [""] if os.sep in text else os.get_exec_path()
        for folder in folders if text else ():
            found = absolute(os.path.join(folder, text))  # noqa: PTH118
            self._look_at_program(found)
            if exists(found):
                return

    def _on_list(self, path: object) -> None:
        frame = sys._getframe(2)
        self._list(path, frame, b"n" if frame.f_code.co_filename in _MODULES_ONLY else b"l")

    def _on_scan(self, path: object) -> None:
        """Record a folder whose listing also reveals the size and mode of its entries."""
        frame = sys._getframe(2)
        kinds_only = frame.f_code.co_filename in _LISTS_ONLY
        self._list(path, frame, b"l" if kinds_only else b"z")

    def _list(self, path: object, frame: FrameType, kind: bytes) -> None:
        if not isinstance(path, int):
            self._tracing.announce(absolute("." if path is None else path))
        if frame.f_code.co_filename == _SEARCH or _is_ours(frame):
            return  # an import looks only for certain names
        name = path_of(path) if isinstance(path, int) else absolute("." if path is None else path)
        if name is None:
            return
        try:
            plain_stat(name)
        except OSError:
            self.note(b"m", name)
        else:
            self.note(kind, name)


def _is_of(known: str | bytes, target: str) -> bool:
    """Tell whether the path of a record is `target`, or is below `target`."""
    path = known if isinstance(known, str) else os.fsdecode(known[1:])
    return path == target or path.startswith(f"{target}/")


def _caller(frame: FrameType) -> FrameType:
    """Return the frame outside of `ctypes` that looked up a function of a library."""
    while frame.f_back is not None and frame.f_code.co_filename in _CTYPES:
        frame = frame.f_back
    return frame


def _source_of(path: str) -> str:
    """Return the source file of a bytecode file if that source exists, else `path` itself."""
    try:
        source = importlib.util.source_from_cache(path)
    except (ValueError, NotImplementedError):
        return path
    return source if exists(source) else path


def _is_ours(frame: FrameType | None) -> bool:
    """Tell whether this package made a call, directly or through the standard library.

    Modules of this package that read the program's source are an exception: for their calls, the
    result is False, so that the calls count as the program's.
    """
    while frame is not None and frame.f_code.co_filename in _HELPERS:
        frame = frame.f_back
    if frame is None:
        return False
    name = frame.f_code.co_filename
    return name.startswith(_PACKAGE) and name not in _READS_PROGRAMS


def _origins(names: Iterable[str]) -> Iterable[str]:
    """Yield the paths of the files of modules, as the import system recorded them."""
    for name in names:
        module = sys.modules.get(name)
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        path = getattr(module, "__file__", None) if origin is None else origin
        if isinstance(path, str) and path.startswith("/"):
            yield path


_base: list[bytes] = []
_base_files: set[str] = set()


def base_records(*, anew: bool = False) -> bytes:
    """Return records of the files that this process read before it had a program.

    Call it before forking, so that each forked process need not make the records again.

    Parameters
    ----------
    anew : bool
        True if more modules have been imported since the last call.
    """
    if anew or not _base or (preloaded_searches() and b"\nv*" not in _base[0]):
        _base.clear()  # made before a framework was imported
        libraries.Loaded()  # making the first one is slow
        files = {*_origins(list(sys.modules)), *libraries.mapped(), sys.executable}
        _base_files.update(files)
        kept = sorted(path for path in files if not path.startswith(_PACKAGE))
        # A framework's machine code reads the environment while it is loaded, and no event reports
        # that.
        names = [*variables.AT_START, *([ALL_VARIABLES] if preloaded_searches() else [])]
        missed = [] if sys.flags.no_site else at_start()
        records = [f"r{path}" for path in kept] + [f"m{path}" for path in missed]
        records += [f"v{name}" for name in names]
        _base.append(b"\n".join(map(os.fsencode, records)))
    return _base[0]

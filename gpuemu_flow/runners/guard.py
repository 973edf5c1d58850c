"""Keep an op's process from reading the reference's files and the tool's own records.

An op that runs its reference, or reads the reference's outputs from the cache, always agrees with
it, which proves nothing. In the op's worker, Python's audit events (PEP 578) report every file that
is opened and every program that is started, before it happens. An action that touches a forbidden
path is refused and recorded, also in children that the process forks.

The guard is not complete. It does not see machine code that opens files itself (ctypes, C
extensions, SQLite's ATTACH), a started program whose arguments do not name the reference, or a copy
of the reference under another name.
"""

from __future__ import annotations

import _posixsubprocess
import json
import mmap
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NoReturn

from gpuemu_flow.runners.api import Program, RunError
from gpuemu_flow.runners.diagnose import shown_path
from gpuemu_flow.runners.imports import is_workspace_path
from gpuemu_flow.runners.mentions import Mentions, module_name
from gpuemu_flow.runners.plain_paths import is_folder, lexists, real_paths, realpath
from gpuemu_flow.runners.reference_calls import (
    Given,
    WatchedCall,
    calls_in,
    calls_of,
    is_compiled,
    is_same,
    resolved,
    watch,
)
from gpuemu_flow.runners.script_style import function_to_call
from gpuemu_flow.runners.stand_in import StandIn, StandInFinder

_HINT = (
    "compute without it; if both need the file, name it in the op's `shared` (for a module, an "
    "import statement of the op will do)"
)
CALL_HINT = "compute without it: an op that runs its reference agrees with it, right or wrong"
_RUNNING = frozenset({"calls", "is"})
"""Deeds by which an op runs its reference; by the other deeds, it reads the reference's files."""
_RECORD_BYTES = 4096
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_OTHERS_MEMORY = re.compile(r"/proc/(\d+)/(?:task/\d+/)?(?:mem|fd|map_files)(?:/|\Z)")
_OPENS_UNSEEN = re.compile(r"(?:.*[/.])?readline(?:\.[\w.-]+)?")  # its C code reads any text file
_INSTALLED = tuple(
    sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OWN_FOLDER = str(Path(__file__).parent) + os.sep


class ForbiddenAccessError(PermissionError):
    """Raised inside the op when the op touches a forbidden file."""


class Guard:
    """The list of files that one process must not touch, and its first violation.

    Parameters
    ----------
    program : Program
        The guard uses its `forbidden`, `read_only` and `forbidden_function`.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        paths = list(real_paths(program.forbidden))
        self._folders = tuple(path for path in paths if is_folder(path))
        self._files = frozenset(paths) - set(self._folders)
        self._read_only = frozenset(real_paths(program.read_only))
        self._names = frozenset(map(module_name, self._files))
        self._mentions = [(path, Mentions(path, program.root)) for path in paths]
        self._record = mmap.mmap(-1, _RECORD_BYTES)  # shared with children that are forked
        self._exempt = 0

    def install(self, on_setattr: Callable[..., None]) -> None:
        """Watch this process from now on; audit hooks cannot be removed.

        Parameters
        ----------
        on_setattr : callable
            Called when an attribute of a function or class is set, if Python raises an audit event
            for it.
        """
        checks: dict[str, Callable[..., None]] = {
            "open": self._on_open,
            "os.truncate": self._on_change,
            "os.remove": self._on_change,
            "os.chmod": self._on_change,
            "os.rename": self._on_change,
            "os.link": self._on_change,
            "os.symlink": self._on_symlink,
            "sqlite3.connect": self._on_change,
            "subprocess.Popen": self._on_program,
            "os.posix_spawn": self._on_program,
            "os.exec": self._on_program,
            "os.system": self._on_program,
            "import": self._on_import,
            "object.__setattr__": on_setattr,
        }

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event in checks:  # most events end here: even `id` raises one per call
                checks[event](*arguments)

        sys.meta_path.insert(0, StandInFinder(self))
        sys.modules.pop("readline", None)
        self._watch_fork_exec()
        sys.addaudithook(hook)

    def _watch_fork_exec(self) -> None:
        """Watch the function by which `subprocess` starts programs without an audit event."""
        start = _posixsubprocess.fork_exec

        def fork_exec(arguments: Any, executables: Any, *rest: Any) -> int:
            self._on_program(executables, arguments)
            return start(arguments, executables, *rest)

        _posixsubprocess.fork_exec = fork_exec

    def loaded(self, script: CodeType | None = None) -> None:
        """Refuse calls of the forbidden function from now on.

        That function is replaced by a stand-in in all modules of the workspace. Since other objects
        may still hold it, its calls are watched as well.

        Parameters
        ----------
        script : CodeType, optional
            The program's code if it is run anew in each call.

        Raises
        ------
        ForbiddenAccessError
            The op is the forbidden function.
        """
        path, name = forbidden_function(self._program)
        if not name:
            return
        place = f"{path}:{name}"
        stand_in = StandIn(lambda: self.refuse("calls", place))
        modules = list(self._workspace_modules())
        op = self._op(modules)
        calls = calls_in(script, name) if script is not None and self._is_program(path) else []
        *above, last = name.split(".")
        for module in modules:
            if realpath(str(module.__file__)) != path:
                continue
            owner = resolved(module, above)
            found = getattr(owner, last, None)
            if not callable(found) or isinstance(found, StandIn):
                continue
            if op is not None and is_same(op, found):
                self.refuse("is", place)
            calls += self._calls_of(found, name, module)
            setattr(owner, last, stand_in)
            # A function of a library may be the reference, and the op may use it elsewhere.
            if getattr(found, "__module__", None) == module.__name__:
                for user in modules:
                    for alias in [n for n, value in list(vars(user).items()) if value is found]:
                        setattr(user, alias, stand_in)
        if not is_compiled(op):
            watch(calls, lambda: self.refuse("calls", place))

    def _is_program(self, path: str) -> bool:
        return realpath(self._program.path) == path

    def _op(self, modules: Iterable[ModuleType]) -> Any:
        """Return the op's function or class; None for a script."""
        program = self._program
        for module in modules if program.function else ():
            file = realpath(str(module.__file__))
            if module.__name__ == program.module or (program.path and self._is_program(file)):
                return resolved(module, program.function.split("."))
        return None

    def _calls_of(self, found: Any, name: str, module: ModuleType) -> list[WatchedCall]:
        """Return the calls of the forbidden function; see `reference_calls.calls_of`."""
        program = self._program

        def is_own(function: FunctionType) -> bool:
            file = realpath(function.__code__.co_filename)
            return function.__module__ == module.__name__ or is_workspace_path(file, program.root)

        given = Given(program.input_names, program.kwargs)
        return calls_of(found, name, given, is_own)

    def _workspace_modules(self) -> Iterator[ModuleType]:
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            named = isinstance(module, ModuleType) and isinstance(file, str)
            if named and is_workspace_path(str(file), self._program.root):
                yield module

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """Let this thread use any file during the context, in which no code of the program runs."""
        self._exempt = threading.get_ident()
        try:
            yield
        finally:
            self._exempt = 0

    def violation(self) -> RunError | None:
        """Return the first violation by this process or its children; None if there is none."""
        if not self._record[0]:
            return None
        text = bytes(self._record).partition(b"\0")[0]
        try:
            told: Mapping[str, Any] = json.loads(text)
            message, file, line = str(told["message"]), str(told["file"]), int(told["line"])
            hint = CALL_HINT if told["runs"] is True else _HINT
        except (ValueError, KeyError, TypeError):
            message, file, line = "the op reads what it must not, and has overwritten what", "", 0
            hint = _HINT
        return RunError("op-reads-reference", message, hint, file=file, line=line)

    def refuse(self, deed: str, path: str) -> NoReturn:
        """Record a violation and raise an error in the program.

        Raises
        ------
        ForbiddenAccessError
        """
        own = any(_is_below(path, folder) for folder in self._folders)
        whose = "a file of the tool's own" if own else "its reference"
        message = f"the op {deed} {whose}, {shown_path(path, self._program.root)}"
        file, line = self._place(sys._getframe(1))
        runs = deed in _RUNNING
        record = {"message": message[:1000], "file": file[:1000], "line": line, "runs": runs}
        told = json.dumps(record).encode()
        if not self._record[0]:
            self._record[: len(told)] = told
        raise ForbiddenAccessError(message)

    def _place(self, frame: FrameType | None) -> tuple[str, int]:
        """Return file and line of the innermost frame in the workspace, or "" and 0."""
        root = self._program.root
        while frame is not None:
            path = frame.f_code.co_filename
            if is_workspace_path(path, root) and not path.startswith(_OWN_FOLDER):
                return shown_path(path, root), frame.f_lineno
            frame = frame.f_back
        return "", 0

    def is_reference(self, path: str) -> bool:
        """Tell whether a file belongs to the reference."""
        return realpath(path) in self._files

    def stands_in_for(self, module: str) -> bool:
        """Tell whether a module may be one of the reference, judged by the module's name."""
        return module.rpartition(".")[2] in self._names

    def _forbidden(self, path: str) -> str:
        """Return the forbidden path that `path` leads to, or an empty string."""
        real = realpath(path)
        if real in self._files or any(_is_below(real, folder) for folder in self._folders):
            return real
        head, name = os.path.split(real)
        if name.endswith(".pyc") and os.path.basename(head) == "__pycache__":  # noqa: PTH119
            source = str(Path(head).with_name(name.partition(".")[0] + ".py"))
            if source in self._files:
                return source
        if not os.path.isabs(path) and not lexists(path):  # noqa: PTH117
            return self._elsewhere(Path(os.path.normpath(path)))
        return ""

    def _elsewhere(self, relative: Path) -> str:
        """Return a forbidden path that `relative` may mean, or an empty string.

        The folder from which `relative` starts is unknown. Therefore, `relative` may mean each
        forbidden file whose path ends with it, and each forbidden folder whose name is in it.
        """
        for file in self._files:
            if Path(file).parts[-len(relative.parts) :] == relative.parts:
                return file
        return next((f for f in self._folders if Path(f).name in relative.parts), "")

    def _look(self, path: object, *, changes: bool) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)) or self._exempt == threading.get_ident():
            return  # a descriptor, or our own work
        try:
            text = os.fsdecode(path)
            if text.startswith(_INSTALLED) and ".." not in text:
                return
            found = self._forbidden(text)
            kept = changes and realpath(text) in self._read_only
        except (OSError, ValueError):
            return  # no path; the call itself will say so
        if found:
            self.refuse("changes" if changes else "opens", found)
        if kept:
            self.refuse("changes", realpath(text))
        others = _OTHERS_MEMORY.match(text)
        if others and int(others[1]) != os.getpid():
            self.refuse("opens the memory of another process, perhaps of", "worker")

    def _on_open(self, path: object, mode: object, flags: object) -> None:
        self._look(path, changes=isinstance(flags, int) and bool(flags & _WRITING))

    def _on_change(self, path: object, second: object = None, *_: object) -> None:
        self._look(path, changes=True)
        self._look(second, changes=True)

    def _on_symlink(self, source: object, target: object, *_: object) -> None:
        self._look(target, changes=True)
        if isinstance(source, (str, bytes)) and isinstance(target, (str, bytes)):
            folder = Path(os.fsdecode(target)).parent
            self._look(str(folder / os.fsdecode(source)), changes=True)

    def _on_import(self, name: object, path: object = None, *_: object) -> None:
        if any(isinstance(word, str) and _OPENS_UNSEEN.fullmatch(word) for word in (name, path)):
            raise ImportError("an op has no terminal to read lines from", name=str(name))

    def _on_program(self, *arguments: object) -> None:
        words = [_text(word) for argument in arguments[:2] for word in _flat(argument)]
        for path, mentions in self._mentions:
            if any(map(mentions.in_word, words)):
                self.refuse("starts a program on", path)
        for option, word in pairwise(words):
            if option == "-m" and self.stands_in_for(word):
                self.refuse("starts a program on", word)


def forbidden_function(program: Program) -> tuple[str, str]:
    """Return the file and the name of the function that a program must not call, or ("", "")."""
    path, _, name = program.forbidden_function.rpartition(":")
    if path and not name:  # a script
        try:
            name = function_to_call(Path(path).read_bytes(), path)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return "", ""
    return path, name


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)


def _flat(argument: object) -> Iterable[object]:
    if isinstance(argument, (list, tuple)):
        return argument
    return () if argument is None else (argument,)


def _text(word: object) -> str:
    return os.fsdecode(word) if isinstance(word, (str, bytes, os.PathLike)) else ""

"""Describe a client: its process, and the version of the code whose outputs it submits."""

from __future__ import annotations

import functools
import getpass
import hashlib
import inspect
import linecache
import os
import pwd  # noqa: F401 - what getpass loads late, which a fork meanwhile would not survive
import secrets
import socket
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from gpuemu_flow.client.imports import Import, file_of, files_by_path, imports_of, modules_of
from gpuemu_flow.installed import is_installed
from gpuemu_flow.types import Json
from gpuemu_flow.wire.code_files import MAX_FILES, is_plain

MAX_TEXT = 200
_MOST_OTHERS = 16 * MAX_FILES
_process: dict[int, str] = {}

_users: dict[int, str] = {}
# The system's library for users has locks, which a child would wait for in vain if its parent was
# forked while another thread was in there. A handler of a signal may fork in here: reentrant.
_asking = threading.RLock()
os.register_at_fork(
    before=_asking.acquire, after_in_parent=_asking.release, after_in_child=_asking.release
)


def about_me() -> dict[str, Json]:
    """Describe this process for the daemon: random id, program name, process id, host and user."""
    pid = os.getpid()
    if pid not in _process:  # a forked child is another client
        _process[pid] = secrets.token_hex(8)
    name = _name_of(sys.argv[0] if sys.argv and sys.argv[0] else sys.executable)
    return {
        "id": _process[pid],
        "name": name or "python",
        "pid": pid,
        "host": _printable(socket.gethostname()),
        "user": _printable(_user()),
    }


@functools.lru_cache(maxsize=1)
def _name_of(program: str) -> str:
    return _printable(Path(program).name)


def code_of(function: Callable[..., Any]) -> dict[str, Json]:
    """Identify a function's code, as a mapping with the keys below.

    - ``origin``: the function's file and name.
    - ``files``: the digest of the function's file, and of each of the user's files that it imports,
      directly or not.
    - ``code``: one digest over all of these files.

    A function of a notebook, for example, has no file. Then ``code`` covers the function's source,
    and the files that its globals and the notebook's import statements lead to. If neither source
    nor files can be found, the mapping is empty.

    A partial, a method, a closure or a callable object also depends on values from the code that
    made it. For these, ``code`` and ``files`` also cover the files of the caller of this package.
    """
    found, given = function, False
    while callable(wrapped := getattr(found, "func", None)):  # of `functools.partial`
        found, given = wrapped, True
    try:
        found = inspect.unwrap(found)
    except ValueError:
        return {}
    code = getattr(found, "__code__", None)
    if not isinstance(code, CodeType):
        kind = found if inspect.isclass(found) else type(found)
        described = _of_module(sys.modules.get(kind.__module__), kind.__qualname__)
        return _with_caller(described)
    name = getattr(found, "__qualname__", code.co_name)
    spaces = getattr(found, "__globals__", {})
    described = _of_namespace(code.co_filename, spaces, name, code)
    given = given or hasattr(found, "__self__") or bool(code.co_freevars)
    return _with_caller(described) if given else described


def _with_caller(described: dict[str, Json]) -> dict[str, Json]:
    """Add the files of the code that called this package to a function's description.

    The description is returned unchanged if it is empty, if these files are in it already, or if it
    would then contain more than `MAX_FILES` files.
    """
    caller = code_of_caller()
    files = {**described.get("files", {}), **caller.get("files", {})}
    if not described or len(files) > MAX_FILES or files == described["files"]:
        return described
    both = hashlib.sha256(f"{described['code']}{caller['code']}".encode())
    return {**described, "code": both.hexdigest(), "files": files}


CALLER: ContextVar[dict[str, Json] | None] = ContextVar("gpuemu_caller", default=None)
"""Result of `code_of_caller` in a thread whose stack does not contain the caller."""


def code_of_caller() -> dict[str, Json]:
    """Identify the code of the user's file that called this package; empty if there is none.

    The result has the keys that `code_of` describes.
    """
    known = CALLER.get()
    if known is not None:
        return known
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            return _of_namespace(frame.f_code.co_filename, frame.f_globals, "")
        frame = frame.f_back
    return {}


@functools.lru_cache(maxsize=16 * MAX_FILES)
def is_own(path: str | None) -> bool:
    """Tell whether a file is the user's.

    Files of Python, of this package and of installed packages are not the user's.
    """
    if not path or path.startswith(_NOT_OWN):
        return False
    return not is_installed(path)


def _not_own() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    ours = f"{Path(__file__).resolve().parent.parent}{os.sep}"
    return (ours, *{f"{paths[name]}{os.sep}" for name in names}, "<frozen")


_NOT_OWN = _not_own()  # at once: it loads a module, which a fork meanwhile would not survive


def _of_module(module: ModuleType | None, name: str) -> dict[str, Json]:
    path = getattr(module, "__file__", None)
    return _of_namespace(path or "", vars(module), name) if module is not None else {}


def _of_namespace(
    path: str, names: Mapping[str, Any], name: str, code: CodeType | None = None
) -> dict[str, Json]:
    """Identify code by its file and the files that it imports.

    If there is no file, the source of `code` takes its place. `names` is the code's namespace, and
    `name` the name of the function.
    """
    own = _read(path, names)
    digests = {} if own.digest is None else {path: own.digest}
    source = ""
    if own.digest is None and code is not None:
        with suppress(OSError, TypeError):
            source = inspect.getsource(code)
    imports = own.imports if own.digest is not None else _imports_in_memory(source)
    waiting = [_Place(names, imports, _package_of(names), path)]
    while waiting and len(digests) < MAX_FILES:
        for file, place in _files_from(waiting.pop()):
            if not file or file in digests or not is_own(file):
                continue
            read = _read(file, place.names)
            if read.digest is not None and len(digests) < MAX_FILES:
                digests[file] = read.digest
                waiting.append(place._replace(imports=read.imports, file=file))
    if not (digests or source):
        return {}
    origin = ":".join(filter(None, (path if own.digest is not None else "", name))) or path
    folder = "" if all(file.startswith(os.sep) for file in digests) else str(Path.cwd())
    return _described(origin, tuple(sorted(digests.items())), folder, source)


class _Place(NamedTuple):
    """A module, or code without a file, whose imports are to be followed.

    ``names`` is its namespace, which is empty if the module is not loaded.
    """

    names: Mapping[str, Any]
    imports: tuple[Import, ...] = ()
    package: str = ""
    file: str = ""


def _files_from(place: _Place) -> Iterator[tuple[str | None, _Place]]:
    """Yield the files to which a module's values and import statements lead.

    A value leads to the module that defines it. Constants, such as numbers, do not show where they
    were defined, so import statements are followed, too.

    Yields
    ------
    file : str or None
        None for a module whose file is not found.
    found : _Place
        The module of this file, with `imports` still empty.
    """
    named = modules_of(place.imports, place.package)
    loaded = list(map(sys.modules.get, named))
    for by_path in files_by_path(place.imports, place.file):
        yield by_path, _Place({})
    by_file: dict[str, ModuleType] = {}
    module: Any
    for module in (*_modules_in(place.names), *loaded):
        # A plain module that is asked for what it lacks writes a message about it.
        plain = type(module) is ModuleType
        file = module.__dict__.get("__file__") if plain else getattr(module, "__file__", None)
        if isinstance(file, str):
            by_file.setdefault(file, module)
    for file in by_file.keys() - _others:  # at nearly every call, no other file is left
        if is_own(file):
            yield _loaded(by_file[file])
        elif len(_others) < _MOST_OTHERS:
            _others.add(file)
    for name, module in zip(named, loaded, strict=True):
        if module is None and _may_be_own(name):  # it may be loaded by the time of the call
            found = file_of(name)
            inside = name if (found or "").endswith("__init__.py") else name.rpartition(".")[0]
            yield found, _Place({}, package=inside)


_others: set[str] = set()
"""Files for which `is_own` returned False. Its result for a file never changes."""


def _loaded(module: ModuleType) -> tuple[str | None, _Place]:
    names = getattr(module, "__dict__", {})  # a program may replace a module by any object
    return getattr(module, "__file__", None), _Place(names, package=_package_of(names))


def _may_be_own(name: str) -> bool:
    """Tell whether a name could be that of a user's module that is not loaded."""
    parent, _, last = name.rpartition(".")
    package = sys.modules.get(parent)
    if package is None:
        return True
    if last in getattr(package, "__dict__", {}):
        return False
    file = getattr(package, "__file__", None)
    return hasattr(package, "__path__") and (not file or is_own(file))


def _package_of(names: Mapping[str, Any]) -> str:
    """Return the package of a module, given the module's namespace; empty if it is in none."""
    package = names.get("__package__")
    return package if isinstance(package, str) else ""


def _imports_in_memory(source: str) -> tuple[Import, ...]:
    """List the imports of a source text, and of all code entered in a notebook or interpreter."""
    found = list(imports_of(source))
    entries: list[tuple[Any, ...]] = list(linecache.cache.values())
    for entry in entries:
        # A text that was never a file has no time of modification.
        if len(entry) == _READ_TEXT and entry[1] is None:
            found += imports_of("".join(entry[2]))
    return tuple(dict.fromkeys(found))


_READ_TEXT = 4  # items of an entry of `linecache`; one that is still to be read has fewer


_WITHOUT_HOME = {bool, bytes, dict, float, frozenset, int, list, set, str, tuple, type(None)}
"""Types whose values have no `__module__`, so that looking it up would be in vain."""


def _modules_in(names: Mapping[str, Any]) -> list[ModuleType]:
    """List the modules in a namespace, and the modules that define the other values in it."""
    modules: dict[int, ModuleType] = {}
    homes = dict[str, None]()
    for value in list(names.values()):
        if type(value) in _WITHOUT_HOME:
            continue
        if isinstance(value, ModuleType):
            modules[id(value)] = value
        else:
            home = getattr(value, "__module__", None)
            if isinstance(home, str):
                homes[home] = None
    found = [sys.modules.get(home) for home in homes]
    return [*modules.values(), *[module for module in found if module is not None]]


@functools.lru_cache(maxsize=16)
def _described(
    origin: str, digests: tuple[tuple[str, str], ...], folder: str, source: str
) -> dict[str, Json]:
    """Return the description of a file and its imports. It is cached and must not be changed.

    Parameters
    ----------
    origin : str
        File and name of the function.
    digests : tuple of (str, str)
        Files and their digests, sorted by file.
    folder : str
        The current folder if any path is relative, else empty. It is only part of the cache key.
    source : str
        Code that is in no file.
    """
    whole = hashlib.sha256("".join([source, *(digest for _, digest in digests)]).encode())
    files = {str(Path(file).absolute()): digest for file, digest in digests}
    return {
        "origin": _printable(origin),
        "code": whole.hexdigest(),
        "files": {file: digest for file, digest in files.items() if is_plain(file)},
    }


class _Read(NamedTuple):
    """The import statements of a file, and its digest (None if it cannot be read)."""

    digest: str | None
    imports: tuple[Import, ...] = ()


_known: dict[str, tuple[object, _Read]] = {}


def _read(path: str, names: Mapping[str, Any]) -> _Read:
    """Read a module's file; the result is cached until the module is reloaded.

    The file is first read soon after the module was imported. Because of the cache, the result
    still describes the imported code if the file is edited later. A reload is detected by a new
    ``__spec__`` in the module's namespace `names`.
    """
    loaded = names.get("__spec__")
    known = _known.get(path)
    if known is not None and known[0] is loaded:
        return known[1]
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError):
        found = _Read(None)
    else:
        found = _Read(hashlib.sha256(content).hexdigest(), imports_of(content))
    if len(_known) >= 4 * MAX_FILES:
        _known.clear()
    _known[path] = (loaded, found)
    return found


def _user() -> str:
    number = os.getuid()
    with _asking:
        if number not in _users:
            try:
                _users[number] = getpass.getuser()
            except (KeyError, OSError):
                _users[number] = str(number)
        return _users[number]


def _printable(text: str) -> str:
    if text.isprintable():  # half a surrogate pair is not
        return text[-MAX_TEXT:]
    kept = "".join(c for c in text if c.isprintable() and not "\ud800" <= c <= "\udfff")
    return kept[-MAX_TEXT:]

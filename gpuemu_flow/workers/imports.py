"""Load Python code in workers: the workspace's, hidden modules, and preloaded frameworks."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import site
import sys
import sysconfig
import types
from collections.abc import Callable, Mapping
from errno import EACCES
from importlib import machinery, util
from pathlib import Path
from typing import Any, NoReturn

from gpuemu_flow.model.errors import FlowError, did_you_mean
from gpuemu_flow.model.installed import is_installed
from gpuemu_flow.workers.api import OpError, Program, RunError
from gpuemu_flow.workers.sandbox.spec import is_below


def is_workspace_path(path: str, root: str) -> bool:
    """Tell whether a path is the user's own code: in the workspace, and not installed. Installed
    packages and Python itself may also be in the workspace."""
    return is_below(path, (root,)) and not is_installed(path)


_transform: Callable[[bytes], bytes] | None = None


def set_source_transform(transform: Callable[[bytes], bytes] | None) -> None:
    """Apply `transform` to the source of every workspace module loaded from now on."""
    global _transform  # noqa: PLW0603 - import hooks have no other way to be told
    _transform = transform


def _transformed(source: bytes) -> bytes:
    return source if _transform is None else _transform(source)


_PACKAGE = str(Path(__file__).parent.parent)
_PACKAGE_NAME = __package__.partition(".")[0]
_usual_code = machinery.SourceFileLoader.get_code


def _code_from_source(loader: Any, fullname: str) -> types.CodeType | None:
    """Return a module's code, compiled from its source, whichever finder found the module. Python
    considers a bytecode file current if it records the source's size and modification time, in
    whole seconds. After an edit that changes neither, the old code would run, and its results would
    be stored under the key of the new code. Modules of installed packages and of gpuemu_flow may be
    read as bytecode; they are not transformed."""
    path = loader.get_filename(fullname)
    absolute = os.path.abspath(path)  # noqa: PTH100 - hot
    if is_installed(absolute) or is_below(absolute, (_PACKAGE,)):
        return _usual_code(loader, fullname)
    source = _read_module(loader, path)
    if is_below(absolute, (_root,)):
        source = _transformed(source)
    code: types.CodeType = loader.source_to_code(source, path)
    return code


def _read_module(loader: Any, path: str) -> bytes:
    """Return the source of a module; where the sandbox hides it, of a module that holds nothing. So
    an op can import a package whose ``__init__`` imports the hidden reference, too."""
    try:
        source: bytes = loader.get_data(path)
    except PermissionError:
        if not _fenced:
            raise
        return _hidden_module(path)
    return source


class _AnyName:
    """The names in a folder, for a finder that looks for each file instead of listing the folder.
    The kernel then reports exactly which names an import looked for: a new file with any other name
    does not matter to the program."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __contains__(self, name: str) -> bool:
        return "." in name or os.path.lexists(f"{self._folder}/{name}")


_list_names = machinery.FileFinder._fill_cache  # type: ignore[attr-defined]


def _look_for_names(finder: Any) -> None:
    """Replace `FileFinder._fill_cache`; a package changes only as a whole, so list its folders."""
    if is_installed(finder.path) and not finder.path.endswith("-packages"):
        _list_names(finder)
    else:
        finder._path_cache = _AnyName(finder.path)


_finders_are_fresh = False
_fenced, _root = False, ""


def forget_folders() -> None:
    """Make import finders list each folder again, in all processes forked from this one. Call this
    again if this process imports anything after the call, because an import makes the finders
    remember listings of folders."""
    global _finders_are_fresh  # noqa: PLW0603 - a fact on the process's finders
    importlib.invalidate_caches()
    _finders_are_fresh = True


def enter_workspace(program: Program) -> None:
    """Set this process up for the workspace: working directory, ``sys.path``, import rules, env.
    Raises OpError: ``op-not-loadable``: the root is no directory."""
    global _fenced, _root
    _fenced, _root = program.sandbox is not None, program.root
    os.environ.update(program.env)
    try:
        os.chdir(program.root)
    except OSError as error:
        message = f"cannot enter the workspace root: {error.strerror}"
        raise OpError(RunError("op-not-loadable", message, file=program.root)) from None
    own = [str(Path(program.path).parent)] if program.path else []
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    # The interpreter took these to start from the folder that it was started in.
    relative = [os.path.normpath(os.path.join(program.root, e)) for e in given if e[0] != os.sep]  # noqa: PTH118
    sys.path[:] = list(dict.fromkeys([*own, program.root, *relative, *filter(None, sys.path)]))
    machinery.SourceFileLoader.get_code = _code_from_source  # type: ignore[method-assign, assignment]
    if sys.platform == "linux":  # elsewhere, file systems may ignore case
        machinery.FileFinder._fill_cache = _look_for_names  # type: ignore[attr-defined]
    if not _finders_are_fresh:
        importlib.invalidate_caches()


def read_source(program: Program) -> bytes:
    """Return the program file's bytes; raise OpError ``op-not-loadable`` if it cannot be read."""
    try:
        return _transformed(Path(program.path).read_bytes())
    except OSError as error:
        message = f"cannot read {program.path}: {error.strerror}"
        raise OpError(RunError("op-not-loadable", message, file=program.path)) from None


def load_module(program: Program) -> types.ModuleType:
    """Import the program's module, from its file or by its dotted name."""
    if not program.path:
        return importlib.import_module(program.module)
    # The stem alone may be the name of an installed package.
    module = types.ModuleType(f"gpuemu_program_{Path(program.path).stem}")
    module.__file__ = program.path
    sys.modules[module.__name__] = module
    code = compile(read_source(program), program.path, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - running the user's op is this tool's work
    return module


def load_function(program: Program) -> Callable[..., Any]:
    """Return the function that a program runs; if `loads` is set, call the loader to get it. Raises
    OpError: ``op-not-loadable``: no such name, or not callable. Raises BaseException: Whatever the
    module raises while it is loaded."""
    found: Any = load_module(program)
    module = found
    where = program.path or program.module
    for name in program.function.split("."):
        found = getattr(found, name, None)
    if program.loads and callable(found):
        found = found(program.loads)
        if not callable(found):
            message = f"{program.function!r} returned no function for {program.loads}"
            raise OpError(RunError("op-not-loadable", message, file=program.path))
    if not callable(found):
        message = f"{where} defines no callable {program.function!r}"
        own = [
            name
            for name, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        hint = str(did_you_mean(program.function, own))  # without the edit, which is not sent
        raise OpError(RunError("op-not-loadable", message, hint, file=program.path))
    function: Callable[..., Any] = found
    return function


# Choose the framework that a program's fork server imports before it forks workers.


FRAMEWORKS = ("torch",)
"""Packages whose import starts no thread, since a process with threads cannot be forked."""

_SUFFIXES = tuple(machinery.all_suffixes())


def framework_of(program: Program) -> str:
    """Return the framework that a program's fork server should import; empty for none. The result
    is empty, too, if a module in the program's folders has the same name as an installed or
    standard module. If the framework has already imported the installed or standard module, a
    program that runs in the same process gets this module instead of its own."""
    if program.framework not in FRAMEWORKS or program.isolation == "spawn":
        return ""
    if program.python or program.kind == "command" or _hides_modules(program):
        return ""
    return program.framework


def identity(framework: str) -> str:
    """Return the path, modification time and size of an installed package's ``__init__.py``. Empty
    if the package is not installed."""
    for folder in _installed_folders():
        path = f"{folder}/{framework}/__init__.py"
        try:
            found = os.stat(path)  # noqa: PTH116 - asked for each worker
        except OSError:
            continue
        return f"{path}:{found.st_mtime_ns}:{found.st_size}"
    return ""


def _hides_modules(program: Program) -> bool:
    """Return True if a module in the program's folders has the name of a library module."""
    given: Mapping[str, str] = {**os.environ, **program.env}
    named = filter(None, given.get("PYTHONPATH", "").split(os.pathsep))
    own = [os.path.dirname(program.path)] if program.path else []  # noqa: PTH120
    folders = {os.path.join(program.root, folder) for folder in (*own, program.root, *named)}  # noqa: PTH118
    used = _names_in_use()
    return any(
        not used.isdisjoint(_module_names(folder)) for folder in folders if not is_installed(folder)
    )


def _module_names(folder: str) -> set[str]:
    """Return the names of the modules and packages that a folder may hold."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.is_dir()) for entry in entries]
    except OSError:
        return set()
    return {
        name.partition(".")[0] for name, is_folder in found if is_folder or name.endswith(_SUFFIXES)
    }


def _installed_folders() -> list[str]:
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    folders += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return list(dict.fromkeys(folders))


@functools.cache
def _names_in_use() -> frozenset[str]:
    """Return the names of all modules of the standard library and of installed packages."""
    names = set(sys.stdlib_module_names)
    for folder in _installed_folders():
        names |= _module_names(folder)
    return frozenset(names - {"", _PACKAGE_NAME, "__pycache__"})


# Stand-ins for the objects of hidden modules.


class _Hidden:
    """In place of an object of a hidden module; using it raises PermissionError."""

    def __init__(self, path: str) -> None:
        self.__dict__["_path"] = path

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # `inspect` and `functools` look for these
            raise AttributeError(name)
        raise _refused(self.__dict__["_path"])


def _use(self: _Hidden, *_: object, **__: object) -> NoReturn:
    raise _refused(self.__dict__["_path"])


_USES = (
    "call setattr array float int index iter len getitem contains bool neg abs eq ne "
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow "
    "matmul rmatmul lt le gt ge"
)
for _name in _USES.split():
    setattr(_Hidden, f"__{_name}__", _use)


def hidden(name: str, path: str) -> _Hidden:
    """Return what stands for an object of a hidden module; its `__getattr__`."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Hidden(path)


def _hidden_module(path: str) -> bytes:
    lines = "def __getattr__(name):\n    from {} import hidden\n    return hidden(name, {!r})\n"
    return lines.format(__name__, path).encode()


def _refused(path: str) -> PermissionError:
    return PermissionError(EACCES, "hidden from the op", path)


# Import a framework once in a fork server, instead of in each worker forked from it.


_TASKS = Path("/proc/self/task")


class PreloadError(Exception):
    """Raised if a package cannot be imported here; this process must not fork workers any more."""


_names: frozenset[str] = frozenset()


def preloaded_names() -> frozenset[str]:
    """Return the top-level modules that `preload` imported, or looked for in vain. It did so in
    this process or in its parent process, and not in a program's own folders."""
    return _names


class _NotFound:
    """The last import finder, which is asked only for modules that no other one has found."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        self.names.add(name)


def prepare_gpu(*, torch: bool) -> None:
    """Import the emulated GPU, and build what it consists of: workers could not write it. If that
    is impossible, each worker says why."""
    gpu = importlib.import_module("gpuemu_flow.workers.gpu")
    with contextlib.suppress(FlowError):
        gpu.build(torch=torch)


def preload(framework: str, *, gpu: bool = False) -> None:
    """Import an installed package in this process, which is going to fork workers. Raises
    PreloadError: The package is not installed, or its import failed, loaded other code or started a
    thread."""
    global _names  # noqa: PLW0603 - inherited by all processes that are forked
    before, path = set(sys.modules), list(sys.path)
    sys.path[:] = [entry for entry in path if is_installed(entry)]
    sys.path_importer_cache.clear()
    missing = _NotFound()
    try:
        origin = getattr(util.find_spec(framework), "origin", None)
        if not isinstance(origin, str) or not is_installed(origin):
            raise PreloadError(f"{framework} is not installed as a package")
        sys.meta_path.append(missing)
        if gpu:
            device = importlib.import_module("gpuemu_flow.emulator.host.torch_device")
            device.import_torch()
        else:
            importlib.import_module(framework)
    except PreloadError:
        raise
    except BaseException as error:  # a broken package may raise anything
        raise PreloadError(f"{type(error).__name__}: {error}") from None
    finally:
        if missing in sys.meta_path:
            sys.meta_path.remove(missing)
        sys.path[:] = path
        sys.path_importer_cache.clear()
    new = set(sys.modules) - before
    _demand_installed(new)
    if len(os.listdir(_TASKS)) > 1:  # noqa: PTH208
        raise PreloadError(f"{framework} starts threads")
    _names = frozenset(name for name in new | missing.names if "." not in name)


def _demand_installed(modules: set[str]) -> None:
    """Raise PreloadError if any of the modules belongs to a workspace."""
    ours = sys.modules[_PACKAGE_NAME].__path__[0] + os.sep
    for name in modules:
        origin = getattr(sys.modules.get(name), "__file__", None)
        # `multiprocessing` enters the main module, which is ours, under another name.
        if not isinstance(origin, str) or origin.startswith(ours):
            continue
        if origin.startswith("/") and not is_installed(origin):
            raise PreloadError(f"{name} was loaded from {origin}")

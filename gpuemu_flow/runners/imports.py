"""Find and load the workspace's Python code inside a worker, never from stale bytecode."""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable
from importlib import machinery
from pathlib import Path
from typing import Any

from gpuemu_flow.errors import did_you_mean
from gpuemu_flow.installed import is_installed
from gpuemu_flow.runners.api import OpError, Program, RunError

_OWN = str(Path(__file__).resolve().parents[1])


def is_workspace_path(path: str, root: str) -> bool:
    """Tell whether a path is the user's own code: in the workspace, and not installed.

    Installed packages and Python itself may also be in the workspace.
    """
    if not _is_below(path, root):
        return False
    return not is_installed(path)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


_transform: Callable[[bytes], bytes] | None = None


def set_source_transform(transform: Callable[[bytes], bytes] | None) -> None:
    """Apply `transform` to the source of every workspace module loaded from now on."""
    global _transform  # noqa: PLW0603 - import hooks have no other way to be told
    _transform = transform


def _transformed(source: bytes) -> bytes:
    return source if _transform is None else _transform(source)


class _FreshLoader(machinery.SourceFileLoader):
    """Loads workspace modules from their source, never from bytecode.

    Python considers a bytecode file current if it records the source's size and modification time,
    in whole seconds. After an edit that changes neither, the old code would run, and its results
    would be stored under the key of the new code.
    """

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        # A checkout of this package may be the workspace. Its own modules are not transformed,
        # since those that make the shadow would be needed to load themselves.
        absolute = os.path.abspath(path)  # noqa: PTH100 - hot
        own = _is_below(absolute, _OWN) or _is_below(absolute, _PACKAGE)
        return self.source_to_code(source if own else _transformed(source), path)


_PACKAGE = str(Path(__file__).parent.parent)
_usual_code = machinery.SourceFileLoader.get_code


def _code_from_source(loader: Any, fullname: str) -> types.CodeType | None:
    """Return a module's code, whichever finder found the module.

    Modules of installed packages and of gpuemu_flow may be read as bytecode. Any other module is
    compiled from its source.
    """
    path = loader.get_filename(fullname)
    absolute = os.path.abspath(path)  # noqa: PTH100 - hot
    if is_installed(absolute) or _is_below(absolute, _PACKAGE):
        return _usual_code(loader, fullname)
    code: types.CodeType = loader.source_to_code(loader.get_data(path), path)
    return code


def _finder_hook(root: str) -> Callable[[str], machinery.FileFinder]:
    details: list[tuple[type[Any], list[str]]] = [
        (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
        (_FreshLoader, machinery.SOURCE_SUFFIXES),
        (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
    ]

    def hook(path: str) -> machinery.FileFinder:
        folder = path or str(Path.cwd())
        if not is_workspace_path(folder, root) or not Path(folder).is_dir():
            raise ImportError(f"not the workspace's own: {path}", path=path)
        return machinery.FileFinder(folder, *details)

    return hook


class _AnyName:
    """The names in a folder, for a finder that looks for each file instead of listing the folder.

    The kernel then reports exactly which names an import looked for: a new file with any other name
    does not matter to the program.
    """

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


def forget_folders() -> None:
    """Make import finders list each folder again, in all processes forked from this one.

    Call this again if this process imports anything after the call, because an import makes the
    finders remember listings of folders.
    """
    global _finders_are_fresh  # noqa: PLW0603 - a fact on the process's finders
    importlib.invalidate_caches()
    _finders_are_fresh = True


def enter_workspace(program: Program) -> None:
    """Set this process up for the workspace: working directory, ``sys.path``, import rules, env.

    Raises OpError: ``op-not-loadable``: the root is no directory.
    """
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
    sys.path_hooks.insert(0, _finder_hook(program.root))
    # For files loaded by their path, relative entries of sys.path, and folders outside of the root.
    machinery.SourceFileLoader.get_code = _code_from_source  # type: ignore[method-assign, assignment]
    if sys.platform == "linux":  # elsewhere, file systems may ignore case
        machinery.FileFinder._fill_cache = _look_for_names  # type: ignore[attr-defined]
    for path in list(sys.path_importer_cache):
        if is_workspace_path(path, program.root):
            del sys.path_importer_cache[path]
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
    """Return the function that a program runs; if `loads` is set, call the loader to get it.

    Raises OpError: ``op-not-loadable``: no such name, or not callable. Raises BaseException:
    Whatever the module raises while it is loaded.
    """
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
        hint = did_you_mean(program.function, own)
        raise OpError(RunError("op-not-loadable", message, hint, file=program.path))
    function: Callable[..., Any] = found
    return function

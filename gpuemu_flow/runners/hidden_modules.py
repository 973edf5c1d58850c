"""Let an op import a package whose ``__init__`` imports the hidden reference, too.

The kernel refuses to read the reference's file, so importing the package would fail although the op
does not use the reference. Instead, the reference's module is an empty one. Whatever is imported
from it raises an error when it is used.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Iterable, Sequence
from errno import EACCES
from types import ModuleType
from typing import NoReturn


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


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, files: frozenset[str]) -> None:
        self._files = files
        self._names = frozenset(map(_module_name, files))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.rpartition(".")[2] not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        real = os.path.realpath(spec.origin)
        if real not in self._files:
            return None
        spec.loader = _Loader(real)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, path: str) -> None:
        self._path = path

    def exec_module(self, module: ModuleType) -> None:
        def hidden(name: str) -> _Hidden:
            if name.startswith("__"):
                raise AttributeError(name)
            return _Hidden(self._path)

        module.__dict__["__getattr__"] = hidden


def hide(files: Iterable[str]) -> None:
    """Replace the modules of these files from now on by empty ones, in this process."""
    sys.meta_path.insert(0, _Finder(frozenset(map(os.path.realpath, files))))


def _module_name(path: str) -> str:
    """Return the last part of the dotted name under which a file is imported."""
    folder, name = os.path.split(path)
    stem = os.path.splitext(name)[0]  # noqa: PTH122
    return os.path.basename(folder) if stem == "__init__" else stem  # noqa: PTH119


def _refused(path: str) -> PermissionError:
    return PermissionError(EACCES, "hidden from the op", path)

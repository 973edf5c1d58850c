"""A stand-in for the reference's module in an op's process: importable, but not usable.

The stand-in is needed because a package's ``__init__`` may import both op and reference for other
callers.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NoReturn, Protocol


class Refuser(Protocol):
    """Interface of an object that knows the reference's files and refuses access to them."""

    def stands_in_for(self, module: str) -> bool:
        """Tell whether a module may be one of the reference, judged by the module's name."""

    def is_reference(self, path: str) -> bool:
        """Tell whether a file belongs to the reference."""

    def refuse(self, deed: str, path: str) -> NoReturn:
        """Raise an error for an access to a reference's file; `deed` says what the program did."""


class StandIn:
    """A stand-in for an attribute of the reference's module; using it is a violation.

    Parameters
    ----------
    refuse : callable
        Called when the attribute is used; raises an error in the program.
    """

    def __init__(self, refuse: Callable[[], NoReturn]) -> None:
        self.__dict__["_refuse"] = refuse

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("__"):  # `inspect` and `functools` look for these
            self.__dict__["_refuse"]()
        raise AttributeError(name)


def _used(self: StandIn, *_: object, **__: object) -> NoReturn:
    self.__dict__["_refuse"]()
    raise TypeError


_USES = (
    "call setattr array float int index iter len getitem contains bool neg abs "
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow "
    "matmul rmatmul lt le gt ge"
)
for _name in _USES.split():
    setattr(StandIn, f"__{_name}__", _used)


class StandInFinder(importlib.abc.MetaPathFinder):
    """An import finder that replaces the reference's module by a stand-in."""

    def __init__(self, refuser: Refuser) -> None:
        self._refuser = refuser

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for the reference's module; None for every other module."""
        if not self._refuser.stands_in_for(fullname):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not self._refuser.is_reference(spec.origin):
            return None
        spec.loader = _StandInLoader(self._refuser, os.path.realpath(spec.origin))
        return spec


class _StandInLoader(importlib.abc.Loader):
    """Loads a module in which a stand-in takes the place of every attribute."""

    def __init__(self, refuser: Refuser, path: str) -> None:
        self._refuser = refuser
        self._path = path

    def exec_module(self, module: ModuleType) -> None:
        def stand_in(name: str) -> StandIn:
            if name.startswith("__"):
                raise AttributeError(name)
            return StandIn(lambda: self._refuser.refuse("uses", self._path))

        module.__dict__["__getattr__"] = stand_in

    def get_code(self, _name: str) -> NoReturn:
        """Refuse to give `runpy` the module's code."""
        self._refuser.refuse("runs", self._path)

    def get_source(self, _name: str) -> NoReturn:
        """Refuse to give `inspect` the module's source."""
        self._refuser.refuse("reads", self._path)

"""Check that a program has not replaced our functions that watch it in its own process.

Values are judged in other processes. Facts that are seen only here (changed inputs, overwritten
guard zones, calls that differ) are reported by Python code that the program could replace.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from gpuemu_flow.quick_dataclass import dataclass, finish_all

_PACKAGE = __package__.partition(".")[0]
_WATCHERS = (f"{_PACKAGE}.runners.", f"{_PACKAGE}.cases.generate", f"{_PACKAGE}.numerics.layouts")
_METHODS = (FunctionType, staticmethod, classmethod, property)


@dataclass(frozen=True)
class _Names:
    """Some names of one module or class, with their original values."""

    owner: str
    namespace: Mapping[str, Any]
    names: tuple[str, ...]
    values: tuple[Any, ...]
    look_up: Callable[[Mapping[str, Any]], tuple[Any, ...]]

    @classmethod
    def of(cls, owner: str, namespace: Mapping[str, Any], names: list[str]) -> _Names:
        found = (*names, names[0])  # at least two, so that the look-up gives a tuple
        look_up = itemgetter(*found)
        return cls(owner, namespace, found, look_up(namespace), look_up)

    def replaced(self) -> str:
        try:
            now = self.look_up(self.namespace)
            if now == self.values:  # by identity first; functions define no other equality
                return ""
        except KeyError:
            now = tuple(map(self.namespace.get, self.names))
        both = zip(self.names, now, self.values, strict=True)
        return f"{self.owner}.{next(name for name, a, b in both if a is not b)}"


@dataclass(frozen=True)
class _Part:
    """One module of this package: its names, its functions, and the numpy functions they name."""

    names: tuple[_Names, ...]
    functions: frozenset[FunctionType]
    numpy_names: frozenset[str]

    @classmethod
    def of(cls, module: ModuleType) -> _Part:
        names = tuple(_names_of(module))
        functions = {f for some in names for value in some.values for f in _function(value)}
        ours = frozenset(f for f in functions if f.__module__.startswith(_PACKAGE))
        used = frozenset(name for function in ours for name in _all_names(function.__code__))
        numpy_space = vars(np)
        numpy_names = frozenset(name for name in used if callable(numpy_space.get(name)))
        return cls(names, ours, numpy_names)


_prepared: dict[str, _Part] = {}


def prepare() -> None:
    """Record the loaded modules, for the seals of all processes forked from this one.

    Call it in a process that never runs code of a program.
    """
    finish_all()  # a method that is compiled later would look like a replaced one
    new = (module for module in _watchers() if module.__name__ not in _prepared)
    _prepared.update((module.__name__, _Part.of(module)) for module in new)


def _watchers() -> list[ModuleType]:
    return [sys.modules[n] for n in sorted(n for n in sys.modules if n.startswith(_WATCHERS))]


class Seal:
    """Remembers the runner's functions and the numpy functions that they call.

    Create it before any code of the program runs.
    """

    def __init__(self) -> None:
        finish_all()
        parts = [_prepared.get(module.__name__) or _Part.of(module) for module in _watchers()]
        self._names = [names for part in parts for names in part.names]
        # Not one set of all functions: building it would write to their memory, and so copy shared
        # pages.
        self._ours = [part.functions for part in parts]
        numpy_names = frozenset().union(*(part.numpy_names for part in parts))
        self._names.append(_Names.of("numpy", vars(np), sorted(numpy_names)))
        self._names.append(_Names.of("os", vars(os), ["getpid"]))  # tells a fork from the worker
        self._recoded = ""

    def on_setattr(self, target: object, _name: object, _value: object) -> None:
        """Handle an audit event: the code or the defaults of a function are being replaced."""
        if isinstance(target, FunctionType) and any(target in some for some in self._ours):
            self._recoded = self._recoded or f"{target.__module__}.{target.__qualname__}"

    def broken(self) -> str:
        """Return the name of an object that the program replaced; empty if there is none."""
        for names in self._names:
            found = names.replaced()
            if found:
                return found
        return self._recoded


def _names_of(module: ModuleType) -> Iterator[_Names]:
    space = vars(module)
    called = [name for name, value in space.items() if isinstance(value, (FunctionType, type))]
    if called:
        yield _Names.of(module.__name__, space, called)
    for name in called:
        owner = space[name]
        if isinstance(owner, type) and owner.__module__ == module.__name__:
            methods = [n for n, value in vars(owner).items() if isinstance(value, _METHODS)]
            if methods:
                yield _Names.of(f"{module.__name__}.{name}", vars(owner), methods)


def _function(value: object) -> Iterator[FunctionType]:
    inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if isinstance(inner, FunctionType):
        yield inner


def _all_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_names(constant)

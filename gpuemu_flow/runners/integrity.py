"""Check that a program has not replaced our functions that watch it in its own process.

Outputs are judged in other processes. But some facts can be seen only in the program's process, for
example that the program removed a tensor from a list. Python code in that process reports these
facts, and the program could replace that code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import is_, itemgetter
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from gpuemu_flow.quick_dataclass import dataclass, finish_all
from gpuemu_flow.runners.newly_loaded import Moment

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
        now = map(self.namespace.get, self.names)
        both = zip(self.names, now, self.values, strict=True)
        # Not by equality: what the program put there may call itself equal.
        found = next((name for name, a, b in both if a is not b), "")
        return found and f"{self.owner}.{found}"


@dataclass(frozen=True)
class _Part:
    """One module of this package: its names, its functions, and numpy functions that it uses."""

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


@dataclass(frozen=True)
class _Whole:
    """Everything that a `Seal` remembers about the modules that are loaded at one moment."""

    names: tuple[_Names, ...]
    values: tuple[Any, ...]
    functions: tuple[frozenset[FunctionType], ...]

    @classmethod
    def of(cls, parts: Sequence[_Part]) -> _Whole:
        numpy_names = frozenset[str]().union(*(part.numpy_names for part in parts))
        names = (
            *(names for part in parts for names in part.names),
            _Names.of("numpy", vars(np), sorted(numpy_names)),
            _Names.of("os", vars(os), ["getpid"]),  # tells a fork from the worker
        )
        return cls(
            names,
            tuple(chain.from_iterable(some.values for some in names)),
            # Not one set of all: to build it would write to each function's memory, which a forked
            # process shares until then.
            tuple(part.functions for part in parts),
        )


_prepared: dict[str, _Part] = {}
_prepared_whole: list[tuple[Moment, _Whole]] = []


def prepare() -> None:
    """Record the loaded modules, for the seals of all processes forked from this one.

    Call it only in a process that never runs a program's code.
    """
    finish_all()  # a method that is compiled later would look like a replaced one
    watchers = _watchers()
    new = (module for module in watchers if module.__name__ not in _prepared)
    _prepared.update((module.__name__, _Part.of(module)) for module in new)
    whole = _Whole.of([_prepared[module.__name__] for module in watchers])
    _prepared_whole[:] = [(Moment.now(), whole)]


def _watchers() -> list[ModuleType]:
    return [sys.modules[n] for n in sorted(n for n in sys.modules if n.startswith(_WATCHERS))]


def _whole() -> _Whole:
    """Return the names and functions that a seal has to remember now."""
    for moment, whole in _prepared_whole:
        if not any(name.startswith(_WATCHERS) for name in moment.since()):
            return whole
    return _Whole.of([_prepared.get(m.__name__) or _Part.of(m) for m in _watchers()])


class Seal:
    """Remembers the runner's functions and the numpy functions that they call.

    Create it before any code of the program runs.
    """

    def __init__(self) -> None:
        finish_all()
        self._whole = _whole()
        self._recoded = ""

    def on_setattr(self, target: object, _name: object, _value: object) -> None:
        """Handle an audit event: the code or the defaults of a function are being replaced."""
        ours = self._whole.functions
        if isinstance(target, FunctionType) and any(target in some for some in ours):
            self._recoded = self._recoded or f"{target.__module__}.{target.__qualname__}"

    def broken(self) -> str:
        """Return the name of an object that the program replaced; empty if there is none."""
        with suppress(KeyError):
            now = [names.look_up(names.namespace) for names in self._whole.names]
            if all(map(is_, chain.from_iterable(now), self._whole.values)):  # after each call
                return self._recoded
        found = (names.replaced() for names in self._whole.names)
        return next(filter(None, found), self._recoded)


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

"""Versions of a function that compute in float32, compiled in this process from rewritten source.

Loaded modules stay unchanged: the function is copied, together with the user's own functions and
modules that it uses. Workers make such versions in another way: they import a reference once more,
from rewritten files.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from gpuemu_flow.model.installed import is_installed
from gpuemu_flow.numerics.shadow import shadow_source

PLAIN, SHADOW, OPERANDS, STEPS = "plain", "shadow", "operands", "steps"
_NARROWED = {"float32": "float64", "complex64": "complex128"}
_MAX_DEPTH = 50


@functools.lru_cache(maxsize=4096)
def _is_own(path: str | None) -> bool:
    """Tell whether a file is the user's, and not one of Python, this package or installed ones."""
    if not path or path.startswith(_NOT_OWN):
        return False
    return not is_installed(path)


_NOT_OWN = (f"{Path(__file__).resolve().parent.parent}{os.sep}", "<frozen")


class Versions:
    """A function and its versions in float32 or with intermediate rounding, made on demand.

    Parameters
    ----------
    function : callable
        Versions are made from the source of functions, lambdas, partials, methods and functions
        returned by ``jax.jit``. Any other callable is used unchanged as every version.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._made: dict[str, Callable[..., Any]] = {PLAIN: function}
        self._rewritten: dict[str, bool] = {PLAIN: False}

    def rewritten(self, name: str) -> bool:
        """Tell whether the source for a version was found and had something to rewrite."""
        self.version(name)
        return self._rewritten[name]

    def version(self, name: str) -> Callable[..., Any]:
        """Return one version of the function; make it when it is first requested.

        Parameters
        ----------
        name : str
            ``plain`` is the function itself. ``shadow`` computes in float32 what the function
            computes in float64. ``operands`` does so, too, and also passes the operands of matrix
            products through `operand.rounded`. ``steps`` does all this, and also passes the results
            of arithmetic and of calls through `operand.rounded`.
        """
        if name not in self._made:
            world = _World("" if name == SHADOW else name)
            self._made[name] = world.value(self._made[PLAIN])
            self._rewritten[name] = world.rewrote
        return self._made[name]


class _World:
    """Rewritten copies of functions, their closures, and the globals that they use."""

    def __init__(self, wrap: str) -> None:
        self.rewrote = False
        self._wrap = wrap
        self._modules: dict[int, ModuleType] = {}
        self._functions: dict[int, FunctionType] = {}
        self._codes: dict[str, list[tuple[CodeType, CodeType]]] = {}
        self._named: set[tuple[int, str]] = set()
        self._originals: list[Any] = []  # kept, so that no id is given to something else
        self._depth = 0

    def value(self, value: Any) -> Any:
        """Return a value's substitute: a rewritten function, a float32 copy, or the value."""
        if self._depth >= _MAX_DEPTH:
            return value
        self._depth += 1
        try:
            return self._value(value)
        finally:
            self._depth -= 1

    def _value(self, value: Any) -> Any:
        if isinstance(value, FunctionType):
            return self._function(value) if _is_own(value.__code__.co_filename) else value
        if isinstance(value, functools.partial):
            return functools.partial(
                self.value(value.func),
                *map(self.value, value.args),
                **{name: self.value(given) for name, given in value.keywords.items()},
            )
        if isinstance(value, MethodType):
            return MethodType(self.value(value.__func__), value.__self__)
        return self._of_framework(self._of_numpy(value))

    def _of_numpy(self, value: Any) -> Any:
        if value is np.float64 or value is np.complex128:
            return np.float32 if value is np.float64 else np.complex64
        if isinstance(value, np.dtype) and value in (np.float64, np.complex128):
            return np.dtype(np.float32 if value == np.float64 else np.complex64)
        if type(value) is np.ndarray and value.dtype == np.float64:
            return value.astype(np.float32)
        return value

    def _of_framework(self, value: Any) -> Any:
        library = type(value).__module__.partition(".")[0]
        if library in ("jax", "jaxlib"):
            inner = getattr(value, "__wrapped__", None)
            if isinstance(inner, FunctionType):
                return self.value(inner)
        torch = sys.modules.get("torch")
        if torch is not None and library == "torch":
            if value is torch.float64:
                return torch.float32
            if type(value) is torch.Tensor and value.dtype == torch.float64:
                return value.detach().float()
        return value

    def _function(self, function: FunctionType) -> FunctionType:
        known = self._functions.get(id(function))
        if known is not None:
            return known
        old = function.__code__
        code = self._code(old)
        cells = tuple(CellType() for _ in old.co_freevars)
        space = self._space(function.__globals__)
        made = FunctionType(code, space, function.__name__, function.__defaults__, cells or None)
        made.__kwdefaults__ = function.__kwdefaults__
        made.__dict__.update(function.__dict__)
        made.__qualname__, made.__module__ = function.__qualname__, function.__module__
        self._originals.append(function)
        self._functions[id(function)] = made
        if function.__defaults__:
            made.__defaults__ = tuple(map(self.value, function.__defaults__))
        names = set(_names(code))
        self._fill(function.__globals__, space, names)
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            try:
                content = original.cell_contents
            except ValueError:  # not assigned yet
                continue
            cell.cell_contents = self.value(content)
            if isinstance(content, ModuleType):
                cell.cell_contents = self._module(content, names)
        return made

    def _space(self, names: dict[str, Any]) -> dict[str, Any]:
        """Return the copied globals of a module; make the copy when it is first requested.

        `names` is the module's own dict. All rewritten functions of the module use the same copy.
        """
        made = self._modules.get(id(names))
        if made is None:
            made = self._modules[id(names)] = ModuleType(str(names.get("__name__", "shadow")))
            made.__dict__.update(names)
            self._originals.append(names)
        return made.__dict__

    def _fill(self, old: dict[str, Any], new: dict[str, Any], names: set[str]) -> None:
        """Replace the values of some names in a copy of globals by their substitutes."""
        for name in names:
            source = name if name in old else _NARROWED.get(name, name)
            if source not in old:
                continue
            value = old[source]
            if isinstance(value, ModuleType):
                new[name] = self._module(value, names)
            elif (id(old), name) not in self._named:
                self._named.add((id(old), name))
                new[name] = self.value(value)

    def _module(self, module: ModuleType, names: set[str]) -> ModuleType:
        if not _is_own(getattr(module, "__file__", None)) or self._depth >= _MAX_DEPTH:
            return module
        old = vars(module)
        new = self._space(old)
        self._depth += 1
        try:
            self._fill(old, new, {n for n in names if n in old and old[n] is not module})
        finally:
            self._depth -= 1
        return self._modules[id(old)]

    def _code(self, code: CodeType) -> CodeType:
        """Return the rewritten counterpart of `code`, or `code` itself if no counterpart fits."""
        path = code.co_filename
        if path not in self._codes:
            self._codes[path] = self._compile(path)
        found = [(old, new) for old, new in self._codes[path] if _is_the_place(old, code)]
        if len(found) != 1:
            return code
        (_, new), same = found[0], ("co_freevars", "co_argcount", "co_kwonlyargcount", "co_flags")
        if not all(getattr(new, n) == getattr(code, n) for n in same):
            return code
        self.rewrote = self.rewrote or new != found[0][0]
        return new

    def _compile(self, path: str) -> list[tuple[CodeType, CodeType]]:
        linecache.checkcache(path)
        source = "".join(linecache.getlines(path))
        changed = shadow_source(source, self._wrap) if source else None
        if changed is None:
            return []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                old = compile(source, path, "exec", dont_inherit=True)
                new = compile(changed, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []
        pairs = list(zip(_nested(old), _nested(new), strict=False))
        same_names = all(one.co_name == other.co_name for one, other in pairs)
        return pairs if same_names and len(pairs) == sum(1 for _ in _nested(new)) else []


def _is_the_place(old: CodeType, code: CodeType) -> bool:
    """Tell whether the code of a loaded function comes from the same source as `old`."""
    if old == code:
        return True
    here = old.co_name == code.co_name and old.co_firstlineno == code.co_firstlineno
    return here and any("@pytest_ar" in (*c.co_names, *c.co_freevars) for c in _nested(code))


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _names(code: CodeType) -> Iterator[str]:
    for one in _nested(code):
        yield from one.co_names

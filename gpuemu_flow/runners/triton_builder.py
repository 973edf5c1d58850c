"""Replaced parts of Triton's interpreter: memory accesses, the grid, and the language modules."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from gpuemu_flow.runners.triton_cuda import Patch
from gpuemu_flow.runners.triton_memory import READ, WRITE, Memory, OutOfBoundsError

_MAX_SHUFFLED = 1 << 22


class Language:
    """Patches Triton's language modules for the interpreter, until the end of a launch.

    A launch patches the same modules only once. Triton's interpreter alone patches them again for
    each call of a function inside a kernel, and spends most of its time on this.
    """

    def __init__(self, original: Callable[[Any], Any]) -> None:
        self._original = original
        self._scopes: list[Any] = []
        self._seen: set[frozenset[int]] = set()

    def begin(self) -> None:
        """Begin a launch, for which no module is patched yet."""
        self._scopes, self._seen = [], set()

    def patch(self, function: Any) -> Language:
        """Patch the language modules that a function's own module refers to; return this object."""
        values = list(function.__globals__.values())
        modules = (v for v in values if isinstance(v, ModuleType))
        key = frozenset(id(m) for m in modules if m.__name__.startswith("triton.language"))
        if key not in self._seen:
            self._seen.add(key)
            self._scopes.append(self._original(function))
        return self

    def restore(self) -> None:
        """Undo all patches of the launch."""
        for scope in reversed(self._scopes):
            if scope is not None:  # older interpreters restore nothing
                scope.restore()
        self.begin()


class CheckedBuilder:
    """The interpreter's builder, with checked memory accesses and a shuffled order of programs."""

    def __init__(self, interpreter: Any, memory: Memory) -> None:
        self._interpreter = interpreter
        self._builder = interpreter.interpreter_builder
        self._memory = memory
        self.order: np.random.Generator | None = None
        self._shape = (1, 1, 1)
        self._permutation: np.ndarray | None = None

    def patches(self) -> list[Patch]:
        """Return the replacements for methods of the interpreter's builder."""
        names = {
            "create_masked_load": self._load,
            "create_masked_store": self._store,
            "create_atomic_rmw": self._atomic,
            "create_atomic_cas": self._compare_and_swap,
            "set_grid_dim": self._set_shape,
            "set_grid_idx": self._set_place,
        }
        return [
            (self._builder, name, method(getattr(self._builder, name)))
            for name, method in names.items()
        ]

    def _kept(self, pointers: Any, mask: Any, itemsize: int, deed: str) -> Any:
        kept = self._memory.allowed(pointers.data, mask.data, itemsize, deed)
        return mask if kept is mask.data else self._interpreter.TensorHandle(kept, mask.dtype)

    def _load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(pointers: Any, mask: Any, *rest: Any, **more: Any) -> Any:
            itemsize = _itemsize(pointers)
            return original(pointers, self._kept(pointers, mask, itemsize, READ), *rest, **more)

        return load

    def _store(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def store(pointers: Any, value: Any, mask: Any, *rest: Any, **more: Any) -> Any:
            kept = self._kept(pointers, mask, _itemsize(pointers), WRITE)
            return original(pointers, value, kept, *rest, **more)

        return store

    def _atomic(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def atomic(kind: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            kept = self._kept(pointers, mask, _itemsize(pointers), WRITE)
            return original(kind, pointers, value, kept, *rest)

        return atomic

    def _compare_and_swap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compare_and_swap(pointers: Any, *rest: Any) -> Any:
            every = np.ones(pointers.data.shape, np.bool_)
            kept = self._memory.allowed(pointers.data, every, _itemsize(pointers), WRITE)
            if not kept.all():
                raise OutOfBoundsError(self._memory.failures()[-1].message)
            return original(pointers, *rest)

        return compare_and_swap

    def _set_shape(self, original: Callable[..., None]) -> Callable[..., None]:
        def set_shape(*shape: int) -> None:
            count = math.prod(shape)
            self._shape = (shape[0], shape[1], shape[2])
            shuffled = self.order is not None and 1 < count <= _MAX_SHUFFLED
            self._permutation = (
                self.order.permutation(count) if shuffled and self.order is not None else None
            )
            original(*shape)

        return set_shape

    def _set_place(self, original: Callable[..., None]) -> Callable[..., None]:
        def set_place(*place: int) -> None:
            if self._permutation is not None:
                flat = int(np.ravel_multi_index(place, self._shape))
                moved = np.unravel_index(int(self._permutation[flat]), self._shape)
                place = tuple(int(i) for i in moved)
            original(*place)

        return set_place


def _itemsize(pointers: Any) -> int:
    """Return the size in bytes of the elements that a block of pointers points to."""
    bits = int(pointers.get_element_ty().primitive_bitwidth)
    return max(1, bits // 8)

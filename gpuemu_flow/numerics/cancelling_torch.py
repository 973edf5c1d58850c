"""PyTorch's operators, backward passes included, with the terms of their sums perturbed.

The module `cancelling` perturbs arithmetic of numpy, and says why. This module does the same for
references that compute with PyTorch.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from gpuemu_flow.numerics.cancelling import Operands
from gpuemu_flow.numerics.perturb import shares_by_value
from gpuemu_flow.numerics.rng import SeededRng

_SUMS = frozenset(
    (
        "add", "sub", "rsub", "sum", "mean", "cumsum", "mm", "bmm", "mv", "dot", "addmm", "baddbmm",
        "addmv", "var", "_log_softmax_backward_data",
    )
)  # fmt: skip
"""Operators that add; only their first operand is perturbed."""

_PRODUCTS = frozenset(("mm", "bmm", "mv", "dot"))
"""Operators that add products of their operands. The products are rounded even if the operands are
not."""


def cancelling_torch(
    rng: SeededRng, unit: float, operands: Operands
) -> AbstractContextManager[Any]:
    """Return the context for one evaluation; it changes nothing if PyTorch is not loaded."""
    operands.begin()
    torch = sys.modules.get("torch")
    if torch is None:
        return nullcontext()
    base: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
    moving = _Moving(torch, rng, unit, operands)

    class Mode(base):  # type: ignore[misc]
        """A dispatch mode that intercepts every operator, to perturb the terms of sums."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return moving.dispatched(func, args, kwargs or {})

    mode: AbstractContextManager[Any] = Mode()
    return mode


class _Moving:
    def __init__(self, torch: Any, rng: SeededRng, unit: float, operands: Operands) -> None:
        self._torch = torch
        self._rng = rng
        self._unit = unit
        self._operands = operands
        self._rounded: dict[int, Any] = {}
        """Rounded tensors by address. They are kept, so that no other tensor gets the address."""

    def dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = self._tensors((args, kwargs))
        tags = getattr(func, "tags", ())
        if not given or self._torch.Tag.nondeterministic_seeded in tags:
            return func(*args, **kwargs)
        before = any(map(self._is_rounded, given))
        if func._schema.is_mutable:
            result = func(*args, **kwargs)
            self._mark(result if before else ())
            return result
        name = func.overloadpacket.__name__
        plain = func(*args, **kwargs)
        exact = self._in_double(func, args, kwargs)
        result = self._again(func, name, args, kwargs, before=before)
        result = plain if result is None else result
        for one, own, wide in zip(
            self._tensors(result), self._tensors(plain), self._wide_tensors(exact), strict=False
        ):
            rounded = ~own.isnan() if wide is None else own.double() != wide
            if bool(rounded.any()):
                self._mark(one)
                # What the moved terms have moved is moved enough.
                self._move(one, rounded & (one == own))
        if before:
            self._mark(result)
        return result

    def _again(self, func: Any, name: str, args: Any, kwargs: Any, *, before: bool) -> Any:
        """Compute an operator again with its first operand perturbed."""
        if name == "_softmax_backward_data" and before:
            sent, weights, dim = args[:3]
            inner = (sent * weights).sum(dim, keepdim=True)
            return self._moved_operand(sent) * weights - weights * inner
        first = args[0] if args else None
        if name not in _SUMS or not self._is_float(first):
            return None
        all_rounded = all(map(self._is_rounded, self._tensors(args)))
        if name in _PRODUCTS or all_rounded:
            return func(self._moved_operand(first), *args[1:], **kwargs)
        return None

    def _moved_operand(self, tensor: Any) -> Any:
        moved = tensor.detach().clone()
        errors = self._operands.errors(moved.numpy()) if self._is_rounded(tensor) else None
        if errors is None:
            self._move(moved, None)
        else:
            share = float(2.0 * self._rng.f64(1)[0] - 1.0)
            moved += share * self._torch.from_numpy(np.asarray(errors))
        return moved

    def _move(self, tensor: Any, chosen: Any) -> None:
        """Change elements by about a rounding error, in place; equal elements stay equal.

        Only the elements in the mask `chosen` are changed; None for all.
        """
        values = tensor.detach().numpy()
        shares = shares_by_value(values.astype(np.float64), self._rng.gen_u64())
        shares = (shares + np.copysign(1.0, shares)) / 2.0
        with np.errstate(all="ignore"):
            moved = (values * (1.0 + shares * self._unit)).astype(np.float32)
        if chosen is not None:
            moved = np.where(chosen.numpy(), moved, values)
        tensor.detach().copy_(self._torch.from_numpy(np.asarray(moved)))

    def _in_double(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*self._doubled(args), **self._doubled(kwargs))
        except (RuntimeError, TypeError, ValueError):
            return None

    def _doubled(self, value: Any) -> Any:
        if self._is_float(value):
            return value.double()
        if value is self._torch.float32:
            return self._torch.float64
        if isinstance(value, (tuple, list)):
            return type(value)(map(self._doubled, value))
        if isinstance(value, dict):
            return {name: self._doubled(member) for name, member in value.items()}
        return value

    def _wide_tensors(self, value: Any) -> list[Any]:
        members = value if isinstance(value, (tuple, list)) else [value]
        wide = [m for m in members if getattr(m, "dtype", None) == self._torch.float64]
        return [*wide, *[None] * 8]

    def _is_float(self, value: Any) -> bool:
        return isinstance(value, self._torch.Tensor) and value.dtype == self._torch.float32

    def _is_rounded(self, tensor: Any) -> bool:
        return self._is_float(tensor) and self._memory(tensor) in self._rounded

    def _memory(self, tensor: Any) -> int:
        place: int = tensor.untyped_storage().data_ptr()
        return place

    def _mark(self, value: Any) -> None:
        for tensor in self._tensors(value):
            self._rounded[self._memory(tensor)] = tensor

    def _tensors(self, value: Any) -> list[Any]:
        if self._is_float(value):
            return [value]
        members = value.values() if isinstance(value, dict) else value
        if isinstance(value, (tuple, list, dict)):
            return [tensor for member in members for tensor in self._tensors(member)]
        return []

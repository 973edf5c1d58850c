"""Arithmetic that perturbs the terms of sums, to measure errors that the reference cancels exactly.

``dp - (p * dp).sum()`` is exactly 0 where p is 1, whatever errors dp has, since both terms have the
same errors. A correct op computes the second term in another way, with other errors. Therefore,
each operand of a sum that is a rounded value is perturbed here, independently of the other
operands. The perturbation is a random share of the error that the operand had in the previous
evaluation (Parker's "precision bounding", see `noise`).

Values that no rounding has touched still cancel exactly. Zeros stay zeros, unless they come from an
underflow, as ``exp(-200)`` does. Thus, ``1 + exp(-200)`` counts as rounded.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.noise import Noisy, Noisy64, bare64, wrapped64
from gpuemu_flow.numerics.perturb import Arrays, shares_by_value
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.single import PRODUCTS, bare, wrapped

if TYPE_CHECKING:
    Base = np.ndarray[Any, np.dtype[Any]]
else:
    Base = object

_TO_INTEGERS = (np.floor, np.ceil, np.rint, np.trunc, np.sign, np.round, np.fix)


_KEPT = 2**24
"""Number of elements of operands that are kept from one evaluation to the next."""


class Operands:
    """The operands of sums in each of three evaluations, in the order in which they were met. The
    evaluations are the first, which is not perturbed, the previous one and the present one."""

    def __init__(self) -> None:
        self._evaluations: list[list[NDArray[Any]]] = []
        self._size = 0

    def begin(self) -> None:
        """Begin another evaluation. Of the operands recorded so far, keep those of the first and of
        the latest evaluation."""
        self._evaluations = [*self._evaluations[:1], *self._evaluations[1:][-1:], []]
        self._size = 0

    def errors(self, value: NDArray[Any]) -> NDArray[Any] | None:
        """Record an operand, and return the errors that it had in the previous evaluation. Return
        None if these errors are not known."""
        *before, now = self._evaluations
        self._size += value.size
        if self._size > _KEPT:
            return None
        now.append(value.copy())
        place = len(now) - 1
        if len(before) < 2 or any(len(seen) <= place for seen in before):
            return None
        plain, moved = (seen[place] for seen in before)
        if plain.shape != value.shape or moved.shape != value.shape:
            return None
        with np.errstate(all="ignore"):
            errors: NDArray[Any] = moved - plain
        return np.where(np.isfinite(errors), errors, errors.dtype.type(0.0))


class _Cancelling(Base):
    """Base class of arrays whose rounded values are perturbed in sums. Each array records whether
    it holds rounded values. The results of an operation that rounds are perturbed, too. Equal
    results of one operation change by the same factor, so that ties stay ties. This relative change
    is at least half of `unit`, so that it is not lost by rounding."""

    rng: SeededRng
    unit: float
    operands: Operands
    rounded: bool = False

    def __array_finalize__(self, obj: Any) -> None:
        self.rounded = getattr(obj, "rounded", False)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: Any, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        before = any(map(_is_rounded, inputs)) and ufunc not in _TO_INTEGERS
        if before and _adds(ufunc, method, all(map(_is_rounded, inputs))):
            # The first one alone: both may have the same errors.
            inputs = (self._moved_again(inputs[0]), *inputs[1:])
        result = super().__array_ufunc__(ufunc, method, *inputs, out=out, **options)
        return _marked(result) if before or out else result

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in PRODUCTS:
            args = tuple(map(self._moved_terms, args))
        result = super().__array_function__(func, types, args, kwargs)
        before = _is_rounded((args, kwargs)) and func not in _TO_INTEGERS
        return _marked(result) if before else result

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.rounded = self.rounded or _is_rounded(value)

    def _moved_terms(self, value: Any) -> Any:
        """Perturb an operand of a matrix product, even if it is not a rounded value. A matrix
        product adds products of elements, which are rounded in any case. Since numpy does not show
        these products, the operand is perturbed in their place."""
        if type(value) in (list, tuple):
            return type(value)(map(self._moved_terms, value))
        known = isinstance(value, _Cancelling) and not value.rounded and value.dtype.kind == "f"
        return self._moved(_plain(value)) if known else self._moved_again(value)

    def _moved_again(self, value: Any) -> Any:
        """Perturb an operand if it is a rounded value; return any other value as it is. If an
        operand is used several times, each use is perturbed independently."""
        if not _is_rounded(value):
            return value
        plain = _plain(value)
        errors = self.operands.errors(plain)
        if errors is None:
            return self._moved(plain)
        # A share of its own: terms that have the same errors must not move alike.
        share = plain.dtype.type(2.0 * self.rng.f64(1)[0] - 1.0)
        with np.errstate(all="ignore"):
            moved = np.asarray(plain + share * errors).view(type(self))
        moved.rounded = True
        return moved

    def _moved(self, values: Any, exact: Any = None) -> _Cancelling:
        plain = np.asarray(values)
        shares = shares_by_value(plain.astype(np.float64), self.rng.gen_u64())
        shares = (shares + np.copysign(1.0, shares)) / 2.0
        with np.errstate(all="ignore"):
            moved = (plain * (1.0 + shares * self.unit)).astype(plain.dtype)
        rounded = ~np.isnan(plain) & (True if exact is None else plain != exact)
        if exact is not None:
            # A factor would leave 0 what has become 0 by an underflow.
            smallest = np.copysign(np.finfo(plain.dtype).smallest_subnormal, exact)
            vanished = rounded & (plain == 0.0) & ~np.isnan(exact)
            moved = np.where(vanished, smallest.astype(plain.dtype), moved)
        result = np.where(rounded, moved, plain).view(type(self))
        result.rounded = bool(rounded.any())
        return result


class _Cancelling32(_Cancelling, Noisy):
    """A float32 array; see `_Cancelling`."""

    def _sums(self, ufunc: np.ufunc, method: str) -> bool:
        return super()._sums(ufunc, method) or ufunc is np.matmul

    def _moved_sum(self, plain: Any, again: Any, exact: Any) -> Any:
        # Two moves might cancel, in all elements at once.
        moved = self._moved(plain, exact)
        result = np.where(again == plain, bare(moved), again).view(type(self))
        result.rounded = moved.rounded
        return result

    def _again(self, result: Any) -> Any:
        again = super()._again(result)
        return _marked(again) if _is_rounded(result) else again


class _Cancelling64(_Cancelling, Noisy64):
    """A float64 or integer array; see `_Cancelling`."""


def cancelling(
    inputs: Arrays, rng: SeededRng, unit: float, operands: Operands, *, shadow: bool
) -> dict[str, NDArray[Any]]:
    """Return inputs with which the reference perturbs its roundings and the operands of its sums.
    Roundings are perturbed as in `noise`. A rounded operand of a sum is perturbed by a random share
    of the error that it had in the previous evaluation. Some results of 0 stay 0: those of a
    multiplication by 0, of a selection, and of ``x - x`` where x is an input."""
    operands.begin()
    attributes = {"rng": rng, "unit": unit, "operands": operands}
    if shadow:
        return wrapped(inputs, _Cancelling32, **attributes)
    return wrapped64(inputs, _Cancelling64, **attributes)


def _plain(value: Any) -> Any:
    return bare64(bare(value))


def _adds(ufunc: np.ufunc, method: str, all_rounded: bool) -> bool:
    """Tell whether an operation adds terms, at least two of which may be rounded values.
    `all_rounded` is True if every operand of the operation is a rounded value."""
    if method == "__call__" and ufunc in (np.add, np.subtract):
        return all_rounded
    return ufunc is np.matmul or (ufunc is np.add and method not in ("__call__", "at"))


def _is_rounded(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_is_rounded, value))
    if isinstance(value, dict):
        return any(map(_is_rounded, value.values()))
    return isinstance(value, _Cancelling) and value.rounded and value.dtype.kind == "f"


def _marked(result: Any) -> Any:
    """Mark each float array in a result as rounded."""
    if isinstance(result, (tuple, list)):
        for member in result:
            _marked(member)
    elif isinstance(result, _Cancelling):
        result.rounded = True
    return result


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
        """Change elements by about a rounding error, in place; equal elements stay equal. Only the
        elements in the mask `chosen` are changed; None for all."""
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

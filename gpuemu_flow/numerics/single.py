"""Float32 and integer arrays whose arithmetic with floats stays in float32.

``np.sqrt(n)`` is a float64, ``np.arange(n)`` holds int64 and ``np.zeros(n)`` float64: by numpy's
rules each of them turns all that is computed from it into float64. A reference in float32 would
then show only the rounding of its inputs. In a kernel such numbers are float32 like all the others.
So are floats that are computed from integers, such as ``np.sin(0.1 * t)`` of time steps t.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gpuemu_flow.numerics.perturb import Arrays

    Base = np.ndarray[Any, np.dtype[Any]]
else:
    Base = np.ndarray

PRODUCTS = (np.dot, np.vdot, np.inner, np.outer, np.tensordot, np.einsum, np.convolve)
_WRITING = (np.copyto, np.put, np.place, np.putmask, np.put_along_axis, np.fill_diagonal)
"""Functions that write to their first argument, which must not be replaced by a copy."""
_NARROWED = {"d": np.float32, "D": np.complex64}
_INTEGERS = "biu"
"""Kinds of dtypes that hold integers; truth values count as 0 and 1."""


class Single(Base):
    """A float32 or integer array with which numpy computes in float32 instead of float64. Float
    results of numpy functions are arrays of the same class. Integers stay integers where numpy's
    result is an integer, because indices and counts are exact."""

    # A reference with inputs of this class makes new float32 arrays, such as ``np.zeros(n)``.
    # `made` is the class of these new arrays; see `staying_single`.
    made: type[Single]
    holds_integers = False

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        call = getattr(ufunc, method)
        operands = operands_in_float32(ufunc, method, inputs)
        options = options_in_float32(options)
        if method == "at" or options.get("where", True) is not True:
            if out:
                options["out"] = tuple(map(bare, out))
            return self._again(call(*operands, **options))
        return self._into(out, call(*operands, **options), options.get("casting", "same_kind"))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in _WRITING:
            return super().__array_function__(func, types, args, kwargs)
        multiplied = func in PRODUCTS and _holds_float((args, tuple(kwargs.values())))
        args = tuple(_argument(value, multiplied=multiplied) for value in args)
        kwargs = {
            name: value if name == "out" else _argument(value, multiplied=multiplied)
            for name, value in kwargs.items()
        }
        result = super().__array_function__(func, types, args, kwargs)
        if kwargs.get("out") is not None:
            return result
        multiplied = func in PRODUCTS and _is_float(result)
        return self._again(self._product(result) if multiplied else result)

    def astype(self, dtype: Any, *args: Any, **options: Any) -> Any:
        """Convert as numpy does, but convert integers to float32 when float64 is requested."""
        if self.dtype.kind in _INTEGERS and np.dtype(dtype).char in "fd":
            dtype = np.float32
        return super().astype(dtype, *args, **options)

    def _product(self, result: Any) -> Any:
        """Return the float result of one of `PRODUCTS`, the matrix products that are no ufuncs.
        This class returns the result unchanged. Subclasses may override the method to change it."""
        return result

    def _into(self, out: tuple[Any, ...], result: Any, casting: Any = "same_kind") -> Any:
        """Write a result to the arrays in `out` and return them; if all are None, convert it.
        `_again` converts the result. `casting` is numpy's rule for writing the result."""
        if all(array is None for array in out):
            return self._again(result)
        for array, values in zip(out, result if type(result) is tuple else [result], strict=True):
            if array is not None:
                np.copyto(bare(array), values, casting=casting)
        return out[0] if len(out) == 1 else out

    def _again(self, result: Any) -> Any:
        """Convert the results of a call, which are arrays or numbers, to arrays of this class. Only
        float32, float64 and integer results are converted. A single integer is converted only if
        `self` is a 0-d array. An integer that comes from a larger array is a count or an index,
        which may be used as a Python number."""
        if isinstance(result, (tuple, list)):
            make = getattr(type(result), "_make", type(result))
            return make(map(self._again, result))
        result = narrowed(bare(result), weak=False)
        if getattr(result, "dtype", None) == np.float32:
            return np.asarray(result).view(type(self))
        held = type(result) is np.ndarray or (not self.ndim and isinstance(result, np.generic))
        if held and result.dtype.kind in _INTEGERS:
            return np.asarray(result).view(type(self))
        return result


Single.made = Single


def single(inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Return the inputs with float32 and integer arrays as `Single`, which computes in float32."""
    return {
        name: array.view(Single) if type(array) is np.ndarray and _is_held(array) else array
        for name, array in inputs.items()
    }


def wrapped(inputs: Arrays, kind: type[Single], **attributes: Any) -> dict[str, NDArray[Any]]:
    """View float32 and integer inputs as arrays of the class `kind`; leave others as they are.
    Further keyword arguments are attributes. If there are any, the class is a new subclass of
    `kind` that has these attributes."""
    made = type(kind.__name__, (kind,), attributes) if attributes else kind
    return {name: array.view(made) if _is_held(array) else array for name, array in inputs.items()}


def _is_held(array: NDArray[Any]) -> bool:
    return array.dtype == np.float32 or array.dtype.kind in _INTEGERS


def bare(value: Any) -> Any:
    """Return the array as a plain ndarray."""
    return value.view(np.ndarray) if isinstance(value, Single) else value


def operands_in_float32(ufunc: np.ufunc, method: str, inputs: Sequence[Any]) -> list[Any]:
    """Return the operands as plain arrays, all narrowed to float32 if the operation is in float32.

    The operation is in float32 in each of these cases:

    - An operand is float32.
    - One operand is a `Single` of integers, and another operand is a float.
    - One operand is a `Single` of integers, and numpy would compute a float64 result.

    For the method ``at``, the first two operands are the array to change and its indices. They are
    never narrowed, but the operands after them always are.
    """
    plain = [bare(value) for value in inputs]
    if method == "at":  # the first is written to, the second holds places
        return [*plain[:2], *map(narrowed, plain[2:])]
    called = method in ("__call__", "outer")
    integers = any(isinstance(value, Single) and value.dtype.kind in _INTEGERS for value in inputs)
    floats = any(getattr(value, "dtype", None) == np.float32 for value in plain)
    if integers and not floats:
        floats = any(map(_is_float, plain)) or (
            called and _makes_float64(ufunc, tuple(map(_kind_of, plain)))
        )
    if not floats:
        return plain
    plain = [narrowed(value) for value in plain]
    if called and _takes_float32_alone(ufunc):
        plain = [_as_float(value) for value in plain]
    return plain


def options_in_float32(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a ufunc's call, changed so that it computes in float32.
    Arrays of the class `Single` become plain arrays. Float64 and complex128 arrays become float32
    and complex64. If the argument ``dtype`` is float64 or complex128, it changes likewise."""
    plain = {name: narrowed(bare(value)) for name, value in options.items()}
    if plain.get("dtype") is not None:
        plain["dtype"] = _NARROWED.get(np.dtype(plain["dtype"]).char, plain["dtype"])
    return plain


def float32_quotient(
    result: Any, ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]
) -> list[Any] | None:
    """Return dividend and divisor as float32 if a result is their float32 quotient, else None. The
    call that gave the result must be a plain division, without options."""
    plain = ufunc is np.true_divide and method == "__call__" and not options
    if not plain or getattr(result, "dtype", None) != np.float32:
        return None
    return [
        np.asarray(bare(value), np.float32) for value in operands_in_float32(ufunc, method, inputs)
    ]


def narrowed(value: Any, *, weak: bool = True) -> Any:
    """Return a float64 array as float32, and a float64 scalar as a Python float. If `weak` is
    False, a scalar becomes a float32, too. Any other value is returned as it is."""
    kind = getattr(getattr(value, "dtype", None), "char", "")
    if kind not in _NARROWED or not isinstance(value, (np.ndarray, np.generic)):
        return value
    if weak and isinstance(value, np.generic):
        return value.item()
    with np.errstate(all="ignore"):
        return value.astype(_NARROWED[kind])


def _as_float(value: Any) -> Any:
    """Convert integer arrays to float32 and integer scalars to Python numbers. Numpy would widen a
    float32 operand that meets the integers."""
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind not in _INTEGERS:
        return value
    return value.item() if isinstance(value, np.generic) else value.astype(np.float32)


@functools.cache
def _takes_float32_alone(ufunc: np.ufunc) -> bool:
    """Tell whether a ufunc can take and return only float32, unlike ``ldexp``."""
    return f"{'f' * ufunc.nin}->{'f' * ufunc.nout}" in ufunc.types


def _is_float(value: Any) -> bool:
    kind = getattr(getattr(value, "dtype", None), "char", "")
    return isinstance(value, float) or kind in ("f", "d")


def _holds_float(value: Any) -> bool:
    return any(map(_holds_float, value)) if type(value) in (list, tuple) else _is_float(value)


def _kind_of(value: Any) -> Any:
    """Return the dtype of an operand; for a Python number, its class."""
    return getattr(value, "dtype", None) or type(value)


@functools.cache
def _makes_float64(ufunc: np.ufunc, kinds: tuple[Any, ...]) -> bool:
    """Tell whether a ufunc returns float64 for operands of these dtypes."""
    try:
        resolved = ufunc.resolve_dtypes((*kinds, *[None] * ufunc.nout))
    except (TypeError, ValueError):
        return False
    return any(kind == np.float64 for kind in resolved[len(kinds) :])


def _argument(value: Any, *, multiplied: bool) -> Any:
    """Return an argument of a numpy function with float32 arrays in place of float64 arrays. Lists
    and tuples are converted item by item. `multiplied` is True for a matrix product with a float
    operand: then integer arrays become float32, too."""
    if type(value) in (list, tuple):
        return type(value)(_argument(inner, multiplied=multiplied) for inner in value)
    if isinstance(value, Single):
        whole = multiplied and value.dtype.kind in _INTEGERS
        return value.astype(np.float32) if whole else value
    value = narrowed(value)
    return _as_float(value) if multiplied else value


class Making(Struct):
    """Facts that `staying_single` collects while a reference is evaluated in float32."""

    kind: type[Single]  # class of the new float32 arrays, such as ``np.zeros(n)``
    # Number of new arrays that were not made from a `Single`, such as those of ``np.arange``
    count: int = 0


_MAKING: ContextVar[Making | None] = ContextVar("staying_single", default=None)


@contextmanager
def staying_single(inputs: Arrays | None = None) -> Iterator[Making]:
    """Inside the context, let the functions of `MAKERS` return float32 arrays as `Single`."""
    kinds = [type(array).made for array in (inputs or {}).values() if isinstance(array, Single)]
    making = Making(kinds[0] if kinds else Single)
    token = _MAKING.set(making)
    try:
        yield making
    finally:
        _MAKING.reset(token)


def _made_in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        made = narrowed(function(*args, **kwargs), weak=False)
        making = _MAKING.get()
        if type(made) is not np.ndarray or making is None:
            return made
        of_single = bool(args) and isinstance(args[0], Single)
        making.count += not of_single
        kind = type(args[0]) if of_single else making.kind
        holds_integers = of_single or kind.holds_integers
        if made.dtype == np.float32 or (holds_integers and made.dtype.kind in _INTEGERS):
            return made.view(kind)
        return made

    return make


MAKERS = {
    name: _made_in_float32(getattr(np, name))
    for name in (
        "array", "asarray", "ascontiguousarray", "asfortranarray", "zeros", "ones", "empty", "full",
        "eye", "identity", "linspace", "arange",
    )
}  # fmt: skip
"""Replacements, by name, for functions of numpy that return float64 by default, or that drop an
array's class. A shadow calls the replacements."""

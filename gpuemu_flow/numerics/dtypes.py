"""Element types: names to numpy dtypes and back, the limits of float formats, exact widening."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.types import COMPLEX, DTYPES, canonical_dtype

ML_DTYPES_NAMES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
_FLOAT64 = np.dtype(np.float64)
_REMEMBERED = 256
"""Number of dtypes whose names are cached: each case asks for a dozen."""
_KIND_LETTERS = {"float": "f", "int": "i", "uint": "u", "bool": "b"}
_NAMES_BY_KIND = {
    (_KIND_LETTERS[d.kind], d.itemsize): d.name
    for d in DTYPES.values()
    if d.name not in ML_DTYPES_NAMES
}


def _known_name(name: str) -> str:
    canonical = canonical_dtype(name)
    if canonical is None:
        hint = did_you_mean(name.strip().lower(), tuple(DTYPES))
        raise UsageError(Problem("unknown-dtype", f"unknown dtype {name!r}", hint))
    return canonical


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a name or alias, in native byte order.

    ``bfloat16`` and ``float8`` come from `ml_dtypes`, which is imported only for them.

    Raises UsageError: ``unknown-dtype``.
    """
    canonical = _known_name(name)
    if canonical in ML_DTYPES_NAMES:
        import ml_dtypes  # noqa: PLC0415 - most ops need none of its types

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, canonical))
        return extended
    return np.dtype(canonical)


def dtype_name(dtype: np.dtype[Any] | type) -> str | None:
    """Return the canonical name of a numpy dtype or scalar type.

    Return None for dtypes without a canonical name: complex, long double, text, objects, records,
    and any dtype in foreign byte order.
    """
    if not isinstance(dtype, np.dtype):
        if not isinstance(dtype, type):
            return None
        try:
            dtype = np.dtype(dtype)
        except TypeError:
            return None
    return _name_of(dtype)


@functools.lru_cache(maxsize=_REMEMBERED)
def _name_of(dtype: np.dtype[Any]) -> str | None:
    if dtype.type.__module__ == "ml_dtypes":
        return dtype.name if dtype.isnative and dtype.name in ML_DTYPES_NAMES else None
    return _NAMES_BY_KIND.get((dtype.kind, dtype.itemsize)) if dtype.isnative else None


def element_name(dtype: np.dtype[Any] | type) -> str | None:
    """Return the name of a dtype as `dtype_name` does, but also of complex dtypes."""
    if isinstance(dtype, np.dtype) and dtype.kind == "c" and dtype.isnative:
        return dtype.name if dtype.name in COMPLEX else None
    return dtype_name(dtype)


def element_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a name that `element_name` gives."""
    return np.dtype(name) if name in COMPLEX else numpy_dtype(name)


class FloatLimits(Struct, frozen=True):
    """Limits of a binary float format; float64 represents all of them exactly."""

    name: str
    # `mantissa_bits` counts the stored bits; the precision is one bit more
    bits: int
    exponent_bits: int
    mantissa_bits: int
    eps: float  # Distance from 1 to the next larger value, ``2 ** -mantissa_bits``
    max: float  # largest finite value
    smallest_normal: float
    smallest_subnormal: float
    # Exponents of `smallest_normal` and of the binade of `max`
    min_exponent: int
    max_exponent: int
    has_inf: bool = True
    has_nan: bool = True


def _limits(name: str, exponent_bits: int, mantissa_bits: int, *, finite: bool) -> FloatLimits:
    """Derive a format's limits from the widths of its exponent and fraction.

    See IEEE 754-2019, 3.3. A `finite` format uses the topmost exponent for numbers, too; only the
    code with all bits set is NaN (Micikevicius et al., "FP8 formats for deep learning", 2022).
    """
    bias = (1 << (exponent_bits - 1)) - 1
    eps = 2.0**-mantissa_bits
    max_exponent = bias + 1 if finite else bias
    top_significand = 2.0 - (2.0 * eps if finite else eps)
    return FloatLimits(
        name=name,
        bits=1 + exponent_bits + mantissa_bits,
        exponent_bits=exponent_bits,
        mantissa_bits=mantissa_bits,
        eps=eps,
        max=top_significand * 2.0**max_exponent,
        smallest_normal=2.0 ** (1 - bias),
        smallest_subnormal=2.0 ** (1 - bias - mantissa_bits),
        min_exponent=1 - bias,
        max_exponent=max_exponent,
        has_inf=not finite,
    )


FLOAT_LIMITS: dict[str, FloatLimits] = {
    limits.name: limits
    for limits in (
        _limits("float16", 5, 10, finite=False),
        _limits("bfloat16", 8, 7, finite=False),
        _limits("float8_e4m3fn", 4, 3, finite=True),
        _limits("float8_e5m2", 5, 2, finite=False),
        _limits("float32", 8, 23, finite=False),
        _limits("float64", 11, 52, finite=False),
    )
}


def float_limits(name: str) -> FloatLimits:
    """Return the limits of a float format, by name or alias.

    Raises UsageError: ``unknown-dtype``, or ``not-a-float-dtype`` for integers and bool.
    """
    canonical = _known_name(name)
    if canonical not in FLOAT_LIMITS:
        raise UsageError(Problem("not-a-float-dtype", f"{canonical} is not a float format"))
    return FLOAT_LIMITS[canonical]


@functools.cache
def _float32_of_bits(name: str) -> NDArray[np.float32]:
    """Return the float32 value of each bit pattern of an 8- or 16-bit float."""
    words = np.uint8 if DTYPES[name].itemsize == 1 else np.uint16
    patterns = np.arange(np.iinfo(words).max + 1, dtype=words)
    with np.errstate(invalid="ignore"):
        table = patterns.view(numpy_dtype(name)).astype(np.float32)
    table.setflags(write=False)
    return table


@functools.lru_cache(maxsize=_REMEMBERED)
def _name_in_any_order(dtype: np.dtype[Any]) -> str | None:
    return dtype_name(dtype.newbyteorder("="))


def _named(a: NDArray[Any]) -> tuple[NDArray[Any], str]:
    array = np.asarray(a)
    name = _name_in_any_order(array.dtype)
    if name is None:
        raise UsageError(
            Problem("unknown-dtype", f"arrays of dtype {array.dtype} cannot be compared or widened")
        )
    return array, name


def _table_lookup(array: NDArray[Any], name: str) -> NDArray[np.float32]:
    native = np.ascontiguousarray(array.astype(numpy_dtype(name), copy=False))
    patterns = native.view(np.uint8 if native.itemsize == 1 else np.uint16)
    # Every pattern is in the table; "clip" says so to numpy, which then does not look for others.
    # ascontiguousarray makes 0-d arrays 1-d, hence the reshape.
    return _float32_of_bits(name).take(patterns, mode="clip").reshape(array.shape)


def to_float32(a: NDArray[Any]) -> NDArray[np.float32]:
    """Return any array of a known dtype as native float32.

    The result is exact for floats of 16 bits and fewer, bool and small integers; other values are
    rounded to nearest even. Overflow to infinity gives no warning. An array that already is float32
    is returned itself, not copied.

    Raises UsageError: ``unknown-dtype`` for complex numbers, objects and the like.
    """
    array, name = _named(a)
    if name in ("float16", "float8_e4m3fn", "float8_e5m2"):
        return _table_lookup(array, name)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float32, copy=False)


def to_float64(a: NDArray[Any]) -> NDArray[np.float64]:
    """Return any array of a known dtype as native float64.

    The result is exact for all floats and for integers up to 2**53; other values are rounded to
    nearest even. An array that already is float64 is returned itself, not copied.

    Raises UsageError: ``unknown-dtype`` for complex numbers, objects and the like.
    """
    if type(a) is np.ndarray and a.dtype is _FLOAT64:
        return a
    array, name = _named(a)
    if name in ("float8_e4m3fn", "float8_e5m2"):
        return _table_lookup(array, name).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return array.astype(np.float64, copy=False)


def share_held(values: NDArray[np.float64], name: str) -> float:
    """Return the share of the values that a format represents exactly."""
    rounded = to_float64(values.astype(numpy_dtype(name)))
    return float(np.count_nonzero(rounded == values)) / values.size


def widened(inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the inputs with floats converted to float64."""
    return {n: to_float64(a) if a.dtype.kind not in "iub" else a for n, a in inputs.items()}

"""Element types: names to numpy dtypes and back, the limits of float formats, exact widening."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import COMPLEX, DTYPES, Json, canonical_dtype

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
    """Return the numpy dtype of a name or alias, in native byte order. ``bfloat16`` and ``float8``
    come from `ml_dtypes`, which is imported only for them. Raises UsageError: ``unknown-dtype``."""
    canonical = _known_name(name)
    if canonical in ML_DTYPES_NAMES:
        import ml_dtypes  # noqa: PLC0415 - most ops need none of its types

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, canonical))
        return extended
    return np.dtype(canonical)


def dtype_name(dtype: np.dtype[Any] | type) -> str | None:
    """Return the canonical name of a numpy dtype or scalar type. Return None for dtypes without a
    canonical name: complex, long double, text, objects, records, and any dtype in foreign byte
    order."""
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
    if isinstance(dtype, np.dtype) and dtype.kind == "c" and dtype.isnative:
        return dtype.name if dtype.name in COMPLEX else None
    return dtype_name(dtype)


def element_dtype(name: str) -> np.dtype[Any]:
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
    """Derive a format's limits from the widths of its exponent and fraction. See IEEE 754-2019,
    3.3. A `finite` format uses the topmost exponent for numbers, too; only the code with all bits
    set is NaN (Micikevicius et al., "FP8 formats for deep learning", 2022)."""
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
    """Return the limits of a float format, by name or alias. Raises UsageError: ``unknown-dtype``,
    or ``not-a-float-dtype`` for integers and bool."""
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
    """Return any array of a known dtype as native float32. The result is exact for floats of 16
    bits and fewer, bool and small integers; other values are rounded to nearest even. Overflow to
    infinity gives no warning. An array that already is float32 is returned itself, not copied.
    Raises UsageError: ``unknown-dtype`` for complex numbers, objects and the like."""
    array, name = _named(a)
    if name in ("float16", "float8_e4m3fn", "float8_e5m2"):
        return _table_lookup(array, name)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(np.float32, copy=False)


def to_float64(a: NDArray[Any]) -> NDArray[np.float64]:
    """Return any array of a known dtype as native float64. The result is exact for all floats and
    for integers up to 2**53; other values are rounded to nearest even. An array that already is
    float64 is returned itself, not copied. Raises UsageError: ``unknown-dtype`` for complex
    numbers, objects and the like."""
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


Array = NDArray[Any]
Float64Array = NDArray[np.float64]

NON_FINITE_DISTANCE = (1 << 64) - 1
"""Distance reported where either operand is NaN or infinite, as in wire protocol v1."""

_EXPONENT_FIELD = np.int64(0x7FF << 52)


def bit_view(array: Array) -> Array:
    """View the bit patterns of a float array as signed integers of the same width."""
    return array.view(np.dtype(f"i{array.dtype.itemsize}"))


def ordered_keys(array: Array) -> NDArray[np.int64]:
    """Return integer keys in the order of the floats, consecutive for neighbours in the format. A
    key is the bit pattern as a signed integer; where it is negative, all bits but the sign are
    inverted. +0 and -0 get 0 and -1, one apart, as in wire protocol v1. NaNs lie beyond the
    infinities."""
    bits = bit_view(array)
    top = bits.dtype.type(8 * array.itemsize - 1)
    flipped = (bits >> top) & np.iinfo(bits.dtype).max
    flipped ^= bits
    keys: NDArray[np.int64] = flipped.astype(np.int64, copy=False)
    return keys


def ulp_distance(actual: Array, expected: Array) -> NDArray[np.uint64]:
    """Count the steps between representable values of the dtype from `expected` to `actual`."""
    key_a, key_e = ordered_keys(actual), ordered_keys(expected)
    # Modulo 2**64 the larger minus the smaller is the exact distance; float64 needs all 64 bits.
    with np.errstate(over="ignore"):
        steps = np.subtract(np.maximum(key_a, key_e), np.minimum(key_a, key_e)).view(np.uint64)
    finite = _is_finite(actual) & _is_finite(expected)
    distance: NDArray[np.uint64] = np.where(finite, steps, np.uint64(NON_FINITE_DISTANCE))
    return distance


def _is_finite(array: Array) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = np.isfinite(array if array.itemsize > 2 else to_float32(array))
    return result


def spacing(values: Float64Array, fmt: FloatLimits) -> Float64Array:
    """Return the distance from each value's magnitude to the next larger one in the format. The
    distance is ``2 ** (max(floor(log2 |v|), min_exponent) - mantissa_bits)``. Magnitudes beyond the
    format's largest value count as the largest."""
    clipped = np.minimum(np.abs(values), fmt.max)
    # Clearing the fraction leaves the power of two below; zero for float64 subnormals, which the
    # smallest normal number then stands in for.
    powers = (clipped.view(np.int64) & _EXPONENT_FIELD).view(np.float64)
    result: Float64Array = np.maximum(powers, fmt.smallest_normal) * fmt.eps
    return result


def max_steps_finite(actual: Array, expected: Array, scratch: Array) -> int:
    """Return the largest `ulp_distance` of two finite arrays of one dtype, by integer arithmetic.
    Bit patterns of one sign are ordered like the values, so that their difference is the distance.
    If the signs differ, the distance is the sum of both distances from zero, plus one for the step
    between the two zeros."""
    bits_a, bits_e = bit_view(actual), bit_view(expected)
    difference = scratch.view(bits_a.dtype)[: bits_a.size]
    np.bitwise_xor(bits_a, bits_e, out=difference)
    crossing = None
    if int(np.minimum.reduce(difference)) < 0:
        crossing = np.flatnonzero(difference < 0)
    np.subtract(bits_a, bits_e, out=difference)
    if crossing is not None:
        difference[crossing] = 0
    largest = max(int(np.maximum.reduce(difference)), -int(np.minimum.reduce(difference)))
    if crossing is None:
        return largest
    magnitude = np.uint64((1 << (8 * actual.itemsize - 1)) - 1)
    across = (bits_a[crossing].astype(np.uint64) & magnitude) + (
        bits_e[crossing].astype(np.uint64) & magnitude
    )
    return max(largest, int(across.max()) + 1)


def max_spacings_finite(
    error: Float64Array, expected: Float64Array, fmt: FloatLimits, scratch: Float64Array
) -> float:
    """Return the largest ``error / spacing(expected)`` of finite values; overwrites `scratch`."""
    powers = scratch[: expected.size]
    np.bitwise_and(expected.view(np.int64), _EXPONENT_FIELD, out=powers.view(np.int64))
    np.clip(powers, fmt.smallest_normal, 2.0**fmt.max_exponent, out=powers)
    np.divide(error, powers, out=powers)
    return float(np.maximum.reduce(powers)) / fmt.eps


class TensorBytesError(ValueError):
    """Raised for bytes that cannot be the elements of a tensor. The message has no subject, such as
    ``holds bytes that are no bool``. Callers put the tensor's name before it."""


class ImpossibleShapeError(TensorBytesError):
    """Raised for a shape that no numpy array can have, such as one with too many elements. Some
    shapes with a dim of 0 are impossible, too: numpy limits the product of the other dims."""


def bytes_of(array: Array) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def is_size(value: Json) -> bool:
    """Tell whether a JSON value is an integer that a dim can have."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def tensor_of(raw: bytes | NDArray[np.uint8], shape: tuple[int, ...], dtype: str) -> Array:
    """Return a tensor that views the given bytes, which are in C order, without a copy. Raises
    ImpossibleShapeError. Raises TensorBytesError if a byte of a bool is neither 0 nor 1."""
    if dtype == "bool" and len(raw) and int(np.max(np.frombuffer(raw, np.uint8))) > 1:
        raise TensorBytesError("holds bytes that are no bool")
    try:
        if isinstance(raw, bytes):
            array: Array = np.ndarray(shape, element_dtype(dtype), raw)
            return array
        return raw.view(element_dtype(dtype)).reshape(shape)
    except (ValueError, OverflowError):
        raise ImpossibleShapeError(f"has the impossible shape {list(shape)!r:.80}") from None

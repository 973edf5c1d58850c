"""Names of element types, the limits of the float formats, and exact widening."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.model.types import DTYPE_ALIASES, DTYPES
from gpuemu_flow.numerics.dtypes import (
    FLOAT_LIMITS,
    dtype_name,
    float_limits,
    numpy_dtype,
    to_float32,
    to_float64,
)

FLOATS = [name for name, dtype in DTYPES.items() if dtype.kind == "float"]
NARROW = [name for name in FLOATS if DTYPES[name].itemsize <= 2]


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def every_pattern(name: str) -> np.ndarray:
    """Each value of an 8- or 16-bit format, NaN included."""
    words = np.uint8 if DTYPES[name].itemsize == 1 else np.uint16
    return np.arange(np.iinfo(words).max + 1).astype(words).view(numpy_dtype(name))


def decode(pattern: int, name: str) -> float:
    """The value of a bit pattern by the definition of the format (IEEE 754-2019, 3.4)."""
    limits = float_limits(name)
    mantissa = pattern & ((1 << limits.mantissa_bits) - 1)
    exponent = (pattern >> limits.mantissa_bits) & ((1 << limits.exponent_bits) - 1)
    sign = -1.0 if pattern >> (limits.bits - 1) else 1.0
    top = exponent == (1 << limits.exponent_bits) - 1
    if top and limits.has_inf:
        return sign * float("inf") if mantissa == 0 else float("nan")
    if top and mantissa == (1 << limits.mantissa_bits) - 1:
        return float("nan")
    bias = (1 << (limits.exponent_bits - 1)) - 1
    if exponent == 0:
        return sign * mantissa * limits.eps * 2.0 ** (1 - bias)
    return sign * (1.0 + mantissa * limits.eps) * 2.0 ** (exponent - bias)


def test_names_and_dtypes_are_inverse() -> None:
    for name, dtype in DTYPES.items():
        assert dtype_name(numpy_dtype(name)) == name
        assert dtype_name(numpy_dtype(name).type) == name
        assert numpy_dtype(name).itemsize == dtype.itemsize


def test_aliases() -> None:
    for alias, name in DTYPE_ALIASES.items():
        assert numpy_dtype(f" {alias.upper()} ") == numpy_dtype(name)


@for_each(
    "dtype",
    [
        np.dtype(np.complex64),
        np.dtype(np.longdouble),
        np.dtype(">f4"),
        np.dtype(">i8"),
        np.dtype(ml_dtypes.bfloat16).newbyteorder(">"),
        np.dtype(ml_dtypes.float8_e4m3fnuz),
        np.dtype(ml_dtypes.int4),
        np.dtype("V2"),
        np.dtype("S4"),
        np.dtype("U1"),
        np.dtype("M8[s]"),
        np.dtype([("x", "f4")]),
        np.dtype(("f4", (2,))),
        np.dtype(object),
        str,
        dict,
        None,
        "float32",
        7,
    ],
)
def test_foreign_dtypes_have_no_name(dtype: Any) -> None:
    assert dtype_name(dtype) is None


def test_python_types() -> None:
    assert (dtype_name(float), dtype_name(int), dtype_name(bool)) == ("float64", "int64", "bool")
    assert dtype_name(np.dtype("longlong")) == "int64"


@pytest.mark.parametrize("name", ["", "float33", "complex64", "object", ">f4", "float32 x"])
def test_unknown_names_are_refused(name: str) -> None:
    for ask in (numpy_dtype, float_limits):
        with pytest.raises(UsageError) as caught:
            ask(name)
        assert caught.value.slug == "unknown-dtype"


def test_a_misspelt_name_gets_a_hint() -> None:
    with pytest.raises(UsageError, match="bfloat16"):
        numpy_dtype("bfloat61")


def test_integers_have_no_float_limits() -> None:
    for name in ("int32", "bool", "uint8"):
        with pytest.raises(UsageError) as caught:
            float_limits(name)
        assert caught.value.slug == "not-a-float-dtype"


@pytest.mark.parametrize("name", FLOATS)
def test_limits_agree_with_the_libraries(name: str) -> None:
    limits, info = float_limits(name), ml_dtypes.finfo(numpy_dtype(name))
    assert limits.name == name
    assert limits.bits == info.bits == DTYPES[name].itemsize * 8
    assert (limits.exponent_bits, limits.mantissa_bits) == (info.nexp, info.nmant)
    assert limits.eps == float(info.eps)
    assert limits.max == float(info.max)
    assert limits.smallest_normal == float(info.smallest_normal) == 2.0**limits.min_exponent
    assert limits.smallest_subnormal == float(info.smallest_subnormal)
    assert 2.0**limits.max_exponent <= limits.max
    assert limits.max / 2.0**limits.max_exponent < 2.0


def test_which_formats_hold_infinities() -> None:
    assert {name for name, limits in FLOAT_LIMITS.items() if not limits.has_inf} == {
        "float8_e4m3fn"
    }
    assert all(limits.has_nan for limits in FLOAT_LIMITS.values())


@pytest.mark.parametrize("widen", [to_float32, to_float64])
def test_every_narrow_value_widens_exactly(widen: Any) -> None:
    for name in NARROW:
        patterns = every_pattern(name)
        expected = np.array([decode(pattern, name) for pattern in range(patterns.size)])
        wide = widen(patterns)
        assert np.array_equal(np.isnan(wide), np.isnan(expected))
        finite = ~np.isnan(expected)
        assert np.array_equal(wide[finite], expected[finite])
        assert np.array_equal(np.signbit(wide[finite]), np.signbit(expected[finite]))


@pytest.mark.parametrize(("widen", "target"), [(to_float32, "f4"), (to_float64, "f8")])
def test_widening_keeps_shape_and_order(widen: Any, target: str) -> None:
    for name in list(DTYPES):
        grid = np.arange(24).reshape(2, 3, 4) % 2
        array = grid.astype(numpy_dtype(name))
        for view in (
            array,
            array.T,
            array[:, ::-1, ::2],
            array[0, 0, 0],
            array[:0],
            array[..., None],
        ):
            wide = widen(view)
            assert wide.dtype == np.dtype(target)
            assert wide.dtype.isnative
            assert wide.shape == view.shape
            assert np.array_equal(wide, np.asarray(view).astype(np.float64))


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int16", "int64", "uint32"])
def test_foreign_byte_order_is_read_right(name: str) -> None:
    values = np.array([0, 1, 2, 100], dtype=np.dtype(name).newbyteorder(">"))
    assert to_float32(values).tolist() == to_float64(values).tolist() == [0.0, 1.0, 2.0, 100.0]


def test_nothing_is_copied_without_need() -> None:
    singles, doubles = np.ones(3, dtype=np.float32), np.ones(3)
    assert to_float32(singles) is singles
    assert to_float64(doubles) is doubles


def test_overflow_is_silent_infinity() -> None:
    assert to_float32(np.array([1e300, -1e300])).tolist() == [np.inf, -np.inf]


def test_signalling_nans_are_silent() -> None:
    signalling = np.array([0x7F800001], dtype=np.uint32).view(np.float32)
    assert np.isnan(to_float64(signalling)).all()
    signalling = np.array([0x7FF0000000000001], dtype=np.uint64).view(np.float64)
    assert np.isnan(to_float32(signalling)).all()


@pytest.mark.parametrize("dtype", ["complex64", "object", "M8[s]", "U3", "longdouble"])
def test_what_cannot_be_widened_is_refused(dtype: str) -> None:
    for widen in (to_float32, to_float64):
        with pytest.raises(UsageError) as caught:
            widen(np.zeros(2, dtype=dtype))
        assert caught.value.slug == "unknown-dtype"

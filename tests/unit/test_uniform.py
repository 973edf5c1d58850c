"""The values of the strategy `uniform`, per dtype, from single draws and by definition."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.model.types import DTYPES
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.numerics.rng import SeededRng
from gpuemu_flow.numerics.rng_arrays import fill_uniform, truncate_to_half

COUNT = 3000


def half_pattern(value: float) -> int:
    """The truncating conversion as its definition says it, one value at a time."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    sign = (bits >> 16) & 0x8000
    exponent = ((bits >> 23) & 255) - 112
    if exponent <= 0:
        return sign
    if exponent >= 31:
        return sign | 0x7C00
    return sign | (exponent << 10) | ((bits >> 13) & 0x3FF)


def single(rng: SeededRng) -> float:
    return float(np.float32((2.0 * rng.gen_f64() - 1.0) * 10.0))


DRAWS: dict[str, Callable[[SeededRng], float]] = {
    "float64": lambda rng: (2.0 * rng.gen_f64() - 1.0) * 10.0,
    "float32": single,
    **{
        name: lambda rng: rng.gen_range(0, 200) - 100
        for name in ("int8", "int16", "int32", "int64")
    },
    "uint8": lambda rng: rng.gen_u64() & 0xFF,
    "uint16": lambda rng: rng.gen_u64() & 0xFFFF,
    "uint32": lambda rng: rng.gen_u64() & 0xFFFFFFFF,
    "uint64": SeededRng.gen_u64,
    "bool": lambda rng: rng.gen_bool(0.5),
}


@for_each("dtype", list(DRAWS))
def test_values_equal_single_draws(dtype: str) -> None:
    rng, reference = SeededRng(12), SeededRng(12)
    values = fill_uniform(rng, COUNT, dtype)
    assert values.dtype == numpy_dtype(dtype)
    assert values.tolist() == [DRAWS[dtype](reference) for _ in range(COUNT)]
    assert rng.state == reference.state


@pytest.mark.parametrize(
    ("dtype", "v1"), [("float16", False), ("float16", True), ("bfloat16", True)]
)
def test_half_patterns_are_truncated(dtype: str, v1: bool) -> None:
    values = fill_uniform(SeededRng(12), COUNT, dtype, protocol_v1=v1)
    reference = SeededRng(12)
    assert values.dtype == numpy_dtype(dtype)
    expected = [half_pattern(single(reference)) for _ in range(COUNT)]
    assert values.view(np.uint16).tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "v1"),
    [
        ("bfloat16", False),
        *((name, v1) for name in ("float8_e4m3fn", "float8_e5m2") for v1 in (0, 1)),
    ],
)
def test_narrow_floats_are_the_nearest_even(dtype: str, v1: bool) -> None:
    values = fill_uniform(SeededRng(12), COUNT, dtype, protocol_v1=bool(v1))
    words = np.uint8 if DTYPES[dtype].itemsize == 1 else np.uint16
    patterns = np.arange(np.iinfo(words).max + 1).astype(words)
    with np.errstate(invalid="ignore"):
        representable = patterns.view(numpy_dtype(dtype)).astype(np.float64)
    order = np.argsort(representable[np.isfinite(representable)], kind="stable")
    patterns = patterns[np.isfinite(representable)][order]
    representable = representable[np.isfinite(representable)][order]
    reference = SeededRng(12)
    for value in values:
        exact = single(reference)
        distance = np.abs(representable - exact)
        nearest = np.flatnonzero(distance == distance.min())
        chosen = [representable[i] for i in nearest if nearest.size == 1 or patterns[i] % 2 == 0]
        assert float(value) in chosen


@for_each("dtype", list(DTYPES))
def test_every_dtype_advances_by_count(dtype: str) -> None:
    for count in (0, 1, 5, 1100, 6000):
        rng, words = SeededRng(4), SeededRng(4)
        values = fill_uniform(rng, count, dtype)
        words.u64(count)
        assert values.shape == (count,)
        assert rng.state == words.state


@pytest.mark.parametrize("dtype", [n for n, d in DTYPES.items() if d.kind == "float"])
def test_floats_are_finite_and_within_ten(dtype: str) -> None:
    values = fill_uniform(SeededRng(2), 20_000, dtype).astype(np.float64)
    assert np.isfinite(values).all()
    assert np.abs(values).max() <= 10.0
    assert values.min() < -9.0
    assert values.max() > 9.0


def test_aliases_are_accepted() -> None:
    assert fill_uniform(SeededRng(1), 3, "BF16").dtype == ml_dtypes.bfloat16
    assert fill_uniform(SeededRng(1), 3, "half").dtype == np.float16


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(UsageError) as caught:
        fill_uniform(SeededRng(1), 3, "complex64")
    assert caught.value.slug == "unknown-dtype"
    for dtype in DTYPES:
        with pytest.raises(ValueError, match="cannot draw -1 values"):
            fill_uniform(SeededRng(1), -1, dtype)


def test_truncation_at_the_edges_of_the_format() -> None:
    values = [0.0, -0.0, 1.0, -1.5, 6.1e-5, 2.0**-14, -(2.0**-15), 65504.0, 65519.0, 65536.0]
    values += [math.inf, -math.inf, 1e38, 1e-45, 0.1, 1.0 + 2.0**-11, 3.0 * 2.0**-11 + 1.0]
    patterns = truncate_to_half(np.array(values, dtype=np.float32))
    assert patterns.tolist() == [half_pattern(value) for value in values]
    assert patterns.dtype == np.uint16
    assert truncate_to_half(np.float32([[math.nan]])).tolist() == [[0x7C00]]

"""Properties of the comparison on arbitrary arrays: agreement with the formula, and invariances."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpuemu_flow.model.types import CheckResult, FailureKind, Tolerance, Verdict
from gpuemu_flow.numerics import blocked, statistics
from gpuemu_flow.numerics.compare import Policy, check_outputs
from gpuemu_flow.numerics.dtypes import ulp_distance
from gpuemu_flow.numerics.shadow import shadow_source

FLOATS = st.sampled_from([np.float32, np.float64, np.float16])
TOLERANCES = st.floats(0, 1e200) | st.sampled_from([0.0, 1e-10, 1e-5, 1e-2, 1.0])


@st.composite
def pairs(draw: Any) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of one dtype and shape, the second partly near the first."""
    dtype = np.dtype(draw(FLOATS))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
    elements = hnp.from_dtype(dtype, allow_nan=True, allow_infinity=True)
    first = draw(hnp.arrays(dtype, shape, elements=elements))
    second = draw(hnp.arrays(dtype, shape, elements=elements))
    near = draw(hnp.arrays(bool, shape))
    steps = draw(hnp.arrays(np.int8, shape, elements=st.integers(-3, 3)))
    bits = first.view(f"i{dtype.itemsize}")
    with np.errstate(all="ignore"):
        moved = (bits + steps.astype(bits.dtype)).view(dtype)
    return first, np.where(near, moved, second).astype(dtype).reshape(shape)


def check(
    actual: np.ndarray, expected: np.ndarray, atol: float, rtol: float, **policy: Any
) -> CheckResult:
    name = actual.dtype.name
    tolerance = {name: Tolerance(atol, rtol)}
    return check_outputs(
        {"y": actual}, {"y": expected}, tolerance=tolerance, policy=Policy(**policy)
    )


def close(a: float, e: float, atol: float, rtol: float) -> bool:
    """The documented formula, one element, Python floats."""
    if math.isnan(a) or math.isnan(e):
        return math.isnan(a) and math.isnan(e)
    if math.isinf(a) or math.isinf(e):
        return a == e
    return abs(a - e) <= atol + rtol * abs(e)


@settings(deadline=None)
@given(pairs(), TOLERANCES, TOLERANCES)
def test_an_element_fails_exactly_when_the_formula_says_so(
    pair: tuple[np.ndarray, np.ndarray], atol: float, rtol: float
) -> None:
    actual, expected = pair
    result = check(actual, expected, atol, rtol)
    failing = [
        index
        for index in np.ndindex(actual.shape)
        if not close(float(actual[index]), float(expected[index]), atol, rtol)
    ]
    assert result.stats.num_exceeding == len(failing)
    nothing = not actual.size or bool(np.isnan(expected).all())  # finite inputs lead to NaN alone
    held = Verdict.INCONCLUSIVE if nothing else Verdict.PASSED
    assert result.verdict is (Verdict.FAILED if failing else held)
    for failure in result.failures:
        assert failure.index in failing
    if failing:
        assert result.stats.worst_index in failing


@settings(deadline=None)
@given(pairs(), st.integers(1, 7), st.floats(0, 1))
def test_block_size_changes_nothing(
    pair: tuple[np.ndarray, np.ndarray], block: int, rtol: float
) -> None:
    actual, expected = pair
    whole = check(actual, expected, 1e-5, rtol)
    statistics.sample_positions.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "EXACT_SIZE", 0)
        patch.setattr(blocked, "BLOCK_BYTES", 8 * block)
        blocks = check(actual, expected, 1e-5, rtol)
    statistics.sample_positions.cache_clear()
    assert blocks.verdict is whole.verdict
    assert [f.kind for f in blocks.failures] == [f.kind for f in whole.failures]
    for member in ("count", "num_exceeding", "max_abs", "max_ulp"):
        assert getattr(blocks.stats, member) == getattr(whole.stats, member), member
    for member in ("mean_abs", "max_rel", "tolerance_used"):
        found, wanted = getattr(blocks.stats, member), getattr(whole.stats, member)
        assert found == pytest.approx(wanted, rel=1e-6, abs=1e-300), member


@settings(deadline=None)
@given(pairs(), TOLERANCES)
def test_strides_change_nothing(pair: tuple[np.ndarray, np.ndarray], rtol: float) -> None:
    actual, expected = pair
    gaps = np.full((*actual.shape, 2), np.nan, actual.dtype)
    gaps[..., 0] = actual
    wanted = repr(check(actual, expected, 1e-5, rtol))  # NaN does not equal itself, its text does
    assert repr(check(gaps[..., 0], expected, 1e-5, rtol)) == wanted
    if actual.ndim:
        assert repr(check(np.asfortranarray(actual), expected, 1e-5, rtol)) == wanted


@settings(deadline=None)
@given(pairs())
def test_equal_outputs_always_match(pair: tuple[np.ndarray, np.ndarray]) -> None:
    actual, _ = pair
    result = check(actual, actual.copy(), 0.0, 0.0)
    assert result.verdict is not Verdict.FAILED
    if actual.size and np.isfinite(actual.astype(np.float64)).mean() >= 0.5:
        assert result.verdict is Verdict.PASSED  # NaN and Inf alone may leave nothing to judge
    assert result.stats.max_abs == result.stats.max_ulp == result.stats.tolerance_used == 0.0


@settings(deadline=None)
@given(pairs(), TOLERANCES, st.floats(1, 1e6))
def test_a_wider_tolerance_never_fails_more(
    pair: tuple[np.ndarray, np.ndarray], atol: float, factor: float
) -> None:
    actual, expected = pair
    narrow, wide = check(actual, expected, atol, 0.0), check(actual, expected, atol * factor, 0.0)
    assert wide.stats.num_exceeding <= narrow.stats.num_exceeding
    strict = check(actual, expected, atol, 0.0, nan_policy="strict", inf_policy="strict")
    assert strict.stats.num_exceeding >= narrow.stats.num_exceeding


@settings(deadline=None)
@given(pairs())
def test_nan_in_one_side_only_always_fails(pair: tuple[np.ndarray, np.ndarray]) -> None:
    actual, expected = pair
    result = check(actual, expected, 1e300, 1e300)
    own = np.isnan(actual) & ~np.isnan(expected)
    assert (FailureKind.NAN in [f.kind for f in result.failures]) == bool(own.any())
    if (np.isnan(actual) != np.isnan(expected)).any():
        assert result.verdict is Verdict.FAILED


@settings(deadline=None)
@given(pairs())
def test_ulp_distance_is_symmetric_and_zero_only_for_equal_bits(
    pair: tuple[np.ndarray, np.ndarray],
) -> None:
    first, second = pair
    distance = ulp_distance(first, second)
    assert np.array_equal(distance, ulp_distance(second, first))
    bits = f"i{first.itemsize}"
    finite = np.isfinite(first) & np.isfinite(second)
    assert np.array_equal(distance[finite] == 0, (first.view(bits) == second.view(bits))[finite])


@settings(deadline=None)
@given(
    hnp.arrays(np.int64, hnp.array_shapes(max_dims=2), elements=st.integers(-(2**63), 2**63 - 1)),
    st.integers(-3, 3),
)
def test_integers_fail_exactly_where_they_differ(values: np.ndarray, step: int) -> None:
    with np.errstate(over="ignore"):
        moved = values + np.int64(step)
    result = check(moved, values, 0.0, 0.0)
    wanted = [abs(int(a) - int(b)) for a, b in zip(moved.flat, values.flat, strict=True)]
    assert result.stats.num_exceeding == sum(d != 0 for d in wanted)
    assert result.stats.max_abs == float(max(wanted))


@settings(deadline=None)
@given(st.text(max_size=80) | st.text(alphabet="np.float64()'\"\n #=x,d<", max_size=60))
def test_shadow_of_any_text_neither_raises_nor_moves_lines(source: str) -> None:
    shadow = shadow_source(source)
    if shadow is not None:
        assert shadow != source
        assert shadow.count("\n") == source.count("\n")
        compile(shadow, "shadow", "exec", dont_inherit=True)

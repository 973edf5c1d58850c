"""A cast that truncates: passed by default, and failed by the tolerance that the docs name."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from gpuemu_flow.model.types import Tolerance, Verdict
from gpuemu_flow.numerics.compare import Policy, check_outputs
from gpuemu_flow.numerics.envelope import Envelope

BF16, F16 = ml_dtypes.bfloat16, np.float16
HALF_AN_ULP = {"bfloat16": Tolerance(5e-41, 0.004, "docs"), "float16": Tolerance(3e-8, 4.9e-4, "")}


def values(dtype: type) -> NDArray[np.float32]:
    rng = np.random.default_rng(4)
    sizes = np.exp2(rng.uniform(-140, 120, 4000) if dtype is BF16 else rng.uniform(-26, 15, 4000))
    return (rng.choice([-1.0, 1.0], 4000) * sizes).astype(np.float32)


def truncated(x: NDArray[np.float32], dtype: type) -> np.ndarray:
    """Take the neighbour towards zero where rounding to nearest went away from it."""
    near = x.astype(dtype)
    away = np.abs(near.astype(np.float64)) > np.abs(x.astype(np.float64))
    below = (near.view(np.uint16) - 1).view(dtype)
    return np.where(away, below, near).astype(dtype)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("wrong", [False, True])
def test_half_an_ulp_tells_truncation_from_rounding(dtype: type, wrong: bool) -> None:
    x = values(dtype)
    name = np.dtype(dtype).name
    actual = truncated(x, dtype) if wrong else x.astype(dtype)
    expected = {"y": x.astype(np.float64)}
    told = check_outputs(
        {"y": actual},
        expected,
        tolerance=HALF_AN_ULP,
        policy=Policy(),
        expected_dtypes={"y": name},
        inputs={"x": x},
    )
    assert told.verdict is (Verdict.FAILED if wrong else Verdict.PASSED), told.failures
    auto = Envelope({"x": x}, expected, None, dtype=name, seed=1, exact_op=True, weak=False)
    told = check_outputs(
        {"y": actual},
        expected,
        tolerance=auto,
        policy=Policy(),
        expected_dtypes={"y": name},
        inputs={"x": x},
    )
    assert told.verdict is Verdict.PASSED

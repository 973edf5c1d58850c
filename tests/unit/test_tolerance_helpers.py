"""Tolerances to choose from: the documented tables, both ways of asking, and calibration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.tolerances import (
    ToleranceConfig,
    ToleranceProfile,
    calibrate_tolerance,
    compare_tolerances,
    get_recommended_tolerance,
)


def pair(tolerance: ToleranceConfig) -> tuple[float, float]:
    return pytest.approx(tolerance.atol), pytest.approx(tolerance.rtol)  # type: ignore[return-value]


@for_each(
    ("made", "expected"),
    [
        (ToleranceConfig.for_dtype("float32"), (1e-5, 1e-4)),
        (ToleranceConfig.for_dtype("f16", "jax"), (1.5e-3, 1.5e-2)),
        (ToleranceConfig.for_dtype("bfloat16", "unknown"), (1e-2, 1e-1)),
        (ToleranceConfig.for_dtype("int8"), (1e-5, 1e-5)),
        (ToleranceConfig.for_dtype(np.float64), (1e-10, 1e-9)),  # type: ignore[arg-type]
        (ToleranceConfig.strict(), (1e-7, 1e-7)),
        (ToleranceConfig.strict("float16"), (1e-4, 1e-3)),
        (ToleranceConfig.relaxed(), (1e-3, 1e-3)),
        (ToleranceConfig.relaxed("bfloat16"), (5e-2, 5e-1)),
        (ToleranceConfig(1e-3, 2e-3).scale(2), (2e-3, 4e-3)),
        (ToleranceProfile.for_testing().get("float16"), (1e-3, 1e-2)),
        (ToleranceProfile.for_production().get("float32"), (1e-6, 1e-5)),
        (ToleranceProfile.get("production").get("float64"), (1e-12, 1e-11)),
        (ToleranceProfile.get("testing").get("int32"), (1e-5, 1e-5)),
        (ToleranceProfile.for_cross_framework("pytorch", "jax").get("float32"), (2.25e-5, 2.25e-4)),
        (get_recommended_tolerance("float32"), (1e-5, 1e-4)),
        (get_recommended_tolerance("float16", "pytorch", "Attention"), (2.5e-3, 2.5e-2)),
        (get_recommended_tolerance("softmax", dtype="float32"), (1.5e-5, 1.5e-4)),
        (get_recommended_tolerance("float32", op_type="conv2d"), (2e-5, 2e-4)),
        (get_recommended_tolerance("matmul", "bf16"), (1.5e-2, 1.5e-1)),
        (get_recommended_tolerance("float32", "elementwise"), (1e-5, 1e-4)),
        (get_recommended_tolerance("float32", framework="jax", operation="matmul"),
         (2.25e-5, 2.25e-4)),
    ],
)  # fmt: skip
def test_tables(made: ToleranceConfig, expected: tuple[float, float]) -> None:
    assert (made.atol, made.rtol) == pytest.approx(expected)
    assert (made["atol"], made["rtol"]) == (made.atol, made.rtol)
    assert dict(**made) == made.to_dict()  # type: ignore[arg-type]


def test_what_is_no_tolerance() -> None:
    for bad in ((-1e-9, 0.0), (0.0, -1.0), (float("nan"), 0.0)):
        with pytest.raises(ValueError, match="at least 0"):
            ToleranceConfig(*bad)
    with pytest.raises(KeyError):
        ToleranceConfig(0, 0)["ulp"]
    with pytest.raises(UsageError, match="did you mean 'testing'"):
        ToleranceProfile.get("testin")


def test_comparison() -> None:
    found = compare_tolerances(ToleranceConfig(1e-5, 1e-4), ToleranceConfig(1e-4, 0.0))
    assert found == {
        "atol_ratio": "0.10x", "rtol_ratio": "inf", "a_stricter": False, "b_stricter": False,
    }  # fmt: skip
    assert compare_tolerances(ToleranceConfig(1, 1), ToleranceConfig(2, 2))["a_stricter"]


def low(x: Any) -> Any:
    return (x.astype(np.float16) * np.float16(1.5)).astype(x.dtype)


def high(x: Any) -> Any:
    return x * x.dtype.type(1.5)


def test_calibration_by_functions() -> None:
    found = calibrate_tolerance(high, low, [(64,)], n_samples=20)
    assert 1e-4 < found.atol < 1e-1 and 1e-4 < found.rtol < 1e-1
    assert found == calibrate_tolerance(op_fn=low, ref_fn=high, shapes=[(64,)], n_samples=20)
    assert (
        found.atol
        == 2 * calibrate_tolerance(high, low, [(64,)], n_samples=20, safety_margin=1.0).atol
    )
    assert calibrate_tolerance(high, high, [(8,)]) == ToleranceConfig(0.0, 0.0)
    # Two shapes for one argument are alternatives, for two arguments one call's.
    assert calibrate_tolerance(high, low, [(4,), (0,)], n_samples=4).atol > 0
    assert calibrate_tolerance(np.add, np.add, [(4,), (4,)]).atol == 0
    half = calibrate_tolerance(high, low, [(64,)], dtype="float16", n_samples=5)
    assert half.atol == 0  # computed in the dtype of the inputs


def test_calibration_by_results() -> None:
    results = [
        SimpleNamespace(passed=n != 3, op_name="softmax", max_diff=n * 1e-6, max_rel_diff=0.0,
                        repro_info=SimpleNamespace(dtype="float32"))
        for n in range(5)
    ]  # fmt: skip
    client = SimpleNamespace(list_results=lambda limit: results)
    found = calibrate_tolerance(client, "softmax", dtype="float32", percentile=100)
    assert found.atol == pytest.approx(8e-6)
    assert calibrate_tolerance(client, "softmax", "float32", percentile=100) == found
    with pytest.raises(UsageError) as caught:
        calibrate_tolerance(client, "softmax", dtype="float16")
    assert caught.value.slug == "calibrate-no-results"
    with pytest.raises(UsageError) as caught:
        calibrate_tolerance(high)
    assert caught.value.slug == "calibrate-arguments"

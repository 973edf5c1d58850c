"""Trivial candidates: right shapes and dtypes, never right by chance, and all killed by a check."""

from __future__ import annotations

import numpy as np
import pytest

from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.types import Tolerance, Verdict
from gpuemu_flow.numerics.compare import Policy, check_outputs
from gpuemu_flow.numerics.trivial import (
    TriedCandidate,
    TrivialResult,
    as_dtype,
    assess,
    trivial_candidates,
)

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 7)).astype(np.float32)
BIAS = RNG.standard_normal(7).astype(np.float32)


def outputs_of(name: str, **arguments: object) -> dict[str, np.ndarray]:
    candidates = trivial_candidates(**arguments)  # type: ignore[arg-type]
    found = {candidate.name: candidate.outputs for candidate in candidates}
    assert name in found, found.keys()
    return dict(found[name])


def names(**arguments: object) -> set[str]:
    return {c.name for c in trivial_candidates(**arguments)}  # type: ignore[arg-type]


def test_all_four_kinds_are_made_in_the_outputs_shape_and_dtype() -> None:
    expected = {"y": np.tanh(X.astype(np.float64)), "n": np.arange(5, dtype=np.int32)}
    previous = {"y": np.cos(X.astype(np.float64)), "n": np.ones(5, np.int32)}
    candidates = trivial_candidates(
        {"x": X, "bias": BIAS}, expected, dtypes={"y": "float16"}, previous=previous
    )
    assert {c.name for c in candidates} == {
        "zeros", "constant", "copy of x", "copy of bias", "previous output",
    }  # fmt: skip
    for candidate in candidates:
        assert candidate.outputs["y"].dtype == np.float16
        assert candidate.outputs["y"].shape == (5, 7)
        assert candidate.outputs["n"].dtype == np.int32
        assert candidate.outputs["n"].shape == (5,)


def test_the_constant_is_the_median_of_what_is_finite() -> None:
    expected = np.array([np.nan, 1.0, 2.0, 9.0, np.inf])
    made = outputs_of("constant", inputs={}, expected={"y": expected})
    assert np.array_equal(made["y"], np.full(5, 2.0))


def test_an_input_is_copied_reshaped_or_broadcast() -> None:
    inputs = {"x": X, "bias": BIAS}
    copy = outputs_of("copy of x", inputs=inputs, expected={"y": np.exp(X)})
    assert np.array_equal(copy["y"], X)
    copy["y"][0] = 7  # a copy, not a view
    assert not (X[0] == 7).any()
    turned = outputs_of("copy of x", inputs=inputs, expected={"y": np.exp(X.T)})
    assert np.array_equal(turned["y"], X.reshape(7, 5))
    spread = outputs_of("copy of bias", inputs=inputs, expected={"y": np.exp(X)})
    assert np.array_equal(spread["y"], np.broadcast_to(BIAS, (5, 7)))
    assert "copy of x" not in names(inputs=inputs, expected={"y": np.ones(4)})


def test_what_is_right_is_no_candidate() -> None:
    assert "zeros" not in names(inputs={}, expected={"y": np.zeros((5, 7))})
    assert "copy of x" not in names(inputs={"x": X}, expected={"y": X})
    assert "constant" not in names(inputs={}, expected={"y": np.full(4, 3.5)})
    same = {"y": np.exp(X)}
    assert "previous output" not in names(inputs={}, expected=same, previous=same)
    # Right only after rounding to the output's dtype is right.
    tiny = {"y": np.full(4, 1e-12)}
    assert "zeros" not in names(inputs={}, expected=tiny, dtypes={"y": "float16"})


def test_an_earlier_output_of_another_shape_is_of_no_use() -> None:
    expected = {"y": np.exp(X)}
    assert "previous output" not in names(inputs={}, expected=expected, previous={"y": X[:2]})
    assert "previous output" not in names(inputs={}, expected=expected, previous={"z": X})


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_odd_shapes_are_no_trouble(shape: tuple[int, ...]) -> None:
    expected = {"y": np.full(shape, 2.0)}
    for candidate in trivial_candidates({"x": np.zeros(shape)}, expected, previous=expected):
        assert candidate.outputs["y"].shape == shape


def test_integers_are_stored_as_a_kernel_would() -> None:
    values = np.array([1.0, 300.0, np.nan, -1.0])
    assert as_dtype(values, "uint8").tolist() == [1, 44, 0, 255]
    assert np.isinf(as_dtype(np.array([1e6]), "float16")).all()
    assert as_dtype(X, "float32") is X


def test_a_sane_check_kills_every_candidate_and_a_blind_one_is_named() -> None:
    expected = {"y": np.exp(X)}
    previous = {"y": np.exp(-X)}
    results = []
    for seed, atol in ((1, 1e-5), (2, 1e3)):
        for candidate in trivial_candidates({"x": X}, expected, previous=previous):
            verdict = check_outputs(
                candidate.outputs,
                expected,
                tolerance={"float32": Tolerance(atol, 0.0)},
                policy=Policy(),
            ).verdict
            passed = verdict is Verdict.PASSED
            results.append(TrivialResult(candidate.name, seed, "small", passed))
    assert not any(r.passed for r in results if r.seed == 1)
    assert all(r.passed for r in results if r.seed == 2)
    half = assess(results)
    assert half.accepted == ()
    assert TriedCandidate("zeros", 2, 1, ("small",)) in half.candidates
    blind = assess(r for r in results if r.seed == 2)
    assert set(blind.accepted) == {"zeros", "constant", "copy of x", "previous output"}
    assert plain(blind)["accepted"] == list(blind.accepted)
    assert assess([]).accepted == ()

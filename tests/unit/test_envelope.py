"""The auto tolerance: right implementations pass, planted bugs fail, each rule does its part."""

from __future__ import annotations

import numpy as np
import pytest
from envelope_ops import (
    F32,
    REFERENCES,
    RIGHT,
    SHAPES,
    STRATEGIES,
    WRONG,
    Arrays,
    Function,
    Reference,
    check,
    inputs_of,
    online_softmax,
)
from for_each import for_each

from gpuemu_flow.model.types import Verdict
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS
from gpuemu_flow.numerics.envelope import (
    Envelope,
)
from gpuemu_flow.numerics.judge import ElementBound, QuickBound, make_quick_bound
from gpuemu_flow.numerics.perturb import Perturbation, as_float32, widen


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("weak", [False, True])
def test_right_implementations_pass(weak: bool, dtype: str) -> None:
    for number in range(len(RIGHT)):
        name, op = RIGHT[number]
        reference = Reference(name)
        for strategy in STRATEGIES:
            for seed, shape in enumerate(SHAPES):
                inputs = inputs_of(name, strategy, shape, dtype, seed)
                result, _ = check(reference, op, inputs, dtype, weak=weak)
                place = (strategy, shape, result.failures, result.notes)
                if name == "layernorm" and differs_by_roundings(inputs["x"]):
                    # Rows of 30 and a few roundings more: what is left of them without their mean
                    # is as wide as the tolerance, and most elements have no verdict.
                    assert result.verdict is Verdict.INCONCLUSIVE, place
                    assert result.stats.num_exceeding == 0, place
                else:
                    assert result.verdict is Verdict.PASSED, place


def differs_by_roundings(x: np.ndarray) -> bool:
    """The values of a row differ, by less than 100 steps of float32 on the average."""
    spread = x.astype(np.float64).std(-1).max()
    return bool(0 < spread < 100 * np.spacing(np.abs(x.astype(np.float32)).max()))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_planted_bugs_fail(dtype: str) -> None:
    for bug in WRONG:
        name, op = WRONG[bug]
        reference = Reference(name)
        verdicts = (
            check(reference, op, inputs_of(name, strategy, shape, dtype, seed), dtype)[0].verdict
            for strategy in STRATEGIES
            for seed, shape in enumerate(SHAPES[1:])
        )
        assert Verdict.FAILED in verdicts, bug


@for_each("name", REFERENCES)
def test_most_right_cases_need_no_further_evaluation(name: str) -> None:
    reference = Reference(name)
    op = next(op for other, op in RIGHT if other == name)
    lazy = 0
    for seed, shape in enumerate(SHAPES):
        _, envelope = check(reference, op, inputs_of(name, "normal", shape, "float16", seed),
                            "float16")  # fmt: skip
        assert envelope.evaluations is not None
        lazy += envelope.evaluations.count == 0
    assert lazy >= 4


# The bounds


def quick_bound(expected: np.ndarray, dtype: str, longest: int) -> np.ndarray:
    bound = make_quick_bound(FLOAT_LIMITS[dtype], longest, exact_op=False)
    return bound.tolerance(expected, slice(None))


@pytest.mark.parametrize("dtype", FLOAT_LIMITS)
def test_the_affine_proof_never_exceeds_the_quick_bound(dtype: str) -> None:
    limits = FLOAT_LIMITS[dtype]
    exponents = np.linspace(np.log2(limits.smallest_subnormal), np.log2(limits.max) - 1e-9, 4000)
    values = np.concatenate([[0.0], np.exp2(exponents), np.exp2(np.floor(exponents)), [limits.max]])
    for bound in (make_quick_bound(limits, 100, exact_op=exact) for exact in (False, True)):
        atol, rtol = bound.proof
        tolerance = bound.tolerance(values, slice(None))
        assert np.all(atol + rtol * values <= tolerance * (1 + 1e-12))
        assert np.all(atol + rtol * values >= tolerance / 8)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_the_quick_bound_never_exceeds_the_envelope(dtype: str) -> None:
    for name in ["softmax", "matmul", "layernorm"]:
        reference = Reference(name)
        inputs = inputs_of(name, "uniform", (5, 129), dtype, 1)
        expected = reference(widen(inputs))
        envelope = Envelope(
            inputs, expected, reference, dtype=dtype, seed=1, exact_op=False, weak=False
        )
        full = envelope.full("y")
        assert isinstance(full, ElementBound)
        assert full.allowed is not None
        longest = max(d for a in inputs.values() for d in a.shape)
        quick = quick_bound(expected["y"], dtype, longest).reshape(-1)
        assert np.all(quick <= full.allowed * (1 + 1e-12))
        assert np.any(full.allowed > 1.5 * quick) or dtype == "float16"


@pytest.mark.parametrize("name", REFERENCES)
def test_no_early_bound_exceeds_the_envelope(name: str) -> None:
    for dtype, strategy in (("float32", "normal"), ("float16", "offset"), ("float64", "normal")):
        reference = Reference(name)
        inputs = inputs_of(name, strategy, (5, 65), dtype, 1)
        expected = reference(widen(inputs))
        envelope = Envelope(
            inputs, expected, reference, dtype=dtype, seed=1, exact_op=False, weak=False
        )
        early = [bound.tolerance(expected["y"], slice(None)) for bound in envelope.early("y")]
        full = envelope.full("y")
        assert isinstance(full, ElementBound) and full.allowed is not None and early
        judged = slice(None) if full.unstable is None else ~full.unstable
        for allowed in early:
            assert np.all(allowed[judged] <= full.allowed[judged] * (1 + 1e-12))


def test_quick_bound_is_the_documented_formula() -> None:
    found = quick_bound(np.array([3.0, -0.5, 0.0]), "float32", 64)
    g, u, least = 1 + 8 / 8, 2.0**-23, 2.0**-126
    assert found.tolist() == [
        8 * g * u * 3.0 + 2 * 2.0**-22 + 8 * g * least,
        8 * g * u * 0.5 + 2 * 2.0**-24 + 8 * g * least,
        2 * 2.0**-149 + 8 * g * least,
    ]


def test_the_envelope_depends_on_the_seed_alone() -> None:
    reference = Reference("softmax")
    inputs = inputs_of("softmax", "normal", (5, 129), "float32", 1)
    expected = reference(widen(inputs))

    def allowed(seed: int) -> np.ndarray:
        envelope = Envelope(
            inputs, expected, reference, dtype="float32", seed=seed, exact_op=False, weak=False
        )
        bound = envelope.bounds()["y"]
        assert bound.allowed is not None
        return bound.allowed

    assert np.array_equal(allowed(1), allowed(1))
    assert not np.array_equal(allowed(1), allowed(2))


def test_without_anything_to_evaluate_the_quick_bound_decides() -> None:
    inputs = {"x": np.ones((2, 3), np.float32)}
    envelope = Envelope(
        inputs, {"y": np.ones(3)}, None, dtype="float32", seed=1, exact_op=False, weak=True
    )
    assert isinstance(envelope.full("y"), QuickBound)


# Perturbations


def test_perturbed_inputs_stay_within_one_rounding_and_keep_zeros_and_specials() -> None:
    values = np.array([1.0, -3.0, 0.0, np.nan, np.inf, -np.inf, 1.0, 1e-40])
    moved = Perturbation({"x": values, "i": np.arange(3)}, 1, 2.0**-23)
    for inputs in (moved.independent(0), moved.keyed(0), moved.scaled()):
        x = inputs["x"]
        assert np.array_equal(x[2:6], values[2:6], equal_nan=True)
        changed = np.abs(x[[0, 1, 6]] / values[[0, 1, 6]] - 1)
        assert np.all((changed > 0) & (changed <= 2.0**-23 * (1 + 1e-6)))
        assert np.array_equal(inputs["i"], np.arange(3))
    for inputs in (moved.independent(0), moved.keyed(0)):
        by = np.abs(inputs["x"][7] - values[7])
        assert 2.0**-155 < by <= 2.0**-149, "a rounding leaves so much of a subnormal"
    assert moved.independent(0)["x"][0] != moved.independent(0)["x"][6]
    assert moved.independent(0)["x"][0] != moved.independent(1)["x"][0]
    assert np.abs(moved.independent(3, 64.0)["x"][0] - 1) > 2.0**-23
    assert values[0] == 1.0


def test_subnormals_move_as_others_do_where_the_op_computes_in_float64_and_under_noise() -> None:
    values = np.array([2.0**-149, -(2.0**-130), 2.0**-126])
    wide = Perturbation({"x": values}, 1, 2.0**-53)
    for inputs in (wide.independent(0), wide.keyed(0)):
        assert np.all(np.abs(inputs["x"] / values - 1) <= 2.0**-53 * (1 + 1e-6))
    noise = Perturbation({"x": values}, 1, 2.0**-24).independent(3, 64.0)["x"]
    assert np.all(np.abs(noise / values - 1) <= 2.0**-18)


def test_keyed_draws_move_equal_values_alike_in_all_inputs() -> None:
    first, second = np.array([[1.5, 2.5], [1.5, 3.5]]), np.array(2.5)
    moved = Perturbation({"a": first, "b": second}, 1, 2.0**-23).keyed(0)
    assert moved["a"][0, 0] == moved["a"][1, 0] != 1.5
    assert moved["a"][0, 1] == moved["b"] != 2.5
    assert moved["b"].shape == ()


def test_flushing_concerns_float32_subnormals_only() -> None:
    assert Perturbation({"x": np.array([0.0, 1.0])}, 1, 1e-7).flushed() is None
    flushed = Perturbation({"x": np.array([1e-39, 1.0, 1.2e-38])}, 1, 1e-7).flushed()
    assert flushed is not None
    assert flushed["x"].tolist() == [0.0, 1.0, 1.2e-38]


def test_magnitudes_leave_masks_alone() -> None:
    values = np.array([-2.0, -np.inf, np.nan])
    changed = Perturbation({"x": values}, 1, 1e-7).magnitudes(4.0)["x"]
    assert np.array_equal(changed, [8.0, -np.inf, np.nan], equal_nan=True)


def test_shadow_inputs_are_float32_in_the_order_asked_for() -> None:
    inputs: Arrays = {"x": np.ones((3, 4)), "i": np.ones((3, 4), np.int64)}
    plain, fortran = as_float32(inputs), as_float32(inputs, fortran=True)
    assert plain["x"].dtype == np.float32
    assert plain["i"].dtype == np.int64
    assert plain["x"].flags.c_contiguous
    assert fortran["x"].flags.f_contiguous


# No verdict


def test_a_float32_overflow_inside_has_no_verdict() -> None:
    def square_mean(x: np.ndarray) -> np.ndarray:
        return (x * x).sum(-1) / x.dtype.type(x.shape[-1])

    x = np.array([[1e19, 2e19], *[[1.0, 2.0]] * 9], np.float32)
    right = np.array([7.0] + [2.5] * 9)
    result, _ = check(Function(square_mean), lambda x: right[: len(x)], {"x": x}, "float32")
    assert (result.verdict, result.stats.num_no_verdict) == (Verdict.PASSED, 1)
    wrong, _ = check(
        Function(square_mean), lambda x: np.where(right == 7.0, 7.0, 2.6), {"x": x}, "float32"
    )
    assert wrong.verdict is Verdict.FAILED
    many, _ = check(Function(square_mean), lambda x: right[: len(x)], {"x": x[:9]}, "float32")
    assert many.verdict is Verdict.INCONCLUSIVE, "1 of 9 elements is more than a tenth"
    only, _ = check(Function(square_mean), lambda x: np.array([7.0]), {"x": x[:1]}, "float32")
    assert only.verdict is Verdict.INCONCLUSIVE
    assert "no verdict on 1 of 1" in only.notes[-1]


def test_a_result_that_is_all_noise_has_no_verdict() -> None:
    def difference(x: np.ndarray) -> np.ndarray:
        return x[..., 0] - x[..., 1]

    x = np.array([[1.0, 1.0 + 2.0**-23]], np.float32)
    result, _ = check(Function(difference), lambda x: np.zeros(1) + 1e-4, {"x": x}, "float32")
    assert result.verdict is Verdict.INCONCLUSIVE


def test_an_all_zero_reference_is_conclusive() -> None:
    def cancel(x: np.ndarray) -> np.ndarray:
        return x - x[..., :1]

    x = np.full((2, 4), 3.0, np.float32)
    right, _ = check(Function(cancel), cancel, {"x": x}, "float32")
    assert (right.verdict, right.stats.num_no_verdict) == (Verdict.PASSED, 0)

    def nonzero(x: np.ndarray) -> np.ndarray:
        out = np.zeros_like(x)
        out[:, 1:] = 1e-3  # where noise moves the result, unlike in the first column
        return out

    wrong, _ = check(Function(cancel), nonzero, {"x": x}, "float32")
    assert (wrong.verdict, wrong.stats.num_exceeding) == (Verdict.FAILED, 6)


def test_an_element_within_the_quick_bound_is_judged_whatever_its_surroundings() -> None:
    def difference(x: np.ndarray) -> np.ndarray:
        return x[..., 0] - x[..., 1]

    x = np.array([[1.0, 1.0 + 2.0**-23]] * 9 + [[2.0, 2.0 + 2.0**-22]], np.float32)
    result, _ = check(
        Function(difference),
        lambda x: difference(x) * (1 + 8e-7) + np.array([0.0] * 9 + [1e-4]),
        {"x": x},
        "float32",
    )
    assert (result.verdict, result.stats.num_no_verdict) == (Verdict.PASSED, 1)
    assert result.stats.tolerance_used == 0.0


def test_near_overflow_has_no_verdict() -> None:
    def norm(x: np.ndarray) -> np.ndarray:
        return np.sqrt((x * x).sum(-1))

    x = np.array([[1e17, 1e17], *[[1.0, 1.0]] * 9], np.float32)
    result, _ = check(Function(norm), lambda x: norm(x) * [np.inf, *[1.0] * 9], {"x": x}, "float32")
    assert (result.verdict, result.stats.num_no_verdict) == (Verdict.PASSED, 1)
    far = np.array([[3e38, -3e38, 3e38, -3e38]], np.float32)
    sums, _ = check(
        Function(lambda x: x.sum(-1)), lambda x: np.array([np.inf]), {"x": far}, "float32"
    )
    assert sums.verdict is Verdict.INCONCLUSIVE


def test_nan_that_only_float64_sees_has_no_verdict() -> None:
    def root(x: np.ndarray) -> np.ndarray:
        return np.sqrt(x - x * x.dtype.type(1 + 2.0**-30))

    x = np.array([1.0, 2.0], np.float32)
    result, _ = check(Function(root), lambda x: np.zeros(2), {"x": x}, "float32")
    assert result.verdict is Verdict.INCONCLUSIVE


def test_cancelled_sums_are_measured_by_their_terms() -> None:
    x = np.array([[1000.0, 1.0, -1000.5], [1.0, 1.0, 1.0]], np.float32)
    reference = Function(lambda x: x.sum(-1))
    expected = reference({"x": x.astype(np.float64)})
    envelope = Envelope(
        {"x": x}, expected, reference, dtype="float32", seed=1, exact_op=False, weak=False
    )
    allowed = envelope.bounds()["y"].allowed
    assert allowed is not None
    one = 8 * (1 + np.sqrt(3) / 8) * 2.0**-23
    assert allowed[0] >= one * 2001.5
    assert allowed[1] < one * 3 * 4


def test_weak_tolerances_allow_for_intermediates_as_large_as_the_inputs() -> None:
    def cross_entropy(x: np.ndarray) -> np.ndarray:
        top = x.max(-1, keepdims=True)
        return np.log(np.exp(x - top).sum(-1)) + top[..., 0] - x[..., 0]

    x = np.full((2, 9), 988.0, np.float32)
    x[0, 0], x[1, 1] = 1000.0, 1000.0
    result, envelope = check(Function(cross_entropy), cross_entropy, {"x": x}, "float32", weak=True)
    assert envelope.evaluations is not None
    assert envelope.evaluations.count > 0
    assert result.verdict is Verdict.PASSED


def test_float64_ops_are_also_evaluated_in_another_order() -> None:
    seen: list[bool] = []

    def recorded(x: np.ndarray) -> np.ndarray:
        seen.append(x.flags.f_contiguous and not x.flags.c_contiguous)
        return x.sum(-1)

    x = np.random.default_rng(0).standard_normal((4, 50))
    check(Function(recorded), lambda x: x.sum(-1) + 1e-9, {"x": x}, "float64")
    assert seen.count(True) == 4, "two in the first look, two in the second, for it fails"


def test_exponentials_keep_their_verdict_and_a_relative_tolerance() -> None:
    x = np.linspace(-80, 80, 64, dtype=np.float32)
    right, _ = check(Function(np.exp), lambda x: np.exp2(x * F32(1.442695041)), {"x": x}, "float32")
    assert (right.verdict, right.stats.num_no_verdict) == (Verdict.PASSED, 0)
    # exp(|x|) says nothing of the error of exp(x) at negative x.
    wrong, _ = check(Function(np.exp), lambda x: np.exp(x) * (1 + 2e-3), {"x": x}, "float32")
    assert wrong.stats.num_exceeding > 60
    deep = np.full(8, -95.0, np.float32)  # exp(95) is beyond float32, exp(-95) is not
    deepest, _ = check(Function(np.exp), lambda x: x * 0 + 1, {"x": deep}, "float32")
    assert (deepest.verdict, deepest.stats.num_no_verdict) == (Verdict.FAILED, 0)


def test_masked_rows_of_special_inputs_keep_their_verdict() -> None:
    reference = Reference("softmax")
    x = np.random.default_rng(0).standard_normal((4, 40)).astype(np.float32)
    x[0, 5:] = -np.inf
    x[1, 3] = np.nan
    x[2, :] = -np.inf
    right, _ = check(reference, online_softmax, {"x": x}, "float32")
    assert (right.verdict, right.stats.num_no_verdict) == (Verdict.PASSED, 0)

    def unmasked(x: np.ndarray) -> np.ndarray:
        return online_softmax(np.maximum(x, F32(-50)))

    wrong, envelope = check(reference, unmasked, {"x": x}, "float32")
    assert wrong.verdict is Verdict.FAILED
    assert envelope.evaluations is not None
    assert envelope.evaluations.failed == 0


def test_flushed_subnormal_inputs_are_allowed_for() -> None:
    def scaled(x: np.ndarray) -> np.ndarray:
        return x * x.dtype.type(2.0**30)

    x = np.array([1e-39, 1.0], np.float32)
    flushed, _ = check(
        Function(scaled), lambda x: np.where(x < 1e-38, 0, x) * 2.0**30, {"x": x}, "float32"
    )
    assert flushed.verdict is Verdict.PASSED


def test_integer_outputs_are_exact_but_for_what_rounding_decides() -> None:
    def best(x: np.ndarray) -> np.ndarray:
        return np.argmax((x * x.dtype.type(1 / 3)).cumsum(-1), -1)

    clear = {"x": np.array([[1.0, 2.0, -9.0]], np.float32)}
    assert check(Function(best), best, clear, "int64")[0].verdict is Verdict.PASSED
    wrong, _ = check(Function(best), lambda x: np.array([0]), clear, "int64")
    assert wrong.verdict is Verdict.FAILED

    def near(x: np.ndarray) -> np.ndarray:
        return np.argmax(np.stack([x[..., 0] / 3 * 3, x[..., 0]], -1), -1)

    x = np.linspace(1, 2, 200, dtype=np.float32).reshape(-1, 1)
    unstable, _ = check(Function(near), near, {"x": x}, "int64")
    assert unstable.verdict is Verdict.PASSED
    assert unstable.stats.num_no_verdict > 0

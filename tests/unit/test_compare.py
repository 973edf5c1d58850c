"""check_outputs: order of checks, dtypes and shapes, NaN and Inf policies, invariants, verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.model.types import CheckResult, FailureKind, Tolerance, Verdict
from gpuemu_flow.numerics.compare import QUICK_SHARE, Policy, check_outputs
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.numerics.envelope import Envelope

NAN, INF = float("nan"), float("inf")
Arrays = Mapping[str, np.ndarray]


def check(
    actual: Any,
    expected: Any,
    *,
    dtype: str = "float32",
    expected_dtype: str | None = None,
    inputs: Any = None,
    tolerance: Tolerance | None = None,
    **policy: Any,
) -> CheckResult:
    """One output `y` made from lists."""
    return check_outputs(
        {"y": np.asarray(actual).astype(numpy_dtype(dtype))},
        {"y": np.asarray(expected).astype(numpy_dtype(expected_dtype or dtype))},
        tolerance={} if tolerance is None else {dtype: tolerance},
        policy=Policy(**policy),
        expected_dtypes={"y": dtype} if expected_dtype else None,
        inputs=None if inputs is None else {"x": np.asarray(inputs, np.float32)},
    )


def kinds(result: CheckResult) -> list[FailureKind]:
    return [failure.kind for failure in result.failures]


# Structure


def test_equal_outputs_pass_with_zero_error() -> None:
    result = check([1.0, 2.0], [1.0, 2.0])
    assert result.verdict is Verdict.PASSED
    assert result.failures == ()
    stats = result.stats
    assert (stats.count, stats.max_abs, stats.max_ulp, stats.tolerance_used) == (2, 0.0, 0.0, 0.0)
    assert stats.worst_index is None


def test_integers_count_in_no_mean_of_ulps() -> None:
    outputs = {"y": np.array([1.0, 2.0], np.float32), "n": np.array([1, 2], np.int32)}
    result = check_outputs(outputs, outputs, tolerance={}, policy=Policy())
    assert (result.verdict, result.stats.mean_ulp) == (Verdict.PASSED, 0.0)


def test_wrong_shape_and_dtype_are_both_reported_and_no_value_is_looked_at() -> None:
    result = check_outputs(
        {"y": np.full((2, 3), NAN, np.float16)},
        {"y": np.zeros((3, 2), np.float32)},
        tolerance={},
        policy=Policy(nan_policy="strict", invariants=("finite",)),
    )
    assert result.verdict is Verdict.ERROR
    assert kinds(result) == [FailureKind.SHAPE, FailureKind.DTYPE]
    assert "[2, 3]" in result.failures[0].message
    assert "float16, expected float32" in result.failures[1].message
    assert result.stats.count == 0


@pytest.mark.parametrize("shape", [(1,), (), (2,), (1, 1)])
def test_shapes_of_equal_size_still_differ(shape: tuple[int, ...]) -> None:
    actual = {"y": np.zeros(shape, np.float32)}
    for other in [(1,), (), (2,), (1, 1)]:
        expected = {"y": np.zeros(other, np.float32)}
        result = check_outputs(actual, expected, tolerance={}, policy=Policy())
        assert (result.verdict is Verdict.PASSED) == (shape == other)


def test_missing_and_unexpected_outputs_are_errors() -> None:
    one, two = np.zeros(2, np.float32), np.zeros(2, np.float32)
    missing = check_outputs({"y": one}, {"y": one, "z": two}, tolerance={}, policy=Policy())
    assert (missing.verdict, kinds(missing)) == (Verdict.ERROR, [FailureKind.OUTPUT_NAMES])
    assert missing.failures[0].output == "z"
    assert missing.failures[0].message == "outputs expected: 'y', 'z'; outputs given: 'y'"
    extra = check_outputs({"y": one, "z": two}, {"y": one}, tolerance={}, policy=Policy())
    assert (extra.verdict, kinds(extra)) == (Verdict.ERROR, [FailureKind.OUTPUT_NAMES])
    none = check_outputs({}, {"y": one}, tolerance={}, policy=Policy())
    assert none.verdict is Verdict.ERROR
    assert none.failures[0].message == "outputs expected: 'y'; outputs given: none"
    flat = {"y": one.reshape(1, 2), "x": two}
    both = check_outputs(flat, {"y": one, "z": two}, tolerance={}, policy=Policy())
    assert kinds(both) == [FailureKind.OUTPUT_NAMES, FailureKind.SHAPE]


@pytest.mark.parametrize("dtype", [np.complex64, object, np.dtype("S3"), np.dtype(">f4")])
def test_unknown_dtypes_are_errors_even_when_both_sides_have_them(dtype: Any) -> None:
    value = {"y": np.zeros(3, dtype)}
    result = check_outputs(value, value, tolerance={}, policy=Policy())
    assert (result.verdict, kinds(result)) == (Verdict.ERROR, [FailureKind.DTYPE])


def test_a_wider_reference_must_be_announced() -> None:
    assert check([1.0], [1.0], expected_dtype="float64").verdict is Verdict.PASSED
    unannounced = check_outputs(
        {"y": np.ones(1, np.float32)}, {"y": np.ones(1)}, tolerance={}, policy=Policy()
    )
    assert kinds(unannounced) == [FailureKind.DTYPE]


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (0, 0)])
def test_empty_outputs_compare_nothing_and_show_zeros(shape: tuple[int, ...]) -> None:
    for dtype in ["float32", "bfloat16", "float8_e4m3fn", "int64", "bool"]:
        value = np.zeros(shape, numpy_dtype(dtype))
        policy = Policy(nan_policy="strict", invariants=("finite", "normalized", "non_negative"))
        result = check_outputs({"y": value}, {"y": value}, tolerance={}, policy=policy)
        assert (result.verdict, result.failures) == (Verdict.INCONCLUSIVE, ())
        assert "nothing to compare" in result.notes[0]
        assert result.stats.count == 0
        assert result.stats.max_abs == result.stats.p99_abs == 0.0


def test_zero_dimensional_outputs() -> None:
    assert check(1.5, 1.5).verdict is Verdict.PASSED
    failed = check(1.5, 2.0)
    assert failed.failures[0].index == ()
    assert (failed.failures[0].actual, failed.failures[0].expected) == (1.5, 2.0)


# Values


def test_a_failing_value_reports_the_worst_element_and_keeps_full_statistics() -> None:
    result = check([[1.0, 2.5], [3.0, 4.001]], [[1.0, 2.0], [3.0, 4.0]])
    (failure,) = result.failures
    assert failure.kind is FailureKind.TOLERANCE
    assert failure.index == (0, 1)
    assert (failure.actual, failure.expected) == (2.5, 2.0)
    assert "2 of 4 elements" in failure.message
    assert "1e-05" in failure.message
    assert result.stats.num_exceeding == 2
    assert result.stats.max_abs == 0.5
    assert result.stats.worst_index == (0, 1)


def test_given_tolerances_count_and_missing_ones_default_by_dtype() -> None:
    assert check([1.001], [1.0]).verdict is Verdict.FAILED
    assert check([1.001], [1.0], tolerance=Tolerance(0.01, 0.0)).verdict is Verdict.PASSED
    assert check([1.001], [1.0], dtype="float16").verdict is Verdict.PASSED
    assert check([1.0 + 1e-8], [1.0], dtype="float64").verdict is Verdict.FAILED


def test_the_relative_term_is_taken_of_the_expected_value() -> None:
    tolerance = Tolerance(0.0, 0.5)
    assert check([1.5], [1.0], tolerance=tolerance).verdict is Verdict.PASSED
    assert check([0.5], [1.0], tolerance=tolerance).verdict is Verdict.PASSED
    assert check([1.0], [0.6], tolerance=tolerance).verdict is Verdict.FAILED


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_signed_zeros_are_equal_and_one_ulp_apart(dtype: str) -> None:
    result = check([0.0, -0.0], [-0.0, 0.0], dtype=dtype, tolerance=Tolerance(0.0, 0.0))
    assert result.verdict is Verdict.PASSED
    assert result.stats.max_ulp == 1.0


@pytest.mark.parametrize(
    ("dtype", "value", "other"),
    [
        ("int64", 2**63 - 1, -(2**63)),
        ("int64", 2**53 + 1, 2**53),
        ("uint64", 2**64 - 1, 2**64 - 2),
        ("int8", -1, 0),
        ("bool", True, False),
    ],
)
def test_integers_and_booleans_are_exact(dtype: str, value: int, other: int) -> None:
    array = np.array([value, other, value], numpy_dtype(dtype))
    assert check(array, array, dtype=dtype).verdict is Verdict.PASSED
    result = check(array, array[[0, 0, 0]], dtype=dtype)
    (failure,) = result.failures
    assert (failure.kind, failure.index) == (FailureKind.TOLERANCE, (1,))
    assert result.stats.max_abs == float(abs(value - other))


def test_messages_show_the_digits_that_differ() -> None:
    integers = check([2**53 + 1], [2**53], dtype="int64")
    assert "actual 9007199254740993, expected 9007199254740992" in integers.failures[0].message
    doubles = check([1 + 1e-9], [1.0], dtype="float64")
    assert "actual 1.0000000010000001, expected 1," in doubles.failures[0].message


def test_a_float64_reference_of_an_integer_output_is_exact_too() -> None:
    assert check([3, 4], [3.0, 4.0], dtype="int32", expected_dtype="float64").failures == ()
    assert kinds(check([3, 4], [3.0, 4.5], dtype="int32", expected_dtype="float64")) == [
        FailureKind.TOLERANCE
    ]
    nan = check([3, 4], [3.0, NAN], dtype="int32", expected_dtype="float64")
    assert nan.verdict is Verdict.FAILED


def test_statistics_and_worst_element_cover_all_outputs() -> None:
    first, second = np.zeros(4, np.float32), np.zeros((2, 3), np.float32)
    wrong_first, wrong_second = first.copy(), second.copy()
    wrong_first[1], wrong_second[1, 2] = 0.1, 0.3
    result = check_outputs(
        {"b": wrong_second, "a": wrong_first},
        {"a": first, "b": second},
        tolerance={},
        policy=Policy(),
    )
    assert [failure.output for failure in result.failures] == ["a", "b"]
    stats = result.stats
    assert (stats.count, stats.num_exceeding, stats.worst_index) == (10, 2, (1, 2))
    assert stats.max_abs == pytest.approx(0.3)
    assert stats.mean_abs == pytest.approx(0.04)
    assert (stats.p50_abs, stats.p99_abs) == (0.0, pytest.approx(0.3))


def test_percentiles_weigh_outputs_by_their_size() -> None:
    large, small = np.zeros(80_000, np.float32), np.zeros(8_000, np.float32)
    actual = {"large": large + np.float32(1e-6), "small": small + np.float32(3e-6)}
    result = check_outputs(actual, {"large": large, "small": small}, tolerance={}, policy=Policy())
    assert result.stats.p90_abs == pytest.approx(1e-6)
    assert result.stats.p99_abs == pytest.approx(3e-6)
    assert result.stats.mean_abs == pytest.approx((80_000 * 1e-6 + 8_000 * 3e-6) / 88_000, rel=2e-4)


# NaN and Inf: (actual, expected) -> failure kinds under each policy, inputs finite

T, N, I_ = FailureKind.TOLERANCE, FailureKind.NAN, FailureKind.INF
SPECIAL_PAIRS: list[tuple[float, float, list[Any], list[Any], list[Any]]] = [
    # actual, expected, match, strict, ignore
    (NAN, NAN, [], [N], []),
    (NAN, 1.0, [N], [N], [N]),
    (NAN, INF, [N], [N], [N]),
    (1.0, NAN, [T], [T], []),
    (INF, NAN, [T, I_], [T, I_], []),
    (INF, INF, [], [I_], []),
    (-INF, -INF, [], [I_], []),
    (INF, -INF, [T, I_], [T, I_], []),
    (INF, 1.0, [T, I_], [T, I_], [T, I_]),
    (-INF, 1e38, [T, I_], [T, I_], [T, I_]),
    (3e38, INF, [T], [T], []),
]


@for_each("size", [3, 9001])
@for_each(("actual", "expected", "match", "strict", "ignore"), SPECIAL_PAIRS)
def test_special_values_by_policy(
    size: int,
    actual: float,
    expected: float,
    match: list[Any],
    strict: list[Any],
    ignore: list[Any],
) -> None:
    for dtype in ["float32", "float64", "bfloat16"]:
        a, e = np.ones(size), np.ones(size)
        a[size // 2], e[size // 2] = actual, expected
        for policy, wanted in (("match", match), ("strict", strict), ("ignore", ignore)):
            result = check(a, e, dtype=dtype, nan_policy=policy, inf_policy=policy, inputs=[1.0])
            assert kinds(result) == wanted, policy
            ignored = bool(match) and not wanted
            right = Verdict.INCONCLUSIVE if ignored and size < 10 else Verdict.PASSED
            assert result.verdict is (Verdict.FAILED if wanted else right), "a third is too much"
            # A NaN that matches on finite inputs is right, and has no value that could be compared.
            matching = not wanted and not ignored and math.isnan(expected)
            assert result.stats.num_no_verdict == ignored + matching
            assert result.stats.num_exceeding == bool(wanted)
            for failure in result.failures:
                assert failure.index == (size // 2,)


def test_what_strict_forbids_is_not_counted_among_wrong_values() -> None:
    result = check([INF, INF, 3.0], [INF, INF, 1.0], inf_policy="strict")
    value, inf = result.failures
    assert value.message.startswith("1 of 3 elements")
    assert inf.message.startswith("2 of 3 elements")
    assert result.stats.num_exceeding == 3


def test_strict_means_match_when_the_inputs_hold_nan_or_inf() -> None:
    for special in (NAN, INF, -INF):
        result = check([NAN, INF], [NAN, INF], nan_policy="strict", inf_policy="strict",
                       inputs=[1.0, special])  # fmt: skip
        assert result.verdict is Verdict.PASSED
    mismatch = check([NAN], [1.0], nan_policy="strict", inputs=[NAN])
    assert kinds(mismatch) == [FailureKind.NAN]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2"])
def test_special_inputs_are_found_in_narrow_dtypes(dtype: str) -> None:
    inputs = {"x": np.array([1.0, INF]).astype(numpy_dtype(dtype)), "i": np.array([1])}
    value = {"y": np.array([NAN], np.float32)}
    policy = Policy(nan_policy="strict")
    result = check_outputs(value, value, tolerance={}, policy=policy, inputs=inputs)
    assert result.verdict is Verdict.PASSED


def test_ignore_leaves_elements_without_a_verdict() -> None:
    ones = [1.0] * 9
    result = check([0.0, *ones], [NAN, *ones], nan_policy="ignore", inputs=[NAN])
    assert (result.verdict, result.stats.num_no_verdict) == (Verdict.PASSED, 1)
    assert "no verdict on 1 of 10" in result.notes[-1]
    most = check([0.0, *ones[1:]], [NAN, *ones[1:]], nan_policy="ignore", inputs=[NAN])
    assert (most.verdict, most.stats.num_no_verdict) == (Verdict.INCONCLUSIVE, 1)
    assert len(most.notes) == 1 and "more than 10%" in most.notes[0]
    all_ignored = check([0.0, 0.0], [NAN, NAN], nan_policy="ignore", inputs=[NAN])
    assert all_ignored.verdict is Verdict.INCONCLUSIVE
    own_nan = check([NAN, *ones], [0.0, *ones], nan_policy="ignore", inputs=[NAN])
    assert own_nan.verdict is Verdict.PASSED
    worse = check([0.0, 7.0], [NAN, 1.0], nan_policy="ignore", inputs=[NAN])
    assert worse.verdict is Verdict.FAILED


def test_nan_never_passes_because_a_comparison_with_it_is_false() -> None:
    for size in (2, 9001):
        result = check(np.full(size, NAN), np.zeros(size), tolerance=Tolerance(1e30, 1e30))
        assert result.stats.num_exceeding == size


def test_failures_follow_the_order_of_the_checks() -> None:
    result = check(
        [NAN, INF, 9.0, -1.0], [1.0, 1.0, 1.0, -1.0], invariants=("finite", "non_negative")
    )
    assert kinds(result) == [
        FailureKind.TOLERANCE,
        FailureKind.NAN,
        FailureKind.INF,
        FailureKind.INVARIANT,
        FailureKind.INVARIANT,
    ]
    tolerance, nan, inf = result.failures[:3]
    assert (tolerance.index, nan.index, inf.index) == ((1,), (0,), (1,))
    assert result.stats.max_abs == INF
    assert result.stats.tolerance_used == pytest.approx(8.0 / 2e-5, rel=1e-6)


# Overflow of the output's format against a wider reference


@for_each(
    ("dtype", "actual", "expected", "passes"),
    [
        ("float16", INF, 70000.0, True),
        ("float16", 65504.0, 70000.0, True),
        ("float16", INF, -70000.0, False),
        ("float16", INF, 1000.0, False),
        ("float16", 65504.0, INF, False),
        ("float16", INF, INF, True),
        ("float16", NAN, 70000.0, False),
        ("float32", INF, 1e300, True),
        ("float8_e4m3fn", 448.0, 1000.0, True),
        ("float8_e4m3fn", NAN, 1000.0, True),
        ("float8_e4m3fn", NAN, 1.0, False),
        ("float8_e4m3fn", NAN, INF, True),
        ("float8_e4m3fn", 448.0, INF, True),
        ("float8_e4m3fn", -448.0, INF, False),
        ("float8_e5m2", INF, 1e9, True),
    ],
)
def test_overflow_against_an_unrounded_reference(
    dtype: str, actual: float, expected: float, passes: bool
) -> None:
    result = check([1.0, actual], [1.0, expected], dtype=dtype, expected_dtype="float64")
    assert (result.verdict is Verdict.PASSED) == passes


# Invariants and the table form of shape_preserved


def test_invariants_are_judged_beside_the_values() -> None:
    result = check([[0.5, 0.6]], [[0.5, 0.6]], invariants=("normalized",))
    (failure,) = result.failures
    assert (failure.kind, failure.output) == (FailureKind.INVARIANT, "y")
    assert "normalized" in failure.message
    assert check([[0.5, 0.5]], [[0.5, 0.5]], invariants=("normalized",)).failures == ()


def test_invariants_do_not_forbid_what_special_inputs_lead_to() -> None:
    values = [[NAN, NAN], [0.5, 0.5]]
    names = ("normalized", "finite")
    assert len(check(values, values, invariants=names, inputs=[1.0]).failures) == 2
    assert check(values, values, invariants=names, inputs=[NAN]).failures == ()
    broken = [[NAN, NAN], [0.5, 0.6]]
    assert kinds(check(broken, broken, invariants=names, inputs=[NAN])) == [FailureKind.INVARIANT]


def test_finite_does_not_forbid_the_overflow_of_a_right_result() -> None:
    right = check([INF], [70000.0], dtype="float16", expected_dtype="float64",
                  invariants=("finite",), inputs=[1.0])  # fmt: skip
    assert right.verdict is Verdict.PASSED
    own = check([INF], [INF], dtype="float16", expected_dtype="float64",
                invariants=("finite",), inputs=[1.0])  # fmt: skip
    assert kinds(own) == [FailureKind.INVARIANT]


def test_table_form_of_shape_preserved_compares_with_the_named_input() -> None:
    value = {"y": np.zeros((2, 3), np.float32)}
    policy = Policy(shape_preserved_input="x")
    for shape, passes in (((2, 3), True), ((3, 2), False)):
        inputs = {"x": np.zeros(shape, np.float32)}
        result = check_outputs(value, value, tolerance={}, policy=policy, inputs=inputs)
        assert (result.verdict is Verdict.PASSED) == passes
    wrong = {"y": np.zeros((5,), np.float32)}
    result = check_outputs(
        wrong, value, tolerance={}, policy=policy, inputs={"x": np.zeros((2, 3), np.float32)}
    )
    assert kinds(result) == [FailureKind.SHAPE, FailureKind.INVARIANT]
    assert result.verdict is Verdict.ERROR


# The auto tolerance


class Reference:
    """exp in the precision asked for; counts its evaluations."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, inputs: Arrays, *, shadow: bool = False) -> Arrays:
        self.calls += 1
        return {"y": np.exp(inputs["x"])}


def auto(x: np.ndarray, actual: np.ndarray) -> tuple[CheckResult, int]:
    reference = Reference()
    expected = {"y": np.exp(x.astype(np.float64))}
    envelope = Envelope(
        {"x": x}, expected, reference, dtype="float32", seed=1, exact_op=False, weak=False
    )
    result = check_outputs(
        {"y": actual},
        expected,
        tolerance=envelope,
        policy=Policy(),
        expected_dtypes={"y": "float32"},
        inputs={"x": x},
    )
    return result, reference.calls


def test_auto_settles_close_results_without_evaluating_the_reference() -> None:
    x = np.linspace(-5, 5, 20_000, dtype=np.float32)
    result, calls = auto(x, np.exp(x))
    assert (result.verdict, calls) == (Verdict.PASSED, 0)
    assert result.stats.tolerance_used <= QUICK_SHARE


def test_auto_does_not_report_a_large_share_of_a_mere_lower_bound() -> None:
    x = np.linspace(1, 2, 100, dtype=np.float32)
    quick = 8 * (1 + np.sqrt(100) / 8) * 2.0**-23
    near = (np.exp(x.astype(np.float64)) * (1 + 0.9 * quick)).astype(np.float32)
    result, calls = auto(x, near)
    assert result.verdict is Verdict.PASSED
    assert 5 <= calls <= 11
    assert result.stats.tolerance_used < QUICK_SHARE


def test_auto_evaluates_the_reference_before_it_fails_anything() -> None:
    x = np.linspace(-5, 5, 20_000, dtype=np.float32)
    wrong = np.exp(x)
    wrong[777] *= np.float32(1.001)
    result, calls = auto(x, wrong)
    assert calls >= 15
    (failure,) = result.failures
    assert failure.index == (777,)
    assert "auto" in failure.message
    assert result.stats.num_exceeding == 1


def test_auto_grants_what_conditioning_demands() -> None:
    x = np.full(100, 80.0, np.float32)  # exp magnifies one rounding of x eighty times
    moved = np.exp((x.astype(np.float64)) * (1 + 1.5 * 2.0**-23)).astype(np.float32)
    result, calls = auto(x, moved)
    assert result.verdict is Verdict.PASSED
    assert 5 <= calls <= 11
    assert result.stats.max_ulp > 60

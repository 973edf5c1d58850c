"""Cases compared together get the very results of `check_outputs`; it looks at all that fail."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
from for_each import for_each

from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.types import Case, CheckResult, Tolerance, Verdict
from gpuemu_flow.numerics.compare import Policy, check_batch, check_outputs, form_of
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.numerics.envelope import Envelope

Tensors = list[np.ndarray]
INPUTS = {"x": np.ones((3, 7), np.float32)}
MATCH = Policy()
SPECIAL = {"x": np.array([1.0, np.nan], np.float32)}


def outputs(
    rng: np.random.Generator, dtype: str, shape: tuple[int, ...], *, wide: bool
) -> tuple[Tensors, Tensors]:
    """Outputs and expected ones of 24 cases: near ones, far ones, zeros, equal values, NaN, Inf."""
    actual, expected = [], []
    for number in range(24):
        values = np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4))
        if number % 4 == 1:
            values = np.where(rng.random(shape) < 0.3, rng.choice([0.0, -0.0]), values)
        if number % 8 == 3:
            values = np.full(shape, rng.choice([0.0, -0.0, 1.5]))
        if number % 8 == 5:
            values = np.where(rng.random(shape) < 0.1, rng.choice([np.nan, np.inf]), values)
        error = rng.standard_normal(shape) * rng.choice([0.0, 1e-7, 1e-4, 1e-2])
        with np.errstate(all="ignore"):
            given = np.asarray(values * (1.0 + error)).astype(numpy_dtype(dtype))
            values = values if wide else values.astype(numpy_dtype(dtype))
        actual.append(np.asfortranarray(given) if shape and number % 3 == 0 else given)
        expected.append(np.asarray(values))
    return actual, expected


def a_case(dtype: str) -> Case:
    return Case(0, 1, dtype, "contiguous", "normal", ())


def envelope(expected: np.ndarray, dtype: str, *, exact: bool, weak: bool) -> Envelope:
    return Envelope(
        INPUTS, {"y": expected}, None, dtype={"y": dtype}, seed=0, exact_op=exact, weak=weak
    )


def one_by_one(
    actual: np.ndarray,
    expected: np.ndarray,
    dtype: str,
    tolerance: Mapping[str, Tolerance] | Envelope,
    inputs: Mapping[str, np.ndarray] = INPUTS,
    policy: Policy = MATCH,
) -> CheckResult:
    return check_outputs(
        {"y": actual},
        {"y": expected},
        tolerance=tolerance,
        policy=policy,
        expected_dtypes={"y": dtype},
        inputs=inputs,
    )


@for_each("wide", [True, False])
@for_each("shape", [(), (1,), (5,), (4, 16), (3, 17, 11)])
@for_each("dtype", ["float32", "float16", "bfloat16", "float64", "float8_e5m2"])
def test_results_are_equal_to_the_last_bit(dtype: str, shape: tuple[int, ...], wide: bool) -> None:
    rng = np.random.default_rng(len(shape) + wide)
    actual, expected = outputs(rng, dtype, shape, wide=wide)
    form = form_of(a_case(dtype), {"y": actual[0]}, {"y": expected[0]}, INPUTS, Policy())
    assert form is not None
    explicit = {dtype: Tolerance(1e-6, 1e-3)}
    bounds: list[list[Mapping[str, Tolerance] | Envelope]] = [
        [explicit] * len(actual),
        [envelope(values, dtype, exact=False, weak=True) for values in expected],
        [envelope(values, dtype, exact=True, weak=False) for values in expected],
    ]
    passed = 0
    for tolerances in bounds:
        found = check_batch(
            form,
            actual,
            expected,
            [INPUTS] * len(actual),
            dtype=dtype,
            tolerance=tolerances[0],
        )
        for number, together in enumerate(found):
            alone = one_by_one(actual[number], expected[number], dtype, tolerances[number])
            if together is None:
                continue
            passed += 1
            assert repr(together) == repr(alone)
            assert json.dumps(plain(together)) == json.dumps(plain(alone))
    assert passed >= len(actual) // 3


@for_each("inputs", [INPUTS, SPECIAL])
@for_each("nan", ["match", "strict", "ignore"])
@for_each("inf", ["match", "strict", "ignore"])
@for_each("wide", [True, False])
def test_nan_and_inf_give_what_they_give_alone(
    nan: str, inf: str, inputs: dict[str, np.ndarray], wide: bool
) -> None:
    rng = np.random.default_rng(5)
    policy = Policy(nan_policy=nan, inf_policy=inf)
    actual, expected = [], []
    for number in range(48):
        values = rng.standard_normal((4, 4))
        if number % 6 == 4:
            values[:] = 2.0  # the only finite value
        if number % 6 == 5:
            values *= 1e-12  # zeros would pass, too
        for kind in (np.nan, np.inf, -np.inf):
            share = rng.choice([0.0, 0.2, 1.0], p=[0.6, 0.35, 0.05])
            values[rng.random((4, 4)) < share] = kind
        given = values.astype(np.float32)
        if number % 8 == 7:
            given[0, 0] = rng.choice([np.nan, np.inf, 1.0])  # mostly wrong
        actual.append(given)
        expected.append(values if wide else values.astype(np.float32))
    form = form_of(a_case("float32"), {"y": actual[0]}, {"y": expected[0]}, inputs, policy)
    assert form is not None
    explicit = {"float32": Tolerance(1e-6, 1e-3)}
    several = [inputs] * len(actual)
    found = check_batch(form, actual, expected, several, dtype="float32", tolerance=explicit)
    special = 0
    for number, together in enumerate(found):
        if together is None:
            continue
        special += not np.isfinite(expected[number]).all()
        alone = one_by_one(actual[number], expected[number], "float32", explicit, inputs, policy)
        assert repr(together) == repr(alone)
        assert json.dumps(plain(together)) == json.dumps(plain(alone))
    fed = inputs is SPECIAL and "ignore" not in (nan, inf)
    assert (special > 10) == (fed or (nan, inf) == ("match", "match"))
    assert (special > 0) == (special > 10)


def test_what_does_not_pass_is_left_to_the_exact_comparison() -> None:
    right = np.linspace(1.0, 2.0, 64)
    wrong, special = right.copy(), right.copy()
    wrong[63] = 3.0
    special[0] = np.nan
    actual = [right.astype(np.float32), wrong.astype(np.float32), special.astype(np.float32)]
    form = form_of(a_case("float32"), {"y": actual[0]}, {"y": right}, INPUTS, Policy())
    assert form is not None
    found = check_batch(form, actual, [right] * 3, [INPUTS] * 3, dtype="float32", tolerance={})
    assert [None if one is None else one.verdict for one in found] == [
        Verdict.PASSED,
        None,
        None,
    ]
    narrow = check_batch(form, actual, [right] * 3, [INPUTS] * 3, dtype="float16", tolerance={})
    assert narrow == [None] * 3


def test_what_comes_near_to_the_quick_bound_is_left_to_the_envelope() -> None:
    right = np.linspace(1.0, 1.5, 16)
    near, nearer = (
        (right.astype(np.float32) + steps * np.float32(2**-23)).astype(np.float32)
        for steps in (1, 2)
    )
    expected = right.astype(np.float32).astype(np.float64)
    form = form_of(a_case("float32"), {"y": near}, {"y": expected}, INPUTS, Policy())
    assert form is not None
    found = check_batch(
        form,
        [near, nearer],
        [expected] * 2,
        [INPUTS] * 2,
        dtype="float32",
        tolerance=envelope(expected, "float32", exact=True, weak=False),
    )
    assert [one is not None for one in found] == [True, False]


def test_weak_and_blank_cases_are_marked_as_alone() -> None:
    zeros = np.zeros((4, 16), np.float32)
    inputs = [{"x": zeros}, INPUTS]
    form = form_of(a_case("float32"), {"y": zeros}, {"y": zeros}, INPUTS, Policy())
    assert form is not None
    loose = {"float32": Tolerance(1.0, 0.0)}
    found = check_batch(form, [zeros] * 2, [zeros] * 2, inputs, dtype="float32", tolerance=loose)
    assert found == [one_by_one(zeros, zeros, "float32", loose, each) for each in inputs]
    assert found[0] is not None
    assert found[0].blank
    assert found[0].weak[0].zeros


@for_each(
    ("actual", "expected", "policy"),
    [
        ({"y": np.zeros(3, np.float32)}, {"y": np.zeros(3)}, Policy(invariants=("finite",))),
        ({"y": np.zeros(3, np.float32)}, {"y": np.zeros(3)}, Policy(shape_preserved_input="x")),
        ({"y": np.zeros(3, np.float32)}, {"y": np.zeros(4)}, Policy()),
        ({"y": np.zeros(3, np.float32)}, {"z": np.zeros(3)}, Policy()),
        ({"y": np.zeros(3, np.int32)}, {"y": np.zeros(3, np.int32)}, Policy()),
        ({"y": np.zeros(0, np.float32)}, {"y": np.zeros(0)}, Policy()),
        ({"y": np.zeros(3, ">f4")}, {"y": np.zeros(3)}, Policy()),
        ({"y": np.zeros(2000, np.float32)}, {"y": np.zeros(2000)}, Policy()),
        (dict.fromkeys("yz", np.zeros(3)), dict.fromkeys("yz", np.zeros(3)), Policy()),
    ],
)
def test_other_outputs_are_compared_alone(
    actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], policy: Policy
) -> None:
    assert form_of(a_case("float32"), actual, expected, INPUTS, policy) is None

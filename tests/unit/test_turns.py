"""The first cases of a strategy show its varieties in turn, and never by chance alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuemu_flow.cases.generate import input_values, materialise, materialise_each
from gpuemu_flow.cases.op_schema import Dim, OpSchema, TensorDef
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.cases.values import draw
from gpuemu_flow.fuzz.named_case import case_from_text
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.types import STRATEGIES, Case, InputSpec, ValueRule
from gpuemu_flow.numerics.rng import SeededRng

SEEDS = range(12)
DIMS = (Dim("M", min=1, max=64), Dim("N", min=1, max=500))


def schema(*names: str, axes: tuple[str, ...] = ("N",), **said: Any) -> OpSchema:
    inputs = tuple(TensorDef(name, axes, **said) for name in names)
    return OpSchema(dims=tuple(d for d in DIMS if d.name in axes), inputs=inputs)


def plan(op: OpSchema, seed: int = 3, count: int = 24, dtype: str = "float32") -> list[Case]:
    return plan_cases(op, seed=seed, dtype=dtype, count=count, strategies=(), layouts=())


def shown(op: OpSchema, strategy: str, seed: int, dtype: str = "float32") -> dict[int, np.ndarray]:
    """Return the values of the input x by turn, in the 24 cases of a run."""
    found: dict[int, np.ndarray] = {}
    for case in plan(op, seed, dtype=dtype):
        spec = case.inputs[0]
        if spec.strategy == strategy and spec.turn:
            assert spec.turn not in found
            found[spec.turn] = input_values(case, spec).astype(np.float64)
    return found


def counts(values: np.ndarray) -> tuple[int, int, int]:
    """Count the elements that are NaN, +Inf and -Inf."""
    return tuple(int(n) for n in (np.isnan(values).sum(), (values == np.inf).sum(),
                                  (values == -np.inf).sum()))  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_each_kind_of_special_number_is_alone_in_one_case_of_a_vector(dtype: str):
    for seed in SEEDS:
        one = shown(schema("x"), "special", seed, dtype)
        assert list(one) == [1, 2, 3, 4]
        assert all(counts(one[1]))
        assert counts(one[2]) == (0, 1, 0)
        assert counts(one[3]) == (1, 0, 0)
        assert counts(one[4]) == (0, 0, one[4].size)


def test_a_sum_over_a_whole_matrix_meets_each_kind_alone():
    for seed in SEEDS:
        two = shown(schema("x", axes=("M", "N")), "special", seed)
        nans, plus, minus = counts(two[2])
        assert nans == minus == 0 < plus and np.isfinite(two[2]).any()
        nans, plus, minus = counts(two[3])
        assert nans == 1 and plus == 0
        assert minus == min(3, max(0, len(two[3]) - 2)) * two[3].shape[1]
        if len(two[2]) > 1:
            assert np.isposinf(two[2]).all(axis=1).any(), "the least of such a row is +Inf"
        if len(two[3]) > 1 < two[3].shape[1]:
            row = two[3][(two[3] == 0).all(axis=1)][0]
            assert np.signbit(row[0]) and not np.signbit(row[-1])


def test_a_kind_alone_is_alone_in_the_case():
    """An infinity in each of two inputs makes NaN of their difference."""
    for seed in SEEDS:
        cases = [case for case in plan(schema("x", "y"), seed) if case.strategy == "special"]
        later = [case for case in cases if any(1 < spec.turn < 5 for spec in case.inputs)]
        assert len(later) == 2
        for case in later:
            (special,) = [spec for spec in case.inputs if spec.strategy == "special"]
            values = materialise(case)
            assert counts(values.pop(special.name)) == (0, 1, 0)
            assert np.isfinite(list(values.values())).all()


def test_vectors_are_near_minus_100_and_far_below_it():
    for seed in SEEDS:
        one = shown(schema("x"), "negative", seed)
        assert (one[1] < -99).all() and (one[1] > -111).all()
        assert (one[2] < 0).all() and (one[2] >= -10).all()
        assert (one[3] < -99_999).all()


def test_some_row_of_a_matrix_is_far_below_minus_100():
    for seed in SEEDS:
        first = shown(schema("x", axes=("M", "N")), "negative", seed)[1]
        if len(first) > 2:
            below = (first < -99_999).all(axis=1)
            assert below.sum() == 1 and ((first < -99).all(axis=1) & ~below).any()
        assert (first < 0).all()


def test_vectors_are_spread_little_about_a_positive_mean():
    for seed in SEEDS:
        first = shown(schema("x"), "offset", seed)[1]
        assert first.min() > 29 and 0 < first.std() < 0.03


@pytest.mark.parametrize("axes", [("N",), ("M", "N")])
def test_a_number_whose_square_overflows_is_in_each_input(axes: tuple[str, ...]):
    for seed in SEEDS:
        cases = [c for c in plan(schema("x", "y", axes=axes), seed) if c.strategy == "extremes"]
        for values in materialise(cases[0]).values():
            sizes = np.abs(values.astype(np.float64))
            assert ((sizes >= 2.0**65) & (sizes <= 2.0**96)).any()


def test_first_rows_of_two_inputs_have_a_product_far_below_0():
    op = OpSchema(DIMS, tuple(TensorDef(name, ("M", "N")) for name in "qkv"))
    for seed in SEEDS:
        case = next(case for case in plan(op, seed) if case.strategy == "wide")
        made = materialise(case)
        if len(made["q"]) > 1:
            assert (made["q"][0] >= 0).all() and (made["k"][0] <= 0).all()
            assert float(made["q"][0] @ made["k"][0]) < -1e4


def test_the_second_wide_case_has_magnitudes_of_all_orders():
    for seed in SEEDS:
        second = shown(schema("x"), "wide", seed)[2]
        assert np.abs(second).min() >= 1 and np.abs(second).max() < 1000
        if second.size > 60:
            found = np.floor(np.log2(np.abs(second)))
            assert set(found) == set(range(9))
            assert (second > 0).any() and (second < 0).any()
        rows = shown(schema("x", axes=("M", "N")), "wide", seed)[2]
        rises = (np.diff(second) >= 0).all(), *(np.diff(rows, axis=1) >= 0).all(axis=1)
        assert rises[0] and sum(rises) >= len(rows) // 2


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_the_first_wide_vector_lies_on_halves_of_several_steps(dtype: str):
    for seed in SEEDS:
        first = shown(schema("x"), "wide", seed, dtype)[1]
        assert np.abs(first).max() == 127
        halves = np.abs(first) % 1 == 0.5
        assert halves[::2].sum() >= (first.size - 1) // 2
        for step in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0):
            assert (np.abs(first / step) % 1 == 0.5).sum() >= first.size // 12, step


@pytest.mark.parametrize("axes", [(), ("N",), ("M", "N")])
def test_an_input_is_only_zeros_in_one_case(axes: tuple[str, ...]):
    assert not any(value.any() for value in [shown(schema("x", axes=axes), "ties", 5)[2]])


def test_a_turn_is_part_of_a_case_as_text_and_as_json():
    op = schema("x", "y", axes=("M", "N"))
    for case in plan(op, 9):
        read = case_from_text(op, case.seed, case.to_text())
        assert [spec.turn for spec in read.inputs] == [spec.turn for spec in case.inputs]
        assert convert(plain(case), Case) == case
        for (name, first), second in zip(
            materialise(case).items(), materialise(read).values(), strict=True
        ):
            assert first.tobytes() == second.tobytes(), name
    spec = InputSpec("x", (3,), "float32", ends=2, turn=3)
    assert spec.demands == "ends2turn3"


def test_turns_keep_to_the_schema():
    for said, allowed in [
        ({"low": 0.0}, lambda x: np.isnan(x) | (x >= 0)),
        ({"low": 2.0, "high": 3.0}, lambda x: (x >= 2) & (x <= 3)),
        ({"rule": ValueRule(nonfinite=False)}, np.isfinite),
    ]:
        for seed in SEEDS[:2]:
            for case in plan(schema("x", axes=("M", "N"), **said), seed):
                assert allowed(materialise(case)["x"]).all(), case.to_text()


def test_only_floats_that_are_drawn_element_by_element_have_turns():
    whole = TensorDef("n", ("N",), dtype="int32")
    mask = TensorDef("m", ("N",), dtype="float32", rule=ValueRule(kind="mask"))
    op = OpSchema(DIMS[1:], (TensorDef("x", ("N",)), whole, mask))
    cases = plan(op, count=60)
    assert not any(case.inputs[2].turn for case in cases)
    assert not any(c.inputs[1].turn for c in cases if c.inputs[1].strategy != "normal")
    assert any(case.inputs[0].turn for case in cases[:24])
    turns = [(case.strategy, case.inputs[0].turn) for case in cases if case.inputs[0].turn]
    assert len(set(turns)) == len(turns)


def test_nothing_else_is_drawn_without_a_turn():
    """The strategies that show no variety, and tensors of many rows, do not depend on it."""
    for strategy in set(STRATEGIES) - {"special", "negative", "extremes", "wide", "ties"}:
        both = [draw(strategy, SeededRng(4), (9, 5), "float32", turn=turn) for turn in (0, 1)]
        assert both[0].tobytes() == both[1].tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float64"])
def test_what_is_far_below_is_no_infinity(dtype: str):
    for shape in ((5,), (7, 3)):
        values = draw("negative", SeededRng(1), shape, dtype, turn=1 if len(shape) > 1 else 3)
        assert np.isfinite(values.astype(np.float64)).all()
        assert (values.astype(np.float64).reshape(-1, shape[-1]).max(axis=1) < -200).any()


def lone(rows: np.ndarray, *, zero: bool) -> list[int]:
    """Return the places at which a row has its only zero, or its only other value."""
    marked = (rows == 0) if zero else (rows != 0)
    alone = marked.sum(axis=-1) == 1
    return marked[alone].argmax(axis=-1).tolist()


@pytest.mark.parametrize("said", [{}, {"low": -0.25, "high": 0.5}, {"dtype": "int32"},
                                  {"dtype": "uint8"}, {"dtype": "bool"}])  # fmt: skip
def test_a_long_row_has_a_single_zero_or_a_single_other_value_far_back(
    said: dict[str, Any],
):
    op = OpSchema((Dim("M", candidates=(2, 5)), Dim("N", min=1, max=100)),
                  (TensorDef("x", ("M", "N"), **said),))  # fmt: skip
    for seed in SEEDS:
        found = [materialise(case)["x"] for case in plan(op, seed)]
        for zero in (True, False):
            assert any(place >= 64 for rows in found for place in lone(rows, zero=zero))
            assert any(rows.shape[1] - 1 in lone(rows, zero=zero) for rows in found)


@pytest.mark.parametrize("said", [{}, {"dtype": "int32"}, {"dtype": "bool"}])
def test_a_long_vector_has_a_single_zero_and_one_has_a_single_other_value(said: dict[str, Any]):
    for seed in SEEDS:
        found = [materialise(case)["x"] for case in plan(schema("x", **said), seed)]
        assert any(place >= 128 for row in found for place in lone(row[None], zero=True))
        assert any(place >= 32 for row in found for place in lone(row[None], zero=False))


@pytest.mark.parametrize("said", [{"low": 0.5}, {"high": -1.0}, {"low": 0.0, "high": 0.0}])
def test_a_range_without_zero_or_of_zeros_has_no_lone_values(said: dict[str, Any]):
    for case in plan(schema("x", axes=("M", "N"), **said), 4):
        assert not any(spec.turn for spec in case.inputs if spec.strategy == "normal")


def test_lone_values_are_in_cases_in_which_all_inputs_are_normal():
    for seed in SEEDS:
        for case in plan(schema("x", "y", axes=("M", "N")), seed):
            turns = [spec.turn for spec in case.inputs if spec.strategy == "normal" and spec.turn]
            assert not turns or (len(turns) == 1 and case.strategy == "normal")


def test_the_first_half_of_a_sparse_vector_is_zeros():
    for seed in SEEDS:
        first = shown(schema("x"), "sparse", seed)[1]
        assert not first[: len(first) // 2].any() and first[-1]


def test_only_zeros_have_both_signs_unless_the_range_begins_at_0():
    for said, both in (({}, True), ({"low": 0.0}, False)):
        signs = [np.signbit(shown(schema("x", **said), "ties", seed)[2]) for seed in SEEDS]
        assert any(sign.any() and not sign.all() for sign in signs) == both
        assert any(sign.any() for sign in signs) == both


@pytest.mark.parametrize("axes", [("N",), ("M", "N")])
def test_inputs_of_one_shape_share_some_of_their_special_numbers(axes: tuple[str, ...]):
    for seed in SEEDS:
        op = schema("x", "y", axes=axes)
        (case,) = [
            case
            for case in plan(op, seed)
            if case.strategy == "special" and {spec.turn for spec in case.inputs} & {5, 6}
        ]
        x, y = materialise(case).values()
        if x.size > 20:
            both, one = np.isnan(x) & np.isnan(y), np.isnan(x) ^ np.isnan(y)
            assert both.any() and one.any()
            assert (np.isinf(x) & (x == y)).any()
        read = materialise(case_from_text(op, case.seed, case.to_text()))
        drawn = next(iter(materialise_each([case])))
        assert read["y"].tobytes() == y.tobytes() == drawn["y"].tobytes()

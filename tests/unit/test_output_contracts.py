"""Contracts of outputs in a schema: read, kept, and refused with key, line and mend."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from config_workspace import ConfigWorkspace
from for_each import for_each
from msgspec import to_builtins

from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.types import DTYPES
from gpuemu_flow.numerics.contract import Mask, OutputContract, Statistics
from gpuemu_flow.numerics.contract_statistics import tested as judge_random
from gpuemu_flow.numerics.contract_views import (
    distances,
    in_order_of,
    index_fault,
    mask_of,
    relabelled,
)
from gpuemu_flow.numerics.contracts import promoted

OP = """[[ops]]
name = "f"
op = "scripts/softmax.py:softmax"
reference = "scripts/ref_softmax.py"
[ops.schema]
dims = {{ B = [1, 3], T = [2, 5] }}
[ops.schema.inputs]
x = ["B", "T"]
m = {{ dims = ["B", "T"], dtype = "bool" }}
n = {{ dims = ["B"], dtype = "int32" }}
w = {{ dims = ["B", "B"], dtype = "bool" }}
[ops.schema.outputs]
y = {{ dims = ["B", "T"], {said} }}
"""
LINE = 13


@pytest.fixture
def workspace(tmp_path: Path) -> ConfigWorkspace:
    return ConfigWorkspace(tmp_path)


def contract(workspace: ConfigWorkspace, said: str) -> OutputContract:
    (found,) = workspace.load(OP.format(said=said)).op("f").outputs
    return found


@for_each(
    ("said", "expected"),
    [
        ('dtype = "fp16"', {"dtype": "float16"}),
        ('dtype = "same as x"', {"dtype": "same as x"}),
        ('dtype = "promote"', {"dtype": "promote"}),
        ('dtype = "complex64"', {"dtype": "complex64"}),
        ("range = [0, inf]", {"low": 0.0}),
        ("range = [-inf, 2]", {"high": 2.0}),
        ("range = [2, 2]", {"low": 2.0, "high": 2.0}),
        ("tolerance = 0.5", {"atol": 0.5, "rtol": 0.0}),
        ("tolerance = 0", {"atol": 0.0, "rtol": 0.0}),
        ("tolerance = { rtol = 0.5 }", {"atol": 0.0, "rtol": 0.5}),
        ('ties = "any", of = "x", axis = "T"', {"ties": "x", "axis": 1}),
        ('order = "any", axis = 0', {"order": True, "axis": 0}),
        ('order = "any", axis = -2', {"order": True, "axis": -2}),
        ('ties = "any", of = "n"', {"ties": "n", "axis": 0}),
        (
            'ties = "any", order = "any", of = "x", axis = 1',
            {"ties": "x", "order": True, "axis": 1},
        ),
        ('up_to = "sign", axis = -1', {"up_to": "sign", "axis": -1}),
        ('up_to = "permutation"', {"up_to": "permutation"}),
        ('only = "not m"', {"only": Mask("m", (0, 1), "false")}),
        ('only = "n != -1"', {"only": Mask("n", (0,), "!=", -1.0)}),
        ('only = "T < n"', {"only": Mask("n", (0,), "<", along=1)}),
        ('only = "m"', {"only": Mask("m", (0, 1), "true")}),
        ('only = "n == 2"', {"only": Mask("n", (0,), "==", 2.0)}),
        ("statistics = { mean = 0, std = 1 }", {"statistics": Statistics(0.0, 1.0)}),
        (
            "statistics = { mean = 0, std = 0, samples = 100, false_alarms = 1e-15 }",
            {"statistics": Statistics(0.0, 0.0, samples=100, false_alarms=1e-15)},
        ),
        (
            'statistics = { mean = "x", zeros = 0, samples = 1000000, false_alarms = 0.01 }',
            {"statistics": Statistics("x", zeros=0.0, samples=1000000, false_alarms=0.01)},
        ),
        ('statistics = { mean = "x", zeros = 1 }', {"statistics": Statistics("x", zeros=1.0)}),
    ],
)
def test_a_contract_is_read_and_kept(
    workspace: ConfigWorkspace, said: str, expected: dict[str, object]
) -> None:
    found = contract(workspace, said)
    assert found == OutputContract("y", ("B", "T"), **expected)
    assert convert(to_builtins(found), OutputContract) == found


@for_each(
    ("said", "slug", "mend"),
    [
        ('dtype = "same as z"', "schema-contract", "x, m, n"),
        ('dtype = "floaty32"', "schema-dtype", "float32"),
        ('dtype = "same of x"', "schema-dtype", "same as x"),
        ("dtype = 3", "schema-dtype", "same as x"),
        ("range = [1, 0]", "schema-range", "lowest"),
        ("range = [inf, inf]", "schema-range", "lowest"),
        ("range = [-inf, -inf]", "schema-range", "lowest"),
        ("range = [0]", "schema-range", "lowest"),
        ("tolerance = inf", "schema-contract", "atol"),
        ("tolerance = {}", "schema-contract", "atol"),
        ("tolerance = 1, statistics = { mean = 0 }", "schema-contract", "remove"),
        ("tolerance = -1", "schema-contract", "atol"),
        ("tolerance = { abs = 1 }", "schema-contract", "atol"),
        ('ties = "all", of = "x", axis = 1', "schema-contract", '"any"'),
        ('ties = "any", axis = 1', "schema-contract", "x, m, n"),
        ('ties = "any", of = "z", axis = 1', "schema-contract", "x, m, n"),
        ('ties = "any", of = "x"', "schema-contract", "axis = -1"),
        ('ties = "any", of = "x", axis = 2', "schema-contract", "-2 to 1"),
        ('of = "x"', "schema-contract", "ties"),
        ('order = "none", axis = 0', "schema-contract", '"any"'),
        ('order = "any"', "schema-contract", "axis = -1"),
        ('order = "any", axis = "Q"', "schema-contract", "dim"),
        ('order = "any", axis = -3', "schema-contract", "-2 to 1"),
        ('order = "any", axis = 32', "schema-contract", "name of one dim"),
        ('order = "any", axis = true', "schema-contract", "name of one dim"),
        ('ties = "any", of = "w", axis = "B"', "schema-contract", "name of one dim"),
        ('up_to = "scale", axis = 0', "schema-contract", "sign"),
        ("axis = 0", "schema-contract", "remove"),
        ('order = "any", axis = 0, up_to = "sign"', "schema-contract", "keep one"),
        ('order = "any", axis = 0, only = "m"', "schema-contract", "keep one"),
        ('only = "k"', "schema-contract", "m, n, w, x"),
        ('only = "w"', "schema-contract", "each dim of 'w'"),
        ('only = "m", compare = "scripts/softmax.py:softmax"', "schema-contract", "keep one"),
        ('only = "m + 1"', "schema-contract", "lengths"),
        ('only = "Q < n"', "schema-contract", "mask"),
        ("statistics = 1", "schema-contract", "samples"),
        ('statistics = { mean = "z" }', "schema-contract", "input"),
        ("statistics = { samples = 99 }", "schema-contract", "100"),
        ("statistics = { mean = 0, samples = true }", "schema-contract", "100"),
        ("statistics = { mean = inf }", "schema-contract", "input"),
        ("statistics = { mean = 0, std = -0.1 }", "schema-contract", "from 0"),
        ("statistics = { mean = 0, zeros = 1.01 }", "schema-contract", "0 to 1"),
        ("statistics = { mean = 0, zeros = -0.01 }", "schema-contract", "0 to 1"),
        ("statistics = { mean = 0, false_alarms = 9e-16 }", "schema-contract", "0.01"),
        ("statistics = { false_alarms = 0.5 }", "schema-contract", "0.01"),
        ('tolerance = 1, ties = "any", of = "x", axis = 1', "schema-contract", "remove"),
        ('compare = "scripts/softmax.py"', "schema-contract", "compare.py:function"),
        ('compare = "missing.py:f"', "config-path-missing", ""),
    ],
)
def test_a_wrong_contract_names_line_and_mend(
    workspace: ConfigWorkspace, said: str, slug: str, mend: str
) -> None:
    (problem,) = [p for p in workspace.check(OP.format(said=said)) if p.slug == slug]
    assert problem.line == LINE
    assert mend in problem.hint
    assert "'y'" in problem.message or "schema.outputs.y" in problem.message


def test_only_needs_dims(workspace: ConfigWorkspace) -> None:
    said = OP.format(said='only = "m"').replace('dims = ["B", "T"], only', "only")
    (problem,) = [p for p in workspace.check(said) if p.slug == "schema-contract"]
    assert "only needs the dims" in problem.message


@pytest.mark.parametrize(
    ("other", "warned"),
    [
        ('c = { dims = ["B", "T"], order = "any", axis = 0 }', True),
        ('c = { dims = ["B"], dtype = "int64", order = "any" }', True),
        ('c = { dims = ["T"], dtype = "int64", order = "any" }', False),
        ('c = { dims = ["B", "T"], order = "any", axis = 1 }', False),
        ('c = { dims = ["B"], dtype = "int64" }', False),
    ],
)
def test_two_outputs_that_may_each_have_an_order_are_warned_of(
    workspace: ConfigWorkspace, other: str, warned: bool
) -> None:
    problems = workspace.check(OP.format(said='order = "any", axis = 0') + other + "\n")
    found = [p for p in problems if p.slug == "schema-separate-orders"]
    assert len(found) == warned
    for problem in found:
        assert problem.warning
        assert problem.line == LINE + 1
        assert "'y' and 'c'" in problem.message


def test_an_unknown_key_is_an_error(workspace: ConfigWorkspace) -> None:
    problems = workspace.check(OP.format(said='oder = "any"'))
    (error,) = [p for p in problems if p.slug == "config-unknown-key"]
    assert not error.warning and error.line == LINE
    assert error.hint and "order" in error.hint


@for_each(
    ("names", "expected"),
    [
        (["float16", "float32"], "float32"),
        (["float16", "bfloat16"], "float32"),
        (["float16", "int64"], "float16"),
        (["float8_e5m2", "float8_e4m3fn"], "float32"),
        (["int8", "uint8"], "int16"),
        (["bool", "int32"], "int32"),
        (["uint16", "int8"], "int32"),
        (["int64", "uint64"], "float64"),
        (["int64", "uint64", "float32"], "float32"),
    ],
)
def test_dtypes_are_promoted(names: list[str], expected: str) -> None:
    assert promoted(names) == expected


@pytest.mark.ci
def test_dtypes_are_promoted_as_pytorch_does() -> None:
    torch = pytest.importorskip("torch")
    compared = 0
    for pair in itertools.product([name for name in DTYPES if hasattr(torch, name)], repeat=2):
        try:
            found = torch.promote_types(*(getattr(torch, name) for name in pair))
        except RuntimeError:  # float8, and uint16 to uint64 with other integers
            continue
        assert f"torch.{promoted(pair)}" == str(found), pair
        compared += 1
    assert compared > 100


def test_indices_are_judged_by_what_they_name() -> None:
    x = np.array([[1.0, 3.0, 3.0, 2.0]])
    for right in ([[1, 2]], [[2, 1]]):
        assert index_fault("i", np.array(right), x, 1, "x") is None
    for wrong, word in (([[1, 1]], "twice"), ([[1, 4]], "not in 0 to 3"), ([[-1, 1]], "not in")):
        fault = index_fault("i", np.array(wrong), x, 1, "x")
        assert fault is not None and word in fault.message
    assert index_fault("i", np.array([1]), x, 1, "x") is None


def test_parts_find_their_partners_in_spite_of_rounding() -> None:
    rng = np.random.default_rng(7)
    expected = rng.normal(size=(2, 50, 3))
    expected[:, :, 0] = 1.0  # an order by the first column alone is one of chance
    moved = (expected * (1 + 1e-12 * rng.normal(size=expected.shape)))[:, rng.permutation(50)]
    assert np.abs(in_order_of(moved, expected, 1) - expected).max() < 1e-10
    nan = np.array([np.nan, 1.0, 2.0])
    assert np.array_equal(in_order_of(nan[::-1].copy(), nan, 0), nan, equal_nan=True)


def test_labels_are_equal_up_to_their_names() -> None:
    assert np.array_equal(relabelled(np.array([7, 7, 2, 9]), None), [0, 0, 1, 2])
    batches = np.array([[5, 4], [4, 5]])
    assert np.array_equal(relabelled(batches, 1), [[0, 1], [0, 1]])
    assert np.array_equal(relabelled(batches, None), [[0, 1], [1, 0]])


def test_a_mask_is_spread_by_its_dims() -> None:
    lengths = {"n": np.array([1, 3])}
    counted = mask_of(Mask("n", (1,), "<", along=0), lengths, (3, 2))
    assert counted.tolist() == [[True, True], [False, True], [False, True]]


@pytest.mark.ci
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_right_random_outputs_hardly_ever_fail(share: float) -> None:
    """At a rate of 0.01, 300 cases of a right dropout fail at most 10 times."""
    rng = np.random.default_rng(int(1000 * share))
    told = Statistics("x", zeros=share, false_alarms=0.01)
    x = rng.normal(size=(300, 40, 50))
    kept = rng.random(x.shape) >= share
    wrong = sum(
        bool(judge_random("y", y, means, told).failures)
        for y, means in zip(np.where(kept, x / (1 - share), 0), x, strict=True)
    )
    assert wrong <= 10


@pytest.mark.parametrize("lag", [48, 512, 1024])
def test_draws_that_every_tile_repeats_are_found(lag: int) -> None:
    """A generator is seeded anew for each tile, or does not know the tile's number."""
    rng = np.random.default_rng(lag)
    x = rng.normal(size=(64, 64)) + 3
    kept = np.resize(rng.random(lag) >= 0.25, x.shape)
    share = 1 - kept.mean()
    told = Statistics("x", zeros=float(share), false_alarms=1e-6)
    (failure,) = judge_random("y", np.where(kept, x / (1 - share), 0), x, told).failures
    assert f"{lag} apart" in failure


def test_draws_about_the_means_of_other_elements_are_found() -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(64, 96))
    kept = rng.random(x.shape) >= 0.25
    told = Statistics("x", zeros=float(1 - kept.mean()), false_alarms=1e-6)
    y = np.where(kept, x / kept.mean(), 0)
    assert not judge_random("y", y, x, told).failures
    for wrong in (np.roll(y, 4, 0), y[:, ::-1], rng.permutation(y, axis=1)):
        (failure,) = judge_random("y", wrong, x, told).failures
        assert "do not follow" in failure


def test_too_few_elements_say_nothing() -> None:
    found = judge_random("y", np.ones(50), np.zeros(50), Statistics(0.0, samples=100))
    assert (found.count, found.failures) == (0, ()) and "100" in found.note


def test_infinite_complex_numbers_are_one_value() -> None:
    """Take one infinity for another: parts and signs depend on the order of the operations."""
    inf, nan = np.inf, np.nan
    infinite = [complex(inf, 0), complex(-inf, inf), complex(nan, -inf), complex(inf, nan)]
    expected = np.array([infinite[0], infinite[1], infinite[2], infinite[3]])
    given = expected[::-1]
    assert np.isposinf(distances(expected, expected)).all()
    assert np.isposinf(distances(given, expected)).all()
    others = np.array([1.0, nan, complex(1e300, nan), complex(nan, nan)])
    told = distances(others, expected)
    assert np.isneginf(told[0]) and np.isnan(told[1:]).all()
    assert np.isposinf(distances(expected, np.ones(4, complex))).all()
    assert np.isneginf(distances(expected[:2], np.full(2, complex(nan, 0)))).all()

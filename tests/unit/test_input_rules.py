"""Inputs of a kind keep what the kind says, under every strategy, and so do shrunk ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from for_each import for_each
from input_tables import Table, cases_of
from msgspec import convert, to_builtins
from msgspec.structs import replace

from gpuemu_flow.cases.generate import decoy_values, input_values, materialise
from gpuemu_flow.cases.minimize import minimise
from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.cases.schema import parse_schema
from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.types import DTYPES, KINDS, LAYOUTS, PATTERNS, Case
from gpuemu_flow.numerics.dtypes import float_limits, to_float64


def rows(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, values.shape[-1])


def is_permutation(x: np.ndarray, _: Case) -> bool:
    return bool((np.sort(rows(x), axis=1) == np.arange(x.shape[-1])).all())


def is_sorted(x: np.ndarray, _: Case) -> bool:
    wide = to_float64(x)
    return bool((wide[..., 1:] >= wide[..., :-1]).all())


def is_falling(x: np.ndarray, case: Case) -> bool:
    return is_sorted(x[..., ::-1], case)


def are_offsets(x: np.ndarray, case: Case) -> bool:
    sizes = dict(case.dims)
    return is_sorted(x, case) and bool((x[..., 0] == 0).all() and (x[..., -1] == sizes["T"]).all())


def are_lengths(x: np.ndarray, case: Case) -> bool:
    to = dict(case.dims)["T"]
    inside = bool((x >= 0).all() and (x <= to).all())
    if x.shape[-1] < 2:
        return inside
    return inside and bool((x == 0).any(axis=-1).all() and (x == to).any(axis=-1).all())


def is_mask(x: np.ndarray, _: Case) -> bool:
    return bool(x.astype(bool).any(axis=-1).all())


def is_one_hot(x: np.ndarray, _: Case) -> bool:
    wide = x.astype(np.float64)
    return bool(((wide == 1).sum(axis=-1) == 1).all() and ((wide != 0).sum(axis=-1) == 1).all())


def is_positive(x: np.ndarray, _: Case) -> bool:
    wide = to_float64(x)
    return bool((wide > 0).all() and np.isfinite(wide).all())


def are_probabilities(x: np.ndarray, _: Case) -> bool:
    wide = to_float64(x)
    eps = {"float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}[x.dtype.name]
    return bool((wide >= 0).all() and (abs(wide.sum(axis=-1) - 1) < eps).all())


def is_symmetric(x: np.ndarray, _: Case) -> bool:
    return bool((to_float64(x) == np.swapaxes(to_float64(x), -1, -2)).all())


def is_definite(x: np.ndarray, case: Case) -> bool:
    return is_symmetric(x, case) and bool(np.linalg.eigvalsh(to_float64(x)).min() > 0)


def is_unique(x: np.ndarray, _: Case) -> bool:
    return all(len(np.unique(row)) == len(row) for row in rows(to_float64(x)))


def is_quantized(x: np.ndarray, _: Case) -> bool:
    return bool((x >= -8).all() and (x <= 7).all())


def is_inside(x: np.ndarray, case: Case) -> bool:
    return bool((x >= 0).all() and (x < dict(case.dims)["V"]).all())


def anything(x: np.ndarray, case: Case) -> bool:
    return True


KEPT: list[tuple[str, Table, str, tuple[str, ...], Callable[[np.ndarray, Case], bool]]] = [
    ("permutation", {"dims": ["B", "N"]}, "int32", (), is_permutation),
    ("sorted", {"dims": ["B", "N"]}, "int64", (), is_sorted),
    ("sorted", {"dims": ["B", "N"]}, "", ("float32", "bfloat16"), is_sorted),
    ("sorted", {"dims": ["N"], "range": [0, "T"]}, "uint8", (), is_sorted),
    ("sorted", {"dims": ["B", "N"], "descending": True}, "int8", (), is_falling),
    ("offsets", {"dims": ["N+1"], "to": "T"}, "int32", (), are_offsets),
    ("lengths", {"dims": ["N"], "to": "T"}, "int64", (), are_lengths),
    ("mask", {"dims": ["B", "N"]}, "bool", (), is_mask),
    ("mask", {"dims": ["B", "N"], "share": 0.0}, "", ("float16",), is_mask),
    ("one_hot", {"dims": ["B", "N"]}, "", ("float32", "bfloat16"), is_one_hot),
    ("one_hot", {"dims": ["B", "N"]}, "int8", (), is_one_hot),
    ("positive", {"dims": ["B", "N"]}, "", ("float32", "float16", "bfloat16"), is_positive),
    ("positive", {"dims": ["N"]}, "uint8", (), is_positive),
    ("probabilities", {"dims": ["B", "N"]}, "", ("float32", "float16"), are_probabilities),
    ("symmetric", {"dims": ["N", "N"]}, "", ("float32", "float16"), is_symmetric),
    ("symmetric", {"dims": ["B", "N", "N"]}, "int32", (), is_symmetric),
    ("positive_definite", {"dims": ["N", "N"]}, "", ("float32", "bfloat16"), is_definite),
    ("unique", {"dims": ["B", "N"]}, "int32", (), is_unique),
    ("unique", {"dims": ["N"], "range": [3, "N+2"]}, "int64", (), is_unique),
    ("unique", {"dims": ["B", "N"]}, "", ("float32", "bfloat16"), is_unique),
    ("indices", {"dims": ["B", "N"], "of": "table"}, "int64", (), is_inside),
    ("quantized", {"dims": ["B", "N"], "bits": 4}, "int8", (), is_quantized),
    ("packed", {"dims": ["B", "N"]}, "uint8", (), anything),
]  # fmt: skip


def table_of(kind: str, said: Table, dtype: str) -> Table:
    more = {"dtype": dtype} if dtype else {}
    return {
        "dims": {"B": [1, 3, 5], "N": [1, 2, 7, 33, 64], "V": [1, 2, 257], "T": [0, 1, 9, 100]},
        "inputs": {"x": {"kind": kind, **said, **more}, "table": ["V", "T"]},
    }


@pytest.mark.parametrize(("kind", "said", "dtype", "dtypes", "holds"), KEPT)
def test_a_kind_is_kept_in_every_case(
    kind: str, said: Table, dtype: str, dtypes: tuple[str, ...], holds: Any
) -> None:
    schema = table_of(kind, said, dtype)
    for used in dtypes or ("float32",):
        seen = set()
        for case in parsed_cases(schema, used):
            spec = case.inputs[0]
            seen.add(spec.strategy)
            real = materialise(case)
            for arrays in (real, materialise(case, decoy_values(case, real))):
                values = arrays["x"]
                assert values.dtype.name == (dtype or used)
                assert holds(values, case), (case.to_text(), values)
            assert convert(plain(case), Case) == case
        assert seen == set(PATTERNS[kind]), "every strategy of the kind has its turn"


def parsed_cases(table: Table, dtype: str) -> list[Case]:
    schema = parse_schema(table, (), lambda *problem: None)
    assert schema is not None
    assert convert(to_builtins(schema), OpSchema) == schema
    return plan_cases(schema, seed=3, dtype=dtype, count=40, strategies=(), layouts=LAYOUTS)


def test_every_kind_is_looked_at() -> None:
    assert {kind for kind, *_ in KEPT} == set(KINDS)


@for_each(("kind", "said", "dtype", "dtypes", "holds"), KEPT)
def test_shrunk_inputs_are_of_the_kind(
    kind: str, said: Table, dtype: str, dtypes: tuple[str, ...], holds: Any
) -> None:
    table = table_of(kind, said, dtype)
    schema = parse_schema(table, (), lambda *problem: None)
    assert schema is not None
    used = (dtypes or ("float32",))[0]
    cases = plan_cases(schema, seed=5, dtype=used, count=24, strategies=(), layouts=())
    large = max(cases, key=lambda case: min(case.inputs[0].shape, default=0))
    asked = []

    def still_fails(candidate: Any) -> bool:
        asked.append(candidate)
        return True

    found = minimise(
        dict(materialise(large)),
        still_fails=still_fails,
        budget=300,
        schema=schema,
        dims=dict(large.dims),
    )
    assert found.reproduced
    for candidate in asked:
        case = Case(0, 0, used, "contiguous", "", large.inputs, dims=tuple(candidate.dims.items()))
        values = candidate.inputs["x"]
        if kind != "lengths":  # a shrunk batch need not have an empty and a full row
            assert holds(values, case), (candidate.dims, values)
        else:
            assert (values >= 0).all()
            assert (values <= candidate.dims["T"]).all()
    sizes = [array.size for array in found.inputs.values()]
    assert sum(sizes) <= sum(array.size for array in materialise(large).values())


@for_each("rule", ["x <= w", "w <= x", "x == w"])
def test_a_rule_holds_where_the_optional_input_is_there(rule: str) -> None:
    plain = {"dims": ["N"], "range": [-4, 4]}
    inputs = {"x": plain, "w": {**plain, "optional": True}}
    table = {"dims": {"N": {"min": 1, "max": 40}}, "inputs": inputs, "output": ["N"]}
    seen: Counter[bool] = Counter()
    for case in cases_of({**table, "constraints": [rule]}, count=30):
        made = materialise(case)
        seen[bool(made["w"].size)] += 1
        if made["w"].size:
            assert eval(rule, {}, made).all(), case
    assert min(seen[True], seen[False]) > 0


@for_each("kind", KINDS)
def test_strategies_differ(kind: str) -> None:
    said = next(said for name, said, *_ in KEPT if name == kind)
    dtype = next(dtype for name, _, dtype, *_ in KEPT if name == kind)
    schema = parse_schema(table_of(kind, {**said}, dtype), (), lambda *problem: None)
    assert schema is not None
    case = max(
        plan_cases(schema, seed=3, dtype="float32", count=30, strategies=(), layouts=()),
        key=lambda case: (min(case.inputs[0].shape), min(size for _, size in case.dims)),
    )
    seen = {
        input_values(case, replace(spec, strategy=pattern)).tobytes()
        for spec in case.inputs[:1]
        for pattern in PATTERNS[kind]
    }
    assert len(seen) == len(PATTERNS[kind])


def test_the_limits_of_dtypes_are_kept() -> None:
    assert DTYPES["float16"].itemsize == 2
    for dtype in ("float16", "bfloat16", "float32"):
        table = {"dims": {"N": [64]}, "inputs": {"x": {"dims": ["N"], "kind": "positive"}}}
        for case in cases_of(table, dtype, count=10):
            assert to_float64(materialise(case)["x"]).max() <= float_limits(dtype).max


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e5m2"])
def test_positive_numbers_hold_subnormals_among_the_tiny_ones(dtype: str) -> None:
    table = {"dims": {"N": [64]}, "inputs": {"x": {"dims": ["N"], "kind": "positive"}}}
    normal = float_limits(dtype).smallest_normal
    tiny = [c for c in cases_of(table, dtype, count=10) if c.inputs[0].strategy == "tiny"]
    for case in tiny:
        values = to_float64(materialise(case)["x"])
        assert (values > 0).all()
        assert 0.2 < (values < normal).mean() < 0.8
    assert tiny


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_range_keeps_subnormals_out_of_positive_numbers(dtype: str) -> None:
    rule = {"dims": ["N"], "kind": "positive", "range": [0.25, 4.0]}
    for case in cases_of({"dims": {"N": [64]}, "inputs": {"x": rule}}, dtype, count=10):
        assert to_float64(materialise(case)["x"]).min() >= 0.25


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_tails_of_probabilities_hold_subnormals(dtype: str) -> None:
    table = {"dims": {"N": [64]}, "inputs": {"x": {"dims": ["N"], "kind": "probabilities"}}}
    smallest = float_limits(dtype).smallest_subnormal
    found = [
        to_float64(materialise(case)["x"])
        for case in cases_of(table, dtype, count=10)
        if case.inputs[0].strategy == "tiny_tail"
    ]
    assert found
    assert all((values == smallest).any() and values.max() > 0.5 for values in found)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_small_quantized_floats_are_subnormal_beside_the_largest(dtype: str) -> None:
    q = {"dims": ["B", "N"], "dtype": dtype, "kind": "quantized"}
    table = {"dims": {"B": [4], "N": [33]}, "inputs": {"q": q, "x": ["B"]}}
    limits = float_limits(dtype)
    small = [case for case in cases_of(table) if case.inputs[0].strategy == "small"]
    assert small
    for case in small:
        sizes = abs(to_float64(materialise(case)["q"]))
        assert (sizes.max(axis=1) == limits.max).all()
        rest = np.sort(sizes, axis=1)[:, :-1]
        assert ((rest > 0) & (rest < limits.smallest_normal)).any(axis=1).all()
        assert rest.max() <= 16 * limits.smallest_subnormal


RAGGED_SCHEMA: Table = {
    "dims": {"N": {"min": 0, "max": 90}, "B": {"min": 1, "max": 20}},
    "inputs": {
        "x": ["N"],
        "starts": {"dims": ["B+1"], "dtype": "int64", "kind": "offsets", "to": "N"},
        "lengths": {"dims": ["B"], "dtype": "int32", "kind": "lengths", "to": "N"},
    },
    "scalars": {"mode": ["sum", "mean", "max"]},
}


@pytest.mark.parametrize("seed", range(5))
def test_every_mode_meets_every_small_length(seed: int) -> None:
    schema = parse_schema(RAGGED_SCHEMA, (), lambda *problem: None)
    assert schema is not None
    met: dict[tuple[str, str], set[int]] = {}
    modes: Counter[str] = Counter()
    for case in plan_cases(schema, seed=seed, dtype="float32", count=24, strategies=(), layouts=()):
        arrays = materialise(case)
        mode = case.inputs[3].strategy
        modes[mode] += 1
        for name, values in (
            ("starts", np.diff(arrays["starts"])),
            ("lengths", arrays["lengths"]),
        ):
            met.setdefault((name, mode), set()).update(values.tolist())
            if dict(case.dims)["N"] in values:
                met[name, mode].add(-1)
    assert set(modes.values()) == {8}
    assert len(met) == 6
    for found in met.values():
        assert found >= {0, 1, 2, 3, -1}


@pytest.mark.parametrize("constraint", [True, False])
def test_lengths_with_a_sum_have_small_ones(constraint: bool) -> None:
    table: Table = {
        "dims": {"B": [4, 9], "S": [30], "T": [60]},
        "inputs": {
            "x": ["T"],
            "n": {"dims": ["B"], "dtype": "int32", "kind": "lengths", "to": "S"},
        },
        "constraints": ["n.sum() == T"] if constraint else [],
    }
    schema = parse_schema(table, (), lambda *problem: None)
    assert schema is not None
    cases = plan_cases(schema, seed=2, dtype="float32", count=24, strategies=(), layouts=())
    drawn = [materialise(c)["n"] for c in cases if c.inputs[1].strategy == "random"]
    assert len(drawn) > 2
    assert all({1, 2, 3} & set(values.tolist()) for values in drawn)
    assert not constraint or {int(values.sum()) for values in drawn} == {60}

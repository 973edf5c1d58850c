"""Complex inputs and lists of tensors: what their members are, and how a call gets them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.cases.grouped import spread
from gpuemu_flow.cases.op_schema import ArgumentGroup
from gpuemu_flow.workers.api import Program
from gpuemu_flow.workers.callable import CallableRunner
from gpuemu_flow.workers.channel import Watch, create


def refused(*_: object) -> None:
    raise AssertionError(_)


def told(inputs: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    found: list[tuple[tuple[str | int, ...], str]] = []
    spread({"inputs": inputs}, (), lambda path, slug, *_: found.append((path, slug)))
    return found


def test_the_members_of_complex_numbers() -> None:
    table = {"inputs": {"z": {"dims": ["N"], "dtype": "complex128", "range": [0, 1]}, "x": ["N"]}}
    schema, names, groups = spread(table, ("x", "z"), refused)
    part = {"dims": ["N"], "dtype": "float64", "range": [0, 1]}
    assert schema["inputs"] == {"z.real": part, "z.imag": part, "x": ["N"]}
    assert names == ("x", "z.real", "z.imag")
    assert groups["z"] == ArgumentGroup("complex128", ("z.real", "z.imag"))


@pytest.mark.parametrize(("counts", "fewest", "most"), [(3, 3, 3), ([1, 4], 1, 4), ([2, 2], 2, 2)])
def test_the_members_of_a_list(counts: object, fewest: int, most: int) -> None:
    schema, names, groups = spread({"inputs": {"xs": {"dims": [], "list": counts}}}, (), refused)
    assert names == () and list(schema["inputs"]) == [f"xs.{n}" for n in range(most)]
    optional = [member.get("optional", False) for member in schema["inputs"].values()]
    assert optional == [n >= fewest for n in range(most)]
    assert groups["xs"].members == tuple(schema["inputs"])


@for_each(
    ("inputs", "path"),
    [
        ({"x": {"dims": [], "list": 0}}, ("inputs", "x", "list")),
        ({"x": {"dims": [], "list": 17}}, ("inputs", "x", "list")),
        ({"x": {"dims": [], "list": True}}, ("inputs", "x", "list")),
        ({"x": {"dims": [], "list": [2, 1]}}, ("inputs", "x", "list")),
        ({"x": {"dims": [], "list": [1, 2, 3]}}, ("inputs", "x", "list")),
        ({"x": {"dims": [], "list": [1, 10**30]}}, ("inputs", "x", "list")),
        ({"x": {"dims": [], "list": "4"}}, ("inputs", "x", "list")),
        ({"x": {"dims": [], "list": 2, "optional": True}}, ("inputs", "x")),
        ({"x": {"dims": [], "list": 2, "dtype": "complex64"}}, ("inputs", "x")),
        ({"z": {"dims": [], "dtype": "complex64", "kind": "sorted"}}, ("inputs", "z", "kind")),
        ({"z": {"dims": [], "dtype": "complex64", "optional": True}}, ("inputs", "z", "optional")),
    ],
)
def test_what_a_group_cannot_have(inputs: dict[str, Any], path: tuple[str, ...]) -> None:
    assert told(inputs) == [(path, "schema-group")]


def test_an_input_may_not_be_called_as_a_member() -> None:
    inputs = {"x": {"dims": [], "list": 2}, "x.1": []}
    assert told(inputs) == [(("inputs", "x.1"), "schema-duplicate")]


def test_a_schema_that_is_no_table_is_left_to_its_parser() -> None:
    for schema in ("matmul", 3, [], {"inputs": 7}, {"inputs": ["x"]}, {"inputs": {"x": 3}}):
        assert spread(schema, ("x",), refused) == (schema, ("x",), {})


def call(function: Any, inputs: dict[str, Any], groups: dict[str, Any], **more: Any) -> Any:
    program = Program(
        "callable", root="/", input_names=tuple(inputs), groups=groups, function="f", **more
    )
    return CallableRunner(program, function).call(inputs, Watch(create("status")))


Z = {"z": {"kind": "complex64", "members": ["z.real", "z.imag"]}}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_complex_numbers_are_joined_and_changes_taken_apart(dtype: str) -> None:
    real, imag = np.array([1, np.nan], dtype), np.array([np.inf, -0.0], dtype)
    seen = []

    def f(z: Any) -> Any:
        seen.append(z.copy())
        z[0] = 5 + 6j

    result = call(f, {"z.real": real, "z.imag": imag}, Z, mutates=("z.real", "z.imag"),
                  output_names=("z",))  # fmt: skip
    assert seen[0].dtype == ("complex64" if dtype == "float32" else "complex128")
    np.testing.assert_array_equal(seen[0].view(dtype), [1, np.inf, np.nan, -0.0])
    assert np.signbit(seen[0].imag[1])
    assert (real[0], imag[0]) == (5, 6) and result["z"][0] == 5 + 6j


def test_members_that_are_absent_are_in_no_list() -> None:
    groups = {"xs": {"kind": "list", "members": ["xs.0", "xs.1", "xs.2"]}}
    inputs = {"xs.0": np.ones(2), "xs.1": np.ones(0), "xs.2": np.full(2, 3.0), "w": np.ones(1)}

    def by_name(w: Any, xs: Any) -> Any:
        assert isinstance(xs, list)
        return np.array([len(xs), *(x.sum() for x in xs)])

    def by_place(*given: Any) -> Any:
        return by_name(given[1], given[0])

    for function in (by_name, by_place):
        result = call(function, inputs, groups, optional=("xs.1", "xs.2"))
        assert result["result"].tolist() == [2, 2, 6]

"""Rules of inputs that are wrong, or that nothing can keep, are reported where they stand."""

from __future__ import annotations

from typing import Any

from for_each import for_each
from input_tables import Table, faults

X = {"dims": ["N"], "dtype": "int32"}


L8 = {"dims": ["L"], "dtype": "int8"}


@for_each(
    ("inputs", "constraints", "path", "slug"),
    [
        ({"x": {**X, "kind": "sorteed"}}, (), ("inputs", "x", "kind"), "schema-kind"),
        ({"x": {**X, "kind": "offsets"}}, (), ("inputs", "x"), "schema-rule-key"),
        ({"x": {**X, "kind": "mask", "to": "N"}}, (), ("inputs", "x", "to"), "schema-rule-key"),
        ({"x": {**X, "to": "N"}}, (), ("inputs", "x", "to"), "schema-rule-key"),
        ({"x": {**X, "share": 0.5}}, (), ("inputs", "x", "share"), "schema-rule-key"),
        (
            {"x": {**X, "dtype": "bool", "range": [0, 0]}},
            (),
            ("inputs", "x", "range"),
            "schema-rule-key",
        ),
        ({"x": {**X, "values": []}}, (), ("inputs", "x", "values"), "schema-values"),
        ({"x": {**X, "values": [1], "share": 2}}, (), ("inputs", "x", "share"), "schema-values"),
        ({"x": {**X, "range": [0, "V-1"]}}, (), ("inputs", "x", "range"), "schema-unknown-dim"),
        ({"x": {**X, "range": [0, "N-"]}}, (), ("inputs", "x", "range"), "schema-expression"),
        ({"x": ["2*"]}, (), ("inputs", "x", 0), "schema-expression"),
        ({"x": ["2*Q"]}, (), ("inputs", "x", 0), "schema-unknown-dim"),
        ({"x": {**X, "kind": "indices", "of": "t"}}, (), ("inputs", "x", "of"), "schema-rule-key"),
        ({"x": {**X, "kind": "probabilities"}}, (), ("inputs", "x", "dtype"), "schema-dtype"),
        ({"x": {**X, "kind": "symmetric"}}, (), ("inputs", "x", "dims"), "schema-unsatisfiable"),
        ({"x": X}, ("nonsense",), ("constraints", 0), "schema-constraint"),
        ({"x": X}, ("x.sum() <= N",), ("constraints", 0), "schema-constraint"),
        ({"x": X}, ("y.sum() == N",), ("constraints", 0), "schema-constraint"),
        ({"x": X}, ("x <= N",), ("constraints", 0), "schema-constraint"),
        ({"x": X}, ("N > 100",), ("constraints",), "schema-unsatisfiable"),
        ({"x": X}, ("N <= Q",), ("constraints", 0), "schema-constraint"),
        ({"x": ["N-50"]}, (), ("dims",), "schema-unsatisfiable"),
        (
            {"x": {**X, "range": [5, 9]}, "y": {**X, "range": [0, 3]}},
            ("x <= y",),
            ("constraints", 0),
            "schema-unsatisfiable",
        ),
        ({"x": X, "y": X}, ("x <= y", "y <= x"), ("constraints", 1), "schema-constraint"),
    ],
)  # fmt: skip
def test_wrong_rules_are_reported_where_they_stand(
    inputs: Table, constraints: tuple[str, ...], path: tuple[str | int, ...], slug: str
) -> None:
    table: Table = {"dims": {"N": [1, 2, 30]}, "inputs": inputs}
    if constraints:
        table["constraints"] = list(constraints)
    found = [each for each in faults(table) if each[1] != "schema-unused-dim"]
    assert found == [(path, slug)]


@for_each(
    ("inputs", "constraints", "path"),
    [
        ({"x": {**X, "range": [3, "N"]}}, (), ("inputs", "x", "range")),
        ({"x": {**X, "kind": "offsets", "to": "N"}}, (), ("inputs", "x", "dims")),
        ({"x": {**X, "kind": "lengths", "to": "N", "range": [2, 9]}}, (), ("inputs", "x", "range")),
        ({"x": {**X, "kind": "lengths"}, "y": ["Z"]}, ("x.sum() == N*Z",), None),
        (
            {"x": {**X, "kind": "lengths", "to": 2}, "y": ["Z"]},
            ("x.sum() == 3*N",),
            ("inputs", "x"),
        ),
        ({"x": {**X, "kind": "unique", "range": [1, "N-1"]}}, (), ("inputs", "x", "range")),
        ({"x": {**X, "kind": "unique", "range": [1, "N"]}}, (), None),
        ({"x": {**X, "kind": "indices", "of": "y"}, "y": ["Z"]}, (), ("inputs", "x", "of")),
        ({"x": {**L8, "kind": "permutation"}}, (), ("inputs", "x", "dtype")),
        ({"x": {**L8, "kind": "lengths", "to": "L"}}, (), ("inputs", "x", "dtype")),
        ({"x": {"dims": ["Z"], "optional": True}}, (), ("inputs", "x", "optional")),
        ({"x": {"dims": ["N*L"], "optional": True}}, (), None),
        ({"x": {"dims": ["N+L"], "optional": True}}, (), None),
        ({"x": {"dims": ["max(N,Z)"], "optional": True}}, (), None),
        ({"x": {"dims": ["cdiv(L,7)"], "optional": True}}, (), None),
        ({"x": {"dims": ["Z", "N*L"], "optional": True}}, (), None),
        ({"x": {"dims": ["N*Z"], "optional": True}}, (), ("inputs", "x", "optional")),
        ({"x": {"dims": ["N-1"], "optional": True}}, (), ("inputs", "x", "optional")),
        ({"x": {"dims": ["L%3"], "optional": True}}, (), ("inputs", "x", "optional")),
        ({"x": {"dims": ["30-N"], "optional": True}}, (), ("inputs", "x", "optional")),
    ],
)  # fmt: skip
def test_rules_that_nothing_can_keep_are_found(
    inputs: Table, constraints: tuple[str, ...], path: tuple[str | int, ...] | None
) -> None:
    dims = {"N": [1, 2, 30], "Z": [0, 2], "L": {"min": 1, "max": 300}}
    table: Table = {"dims": dims, "inputs": inputs, "constraints": list(constraints)}
    found = [each for each in faults(table) if each[1] != "schema-unused-dim"]
    assert found == ([(path, "schema-unsatisfiable")] if path else [])


@for_each(
    ("scalars", "path", "slug"),
    [
        ({"k": []}, ("scalars", "k"), "schema-values"),
        ({"k": [[1]]}, ("scalars", "k"), "schema-values"),
        ({"k": 3}, ("scalars", "k"), "schema-type"),
        ({"k": {"range": [1, "Q"]}}, ("scalars", "k", "range"), "schema-unknown-dim"),
        ({"k": {"range": [9, "N"]}}, ("scalars", "k", "range"), "schema-unsatisfiable"),
        ({"x": [1]}, ("scalars", "x"), "schema-duplicate"),
        ([1], ("scalars",), "schema-type"),
    ],
)
def test_wrong_scalars_are_reported(scalars: Any, path: tuple[str | int, ...], slug: str) -> None:
    found = faults({"dims": {"N": [3]}, "inputs": {"x": ["N"]}, "scalars": scalars})
    assert (path, slug) in found
    assert len({slug for _, slug in found}) == 1 or slug == "schema-unknown-dim"


def test_an_index_without_a_range_gets_a_hint() -> None:
    def slugs(**said: Any) -> list[str]:
        table = {"dims": {"N": [3]}, "inputs": {"row_index": {"dims": ["N"], **said}}}
        return [slug for _, slug in faults(table)]

    assert slugs(dtype="int64") == ["schema-index-without-range"]
    assert slugs(dtype="int64", range=[0, "N-1"]) == []
    assert slugs(dtype="float32") == []


def test_expressions_are_no_python() -> None:
    for text in ("__import__('os')", "N**9", "N if N else 1", "[1]", "N.real", "9" * 600, "(" * 99):
        assert faults({"dims": {"N": [3]}, "inputs": {"x": [text]}}) != []

"""Expressions of sizes: what they give, and dims found from the sizes that they gave."""

from __future__ import annotations

import pytest
from for_each import for_each

from gpuemu_flow.model.syntax import ExpressionError, compute, solve


@pytest.mark.parametrize(
    ("text", "value"),
    [("log2(N)", 5), ("log2(N - 1) + 1", 5), ("log2(1)", 0), ("log2(cdiv(N, 3))", 3)],
)
def test_log2_is_rounded_down(text: str, value: int) -> None:
    assert compute(text, {"N": 32}, {}) == value


def test_log2_of_nothing_has_no_value() -> None:
    with pytest.raises(ExpressionError, match="log2 of 0"):
        compute("log2(N)", {"N": 0}, {})


@for_each(
    ("equations", "known", "found"),
    [
        ([("3*C", 12)], {}, {"C": 4}),
        ([("B+1", 5), ("B*S", 12)], {}, {"B": 4, "S": 3}),
        ([("B*S", 12)], {"S": 3}, {"B": 4}),
        ([("N-1", 0)], {}, {"N": 1}),
        ([("cdiv(N, 32)", 2)], {}, {}),
        ([("cdiv(N, 32)", 2), ("N+1", 41)], {}, {"N": 40}),
        ([("B*S", 12)], {}, {}),
        ([("size(x)", 12)], {}, {}),
    ],
)
def test_dims_are_found_from_expressions(
    equations: list[tuple[str, int]], known: dict[str, int], found: dict[str, int]
) -> None:
    assert solve(equations, known) == found

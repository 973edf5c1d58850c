"""Listed sizes that no case had are named, and only those that a case could have."""

from __future__ import annotations

import pytest
from for_each import for_each
from msgspec.structs import replace

from gpuemu_flow.cases.op_schema import Dim, OpSchema, TensorDef, untried_sizes
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.model.types import LAYOUTS


def schema(*dims: Dim) -> OpSchema:
    names = tuple(dim.name for dim in dims)
    return OpSchema(dims, (TensorDef("x", names),), (TensorDef("y", names),))


@for_each(
    ("dims", "tried", "named"),
    [
        ((Dim("N", (5, 9)),), [{"N": 5}], ("N = 9",)),
        ((Dim("N", (5, 9)),), [{"N": 5}, {"N": 9}], ()),
        ((Dim("N", (5, 9)),), [], ("N = 5, 9",)),
        ((Dim("N", min=1, max=40), Dim("M", (1, 3))), [{"N": 1, "M": 3}], ("M = 1",)),
        ((Dim("N", min=1, max=3),), [{"N": 1}], ()),
        ((Dim("N", (4,)),), [], ()),
        ((Dim("N", tuple(range(10))),), [{"N": 9}], ("N = 0, 1, 2, 3, 4, 5, 6, 7 and 1 more",)),
        ((Dim("M", (1, 2)), Dim("N", (1, 2))), [{"M": 1, "N": 2}], ("M = 2", "N = 1")),
    ],
)
def test_listed_sizes_that_no_case_had(
    dims: tuple[Dim, ...], tried: list[dict[str, int]], named: tuple[str, ...]
) -> None:
    assert untried_sizes(schema(*dims), tried) == named


def test_sizes_that_the_limits_exclude_are_not_named() -> None:
    listed = replace(schema(Dim("M", (2, 4)), Dim("N", (1, 3, 9))), limits=(("N", "<=", "M"),))
    assert untried_sizes(listed, [{"M": 2, "N": 1}]) == ("M = 4", "N = 3")


@pytest.mark.parametrize("count", [1, 4, 8, 24])
def test_it_names_what_a_plan_leaves_out(count: int) -> None:
    listed = schema(Dim("M", (1, 3, 8)), Dim("N", (5, 9)))
    cases = plan_cases(listed, seed=1, dtype="float32", count=count, strategies=(), layouts=LAYOUTS)
    had = {size for case in cases for size in case.dims}
    texts = [
        f"{name} = {', '.join(map(str, left))}"
        for name, sizes in (("M", (1, 3, 8)), ("N", (5, 9)))
        if (left := [size for size in sizes if (name, size) not in had])
    ]
    assert untried_sizes(listed, [dict(case.dims) for case in cases]) == tuple(texts)
    assert bool(texts) == (count < 8)

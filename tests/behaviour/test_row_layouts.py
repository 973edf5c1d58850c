"""Rows with gaps after them and exchanged outer dims: strides of which only the last one is 1."""

from __future__ import annotations

import json

import pytest
from many_ops import Op, Ran, run_once

# Takes row i at i * N, whatever the strides say, where the elements of a row are neighbours.
PACKED = (
    "if x.strides[-1] != x.itemsize: x = np.ascontiguousarray(x)\n"
    "steps = np.empty(x.shape, x.dtype).strides\n"
    "rows = np.lib.stride_tricks.as_strided(x, x.shape, steps)\n"
    "return rows * 2"
)
OUTER = (
    "tall = x.strides[-1] == x.itemsize and x.strides[-2] >= x.strides[-3]\n"
    "rows = np.lib.stride_tricks.as_strided(\n"
    "    x, x.shape, np.empty(x.shape, x.dtype).strides) if tall else x\n"
    "return rows * 2"
)


def rows(op: str, dims: str, sizes: str, keys: str = "cases = 24") -> Op:
    schema = (
        f"dims = {{ {sizes} }}\ninputs = {{ x = {{ dims = [{dims}], nonfinite = false }} }}\n"
        f"output = [{dims}]"
    )
    keys = f'strategies = ["core", "stress"]\n{keys}'
    return Op(op=op, schema=schema, keys=keys, verdict="failed")


CUBE = "B = { min = 2, max = 5 }, S = { min = 2, max = 40 }, D = { min = 2, max = 40 }"
OPS = {
    "matrix": rows(PACKED, '"M", "N"', "M = { min = 1, max = 40 }, N = { min = 1, max = 200 }"),
    "listed": rows(PACKED, '"M", "N"', "M = [1, 6], N = [16, 32]"),
    "cube": rows(PACKED, '"B", "S", "D"', "B = [1, 3], S = { min = 1, max = 40 }, D = [8, 33]"),
    "outer": rows(OUTER, '"B", "S", "D"', CUBE.replace("min = 2", "min = 1")),
    "padded": rows(PACKED, '"B", "S", "D"', CUBE, 'cases = 3\nlayouts = ["padded"]'),
    "permuted": rows(PACKED, '"B", "S", "D"', CUBE, 'cases = 3\nlayouts = ["permuted"]'),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_once(tmp_path_factory, "row-layouts", OPS)


def failing_layouts(ran: Ran, name: str) -> set[str]:
    ran.check(name, OPS[name])
    return {failure["layout"] for failure in ran.failures[name]}


@pytest.mark.parametrize("name", ["matrix", "listed", "cube"])
def test_an_op_that_takes_rows_to_follow_each_other_fails(ran: Ran, name: str) -> None:
    layouts = failing_layouts(ran, name)
    assert "padded" in layouts
    assert layouts <= {"padded", "permuted"}


def test_an_op_that_takes_the_outer_dims_to_be_in_order_fails(ran: Ran) -> None:
    assert failing_layouts(ran, "outer") == {"permuted"}


@pytest.mark.parametrize("layout", ["padded", "permuted"])
def test_a_failure_is_reproduced_and_minimised_in_its_layout(ran: Ran, layout: str) -> None:
    assert failing_layouts(ran, layout) == {layout}
    words = ran.failures[layout][0]["reproduce"].split()[1:]
    known = json.loads(ran.mini.command(*words, "--format", "json", code=1).stdout)
    assert known["failure"]["layout"] == layout
    assert layout in ran.mini.command("minimize", known["id"]).stdout

"""Rows with gaps after them and exchanged outer dims: strides of which only the last one is 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mini_workspace import Mini, make_one_op

# Takes row i at i * N, whatever the strides say, where the elements of a row are neighbours.
PACKED = (
    "if x.strides[-1] != x.itemsize: x = np.ascontiguousarray(x)\n"
    "    steps = np.empty(x.shape, x.dtype).strides\n"
    "    rows = np.lib.stride_tricks.as_strided(x, x.shape, steps)\n"
    "    return rows * 2"
)


def workspace(folder: Path, op: str, dims: str, sizes: str, keys: str = "") -> Mini:
    schema = f"""
        dims = {{ {sizes} }}
        inputs = {{ x = {{ dims = [{dims}], nonfinite = false }} }}
        output = [{dims}]
        """
    mini = make_one_op(
        folder,
        takes="x",
        op=op,
        reference="return x * 2",
        schema=schema,
        keys="cases = 24\n" + keys,
    )
    mini.edit("gpuemu.toml", 'strategies = ["normal"]', 'strategies = ["core", "stress"]')
    return mini


def failing_layouts(mini: Mini) -> set[str]:
    """Return the layouts of the failures among the cases of a run."""
    done = mini.command("fuzz", "-n", "24", "--format", "json", code=1)
    return {failure["layout"] for failure in json.loads(done.stdout)["failures"]}


@pytest.mark.parametrize(
    ("dims", "sizes"),
    [
        ('"M", "N"', "M = { min = 1, max = 40 }, N = { min = 1, max = 200 }"),
        ('"M", "N"', "M = [1, 6], N = [16, 32]"),
        ('"B", "S", "D"', "B = [1, 3], S = { min = 1, max = 40 }, D = [8, 33]"),
    ],
)
def test_an_op_that_takes_rows_to_follow_each_other_fails(
    tmp_path: Path, dims: str, sizes: str
) -> None:
    mini = workspace(tmp_path / "w", PACKED, dims, sizes)
    (result,) = mini.run(code=1)["results"]
    assert result["verdict"] == "failed"
    layouts = failing_layouts(mini)
    assert "padded" in layouts
    assert layouts <= {"padded", "permuted"}


def test_an_op_that_takes_the_outer_dims_to_be_in_order_fails(tmp_path: Path) -> None:
    code = (
        "tall = x.strides[-1] == x.itemsize and x.strides[-2] >= x.strides[-3]\n"
        "    rows = np.lib.stride_tricks.as_strided(\n"
        "        x, x.shape, np.empty(x.shape, x.dtype).strides) if tall else x\n"
        "    return rows * 2"
    )
    sizes = "B = { min = 1, max = 5 }, S = { min = 1, max = 40 }, D = { min = 1, max = 40 }"
    mini = workspace(tmp_path / "w", code, '"B", "S", "D"', sizes)
    assert failing_layouts(mini) == {"permuted"}


@pytest.mark.parametrize("layout", ["padded", "permuted"])
def test_a_failure_is_reproduced_and_minimised_in_its_layout(tmp_path: Path, layout: str) -> None:
    sizes = "B = { min = 2, max = 5 }, S = { min = 2, max = 40 }, D = { min = 2, max = 40 }"
    mini = workspace(tmp_path / "w", PACKED, '"B", "S", "D"', sizes, f'layouts = ["{layout}"]\n')
    report = json.loads(mini.command("fuzz", "-n", "3", "--format", "json", code=1).stdout)
    failure = report["failures"][0]
    assert failure["layout"] == layout
    done = mini.command("reproduce", failure["id"], code=1)
    assert f"layout {layout}" in done.stdout
    small = mini.command("minimize", failure["id"]).stdout
    assert layout in small

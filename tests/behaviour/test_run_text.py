"""Test the text of `gpuemu-flow run`: a line per op and dtype, with equal failures folded."""

from __future__ import annotations

import re

import pytest
from mini_workspace import Mini


def line_of(text: str, op: str, dtype: str) -> list[str]:
    """The cells of one op's line."""
    (line,) = [x for x in text.splitlines() if x.startswith(op) and x.split()[1:2] == [dtype]]
    return re.split(r"\s{2,}", line)


def test_a_line_per_op_and_dtype_holds_its_figures(mini: Mini) -> None:
    text = mini.command("run").stdout
    head = re.split(r"\s{2,}", text.splitlines()[0])
    assert head == ["op", "dtype", "verdict", "passed", "max rel", "ulp", "of tolerance", "time"]
    table = text.partition("\n\n")[0].splitlines()
    assert max(len(line) for line in table if not line.startswith("sandbox")) <= 80, text
    for op, dtype in (
        ("scale", "float32"), ("total", "float32"), ("total", "float16"), ("relu", "float32"),
    ):  # fmt: skip
        cells = line_of(text, op, dtype)
        assert cells[2:4] == ["passed", "4 of 4"], cells
        assert cells[-3].endswith(" %")
        assert re.fullmatch(r"[\d.]+ (ms|s)", cells[-2])
        assert cells[-1] == "run"
    assert float(line_of(text, "total", "float16")[4]) > 0
    mini.edit("scripts/relu.py", "import json", "import json  # as before")
    text = mini.command("run").stdout
    assert line_of(text, "scale", "float32")[-1] == "cached"
    assert line_of(text, "relu", "float32")[-1] == "run"
    assert text.rstrip().splitlines()[-1].startswith("19 tasks: 1 ran, 0 restored, 18 current")


@pytest.mark.ci
def test_failures_are_folded_to_what_they_have_in_common(mini: Mini) -> None:
    mini.edit("scripts/total.py", "acc +=", "acc =")
    mini.edit("gpuemu.toml", "cases = 4", "cases = 12")
    report = mini.run("total", code=1)
    failures = report["failures"]
    assert len(failures) > 4
    text = mini.command("run", "total", code=1).stdout
    assert text.count("failed total: ") == 1, "one cause, one block, over both dtypes"
    (block,) = re.findall(r"^failed total: .*?(?=^\S|\Z)", text, re.DOTALL | re.MULTILINE)
    assert f"ToleranceExceeded in {len(failures)} cases (float32, float16)" in block
    shown = re.search(
        r"(?:smallest|drawn as): (\S+)  x\[(\d+), (\d+)\]  layout (\S+)  strategy (\S+)  "
        r"seed (\d+)",
        block,
    )
    assert shown is not None
    dtype, rows, columns, layout, strategy, seed = shown.groups()
    smallest = next(
        f for f in failures if f["seed_str"] == seed and f["dtype"] == dtype
    )  # the same case as in the JSON
    assert smallest["shape"] == [int(rows), int(columns)]
    assert (smallest["layout"], smallest["strategy"]) == (layout, strategy)
    size = int(rows) * int(columns)
    assert size == min(f["shape"][0] * f["shape"][1] for f in failures)
    assert re.search(r"worst at \[\d+\]: actual \S+, expected \S+, \S+ times the tolerance", block)
    drawn = smallest["reproduce"]
    assert drawn.startswith(f"gpuemu-flow reproduce {seed} --op total --case {dtype}/")
    assert f": {drawn}\n" in block, "to reproduce, or unshrunk"
    (command,) = re.findall(r"reproduce: gpuemu-flow (.*)", block)
    again = mini.command(*command.split(), code=1).stdout
    shown = re.search(r"x = .*  expected \S+  got \S+", block)
    assert shown is not None and shown[0] in again, "the case that is shown, shrunk or not"


def test_the_command_that_is_shown_reproduces(mini: Mini) -> None:
    mini.edit("scripts/scale.py", "* 3)", "* 3.5)")
    text = mini.command("run", "scale", code=1).stdout
    shown = re.search(r"reproduce: gpuemu-flow (.*)", text)
    assert shown is not None
    again = mini.command(*shown.group(1).split(), code=1)
    assert "fail" in again.stdout
    mini.edit("scripts/scale.py", "* 3.5)", "* 3)")
    mini.command(*shown.group(1).split(), code=0)

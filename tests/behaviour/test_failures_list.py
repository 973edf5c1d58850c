"""`failures` as people read it: id first, short lines, mended ones apart, values of scalars."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from mini_workspace import Mini, make_one_op


def test_ids_come_first_and_serve_as_arguments(mini: Mini) -> None:
    mini.without_causes()
    mini.edit("scripts/total.py", "acc +=", "acc =")
    mini.run("total", "--dtype", "float32", code=1)
    heading, *lines = mini.command("failures").stdout.splitlines()
    assert heading.split() == ["id", "op", "dtype", "shape", "kind", "max", "abs"]
    listed = json.loads(mini.command("failures", "--format", "json").stdout)["failures"]
    assert [line.split()[0] for line in lines] == [one["id"] for one in listed]
    assert all(len(line) <= 80 for line in lines)
    first = listed[0]
    assert lines[0].split()[1:3] == [first["op"], first["dtype"]]
    assert str(first["shape"]) in lines[0] and first["kind"] in lines[0]
    assert "still fails" in mini.command("reproduce", lines[0].split()[0], code=1).stdout
    published = mini.command("failures", "--format", "published").stdout.splitlines()
    assert published[0].startswith(f"{first['seed']} total [{first['kind']}] ")


def test_failures_in_json_say_which_when_and_under_what_tolerance(mini: Mini) -> None:
    mini.without_causes()
    mini.edit("scripts/scale.py", "* 3", "* 4")
    mini.edit("gpuemu.toml", 'op = "scripts/scale.py:scale"', 'op = "scripts/scale.py:scale"\n'
              "tolerances = { float32 = { atol = 1e-3, rtol = 0.25 } }")  # fmt: skip
    in_run = mini.run("scale", code=1)["failures"]
    in_report = json.loads(mini.command("report", "--format", "json").stdout)["failures"]
    listed = json.loads(mini.command("failures", "--format", "json").stdout)["failures"]
    fuzzed = mini.command("fuzz", "scale", "-n", "4", "--format", "json", code=1).stdout
    known = {one["id"]: one for one in listed}
    for one in (*in_run, *in_report, *json.loads(fuzzed)["failures"]):
        assert (one["atol"], one["rtol"]) == (1e-3, 0.25)
        assert {"id", "cause", "time", "minimized"} <= one.keys()
    for one in (*in_run, *in_report):
        assert one["time"] == known[one["id"]]["time"]
        assert one["minimized"] == known[one["id"]]["minimized"]


@pytest.mark.ci
def test_mended_failures_stand_apart(mini: Mini) -> None:
    mini.without_causes()
    mini.edit("scripts/total.py", "acc +=", "acc =")
    mini.run("total", "--dtype", "float32", code=1)
    fuzzed = mini.command(
        "fuzz", "total", "-n", "6", "--seed", "7", "--dtype", "float32", "--format", "json", code=1
    )
    (one, *_) = json.loads(fuzzed.stdout)["failures"]
    assert "mended" not in mini.command("failures").stdout
    path = mini.root / "scripts/total.py"
    path.write_text(path.read_text().replace("acc = widen", "acc += widen"))
    assert "mended" not in mini.command("failures").stdout, "nothing has run since"
    mini.run("total", "--dtype", "float32")
    standing, mended = mini.command("failures").stdout.split("\n\nmended, ")
    assert one["id"] in standing, "no run has judged this case again"
    assert one["id"] not in mended and len(mended.splitlines()) > 1
    mini.command("reproduce", one["id"])
    _, mended = mini.command("failures").stdout.split("mended, ")
    assert one["id"] in mended
    listed = json.loads(mini.command("failures", "--format", "json").stdout)["failures"]
    assert {x["id"]: x["mended"] for x in listed}[one["id"]] is True
    path.write_text(path.read_text().replace("acc += widen", "acc = widen"))
    mini.command("reproduce", one["id"], code=1)
    listed = json.loads(mini.command("failures", "--format", "json").stdout)["failures"]
    assert {x["id"]: x["mended"] for x in listed}[one["id"]] is False


def test_scalars_and_indices_show_their_values(tmp_path: Path) -> None:
    mini = make_one_op(
        tmp_path,
        takes="x, at, k=1, causal=False, mode='sum'",
        op="return x * 2 + (k == 3)",
        reference="return x * 2",
        schema="""
        dims = { N = [4] }
        inputs.x = ["N"]
        inputs.at = { dims = [3], dtype = "int64", kind = "indices", of = "x" }
        scalars = { k = [3], causal = [true], mode = ["max"] }
        output = ["N"]
        """,
        keys='input_names = ["x", "at", "k", "causal", "mode"]',
    )
    text = mini.command("run", code=1).stdout
    shown = r"x\[4\] at\[3\]=\[\d, \d, \d\] k=3 causal=True mode='max'  layout"
    assert re.search(f"(smallest|drawn as): float32  {shown}", text), text
    listed = json.loads(mini.command("failures", "--format", "json").stdout)["failures"]
    failure = next(one["id"] for one in listed if not one["minimized_from"])
    assert re.search(shown, mini.command("reproduce", failure, code=1).stdout)

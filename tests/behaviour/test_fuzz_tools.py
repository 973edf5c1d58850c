"""`failures export`, `minimize --strategy`, `mutate`, `calibrate` and `coverage` as commands."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import tomli
from mini_workspace import Mini

SEEDED = False


def plant(mini: Mini) -> dict[str, Any]:
    """Sums of more than one tile of 16 lose all but the last; what fuzzing says."""
    mini.edit("scripts/total.py", "acc +=", "acc =")
    done = mini.command(
        "fuzz", "total", "-n", "30", "--dtype", "float32", "--format", "json", code=1
    )
    return dict(json.loads(done.stdout))


def mend(mini: Mini) -> None:
    mini.edit("scripts/total.py", "acc = widen", "acc += widen")


@pytest.mark.ci
def test_what_a_strategy_shrinks(mini: Mini) -> None:
    failure = plant(mini)["failures"][0]

    def minimize(strategy: str) -> dict[str, Any]:
        done = mini.command(
            "minimize", failure["seed_str"], "--op", "total", "--strategy", strategy,
            "--max-iters", "300", "--format", "json",
        )  # fmt: skip
        found = dict(json.loads(done.stdout))
        assert found["original"]["id"] == failure["id"]
        return dict(found["minimized"])

    def zeros(failure_id: str) -> int:
        shown = mini.command("reproduce", failure_id, "--verbose", code=1).stdout
        assert "expected output" in shown
        words = re.split(r"[\s\[\]]+", shown.split("input x")[1].split("actual")[0])
        return sum(word in ("0.", "-0.") for word in words)

    dims, values = minimize("binary-search-dims"), minimize("binary-search-values")
    assert dims["shape"] == [1, 17]
    assert zeros(dims["id"]) == 0
    assert values["shape"] == failure["shape"]
    assert zeros(values["id"]) > 10
    shown = mini.command("minimize", failure["id"], "--max-iters", "2").stdout
    assert "the budget ended before nothing could be made smaller" in shown


def test_mutate_counts_what_the_ops_own_check_finds(mini: Mini) -> None:
    found = json.loads(mini.command("mutate", "total", "--format", "json").stdout)
    assert found["op"] == "total"
    assert found["survivors"] == []
    mini.edit("gpuemu.toml", 'dtypes = ["float32", "float16"]', "tolerances = { float32 = 1e9 }")
    weak = mini.command("mutate", "total", code=1).stdout
    assert "survives: " in weak
    assert "too weak: zeros passes every case" in weak


def test_calibrate_suggests_tolerances_under_which_the_op_passes(mini: Mini) -> None:
    shown = mini.command("calibrate", "total", "-n", "40")
    table = tomli.loads("[[ops]]\n" + shown.stdout)["ops"][0]["tolerances"]
    assert set(table) == {"float32", "float16"}
    assert table["float16"]["atol"] < 1e-3, "small sums are not drowned by large ones"
    assert 2**-10 < table["float16"]["rtol"] < 2**-7
    text = (mini.root / "gpuemu.toml").read_text()
    place = text.index("[[ops]]", text.index('name = "total"'))
    mini.write("gpuemu.toml", f"{text[:place]}{shown.stdout}\n{text[place:]}")
    assert {r["verdict"] for r in mini.run("total")["results"]} == {"passed"}
    mini.edit("scripts/total.py", "return acc.", "return (acc * 1.01).")
    assert {r["verdict"] for r in mini.run("total", code=1)["results"]} == {"failed"}


def test_an_op_that_is_never_right_gives_no_tolerance(mini: Mini) -> None:
    mini.edit("scripts/total.py", "return acc.", "return (acc * 2 + 1).")
    said = mini.command("calibrate", "total", "-n", "8", code=3)
    assert "calibration-failed: total is wrong in all" in said.stderr
    assert not said.stdout


def test_coverage_lists_the_ops_that_only_clients_run(mini: Mini) -> None:
    mini.edit("gpuemu.toml", "[targets]", '[[ops]]\nname = "theirs"\ndtypes = ["float32"]\n'
              'reference = "scripts/relu_ref.py"\ninput_names = ["x"]\n\n[targets]')  # fmt: skip
    for words in (("coverage",), ("coverage", "theirs")):
        lines = mini.command(*words).stdout.splitlines()
        assert any(line.split()[:3] == ["theirs", "float32", "0"] for line in lines), lines
    found = json.loads(mini.command("coverage", "--format", "json").stdout)
    assert "theirs" in found["uncovered"]


def test_coverage_counts_what_was_judged_and_names_the_gaps(mini: Mini) -> None:
    mini.command("fuzz", "relu", "-n", "12", "--strategy", "normal,ties", "--layout", "offset")
    after = mini.command("coverage", "relu").stdout
    assert "gap: relu float32: layout contiguous, strided, transposed" in after
    gaps = [line for line in after.splitlines() if "strategy" in line and "gap" in line]
    assert gaps
    assert "normal" not in gaps[0].replace(",", "").split()
    mini.command("coverage", "--format", "codecov", "-o", "coverage.json")
    codecov = json.loads((mini.root / "coverage.json").read_text())
    assert codecov["coverage"]["gpuemu/relu.op"] == {"1": 1}


@pytest.mark.ci
def test_how_often_it_fails_is_told_with_its_interval_and_by_shape_class(mini: Mini) -> None:
    found = plant(mini)
    rate = found["failure_rate"]
    assert (rate["failed"], rate["total"]) == (found["failed"], 30 - found["inconclusive"])
    assert 0 < rate["low"] < rate["rate"] < rate["high"] < 1
    shown = mini.command("fuzz", "total", "-n", "30", "--dtype", "float32", code=1).stdout
    assert f"over seeds, {found['failed']} of {rate['total']} fail: " in shown
    assert "95 % interval" in shown
    classes = found["causes"][0]["shape_classes"]
    assert sum(each["failed"] for each in classes.values()) == found["causes"][0]["count"]
    assert sum(each["passed"] for each in classes.values()) == found["passed"]
    assert classes["all_ones"]["failed"] == 0, "one column is one tile"
    told = shown.split("by shape class: fails in ")[1].splitlines()[0]
    assert "all_ones" in told.split("; never in ")[1]

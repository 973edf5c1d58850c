"""`fuzz`, `failures`, `reproduce` and `minimize`, as a kernel author uses them."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest
from mini_workspace import Mini

SEEDED = False


def fuzz(mini: Mini, *arguments: str, code: int | None = 0) -> dict[str, Any]:
    return dict(json.loads(mini.command("fuzz", "--format", "json", *arguments, code=code).stdout))


def plant(mini: Mini) -> None:
    """Sums of more than one tile lose all but the last: invisible while N fits a tile of 16."""
    mini.edit("scripts/total.py", "acc +=", "acc =")


def test_correct_ops_pass_and_the_same_fuzz_is_cached(mini: Mini) -> None:
    first = fuzz(mini, "scale", "-n", "60")
    assert (first["iterations"], first["passed"], first["cached"]) == (60, 60, 0)
    again = fuzz(mini, "scale", "-n", "60")
    assert (again["passed"], again["cached"]) == (60, 60)
    more = fuzz(mini, "--op", "scale", "--iterations", "80")
    assert (more["passed"], more["cached"]) == (80, 60)


def test_without_names_all_ops_are_fuzzed(mini: Mini) -> None:
    reports = fuzz(mini, "-n", "9")["ops"]
    assert [r["op"] for r in reports] == ["scale", "total", "relu"]
    assert all(r["passed"] == 9 for r in reports)


@pytest.mark.ci
def test_the_same_seed_gives_the_same_cases_whatever_the_number_of_jobs(mini: Mini) -> None:
    mini.without_causes()
    plant(mini)
    one = fuzz(mini, "total", "-n", "24", "-j", "1", "--seed", "5", code=1)
    two = fuzz(mini, "total", "-n", "24", "-j", "3", "--seed", "5", "--force", code=1)
    assert one["failed"] == two["failed"] > 0
    assert [f["id"] for f in one["failures"]] == [f["id"] for f in two["failures"]]
    assert one["seed"] == two["seed"] == 5


def test_a_planted_bug_is_found_grouped_reproduced_and_minimised(mini: Mini) -> None:
    plant(mini)
    report = fuzz(mini, "total", "-n", "60", "--minimize", code=1)
    assert report["failed"] > 0
    failure = report["failures"][0]
    assert failure["shape"][1] > 16
    said = [c["feature"].split(",")[0] for c in report["causes"]]
    assert said == ["fails when N is above 16"]
    assert [c["cause"]["stated"] for c in report["causes"]] == [True]
    assert failure["seed_str"] == str(failure["seed"])

    listed = json.loads(mini.command("failures", "--op", "total", "--format", "json").stdout)
    known = {f["id"]: f for f in listed["failures"]}
    times = [f["time"] for f in listed["failures"]]
    assert times == sorted(times, reverse=True)
    smallest = known[report["causes"][0]["minimized"]]
    assert smallest["shape"] == [1, 17], "the smallest failing case has one row and 17 columns"

    seed = str(failure["seed"])
    again = mini.command("reproduce", seed, "--op", "total", code=1)
    assert "still fails" in again.stdout
    found = json.loads(mini.command("minimize", failure["id"], "--format", "json", code=0).stdout)
    assert found["minimized"]["shape"] == [1, 17]
    assert found["one_minimal"] is True
    assert found["minimized"]["id"] != found["original"]["id"]
    assert "total" in mini.command("failures", "show", failure["id"]).stdout

    mini.edit("scripts/total.py", "acc = widen", "acc += widen")
    mended = mini.command("reproduce", seed, "--op", "total", code=0)
    assert "no longer fails" in mended.stdout
    assert "nothing to minimise" in mini.command("minimize", failure["id"], code=1).stdout


def test_a_write_to_an_input_counts_in_cases_that_get_few_checks(mini: Mini) -> None:
    mini.without_causes()
    mini.write(
        "scripts/scale.py",
        """
        import numpy as np
        def scale(x):
            y = (x * np.float32(3)).astype(x.dtype)
            if 8 < len(x) < 14: x[1] = 99
            return y
        """,
    )
    report = fuzz(mini, "scale", "-n", "20", code=1)  # the first eight have other sizes
    assert {f["kind"] for f in report["failures"]} == {"InputModified"}


def test_two_ops_do_not_overwrite_one_anothers_failures(mini: Mini) -> None:
    mini.without_causes()
    plant(mini)
    mini.edit("scripts/scale.py", "* 3)", "* 3.1)")
    fuzz(mini, "scale", "total", "-n", "8", code=1)
    listed = json.loads(mini.command("failures", "-l", "500", "--format", "json").stdout)
    by_op: dict[str, set[int]] = {}
    for failure in listed["failures"]:
        by_op.setdefault(failure["op"], set()).add(failure["seed"])
    assert set(by_op) == {"scale", "total"}
    assert by_op["scale"] & by_op["total"], "the same master seed gives the same case seeds"
    assert len({f["id"] for f in listed["failures"]}) == len(listed["failures"])


@pytest.mark.ci
def test_an_op_that_crashes_or_hangs_on_one_case_costs_that_case(mini: Mini) -> None:
    mini.write(
        "scripts/scale.py",
        """
        import os, time
        import numpy as np

        def scale(x):
            if x.shape[0] == 7:
                os.abort()
            if x.shape[0] == 5:
                time.sleep(100)
            return (x * np.float32(3)).astype(x.dtype)
        """,
    )
    mini.edit("gpuemu.toml", 'name = "scale"', 'name = "scale"\ntimeout = 5')
    report = fuzz(mini, "scale", "-n", "40", code=3)
    assert report["errors"] > 0
    assert report["passed"] + report["errors"] == 40
    kinds = {f["kind"] for f in report["failures"]}
    assert kinds == {"ExecutionError"}
    sizes = {tuple(f["shape"]) for f in report["failures"]}
    assert sizes <= {(5,), (7,)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fuzz", "scael"], ["unknown-op", "did you mean 'scale'?"]),
        (["fuzz", "scale", "-n", "-5"], ["-n"]),
        (["fuzz", "scale", "-n", "0"], ["-n"]),
        (["fuzz", "scale", "--time", "soon"], ["60s"]),
        (["fuzz", "scale", "--strategy", "unifrom"], ["unknown-strategy", "uniform"]),
        (["fuzz", "scale", "--layout", "stridded"], ["unknown-layout", "strided"]),
        (["fuzz", "scale", "--shapes", "3xq"], ["8x128x512"]),
        (["fuzz", "total", "--shapes", "1x2x3x4"], ["bad-shape"]),
        (["fuzz", "scale", "--shapes", "3x5"], ["bad-shape", "the op's schema has 1 dim: N"]),
        (["fuzz", "scale", "--dtype", "int8"], ["no-such-dtype", "float32"]),
        (["reproduce", "12345"], ["unknown-failure"]),
        (["reproduce", "zebra"], ["unknown-failure"]),
        (["reproduce"], ["seed or the id"]),
        (["minimize", "12345"], ["unknown-failure"]),
        (["failures", "--op", "scael"], ["unknown-op", "did you mean 'scale'?"]),
        (["failures", "show", "abc"], ["unknown-failure"]),
    ],
)
def test_bad_arguments_say_what_is_wrong(
    mini: Mini, arguments: list[str], words: list[str]
) -> None:
    done = mini.command(*arguments, code=2)
    for word in words:
        assert word in done.stderr
    assert done.stdout == ""


@pytest.mark.ci
def test_shapes_strategies_layouts_and_dtypes_are_obeyed(mini: Mini) -> None:
    mini.write("scripts/total.py", "def total(x):\n    return x[:, 0] + 1e9\n")
    report = fuzz(
        mini, "total", "-n", "12", "--shapes", "3x5,2x7", "--strategy", "normal",
        "--layout", "strided,offset", "--dtype", "f16", code=1,
    )  # fmt: skip
    assert {tuple(f["shape"]) for f in report["failures"]} == {(3, 5), (2, 7)}
    assert {f["strategy"] for f in report["failures"]} == {"normal"}
    assert {f["layout"] for f in report["failures"]} == {"strided", "offset"}
    assert {f["dtype"] for f in report["failures"]} == {"float16"}


def test_fail_fast_and_time_stop_early(mini: Mini) -> None:
    mini.without_causes()
    plant(mini)
    report = fuzz(mini, "total", "-n", "500", "--fail-fast", "-j", "1", code=1)
    assert report["failed"] == 1
    assert report["iterations"] < 500
    timed = fuzz(mini, "scale", "--time", "500ms")
    assert timed["iterations"] > 0


@pytest.mark.ci
def test_an_interrupted_fuzz_keeps_what_it_found(mini: Mini) -> None:
    process = mini.popen("fuzz", "scale", "-n", "1000000", "-j", "1")
    actions = mini.root / ".gpuemu-cache/actions/cache.db"
    deadline = time.monotonic() + 600
    while not (actions.exists() and _kept(mini) >= 50):
        assert time.monotonic() < deadline
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, out + err
    assert "run again to go on" in out
    kept = fuzz(mini, "scale", "-n", "50")
    assert kept["cached"] == 50


def _kept(mini: Mini) -> int:
    from gpuemu_flow.store.cache import WorkspaceCache

    cache = WorkspaceCache(mini.root / ".gpuemu-cache")
    try:
        return len(list(cache.actions))
    finally:
        cache.close()


@pytest.mark.ci
def test_failures_of_a_run_are_recorded_too(mini: Mini) -> None:
    mini.without_causes()
    plant(mini)
    mini.edit("gpuemu.toml", "cases = 4", "cases = 24")
    report = mini.run("total", code=1)
    failure = report["failures"][0]
    start = f"gpuemu-flow reproduce {failure['seed']} --op total --case {failure['dtype']}/x="
    assert failure["reproduce"].startswith(start)
    assert "still fails" in mini.command("reproduce", failure["seed_str"], code=1).stdout

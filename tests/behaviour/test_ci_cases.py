"""Test the effect of ``[ci]`` on ``ci`` and ``test``: which cases, and how many tasks at a time."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from mini_workspace import Mini

PLAIN_OP = """
[[ops]]
name = "twice"
op = "scripts/twice.py:twice"
reference = "scripts/twice_ref.py:twice_ref"
"""
PLAIN_SCRIPT = """
    def twice(input):
        return input + input
    """
PLAIN_REFERENCE = """
    def twice_ref(input):
        return 2 * input
    """


def add(mini: Mini, text: str) -> None:
    path = mini.root / "gpuemu.toml"
    path.write_text(path.read_text() + text)


def judged(mini: Mini, *arguments: str, code: int = 0) -> dict[str, Any]:
    return dict(json.loads(mini.command(*arguments, "--format", "json", code=code).stdout))


def counts(report: dict[str, Any]) -> dict[tuple[str, str], int]:
    return {(r["op"], r["dtype"]): r["cases"] for r in report["results"] if r["cases"]}


@pytest.mark.ci
def test_iterations_stand_in_place_of_cases(mini: Mini) -> None:
    add(mini, "\n[ci]\nfuzz_iterations = 6\nquick.fuzz_iterations = 3\n")
    ops = [("scale", "float32"), ("total", "float32"), ("total", "float16"), ("relu", "float32")]
    assert counts(mini.run()) == dict.fromkeys(ops, 4)
    for arguments in (("ci",), ("ci", "thorough"), ("test",)):
        assert counts(judged(mini, *arguments)) == dict.fromkeys(ops, 6)
    assert counts(judged(mini, "ci", "scale")) == {("scale", "float32"): 6}
    quick = {op: 3 for op in ops if op[1] == "float32"}
    for arguments in (("ci", "quick"), ("ci", "--quick"), ("test", "--quick")):
        assert counts(judged(mini, *arguments)) == quick
    again = mini.run()
    assert counts(again) == dict.fromkeys(ops, 4)
    assert not [name for name in again["executed"] if name.startswith(("op:", "reference:"))], (
        "its cases are the first of the longer run's"
    )


def test_an_iteration_more_judges_that_case_only(mini: Mini) -> None:
    """The cases of a short run are the first of a longer one."""
    add(mini, "\n[ci]\nfuzz_iterations = 6\n")
    first = judged(mini, "ci", "scale", "--quick")["cases"]
    more = judged(mini, "ci", "scale")["cases"]
    assert [c["seed"] for c in more[:4]] == [c["seed"] for c in first]
    assert len(more) == 6


@pytest.mark.ci
def test_a_bug_that_only_more_cases_show_is_found_and_reproduced(mini: Mini) -> None:
    plain = judged(mini, "ci", "quick", "scale")
    largest = max(case["shapes"]["x"][0] for case in plain["cases"])
    bug = f"(widen(x) * (3 if x.size <= {largest} else 4))"
    mini.edit("scripts/scale.py", "(widen(x) * 3)", bug)
    judged(mini, "ci", "scale")
    add(mini, "\n[ci]\nfuzz_iterations = 40\n")
    report = judged(mini, "ci", "scale", code=1)
    found = {f["shapes"]["x"][0] for f in report["failures"]}
    assert min(found) > largest
    seed = report["failures"][0]["seed_str"]
    done = mini.command("reproduce", seed, "--op", "scale", code=1)
    assert "still fails" in done.stdout


def test_quick_shapes_are_those_of_ops_without_a_schema(mini: Mini) -> None:
    mini.write("scripts/twice.py", PLAIN_SCRIPT)
    mini.write("scripts/twice_ref.py", PLAIN_REFERENCE)
    add(mini, PLAIN_OP + "\n[ci]\nquick_shapes = [[2, 128], [1, 7]]\nquick.fuzz_iterations = 8\n")
    report = judged(mini, "ci", "quick", "twice", "scale")
    shapes = Counter(tuple(c["shapes"]["input"]) for c in report["cases"] if c["op"] == "twice")
    assert set(shapes) == {(2, 128), (1, 7)}
    assert sum(shapes.values()) == 8
    assert len({tuple(c["shapes"]["x"]) for c in report["cases"] if c["op"] == "scale"}) > 2
    plain = {tuple(c["shapes"]["input"]) for c in judged(mini, "ci", "twice")["cases"]}
    assert plain.isdisjoint(shapes), "only a quick run is held to them"


def test_quick_shapes_that_no_op_takes_are_said_to_have_no_effect(mini: Mini) -> None:
    add(mini, "\n[ci]\nquick_shapes = [[2, 128]]\n")
    done = mini.command("config", "check")
    (line,) = [x for x in (done.stdout + done.stderr).splitlines() if "config-no-effect" in x]
    number = (mini.root / "gpuemu.toml").read_text().splitlines().index("quick_shapes = [[2, 128]]")
    assert line.startswith(f"gpuemu.toml:{number + 1}:")
    mini.command("config", "check", "--strict", code=2)
    mini.write("scripts/twice.py", PLAIN_SCRIPT)
    mini.write("scripts/twice_ref.py", PLAIN_REFERENCE)
    add(mini, PLAIN_OP)
    mini.command("config", "check", "--strict")


def test_without_these_keys_ci_and_run_share_everything(mini: Mini) -> None:
    mini.run()
    assert judged(mini, "ci")["executed"] == []
    assert mini.command("run").stdout.startswith("up to date: ")


MEETING = """
    import pathlib, time

    HERE = pathlib.Path(__file__).parent

    def {name}(x):
        (HERE / "{name}.there").touch()
        while not (HERE / "{other}.there").exists():
            time.sleep(0.01)
        return x * 1

    def reference(x):
        return x * 1
    """
APART = """
    import pathlib, time

    LOG = pathlib.Path(__file__).with_name("{name}.log")

    def {name}(x):
        begin = time.monotonic_ns()
        y = x * 1
        with LOG.open("a") as log:
            print(begin, time.monotonic_ns(), file=log)
        return y

    def reference(x):
        return x * 1
    """


def pair(mini: Mini, script: str, ci: str) -> None:
    """Two ops of one script each, and nothing else."""
    head = mini.root.joinpath("gpuemu.toml").read_text().partition("[[ops]]")[0]
    for name, other in (("left", "right"), ("right", "left")):
        mini.write(f"scripts/{name}.py", script.format(name=name, other=other))
        head += (
            f'[[ops]]\nname = "{name}"\nop = "scripts/{name}.py:{name}"\n'
            f'reference = "scripts/{name}.py:reference"\ninput_names = ["x"]\ntimeout = 60\n'
        )
    (mini.root / "gpuemu.toml").write_text(f"{head}\n[ci]\n{ci}\n")
    mini.unfence()


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ("parallel_jobs = 2", ()),
        pytest.param("parallel = 2", (), marks=pytest.mark.ci),
        pytest.param("", ("--parallel", "2"), marks=pytest.mark.ci),
    ],
)
def test_parallel_jobs_run_side_by_side(mini: Mini, jobs: str, words: tuple[str, ...]) -> None:
    """Each op waits for the other: one after the other, neither would end."""
    pair(mini, MEETING, jobs)
    assert "PASSED: 8 passed" in mini.command("ci", *words).stdout


@pytest.mark.parametrize(("jobs", "words"), [("", ()), ("parallel_jobs = 4", ("--parallel", "1"))])
def test_one_at_a_time(mini: Mini, jobs: str, words: tuple[str, ...]) -> None:
    pair(mini, APART, jobs)
    mini.command("ci", *words)
    (left, right) = (
        [int(n) for n in (mini.root / f"scripts/{name}.log").read_text().split()]
        for name in ("left", "right")
    )
    assert max(left) < min(right) or max(right) < min(left)


def test_words_select_as_with_run_and_no_daemon_is_started(mini: Mini) -> None:
    report = judged(mini, "ci", "both")
    assert {r["op"] for r in report["results"]} == {"scale", "relu"}
    (only,) = judged(mini, "ci", "run", "compare:total:float16")["results"]
    assert (only["op"], only["dtype"]) == ("total", "float16")
    assert {r["op"] for r in judged(mini, "ci", "thorough")["results"]} == {
        "scale", "total", "relu",
    }  # fmt: skip
    state = json.loads(mini.command("status", "--format", "json").stdout)["daemon"]
    assert not state["running"]

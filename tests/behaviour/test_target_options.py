"""Targets with options of their own: what a command gets that names one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mini_workspace import Mini

SEEDED = False

TARGETS = """
[profiles.few.validation]
cases = 2

[targets.nightly]
tasks = ["scale"]
cases = 3
seed = 7

[targets.outer]
tasks = ["nightly", "relu"]
cases = 5

[targets.other]
tasks = ["relu"]
seed = 8

[targets.wide]
tasks = ["total"]
profile = "few"
dtypes = ["f16"]
until = ["op"]
config.validation.cases = 6

[targets.loose]
tasks = ["scale"]
config.validation.tolerances = { float32 = 0.5 }
config.execution.parallel = 1
"""


@pytest.fixture
def targets(mini: Mini) -> Mini:
    path = mini.root / "gpuemu.toml"
    path.write_text(path.read_text() + TARGETS)
    return mini


def cases(report: dict[str, Any]) -> dict[str, int]:
    return {r["op"]: r["cases"] for r in report["results"] if r["verdict"] != "skipped"}


def test_a_target_brings_its_options_and_the_command_line_wins(targets: Mini) -> None:
    assert cases(targets.run("nightly")) == {"scale": 3}
    assert targets.run("nightly")["executed"] == [], "the options are in the key, alike"
    assert cases(targets.run("nightly", "--cases", "4")) == {"scale": 4}
    assert cases(targets.run("nightly", "relu")) == {"scale": 3, "relu": 3}
    assert cases(targets.run("scale")) == {"scale": 4}, "nobody named the target"
    assert cases(targets.run("night*")) == {"scale": 4}, "a pattern selects tasks alone"


def test_a_target_within_a_target_brings_its_options_below_the_outer_ones(targets: Mini) -> None:
    first = targets.run("outer")
    assert cases(first) == {"scale": 5, "relu": 5}
    assert not targets.run("scale", "relu", "--cases", "5", "--seed", "7")["executed"]


def test_options_that_contradict_are_an_error_with_both_places(targets: Mini) -> None:
    lines = (targets.root / "gpuemu.toml").read_text().splitlines()
    for command in ("run", "ci", "list", "explain"):
        refused = targets.command(command, "other", "nightly", code=2).stderr
        assert "target-options-differ" in refused
        for line in (lines.index("seed = 7") + 1, lines.index("seed = 8") + 1):
            assert f"gpuemu.toml:{line}" in refused, refused
    assert cases(targets.run("other", "nightly", "--seed", "9")) == {"relu": 3, "scale": 3}
    again = targets.command("run", "other", "nightly", code=2)
    assert "target-options-differ" in again.stderr, "as the snapshot knows them, too"
    targets.edit("gpuemu.toml", "seed = 8", "seed = 7")
    assert cases(targets.run("other", "nightly")) == {"relu": 3, "scale": 3}


def test_profile_dtypes_until_and_config_of_a_target(targets: Mini) -> None:
    targets.run("wide", code=4)
    listed = json.loads(targets.command("run", "wide", "-n", "-B", "--format", "json").stdout)
    assert {task["task"] for task in listed["would_run"]} == {
        "generate:total:float16",
        "op:total:float16",
    }
    everything = ("wide", "--until", "all")
    assert cases(targets.run(*everything)) == {"total": 6}, "config lies over profile"
    assert cases(targets.run(*everything, "--config", "validation.cases=7")) == {"total": 7}
    assert cases(targets.run(*everything, "--profile", "few")) == {"total": 2}


@pytest.mark.ci
def test_a_verdict_stands_for_the_options_it_was_reached_with(targets: Mini) -> None:
    """A run that passed as a target's options have it is no plan for one without them."""
    targets.warm = False
    targets.without_causes()
    targets.edit("scripts/scale.py", "* 3)", "* 3 + 1e-3)")
    targets.command("run", "scale", code=1)
    targets.command("run", "loose")
    targets.command("run", "scale", code=1)
    targets.command("run", code=1)
    targets.command("run", "loose")
    plain = json.loads(
        targets.command("explain", "compare:scale:float32", "--format", "json").stdout
    )
    assert not plain["tasks"][0]["current"]
    named = targets.command("list", "loose", "--status", "--format", "json").stdout
    assert {task["status"] for task in json.loads(named)["tasks"]} == {"current"}


def test_ci_takes_the_options_of_a_target(targets: Mini) -> None:
    checked = json.loads(targets.command("ci", "nightly", "--format", "json").stdout)
    assert checked["total_tests"] == 3
    assert not targets.run("nightly")["executed"]


@pytest.mark.ci
def test_a_target_may_stop_at_the_first_failure(targets: Mini) -> None:
    path = targets.root / "gpuemu.toml"
    stops = '[targets.stops]\ntasks = ["all"]\njobs = 1\nkeep_going = false\n'
    path.write_text(path.read_text() + stops)
    targets.without_causes()
    targets.edit("scripts/scale.py", "* 3)", "* 4)")
    targets.edit("scripts/relu_ref.py", "np.maximum(read(), 0)", "read() + 5")
    stopped = targets.run("stops", code=1)
    assert len(stopped["executed"]) < stopped["tasks"]["total"]
    went_on = targets.run("stops", "-k", code=1)
    assert set(stopped["executed"]).isdisjoint(went_on["executed"])
    assert len(stopped["executed"]) + len(went_on["executed"]) == stopped["tasks"]["total"]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('tasks = ["scale"]\ncases = 0', "config-value"),
        ('tasks = ["scale"]\njobs = "4"', "config-type"),
        ('tasks = ["scale"]\nkeep-going = true', "'keep_going'"),
        ('tasks = ["scale"]\nprofile = "fwe"', "there is no profile 'fwe'; did you mean 'few'?"),
        ('tasks = ["scale"]\nconfig.validation.casse = 4', "did you mean 'cases'?"),
        ('tasks = ["scale"]\nconfig.cache.dir = "x"', "config-unknown-key"),
        ("cases = 4", "lacks the key 'tasks'"),
        ('tasks = ["sacle"]', "did you mean 'scale'?"),
        ('tasks = ["late"]', "config-target-cycle"),
    ],
)
def test_what_is_wrong_in_a_target_is_said_with_its_line(
    table: str, said: str, targets: Mini
) -> None:
    path = targets.root / "gpuemu.toml"
    path.write_text(path.read_text() + f"[targets.late]\n{table}\n")
    checked = targets.command("config", "check", "--strict", code=2)
    last = len(path.read_text().splitlines())
    told = checked.stdout + checked.stderr
    assert said in told, told
    assert any(f"gpuemu.toml:{line}: " in told for line in range(last - 2, last + 1))

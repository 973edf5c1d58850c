"""`--profile` and `--config`: the configuration of one command."""

from __future__ import annotations

import json

import pytest
from mini_workspace import Mini

PROFILE = """
[profiles.few.validation]
cases = 2
seed = 7

[profiles.broken.validation]
cases = -1
"""


@pytest.fixture
def few(mini: Mini) -> Mini:
    text = PROFILE.partition("[profiles.broken")[0]
    (mini.root / "gpuemu.toml").write_text((mini.root / "gpuemu.toml").read_text() + text)
    mini.keep_only("scale")
    (mini.root / "gpuemu.toml").write_text((mini.root / "gpuemu.toml").read_text() + text)
    return mini


def cases(report: dict[str, object]) -> int:
    (result,) = report["results"]  # type: ignore[misc]
    return int(result["cases"])


def test_a_profile_lies_over_the_file_and_a_setting_over_both(few: Mini) -> None:
    assert cases(few.run()) == 4
    first = few.run("--profile", "few")
    assert cases(first) == 2 and first["executed"], "another seed"
    assert cases(few.run("--profile", "few", "--config", "validation.cases=3")) == 3
    assert cases(few.run("--config", "validation.cases=5", "--config", "validation.cases=6")) == 6
    again = few.run()
    assert cases(again) == 4 and again["tasks"]["failed"] == 0
    executed = set(few.run("--profile", "few")["executed"])
    programs = {"op:scale:float32", "reference:scale:float32", "compare:scale:float32"}
    assert not executed & programs, "the results of both lie in the cache"


@pytest.mark.ci
def test_no_answer_is_given_for_other_settings(few: Mini) -> None:
    """A run that passed under its own settings is no plan for a run without them."""
    few.warm = False
    few.command("run", "--config", "validation.cases=2")
    assert "4 of 4" in few.command("run").stdout
    assert "up to date" in few.command("run").stdout
    strict = few.command("run", "--config", "validation.tolerances={float32 = 0.0}", code=None)
    assert "up to date" not in strict.stdout


def test_list_status_fuzz_and_ci_take_them(few: Mini) -> None:
    settings = ("--config", "validation.dtypes=['float64']")
    listed = json.loads(few.command("list", *settings, "--format", "json").stdout)
    assert "compare:scale:float64" in {task["task"] for task in listed["tasks"]}
    few.run("--profile", "few")
    stale = json.loads(few.command("status", "--format", "json").stdout)["tasks"]["stale"]
    fresh = few.command("status", "--profile", "few", "--format", "json").stdout
    assert stale > json.loads(fresh)["tasks"]["stale"] == 0
    fuzzed = few.command("fuzz", "scale", "-n", "3", *settings, "--format", "json")
    assert "float64" in fuzzed.stdout
    checked = json.loads(few.command("ci", "--profile", "few", "--format", "json").stdout)
    assert checked["total_tests"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--profile", "fwe"), "unknown-profile: there is no profile 'fwe'; did you mean 'few'?"),
        (("--profile", "a\nb"), "unknown-profile"),
        (("--config", "validation.cases"), "bad-setting"),
        (("--config", "=4"), "bad-setting"),
        (("--config", "validation..cases=4"), "bad-setting"),
        (("--config", "validation.cases="), "bad-setting"),
        (("--config", "validation.cases=1\n[ops]"), "bad-setting"),
        (("--config", "validation.cases=[1"), "bad-setting"),
        (("--config", "validation=3", "--config", "validation.cases=3"), "bad-setting"),
        (("--config", "validation.cases=" + "1" * 20_000), "bad-setting"),
        (("--config", "validation.casse=4"), "config-unknown-key"),
        (("--config", "project.allow_outside=true"), "config-unknown-key"),
        (("--config", "cache.dir=elsewhere"), "config-unknown-key"),
        (("--config", "validation.cases=four"), "--config: config-"),
        (("--config", "validation.cases=-4"), "--config: config-"),
    ],
)
def test_wrong_words_are_usage_errors(few: Mini, arguments: tuple[str, ...], said: str) -> None:
    for command in ("run", "list"):
        refused = few.command(command, *arguments, code=2)
        assert said in refused.stderr, refused.stderr


def test_a_profile_is_checked_as_the_file_is(mini: Mini) -> None:
    path = mini.root / "gpuemu.toml"
    path.write_text(path.read_text() + PROFILE)
    refused = mini.command("run", code=2).stderr
    line = path.read_text().splitlines().index("cases = -1") + 1
    assert f"gpuemu.toml:{line}: config-" in refused

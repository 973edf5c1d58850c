"""Test the selections that `run`, `list`, `graph`, `explain`, `clean` and `status` accept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mini_workspace import Mini

SEEDED = False


def test_words_select_ops_tasks_groups_and_targets(mini: Mini) -> None:
    assert set(mini.run("scale")["executed"]) == {
        "generate:scale:float32", "op:scale:float32", "reference:scale:float32",
        "compare:scale:float32", "diff:scale",
    }  # fmt: skip
    assert set(mini.run("compare:relu:float32")["executed"]) == {
        "generate:relu:float32", "op:relu:float32", "reference:relu:float32",
        "compare:relu:float32",
    }  # fmt: skip
    assert mini.run("both")["executed"] == []
    quick = mini.run("quick")
    assert [r["dtype"] for r in quick["results"]] == ["float32"] * 3
    half = mini.run("--dtype", "f16")
    assert [(r["op"], r["dtype"]) for r in half["results"]] == [("total", "float16")]


def test_patterns_select_what_they_fit(mini: Mini) -> None:
    def chosen(*words: str) -> set[str]:
        listed = mini.command("list", *words, "--format", "json", code=0).stdout
        return {task["task"] for task in json.loads(listed)["tasks"]}

    assert chosen("compare:*:float32") == {
        f"compare:{n}:float32" for n in ("scale", "total", "relu")
    }
    assert chosen("[st]*l*") == chosen("scale", "total")
    assert chosen("compare:s?ale:*") == {"compare:scale:float32"}
    refused = mini.command("run", "compare:z*", code=2)
    assert "unknown-task: 'compare:z*'" in refused.stderr


@pytest.mark.ci
def test_the_habits_of_make(mini: Mini, tmp_path: Path) -> None:
    """`-C`, `-f` (from that folder), `-B` and `-k`; a folder or file that is not there says so."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (mini.root / "other.toml").write_text(
        (mini.root / "gpuemu.toml").read_text().replace('"scale"', '"thrice"')
    )

    def make(*arguments: str, code: int) -> str:
        process = mini.popen(*arguments, folder=elsewhere)
        said = "".join(process.communicate(timeout=600))
        assert process.returncode == code, said
        return said

    assert "config-not-found" in make("run", "scale", code=2)
    at = ("-C", str(mini.root))
    assert "5 ran" in make(*at, "run", "scale", code=0)
    assert "5 ran" in make(*at, "run", "-k", "-B", "scale", code=0)
    assert "thrice" in make(*at, "-f", "other.toml", "run", "thrice", code=0)
    assert "other-2.toml, which does not exist" in make(*at, "-f", "other-2.toml", "run", code=2)
    assert "does not exist" in make("-C", str(elsewhere / "none"), "run", code=2)


@pytest.mark.parametrize(
    ("arguments", "slug", "hint"),
    [
        (["run", "scael"], "unknown-task", "did you mean 'scale'?"),
        (["run", "compare:scale:float23"], "unknown-task", "did you mean 'compare:scale:float32'?"),
        (["run", "--dtype", "floot32"], "unknown-dtype", "did you mean 'float32'?"),
        (["run", "--dtype", "int8"], "no-such-dtype", "float16, float32"),
        (["run", "scale", "twice", "--dtype", "float16"], "no-such-dtype", "only in float32"),
        (["run", "--rerun-triggers", "cod"], "unknown-trigger", "did you mean 'code'?"),
        (["explain", "compare:nothing:float32"], "unknown-task", ""),
        (["graph", "nothing at all"], "unknown-task", ""),
        (["clean", "nothing at all"], "unknown-task", "known: "),
    ],
)
def test_words_that_name_nothing_are_usage_errors(
    mini: Mini, arguments: list[str], slug: str, hint: str
) -> None:
    done = mini.command(*arguments, code=2)
    assert slug in done.stderr
    assert hint in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [["run", "--seed", "-1"], ["run", "--seed", str(1 << 64)], ["run", "-j", "-2"], ["fly"]],
)
def test_bad_arguments_are_usage_errors(mini: Mini, arguments: list[str]) -> None:
    assert mini.command(*arguments, code=2).stdout == ""


def test_tasks_of_an_op_that_only_clients_run_are_not_there_for_that_reason(mini: Mini) -> None:
    mini.edit("gpuemu.toml", 'op = "scripts/relu.py"\n', 'execution_mode = "client_side"\n')
    for words in (["run", "compare:relu"], ["watch", "op:relu:float32"], ["explain", "diff:relu"]):
        said = mini.command(*words, code=2).stderr
        assert said.startswith(f"unknown-task: {words[1]!r} is no task, because relu has none: ")
        assert "a client runs it" in said and "did you mean" not in said
    assert "did you mean 'relu'?" in mini.command("run", "relo", code=2).stderr
    assert "did you mean" in mini.command("run", "compare:relu:float16", code=2).stderr


def test_a_dry_run_runs_nothing(mini: Mini) -> None:
    dry = json.loads(mini.command("run", "--dry-run", "--format", "json").stdout)
    assert len(dry["would_run"]) == 19
    assert not list((mini.root / ".gpuemu-cache").glob("blobs/*/*"))
    mini.run()
    assert "0 tasks may run, 19 current" in mini.command("run", "--dry-run").stdout


def test_explain_names_what_changed(checked_mini: Mini) -> None:
    mini = checked_mini
    current = mini.command("explain", "op:scale:float32").stdout
    assert "op:scale:float32 is current" in current
    assert "reads scripts/common.py" in current
    mini.edit("scripts/scale.py", "* 3)", "* 3.5)")
    changed = json.loads(mini.command("explain", "scale", "--format", "json").stdout)["tasks"]
    by_name = {task["task"]: task for task in changed}
    op = by_name["op:scale:float32"]
    assert not op["current"]
    assert [c["what"] for c in op["changes"]] == ["code.scripts/scale.py"]
    assert op["changes"][0]["old"] != op["changes"][0]["new"]
    assert by_name["reference:scale:float32"]["current"]
    assert [b["task"] for b in by_name["compare:scale:float32"]["because"]] == ["op:scale:float32"]
    mini.edit("gpuemu.toml", "N = { min = 1, max = 40 } }, inputs = { x = [\"N\"] }",
              "N = { min = 1, max = 41 } }, inputs = { x = [\"N\"] }")  # fmt: skip
    text = mini.command("explain", "generate:scale:float32").stdout
    assert "configuration changed: schema.dims" in text


def test_explain_without_words_explains_what_is_stale(checked_mini: Mini) -> None:
    mini = checked_mini
    mini.run()
    assert mini.command("explain").stdout == "nothing is stale: 19 tasks are current\n"
    mini.edit("scripts/scale.py", "* 3)", "* 3.5)")
    text = mini.command("explain").stdout
    assert "op:scale:float32" in text
    assert "relu" not in text
    found = json.loads(mini.command("explain", "--format", "json").stdout)["tasks"]
    assert found[0]["task"] == "op:scale:float32"
    assert not any(task["current"] for task in found)


def test_run_explain_says_why_and_then_runs(mini: Mini) -> None:
    done = mini.command("run", "--explain", "scale")
    assert "never finished" in done.stdout
    assert "5 tasks: 5 ran" in done.stdout


def test_list_and_graph(mini: Mini) -> None:
    listed = json.loads(mini.command("list", "--status", "--format", "json").stdout)
    assert {t["status"] for t in listed["tasks"]} == {"stale"}
    assert listed["groups"]["both"] == 6
    mini.run("scale")
    assert "op:scale:float32  current" in mini.command("list", "--status", "scale").stdout
    text = mini.command("graph", "diff:scale").stdout
    assert "compare:scale:float32 <- generate:scale:float32, op:scale:float32" in text
    mermaid = mini.command("graph", "--format", "mermaid", "scale").stdout
    assert mermaid.startswith("flowchart LR\n")
    assert mermaid.count("-->") == 6
    dot = mini.command("graph", "--format", "dot", "scale").stdout
    assert '"op:scale:float32" -> "compare:scale:float32";' in dot


def test_clean_forgets_and_clean_cache_forgets_all(checked_mini: Mini) -> None:
    mini = checked_mini
    assert "forgot 5 tasks" in mini.command("clean", "scale").stdout
    report = mini.run()
    assert report["tasks"]["restored"] == 3
    assert not [n for n in report["executed"] if n.startswith(("op:", "reference:", "compare:"))]
    mini.command("clean", "--cache")
    assert report["tasks"]["total"] == mini.run()["tasks"]["ran"] == 19


def test_status_version_and_no_workspace(
    checked_mini: Mini, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mini = checked_mini
    status = json.loads(mini.command("status", "--format", "json").stdout)
    assert status["tasks"] == {"total": 19, "current": 19, "stale": 0, "skipped": 0}
    assert status["verdicts"] == {"passed": 4}
    assert status["cache"]["blobs_bytes"] > 0
    assert mini.command("version").stdout.startswith("gpuemu-flow ")
    empty = Mini(tmp_path_factory.mktemp("empty"))
    assert "config-not-found" in empty.command("run", code=2).stderr


@pytest.mark.parametrize("option", ["-C", "-f", "--directory", "--file"])
def test_options_of_the_program_stand_before_the_command(option: str, mini: Mini) -> None:
    for command in ("run", "baseline store", "report"):
        said = mini.command(*command.split(), option, "x", code=2).stderr
        assert f"write {option} before the command: gpuemu-flow {option} " in said
        assert said.rstrip().endswith(f" {command}")
    assert "stands before" not in mini.command("run", "--colour", code=2).stderr


def test_what_only_later_cases_fail_is_changed_after_fewer_cases(mini: Mini) -> None:
    """As docs/selecting.md says: the last verdict is that of fewer cases, and counts no failure."""
    mini.without_causes()
    mini.keep_only("scale")
    done = mini.command("ci", "scale", "--format", "json")
    first, *rest = [case["shapes"]["x"][0] for case in json.loads(done.stdout)["cases"]]
    assert max(rest) > first
    mini.write(
        "scripts/scale.py",
        f"def scale(x):\n    return x * 3 if len(x) <= {first} else x * 2\n",
    )
    mini.run(code=1)
    mini.run("--cases", "1")
    assert "there is nothing to do" in mini.command("run", "@failed").stdout
    mini.command("run", "@failed", "@changed", code=1)

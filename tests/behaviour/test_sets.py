"""Sets of tasks by their states, and ops in one dtype, as words of `run` and `list`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import jsonschema
import pytest
from mini_workspace import Mini

SCHEMAS = Path(__file__).parents[2] / "schemas"


def listed(mini: Mini, *words: str) -> set[str]:
    found = mini.command("list", *words, "--format", "json").stdout
    return {task["task"] for task in json.loads(found)["tasks"]}


def test_an_op_in_one_dtype(mini: Mini) -> None:
    stages = ("generate", "op", "reference", "compare")
    assert listed(mini, "total:float16") == {f"{s}:total:float16" for s in stages}
    assert listed(mini, "tot*:float16") == listed(mini, "total:float16")
    refused = mini.command("run", "total:float23", code=2).stderr
    assert "unknown-task: 'total:float23'" in refused


@pytest.mark.ci
def test_sets_hold_what_changed_failed_and_is_new(mini: Mini) -> None:
    mini.without_causes()
    every = listed(mini)
    assert listed(mini, "@changed") == listed(mini, "@new") == every
    assert listed(mini, "@failed") == set()
    mini.run("scale")
    assert listed(mini, "@new") == every - listed(mini, "scale")
    mini.run()
    for word in ("@changed", "@failed", "@new"):
        assert listed(mini, word) == set()
        nothing = mini.command("run", word)
        assert "there is nothing to do" in nothing.stdout
    mini.edit("scripts/total.py", "acc +=", "acc =")
    changed = listed(mini, "@changed")
    assert {"op:total:float16", "compare:total:float32", "diff:total"} <= changed
    assert not changed & listed(mini, "scale", "relu")
    mini.run("@changed", code=1)
    failed = listed(mini, "@failed")
    assert "compare:total:float32" in failed and not failed & listed(mini, "scale", "relu")
    again = mini.run("@failed", "scale", code=1)
    assert {result["op"] for result in again["results"]} == {"total", "scale"}
    assert listed(mini, "@changed", "relu") == listed(mini, "relu")
    mini.edit("scripts/relu.py", "x = read()", "x = read(")
    mini.run(code=1)
    assert "compare:relu:float32" in listed(mini, "@failed")
    assert listed(mini, "@new") == set(), "what was tried in vain is not new"


EMPTY = [("@failed",), ("--shard", "1/50"), ("quick", "@failed"), ("--since", "HEAD")]


@pytest.mark.parametrize("words", EMPTY, ids=" ".join)
def test_nothing_to_do_is_not_called_a_pass(words: tuple[str, ...], mini: Mini) -> None:
    mini.without_causes()
    if "--since" in words:
        mini.write(".gitignore", ".gpuemu-cache/\nhome/\n/?.*\n")  # reports, which would be changes
        for git in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -q -m first"):
            environment = mini.environment()
            subprocess.run(["git", *git.split()], cwd=mini.root, env=environment, check=True)
    formats = ("j.json", "h.html", "x.xml", "t.txt", "m.md")
    written = [word for name in formats for word in ("-o", name)]
    said = mini.command("ci", *words, *written)
    texts = {name: (mini.root / name).read_text() for name in formats}
    assert "NOTHING TO DO: nothing checked" in texts["t.txt"]
    for name in ("j.json", "h.html", "x.xml", "m.md"):
        assert "nothing to do" in texts[name], name
    for name, text in texts.items():
        body = text if name != "h.html" else text.partition("<body>")[2].partition("<script")[0]
        assert "PASSED" not in body and ": passed" not in body, name
    report = json.loads(texts["j.json"])
    jsonschema.validate(report, json.loads((SCHEMAS / "report.schema.json").read_text()))
    assert (report["verdict"], report["exit_code"]) == ("nothing to do", 0)
    assert "PASSED" not in said.stdout
    strict = mini.command("ci", *words, "--require-all", code=4)
    assert "NOTHING TO DO: nothing checked" in strict.stdout


def test_a_run_that_only_builds_validated_nothing(mini: Mini) -> None:
    rule = '[[rules]]\nname = "lib"\ncommand = ["touch", "build/x"]\noutputs = ["build/x"]\n\n'
    mini.edit("gpuemu.toml", "[targets]", f"{rule}[targets]")
    mini.command("ci", "lib")
    assert "NOTHING VALIDATED" in mini.command("ci", "lib", "--require-all", code=4).stdout


def test_what_could_not_be_built_has_failed(mini: Mini) -> None:
    rule = '[[rules]]\nname = "lib"\ncommand = ["false"]\noutputs = ["build/x"]\n\n[targets]'
    mini.edit("gpuemu.toml", "[targets]", rule)
    mini.edit("gpuemu.toml", 'name = "relu"', 'name = "relu"\nneeds = ["lib"]')
    mini.run("relu", code=3)
    failed = listed(mini, "@failed")
    assert {"build:lib", "compare:relu:float32"} <= failed
    assert "build:lib" not in listed(mini, "@new")


def test_other_words_with_an_at_name_no_set(mini: Mini) -> None:
    refused = mini.command("run", "@chnged", code=2).stderr
    assert "unknown-set" in refused and "@changed" in refused


def test_a_summary_has_a_line_per_task(mini: Mini) -> None:
    mini.run("scale")
    mini.edit("scripts/scale.py", "* 3", "* 3 ")
    lines = mini.command("run", "--summary", "scale", "relu").stdout.splitlines()
    assert lines[0].split() == ["state", "time", "task", "outputs"]
    cells = {next(c for c in line.split() if ":" in c): line.split() for line in lines[1:]}
    assert set(cells) == listed(mini, "scale", "relu")
    assert cells["op:scale:float32"][0] == "stale"
    assert cells["generate:scale:float32"][0] == "current"
    assert cells["op:relu:float32"][:2] == ["new", "-"]
    found = json.loads(mini.command("run", "--summary", "--format", "json").stdout)["tasks"]
    by_name = {task["task"]: task for task in found}
    assert set(by_name) == listed(mini)
    assert by_name["op:scale:float32"]["duration_s"] > 0
    assert by_name["op:scale:float32"]["outputs"] == [], "only rules make files of the workspace"

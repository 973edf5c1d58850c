"""Reports of shards that were run with other options, or that lack an op, are not merged."""

from __future__ import annotations

import json
import subprocess

import pytest
from mini_workspace import Mini

pytestmark = pytest.mark.ci

TARGETS = """
[targets.some]
tasks = ["scale", "relu", "total"]
keep_going = true
until = ["relu", "scale"]
forcerun = ["relu"]
dtypes = ["float32"]
config = { policies = { warn_threshold = 0.5 } }
"""


def git(mini: Mini, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, *words], cwd=mini.root, check=True, capture_output=True)


@pytest.fixture
def committed(mini: Mini) -> Mini:
    """A repository whose last commit breaks no op and changed one."""
    mini.without_causes()
    mini.edit("gpuemu.toml", "[targets]\n", f"{TARGETS}\n[targets]\n")
    mini.write(".gitignore", ".gpuemu-cache\nshards\nhome\n")
    git(mini, "init", "-q")
    git(mini, "add", "-A")
    git(mini, "commit", "-qm", "one")
    mini.edit("scripts/scale.py", "* 3", "* 3.0")
    git(mini, "commit", "-qam", "two")
    return mini


@pytest.mark.parametrize(
    ("given", "others", "named"),
    [
        ([], ["--since", "HEAD"], "--since"),
        (["--require-all"], ["--require-all", "--since", "HEAD"], "--since"),
        (["--since", "HEAD^"], ["--since", "HEAD"], "--since"),
        ([], ["--require-all"], "--require-all"),
        ([], ["--fail-on-regression"], "--fail-on-regression"),
        ([], ["--quick"], "selection"),
        ([], ["scale"], "selection"),
        ([], ["--config", "policies.warn_threshold=0.5"], "settings"),
        (["--quick"], ["--quick", "--config", "ci.quick_dtypes=['float16']"], "ci.quick_dtypes"),
    ],
)
def test_shards_of_other_options_are_not_merged(
    committed: Mini, given: list[str], others: list[str], named: str
) -> None:
    """Whichever shard has them: each decides what is selected, or which exit code follows."""
    for odd in (1, 2):
        for n in (1, 2):
            words = others if n == odd else given
            file = f"shards/{n}.json"
            committed.command("ci", "--shard", f"{n}/2", *words, "-o", file, code=None)
        said = committed.command("report", "--merge", "shards", code=2).stderr
        assert "merge-mismatch" in said and named in said, said
    committed.command("ci", "--shard", "2/2", *given, "-o", "shards/2.json", code=None)
    committed.command("ci", "--shard", "1/2", *given, "-o", "shards/1.json", code=None)
    assert "merge-" not in committed.command("report", "--merge", "shards", code=None).stderr


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("keep_going = true", "keep_going = false", "keep_going"),
        ('until = ["relu", "scale"]', 'until = ["relu"]', "until"),
        ('forcerun = ["relu"]', "forcerun = []", "forcerun"),
        ('dtypes = ["float32"]\nconfig', 'dtypes = ["float16"]\nconfig', "dtypes"),
    ],
)
def test_shards_of_another_target_are_not_merged(
    committed: Mini, old: str, new: str, named: str
) -> None:
    committed.command("ci", "some", "--shard", "1/2", "-o", "shards/1.json", code=None)
    committed.command("ci", "some", "--shard", "2/2", "-o", "shards/2.json", code=None)
    assert "merge-" not in committed.command("report", "--merge", "shards", code=None).stderr
    committed.edit("gpuemu.toml", old, new)
    committed.command("ci", "some", "--shard", "2/2", "-o", "shards/2.json", code=None)
    said = committed.command("report", "--merge", "shards", code=2).stderr
    assert "merge-mismatch" in said and f"other options: {named}" in said, said


def test_the_name_of_a_commit_may_differ_between_shards(committed: Mini) -> None:
    git(committed, "tag", "before", "HEAD^")
    committed.command("ci", "--shard", "1/2", "--since", "HEAD^", "-o", "shards/1.json")
    committed.command("ci", "--shard", "2/2", "--since", "before", "-o", "shards/2.json")
    merged = committed.command("report", "--merge", "shards", "--format", "json")
    assert {result["op"] for result in json.loads(merged.stdout)["results"]} == {"scale"}


def test_an_op_that_is_in_no_report_is_an_error(mini: Mini) -> None:
    mini.without_causes()
    mini.command("ci", "--shard", "1/1", "-o", "r.json")
    path = mini.root / "r.json"
    report = json.loads(path.read_text())
    document = report["shard"]["document"]
    for name, key in (("results", "op"), ("states", "subject")):
        document[name] = [one for one in document[name] if one[key] != "scale"]
    document["cases"] = [case for case in document["cases"] if case[0] != "scale"]
    path.write_text(json.dumps(report))
    said = mini.command("report", "--merge", "r.json", code=2).stderr
    assert "merge-incomplete" in said and "no report has a result of scale" in said

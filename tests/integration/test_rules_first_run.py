"""The first run of a checkout, in which rules make files that verdicts and walls depend on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mini_workspace import Mini

from gpuemu_flow.workers.sandbox.fence import system_level
from gpuemu_flow.workers.sandbox.spec import landlock_version

pytestmark = pytest.mark.ci

COPY = """
import shutil, sys

shutil.copy(sys.argv[1], sys.argv[2])
"""
CONFIG = """
[project]
name = "made"
[validation]
dtypes = ["float32"]
cases = 3
cause_budget = 0
"""
RULE = """
[[rules]]
name = "{name}"
command = ["{python}", "put.py", "src/{file}", "made/{file}"]
inputs = ["src/{file}", "put.py"]
outputs = ["made/{file}"]
"""
OP = """
[[ops]]
name = "{name}"
op = "{op}"
reference = "{reference}"
input_names = ["x"]
schema = {{ dims = {{ N = [3, 8] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
"""
TRIPLE = "def it(x):\n    return (x * 3).astype(x.dtype)\n"
THIEF = """
from pathlib import Path

space = {}
exec(Path(__file__).with_name("alice.py").read_text(), space)
it = space["it"]
"""


def workspace(folder: Path, *parts: str) -> Mini:
    mini = Mini(folder, warm=True)
    mini.write("put.py", COPY)
    mini.write("gpuemu.toml", CONFIG + "".join(parts))
    mini.write("ops/it.py", TRIPLE)
    mini.write("ops/it_ref.py", "def it(x):\n    return (x + x + x).astype(x.dtype)\n")
    return mini


def rule(file: str) -> str:
    return RULE.format(name=Path(file).stem, file=file, python=sys.executable)


def op(name: str = "it", op: str = "ops/it.py:it", reference: str = "ops/it_ref.py:it") -> str:
    return OP.format(name=name, op=op, reference=reference)


def up_to_date(mini: Mini) -> bool:
    return mini.command("run").stdout.startswith("up to date")


def test_a_reference_that_a_rule_makes_counts_at_once(tmp_path: Path) -> None:
    mini = workspace(tmp_path, rule("ref.py"), op(reference="made/ref.py:it"))
    mini.write("src/ref.py", "def it(x):\n    return (x + x + x).astype(x.dtype)\n")
    assert mini.run()["results"][0]["verdict"] == "passed"
    assert up_to_date(mini)
    mini.edit("src/ref.py", "x + x + x", "x + x")
    assert mini.run(code=1)["results"][0]["verdict"] == "failed"


@pytest.mark.parametrize("pattern", ["made/t.txt", "made/*.txt"])
def test_a_file_of_depends_that_a_rule_makes_counts_at_once(tmp_path: Path, pattern: str) -> None:
    mini = workspace(tmp_path, rule("t.txt"), op(), f'depends = ["{pattern}"]\n')
    mini.write("src/t.txt", "1\n")
    assert mini.run()["results"][0]["verdict"] == "passed"
    assert up_to_date(mini)
    mini.write("src/t.txt", "2\n")
    assert mini.run()["results"][0]["verdict"] == "passed"


def test_what_is_written_to_behind_its_rule_counts_for_nothing(tmp_path: Path) -> None:
    """The op changes the reference that the rule has made."""
    mini = workspace(tmp_path, rule("ref.py"), op(reference="made/ref.py:it"), 'needs = ["ref"]\n')
    mini.unfence()
    mini.write("src/ref.py", "def it(x):\n    return (x + x + x).astype(x.dtype)\n")
    add = ["/bin/sh", "-c", 'name=ref; echo "# other" >> "$name.py"']
    place = str(tmp_path / "made")
    writes = f"import subprocess\nsubprocess.run({add!r}, check=True, cwd={place!r})\n"
    mini.write("ops/it.py", writes + TRIPLE)
    report = mini.run(code=None)
    assert "judged-by-changed" in {problem["slug"] for problem in report["problems"]}
    assert [result["verdict"] for result in report["results"]] != ["passed"]


@pytest.mark.skipif(not landlock_version(system_level()), reason="the system has no Landlock")
@pytest.mark.parametrize("apart", ["made/*.py", "made"])
def test_rivals_that_rules_make_are_kept_apart_at_once(tmp_path: Path, apart: str) -> None:
    rules = [rule(f"{name}.py") for name in ("alice", "bob", "carol")]
    ops = [op(name, f"made/{name}.py:it") for name in ("alice", "bob", "carol")]
    mini = workspace(tmp_path, f'[sandbox]\napart = ["{apart}"]\n', *rules, *ops)
    mini.write("src/alice.py", TRIPLE)
    mini.write("src/bob.py", THIEF)
    mini.write("src/carol.py", TRIPLE)
    first = {result["op"]: result["verdict"] for result in mini.run(code=None)["results"]}
    assert first == {"alice": "passed", "bob": "error", "carol": "passed"}
    again = mini.run(code=None)
    assert {result["op"]: result["verdict"] for result in again["results"]} == first
    assert not {task for task in again["executed"] if "alice" in task or "carol" in task}


@pytest.mark.skipif(not landlock_version(system_level()), reason="the system has no Landlock")
@pytest.mark.parametrize(
    "closed", ['apart = ["made"]', 'apart = ["made/*.py"]', 'hidden = ["made"]', 'apart = ["m*"]']
)
def test_a_rule_rewrites_its_outputs_in_a_folder_that_is_closed(
    tmp_path: Path, closed: str
) -> None:
    ops = [op("alice", "made/alice.py:it"), op("it")]
    mini = workspace(tmp_path, f"[sandbox]\n{closed}\n", rule("alice.py"), *ops)
    mini.write("src/alice.py", TRIPLE)
    verdicts = {r["op"]: r["verdict"] for r in mini.run(code=None)["results"]}
    assert verdicts == {"alice": "passed", "it": "passed"}
    mini.edit("src/alice.py", "x * 3", "x * 4")
    report = mini.run(code=None)
    assert "build-failed" not in {problem["slug"] for problem in report["problems"]}
    assert (tmp_path / "made/alice.py").read_text() == TRIPLE.replace("x * 3", "x * 4")
    verdicts = {r["op"]: r["verdict"] for r in report["results"]}
    assert verdicts == {"alice": "failed", "it": "passed"}


@pytest.mark.skipif(not landlock_version(system_level()), reason="the system has no Landlock")
def test_a_rule_reads_no_other_outputs_in_a_folder_that_is_closed(tmp_path: Path) -> None:
    ops = [op("alice", "made/alice.py:it"), op("bob", "made/bob.py:it")]
    rules = [rule("alice.py"), rule("bob.py") + 'needs = ["alice"]\n']
    mini = workspace(tmp_path, '[sandbox]\napart = ["made"]\n', *rules, *ops)
    mini.write("src/alice.py", TRIPLE)
    mini.write("src/bob.py", TRIPLE)
    assert mini.run()["results"]
    mini.write("steal.py", COPY.replace("sys.argv[1]", '"made/alice.py"'))
    mini.edit("gpuemu.toml", '["src/bob.py", "put.py"]', '["src/bob.py", "steal.py"]')
    mini.edit("gpuemu.toml", '"put.py", "src/bob.py"', '"steal.py", "src/bob.py"')
    report = mini.run(code=None)
    assert "build-failed" in {problem["slug"] for problem in report["problems"]}
    assert {r["op"]: r["verdict"] for r in report["results"]}["bob"] != "passed"

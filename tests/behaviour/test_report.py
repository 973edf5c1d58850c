"""``report`` by its flags, and what hostile programs can do to the files and logs of a CI job."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from mini_workspace import Mini, make_mini
from once import once
from published_schemas import check_junit, check_sarif

KERNELS = Path(__file__).resolve().parent.parent.parent / "scripts" / "kernels" / "sm_80"
CONFIG = """
[[kernels]]
name = "spills"
ptx = "k/k.ptx"
cubin = "k/k.cubin"
artifact_checks = { max_spills = 0 }

[targets]
"""
# More than a megabyte, of which most lines are commands to the log of a job.
NOISE = """
import sys
for n in range(20000):
    sys.stderr.write(f"::error file=fake.py,line={n}::forged\\n")
    sys.stderr.write(" ##[warning]forged </pre>]]>\\x1b[2J\\n")
sys.stderr.write("\\xff" * 1000 + "\\n::stop-commands::all\\n  ::add-mask::failed\\n")
sys.stderr.flush()
raise SystemExit("::error::forged ##vso[task.complete]")
"""


def give(mini: Mini, name: str) -> None:
    """Make `name` the workspace's kernel."""
    (mini.root / "k").mkdir(exist_ok=True)
    for suffix in ("ptx", "cubin"):
        shutil.copy(KERNELS / f"{name}.{suffix}", mini.root / "k" / f"k.{suffix}")


@pytest.fixture
def kernels(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Mini:
    """The small workspace with a kernel, all of it checked once; to be changed by one test."""

    def check(folder: Path) -> Mini:
        mini = make_mini(folder)
        mini.edit("gpuemu.toml", "\n[targets]\n", CONFIG)
        give(mini, "several_kernels")
        mini.command("run")
        return mini

    checked = once(tmp_path_factory, "report-kernels", check)
    shutil.copytree(checked.root, tmp_path / "workspace", copy_function=shutil.copy2)
    return Mini(tmp_path / "workspace")


def report(mini: Mini, *arguments: str) -> dict[str, Any]:
    return dict(json.loads(mini.command("report", "--format", "json", *arguments).stdout))


def test_kernels_are_shown_when_they_are_asked_for(kernels: Mini) -> None:
    assert report(kernels)["kernels"] == []
    shown = report(kernels, "--include-lint")
    assert {k["kernel"] for k in shown["kernels"]} == {"spills"}
    assert shown["baseline"] is None
    assert shown["total_tests"] == report(kernels)["total_tests"] + 1
    kernels.command("report", "--include_lint", "-o", "r.html", "-o", "r.sarif")
    assert 'data-kernel="' in (kernels.root / "r.html").read_text()
    check_sarif((kernels.root / "r.sarif").read_text())


def test_an_edited_kernel_has_no_verdict(kernels: Mini) -> None:
    ptx = kernels.root / "k/k.ptx"
    ptx.write_text(ptx.read_text().replace("ret;", "ret; // edited"))
    (kernel,) = report(kernels, "--include-lint")["kernels"]
    assert (kernel["verdict"], kernel["reason"]) == ("skipped", "changed since it was checked")
    status = json.loads(kernels.command("status", "--format", "json").stdout)
    assert status["outdated"] == 1
    assert "1 of them changed since" in kernels.command("status").stdout


def test_an_edited_kernel_that_failed_is_still_shown_as_failed(kernels: Mini) -> None:
    give(kernels, "forced_spills")
    kernels.command("run", code=1)
    ptx = kernels.root / "k/k.ptx"
    ptx.write_text(ptx.read_text().replace("ret;", "ret; // edited"))
    done = kernels.command("report", "--include-lint", "--format", "json", code=None)
    told = {(k["verdict"], k["reason"]) for k in json.loads(done.stdout)["kernels"]}
    assert ("failed", "changed since it was checked") in told


def test_kernels_are_compared_with_a_baseline_by_its_tag_or_the_newest(kernels: Mini) -> None:
    done = kernels.command("report", "--include-artifacts", code=2)
    assert "baseline" in done.stderr
    kernels.command("baseline", "store", "old")
    source = (kernels.root / "k/k.ptx").read_text()
    kernels.command("baseline", "store", "new")
    give(kernels, "forced_spills")
    (kernels.root / "k/k.ptx").write_text(source)
    kernels.command("run", code=None)
    for arguments, tag in (
        (("--include-artifacts", "old"), "old"),
        (("--include-artifacts=old",), "old"),
        (("--include_artifacts",), "new"),
        (("--include-artifacts", "-o", "r.html"), "new"),
    ):
        found = report(kernels, *arguments)
        assert found["baseline"]["baseline"]["tag"] == tag
        assert found["kernels"], "kernels come with it"
        assert found["baseline"]["kernels"]
    page = (kernels.root / "r.html").read_text()
    assert "Against baseline <code>new</code>" in page
    done = kernels.command("report", "--include-artifacts", "odl", code=2)
    assert "unknown-baseline" in done.stderr
    assert "odl" in done.stderr


def test_a_report_runs_no_op_and_says_when_nothing_is_known(mini: Mini) -> None:
    done = mini.command("report", code=4)
    assert "NOTHING VALIDATED" in done.stdout
    mini.command("run")
    mini.edit("scripts/scale.py", "def scale(x):", "print(open('ran', 'w'))\ndef scale(x):")
    assert "changed since it was checked" in mini.command("report").stdout
    assert not (mini.root / "ran").exists()
    for number in ("0", "-1", "x"):
        assert "Invalid value" in mini.command("report", "--since-hours", number, code=2).stderr


@pytest.mark.ci
def test_what_changed_since_is_no_pass_in_any_format(mini: Mini) -> None:
    """An old failure is one still, and says that it is old."""
    mini.without_causes()
    mini.edit("scripts/total.py", "def total(x):", "def total(x):\n    x = x + 1")
    mini.command("run", code=1)
    for name in ("scale", "total"):
        mini.edit(f"scripts/{name}.py", f"def {name}(x):", f"def {name}(x):\n    'edited'")
    found = report(mini)
    shown = {r["op"]: (r["verdict"], r["reason"], r["cases"]) for r in found["results"]}
    assert shown["scale"] == ("skipped", "changed since it was checked", 0)
    assert shown["total"][:2] == ("failed", "changed since it was checked")
    missed = {m["what"]: m["absence"] for m in found["not_validated"]}
    assert missed["scale float32"] == "out of date"
    for name in ("text", "markdown", "html", "sarif", "junit"):
        text = mini.command("report", "--format", name).stdout
        assert "changed since it was checked" in text, name
    tests = list(ElementTree.fromstring(text).iter("testcase"))
    ours = [t for t in tests if t.attrib["classname"] == "ops.scale"]
    assert [(t.attrib["name"], t.find("skipped").get("message")) for t in ours] == [
        ("scale[float32]", "changed since it was checked")
    ]
    theirs = [t for t in tests if t.attrib["classname"] == "ops.total"]
    assert any(t.find("failure") is not None for t in theirs)
    (said,) = (t for t in theirs if t.attrib["name"] == "total[float32]")
    assert said.find("skipped").get("message") == "changed since it was checked"


@pytest.mark.parametrize("name", ["text", "markdown", "junit", "sarif", "json"])
@pytest.mark.ci
def test_programs_cannot_command_the_log_of_a_job(mini: Mini, name: str) -> None:
    mini.edit("gpuemu.toml", "cases = 4", "cases = 1")
    (mini.root / "scripts/relu.py").write_text(NOISE.replace("20000", "5000"))
    raised = 'raise ValueError("no\\n::error file=fake.py::forged\\n  ::stop-commands::all")'
    mini.edit("scripts/scale.py", "def scale(x):", f"def scale(x):\n    {raised}")
    mini.env = {"GITHUB_ACTIONS": "true"}
    done = mini.command("ci", "relu", "scale", "--format", name, code=3)
    obeyed = [
        line
        for line in (*done.stdout.splitlines(), *done.stderr.splitlines())
        if line.lstrip().startswith("::") or re.search(r"##\w*\[", line)
    ]
    assert [line.partition(",title")[0] for line in sorted(obeyed)] == [
        "::error file=scripts/relu.py,line=1", "::error file=scripts/scale.py,line=4",
    ], "only our own annotations"  # fmt: skip
    assert len(done.stdout) + len(done.stderr) < 200_000
    assert not {"\x1b", "\x9b"} & set(done.stdout + done.stderr)


@pytest.mark.ci
def test_a_megabyte_on_standard_error_leaves_files_that_are_valid_and_small(mini: Mini) -> None:
    mini.edit("gpuemu.toml", "cases = 4", "cases = 1")
    (mini.root / "scripts/relu.py").write_text(NOISE)
    files = [f"r.{ending}" for ending in ("xml", "sarif", "json", "md", "html", "txt")]
    mini.command("ci", "relu", *(word for name in files for word in ("-o", name)), code=3)
    texts = {name: (mini.root / name).read_bytes().decode("utf-8") for name in files}
    assert max(len(text) for text in texts.values()) < 100_000
    check_junit(texts["r.xml"])
    (result,) = check_sarif(texts["r.sarif"])
    assert result["ruleId"] == "validation/ExecutionError"
    assert not [name for name, text in texts.items() if "\x1b" in text]

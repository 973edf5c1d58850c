"""Two builds of one output: one after the other, whatever workspace asks for it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mini_workspace import Mini

pytestmark = pytest.mark.ci

CONFIG = """
[project]
name = "{name}"
{more}
[[rules]]
name = "table"
command = ["{python}", "{make}"]
inputs = ["{make}"]
outputs = ["{output}"]
"""
MAKE = """
import os, time
from pathlib import Path

marks = Path({marks!r})
(marks / {name!r}).touch()
while not (marks / "go").exists():
    time.sleep(0.01)
for part in "ab":
    with Path({output!r}).open("a") as file:
        file.write({name!r} + part)
"""


def workspace(folder: Path, name: str, output: str, more: str = "") -> Mini:
    """Write a workspace whose rule marks its begin, and ends once it may."""
    mini = Mini(folder, warm=False)
    marks = folder.parent / "marks" if name == "outer" else folder.parent.parent / "marks"
    marks.mkdir(exist_ok=True)
    make = f"make_{name}.py"
    mini.write(make, MAKE.format(marks=str(marks), name=name, output=output))
    config = CONFIG.format(name=name, python=sys.executable, make=make, output=output, more=more)
    mini.write("gpuemu.toml", f'{config}\n[sandbox]\nmode = "off"\n')
    return mini


@pytest.fixture
def both(tmp_path: Path) -> tuple[Mini, Mini, Path]:
    """One workspace inside another, which make the same file."""
    outer = workspace(tmp_path / "outer", "outer", "inner/lib.txt")
    inner = workspace(tmp_path / "outer" / "inner", "inner", "lib.txt")
    home = {"HOME": str(tmp_path / "home")}
    outer.env, inner.env = dict(home), dict(home)
    return outer, inner, tmp_path / "marks"


@pytest.fixture
def first(both: tuple[Mini, Mini, Path]) -> Iterator[subprocess.Popen[str]]:
    """A run of the outer workspace in the midst of its command."""
    outer, _, marks = both
    process = outer.popen("run")
    try:
        wait_for(marks / "outer", process)
        yield process
    finally:
        (marks / "go").touch()
        process.communicate(timeout=600)


def wait_for(mark: Path, process: subprocess.Popen[str]) -> None:
    while not mark.exists():
        assert process.poll() is None, process.communicate()


def first_words(process: subprocess.Popen[str], begun: Path) -> str:
    """Return the first line on standard error; nothing if its command begins instead."""
    assert process.stderr is not None
    while not select.select([process.stderr], [], [], 0.05)[0]:
        if begun.exists():
            return ""
    return process.stderr.readline()


@pytest.mark.ci
def test_a_second_build_of_an_output_waits_for_the_first(
    both: tuple[Mini, Mini, Path], first: subprocess.Popen[str]
) -> None:
    outer, inner, marks = both
    second = inner.popen("run")
    assert second.stderr is not None and second.stdout is not None
    told = first_words(second, marks / "inner")
    assert f"process {first.pid}, which makes " in told, told
    assert str(outer.root / "inner" / "lib.txt") in told
    assert not (marks / "inner").exists(), "both commands run at once"
    (marks / "go").touch()
    _, complaints = first.communicate(timeout=600)
    out, more = second.communicate(timeout=600)
    assert (first.returncode, second.returncode) == (0, 0), complaints + out + more
    assert (outer.root / "inner" / "lib.txt").read_text() == "innerainnerb"
    outer.command("run")
    assert (outer.root / "inner" / "lib.txt").read_text() == "outeraouterb"


def test_nobody_waits_for_a_build_that_was_killed(
    both: tuple[Mini, Mini, Path], first: subprocess.Popen[str]
) -> None:
    _, inner, marks = both
    os.kill(first.pid, signal.SIGKILL)
    first.wait(timeout=600)
    (marks / "go").touch()
    done = inner.command("run")
    assert "waiting" not in done.stderr


def test_waiting_for_a_build_can_be_given_up(
    both: tuple[Mini, Mini, Path], first: subprocess.Popen[str]
) -> None:
    _, inner, marks = both
    second = inner.popen("run")
    assert second.stderr is not None
    assert "which makes" in first_words(second, marks / "inner")
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=600)
    assert second.returncode == 130, out + err
    assert not (marks / "inner").exists()


def test_two_configurations_of_one_folder_wait_for_each_other(tmp_path: Path) -> None:
    """Each has a cache of its own, and so a lock of its own."""
    mini = workspace(tmp_path / "outer", "outer", "lib.txt", '[cache]\ndir = "one"\n')
    config = mini.root / "gpuemu.toml"
    other = config.read_text().replace('dir = "one"', 'dir = "two"')
    (mini.root / "other.toml").write_text(other)
    marks = tmp_path / "marks"
    first = mini.popen("run")
    try:
        wait_for(marks / "outer", first)
        second = mini.popen("-f", "other.toml", "run")
        assert second.stderr is not None
        told = second.stderr.readline()
        assert f"process {first.pid}, which makes " in told, told
    finally:
        (marks / "go").touch()
        first.communicate(timeout=600)
    _, complaints = second.communicate(timeout=600)
    assert (first.returncode, second.returncode) == (0, 0), complaints
    assert (mini.root / "lib.txt").read_text() == "outeraouterb"


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        (["build/a", "./build/../build/a"], "is an output of the rule 'one'"),
        (["build/a", "link/a"], "is an output of the rule 'one'"),
        (["build", "build/a"], "lies below an output of the rule 'one'"),
        (["build/a/b", "build/a"], "is a folder: an output of the rule 'one'"),
    ],
)
def test_two_rules_of_a_workspace_make_no_common_file(
    outputs: list[str], said: str, tmp_path: Path
) -> None:
    mini = Mini(tmp_path)
    (tmp_path / "link").symlink_to("build")
    rules = "".join(
        f'[[rules]]\nname = "{name}"\ncommand = ["true"]\noutputs = ["{output}"]\n'
        for name, output in zip(("one", "two"), outputs, strict=True)
    )
    mini.write("gpuemu.toml", f'[project]\nname = "x"\n{rules}')
    refused = mini.command("run", code=2).stderr
    assert "config-rule-output" in refused and said in refused, refused
    assert "line 3 of gpuemu.toml" in refused and "gpuemu.toml:10: " in refused

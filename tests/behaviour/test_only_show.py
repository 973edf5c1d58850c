"""Commands that only show run nothing that the workspace names: no op, reference, build or tool."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mini_workspace import Mini

CAUSES = False

CONFIG = """
[[kernels]]
name = "built"
ptx = "made.ptx"
build = {{ command = ["{python}", "make.py"], arch = ["sm_80"] }}

[[kernels]]
name = "compiled"
source = "compiled.cu"

[execution]
tools = {{ nvcc = "tools/nvcc", ptxas = "tools/nvcc", nvdisasm = "tools/nvcc" }}

[sandbox]
mode = "off"

[targets]
"""
MARK = 'open({path!r}, "a").write(__name__ + " ran\\n")\n'
SHOWING = (
    ("list", "--status"),
    ("config", "check"),
    ("graph",),
    ("status",),
    ("explain", "all"),
    ("failures",),
    ("coverage",),
    ("baseline", "list"),
    ("report", "--include-lint"),
    (
        "report",
        "--since-hours",
        "5",
        "-o",
        "r.html",
        "-o",
        "r.sarif",
        "-o",
        "r.xml",
        "-o",
        "r.json",
    ),
)


def marked(mini: Mini) -> Path:
    """Let all programs of the workspace leave a mark, and an op fail."""
    mark = mini.root.parent / "mark"
    line = MARK.format(path=str(mark))
    config = CONFIG.format(python=sys.executable)
    mini.edit("gpuemu.toml", "\n[targets]\n", config)
    for script in sorted((mini.root / "scripts").glob("*.py")):
        script.write_text(line + script.read_text())
    mini.write("make.py", line + "open('made.ptx', 'w').write('.version 7.0')\n")
    mini.write("compiled.cu", "__global__ void k() {}\n")
    tool = f"#!{sys.executable}\n" + line + 'print("release 12.4, V12.4.131")\n'
    mini.write("tools/nvcc", tool).chmod(0o755)
    mini.edit("scripts/scale.py", "def scale(x):\n", "def scale(x):\n    return widen(x)\n")
    return mark


@pytest.mark.ci
def test_what_only_shows_runs_nothing_that_the_workspace_names(mini: Mini) -> None:
    mark = marked(mini)
    mini.command("list")  # compiles the graph, for which tools are looked for
    assert not mark.exists()
    mini.command("run", code=None)
    assert "ran" in mark.read_text(), "the marks are left"
    mark.unlink()
    mini.command("report", "--format", "html")
    assert not mark.exists(), "there are failures to draw"
    for script in (*(mini.root / "scripts").glob("*.py"), mini.root / "make.py"):
        script.write_text(script.read_text() + "\n# changed\n")
    for words in SHOWING:
        mini.command(*words, code=None)
        assert not mark.exists(), f"{words}: {mark.read_text()}"


@pytest.mark.parametrize("name", ["inside", "outside"])
def test_a_tool_of_the_workspace_is_not_run_to_be_asked_for_its_version(
    mini: Mini, name: str
) -> None:
    folder = mini.root if name == "inside" else mini.root.parent
    mark, tool = mini.root.parent / "mark", folder / "bin" / "ptxas"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\necho ran >> {mark}\necho release 12.4, V12.4.$((130 + 1))\n")
    tool.chmod(0o755)
    mini.write("k.ptx", ".version 8.0\n.target sm_80\n.address_size 64\n")
    config = f'[[kernels]]\nname = "k"\nptx = "k.ptx"\n[execution]\ntools.ptxas = "{tool}"\n'
    mini.edit("gpuemu.toml", "\n[targets]\n", f"\n{config}\n[targets]\n")
    mini.command("list")
    assert mark.exists() is (name == "outside")
    done = mini.command("run", "k", code=None)
    said = done.stdout + done.stderr
    assert ("not run to find out" in said) is (name == "inside")

"""Compilers behind the wall of ops: what is compiled is as foreign as an op is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mini_workspace import Mini

from gpuemu_flow.workers.sandbox.fence import system_level
from gpuemu_flow.workers.sandbox.spec import landlock_version

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(not landlock_version(system_level()), reason="the system has no Landlock"),
]

CONFIG = """
[project]
name = "kernels"
{more}
[execution]
tools = {{ nvcc = "{folder}/nvcc" }}

[[ops]]
name = "same"
op = "op.py:f"
reference = "reference.py:f"
input_names = ["x"]

[[kernels]]
name = "k"
source = "k/k.cu"
build = {{ arch = ["sm_80"] }}
"""
COMPILER = """\
#!{python}
import os, sys
from pathlib import Path

if "--version" in sys.argv:
    print("nvcc: NVIDIA (R) Cuda compiler driver")
    print("Cuda compilation tools, release 12.4, V12.4.131")
    sys.exit()
{deed}
sys.exit("k/k.cu(1): error: " + " ".join(text.split()))
"""
DEEDS = {
    "reference": 'text = Path("reference.py").read_text()',
    "cache": 'text = str([p.read_bytes() for p in Path(".gpuemu-cache").glob("state/*")])',
    "token": 'text = str(dict(os.environ)) + open(f"/proc/{os.getppid()}/environ").read()',
    "workspace": 'Path("op.py").write_text("secret"); text = "secret"',
}
RIGHTS = {
    "sources": 'text = "secret" * bool(Path("k/k.cu").read_text())',
    "build folder": """
folder = Path(sys.argv[sys.argv.index("-o") + 1]).parent
(folder / "made").write_text("secret")
text = (folder / "made").read_text()
""",
    "temporary files": """
import tempfile
text = "secret" * bool(tempfile.mkdtemp())
""",
}


def said(tmp_path: Path, deed: str, more: str = "") -> str:
    tool = tmp_path / "tools" / "nvcc"
    tool.parent.mkdir()
    tool.write_text(COMPILER.format(python=sys.executable, deed=deed))
    tool.chmod(0o755)
    made = Mini(tmp_path / "kernels", {"CI_JOB_TOKEN": "secret"})
    made.write("gpuemu.toml", CONFIG.format(folder=tool.parent, more=more))
    made.write("op.py", "def f(x):\n    return x\n")
    made.write("reference.py", "def f(x):\n    return +x  # secret\n")
    made.write("k/k.cu", "__global__ void k() {}\n")
    made.command("run", "same", code=None)
    done = made.command("run", "k", code=None)
    assert "error" in done.stdout
    return done.stdout


@pytest.mark.parametrize("name", DEEDS)
def test_a_compiler_is_kept_from_what_an_op_is_kept_from(tmp_path: Path, name: str) -> None:
    assert "secret" not in said(tmp_path, DEEDS[name])


@pytest.mark.parametrize("name", RIGHTS)
def test_a_compiler_has_what_it_needs(tmp_path: Path, name: str) -> None:
    assert "secret" in said(tmp_path, RIGHTS[name])


def test_without_a_fence_it_reads_what_it_likes(tmp_path: Path) -> None:
    off = '\n[sandbox]\nmode = "off"\n'
    assert "secret" in said(tmp_path, DEEDS["reference"], off)

"""Build commands and the tools that read artifacts, behind the fence of ops."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mini_workspace import Mini
from whole import sample

from gpuemu_flow.workers.sandbox.fence import system_level
from gpuemu_flow.workers.sandbox.spec import landlock_version

fenced = pytest.mark.skipif(
    not landlock_version(system_level()), reason="the system has no Landlock"
)
KERNEL = Path(__file__).resolve().parents[2] / "scripts/kernels/sm_80/softmax.ptx"
CONFIG = """
[project]
name = "made"

[[ops]]
name = "same"
op = "{op}:f"
reference = "reference.py:f"
input_names = ["x"]

[[kernels]]
name = "k"
ptx = "{ptx}"
build = {{ command = ["{python}", "make.py"], inputs = ["template.ptx"] }}
{more}
"""
MAKE = """
from pathlib import Path
import os, tempfile

tempfile.mkdtemp()
Path(os.environ["HOME"]).mkdir(exist_ok=True)
Path(os.environ["HOME"], "notes").write_text("its own")
Path("{ptx}").parent.mkdir(exist_ok=True)
made = Path("{ptx}").read_bytes() if Path("{ptx}").exists() else b""
assert not made
Path("{ptx}").write_bytes(Path("template.ptx").read_bytes())
{deed}
"""
DEEDS = {
    "an op's source": 'Path("{op}").write_text("secret")',
    "the configuration": 'Path("gpuemu.toml").write_text("secret")',
    "the cache": '[p.write_text("secret") for p in Path(".gpuemu-cache").glob("state/*")]; '
    'Path(".gpuemu-cache/new").write_text("secret")',
    "reads the cache": 'next(Path(".gpuemu-cache").glob("state/*")).read_bytes()',
    "reads the reference": 'Path("reference.py").read_text()',
    "leaves its folder": 'Path("../beside").write_text("secret")',
    "another folder": 'os.mkdir("elsewhere")',
}
PLACES = {
    "a folder of its own": ("out/k.ptx", "op.py"),
    "beside an op": ("k/k.ptx", "k/op.py"),
    "the workspace itself": ("k.ptx", "op.py"),
}


def make(tmp_path: Path, place: str, deed: str = "", more: str = "") -> Mini:
    ptx, op = PLACES[place]
    made = Mini(tmp_path / "made")
    config = CONFIG.format(python=sys.executable, ptx=ptx, op=op, more=more)
    made.write("gpuemu.toml", config)
    made.write(op, "def f(x):\n    return x\n")
    made.write("reference.py", "def f(x):\n    return +x\n")
    made.write("make.py", MAKE.format(ptx=ptx, deed=deed.format(op=op)))
    (made.root / "template.ptx").write_bytes(KERNEL.read_bytes())
    made.command("list")
    (made.root / ".gpuemu-cache" / "state").mkdir(parents=True, exist_ok=True)
    (made.root / ".gpuemu-cache" / "state" / "kept").write_text("{}")
    return made


@pytest.mark.parametrize("place", PLACES)
def test_a_command_makes_what_it_promises(tmp_path: Path, place: str) -> None:
    made = make(tmp_path, place)
    report = made.run("k", code=None)
    assert not [p for p in report["problems"] if p["slug"].startswith("build-")]
    assert (made.root / PLACES[place][0]).read_bytes() == KERNEL.read_bytes()


def test_what_it_does_not_make_is_not_there(tmp_path: Path) -> None:
    made = make(tmp_path, "the workspace itself")
    made.write("make.py", "print('nothing today')\n")
    report = made.run("k", code=3)
    assert report["problems"][0]["slug"] == "build-no-artifact"
    assert not (made.root / "k.ptx").exists()


@fenced
@pytest.mark.parametrize("place", ["a folder of its own", "beside an op"])
@pytest.mark.parametrize("name", sample([*DEEDS], 2))
def test_a_command_does_nothing_else(tmp_path: Path, name: str, place: str) -> None:
    made = make(tmp_path, place, DEEDS[name])
    report = made.run("k", code=3)
    assert "build-failed" in {problem["slug"] for problem in report["problems"]}
    texts = [p for p in made.root.rglob("*") if p.is_file() and p.name != "make.py"]
    assert not [p for p in texts if p.read_bytes() == b"secret"]
    assert not (tmp_path / "beside").exists()
    assert not (made.root / "elsewhere").exists()


def test_without_a_fence_it_does_as_before(tmp_path: Path) -> None:
    deed, off = DEEDS["another folder"], '[sandbox]\nmode = "off"\n'
    made = make(tmp_path, "a folder of its own", deed, off)
    made.run("k", code=None)
    assert (made.root / "elsewhere").is_dir()


def test_what_the_user_names_is_writable(tmp_path: Path) -> None:
    deed, more = 'Path("obj/k.o").write_text("x")', '[sandbox]\nwritable = ["obj"]\n'
    made = make(tmp_path, "a folder of its own", deed, more)
    made.run("k", code=None)
    assert (made.root / "obj" / "k.o").exists()


@fenced
@pytest.mark.parametrize("command", ["run", "lint"])
def test_an_assembler_writes_its_own_folder_only(tmp_path: Path, command: str) -> None:
    tool = tmp_path / "bin" / "ptxas"
    tool.parent.mkdir()
    mark = tmp_path / "mark"
    tool.write_text(
        f"#!{sys.executable}\nimport sys\n"
        'if "--version" in sys.argv:\n    sys.exit(print("release 13.0, V13.0.88"))\n'
        f'try:\n    open({str(mark)!r}, "w")\nexcept OSError:\n'
        '    sys.exit("ptxas fatal : kept from it")\n'
    )
    tool.chmod(0o755)
    made = Mini(tmp_path / "made", {"PATH": f"{tool.parent}:/usr/bin:/bin"})
    made.write("gpuemu.toml", '[project]\nname = "m"\n[[kernels]]\nname = "k"\nptx = "k.ptx"\n')
    (made.root / "k.ptx").write_bytes(KERNEL.read_bytes())
    done = made.command(*(["run"] if command == "run" else ["lint", "k.ptx"]), code=None)
    assert "kept from it" in done.stdout + done.stderr
    assert not mark.exists()

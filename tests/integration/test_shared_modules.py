"""Modules that op and reference share are read by every kind of op that imports them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mini_workspace import Mini, make_mini

pytestmark = pytest.mark.ci

PYTHON = f"#!{sys.executable}\n"
OPS = {
    "python source without a suffix": lambda text: PYTHON + text,
    "a shell script": lambda _: f'#!/bin/sh\nexec {sys.executable} scripts/relu.py "$@"\n',
}


@pytest.fixture
def mini(tmp_path: Path) -> Mini:
    made = make_mini(tmp_path / "workspace")
    made.keep_only("relu")
    return made


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.ci
def test_an_executable_imports_what_its_reference_imports(mini: Mini, kind: str) -> None:
    text = (mini.root / "scripts" / "relu.py").read_text()
    assert "protocol" in text
    tool = mini.write("scripts/relu", OPS[kind](text))
    tool.chmod(0o755)
    mini.edit("gpuemu.toml", '"scripts/relu.py"', '"scripts/relu"')
    (result,) = mini.run()["results"]
    assert result["verdict"] == "passed"


@pytest.mark.ci
def test_a_computed_import_is_told_how_to_share(mini: Mini) -> None:
    script = mini.root / "scripts" / "relu.py"
    plain = "from protocol import read, tensor"
    assert plain in script.read_text()
    mini.edit("scripts/relu.py", plain, 'module = __import__("proto" + "col")')
    text = script.read_text().replace("read()", "module.read()")
    script.write_text(text.replace("tensor(", "module.tensor("))
    assert "op's `shared`" in mini.command("run", code=None).stdout
    shared = '"scripts/relu.py"\nshared = ["scripts/protocol.py"]'
    mini.edit("gpuemu.toml", '"scripts/relu.py"', shared)
    (result,) = mini.run()["results"]
    assert result["verdict"] == "passed"

"""Interpreters that lie in the workspace: op and reference share them, whatever the op may read."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from mini_workspace import DOUBLES, Mini, make_doubling

from gpuemu_flow.build.files import interpreter_files, without_installed

pytestmark = pytest.mark.ci

LOADS = """
import numpy as np


def f(x):
    assert np.load("answers.npy") == 2
    return x * 2
"""


def script(mini: Mini, name: str) -> None:
    mini.write(name, f'#!/bin/sh\n# {name}\nexec "{sys.executable}" "$@"\n').chmod(0o755)


def environment(mini: Mini, name: str) -> None:
    """Make a virtual environment that takes numpy from where this process has it."""
    venv.EnvBuilder(symlinks=True).create(mini.root / name)
    (site,) = mini.root.glob(f"{name}/lib/python3.*/site-packages")
    (site / "numpy.pth").write_text(f"{Path(np.__file__).parent.parent}\n")


def workspace(folder: Path, python: str, op: str = DOUBLES, sandbox: str = "") -> Mini:
    mini = make_doubling(folder.resolve(), op)
    mini.edit("gpuemu.toml", "cases = 12", "cases = 2")
    config = mini.root / "gpuemu.toml"
    config.write_text(f"{config.read_text()}[execution]\npython_path = {python!r}\n{sandbox}")
    return mini


@pytest.mark.parametrize("python", ["./python", "./link", "venv/bin/python"])
def test_an_op_runs_in_an_interpreter_of_the_workspace(tmp_path: Path, python: str) -> None:
    mini = workspace(tmp_path, python)
    script(mini, "python")
    (mini.root / "link").symlink_to("python")
    environment(mini, "venv")
    assert mini.run()["results"][0]["passed"] == 2
    assert mini.run()["executed"] == []


def test_a_link_to_another_interpreter_is_followed(tmp_path: Path) -> None:
    mini = workspace(tmp_path, "./python")
    for name in ("one", "two"):
        script(mini, name)
    link = mini.root / "python"
    link.symlink_to("one")
    assert mini.run()["results"][0]["passed"] == 2
    link.unlink()
    link.symlink_to("two")
    assert mini.run()["results"][0]["passed"] == 2


def test_files_of_the_reference_stay_hidden(tmp_path: Path) -> None:
    mini = workspace(tmp_path, "venv/bin/python", LOADS)
    environment(mini, "venv")
    mini.write("ref.py", LOADS)
    np.save(mini.root / "answers.npy", np.array(2))
    (row,) = mini.run(code=None)["results"]
    assert (row["passed"], row["verdict"] != "passed") == (0, True)
    mini.edit("gpuemu.toml", 'op = "op.py:f"', 'op = "op.py:f"\nshared = ["answers.npy"]')
    assert mini.run()["results"][0]["passed"] == 2


def test_an_interpreter_that_the_sandbox_hides_is_named(tmp_path: Path) -> None:
    mini = workspace(tmp_path, "./python", sandbox='[sandbox]\nhidden = ["python"]\n')
    script(mini, "python")
    shown = mini.command("run", code=3).stdout
    if "sandbox: landlock" not in shown:
        pytest.skip("other sandboxes hide that the file exists")
    assert "hint: its sandbox hides it" in shown


def test_only_libraries_of_the_interpreter_are_installed(tmp_path: Path) -> None:
    known = interpreter_files(str(tmp_path / "venv/bin/python"), tmp_path)
    own = ["venv/bin/python", "venv/pyvenv.cfg", "venv/lib/python3.11/site-packages/x.pth"]
    others = ["answers.npy", "lib/python3.11/answers.npy", "venv/lib/answers.npy", "venv/python"]
    assert without_installed([*own, *others], known) == {*others}
    assert interpreter_files("/usr/bin/python3", tmp_path) == []

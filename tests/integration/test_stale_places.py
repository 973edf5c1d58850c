"""Folders of the workspace that are named like those of installed packages are observed as any."""

from __future__ import annotations

import json
import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from mini_workspace import Mini
from test_stale_ways import HEAD, OP, Way, puts, removes, slug, verdicts

from gpuemu_flow.installed import is_installed

pytestmark = pytest.mark.ci


def lists(call: str, folder: str) -> Way:
    return Way(
        f"import os, subprocess\nv = {call.format(folder)}",
        lambda mini: mini.write(f"{folder}/d", "") and None,
        files={f"{folder}/{name}": "" for name in "abc"},
    )


def finds(folder: str) -> Way:
    """An op that imports a module from a second folder, until the first one has it, too."""
    return Way(
        f"import sys\nsys.path[:0] = ['{folder}', 'second']\nimport found\nv = found.F",
        lambda mini: mini.write(f"{folder}/found.py", "F = 4\n") and None,
        files={f"{folder}/other": "", "second/found.py": "F = 3\n"},
    )


WAYS = {
    "listed, site-packages": lists("len(os.listdir('{}'))", "a/site-packages"),
    "listed, below site-packages": lists("len(os.listdir('{}'))", "b/site-packages/data"),
    "listed, dist-packages": lists("len(list(os.scandir('{}')))", "c/dist-packages/data"),
    "listed, lib": lists("len(os.listdir('{}'))", "lib/python3.9/data"),
    "listed, lib64": lists("len(os.listdir('{}'))", "d/lib64/python3.11"),
    "listed by a child": lists(
        "subprocess.check_output(['sh', '-c', 'ls {} | wc -l'])", "e/site-packages"
    ),
    "searched, site-packages": finds("f/site-packages"),
    "searched, lib": finds("g/lib/python3.11/more"),
    "looked for, site-packages": Way(
        "import os\nv = 3 if os.path.exists('h/site-packages/x') else 4",
        removes("h/site-packages/x"), files={"h/site-packages/x": ""}),
    "missing, like a hook": Way(
        "import os\nv = 4 if os.path.exists('i_hook__') else 3",
        lambda mini: mini.write("i_hook__", "") and None),
    "opened in vain, like a hook": Way(
        "try:\n    v = open('j.__path_hook__').read()\nexcept OSError:\n    v = 3",
        lambda mini: mini.write("j.__path_hook__", "4") and None),
    "searched, like a hook": finds("k_hook__"),
    "edited": Way("v = open('lib/python3.8/x').read()", puts("lib/python3.8/x"),
                  files={"lib/python3.8/x": "3"}),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_no_pass_is_left_after_an_edit(name: str, tmp_path: Path) -> None:
    way = WAYS[name]
    mini = Mini(tmp_path.resolve())
    body = "\n".join(f"    {line}" for line in way.lines.split("\n"))
    mini.write("ops/op.py", f"def f(x):\n{body}\n    return x * x.dtype.type({way.value})\n")
    for path, text in way.files.items():
        mini.write(path, text)
    mini.write("gpuemu.toml", HEAD + OP.format(name=slug(name), file="op"))
    mini.write("ref.py", "def f(x):\n    return x * 3\n")
    assert verdicts(mini.run(code=None)) == {slug(name): "passed"}
    assert mini.run()["executed"] == []
    assert mini.command("run").stdout.startswith("up to date")
    way.edit(mini)
    assert verdicts(mini.run(code=None)) == {slug(name): "failed"}


def test_an_edited_module_is_not_run_from_old_bytecode(tmp_path: Path) -> None:
    """Neither its size nor its time tells that it was edited."""
    mini = Mini(tmp_path.resolve())
    mini.write("gpuemu.toml", HEAD + OP.format(name="it", file="op"))
    mini.unfence()  # so that Python writes bytecode
    mini.env["PYTHONDONTWRITEBYTECODE"] = ""
    lines = "import sys\nsys.path[:0] = ['v/site-packages']\nfrom helper import F\n"
    mini.write("ops/op.py", f"{lines}def f(x):\n    return x * x.dtype.type(F)\n")
    mini.write("ref.py", "def f(x):\n    return x * 3\n")
    helper = mini.write("v/site-packages/helper.py", "F = 3\n")
    assert verdicts(mini.run(code=None)) == {"it": "passed"}
    before = helper.stat()
    helper.write_text("F = 4\n")
    os.utime(helper, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert verdicts(mini.run(code=None)) == {"it": "failed"}


def test_exact_places_are_installed(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    packages = venv / "lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    assert not is_installed(f"{packages}/x.py")
    other = tmp_path / "other"
    (other / "pyvenv.cfg").parent.mkdir()
    (other / "pyvenv.cfg").write_text("")
    python = tmp_path / "python/lib/python3.12"
    python.mkdir(parents=True)
    (python / "os.py").write_text("")
    for path in (
        np.__file__,
        json.__file__,
        sysconfig.get_path("purelib"),
        f"{other}/lib/python3.12/site-packages/x.py",
        f"{python}/x.py",
        f"{python}/site-packages/x.py",
        "/usr/lib/python3/dist-packages/x.py",
        "/home/somebody/.local/lib/python3.12/site-packages/x.py",
    ):
        assert is_installed(path), path
    for path in (f"{tmp_path}/site-packages/x.py", f"{tmp_path}/lib/python3.9/x.py", "/x/y.py"):
        assert not is_installed(path), path


def test_a_client_describes_such_a_module(tmp_path: Path) -> None:
    path = tmp_path / "vendor/site-packages/own.py"
    path.parent.mkdir(parents=True)
    path.write_text("")

"""Test which files count as the user's own."""

from __future__ import annotations

import functools
import importlib
import json
import linecache
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuemu_flow.client import identity


@pytest.mark.parametrize(
    ("path", "own"),
    [
        (__file__, True),
        ("/home/me/project/ops.py", True),
        ("/home/me/.local/lib/python3.11/site-packages/torch/nn/functional.py", False),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", False),
        (np.__file__, False),
        (json.__file__, False),
        (identity.__file__, False),
        ("<frozen importlib._bootstrap>", False),
        (None, False),
        ("", False),
    ],
)
def test_installed_code_is_not_the_user_s(path: str | None, own: bool) -> None:
    assert identity.is_own(path) is own


def test_a_module_that_is_bound_later_belongs_to_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("main", "first", "second"):
        (tmp_path / f"later_{name}.py").write_text(f"def {name}(): return 1\n")
    main, first, second = (
        importlib.import_module(f"later_{name}") for name in ("main", "first", "second")
    )

    def files() -> set[str]:
        return {Path(file).name for file in identity.code_of(main.main)["files"]}

    assert files() == {"later_main.py"}
    vars(main)["helper"] = first.first
    assert files() == {"later_main.py", "later_first.py"}
    before = identity.code_of(main.main)["code"]
    vars(main)["helper"] = second  # as many names as before
    assert files() == {"later_main.py", "later_second.py"}
    assert identity.code_of(main.main)["code"] != before
    vars(first)["more"] = second.second
    vars(main)["helper"] = first
    assert files() == {"later_main.py", "later_first.py", "later_second.py"}


def test_relative_files_are_named_from_the_present_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "relative.py").write_text("def f(): return 1\n")
    (tmp_path / "there" / "relative.py").write_text("def f(): return 1\n")
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    exec(compile("def f(): return 1", "relative.py", "exec"), names)
    assert set(identity.code_of(names["f"])["files"]) == {str(tmp_path / "relative.py")}
    monkeypatch.chdir(tmp_path / "there")
    found = identity.code_of(names["f"])["files"]
    assert set(found) == {str(tmp_path / "there" / "relative.py")}


def test_code_without_a_file_has_the_files_that_its_globals_lead_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("used", "deep"):
        (tmp_path / f"typed_{name}.py").write_text("def run(x): return x\n")
    used, deep = (importlib.import_module(f"typed_{name}") for name in ("used", "deep"))
    vars(used)["deep"] = deep
    space: dict[str, Any] = {"kern": used, "np": np, "__name__": "typed"}
    exec(compile("f = lambda x: kern.run(x)", "<stdin>", "exec"), space)
    found = identity.code_of(space["f"])
    assert {Path(file).name for file in found["files"]} == {"typed_used.py", "typed_deep.py"}
    del space["kern"]
    assert identity.code_of(space["f"]) == {}


FORMS = {
    "by name": "from {0}_leaf import S\ndef f(x): return x * S\n",
    "another name": "from {0}_leaf import S as T\ndef f(x): return x * T\n",
    "star": "from {0}_leaf import *\ndef f(x): return x * S\n",
    "through a module": "from {0}_through import S\ndef f(x): return x * S\n",
    "through a star": "from {0}_star import S\ndef f(x): return x * S\n",
    "in a function": "def f(x):\n    from {0}_leaf import S\n    return x * S\n",
    "in a branch": "try:\n    from {0}_leaf import S\nfinally: pass\ndef f(x): return S\n",
    "of a package": "from {0}_package import S\ndef f(x): return x * S\n",
    "of a package, late": "def f(x):\n    from {0}_package.inner import S\n    return x\n",
    "in a class": "class f:\n    from {0}_leaf import S\n    def __init__(self, x): pass\n",
    "a default": "from {0}_leaf import S\ndef f(x, s=S): return x * s\ndel S\n",
    "a partial": "from functools import *\nfrom {0}_leaf import S\nf = partial(lambda s, x: x, S)",
}


@pytest.mark.parametrize("form", FORMS)
def test_the_files_of_constants_belong_to_the_code(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    prefix = f"constant_{list(FORMS).index(form)}"
    package = tmp_path / f"{prefix}_package"
    package.mkdir()
    texts = {
        "leaf": "S = 2\n",
        "through": f"from {prefix}_leaf import S\n",
        "star": f"from {prefix}_leaf import *\n",
        "package/__init__": "from .inner import S\n",
        "package/inner": f"from . import __name__ as _\nfrom {prefix}_leaf import S\n",
        "main": FORMS[form].format(prefix),
    }
    for name, text in texts.items():
        (tmp_path / f"{prefix}_{name}.py").write_text(text)
    main = importlib.import_module(f"{prefix}_main")
    found = identity.code_of(main.f)["files"]
    assert str(tmp_path / f"{prefix}_leaf.py") in found
    assert str(tmp_path / f"{prefix}_main.py") in found
    late = "in a function" in form or "late" in form
    assert (f"{prefix}_leaf" in sys.modules) is not late, "looking imports nothing"
    main.f(1)
    again = identity.code_of(main.f)
    assert again["files"] == found, "the op's first call retires no result"
    if "package" in form:
        assert {str(package / "__init__.py"), str(package / "inner.py")} <= set(found)


def test_modules_that_are_not_the_user_s_are_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    late = [
        "from numpy import no_such_name",
        "from .... import beyond",
        "import gone.too",
        "import this",
    ]
    (tmp_path / "foreign_main.py").write_text("\n    ".join(["def f(x):", *late]))
    main = importlib.import_module("foreign_main")
    assert set(identity.code_of(main.f)["files"]) == {str(tmp_path / "foreign_main.py")}


def test_a_cell_of_a_notebook_has_the_files_that_the_cells_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "celled.py").write_text("S = 2\n")
    space: dict[str, Any] = {"__name__": "cells"}
    for number, text in enumerate(["from celled import S\n", "def f(x):\n    return x * S\n"]):
        name = f"<cell {number}>"
        entry = (len(text), None, text.splitlines(keepends=True), name)
        monkeypatch.setitem(linecache.cache, name, entry)
        exec(compile(text, name, "exec"), space)
    assert set(identity.code_of(space["f"])["files"]) == {str(tmp_path / "celled.py")}


def test_values_that_the_caller_gave_belong_to_the_caller_s_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    text = """\
def plain(x, s=1): return x * s
def maker(s):
    def made(x): return x * s
    return made
class Op:
    def __init__(self, s): self.s = s
    def __call__(self, x): return x * self.s
    def run(self, x): return x * self.s
"""
    (tmp_path / "given_ops.py").write_text(text)
    ops = importlib.import_module("given_ops")
    assert set(identity.code_of(ops.plain)["files"]) == {str(tmp_path / "given_ops.py")}
    made = [functools.partial(ops.plain, s=2), ops.maker(2), ops.Op(2), ops.Op(2).run]
    for function in made:
        found = identity.code_of(function)
        assert {str(tmp_path / "given_ops.py"), __file__} <= set(found["files"]), function
        assert found["code"] != identity.code_of(ops.plain)["code"]

"""Test which files count as the user's own."""

from __future__ import annotations

import importlib
import json
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

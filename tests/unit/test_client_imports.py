"""A client's code includes what it imports by calls that name the module or file."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gpuemu_flow.client import identity

BY_NAME = {
    "import_module": "import importlib\nS = importlib.import_module('byname_helper').S",
    "its own name": "from importlib import import_module\nS = import_module('byname_helper').S",
    "__import__": "S = __import__('byname_helper').S",
    "in a function": "import importlib\ndef g():\n"
    "    return importlib.import_module('byname_helper').S",
    "not loaded yet": "import importlib\nif 0:\n    importlib.import_module('byname_helper')",
    "path": "import runpy\nS = runpy.run_path('byname_helper.py')['S']",
    "path beside the file": "import runpy\nfrom pathlib import Path\n"
    "S = runpy.run_path(str(Path(__file__).parent / 'byname_helper.py'))['S']",
    "spec": "import importlib.util as u\nfrom pathlib import Path\ndef g():\n"
    "    s = u.spec_from_file_location('x', Path(__file__).parent / 'byname_helper.py')\n"
    "    m = u.module_from_spec(s)\n    s.loader.exec_module(m)\n    return m.S\nS = g()",
}


def imported(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    for name in ("byname_main", "byname_helper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (folder / "byname_helper.py").write_text("S = 3\n")
    (folder / "byname_main.py").write_text(f"{text}\ndef f(x):\n    return x * 3\n")
    importlib.invalidate_caches()
    for cached in (identity._known, identity._others):
        cached.clear()
    identity.file_of.__globals__["_spec_of"].cache_clear()
    return importlib.import_module("byname_main")


@pytest.mark.parametrize("way", BY_NAME)
def test_a_module_that_a_function_imports_belongs_to_the_code(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path.resolve()
    module = imported(folder, BY_NAME[way], monkeypatch)
    files = identity.code_of(module.f)["files"]
    assert {folder / "byname_main.py", folder / "byname_helper.py"} <= set(map(Path, files))


def test_plain_imports_are_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path.resolve()
    module = imported(folder, "import json\nfrom byname_helper import S", monkeypatch)
    files = identity.code_of(module.f)["files"]
    assert set(files) == {str(folder / "byname_main.py"), str(folder / "byname_helper.py")}

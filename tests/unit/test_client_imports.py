"""Follow what a client's code imports by functions; what nobody knows is never current."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gpuemu_flow.client import identity
from gpuemu_flow.client.results import TestCase
from gpuemu_flow.client.trying import try_op
from gpuemu_flow.wire.code_files import UNKNOWN

BY_NAME = {
    "import_module": "import importlib\nS = importlib.import_module('byname_helper').S",
    "its own name": "from importlib import import_module\nS = import_module('byname_helper').S",
    "__import__": "S = __import__('byname_helper').S",
    "in a function": "import importlib\ndef g():\n"
    "    return importlib.import_module('byname_helper').S",
    "not loaded yet": "import importlib\nif 0:\n    importlib.import_module('byname_helper')",
    "computed": "import importlib\nS = importlib.import_module('byname_' + 'helper').S",
    "formatted": "import importlib\nS = importlib.import_module(f'byname_{\"helper\"}').S",
    "relative": "import importlib\nS = importlib.import_module('.byname_helper'[1:]).S",
    "another name": "import importlib\nload = importlib.import_module\nS = load('byname_helper').S",
    "in a table": "import importlib\nD = {'l': importlib.import_module}\n"
    "S = D['l']('byname_helper').S",
    "entry points": "import importlib.metadata as m\nE = m.entry_points()",
    "entry points of a group": "from importlib.metadata import entry_points\n"
    "def g():\n    return [e.load() for e in entry_points(group='kernels')]",
    "path": "import runpy\nS = runpy.run_path('byname_helper.py')['S']",
    "path beside the file": "import runpy\nfrom pathlib import Path\n"
    "S = runpy.run_path(str(Path(__file__).parent / 'byname_helper.py'))['S']",
    "spec": "import importlib.util as u\nfrom pathlib import Path\ndef g():\n"
    "    s = u.spec_from_file_location('x', Path(__file__).parent / 'byname_helper.py')\n"
    "    m = u.module_from_spec(s)\n    s.loader.exec_module(m)\n    return m.S\nS = g()",
}
UNKNOWN_WAYS = {
    "path": "import runpy\nimport sys\ndef g(p):\n    return runpy.run_path(p)",
    "spec": "import importlib.util as u\ndef g(p):\n    return u.spec_from_file_location('x', p)",
    "loader": "from importlib.machinery import SourceFileLoader\ndef g(p):\n"
    "    return SourceFileLoader('x', p).load_module()",
    "missing": "import runpy\ndef g():\n    return runpy.run_path('nowhere.py')",
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
    if "entry points" in way:
        importlib.import_module("byname_helper")  # as the entry point is, by whoever loads it
    files = identity.code_of(module.f)["files"]
    assert {folder / "byname_main.py", folder / "byname_helper.py"} <= set(map(Path, files))
    assert UNKNOWN not in files.values()


@pytest.mark.parametrize("way", UNKNOWN_WAYS)
def test_code_that_loads_what_nobody_knows_is_never_current(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path.resolve()
    module = imported(folder, UNKNOWN_WAYS[way], monkeypatch)
    assert identity.code_of(module.f)["files"][str(folder / "byname_main.py")] == UNKNOWN


def test_code_of_more_files_than_are_named_is_never_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "MAX_FILES", 3)
    folder = tmp_path.resolve()
    for number in range(4):
        (folder / f"many_{number}.py").write_text("S = 3\n")
    lines = "".join(f"import many_{number}\n" for number in range(4))
    module = imported(folder, lines, monkeypatch)
    assert UNKNOWN in identity.code_of(module.f)["files"].values()


def test_plain_imports_are_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path.resolve()
    module = imported(folder, "import json\nfrom byname_helper import S", monkeypatch)
    files = identity.code_of(module.f)["files"]
    assert set(files) == {str(folder / "byname_main.py"), str(folder / "byname_helper.py")}


def test_what_a_call_loads_belongs_to_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows the module's name before the op is called."""
    folder = tmp_path.resolve()
    text = "import importlib\ndef g(inputs):\n"
    text += "    return inputs['x'] * importlib.import_module('by' + 'name_late').S"
    (folder / "byname_late.py").write_text("S = 3\n")
    module = imported(folder, text, monkeypatch)
    client = identity.code_of(module.g)
    helper = str(folder / "byname_late.py")
    assert helper not in client["files"]
    case = TestCase(inputs={"x": np.ones(3, np.float32)}, shape=[3])
    call, _ = try_op("op", case, module.g, {}, client)
    assert helper in call.request["client"]["files"]

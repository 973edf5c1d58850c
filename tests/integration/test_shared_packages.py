"""Packages around an op's module are the op's own, also if its reference is in the same package."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from mini_workspace import Mini
from stale_rows import Row, make

pytestmark = pytest.mark.ci

FACTOR = "import sys\n\ndef scale(x):\n    return x * x.dtype.type(sys.modules['pk'].F)\n"
REFERENCE = "def reference(x):\n    return x * 3\n"
FILES = {
    "pk/__init__.py": "F = 3\n",
    "pk/ref.py": REFERENCE,
    "pk/op.py": FACTOR,
    "pk/sub/__init__.py": "F = 3\n",
    "pk/sub/op.py": FACTOR,
    "outside.py": "import importlib\n\n"
    "F = importlib.import_module('p' + 'k').F\n\ndef scale(x):\n    return x * x.dtype.type(F)\n",
}


def workspace(
    folder: Path, op: str, judge: str = "pk.ref:reference", *, interpreter: bool, **files: str
) -> Mini:
    mini = make(Row("package", {**FILES, **files}, lambda _: None, lambda _: None), folder)
    mini.edit("gpuemu.toml", '"op.py:scale"', f'"{op}"')
    mini.edit("gpuemu.toml", '"ref.py:reference"', f'"{judge}"')
    if interpreter:
        table = f"[execution]\npython_path = {json.dumps(sys.executable)}\n"
        mini.edit("gpuemu.toml", "[validation]", f"{table}[validation]")
    return mini


def verdict(mini: Mini) -> str:
    return str(mini.run(code=None)["results"][0]["verdict"])


@pytest.mark.parametrize("interpreter", [False, True], ids=["ours", "python_path"])
@pytest.mark.parametrize("op", ["pk.op:scale", "pk.sub.op:scale"])
def test_an_op_in_the_package_of_its_reference(op: str, interpreter: bool, tmp_path: Path) -> None:
    mini = workspace(tmp_path, op, interpreter=interpreter)
    assert verdict(mini) == "passed"
    mini.write("pk/__init__.py", "F = 4\n")
    assert verdict(mini) == "failed"


def test_what_the_package_around_the_op_imports_is_the_ops_too(tmp_path: Path) -> None:
    init = {"pk/__init__.py": "from .table import F\n", "pk/table.py": "F = 3\n"}
    reads = {"pk/ref.py": "from .table import F\n\ndef reference(x):\n    return x * F\n"}
    mini = workspace(tmp_path, "pk.op:scale", interpreter=False, **init, **reads)
    assert verdict(mini) == "passed"


def test_an_op_outside_of_the_package_does_not_read_it(tmp_path: Path) -> None:
    assert verdict(workspace(tmp_path, "outside.py:scale", interpreter=False)) == "error"


def test_the_package_does_not_hand_the_reference_to_the_op(tmp_path: Path) -> None:
    files = {
        "pk/__init__.py": "from .ref import reference\n",
        "pk/op.py": "import sys\n\ndef scale(x):\n    return sys.modules['pk'].reference(x)\n",
    }
    mini = workspace(tmp_path, "pk.op:scale", interpreter=False, **files)
    assert "op-reads-reference" in mini.command("run", code=None).stdout


def test_a_package_may_import_the_op_and_its_reference(tmp_path: Path) -> None:
    files = {
        "pk/__init__.py": "from .ref import FACTOR, reference\nfrom .op import scale\n",
        "pk/ref.py": "FACTOR = 3\n\ndef reference(x):\n    return x * FACTOR\n",
        "pk/op.py": "def scale(x):\n    return x * x.dtype.type(3)\n",
    }
    mini = workspace(tmp_path, "pk.op:scale", interpreter=False, **files)
    assert verdict(mini) == "passed"
    for use in ("pk.FACTOR * x", "x * pk.FACTOR", "x if pk.FACTOR else x * 3"):
        mini.write("pk/op.py", f"import pk\n\ndef scale(x):\n    return {use}\n")
        done = mini.command("run", code=None).stdout
        assert "op-reads-reference" in done, use
        assert "pk/ref.py" in done

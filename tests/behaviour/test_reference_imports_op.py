"""A reference that imports the op it is to judge is warned of, in every report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mini_workspace import Mini, make_one_op

OP = "def op(x):\n    return x * 3\n"
SCHEMA = """
dims = { N = { min = 1, max = 90 } }
inputs = { x = ["N"] }
output = ["N"]
"""


def made(folder: Path, reference: str) -> Mini:
    mini = make_one_op(folder, takes="x", op="return x * 3", reference=reference, schema=SCHEMA)
    mini.write("op.py", OP)
    mini.write("common.py", "FACTOR = 3\n")
    return mini


@pytest.mark.parametrize(
    "code",
    [
        "from op import op\n    return op(x)",
        "import through\n    return through.op(x)",
    ],
)
def test_it_is_told_by_each_run(tmp_path: Path, code: str) -> None:
    mini = made(tmp_path, code)
    mini.write("through.py", "from op import op\n")
    for _ in range(3):
        assert "reference-imports-op" in mini.command("run").stdout
    found = json.loads(mini.command("run", "--format", "json").stdout)
    (problem,) = [p for p in found["problems"] if p["slug"] == "reference-imports-op"]
    assert "imports op.py, which is the op" in problem["message"]


def test_code_that_both_import_is_no_matter(tmp_path: Path) -> None:
    mini = made(tmp_path, "from common import FACTOR\n    return x * FACTOR")
    mini.write("op.py", "from common import FACTOR\n\n\ndef op(x):\n    return FACTOR * x\n")
    assert "reference-imports-op" not in mini.command("run").stdout

"""The file in which a reference's function is defined: all statements of modules are searched."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuemu_flow.config.model import ProgramRef
from gpuemu_flow.inputs.definitions import definition_of
from gpuemu_flow.inputs.sources import SourceIndex

IMPORT = "from known import right"


@pytest.mark.parametrize(
    "source",
    [
        IMPORT,
        f"if True:\n    {IMPORT}\nelse:\n    right = None",
        f"try:\n    import absent\nexcept ImportError:\n    {IMPORT}",
        f"try:\n    pass\nfinally:\n    {IMPORT}",
        f"for _ in (1,):\n    {IMPORT}",
        f"while True:\n    {IMPORT}\n    break",
        f"with open(__file__):\n    {IMPORT}",
        f"match 1:\n    case 1:\n        {IMPORT}",
    ],
    ids=["plain", "if", "except", "finally", "for", "while", "with", "match"],
)
def test_an_import_in_any_statement_is_followed(tmp_path: Path, source: str) -> None:
    (tmp_path / "ref.py").write_text(source + "\n")
    (tmp_path / "known.py").write_text("def right(x):\n    return x\n")
    program = ProgramRef("callable", tmp_path / "ref.py", function="right")
    assert definition_of(program, SourceIndex(tmp_path)) == (tmp_path / "known.py", "right")


@pytest.mark.parametrize("within", ["def f():", "class C:", "async def f():"])
def test_an_import_in_a_function_or_class_names_nothing_else(tmp_path: Path, within: str) -> None:
    (tmp_path / "ref.py").write_text(f"{within}\n    {IMPORT}\n")
    (tmp_path / "known.py").write_text("def right(x):\n    return x\n")
    program = ProgramRef("callable", tmp_path / "ref.py", function="right")
    assert definition_of(program, SourceIndex(tmp_path)) is None

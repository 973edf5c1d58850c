"""Ops that are their own reference, or in their reference's file, are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuemu_flow.config.load import check_config
from gpuemu_flow.model.errors import Problem

SLUG = "config-op-is-reference"
CONFIG = """
[project]
name = "same"

[sandbox]
mode = "{mode}"

[[ops]]
name = "o"
op = {op}
reference = {reference}
schema = {{ dims = {{ N = [3] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
"""
LOADED = '{{ kind = "callable", path = "s/load.py", function = "load", loads = "s/{name}.py" }}'
REF = '"s/ref.py:f"'
LOADED_REF, LOADED_OP = LOADED.format(name="ref"), LOADED.format(name="op")
TORCH = '{{ kind = "torch", file = "s/ref.py", module_class = "M", init = {{ fast = {} }} }}'
FUNCTIONS = "".join(f"def {name}(x): ...\n" for name in ("f", "g", "load", "M"))
ONE = [
    (REF, REF),
    ('"s/../s/ref.py:f"', REF),
    ('"s.ref:f"', REF),
    ('"s/link.py:f"', REF),
    ('"s/op.py"', '"s/op.py"'),
    ('["./tool", "a"]', '["./tool", "a"]'),
    ('"numpy:exp"', '"numpy:exp"'),
    (LOADED_REF, LOADED_REF),
    (TORCH.format("true"), TORCH.format("true")),
]
IN_ONE_FILE = [
    ('"s/ref.py:g"', REF),
    ('"s/link.py:g"', REF),
    ('"s.ref:g"', '"s.ref:f"'),
    ('"s/ref.py:g"', '"s/ref.py"'),
    (LOADED_REF, REF),
    (LOADED_OP, '"s/load.py:f"'),
    (TORCH.format("true"), TORCH.format("false")),
    ('["./tool", "a"]', '["./tool", "b"]'),
    ('["python3", "s/op.py", "a"]', '["python3", "s/op.py", "b"]'),
    ('"s.op:g"', '"s:f"'),
]
APART = [
    ('"s/op.py:g"', REF),
    ('"s.op:g"', '"s.ref:f"'),
    (LOADED_OP, LOADED_REF),
    (LOADED_OP, REF),
    ('"numpy:exp"', '"numpy:exp2"'),
    ('["python3", "s/op.py"]', '["python3", "s/ref.py"]'),
    ('["python3", "s/op.py", "s/table.txt"]', '["python3", "s/ref.py", "s/table.txt"]'),
]


def problems(folder: Path, op: str, reference: str, mode: str = "auto") -> list[Problem]:
    (folder / "s").mkdir()
    for name in ("__init__.py", "ref.py", "op.py", "load.py", "table.txt"):
        (folder / "s" / name).write_text(FUNCTIONS)
    (folder / "s/link.py").symlink_to("ref.py")
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o755)
    path = folder / "gpuemu.toml"
    path.write_text(CONFIG.format(op=op, reference=reference, mode=mode))
    return check_config(path, strict=True)


@pytest.mark.parametrize("mode", ["auto", "off"])
@pytest.mark.parametrize(("op", "reference"), ONE)
def test_an_op_is_not_its_own_reference(tmp_path: Path, op: str, reference: str, mode: str) -> None:
    (found,) = problems(tmp_path, op, reference, mode)
    assert (found.slug, found.line) == (SLUG, 11)
    assert "independently" in found.hint


@pytest.mark.parametrize(("op", "reference"), IN_ONE_FILE)
def test_the_sandbox_needs_two_files(tmp_path: Path, op: str, reference: str) -> None:
    (found,) = problems(tmp_path, op, reference, "require")
    assert (found.slug, found.line) == (SLUG, 11)
    assert "file of its own" in found.hint


@pytest.mark.parametrize(("op", "reference"), IN_ONE_FILE)
def test_without_the_sandbox_one_file_will_do(tmp_path: Path, op: str, reference: str) -> None:
    assert problems(tmp_path, op, reference, "off") == []


@pytest.mark.parametrize(("op", "reference"), APART)
def test_two_files_are_right(tmp_path: Path, op: str, reference: str) -> None:
    assert problems(tmp_path, op, reference) == []

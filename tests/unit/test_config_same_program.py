"""Ops that are their own reference are refused, whatever they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuemu_flow.config.load import check_config

REFERENCE = """
import functools

def f(x, flag=False):
    return x * 2

def g(x):
    return x + x

fast = f
faster = fast
part = functools.partial(f)
flagged = functools.partial(f, flag=True)
"""
CONFIG = """
[project]
name = "same"

[[ops]]
name = "o"
op = {op}
reference = {reference}
schema = {{ dims = {{ N = [3] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
"""


def slugs(folder: Path, op: str, reference: str = '"s/ref.py:f"') -> list[str]:
    (folder / "s").mkdir()
    (folder / "s/ref.py").write_text(REFERENCE)
    (folder / "s/script.py").write_text("print()\n\ndef load(path): ...\n")
    (folder / "s/link.py").symlink_to("ref.py")
    (folder / "s/script_link.py").symlink_to("script.py")
    (folder / "tool").write_text("#!/bin/sh\n")
    (folder / "tool").chmod(0o755)
    path = folder / "gpuemu.toml"
    path.write_text(CONFIG.format(op=op, reference=reference))
    return [problem.slug for problem in check_config(path, strict=True)]


LOADED = '{{ kind = "callable", path = "s/script.py", function = "load", loads = "s/{name}.py" }}'


@pytest.mark.parametrize("loaded", ["ref", "link"])
@pytest.mark.parametrize("reference", ['"s/ref.py:f"', LOADED.format(name="ref")])
def test_nothing_is_loaded_of_the_reference(tmp_path: Path, loaded: str, reference: str) -> None:
    """It passed, as the function of the reference's file that it gave was the reference."""
    assert slugs(tmp_path, LOADED.format(name=loaded), reference) == ["config-op-is-reference"]


def test_two_files_that_one_function_loads_are_two_programs(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def g(x):\n    return x + x\n")
    other = LOADED.format(name="../other")
    assert slugs(tmp_path, other) == []


def test_an_op_and_a_reference_may_be_loaded_alike(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def g(x):\n    return x + x\n")
    assert slugs(tmp_path, LOADED.format(name="../other"), LOADED.format(name="ref")) == []


@pytest.mark.parametrize(
    "op",
    [
        '"s/ref.py:f"', '"s.ref:f"', '"s/../s/ref.py:f"', '"s/ref.py:fast"', '"s/ref.py:faster"',
        '"s/ref.py:part"', '"s/link.py:f"',
    ],
)  # fmt: skip
def test_a_function_is_not_its_own_reference(tmp_path: Path, op: str) -> None:
    assert slugs(tmp_path, op) == ["config-op-is-reference"]


@pytest.mark.parametrize(
    ("op", "reference"),
    [
        ('"s/script.py"', '"s/script.py"'),
        ('"s/script_link.py"', '"s/script.py"'),
        ('["./tool", "a"]', '["./tool", "a"]'),
        ('"numpy:exp"', '"numpy:exp"'),
    ],
)
def test_neither_is_a_program(tmp_path: Path, op: str, reference: str) -> None:
    assert slugs(tmp_path, op, reference) == ["config-op-is-reference"]


@pytest.mark.parametrize(
    ("op", "reference"),
    [
        ('"s/ref.py:g"', '"s/ref.py:f"'),
        ('"s/ref.py:flagged"', '"s/ref.py:f"'),
        ('"s/script.py"', '"s/ref.py:f"'),
        ('["./tool", "a"]', '["./tool", "b"]'),
        ('"numpy:exp"', '"numpy:exp2"'),
    ],
)
def test_others_are_as_right_as_ever(tmp_path: Path, op: str, reference: str) -> None:
    assert slugs(tmp_path, op, reference) == []

"""Timeouts that nobody set are longer for large tensors; those that somebody set are kept."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from gpuemu_flow.config.load import load_config
from gpuemu_flow.model.types import Case, InputSpec
from gpuemu_flow.workers.api import Program

CONFIG = """
[[ops]]
name = "a"
op = "a.py:f"
reference = "numpy:abs"
input_names = ["x"]
"""


@pytest.mark.parametrize(
    ("head", "own", "seconds"),
    [
        ("", "", 84.0),
        ("[execution]\nreference_timeout = 60\n", "", 60.0),
        ("", "timeout = 7\n", 7.0),
    ],
)
def test_only_defaults_grow(tmp_path: Path, head: str, own: str, seconds: float) -> None:
    (tmp_path / "a.py").write_text("def f(x):\n    return x\n")
    (tmp_path / "gpuemu.toml").write_text(head + dedent(CONFIG) + own)
    (op,) = load_config(tmp_path / "gpuemu.toml").ops
    program = Program(
        "callable", root="/", input_names=("x",), timeout=op.timeout, timeout_grows=op.timeout_grows
    )
    assert program.patience(24_000_000) == seconds
    assert program.patience(0) == op.timeout


def test_bytes_of_a_case() -> None:
    inputs = (InputSpec("a", (3, 5), "bfloat16"), InputSpec("b", (), "float64"))
    case = Case(0, 1, "bfloat16", "contiguous", "uniform", inputs)
    assert case.nbytes == 38

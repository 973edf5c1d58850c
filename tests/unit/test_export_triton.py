"""A failure of a Triton op is not written as a test that could not run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuemu_flow.errors import UsageError
from gpuemu_flow.reports.pytest_export import render
from gpuemu_flow.runners.api import Program


def test_it_is_refused_with_the_way_to_write_one(tmp_path: Path) -> None:
    program = Program(
        "triton", root=str(tmp_path), input_names=("x",), path=str(tmp_path / "k.py"),
        function="run",
    )  # fmt: skip
    record: Any = SimpleNamespace(id="0f3a5b1c9d2e", kind="OutOfBoundsWrite")
    expectation: Any = SimpleNamespace(expected={"y": np.ones(2)})
    with pytest.raises(UsageError) as caught:
        render(record, program, {}, expectation, folder=tmp_path)
    assert caught.value.slug == "export-triton"
    assert "gpuemu_flow.frameworks.triton.load" in str(caught.value)


@pytest.mark.parametrize("kind", ["torch", "jax", "callable"])
def test_tensors_that_only_our_runner_makes_are_refused(kind: str, tmp_path: Path) -> None:
    """Those of a framework, and, of any function, several inputs in one argument."""
    groups = {"xs": {"kind": "list", "members": ["xs.0"]}} if kind == "callable" else {}
    program = Program(
        kind, root=str(tmp_path), input_names=("xs.0",), path=str(tmp_path / "k.py"),
        function="run", groups=groups,
    )  # fmt: skip
    record: Any = SimpleNamespace(id="0f3a5b1c9d2e", kind="ToleranceExceeded")
    expectation: Any = SimpleNamespace(expected={"y": np.ones(2)})
    with pytest.raises(UsageError) as caught:
        render(record, program, {}, expectation, folder=tmp_path)
    assert caught.value.slug == "export-framework"

"""The kind ``triton`` without its packages: what is missing is said, and nothing is validated."""

from __future__ import annotations

import pytest
from runner_workspace import Workspace

pytestmark = pytest.mark.ci


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_a_package_that_cannot_be_imported(ws: Workspace, package: str) -> None:
    ws.write("torch.py", "" if package == "triton" else "raise ImportError('none here')\n")
    ws.write("triton.py", "raise ImportError('none here')\n")
    program = ws.program("triton", "def op(x):\n    return x\n")
    (outcome,) = ws.run(program)
    assert outcome.error is not None
    assert outcome.error.slug == "triton-missing"
    assert f"{package}, which cannot be imported: none here" in outcome.error.message
    assert "gpuemu-flow[torch,triton]" in outcome.error.hint

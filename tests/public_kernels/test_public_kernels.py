"""Public Triton kernels, unmodified, as ops of a workspace: each passes, and the page says so.

The libraries (liger-kernel, fla-core, flag-gems) are installed by hand; without them only the page
is checked.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tomli

from .table import HERE, LIBRARIES, rows_of_page, rows_of_results

MODULES = ("torch", "triton", "liger_kernel", "fla", "flag_gems")
ENOUGH = 60


def needs_the_libraries() -> None:
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def test_the_page_names_every_op_once() -> None:
    workspace = tomli.loads((HERE / "gpuemu.toml").read_text(encoding="utf-8"))
    named = [f"{row.library}.{row.op}" for row in rows_of_page()]
    assert sorted(named) == sorted(op["name"] for op in workspace["ops"])
    assert len(named) == len(set(named)) >= ENOUGH
    assert {name.partition(".")[0] for name in named} == set(LIBRARIES)
    assert {row.verdict for row in rows_of_page()} == {"passed"}


@pytest.mark.timeout(4000)
def test_every_kernel_passes(tmp_path: Path) -> None:
    needs_the_libraries()
    folder = tmp_path / "workspace"
    shutil.copytree(HERE, folder)
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", "run", "--format", "json"],
        cwd=folder, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    failures = [(f["op"], f["dtype"], f["verdict"], f["message"]) for f in report["failures"]]
    assert failures == [("liger.sparsemax", "bfloat16", "inconclusive", "")]  # see the page
    assert rows_of_results(report) == rows_of_page()
    assert done.returncode == 0


@pytest.mark.parametrize(("value", "expected"), [(2.0, 3.0), (8.0, 1.0), (50.0, np.nan)])
def test_the_bug_of_poly_norm(
    value: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cubes and squares in float16: 8^6 = 262,144 is beyond 65,504, and so is 16 times 8^4."""
    needs_the_libraries()
    import torch

    from gpuemu_flow.frameworks.triton import load

    monkeypatch.syspath_prepend(str(HERE))
    op = load("liger_ops.py:poly_norm", relative_to=HERE / "liger_ops.py")
    x, one = torch.full((1, 16), value), torch.ones(3)
    right = op(x, one, torch.zeros(()))
    assert torch.allclose(
        right, torch.tensor(3.0), atol=1e-4
    )  # three normed powers of equal values
    half = op(x.half(), one.half(), torch.zeros(()).half())
    np.testing.assert_allclose(half[0].numpy(), np.full(16, expected), rtol=1e-2)


def test_the_bug_of_rope(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of two sequences: the second one's rows are looked for at the first one's."""
    needs_the_libraries()
    import torch

    from gpuemu_flow.frameworks.triton import load

    monkeypatch.syspath_prepend(str(HERE))
    op = load("liger_ops.py:rope", relative_to=HERE / "liger_ops.py")
    q = torch.arange(16.0).reshape(2, 2, 1, 4)
    cos, sin = torch.zeros(1, 1, 4), torch.ones(1, 1, 4)
    right = torch.cat([-q[..., 2:], q[..., :2]], -1)  # a quarter turn
    apart = q.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)
    assert torch.equal(op(apart, apart, cos, sin)[0], right)
    assert op(q, q, cos, sin)[0][1, 1].tolist() == [[12.0, 13.0, 14.0, 15.0]]  # not turned at all

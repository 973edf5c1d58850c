"""The pytest plugin gives scalars and absent inputs as functions get them, not as arrays."""

from __future__ import annotations

import pytest
from pytest_workspace import CONFIG, Place

OPS = """
[[ops]]
name = "reduced"
reference = "ref.py:reduced"
execution_mode = "client_side"
[ops.schema]
dims = { N = [5, 8] }
inputs.x = ["N"]
inputs.w = { dims = ["N"], optional = true }
scalars = { mode = ["sum", "max"], k = { range = [1, "N"] }, eps = [0.5, 2.0], causal = [false, true], none = ["a", 3] }
output = []
"""  # noqa: E501
REFERENCE = """
def reduced(x, w, mode, k, eps, causal, none):
    x = x if w is None else x * w
    x = x[:k] * eps
    x = -x if causal else x
    return x.sum() if mode == "sum" else x.max()
"""
TESTS = """
import numpy as np

KINDS = {"mode": str, "k": int, "eps": float, "causal": bool}

@pytest.mark.gpuemu("reduced", cases=24, dtypes=["float32"], strategies=["normal"])
def test_right(gpuemu_case):
    assert {name: type(gpuemu_case[name]) for name in KINDS} == KINDS
    assert gpuemu_case["none"] in ("a", 3) and gpuemu_case.inputs["mode"] in ("sum", "max")
    assert gpuemu_case["w"] is None or gpuemu_case["w"].shape == gpuemu_case["x"].shape
    assert dict(gpuemu_case) == gpuemu_case.inputs
    from ref import reduced
    gpuemu_case.check(np.float32(reduced(**gpuemu_case)))

@pytest.mark.gpuemu("reduced", cases=24, dtypes=["float32"], strategies=["normal"])
def test_changed(gpuemu_case):
    from ref import reduced
    right = np.float32(reduced(**gpuemu_case))
    gpuemu_case["x"][...] += 1
    gpuemu_case.check(right)
"""


@pytest.mark.ci
def test_scalars_are_values(tested: Place) -> None:
    (tested.folder / "gpuemu.toml").write_text(CONFIG + OPS)
    reference = tested.folder / "ref.py"
    reference.write_text(reference.read_text() + REFERENCE)
    ran = tested.pytest(TESTS)
    assert ran.counts == {"passed": 24, "failed": 24}, ran.text
    assert ran.text.count("InputModified") >= 24

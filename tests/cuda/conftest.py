"""What tests of CUDA programs skip for."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import pytest


@pytest.fixture
def cpu_torch() -> None:
    """Skip without a PyTorch for CPUs, without loading it: these processes fork."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        pytest.skip("could not import 'torch'")
    if runpy.run_path(str(Path(spec.origin).with_name("version.py")))["cuda"] is not None:
        pytest.skip("this torch is built for CUDA")

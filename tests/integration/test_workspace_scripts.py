"""The workspace's scripts, run as programs, answer as the functions within them do."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import probes
import pytest
from numpy.typing import NDArray

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]
SCRIPT_FILES = sorted(probes.SCRIPT_FUNCTIONS)


def _tensor(array: NDArray) -> dict[str, Any]:
    data = base64.b64encode(array.tobytes()).decode()
    return {
        "shape": list(array.shape),
        "strides": [s // array.itemsize for s in array.strides],
        "dtype": array.dtype.name,
        "data": data,
    }


def _array(tensor: dict[str, Any]) -> NDArray:
    dtype = np.dtype(getattr(ml_dtypes, tensor["dtype"], tensor["dtype"]))
    return np.frombuffer(base64.b64decode(tensor["data"]), dtype).reshape(tensor["shape"])


def _run_script(file: str, inputs: dict[str, NDArray], kwargs: dict[str, Any]) -> dict[str, Any]:
    request = {
        "inputs": {name: _tensor(array) for name, array in inputs.items()},
        "kwargs": {name: str(value) for name, value in kwargs.items()},
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / file)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    reply: dict[str, Any] = json.loads(done.stdout)
    return reply


def _side(file: str) -> tuple[Any, tuple[str, str]]:
    """The op that a script belongs to, and which side of it the script is."""
    for op in probes.OPS.values():
        for target in (op.op, op.reference):
            if target[0] == file:
                return op, target
    raise AssertionError(file)


@pytest.mark.parametrize("file", [f for f in SCRIPT_FILES if f != "scripts/softmax_ref.py"])
def test_a_script_answers_as_its_function_does(file: str) -> None:
    op, target = _side(file)
    dtype = probes.numpy_dtype(op.dtypes[-1])
    inputs = probes.draw(op, probes.sizes_near(op, (5, 70)), dtype, "normal", "contiguous")
    expected = probes.call(op, probes.function_of(target), inputs)
    reply = _run_script(file, inputs, op.kwargs)
    tensors = reply.get("outputs", {"out": reply})
    assert set(tensors) == set(expected)
    for name, array in expected.items():
        assert tensors[name]["dtype"] == array.dtype.name
        np.testing.assert_array_equal(_array(tensors[name]), array)

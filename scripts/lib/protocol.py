"""The script protocol: one JSON object on stdin, one on stdout, tensors as base64.

Request: ``{"inputs": {name: tensor}, "kwargs": {name: str}}``. Reply: one tensor, or
``{"outputs": {name: tensor}}``. A tensor is ``{"shape", "dtype", "data"}`` with the elements in
C order, little-endian.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray


def _dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def decode(tensor: dict[str, Any]) -> NDArray:
    """Return the array that a tensor object holds; it is writable and C-contiguous."""
    raw = base64.b64decode(tensor["data"], validate=True)
    return np.frombuffer(raw, _dtype(tensor["dtype"])).reshape(tensor["shape"]).copy()


def encode(array: NDArray) -> dict[str, Any]:
    """Return the tensor object of an array."""
    data = base64.b64encode(array.tobytes()).decode("ascii")
    return {"shape": list(array.shape), "dtype": array.dtype.name, "data": data}


def read_request() -> tuple[dict[str, NDArray], dict[str, str]]:
    """Return the inputs by name, and the kwargs, which are sent as strings."""
    request = json.load(sys.stdin)
    inputs = {name: decode(tensor) for name, tensor in request["inputs"].items()}
    return inputs, request.get("kwargs", {})


def write_output(array: NDArray) -> None:
    """Reply with one unnamed tensor."""
    sys.stdout.write(json.dumps(encode(array)))


def write_outputs(**arrays: NDArray) -> None:
    """Reply with several tensors by name."""
    sys.stdout.write(json.dumps({"outputs": {name: encode(a) for name, a in arrays.items()}}))

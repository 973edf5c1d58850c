"""Users' tensors as numpy arrays, whatever framework they come from, which is not imported."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.client.errors import ClientError
from gpuemu_flow.errors import Problem
from gpuemu_flow.numerics.dtypes import dtype_name, numpy_dtype


def as_array(value: Any, name: str, dtype: str | None = None) -> NDArray[Any]:
    """One tensor on the CPU, of a dtype that the protocol has.

    Parameters
    ----------
    value : ndarray, tensor of a framework, or number
    name : str
        For the error.
    dtype : str, optional
        Convert to this one.

    Raises
    ------
    ClientError
        ``client-not-a-tensor``.
    """
    try:
        array = _as_numpy(value)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if dtype is not None:
            array = array.astype(numpy_dtype(dtype), copy=False)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_tensor(name, str(error)) from None
    if dtype_name(array.dtype) is None:
        raise _no_tensor(name, f"its dtype {array.dtype} is none that can be sent")
    return array


def _as_numpy(value: Any) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):  # PyTorch: off the graph and the device first
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            # numpy has no bfloat16, and PyTorch knows nothing of the one that we use.
            words = value.contiguous().view(sys.modules["torch"].int16).numpy()
            return words.view(numpy_dtype("bfloat16"))  # type: ignore[no-any-return]
        return np.asarray(value.numpy())
    if hasattr(value, "numpy") and not hasattr(value, "__array__"):
        return np.asarray(value.numpy())
    return np.asarray(value)


def as_arrays(values: Mapping[str, Any], dtype: str | None = None) -> dict[str, NDArray[Any]]:
    """Tensors by name; see `as_array`."""
    if not isinstance(values, Mapping):
        raise _no_tensor("inputs", "they must be a mapping of names to tensors")
    return {str(name): as_array(value, str(name), dtype) for name, value in values.items()}


def _no_tensor(name: str, reason: str) -> ClientError:
    return ClientError(Problem("client-not-a-tensor", f"{name!r} cannot be sent: {reason}"))

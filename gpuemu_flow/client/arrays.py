"""Convert users' tensors of any framework to numpy arrays, without importing the framework."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.client.errors import ClientError
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import DTYPES
from gpuemu_flow.numerics.dtypes import ML_DTYPES_NAMES, dtype_name, numpy_dtype

Names = Callable[["np.dtype[Any]"], "str | None"]

MAX_NESTED = 64
"""Largest depth of nested lists to examine: the largest number of dimensions in numpy."""


def as_array(
    value: Any, name: str, dtype: str | None = None, *, known: Names = dtype_name
) -> NDArray[Any]:
    """Convert one tensor to a numpy array with a dtype of the protocol.

    Raises ClientError: ``client-not-a-tensor``; ``client-several-tensors`` for a tuple or list of
    tensors, which numpy would stack.
    """
    if holds_tensors(value):
        text = f"{name!r} is a {type(value).__name__} with tensors in it, which would be stacked"
        hint = "give one tensor: what the list holds, or numpy.stack of it"
        raise ClientError(Problem("client-several-tensors", text, hint))
    try:
        array = _as_numpy(value)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if dtype is not None:
            wanted = numpy_dtype(dtype)
            if array.dtype.kind == "c" and wanted.kind != "c":
                raise TypeError(f"{dtype} would lose the imaginary parts")
            array = array.astype(wanted, copy=False)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise _no_tensor(name, str(error)) from None
    if known(array.dtype) is None:
        raise _no_tensor(name, f"its dtype {array.dtype} is none that can be sent")
    return array


def _as_numpy(value: Any) -> NDArray[Any]:
    masked = sys.modules.get("numpy.ma")  # where it is not loaded, no array is of its type
    if isinstance(value, getattr(masked, "MaskedArray", ())) and np.ma.is_masked(value):
        raise TypeError("it is a masked array, whose masked elements have no value")
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(torch, value)
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "numpy") and not hasattr(value, "__array__"):
        return np.asarray(value.numpy())
    return np.asarray(value)


def _from_torch(torch: Any, value: Any) -> NDArray[Any]:
    """Convert a PyTorch tensor to a dense numpy array in the memory of the CPU.

    numpy has no bfloat16 and float8, and PyTorch does not know the types that we use for them in
    numpy. Such tensors are therefore converted bit by bit.
    """
    if value.is_quantized or value.is_nested:
        raise TypeError("it is a quantized or nested tensor; send what it stands for")
    tensor = value.detach().cpu()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    # Resolve lazy negation before using the bits, which do not contain the sign.
    tensor = tensor.resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in ML_DTYPES_NAMES:
        words = torch.uint8 if DTYPES[name].itemsize == 1 else torch.int16
        bits = tensor.contiguous().view(words).numpy()
        bits = bits.view(numpy_dtype(name))
        return np.asarray(bits)
    return np.asarray(tensor.numpy())


def as_arrays(
    values: Mapping[str, Any], dtype: str | None = None, *, known: Names = dtype_name
) -> dict[str, NDArray[Any]]:
    """Convert each tensor of a mapping; see `as_array`."""
    if not isinstance(values, Mapping):
        raise _no_tensor("inputs", "they must be a mapping of names to tensors")
    return {
        str(name): as_array(value, str(name), dtype, known=known) for name, value in values.items()
    }


def elements_changed(
    before: Mapping[str, NDArray[Any]], after: Mapping[str, NDArray[Any]]
) -> dict[str, int]:
    """Count, for each array that an op changed, the elements whose bits differ.

    Arrays without changes are left out. NaNs with the same bits are equal. If the shape or dtype
    changed, all elements count.
    """
    found = {}
    for name, array in before.items():
        now = after[name]
        if now.shape != array.shape or now.dtype != array.dtype:
            found[name] = max(1, array.size)
            continue
        old, new = array.tobytes(), now.tobytes()
        if old != new:
            differs = np.frombuffer(old, np.uint8) != np.frombuffer(new, np.uint8)
            found[name] = int(differs.reshape(-1, array.itemsize).any(axis=1).sum())
    return found


def output_fields(output: Any, dtype: str | None = None) -> dict[str, Any]:
    """Return the field of a request that contains the output, or all outputs by name.

    Raises ClientError: ``client-several-outputs`` for a tuple or list of tensors, which numpy would
    stack.
    """
    if isinstance(output, Mapping):
        for name, one in output.items():
            _refuse_several(one, f"the output {name!r}")
        return {"outputs": as_arrays(output, dtype)}
    _refuse_several(output, "the output")
    return {"output": as_array(output, "output", dtype)}


def _refuse_several(output: Any, what: str) -> None:
    if holds_tensors(output):
        text = f"{what} is a {type(output).__name__} with tensors in it, without names"
        hint = 'give them by the names of the op\'s outputs: {"values": v, "indices": i}'
        raise ClientError(Problem("client-several-outputs", text, hint))


def holds_tensors(value: Any) -> bool:
    """Tell whether a value is a tuple or list that contains a tensor.

    Of nested lists, only the first is examined, because they usually form a matrix of numbers.
    """
    for _ in range(MAX_NESTED):
        if not isinstance(value, (tuple, list)) or not value:
            return False
        if any(
            hasattr(one, "shape") and hasattr(one, "dtype") and not isinstance(one, np.generic)
            for one in value
        ):
            return True
        value = value[0]
    return False


def _no_tensor(name: str, reason: str) -> ClientError:
    return ClientError(Problem("client-not-a-tensor", f"{name!r} cannot be sent: {reason}"))

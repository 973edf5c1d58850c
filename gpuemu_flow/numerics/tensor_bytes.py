"""Convert a tensor's elements to bytes in C order and back, for all formats that carry tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import element_dtype
from gpuemu_flow.types import Json

Array = NDArray[Any]


class TensorBytesError(ValueError):
    """Raised for bytes that cannot be the elements of a tensor.

    The message has no subject, such as ``holds bytes that are no bool``. Callers put the tensor's
    name before it.
    """


class ImpossibleShapeError(TensorBytesError):
    """Raised for a shape that no numpy array can have, such as one with too many elements.

    Some shapes with a dim of 0 are impossible, too: numpy limits the product of the other dims.
    """


def bytes_of(array: Array) -> NDArray[np.uint8]:
    """Return the elements of an array of any layout as bytes in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def is_size(value: Json) -> bool:
    """Tell whether a JSON value is an integer that a dim can have."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def tensor_of(raw: bytes | NDArray[np.uint8], shape: tuple[int, ...], dtype: str) -> Array:
    """Return a tensor that views the given bytes, which are in C order, without a copy.

    Raises ImpossibleShapeError. Raises TensorBytesError if a byte of a bool is neither 0 nor 1.
    """
    if dtype == "bool" and len(raw) and int(np.max(np.frombuffer(raw, np.uint8))) > 1:
        raise TensorBytesError("holds bytes that are no bool")
    try:
        if isinstance(raw, bytes):
            array: Array = np.ndarray(shape, element_dtype(dtype), raw)
            return array
        return raw.view(element_dtype(dtype)).reshape(shape)
    except (ValueError, OverflowError):
        raise ImpossibleShapeError(f"has the impossible shape {list(shape)!r:.80}") from None

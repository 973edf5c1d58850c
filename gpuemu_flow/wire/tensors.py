"""Tensors of wire protocol v1: shape, strides, dtype, and base64 of the elements in C order."""

from __future__ import annotations

import base64
import contextlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.model.errors import did_you_mean
from gpuemu_flow.model.types import DTYPES, MAX_DIMS, Json, canonical_dtype
from gpuemu_flow.numerics.dtypes import (
    TensorBytesError,
    bytes_of,
    dtype_name,
    tensor_of,
)
from gpuemu_flow.wire.envelope import WireError
from gpuemu_flow.wire.exchange import FROM_BYTES, Exchange

Array = NDArray[Any]

MAX_TENSORS = 256
MAX_SIZE = 1 << 48
"""Sizes of dims are below this."""
MAX_SHOWN = 60


def encode_tensor(
    array: Array, strides: Sequence[int] | None = None, exchange: Exchange | None = None
) -> dict[str, Json]:
    """Return a tensor in the form in which a message contains it.

    Raises WireError: The protocol does not have the dtype.
    """
    name = dtype_name(array.dtype)
    if name is None:
        raise WireError(
            f"a tensor of dtype {array.dtype} cannot be sent; known: {', '.join(DTYPES)}"
        )
    head: dict[str, Json] = {
        "shape": list(array.shape),
        "strides": list(c_strides(array.shape) if strides is None else strides),
        "dtype": name,
    }
    if exchange is not None and array.nbytes >= FROM_BYTES:
        with contextlib.suppress(OSError):
            return {**head, "file": exchange.put(array)}
    return {**head, "data": base64.b64encode(bytes_of(array).data).decode()}


@lru_cache(maxsize=256)
def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of the C order."""
    strides: list[int] = []
    step = 1
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def decode_tensor(value: Json, where: str, exchange: Exchange | None = None) -> Array:
    """Decode a tensor of a message; ignore its strides, since the data are always in C order.

    Raises WireError: The value is no valid tensor. The error's text names it as `where`.
    """
    if not isinstance(value, dict):
        raise WireError(f"{where} must be a tensor object, not {json_type(value)}")
    source = "file" if exchange is not None and "file" in value else "data"
    for key in ("shape", "dtype", source):
        if key not in value:
            raise WireError(f"{where} lacks {key!r}")
    shape = _shape(value["shape"], where)
    dtype = _dtype(value["dtype"], where)
    wanted = math.prod(shape) * DTYPES[dtype].itemsize
    raw: bytes | NDArray[np.uint8]
    if source == "file" and exchange is not None:
        raw = exchange.take(value["file"], wanted, where)
    else:
        raw = _bytes(value["data"], where)
        if len(raw) != wanted:
            raise WireError(
                f"{where} of shape {list(shape)} and dtype {dtype} takes {wanted} bytes; "
                f"its data holds {len(raw)}"
            )
    try:
        return tensor_of(raw, shape, dtype)
    except TensorBytesError as error:
        raise WireError(f"{where} {error}") from None


def decode_tensors(value: Json, where: str, exchange: Exchange | None = None) -> dict[str, Array]:
    """Decode tensors by name, with the errors of `decode_tensor`."""
    if not isinstance(value, dict):
        raise WireError(f"{where} must be an object of named tensors, not {json_type(value)}")
    if len(value) > MAX_TENSORS:
        raise WireError(f"{where} holds {len(value)} tensors; at most {MAX_TENSORS} are possible")
    return {name: decode_tensor(item, f"{where}.{name}", exchange) for name, item in value.items()}


def encode_tensors(
    arrays: Mapping[str, Array], exchange: Exchange | None = None
) -> dict[str, Json]:
    """Encode tensors by name, with the errors of `encode_tensor`."""
    return {name: encode_tensor(array, None, exchange) for name, array in arrays.items()}


def json_type(value: Json) -> str:
    """Name the type of a value as JSON does."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")


def _shape(value: Json, where: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise WireError(f"{where}.shape must be an array of sizes")
    for dim in value:
        if type(dim) is not int or not 0 <= dim < MAX_SIZE:
            raise WireError(f"{where}.shape must be an array of sizes")
    if len(value) > MAX_DIMS:
        raise WireError(f"{where} has {len(value)} dims, more than {MAX_DIMS}")
    return tuple(value)


def _dtype(value: Json, where: str) -> str:
    if not isinstance(value, str):
        raise WireError(f"{where}.dtype must be a string, not {json_type(value)}")
    name = value if value in DTYPES else canonical_dtype(value)
    if name is None:
        shown = value[:MAX_SHOWN]
        hint = did_you_mean(shown.lower(), tuple(DTYPES))
        raise WireError(f"{where} has the unknown dtype {shown!r}; {hint}")
    return name


def _bytes(value: Json, where: str) -> bytes:
    if not isinstance(value, str):
        raise WireError(f"{where}.data must be a base64 string, not {json_type(value)}")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise WireError(f"{where}.data is not base64") from None

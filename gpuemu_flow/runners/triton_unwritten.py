"""Fill new memory with recognisable values, and find outputs that were never written.

New memory of floats holds a signalling NaN. Arithmetic never results in a signalling NaN, since
every NaN that it makes or passes on is quiet. New memory of integers and float8 holds bytes that
may also be a valid result, so elements with these bytes are checked again after a second run with
other bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import DTYPES, Failure, FailureKind

_FLOATS: dict[str, tuple[int, int]] = {
    "float64": (0x7FF5A5A5C3C35A5A, 0x7FF2965A3C3C9669),
    "float32": (0x7FA5C35A, 0x7F936C5A),
    "float16": (0x7D5A, 0x7CB6),
    "bfloat16": (0x7FA5, 0x7F96),
    "float8_e5m2": (0xFD, 0x7D),
    "float8_e4m3fn": (0xFF, 0x7F),
}
"""Words that fill new memory in the first and in the second run."""
_BYTES = (0xA5, 0x96)
_SURE_BYTES = 4
"""Minimum size in bytes of an element whose fill value alone, without a second run, shows that it
was never written."""
Outputs = Mapping[str, np.ndarray]


def fill_word(dtype: str, itemsize: int, run: int) -> int:
    """Return the integer whose bits fill each element of new memory; `run` is 0 or 1."""
    if dtype in _FLOATS:
        return _FLOATS[dtype][run]
    return int.from_bytes(bytes([_BYTES[run]]) * itemsize, "little")


def fill_uninitialised(torch: Any, tensor: Any, run: int = 0) -> None:
    """Fill new memory with values that are recognised later: NaN, or a rare integer.

    A first run (`run` is 0) and a second run (1) use different values. Booleans become True, which
    is not recognised later.
    """
    if tensor.device.type != "cpu" or not tensor.numel():
        return
    if tensor.dtype == torch.bool:
        tensor.fill_(True)
        return
    dtype, size = tensor.dtype, tensor.element_size()
    if dtype.is_complex:
        dtype, size = dtype.to_real(), size // 2
    word = fill_word(str(dtype).removeprefix("torch."), size, run)
    signed = word - (1 << 8 * size) if word >> (8 * size - 1) else word
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=getattr(torch, f"int{8 * size}"))
    whole.set_(storage, 0, (storage.nbytes() // size,), (1,)).fill_(signed)


@dataclass(frozen=True)
class _Suspects:
    places: NDArray[np.bool_]
    sure: bool


def _suspects(array: np.ndarray, run: int) -> _Suspects | None:
    """Return the elements that still hold the fill value of new memory; None if there are none.

    `run` is 0 for the fill value of a first run, and 1 for that of a second run.
    """
    dtype = dtype_name(array.dtype) or ""
    known = DTYPES.get(dtype)
    if known is None or known.kind == "bool" or not array.size:
        return None
    fill = fill_word(dtype, known.itemsize, run)
    words = np.ascontiguousarray(array).view(f"u{known.itemsize}").reshape(array.shape)
    places = words == fill
    signalling = dtype in FLOAT_LIMITS and known.itemsize > 1
    sure = signalling or known.itemsize >= _SURE_BYTES
    return _Suspects(places, sure) if places.any() else None


def suspicious(outputs: Outputs) -> bool:
    """Tell whether any output of a first run still holds the fill value of new memory."""
    return any(_suspects(array, 0) is not None for array in outputs.values())


def unwritten(first: Outputs, second: Outputs | None) -> list[Failure]:
    """Report elements of outputs that were never written."""
    found: list[Failure] = []
    for name, array in first.items():
        suspects = _suspects(array, 0)
        if suspects is None:
            continue
        places = suspects.places
        if second is None:
            places = places & suspects.sure
        elif name in second and second[name].shape == array.shape:
            again = _suspects(second[name], 1)
            places = places & again.places if again is not None else np.zeros_like(places)
        where = np.argwhere(places)
        if len(where):
            index = tuple(int(i) for i in where[0])
            message = f"{len(where)} of {array.size} elements of output {name!r} were never written"
            found.append(Failure(FailureKind.UNWRITTEN, message, name, index))
    return found

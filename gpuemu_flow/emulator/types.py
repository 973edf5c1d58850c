"""PTX types, and the numpy types that hold their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

DTYPES: dict[str, str] = {
    "pred": "?",
    "b8": "u1", "u8": "u1", "s8": "i1", "e4m3": "u1", "e5m2": "u1",
    "b16": "u2", "u16": "u2", "s16": "i2", "f16": "f2", "bf16": "u2",
    "e4m3x2": "u2", "e5m2x2": "u2",
    "b32": "u4", "u32": "u4", "s32": "i4", "f32": "f4", "tf32": "u4",
    "f16x2": "u4", "bf16x2": "u4", "u16x2": "u4", "s16x2": "u4",
    "b64": "u8", "u64": "u8", "s64": "i8", "f64": "f8", "f32x2": "u8",
}  # fmt: skip
"""numpy type that an instruction of a PTX type computes in; packed and small float types that
numpy lacks stay bits."""

SIZES: dict[str, int] = {name: np.dtype(code).itemsize for name, code in DTYPES.items()}

BITS: dict[str, str] = {
    name: "?" if code == "?" else f"u{SIZES[name]}" for name, code in DTYPES.items()
}
"""numpy type that holds the bits of a PTX type in a register, between basic blocks."""

WARP = 32
"""Number of threads in a warp."""

WARPGROUP = 4 * WARP
"""Number of threads in the four neighbouring warps that ``wgmma`` works on."""


def is_signed(type_name: str) -> bool:
    """Tell whether a PTX type is a signed integer."""
    return type_name[:1] == "s"


def is_float(type_name: str) -> bool:
    """Tell whether numpy computes with values of a PTX type in floating point."""
    return type_name in ("f16", "f32", "f64")

"""PTX types, the numpy types that hold their values, and what instructions are looked up by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gpuemu_flow.lint.ptx.model import Opcode

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


Lanes = Callable[..., Array]


class OpcodeForm(Struct, frozen=True):
    """One opcode ready to be called."""

    function: Lanes
    sources: tuple[str, ...]
    result: str
    section: str
    table: bool = False


Builder = Callable[[Opcode, str, frozenset[str]], "OpcodeForm | None"]

BUILDERS: dict[str, Builder] = {}
ROUNDINGS = ("rn", "rz", "rm", "rp")
INTEGERS = frozenset(
    f"{kind}{bits}" for kind in "us" for bits in (16, 32, 64)
)  # fmt: skip
BIT_TYPES = frozenset({"b16", "b32", "b64"})


def builds(*bases: str) -> Callable[[Builder], Builder]:
    """Return a decorator that registers a builder of the opcodes with the given base names."""

    def register(builder: Builder) -> Builder:
        for base in bases:
            BUILDERS[base] = builder
        return builder

    return register


def rounding(words: frozenset[str], default: str = "rn") -> str:
    """Return the rounding mode that an opcode names, or `default` if it names none."""
    return next((mode for mode in ROUNDINGS if mode in words), default)


def only(words: frozenset[str], *allowed: str) -> bool:
    """Tell whether each word of an opcode is one of `allowed`."""
    return words <= frozenset(allowed)


# Active lanes of an access, and their addresses.


class ActiveLanes:
    """The active lanes of one access, and the offsets that they access."""

    __slots__ = ("mask", "offsets", "shape")

    def __init__(self, offsets: Array, mask: Array | None, shape: tuple[int, ...]) -> None:
        self.offsets = offsets
        self.mask = mask
        self.shape = shape

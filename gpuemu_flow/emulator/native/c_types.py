"""C types of PTX types, and conversions between them."""

from __future__ import annotations

from gpuemu_flow.emulator.types import DTYPES, SIZES

_C = {
    "?": "uint8_t", "u1": "uint8_t", "i1": "int8_t", "u2": "uint16_t", "i2": "int16_t",
    "u4": "uint32_t", "i4": "int32_t", "u8": "uint64_t", "i8": "int64_t",
    "f4": "float", "f8": "double", "f2": "uint16_t",
}  # fmt: skip
"""C type by numpy code; a half is kept as its bits, as not every compiler has a type for it."""

MODES = {
    "rn": "FE_TONEAREST", "rz": "FE_TOWARDZERO", "rm": "FE_DOWNWARD", "rp": "FE_UPWARD",
}  # fmt: skip
INTEGRAL = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def c_type(type_name: str) -> str:
    """Return the C type in which instructions of a PTX type compute."""
    return _C[DTYPES[type_name]]


def bits_type(size: int) -> str:
    """Return the unsigned C type with this size in bytes."""
    return f"uint{8 * size}_t"


def as_bits(expression: str, type_name: str) -> str:
    """Write the C expression for a value's bits as an unsigned integer of the same size."""
    code = DTYPES[type_name]
    if code == "f4":
        return f"fau({expression})"
    if code == "f8":
        return f"dau({expression})"
    return f"({bits_type(SIZES[type_name])})({expression})"


def from_bits(expression: str, type_name: str) -> str:
    """Write the C expression that interprets bits of a type's size as a value of the type."""
    code = DTYPES[type_name]
    if code == "f4":
        return f"asf({expression})"
    if code == "f8":
        return f"asd({expression})"
    return f"(({_C[code]})({expression}))"


def width(type_name: str) -> int:
    """Return the number of bits of an integer type."""
    return 8 * SIZES[type_name]


def arithmetic_type(type_name: str) -> str:
    """Return the unsigned C type in which sums of a type wrap correctly."""
    return "uint64_t" if SIZES[type_name] == 8 else "uint32_t"

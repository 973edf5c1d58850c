"""Register of lane-wise opcodes: their operand types, result type and function."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from gpuemu_flow.emulator.types import Array
from gpuemu_flow.lint.ptx import Opcode

Lanes = Callable[..., Array]


class OpcodeForm(Struct, frozen=True):
    """One opcode ready to be called."""

    function: Lanes
    sources: tuple[str, ...]
    result: str
    section: str
    table: bool = False
    approximate: float = 0.0
    absolute_below: float = 0.0


Builder = Callable[[Opcode, str, frozenset[str]], "OpcodeForm | None"]

BUILDERS: dict[str, Builder] = {}
ROUNDINGS = ("rn", "rz", "rm", "rp")
INTEGERS = frozenset(
    f"{kind}{bits}" for kind in "us" for bits in (16, 32, 64)
)  # fmt: skip
BIT_TYPES = frozenset({"b16", "b32", "b64"})


def builds(*bases: str) -> Callable[[Builder], Builder]:
    def register(builder: Builder) -> Builder:
        for base in bases:
            BUILDERS[base] = builder
        return builder

    return register


def rounding(words: frozenset[str], default: str = "rn") -> str:
    return next((mode for mode in ROUNDINGS if mode in words), default)


def only(words: frozenset[str], *allowed: str) -> bool:
    return words <= frozenset(allowed)


# Active lanes of an access, and their addresses.


class ActiveLanes:
    """The active lanes of one access, and the offsets that they access."""

    __slots__ = ("mask", "offsets", "shape")

    def __init__(self, offsets: Array, mask: Array | None, shape: tuple[int, ...]) -> None:
        self.offsets = offsets
        self.mask = mask
        self.shape = shape

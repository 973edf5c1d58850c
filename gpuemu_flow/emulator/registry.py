"""Register of lane-wise opcodes: their operand types, result type and function."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from gpuemu_flow.artifacts.ptx import Opcode
from gpuemu_flow.emulator.types import Array

Lanes = Callable[..., Array]


class OpcodeForm(Struct, frozen=True):
    """One opcode ready to be called.

    Attributes
    ----------
    function : callable
        Turns arrays of the source types into an array of the result type. If `table` is True, it
        makes the function that does this.
    sources : tuple of str
        PTX types of the operands after the first.
    result : str
        PTX type of the first operand.
    section : str
        Title of the opcode's section in the PTX ISA.
    table : bool
        True if the last operand is a constant, which is the only argument of `function`.
    approximate : float
        Largest relative error that the ISA allows, 0 for exact instructions.
    absolute_below : float
        Results of a smaller magnitude than this value may have an absolute error of up to
        ``absolute_below * approximate``.
    """

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
    """The active lanes of one access, and the offsets that they access.

    Attributes
    ----------
    offsets : uint64 array, 1-D
        Offset in the state space, by active lane. Lanes that load from one address together may
        have a single entry.
    mask : bool array or None
        The active lanes among all lanes; None if all are active.
    shape : tuple of int
        If `mask` is None, the shape that `offsets` had before they were flattened; else empty.
    """

    __slots__ = ("mask", "offsets", "shape")

    def __init__(self, offsets: Array, mask: Array | None, shape: tuple[int, ...]) -> None:
        self.offsets = offsets
        self.mask = mask
        self.shape = shape

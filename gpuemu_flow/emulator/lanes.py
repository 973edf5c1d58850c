"""Lanes of an access: the active ones and their addresses."""

from __future__ import annotations

from gpuemu_flow.emulator.types import Array


class ActiveLanes:
    """The active lanes of one access: their flat numbers, or all of them.

    Attributes
    ----------
    offsets : uint64 array, 1-D
        Offset into the space of each active lane; one entry where all lanes read one place.
    mask : bool array or None
        None when all lanes are active.
    shape : tuple of int
        Shape of the accessed values of the active lanes.
    """

    __slots__ = ("mask", "offsets", "shape")

    def __init__(self, offsets: Array, mask: Array | None, shape: tuple[int, ...]) -> None:
        self.offsets = offsets
        self.mask = mask
        self.shape = shape

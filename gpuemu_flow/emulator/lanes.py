"""Active lanes of an access, and their addresses."""

from __future__ import annotations

from gpuemu_flow.emulator.types import Array


class ActiveLanes:
    """The active lanes of one access and the offsets that they access.

    Attributes
    ----------
    offsets : uint64 array, 1-D
        Offset into the space, by active lane; lanes that load one address together may have a
        single entry.
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

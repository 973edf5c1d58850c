"""Active lanes of an access, and their addresses."""

from __future__ import annotations

from gpuemu_flow.emulator.types import Array


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

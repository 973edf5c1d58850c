"""Positions of tensors in an arena, for processes that need not load numpy."""

from __future__ import annotations

from collections.abc import Mapping

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import ELEMENT_TYPES, MAX_DIMS, Json, Shape


@dataclass(frozen=True)
class Slot:
    """Position of a tensor in an arena: offset of the first element, and strides, both in bytes."""

    offset: int
    shape: Shape
    strides: tuple[int, ...]
    dtype: str

    def to_json(self) -> list[Json]:
        """Return plain JSON; `from_json` is its inverse."""
        return [self.offset, list(self.shape), list(self.strides), self.dtype]

    @classmethod
    def from_json(cls, data: Json) -> Slot:
        """Rebuild from `to_json`'s result, or raise TypeError or ValueError."""
        offset, shape, strides, dtype = data
        slot = cls(int(offset), tuple(map(int, shape)), tuple(map(int, strides)), str(dtype))
        sizes_fit = len(slot.shape) == len(slot.strides) <= MAX_DIMS
        if slot.dtype not in ELEMENT_TYPES or not sizes_fit or min((0, *slot.shape)) < 0:
            raise ValueError("not a tensor's place")
        return slot

    def span(self) -> tuple[int, int]:
        """Return the offsets, in the arena, of the tensor's lowest byte and of its end.

        The end is the offset after the last byte.
        """
        if 0 in self.shape:
            return self.offset, self.offset
        low = high = self.offset
        for size, step in zip(self.shape, self.strides, strict=True):
            if step < 0:
                low += (size - 1) * step
            else:
                high += (size - 1) * step
        return low, high + ELEMENT_TYPES[self.dtype].itemsize


def end_of(slots: Mapping[str, Slot]) -> int:
    """Return the offset after the last byte that the tensors use; 0 without tensors."""
    return max((slot.span()[1] for slot in slots.values()), default=0)

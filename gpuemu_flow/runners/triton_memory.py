"""The memory that a Triton kernel may touch; accesses outside of it are failures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Failure, FailureKind

ZONE = 1 << 16
"""Minimum number of free bytes on each side of a tensor. An access beyond the end of one tensor
must not fall into another tensor, where it would look valid."""

READ, WRITE = "reads", "writes"
_KINDS = {READ: FailureKind.OUT_OF_BOUNDS_READ, WRITE: FailureKind.OUT_OF_BOUNDS}


class OutOfBoundsError(Exception):
    """Raised to end a kernel after an out-of-bounds access that cannot be skipped.

    An access is out of bounds if it lies outside of every tensor. A compare-and-swap cannot be
    skipped, since it has no mask.
    """


@dataclass(frozen=True)
class Region:
    """Memory of one tensor: the bytes from address `start` up to `stop`, exclusive."""

    name: str
    start: int
    stop: int

    def distance(self, address: int) -> int:
        """Return the distance in bytes from the region to an address outside of it."""
        return self.start - address if address < self.start else address - self.stop


@dataclass
class _Trespass:
    """The first out-of-bounds access at one line of a kernel, and the number of such accesses."""

    message: str
    kind: FailureKind
    argument: str
    count: int = 0


@dataclass
class Memory:
    """The tensors that kernels may reach during one call of a host function."""

    shared: list[Region] = field(default_factory=list)
    on_store: Callable[[int, int, NDArray[np.intp], int], None] | None = None
    origins: dict[int, int] = field(default_factory=dict)
    _kernel: str = ""
    _file: str = ""
    _regions: list[Region] = field(default_factory=list)
    _starts: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    _stops: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    _found: dict[tuple[str, int, str, str], _Trespass] = field(default_factory=dict)

    def begin(self, kernel: str, file: str, regions: list[Region]) -> None:
        """Begin a launch: only `regions` and the regions in `shared` may be touched from now on."""
        self._kernel, self._file = kernel, file
        self._regions = sorted([*regions, *self.shared], key=lambda region: region.start)
        self._starts = np.array([r.start for r in self._regions], np.uint64)
        self._stops = np.array([r.stop for r in self._regions], np.uint64)

    def allowed(
        self, pointers: NDArray[np.uint64], mask: NDArray[np.bool_], itemsize: int, deed: str
    ) -> NDArray[np.bool_]:
        """Return the mask of those requested accesses that lie in tensors; record the others."""
        asked = np.broadcast_to(mask, pointers.shape)
        active = pointers[asked]
        if not active.size:
            return mask
        if self._all_in_one(active, itemsize):
            self._tell(active, itemsize, deed)
            return mask
        # Wild addresses may wrap in this unsigned sum; no process has memory near the wrap.
        place = np.searchsorted(self._starts, active, side="right").astype(np.intp) - 1
        inside = place >= 0
        last = active + np.uint64(itemsize - 1)
        inside[inside] = last[inside] < self._stops[place[inside]]
        self._tell(active[inside], itemsize, deed)
        if inside.all():
            return mask
        self._remember(active[~inside], itemsize, deed)
        kept: NDArray[np.bool_] = asked.copy()
        kept[asked] = inside
        return kept

    def _all_in_one(self, active: NDArray[np.uint64], itemsize: int) -> bool:
        low, high = int(active.min()), int(active.max()) + itemsize
        place = int(np.searchsorted(self._starts, np.uint64(low), side="right")) - 1
        return place >= 0 and high <= self._regions[place].stop

    def _tell(self, stored: NDArray[np.uint64], itemsize: int, deed: str) -> None:
        if self.on_store is None or deed != WRITE or not stored.size:
            return
        places = np.searchsorted(self._starts, stored, side="right").astype(np.intp) - 1
        for place in np.unique(places):
            region = self._regions[int(place)]
            offsets = (stored[places == place] - np.uint64(region.start)).astype(np.intp)
            begin = self.origins.get(region.start, region.start)
            self.on_store(begin, region.stop - region.start, offsets, itemsize)

    def _remember(self, wrong: NDArray[np.uint64], itemsize: int, deed: str) -> None:
        line = _line_in(self._file)
        address = int(wrong[0])
        near = min(self._regions, key=lambda r: r.distance(address), default=None)
        name = near.name if near is not None else ""
        key = (self._kernel, line, deed, name)
        trespass = self._found.get(key)
        if trespass is None:
            where = f"{self._kernel}, line {line}," if line else self._kernel
            message = f"{where} {deed} {_place(address, itemsize, near)}"
            trespass = self._found[key] = _Trespass(message, _KINDS[deed], name)
        trespass.count += len(wrong)

    def failures(self) -> list[Failure]:
        """List the accesses outside of all tensors since the last call of `forget`."""
        return [
            Failure(t.kind, f"{t.message}; {t.count} such accesses in all", t.argument)
            for t in self._found.values()
        ]

    def forget(self) -> None:
        """Clear the recorded accesses and `shared`, before a new call of the host function."""
        self._found.clear()
        self.shared.clear()


def _line_in(file: str) -> int:
    """Return the current line of the innermost stack frame in a file; 0 if there is no frame."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == file:
            return int(frame.f_lineno)
        frame = frame.f_back
    return 0


def _place(address: int, itemsize: int, near: Region | None) -> str:
    if near is None:
        return f"address {address:#x}, and the launch has no tensor"
    if near.start <= address < near.stop:
        beyond = address + itemsize - near.stop
        return f"{beyond} bytes over the end of {near.name!r}"
    count = (near.stop - near.start) // itemsize
    element = (address - near.start) // itemsize
    return f"element {element} of {near.name!r}, whose memory has {count}"

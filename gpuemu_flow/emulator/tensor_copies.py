"""Instructions with tensor maps (TMA): copies of boxes of a tensor, and changes of the maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from gpuemu_flow.emulator.atomics import AtomicForm
from gpuemu_flow.emulator.bulk import Bulk, BulkCopy, reduction
from gpuemu_flow.emulator.errors import UnsupportedError, unsupported
from gpuemu_flow.emulator.memory import GLOBAL_BASE, UNALLOCATED, UNINITIALISED
from gpuemu_flow.emulator.tensor_maps import (
    FIELDS,
    MAP_ALIGNMENT,
    MAP_BYTES,
    TensorMap,
    read_map,
)
from gpuemu_flow.emulator.types import WARP, Array

SHARED_ALIGNMENT = 128
"""Alignment in bytes that a box needs in shared memory."""


class TensorCopies(Bulk):
    """Executes ``cp.async.bulk.tensor`` and ``tensormap`` for one batch of blocks."""

    def start_tensor_copy(
        self, address: Array, corner: Sequence[Array], shared: Array, barrier: Array | None,
        into_shared: bool, operation: str, blocks: Array | None, mask: Array | None, step: int,
    ) -> None:  # fmt: skip
        """Execute ``cp.async.bulk.tensor``: start one copy of a box for each active lane.

        Raises UnsupportedError: The map has a property that the emulator does not support.
        """
        rows = [self.spread(x).reshape(-1) for x in (address, *corner)]
        for copy, near in self.new_copies(shared, into_shared, barrier, blocks, mask, step):
            where, *place = (int(row[copy.lane]) for row in rows)
            tensor = self._usable_map(copy, where, len(corner))
            if tensor is None:
                continue
            if near % SHARED_ALIGNMENT:
                self.blame(copy, "misaligned", f"{copy.verb} a box at an offset of shared memory "
                           f"that is no multiple of {SHARED_ALIGNMENT}")  # fmt: skip
            elif self.is_shared_memory(copy, near, tensor.size):
                self.take_copy(self._of_box(copy, tensor, near, place, operation))

    def _of_box(
        self, copy: BulkCopy, tensor: TensorMap, near: int, corner: list[int], operation: str
    ) -> BulkCopy:
        """Return the tensor copy `copy`, with the byte offsets of its box filled in.

        `near` is the offset of the box in shared memory, and `corner` holds its coordinates in the
        tensor. If `operation` names a reduction, the reduction is filled in, too.
        """
        places, inside = tensor.elements(corner)
        far = (places - GLOBAL_BASE)[:, None] + np.arange(tensor.item)
        far = np.where(inside[:, None], np.maximum(far, 0), -1).reshape(-1)
        base = copy.row * self.shared_stride
        combine: AtomicForm | None = None
        if operation:
            combine = reduction(operation, tensor.type_name)
            if combine is None:
                raise self._lacking(copy.step, f"{operation} of .{tensor.type_name}")
        return replace(
            copy, near=tensor.swizzled(near) + base, far=far, tensor=tensor, combine=combine
        )

    def _lacking(self, step: int, what: str) -> UnsupportedError:
        program = self.launch.program
        source, offset = program.module.source, program.steps[step].offset
        return unsupported(
            f"{program.name}: {program.steps[step].text!r} cannot be run with {what}",
            "use a map without it, or plain loads and stores",
            source.file,
            source.line_of(offset),
        )

    def _usable_map(self, copy: BulkCopy, address: int, dimensions: int) -> TensorMap | None:
        """Read the map of a copy; report a finding and return None if the copy cannot use it."""
        arena = self.launch.arena
        start = address - GLOBAL_BASE
        if (
            not 0 <= start <= len(arena.data) - MAP_BYTES
            or (arena.shadow[start : start + MAP_BYTES] == UNALLOCATED).any()
        ):
            self.blame(copy, "out-of-bounds", f"reads a tensor map at address 0x{address:x}, "
                       "which is no global memory of this launch")  # fmt: skip
            return None
        where = arena.describe(start)
        if address % MAP_ALIGNMENT:
            self.blame(copy, "misaligned", f"reads a tensor map at {where}, whose address is no "
                       f"multiple of {MAP_ALIGNMENT}")  # fmt: skip
            return None
        if self.check_init and (arena.shadow[start : start + MAP_BYTES] == UNINITIALISED).any():
            self.blame(copy, "never-written", f"reads a tensor map at {where}, which nobody "
                       "wrote whole", "init")  # fmt: skip
            return None
        tensor = read_map(arena.data[start : start + MAP_BYTES].tobytes())
        if tensor.lacking and len(tensor.box) == dimensions:
            raise self._lacking(copy.step, tensor.lacking)
        problem = tensor.problem(dimensions)
        if problem:
            self.blame(copy, "tensor-map", f"{copy.verb} by the tensor map at {where}, which "
                       f"{problem}")  # fmt: skip
            return None
        return tensor

    def check_tensor_map(
        self, address: Array, dimensions: int, mask: Array | None, step: int
    ) -> None:
        """Execute ``cp.async.bulk.prefetch.tensor``, which only checks the maps."""
        where = self.spread(address).reshape(-1)
        nowhere = np.zeros((1, 1), np.uint64)
        for copy, _ in self.new_copies(nowhere, True, None, None, mask, step):
            self._usable_map(copy, int(where[copy.lane]), dimensions)

    def replace_field(
        self, space: str, field: str, number: int, address: Array, value: Array,
        mask: Array | None, step: int,
    ) -> None:  # fmt: skip
        """Execute ``tensormap.replace``."""
        first, width, _ = FIELDS[field]
        place = address + np.uint64(first + width * number)
        bits = np.asarray(value).astype(f"u{width}")
        getattr(self, f"store_{space}")(place, (bits,), width, mask, step, False)

    def publish_map(
        self, source: Array, target: Array, target_space: str, mask: Array | None, step: int
    ) -> None:
        """Execute ``tensormap.cp_fenceproxy``: each warp copies a map out of shared memory."""
        self.check_members(np.full((1, 1), 0xFFFFFFFF, np.uint32), mask, step)
        active = self.spread(self.live if mask is None else mask)
        lanes = np.arange(self.width, dtype=np.uint64) % np.uint64(WARP)
        piece = lanes * np.uint64(MAP_BYTES // WARP)
        (word,) = self.load_shared(self.spread(source + piece), 4, 1, active, step, False)
        store = getattr(self, f"store_{target_space}")
        store(self.spread(target + piece), (word,), 4, active, step, False)
        self.fence(active, within_block=False)

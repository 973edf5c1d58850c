"""Stack memory of a thread: alloca, stacksave, stackrestore."""

from __future__ import annotations

import numpy as np

from gpuemu_flow.emulator.ir import STACK, KernelProgram
from gpuemu_flow.emulator.types import Array
from gpuemu_flow.emulator.wmma import WarpMatrices


def stack_region(program: KernelProgram) -> tuple[int, int]:
    """Return the offsets in local memory where a thread's stack begins and ends."""
    for region in program.local:
        if region.name == STACK:
            return region.offset, region.offset + region.size
    return 0, 0


class Stack(WarpMatrices):
    """Stack pointers of the threads of one batch, as offsets into local memory."""

    def begin(self, block_ids: Array) -> None:
        """Set up empty stacks."""
        super().begin(block_ids)
        bottom, self._stack_end = stack_region(self.launch.program)
        self.stack_pointer: Array = np.full((1, 1), bottom, np.uint64)

    def allocate_stack(self, size: Array, alignment: int, mask: Array | None, step: int) -> Array:
        """Execute ``alloca``; return the address of the new memory."""
        unit = np.uint64(alignment)
        start = (self.stack_pointer + unit - np.uint64(1)) // unit * unit
        end = start + np.minimum(size, np.uint64(1 << 40))
        over = end > np.uint64(self._stack_end)
        if over.any():
            chosen = self.spread(over) & self.spread(self.live if mask is None else mask)
            most = self._stack_end - stack_region(self.launch.program)[0]
            self.report_mask(
                "mem", "stack-overflow", chosen, step,
                f"takes more than the {most:,} bytes of stack that a thread has here",
            )  # fmt: skip
        self.restore_stack(end, mask)
        return start

    def restore_stack(self, pointer: Array, mask: Array | None) -> None:
        """Set the stack pointers of some lanes."""
        if mask is None:
            self.stack_pointer = pointer
        else:
            self.stack_pointer = np.where(mask, pointer, self.stack_pointer)

"""Copies of many bytes that one thread starts: cp.async.bulk, between global and shared memory.

The bytes arrive only when a thread waits for the barrier object or the group, so that a missing
wait shows as a read of the old content.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuemu_flow.emulator.asynchronous import MANY
from gpuemu_flow.emulator.atomics import AtomicForm, combiner
from gpuemu_flow.emulator.mbarriers import Mbarriers
from gpuemu_flow.emulator.memory import GLOBAL_BASE, UNALLOCATED, UNINITIALISED, WRITTEN
from gpuemu_flow.emulator.tensor_maps import TensorMap
from gpuemu_flow.emulator.types import DTYPES, Array
from gpuemu_flow.quick_dataclass import dataclass

_COME = AtomicForm("mbarrier.arrive", "b64")
_ALIGNMENT = 16


@dataclass(frozen=True)
class BulkCopy:
    """One thread's copy.

    Attributes
    ----------
    lane : int
        Flat number of the thread.
    near : int array
        Offset into the batch's shared memory of each byte.
    far : int array
        Offset into the arena of each byte; -1 for one that has no place there.
    into_shared : bool
    barrier : int
        Offset of the barrier object in the block's shared memory; -1 for a group.
    group, step : int
    tensor : TensorMap or None
        The map of a copy of a tensor's box.
    combine : AtomicForm or None
        Operation on the old content of global memory; None for a copy.
    """

    lane: int
    near: Array
    far: Array
    into_shared: bool
    barrier: int
    group: int
    step: int
    tensor: TensorMap | None = None
    combine: AtomicForm | None = None

    @property
    def size(self) -> int:
        """Return the bytes in shared memory."""
        return len(self.near)

    @property
    def verb(self) -> str:
        """Return the verb for the copy's access to global memory, for messages."""
        return "reads" if self.into_shared else "writes"


class Bulk(Mbarriers):
    """``cp.async.bulk`` of one batch."""

    def begin(self, block_ids: Array) -> None:
        """Start a batch with no copies under way."""
        super().begin(block_ids)
        self._bulk: list[BulkCopy] = []
        self._bulk_group: Array = np.zeros(self.full.shape, np.int64)

    def start_bulk(
        self, shared: Array, other: Array, size: Array, barrier: Array | None,
        into_shared: bool, combine: AtomicForm | None, mask: Array | None, step: int,
    ) -> None:  # fmt: skip
        """Start bulk copies; addresses of shared memory are offsets into the block's."""
        active = self.spread(self.live if mask is None else mask)
        rows = [self.spread(x).reshape(-1) for x in (shared, other, size)]
        for lane in np.flatnonzero(active).tolist():
            near, far, count = (int(row[lane]) for row in rows)
            copy = self.new_copy(lane, into_shared, barrier, step)
            start = (far - GLOBAL_BASE) & 0xFFFFFFFFFFFFFFFF
            if (near | start | count) % _ALIGNMENT:
                self.blame(copy, "misaligned", f"copies {count:,} bytes: addresses and size must "
                           f"be multiples of {_ALIGNMENT}")  # fmt: skip
            elif self.is_shared_memory(copy, near, count):
                start = min(start, len(self.launch.arena.data))  # which nobody may access
                row = np.arange(count, dtype=np.int64)
                base = near + lane // self.width * self.shared_stride
                copy = replace(copy, near=base + row, far=start + row, combine=combine)
                self.take_copy(copy)

    def new_copy(
        self, lane: int, into_shared: bool, barrier: Array | None, step: int
    ) -> BulkCopy:  # fmt: skip
        """Make an empty copy by a thread, in its group or for its barrier object."""
        there = -1 if barrier is None else int(self.spread(barrier).reshape(-1)[lane])
        group, nothing = int(self._bulk_group.reshape(-1)[lane]), np.zeros(0, np.int64)
        return BulkCopy(lane, nothing, nothing, into_shared, there, group, step)

    def take_copy(self, copy: BulkCopy) -> None:
        """Register a copy for later delivery, unless a check forbids it."""
        if self._may_reach(copy):
            self._bulk.append(copy)
            if self.shared_races is not None:
                self.shared_races.access_by(
                    copy.lane, copy.near, copy.step, write=copy.into_shared
                )  # fmt: skip

    def blame(self, copy: BulkCopy, rule: str, message: str, check: str = "mem") -> None:
        """Report an error of a copy."""
        said = f"{message}, by {self.who(copy.lane)}"
        self.report_lanes(check, rule, np.array([copy.lane]), copy.step, lambda _: said)

    def is_shared_memory(self, copy: BulkCopy, near: int, size: int) -> bool:
        """Tell whether bytes lie in the block's shared memory; report it where they do not."""
        valid = self.shared_valid
        outside = near + size > self.shared_limit
        if not outside and valid is not None:
            outside = not valid[near : near + size].all()
        if outside:
            verb = "writes" if copy.into_shared else "reads"
            self.blame(copy, "out-of-bounds", f"{verb} {size:,} bytes of shared memory at "
                       f"{self.describe_shared(near)}")  # fmt: skip
        return not outside

    def _may_reach(self, copy: BulkCopy) -> bool:
        """Tell whether a copy may access its bytes of global memory."""
        arena, far = self.launch.arena, copy.far[copy.far >= 0]
        if not far.size:
            return True
        inside = far < len(arena.shadow)
        shadow = arena.shadow[np.where(inside, far, 0)]
        lost = far[~inside | (shadow == UNALLOCATED)]
        if lost.size:
            where = self._describe_global(int(lost[0]), "out-of-bounds")
            self.blame(copy, "out-of-bounds", f"{copy.verb} {far.size:,} bytes, some at {where}")
            return False
        if not copy.into_shared and (shadow == 3).any():
            at = int(far[shadow == 3][0])
            self.blame(copy, "read-only", f"writes {arena.describe(at)}, which is constant")
            return False
        unwritten = far[shadow == UNINITIALISED]
        if (copy.into_shared or copy.combine) and self.check_init and unwritten.size:
            where = arena.describe(int(unwritten[0]))
            self.blame(copy, "never-written", f"reads {where}, which nobody wrote", "init")
        return True

    def _deliver_bulk(self, copy: BulkCopy) -> None:
        data, near = self.launch.arena.data, copy.near
        there = copy.far >= 0
        if copy.into_shared:
            self.shared[near[there]] = data[copy.far[there]]
            if copy.tensor is not None:
                self._finish_tensor(copy, copy.tensor, there)
            if self.check_init:
                self.shared_written[near] = 1
            return
        near, far = near[there], copy.far[there]
        if self.check_init:
            missing = np.flatnonzero(self.shared_written[near] == 0)
            if missing.size:
                where = self._name_private(int(near[missing[0]]), "shared", 1)
                self.blame(copy, "never-written", f"reads {where}, which nobody wrote", "init")
            self.launch.arena.shadow[far] = WRITTEN
        given = self.shared[near]
        if copy.combine is not None:
            kind = DTYPES[copy.combine.type_name]
            old, value = data[far].view(kind), given.view(kind)
            with np.errstate(all="ignore"):
                given = copy.combine.combine(old, value, value).view(np.uint8)
        data[far] = given

    def _finish_tensor(self, copy: BulkCopy, tensor: TensorMap, there: Array) -> None:
        """Fill elements outside of the tensor, and flush subnormal numbers if requested."""
        outside = copy.near[~there].reshape(-1, tensor.item)
        self.shared[outside] = np.frombuffer(tensor.filling, np.uint8)
        rows = copy.near[there].reshape(-1, tensor.item)
        self.shared[rows] = tensor.as_loaded(self.shared[rows])

    def deliver_for(self, waited: Array) -> None:
        """Deliver the copies whose arrival some barrier objects wait for."""
        super().deliver_for(waited)
        if not self._bulk:
            return
        wanted = set(waited.tolist())
        left = []
        for copy in self._bulk:
            row = copy.lane // self.width
            if copy.barrier < 0 or copy.barrier + row * self.shared_stride not in wanted:
                left.append(copy)
                continue
            self._deliver_bulk(copy)
            only = np.zeros(self.full.shape, bool)
            only.reshape(-1)[copy.lane] = True
            address = np.full((1, 1), copy.barrier, np.uint64)
            none, come = np.zeros((1, 1), np.uint64), np.full((1, 1), -copy.size, np.int64)
            self.arrive_mbarrier("shared", _COME, address, none, come, only, copy.step)
        self._bulk = left

    def commit_bulk(self, mask: Array | None) -> None:
        """Close the current group of copies of each thread."""
        self._bulk_group = self._bulk_group + self.spread(self.full if mask is None else mask)

    def wait_bulk(self, most: int, mask: Array | None) -> None:
        """Deliver all but the latest groups of copies."""
        active = self.spread(self.live if mask is None else mask).reshape(-1)
        groups, most = self._bulk_group.reshape(-1), min(most, MANY)
        left = []
        for copy in self._bulk:
            due = copy.barrier < 0 and active[copy.lane] and copy.group < groups[copy.lane] - most
            if due:
                self._deliver_bulk(copy)
            else:
                left.append(copy)
        self._bulk = left


def reduction(operation: str, type_name: str) -> AtomicForm | None:
    """Return the reduction of a bulk copy; None for an unknown one."""
    known = combiner(operation, type_name) is not None
    known &= operation == "add" or "f" not in type_name
    return AtomicForm(operation, type_name) if known else None

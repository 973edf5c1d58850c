"""Copies of many bytes that one thread starts: cp.async.bulk, between global and shared memory.

The bytes arrive only when a thread waits for the barrier object or the group, so that a missing
wait shows as a read of the old content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.emulator.asynchronous import MANY
from gpuemu_flow.emulator.atomics import AtomicForm, combiner
from gpuemu_flow.emulator.findings import show_index
from gpuemu_flow.emulator.mbarriers import Mbarriers
from gpuemu_flow.emulator.memory import GLOBAL_BASE, UNALLOCATED, UNINITIALISED, WRITTEN
from gpuemu_flow.emulator.tensor_maps import TensorMap
from gpuemu_flow.emulator.types import DTYPES, Array

_BARRIER_BYTES = 8
_COME = AtomicForm("mbarrier.arrive", "b64")
_ALIGNMENT = 16


class BulkCopy(Struct, frozen=True):
    """One thread's copy."""

    lane: int
    near: Array
    far: Array
    into_shared: bool
    barrier: int
    group: int
    step: int
    row: int = 0
    tensor: TensorMap | None = None
    combine: AtomicForm | None = None
    inner: bool = False
    given: Array | None = None

    @property
    def size(self) -> int:
        """Return the number of bytes that the copy occupies in shared memory."""
        return len(self.near)

    @property
    def verb(self) -> str:
        """Return ``reads`` or ``writes``, for messages about the copy's access to global memory."""
        return "reads" if self.into_shared else "writes"


class Bulk(Mbarriers):
    """Executes the ``cp.async.bulk`` instructions of one batch of blocks."""

    def begin(self, block_ids: Array) -> None:
        """Start a batch with no copies under way."""
        super().begin(block_ids)
        self._bulk: list[BulkCopy] = []
        self._bulk_group: Array = np.zeros(self.full.shape, np.int64)

    def start_bulk(
        self, shared: Array, other: Array, size: Array, barrier: Array | None,
        into_shared: bool, combine: AtomicForm | None, blocks: Array | None,
        mask: Array | None, step: int,
    ) -> None:  # fmt: skip
        """Start bulk copies between shared and global memory."""
        rows = [self.spread(x).reshape(-1) for x in (other, size)]
        for copy, near in self.new_copies(shared, into_shared, barrier, blocks, mask, step):
            far, count = (int(row[copy.lane]) for row in rows)
            start = (far - GLOBAL_BASE) & 0xFFFFFFFFFFFFFFFF
            if self._may_copy(copy, near, start, count):
                start = min(start, len(self.launch.arena.data))  # which nobody may access
                row = np.arange(count, dtype=np.int64)
                base = near + copy.row * self.shared_stride
                self.take_copy(replace(copy, near=base + row, far=start + row, combine=combine))

    def start_inner(
        self, target: Array, source: Array, size: Array, barrier: Array,
        combine: AtomicForm | None, mask: Array | None, step: int,
    ) -> None:  # fmt: skip
        """Start bulk copies from a block's shared memory to that of a block of the same cluster."""
        rows = [self.spread(x).reshape(-1) for x in (source, size)]
        for copy, near in self.new_copies(target, True, barrier, None, mask, step):
            origin, count = (int(row[copy.lane]) for row in rows)
            reading = replace(copy, into_shared=False)
            if self._may_copy(copy, near, origin, count) and self.is_shared_memory(
                reading, origin, count
            ):
                row = np.arange(count, dtype=np.int64)
                there = near + copy.row * self.shared_stride
                here = origin + copy.lane // self.width * self.shared_stride
                self.take_copy(replace(copy, near=there + row, far=here + row, combine=combine,
                                       inner=True))  # fmt: skip

    def start_store(
        self, target: Array, values: Sequence[Array], barrier: Array,
        combine: AtomicForm | None, mask: Array | None, step: int,
    ) -> None:  # fmt: skip
        """Start stores into a cluster's shared memory (``st.async``, ``red.async``)."""
        whole = [np.ascontiguousarray(self.spread(v)).reshape(-1) for v in values]
        size = sum(v.itemsize for v in whole)
        for copy, near in self.new_copies(target, True, barrier, None, mask, step):
            if near % size:
                self.blame(copy, "misaligned", f"stores {size} bytes of shared memory at an "
                           f"address that is not a multiple of {size}")  # fmt: skip
            elif self.is_shared_memory(copy, near, size):
                data = b"".join(v[copy.lane].tobytes() for v in whole)
                given = np.frombuffer(data, np.uint8)
                places = near + copy.row * self.shared_stride + np.arange(size, dtype=np.int64)
                self.take_copy(replace(copy, near=places, far=places, combine=combine, inner=True,
                                       given=given))  # fmt: skip

    def _may_copy(self, copy: BulkCopy, near: int, other: int, count: int) -> bool:
        """Tell whether a copy is aligned and lies within shared memory; report an error if not."""
        if (near | other | count) % _ALIGNMENT:
            self.blame(copy, "misaligned", f"copies {count:,} bytes: addresses and size must "
                       f"be multiples of {_ALIGNMENT}")  # fmt: skip
            return False
        return self.is_shared_memory(copy, near, count)

    def new_copies(
        self, shared: Array, into_shared: bool, barrier: Array | None, blocks: Array | None,
        mask: Array | None, step: int,
    ) -> Iterator[tuple[BulkCopy, int]]:  # fmt: skip
        """Yield one `BulkCopy` for each active thread and each block that the copy accesses."""
        active = self.spread(self.live if mask is None else mask)
        places = self._split(shared)
        barriers = None if barrier is None else self._split(barrier)
        groups, nothing = self._bulk_group.reshape(-1), np.zeros(0, np.int64)
        for lane in np.flatnonzero(active).tolist():
            offset, row = (int(x[lane]) for x in places)
            there, there_row = (-1, row) if barriers is None else (int(x[lane]) for x in barriers)
            copy = BulkCopy(lane, nothing, nothing, into_shared, -1, int(groups[lane]), step)
            if barriers is not None and not self.is_shared_memory(copy, there, _BARRIER_BYTES):
                continue
            for target in [row] if blocks is None else self._named_rows(copy, blocks):
                if self._may_target(copy, target, there_row if blocks is None else target):
                    end = -1 if barriers is None else there + target * self.shared_stride
                    yield replace(copy, barrier=end, row=target), offset

    def _split(self, address: Array) -> tuple[Array, Array]:
        """Split addresses of shared memory, one for each lane."""
        offsets, rows = self.shared_rows(address)
        kept = np.minimum(offsets, np.uint64(1 << 40)).astype(np.int64)
        return self.spread(kept).reshape(-1), self.spread(rows).reshape(-1)

    def _named_rows(self, copy: BulkCopy, blocks: Array) -> list[int]:
        """Return the blocks of the cluster that a thread's bit mask names, by number in the batch.

        Bits that stand for no block are reported as an error.
        """
        bits = int(self.spread(blocks).reshape(-1)[copy.lane]) & 0xFFFF
        if bits >> self.cluster_size:
            self.blame(copy, "no-such-block", f"copies to the blocks of mask 0x{bits:x} of a "
                       f"cluster of {self.cluster_size}")  # fmt: skip
        rows = self.rows_of_cluster(copy.lane // self.width)
        return [row for rank, row in enumerate(rows) if bits >> rank & 1]

    def _may_target(self, copy: BulkCopy, row: int, barrier_row: int) -> bool:
        """Tell whether a copy may access the shared memory of a block; report an error if not."""
        own = copy.lane // self.width
        if not copy.into_shared and row != own:
            self.blame(copy, "other-block", "reads shared memory of block "
                       f"{show_index(self.block_index(row))}")  # fmt: skip
            return False
        if barrier_row != row:
            there = show_index(self.block_index(barrier_row))
            self.blame(copy, "other-block", "copies into a block's shared memory, but its "
                       f"barrier object is in block {there}")  # fmt: skip
            return False
        if row != own and not self.live[row].any():
            self.blame(copy, "ended-block", "writes shared memory of block "
                       f"{show_index(self.block_index(row))}, which has ended")  # fmt: skip
            return False
        return True

    def take_copy(self, copy: BulkCopy) -> None:
        """Register a copy for later delivery, unless its access to global memory is an error."""
        if self._may_reach(copy):
            self._bulk.append(copy)
            if self.thread_races is not None:
                strong = copy.given is not None and copy.combine is not None
                self.thread_races.access_by(
                    copy.lane, copy.near, copy.step, write=copy.into_shared, strong=strong
                )
                if copy.inner and copy.given is None:
                    self.thread_races.access_by(copy.lane, copy.far, copy.step, write=False)

    def blame(self, copy: BulkCopy, rule: str, message: str, check: str = "mem") -> None:
        """Report an error of a copy."""
        said = f"{message}, by {self.who(copy.lane)}"
        self.report_lanes(check, rule, np.array([copy.lane]), copy.step, lambda _: said)

    def is_shared_memory(self, copy: BulkCopy, near: int, size: int) -> bool:
        """Tell whether bytes lie in a block's shared memory; report an error if they do not."""
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
        """Tell whether a copy may access its bytes of global memory; report an error if not.

        Reading bytes that were never written is reported too, but permitted.
        """
        if copy.inner:
            return True
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

    def _deliver_inner(self, copy: BulkCopy) -> None:
        """Deliver bytes of shared memory, or a stored value, to a block of the same cluster."""
        near = copy.near
        if self.check_init and copy.given is None:
            self._check_given(copy, copy.far)
        given = self.shared[copy.far] if copy.given is None else copy.given
        if copy.combine is not None:
            if self.check_init:
                self._check_given(copy, near)
            kind = DTYPES[copy.combine.type_name]
            old, value = self.shared[near].view(kind), given.view(kind)
            given = copy.combine.combine(old, value, value).view(np.uint8)
        self.shared[near] = given
        if self.check_init:
            self.shared_written[near] = 1

    def _check_given(self, copy: BulkCopy, places: Array) -> None:
        """Report bytes of shared memory that a copy reads, but that were never written."""
        missing = np.flatnonzero(self.shared_written[places] == 0)
        if missing.size:
            where = self._name_private(int(places[missing[0]]), "shared", 1)
            self.blame(copy, "never-written", f"reads {where}, which nobody wrote", "init")

    def _deliver_bulk(self, copy: BulkCopy) -> None:
        if copy.inner:
            self._deliver_inner(copy)
            return
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
        self.launch.arena.touch(far.astype(np.uint64), 1)
        if self.check_init:
            self._check_given(copy, near)
            self.launch.arena.shadow[far] = WRITTEN
        given = self.shared[near]
        if copy.combine is not None:
            kind = DTYPES[copy.combine.type_name]
            old, value = data[far].view(kind), given.view(kind)
            with np.errstate(all="ignore"):
                given = copy.combine.combine(old, value, value).view(np.uint8)
        data[far] = given

    def _finish_tensor(self, copy: BulkCopy, tensor: TensorMap, there: Array) -> None:
        """Complete the elements that a copy of a box of a tensor put into shared memory.

        Elements outside of the tensor get the fill value of the tensor map. Subnormals are flushed
        if the map asks for it.
        """
        outside = copy.near[~there].reshape(-1, tensor.item)
        self.shared[outside] = np.frombuffer(tensor.filling, np.uint8)
        rows = copy.near[there].reshape(-1, tensor.item)
        self.shared[rows] = tensor.as_loaded(self.shared[rows])

    def deliver_for(self, waited: Array) -> None:
        """Deliver the copies that signal the `waited` barrier objects."""
        super().deliver_for(waited)
        if not self._bulk:
            return
        wanted = set(waited.tolist())
        due = [c for c in self._bulk if c.barrier in wanted]
        self._bulk = [c for c in self._bulk if c.barrier not in wanted]
        for barrier in dict.fromkeys(c.barrier for c in due):
            self._come([c for c in due if c.barrier == barrier], barrier)

    def _come(self, copies: list[BulkCopy], barrier: int) -> None:
        """Deliver copies, and count their bytes at the barrier object that they signal."""
        come = np.zeros(self.full.size, np.int64)
        address = np.zeros(self.full.size, np.uint64)
        for copy in copies:
            self._deliver_bulk(copy)
            come[copy.lane] -= copy.size
            address[copy.lane] = self.address_of(barrier, copy.lane // self.width)
        shape = self.full.shape
        senders = np.zeros(self.full.size, bool)
        senders[[copy.lane for copy in copies]] = True
        self.arrive_mbarrier(
            "shared", _COME, address.reshape(shape), np.zeros((1, 1), np.uint64),
            come.reshape(shape), senders.reshape(shape), copies[0].step,
        )  # fmt: skip

    def leave_copies(self, row: int) -> None:
        """Drop the pending copies by other blocks into the memory of a block that has ended.

        Each of these copies is reported as an error.
        """
        left = []
        for copy in self._bulk:
            if not copy.into_shared or copy.row != row or copy.lane // self.width == row:
                left.append(copy)
                continue
            block = show_index(self.block_index(row))
            self.blame(copy, "ended-block", f"writes shared memory of block {block}, which ends "
                       "before the copy arrives")  # fmt: skip
        self._bulk = left

    def commit_bulk(self, mask: Array | None) -> None:
        """Close each thread's current group of copies; later copies belong to a new group."""
        self._bulk_group = self._bulk_group + self.spread(self.full if mask is None else mask)

    def wait_bulk(self, most: int, mask: Array | None) -> None:
        """Deliver each thread's copies in bulk groups, except those of the `most` latest groups."""
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
    """Return the atomic operation with which a bulk copy combines new bytes with old ones.

    The result is None if bulk copies do not support this operation for this type.
    """
    known = combiner(operation, type_name) is not None
    known &= operation == "add" or "f" not in type_name
    return AtomicForm(operation, type_name) if known else None

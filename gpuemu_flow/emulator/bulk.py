"""Copies of many bytes that one thread starts: cp.async.bulk, between global and shared memory.

The bytes arrive only when a thread waits for the barrier object or the group, so that a missing
wait shows as a read of the old content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.emulator.atomics import AtomicForm, combiner
from gpuemu_flow.emulator.errors import UnsupportedError, unsupported
from gpuemu_flow.emulator.findings import show_index
from gpuemu_flow.emulator.mbarriers import Mbarriers
from gpuemu_flow.emulator.memory import GLOBAL_BASE, UNALLOCATED, UNINITIALISED, WRITTEN
from gpuemu_flow.emulator.tensor_maps import (
    FIELDS,
    MAP_ALIGNMENT,
    MAP_BYTES,
    TensorMap,
    read_map,
)
from gpuemu_flow.emulator.types import DTYPES, WARP, Array
from gpuemu_flow.emulator.warps import MANY

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
        super().begin(block_ids)
        self._bulk: list[BulkCopy] = []
        self._bulk_group: Array = np.zeros(self.full.shape, np.int64)

    def start_bulk(
        self, shared: Array, other: Array, size: Array, barrier: Array | None,
        into_shared: bool, combine: AtomicForm | None, blocks: Array | None,
        mask: Array | None, step: int,
    ) -> None:  # fmt: skip
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
        offsets, rows = self.shared_rows(address)
        kept = np.minimum(offsets, np.uint64(1 << 40)).astype(np.int64)
        return self.spread(kept).reshape(-1), self.spread(rows).reshape(-1)

    def _named_rows(self, copy: BulkCopy, blocks: Array) -> list[int]:
        """Return the blocks of the cluster that a thread's bit mask names, by number in the batch.
        Bits that stand for no block are reported as an error."""
        bits = int(self.spread(blocks).reshape(-1)[copy.lane]) & 0xFFFF
        if bits >> self.cluster_size:
            self.blame(copy, "no-such-block", f"copies to the blocks of mask 0x{bits:x} of a "
                       f"cluster of {self.cluster_size}")  # fmt: skip
        rows = self.rows_of_cluster(copy.lane // self.width)
        return [row for rank, row in enumerate(rows) if bits >> rank & 1]

    def _may_target(self, copy: BulkCopy, row: int, barrier_row: int) -> bool:
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
        Reading bytes that were never written is reported too, but permitted."""
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
        """Complete the elements that a copy of a box of a tensor put into shared memory. Elements
        outside of the tensor get the fill value of the tensor map. Subnormals are flushed if the
        map asks for it."""
        outside = copy.near[~there].reshape(-1, tensor.item)
        self.shared[outside] = np.frombuffer(tensor.filling, np.uint8)
        rows = copy.near[there].reshape(-1, tensor.item)
        self.shared[rows] = tensor.as_loaded(self.shared[rows])

    def deliver_for(self, waited: Array) -> None:
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
        """Drop the pending copies by other blocks into the memory of a block that has ended. Each
        of these copies is reported as an error."""
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
    """Return the atomic operation with which a bulk copy combines new bytes with old ones. The
    result is None if bulk copies do not support this operation for this type."""
    known = combiner(operation, type_name) is not None
    known &= operation == "add" or "f" not in type_name
    return AtomicForm(operation, type_name) if known else None


# Instructions with tensor maps (TMA): copies of boxes of a tensor, and changes of the maps.


SHARED_ALIGNMENT = 128
"""Alignment in bytes that a box needs in shared memory."""


class TensorCopies(Bulk):
    """Executes ``cp.async.bulk.tensor`` and ``tensormap`` for one batch of blocks."""

    def start_tensor_copy(
        self, address: Array, corner: Sequence[Array], shared: Array, barrier: Array | None,
        into_shared: bool, operation: str, blocks: Array | None, mask: Array | None, step: int,
    ) -> None:  # fmt: skip
        """Execute ``cp.async.bulk.tensor``: start one copy of a box for each active lane. Raises
        UnsupportedError: The map has a property that the emulator does not support."""
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
        """Return the tensor copy `copy`, with the byte offsets of its box filled in. `near` is the
        offset of the box in shared memory, and `corner` holds its coordinates in the tensor. If
        `operation` names a reduction, the reduction is filled in, too."""
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
        where = self.spread(address).reshape(-1)
        nowhere = np.zeros((1, 1), np.uint64)
        for copy, _ in self.new_copies(nowhere, True, None, None, mask, step):
            self._usable_map(copy, int(where[copy.lane]), dimensions)

    def replace_field(
        self, space: str, field: str, number: int, address: Array, value: Array,
        mask: Array | None, step: int,
    ) -> None:  # fmt: skip
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

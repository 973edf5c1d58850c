"""Loads and stores of shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from gpuemu_flow.emulator.bytes import GlobalMemory
from gpuemu_flow.emulator.clusters import OFFSET, RANK_AT
from gpuemu_flow.emulator.findings import WRAPPED, show_index
from gpuemu_flow.emulator.global_races import may_conflict, report_conflicts
from gpuemu_flow.emulator.memory import (
    LOCAL_BASE,
    SHARED_BASE,
    WINDOW,
)
from gpuemu_flow.emulator.types import ActiveLanes, Array

# Accesses to shared memory of other blocks of a cluster: their addresses and permissions.


_OFFSET = np.uint64(OFFSET)
_RANK_AT = np.uint64(RANK_AT)


class ClusterMemory(GlobalMemory):
    """Translates addresses of shared memory within the clusters of one batch."""

    def begin(self, block_ids: Array) -> None:
        super().begin(block_ids)
        size = self.cluster_size
        order = np.argsort(self.ranks.reshape(-1, size), axis=1)
        self._row_of_rank: Array = order + np.arange(0, self.count, size)[:, None]
        self._cluster_of_row: Array = np.arange(self.count)[:, None] // size

    def shared_rows(self, address: Array) -> tuple[Array, Array]:
        """Split addresses of shared memory into offsets and blocks."""
        chosen = (address >> _RANK_AT).astype(np.int64)
        own = np.arange(self.count)[:, None]
        named = (chosen > 0) & (chosen <= self.cluster_size)
        rank = np.where(named, chosen - 1, 0)
        row = np.where(named, self._row_of_rank[self._cluster_of_row, rank], own)
        return np.where(named, address & _OFFSET, address), row

    def shared_places(self, address: Array) -> Array:
        """Convert addresses of shared memory to offsets in the shared memory of the batch."""
        if self.cluster_size == 1:
            return address + self.shared_base
        offsets, rows = self.shared_rows(address)
        return offsets + rows.astype(np.uint64) * np.uint64(self.shared_stride)

    def address_of(self, place: int, row: int) -> int:
        """Return the address by which a block accesses a place in the batch's shared memory."""
        there, offset = divmod(place, max(1, self.shared_stride))
        return offset if there == row else offset | (int(self.ranks[there]) + 1) << RANK_AT

    def rows_of_cluster(self, row: int) -> list[int]:
        """Return the blocks in the cluster of block `row`, by rank, as numbers within the batch."""
        found: list[int] = self._row_of_rank[row // self.cluster_size].tolist()
        return found

    def refused_rows(
        self, rows: Array, mask: Array | None, step: int, write: bool
    ) -> Array | None:  # fmt: skip
        """Mark and report lanes that may not access the shared memory of other blocks."""
        segments = self.launch.program.steps[step].opcode.segments
        spaces = [w for w in segments if w.partition("::")[0] == "shared"]
        own = np.arange(self.count)[:, None]
        active = self.spread(self.live if mask is None else mask)
        other = active & (self.spread(rows) != own)
        refused = np.zeros(self.full.shape, bool)
        verb = "writes" if write else "reads"
        if spaces and "shared::cluster" not in spaces:
            refused |= other
            self._report_rows(
                refused, rows, step, "other-block",
                f"{verb} shared memory of block {{}}, which only .shared::cluster may access",
            )  # fmt: skip
        gone = np.asarray(~self.live.any(axis=1))
        ended = other & ~refused & gone[self.spread(rows)]
        self._report_rows(
            ended, rows, step, "ended-block",
            f"{verb} shared memory of block {{}}, which has ended",
        )  # fmt: skip
        refused |= ended
        return refused if refused.any() else None

    def _report_rows(self, lanes: Array, rows: Array, step: int, rule: str, text: str) -> None:
        numbers = np.flatnonzero(lanes)
        if not numbers.size:
            return
        row = int(self.spread(rows).reshape(-1)[numbers[0]])
        message = text.format(show_index(self.block_index(row)))
        self.report_lanes(
            "mem", rule, numbers, step, lambda _: f"{message}, by {self.who(int(numbers[0]))}"
        )

    def map_shared(
        self, generic: bool, address: Array, rank: Array, mask: Array | None, step: int
    ) -> Array:
        """Compute ``mapa``: the address of the same offset in another block's shared memory. `rank`
        is the other block's rank in the cluster. `generic` is True if addresses are generic, False
        if they belong to the state space ``.shared``."""
        active = self.spread(self.live if mask is None else mask)
        lost = active & (self.spread(rank) >= np.uint32(self.cluster_size))
        if lost.any():
            wanted = int(self.spread(rank)[lost][0])
            self.report_mask(
                "mem", "no-such-block", lost, step,
                f"maps an address to block {wanted} of a cluster of {self.cluster_size}",
            )  # fmt: skip
        base = np.uint64(SHARED_BASE if generic else 0)
        offsets = address - base
        foreign = active & (self.spread(offsets) >= np.uint64(WINDOW))
        if foreign.any():
            self.report_mask(
                "mem", "no-shared-address", foreign, step,
                "maps an address that is none of shared memory",
            )  # fmt: skip
        if self.cluster_size == 1:
            return address
        return base + (offsets & _OFFSET | (rank.astype(np.uint64) + np.uint64(1)) << _RANK_AT)

    def rank_of_shared(self, generic: bool, address: Array) -> Array:
        """Compute ``getctarank``: the rank of the block whose shared memory holds an address.
        `generic` is True if addresses are generic, False if they belong to the state space
        ``.shared``."""
        _, rows = self.shared_rows(address - np.uint64(SHARED_BASE if generic else 0))
        return self.ranks[rows].astype(np.uint32)

    def is_own_shared(self, address: Array) -> Array:
        """Compute ``isspacep.shared::cta``: mark addresses in the own block's shared memory."""
        offsets = address - np.uint64(SHARED_BASE)
        inside = offsets < np.uint64(WINDOW)
        if self.cluster_size == 1:
            return inside
        return inside & (self.shared_rows(offsets)[1] == np.arange(self.count)[:, None])


class SharedMemory(ClusterMemory):
    """Shared memory of the blocks of one batch."""

    def _shared_lanes(
        self, address: Array, mask: Array | None, size: int, step: int, write: bool, whole: bool
    ) -> tuple[ActiveLanes, Array | None]:
        base, refused = self.shared_base, None
        if self.cluster_size > 1:
            address, rows = self.shared_rows(address)
            base = rows.astype(np.uint64) * np.uint64(self.shared_stride)
            refused = self.refused_rows(rows, mask, step, write)
        near = self._lanes(address, mask, whole=whole)
        good: Array | None = None
        if near.offsets.size:
            self._check_alignment(near, size, step, "shared")
            good = self._inside_shared(near, size)
            if good is not None:
                bad = ~good
                numbers = self._numbers(near, bad)
                offset = int(near.offsets[np.flatnonzero(bad)[0]])
                verb = "writes" if write else "reads"
                self.report_lanes(
                    "mem", "out-of-bounds", numbers, step,
                    lambda _: f"{verb} {size} bytes of shared memory at "
                    f"{self.describe_shared(offset, self._element(step))}, "
                    f"by {self.who(int(numbers[0]))}",
                )  # fmt: skip
                address = np.where(self._back(good, near), address, np.uint64(0))
        far = self._lanes(address + base, mask, whole=True)
        if good is not None and good.size != far.offsets.size:
            good = self.active(good.reshape(near.shape), far.mask)
        if refused is not None:
            may = self.active(~refused, far.mask)
            good = may if good is None else good & may
        return far, good

    def _back(self, chosen: Array, lanes: ActiveLanes) -> Array:
        """Expand one truth value per active lane to a mask of all lanes; other lanes are False."""
        if lanes.mask is None:
            return chosen.reshape(lanes.shape)
        out = np.zeros(self.full.shape, bool)
        out[lanes.mask] = chosen
        return out

    def _inside_shared(self, lanes: ActiveLanes, size: int) -> Array | None:
        offsets, limit = lanes.offsets, self.shared_limit
        valid = self.shared_valid
        high = int(offsets.max())
        if high + size <= limit:
            if valid is None:
                return None
            places = offsets.astype(np.int64)
            good: Array = valid[places] & valid[places + size - 1]
            return None if good.all() else good
        room = max(0, limit - size)
        good = (offsets <= np.uint64(room)) & (limit >= size)
        if valid is not None:
            places = np.where(good, offsets, np.uint64(0)).astype(np.int64)
            good &= valid[places] & valid[places + size - 1]
        return good

    def load_shared(
        self, address: Array, width: int, vector: int, mask: Array | None, step: int, strong: bool
    ) -> list[Array]:
        """Load from shared memory; return one array for each of a lane's `vector` elements. Each
        element has `width` bytes. Only the lanes in `mask` load, or all lanes if it is None.
        `strong` is True if the access is volatile, relaxed or stronger."""
        size = width * vector
        races = self.thread_races
        if address.shape[1] == 1 and mask is None and self.cluster_size == 1:
            lanes, good = self._shared_rows(address, size, step)
        else:
            lanes, good = self._shared_lanes(address, mask, size, step, False, whole=False)
        if not lanes.offsets.size:
            return [np.zeros((1, 1), f"u{width}")] * vector
        if self.check_init:
            self._check_written(self.shared_written, lanes, good, width, vector, step, "shared")
        if races is not None:
            races.access(lanes, good, size, step, write=False, strong=strong)
        return self._take(self.shared, lanes, width, vector, good)

    def _shared_rows(
        self, address: Array, size: int, step: int
    ) -> tuple[ActiveLanes, Array | None]:
        """Check a load that all threads of a block make at one address. Return one offset per block
        into the batch's shared memory, and a mask of the blocks whose address is valid; None in
        place of the mask if all addresses are valid."""
        rows = np.broadcast_to(address, (self.count, 1))
        near = ActiveLanes(rows.reshape(-1), None, rows.shape)
        self._check_alignment(near, size, step, "shared")
        good = self._inside_shared(near, size)
        if good is not None:
            self._shared_lanes(address, None, size, step, False, whole=True)
            rows = np.where(good.reshape(rows.shape), rows, np.uint64(0))
        far = rows + self.shared_base
        return ActiveLanes(far.reshape(-1), None, far.shape), good

    def store_shared(
        self, address: Array, values: Sequence[Array], width: int, mask: Array | None, step: int,
        strong: bool,
    ) -> None:  # fmt: skip
        """Store a vector of each lane to shared memory. The n-th array in `values` holds the n-th
        element of every lane's vector. Each element has `width` bytes. Only the lanes in `mask`
        store, or all lanes if it is None. `strong` is True if the access is volatile, relaxed or
        stronger."""
        size = width * len(values)
        lanes, good = self._shared_lanes(self.spread(address), mask, size, step, True, whole=True)
        if not lanes.offsets.size:
            return
        if self.thread_races is not None:
            same = self._unchanged(self.shared, lanes, values, width, good)
            kept, changed = same, ~same
            if good is not None:
                kept, changed = kept & good, changed & good
            races = partial(self.thread_races.access, lanes, size=size, step=step, strong=strong)
            races(good=changed, write=True)
            if kept.any():
                races(good=kept, write=False, kept=True)
        self._put(self.shared, lanes, values, width, good)
        # Triton's own code exchanges values here, which differ by their rounding at most.
        replicates = self.launch.program.replicates
        if self.thread_races is not None and not replicates and may_conflict(lanes.offsets):
            lost = ~self._unchanged(self.shared, lanes, values, width, good)
            report_conflicts(
                self, lanes, [self.active(v, lanes.mask) for v in values],
                lost if good is None else lost & good, step, strong=strong, within_blocks=False,
                describe=lambda at: self.describe_batch_offset(at, self._element(step)),
            )  # fmt: skip
        if self.check_init:
            self._mark(self.shared_written, lanes, size, good, 1)

    def _check_written(
        self, written: Array, lanes: ActiveLanes, good: Array | None, width: int, vector: int,
        step: int, space: str,
    ) -> None:  # fmt: skip
        places = lanes.offsets.astype(np.int64)
        for k in range(vector):
            missing = written[places + k * width] == 0
            if missing.any():
                missing = missing if good is None else missing & good
                numbers = self._numbers(lanes, missing)
                if not len(numbers):
                    continue
                place = int(places[np.flatnonzero(missing)[0]]) + k * width
                where = self._name_private(place, space, width)
                self.report_lanes(
                    "init", "never-written", numbers, step,
                    partial(self._unwritten, where, int(numbers[0])),
                )  # fmt: skip

    def _unwritten(self, where: str, number: int, _: int) -> str:
        return f"reads {where}, which nobody wrote, by {self.who(number)}"

    def _name_private(self, place: int, space: str, width: int) -> str:
        if space == "shared":
            return self.describe_shared(place % max(1, self.shared_stride), width)
        offset = place % max(1, self.local_stride)
        for region in self.launch.program.local:
            if region.offset <= offset < region.offset + region.size:
                return f"{region.name} + {offset - region.offset} bytes (local)"
        return f"local memory at {offset}"


# Loads and stores of local memory, and loads and stores through generic addresses.


class Accesses(SharedMemory):
    """Memory accesses of one batch of blocks, in all state spaces."""

    def _local_lanes(
        self, address: Array, mask: Array | None, size: int, step: int, verb: str
    ) -> tuple[ActiveLanes, Array | None]:
        near = self._lanes(self.spread(address), mask, whole=True)
        good: Array | None = None
        limit = self.launch.program.local_bytes
        if near.offsets.size:
            self._check_alignment(near, size, step, "local")
            if int(near.offsets.max()) + size > limit:
                good = (near.offsets <= np.uint64(max(0, limit - size))) & (limit >= size)
                numbers = self._numbers(near, ~good)
                offset = int(near.offsets[np.flatnonzero(~good)[0]])
                self.report_lanes(
                    "mem", "out-of-bounds", numbers, step,
                    lambda _: f"{verb} {size} bytes of local memory at {offset:,} of {limit:,}, "
                    f"by {self.who(int(numbers[0]))}",
                )  # fmt: skip
                address = np.where(self._back(good, near), address, np.uint64(0))
        return self._lanes(address + self.local_base, mask, whole=True), good

    def load_local(
        self, address: Array, width: int, vector: int, mask: Array | None, step: int, strong: bool
    ) -> list[Array]:
        lanes, good = self._local_lanes(address, mask, width * vector, step, "reads")
        if not lanes.offsets.size:
            return [np.zeros((1, 1), f"u{width}")] * vector
        if self.check_init:
            self._check_written(self.local_written, lanes, good, width, vector, step, "local")
        return self._take(self.local, lanes, width, vector, good)

    def store_local(
        self, address: Array, values: Sequence[Array], width: int, mask: Array | None, step: int,
        strong: bool,
    ) -> None:  # fmt: skip
        size = width * len(values)
        lanes, good = self._local_lanes(address, mask, size, step, "writes")
        if not lanes.offsets.size:
            return
        self._put(self.local, lanes, values, width, good)
        if self.check_init:
            self._mark(self.local_written, lanes, size, good, 1)

    def windows(self, address: Array, mask: Array | None) -> list[tuple[str, int, Array | None]]:
        """List the state spaces in which the generic addresses of lanes lie."""
        found: list[tuple[str, int, Array | None]] = []
        rest = mask
        for space, base in (("shared", SHARED_BASE), ("local", LOCAL_BASE)):
            inside = (address >= np.uint64(base)) & (address < np.uint64(base + WINDOW))
            if not inside.any():
                continue
            if inside.all():
                return [(space, base, mask)]
            chosen = self.spread(inside if mask is None else inside & mask)
            rest = self.spread(~inside if rest is None else rest & ~inside)
            if chosen.any():
                found.append((space, base, chosen))
        if rest is None or rest.any():
            found.append(("global", 0, rest))
        return found

    def load_generic(
        self, address: Array, width: int, vector: int, mask: Array | None, step: int, strong: bool
    ) -> list[Array]:
        out: list[Array] | None = None
        for space, base, chosen in self.windows(address, mask):
            load = getattr(self, f"load_{space}")
            got = load(address - np.uint64(base), width, vector, chosen, step, strong)
            if out is None:
                out = got
            elif chosen is not None:
                out = [np.where(chosen, g, o) for g, o in zip(got, out, strict=True)]
        return out or [np.zeros((1, 1), f"u{width}")] * vector

    def store_generic(
        self, address: Array, values: Sequence[Array], width: int, mask: Array | None, step: int,
        strong: bool,
    ) -> None:  # fmt: skip
        for space, base, chosen in self.windows(address, mask):
            store = getattr(self, f"store_{space}")
            store(address - np.uint64(base), values, width, chosen, step, strong)

    def report_trap(self, mask: Array, step: int) -> None:
        numbers = np.flatnonzero(mask)
        row, lane = divmod(int(numbers[0]), self.width)
        where = f"thread {show_index(self.thread_index(lane))} (block " + (
            f"{show_index(self.block_index(row))})"
        )
        self.report_lanes("trap", "trap", numbers, step, lambda _: f"trap executed by {where}")

    def check_defined(self, undefined: Array, mask: Array | None, step: int) -> None:
        """Report active lanes that use a register that was never written."""
        if not undefined.any():
            return
        bad = self.spread(undefined) & self.spread(self.live if mask is None else mask)
        numbers = np.flatnonzero(bad)
        if numbers.size:
            note = self.launch.program.steps[step].note
            wrapped = WRAPPED in note
            self.report_lanes(
                "mem" if wrapped else "init", "narrow-offset" if wrapped else "unwritten-register",
                numbers, step,
                lambda _: f"{note}, by {self.who(int(numbers[0]))}",
            )  # fmt: skip

    def finish(self) -> None:
        """End a batch: examine the remaining accesses to shared memory for races."""
        if self.thread_races is not None:
            self.thread_races.end_interval()

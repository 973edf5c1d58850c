"""The bytes of one batch's memory, and how the lanes of an access read and write them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuemu_flow.emulator.blocks import is_cluster_barrier
from gpuemu_flow.emulator.cluster_races import ClusterRaces
from gpuemu_flow.emulator.findings import plain_variable
from gpuemu_flow.emulator.global_races import GlobalRaces, may_conflict, report_conflicts
from gpuemu_flow.emulator.memory import (
    GLOBAL_BASE,
    PATTERN,
    READ_ONLY,
    UNALLOCATED,
    UNINITIALISED,
    WRITTEN,
)
from gpuemu_flow.emulator.races import LoggedRaces
from gpuemu_flow.emulator.state import KernelLaunch, State
from gpuemu_flow.emulator.types import SIZES, ActiveLanes, Array


class Bytes(State):
    """Memory of one batch, and the accesses of lanes to its bytes."""

    def __init__(self, launch: KernelLaunch) -> None:
        super().__init__(launch)
        self.check_init = "init" in launch.checks
        self.check_race = "race" in launch.checks
        program = launch.program
        size = max(program.shared_bytes, program.dynamic_offset + launch.dynamic_shared)
        if program.dynamic_offset < 0 or not launch.dynamic_shared:
            size = program.shared_bytes
        self.shared_limit = size
        self.shared_stride = -(-size // 128) * 128
        self.local_stride = -(-program.local_bytes // 16) * 16
        self.shared: Array = np.zeros(0, np.uint8)
        self.shared_written: Array = np.zeros(0, np.uint8)
        self.shared_valid: Array | None = None
        self.local: Array = np.zeros(0, np.uint8)
        self.local_written: Array = np.zeros(0, np.uint8)
        self.shared_base: Array = np.zeros((1, 1), np.uint64)
        self.local_base: Array = np.zeros((1, 1), np.uint64)
        self.cluster_races: ClusterRaces | None = None
        self._clustered = self.cluster_size > 1 or any(map(is_cluster_barrier, program.steps))
        self.global_races: GlobalRaces | None = None
        self._parameters: dict[tuple[int, str], Array] = {}
        if len(program.shared) + (launch.dynamic_shared > 0) > 1:
            self.shared_valid = np.zeros(self.shared_stride, bool)
            for region in program.shared:
                self.shared_valid[region.offset : region.offset + region.size] = True
            if launch.dynamic_shared:
                start = program.dynamic_offset
                self.shared_valid[start : start + launch.dynamic_shared] = True

    def describe_shared(self, offset: int, width: int = 1) -> str:
        """Describe an offset in a block's shared memory as an element of a variable. `width` is the
        size of an element in bytes."""
        program = self.launch.program
        regions = [(r.name, r.offset, r.size) for r in program.shared]
        if self.launch.dynamic_shared:
            regions.append(
                ("dynamic shared memory", program.dynamic_offset, self.launch.dynamic_shared)
            )
        for name, start, size in regions:
            if start <= offset < start + size:
                index, rest = divmod(offset - start, width)
                more = f" + {rest} bytes" if rest else ""
                return f"{plain_variable(name)}[{index:,}]{more}"
        before = [r for r in regions if r[1] + r[2] <= offset]
        if not before:
            return f"offset {offset:,}, where the kernel has no shared memory"
        name, start, size = max(before, key=lambda r: r[1])
        past = offset - start - size
        return f"{past:,} bytes past the end of {plain_variable(name)} ({size:,} bytes)"

    def describe_batch_offset(self, offset: int, width: int) -> str:
        """Describe an offset in the batch's shared memory; see `describe_shared`."""
        return self.describe_shared(offset % max(1, self.shared_stride), width)

    def begin(self, block_ids: Array) -> None:
        super().begin(block_ids)
        if self.launch.cases:
            self._parameters = {}  # other rows belong to other cases
        rows, lanes = self.count, self.count * self.width
        self.shared = np.full(rows * self.shared_stride + 64, PATTERN, np.uint8)
        self.local = np.full(lanes * self.local_stride + 64, PATTERN, np.uint8)
        self.shared_base = (np.arange(rows, dtype=np.uint64) * np.uint64(self.shared_stride))[
            :, None
        ]
        self.local_base = np.arange(lanes, dtype=np.uint64).reshape(self.full.shape) * np.uint64(
            self.local_stride
        )
        if self.check_init:
            self.shared_written = np.zeros(rows * self.shared_stride + 64, np.uint8)
            self.local_written = np.zeros(lanes * self.local_stride + 64, np.uint8)
        if self.check_race:
            size = rows * self.shared_stride
            if self._clustered:
                self.cluster_races = ClusterRaces(self, size, self.describe_batch_offset)
            self.thread_races = self.cluster_races or LoggedRaces(
                self, size, self.describe_batch_offset
            )

    def parameter(self, offset: int, code: str) -> Array:
        """Read the value of numpy type `code` at an offset in the parameter block."""
        key = (offset, code)
        value = self._parameters.get(key)
        if value is None:
            cases = self.launch.cases
            blocks = [c.parameters for c in cases] or [self.launch.parameters]
            value = np.concatenate([np.frombuffer(b, code, 1, offset) for b in blocks])
            bits = value.view(f"u{value.itemsize}")
            value = value[:1].reshape(1, 1) if (bits == bits[0]).all() else self._by_case(value)
            self._parameters[key] = value
        return value

    def _by_case(self, values: Array) -> Array:
        found: Array = values[self.block_ids // self.launch.blocks][:, None]
        return found

    def symbol(self, number: int, displacement: int) -> Array:
        """Return the address of module variable number `number`, plus a displacement in bytes."""
        places = [c.symbols[number] for c in self.launch.cases]
        return self._moved(places, self.launch.symbols[number], displacement)

    def parameter_address(self, offset: int) -> Array:
        """Return the generic address of an offset in the parameter block."""
        places = [c.parameter_address for c in self.launch.cases]
        return self._moved(places, self.launch.parameter_address, offset)

    def generic_parameter(self, address: Array) -> Array:
        """Convert addresses in the parameter space to generic addresses. Addresses below 2^32 are
        offsets in the parameter block; all others are generic already."""
        offsets = address >> np.uint64(32) == 0
        return np.where(offsets, address + self.parameter_address(0), address)

    def _moved(self, places: list[int], only: int, displacement: int) -> Array:
        """Return, for each block of the batch, an address plus a displacement in bytes. The address
        is the item of `places` for the block's case. In a launch without cases, `places` is empty,
        and the result is a single address: `only` plus the displacement."""
        moved = displacement & 0xFFFFFFFFFFFFFFFF
        if places:
            return self._by_case(np.array(places, np.uint64)) + np.uint64(moved)
        return np.full((1, 1), (only + moved) & 0xFFFFFFFFFFFFFFFF, np.uint64)

    def _lanes(self, offsets: Array, mask: Array | None, *, whole: bool) -> ActiveLanes:
        if mask is None or (offsets.size == 1 and not whole):
            if whole:
                offsets = self.spread(offsets)
            return ActiveLanes(offsets.reshape(-1), None, offsets.shape)
        if mask.shape != self.full.shape:
            mask = self.spread(mask)
        return ActiveLanes(self.spread(offsets)[mask], mask, ())

    def _numbers(self, lanes: ActiveLanes, chosen: Array) -> Array:
        positions = np.flatnonzero(chosen)
        if lanes.mask is not None:
            return np.flatnonzero(lanes.mask)[positions]
        if lanes.shape == self.full.shape:
            return positions
        grid = np.broadcast_to(np.arange(self.full.size).reshape(self.full.shape), self.full.shape)
        step_r = self.full.shape[0] // lanes.shape[0]
        step_c = self.full.shape[1] // lanes.shape[1]
        return grid[::step_r, ::step_c].reshape(-1)[positions]

    def _check_alignment(self, lanes: ActiveLanes, size: int, step: int, space: str) -> None:
        if size > 1 and int(np.bitwise_or.reduce(lanes.offsets)) & (size - 1):
            bad = (lanes.offsets & np.uint64(size - 1)) != 0
            numbers = self._numbers(lanes, bad)
            offset = int(lanes.offsets[np.flatnonzero(bad)[0]])
            self.report_lanes(
                "mem", "misaligned", numbers, step,
                lambda _: f"accesses {size} bytes of {space} memory at an address that is not a "
                f"multiple of {size} (offset {offset:,}), by {self.who(int(numbers[0]))}",
            )  # fmt: skip

    def _take(
        self, data: Array, lanes: ActiveLanes, width: int, vector: int, good: Array | None
    ) -> list[Array]:
        """Load `vector` elements of `width` bytes for each lane. `good` marks the active lanes that
        may access `data`; None stands for all of them. All other lanes get zeros."""
        offsets = lanes.offsets if good is None else np.where(good, lanes.offsets, np.uint64(0))
        size = width * vector
        misaligned = size > 1 and int(np.bitwise_or.reduce(offsets)) & (size - 1)
        if misaligned:
            raw = data[offsets.astype(np.int64)[:, None] + np.arange(size)]
            values = list(np.ascontiguousarray(raw).view(f"u{width}").T)
        else:
            places = (offsets >> np.uint64(size.bit_length() - 1)).astype(np.int64)
            usable = len(data) // size * size
            cells = data[:usable].view(f"u{width}")
            if vector == 1:
                values = [cells.take(places)]
            else:
                rows = cells.reshape(-1, vector).take(places, axis=0)
                values = [rows[:, k] for k in range(vector)]
        if good is not None:
            values = [np.where(good, v, v.dtype.type(0)) for v in values]
        if lanes.mask is None:
            return [v.reshape(lanes.shape) for v in values]
        out = []
        for value in values:
            spread = np.zeros(self.full.shape, value.dtype)
            spread[lanes.mask] = value
            out.append(spread)
        return out

    def _put(
        self,
        data: Array,
        lanes: ActiveLanes,
        values: Sequence[Array],
        width: int,
        good: Array | None,
    ) -> None:
        offsets = lanes.offsets if good is None else lanes.offsets[good]
        size = width * len(values)
        misaligned = size > 1 and int(np.bitwise_or.reduce(offsets, initial=np.uint64(0))) & (
            size - 1
        )
        places = offsets.astype(np.int64) if misaligned else (
            offsets >> np.uint64(width.bit_length() - 1)
        ).astype(np.int64)  # fmt: skip
        cells = data[: len(data) // width * width].view(f"u{width}")
        for k, value in enumerate(values):
            active = self.active(value, lanes.mask)
            active = active if good is None else active[good]
            if misaligned:
                raw = np.ascontiguousarray(active).view(np.uint8).reshape(-1, width)
                data[places[:, None] + np.arange(k * width, (k + 1) * width)] = raw
            else:
                cells[places + k if k else places] = active

    def active(self, value: Array, mask: Array | None) -> Array:
        spread = self.spread(value)
        return spread.reshape(-1) if mask is None else spread[mask]

    def _mark(
        self, shadow: Array, lanes: ActiveLanes, size: int, good: Array | None, value: int
    ) -> None:
        offsets = lanes.offsets if good is None else lanes.offsets[good]
        places = offsets.astype(np.int64)
        if size in (2, 4, 8) and not int(np.bitwise_or.reduce(offsets, initial=0)) & (size - 1):
            cells = shadow[: len(shadow) // size * size].view(f"u{size}")
            cells[places >> (size.bit_length() - 1)] = int.from_bytes(
                bytes([value]) * size, "little"
            )
        else:
            for k in range(size):
                shadow[places + k] = value

    def _unchanged(
        self,
        data: Array,
        lanes: ActiveLanes,
        values: Sequence[Array],
        width: int,
        good: Array | None,
    ) -> Array:
        offsets = lanes.offsets if good is None else np.where(good, lanes.offsets, np.uint64(0))
        there = self._take(
            data, ActiveLanes(offsets, None, offsets.shape), width, len(values), None
        )
        same = np.ones(offsets.size, bool)
        for old, value in zip(there, values, strict=True):
            same &= old == self.active(value, lanes.mask)
        return same

    def _element(self, step: int) -> int:
        return SIZES.get(self.launch.program.steps[step].opcode.type, 1)


# Loads and stores of global memory.


_G = np.uint64(GLOBAL_BASE)


class GlobalMemory(Bytes):
    """Loads, stores and fences of one batch of blocks in global memory."""

    def fence(self, mask: Array | None, *, within_block: bool) -> None:
        """Execute a fence, which orders the accesses of the threads that execute it. If
        `within_block` is True, only threads of the same block are sure to see this order."""
        chosen = None if mask is None else self.spread(mask)
        if self.global_races is not None and not within_block:
            self.global_races.fence(self, chosen)
        if self.thread_races is not None:
            self.thread_races.fence(chosen)

    def _check_global(self, lanes: ActiveLanes, size: int, step: int, write: bool) -> Array | None:
        """Check an access to global memory; return the mask of permitted lanes, None for all."""
        arena, offsets = self.launch.arena, lanes.offsets
        self._check_alignment(lanes, size, step, "global")
        low, high = int(offsets.min()), int(offsets.max())
        if high <= len(arena.data):
            buffer = arena.find(low, high + size)
            if buffer is not None and (buffer.writable if write else
                                       buffer.initialised or not self.check_init):  # fmt: skip
                return None
        limit = np.uint64(len(arena.data) - 64)
        places = np.minimum(offsets, limit).astype(np.int64)
        first, last = arena.shadow[places], arena.shadow[places + size - 1]
        good = (offsets < limit) & (first != UNALLOCATED) & (last != UNALLOCATED)
        if write:
            locked = good & (first == READ_ONLY)
            if locked.any():
                self._report_global(lanes, locked, size, step, "read-only", "writes")
                good &= ~locked
        elif self.check_init:
            unwritten = good & ((first == UNINITIALISED) | (last == UNINITIALISED))
            whole = arena.find(low, high + size) if unwritten.any() else None
            padding = whole is not None and arena.is_padding(whole.start, whole.size)
            if unwritten.any() and not padding:
                numbers = self._numbers(lanes, unwritten)
                at = int(offsets[np.flatnonzero(unwritten)[0]])
                self.report_lanes(
                    "init", "never-written", numbers, step,
                    lambda _: f"reads {arena.describe(at)}, which nobody wrote, "
                    f"by {self.who(int(numbers[0]))}",
                )  # fmt: skip
        if good.all():
            return None
        outside = ~good if not write else (offsets >= limit) | (first == 0) | (last == 0)
        self._report_global(
            lanes, outside, size, step, "out-of-bounds", "writes" if write else "reads"
        )
        return good

    def _report_global(
        self, lanes: ActiveLanes, bad: Array, size: int, step: int, rule: str, verb: str
    ) -> None:
        positions = np.flatnonzero(bad)
        if not positions.size:
            return
        numbers = self._numbers(lanes, bad)
        offset = int(lanes.offsets[positions[0]])
        self.report_lanes(
            "mem", rule, numbers, step,
            lambda _: f"{verb} {size} bytes at {self._describe_global(offset, rule)}, "
            f"by {self.who(int(numbers[0]))}",
        )  # fmt: skip

    def _describe_global(self, offset: int, rule: str) -> str:
        arena = self.launch.arena
        if rule == "read-only":
            return f"{arena.describe(offset)}, which is constant"
        if offset >= len(arena.data):
            address = (offset + GLOBAL_BASE) & 0xFFFFFFFFFFFFFFFF
            return f"address 0x{address:x}, which is no global memory of this launch"
        return arena.describe(offset)

    def load_global(
        self, address: Array, width: int, vector: int, mask: Array | None, step: int, strong: bool
    ) -> list[Array]:
        races = self.global_races
        lanes = self._lanes(address - _G, mask, whole=races is not None)
        if not lanes.offsets.size:
            return [np.zeros((1, 1), f"u{width}")] * vector
        good = self._check_global(lanes, width * vector, step, write=False)
        if races is not None:
            races.access(self, lanes, good, width * vector, step, write=False, strong=strong)
        return self._take(self.launch.arena.data, lanes, width, vector, good)

    def store_global(
        self, address: Array, values: Sequence[Array], width: int, mask: Array | None, step: int,
        strong: bool,
    ) -> None:  # fmt: skip
        lanes = self._lanes(address - _G, mask, whole=True)
        if not lanes.offsets.size:
            return
        size = width * len(values)
        arena = self.launch.arena
        arena.touch(lanes.offsets, size)
        good = self._check_global(lanes, size, step, write=True)
        races = self.global_races

        def unchanged() -> Array:
            return self._unchanged(arena.data, lanes, values, width, good)

        collided = races is not None and races.access(
            self, lanes, good, size, step, write=True, strong=strong, same=unchanged
        )
        self._put(arena.data, lanes, values, width, good)
        if self.check_race and (collided or may_conflict(lanes.offsets)):
            lost = ~unchanged() if good is None else ~unchanged() & good
            if races is not None and collided:
                races.collide(self, lanes, lost, step)
            report_conflicts(
                self, lanes, [self.active(v, lanes.mask) for v in values], lost, step,
                strong=strong, within_blocks=True, describe=arena.describe,
            )  # fmt: skip
        if self.check_init:
            self._mark(arena.shadow, lanes, size, good, WRITTEN)

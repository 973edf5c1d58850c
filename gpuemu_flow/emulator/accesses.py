"""Loads and stores of all spaces: bounds, alignment, initialisation, and the bytes themselves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from gpuemu_flow.emulator.findings import show_index
from gpuemu_flow.emulator.lanes import Lanes
from gpuemu_flow.emulator.memory import (
    GLOBAL_BASE,
    LOCAL_BASE,
    PATTERN,
    READ_ONLY,
    SHARED_BASE,
    UNALLOCATED,
    UNINITIALISED,
    WINDOW,
    WRITTEN,
)
from gpuemu_flow.emulator.races import GlobalRaces, SharedRaces
from gpuemu_flow.emulator.state import Launch, State
from gpuemu_flow.emulator.types import Array

_G = np.uint64(GLOBAL_BASE)


class Accesses(State):
    """Memory of one batch."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch)
        self.check_mem = "mem" in launch.checks
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
        self.shared_races: SharedRaces | None = None
        self.global_races: GlobalRaces | None = None
        self._parameters: dict[tuple[int, str], Array] = {}
        if len(program.shared) + (launch.dynamic_shared > 0) > 1:
            self.shared_valid = np.zeros(self.shared_stride, bool)
            for region in program.shared:
                self.shared_valid[region.offset : region.offset + region.size] = True
            if launch.dynamic_shared:
                start = program.dynamic_offset
                self.shared_valid[start : start + launch.dynamic_shared] = True

    def begin(self, block_ids: Array) -> None:
        """Set up memory for some blocks."""
        super().begin(block_ids)
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
        if self.check_race and self.shared_stride:
            self.shared_races = SharedRaces(self, rows * self.shared_stride)

    # Parameters and symbols

    def parameter(self, offset: int, code: str) -> Array:
        """Read a value of the parameter block."""
        key = (offset, code)
        value = self._parameters.get(key)
        if value is None:
            value = np.frombuffer(self.launch.parameters, code, 1, offset).reshape(1, 1)
            self._parameters[key] = value
        return value

    def symbol(self, number: int, displacement: int) -> Array:
        """Give the address of a module variable."""
        return np.full((1, 1), self.launch.symbols[number] + displacement, np.uint64)

    def parameter_address(self, offset: int) -> Array:
        """Give the address of a parameter."""
        return np.full((1, 1), self.launch.parameter_address + offset, np.uint64)

    # Lanes

    def _lanes(self, offsets: Array, mask: Array | None, *, whole: bool) -> Lanes:
        if mask is None or (offsets.size == 1 and not whole):
            if whole:
                offsets = self.spread(offsets)
            return Lanes(offsets.reshape(-1), None, offsets.shape)
        if mask.shape != self.full.shape:
            mask = self.spread(mask)
        return Lanes(self.spread(offsets)[mask], mask, ())

    def _numbers(self, lanes: Lanes, chosen: Array) -> Array:
        """Flat lane numbers of some positions among the active lanes."""
        positions = np.flatnonzero(chosen)
        if lanes.mask is not None:
            return np.flatnonzero(lanes.mask)[positions]
        if lanes.shape == self.full.shape:
            return positions
        grid = np.broadcast_to(np.arange(self.full.size).reshape(self.full.shape), self.full.shape)
        step_r = self.full.shape[0] // lanes.shape[0]
        step_c = self.full.shape[1] // lanes.shape[1]
        return grid[::step_r, ::step_c].reshape(-1)[positions]

    # Global memory

    def _check_global(self, lanes: Lanes, size: int, step: int, write: bool) -> Array | None:
        """Check an access to the arena; returns which lanes may do it, None for all."""
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
            if unwritten.any():
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
        self, lanes: Lanes, bad: Array, size: int, step: int, rule: str, verb: str
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

    def _check_alignment(self, lanes: Lanes, size: int, step: int, space: str) -> None:
        if size > 1 and int(np.bitwise_or.reduce(lanes.offsets)) & (size - 1):
            bad = (lanes.offsets & np.uint64(size - 1)) != 0
            numbers = self._numbers(lanes, bad)
            offset = int(lanes.offsets[np.flatnonzero(bad)[0]])
            self.report_lanes(
                "mem", "misaligned", numbers, step,
                lambda _: f"accesses {size} bytes of {space} memory at an address that is not a "
                f"multiple of {size} (offset {offset:,}), by {self.who(int(numbers[0]))}",
            )  # fmt: skip

    # Bytes

    def _take(
        self, data: Array, lanes: Lanes, width: int, vector: int, good: Array | None
    ) -> list[Array]:
        """Fetch elements; lanes that may not access get zeros."""
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
        self, data: Array, lanes: Lanes, values: Sequence[Array], width: int, good: Array | None
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
        """Take the active lanes of a value as one row."""
        spread = self.spread(value)
        return spread.reshape(-1) if mask is None else spread[mask]

    def load_global(
        self, address: Array, width: int, vector: int, mask: Array | None, step: int, strong: bool
    ) -> list[Array]:
        """Load from global (or constant) memory."""
        races = self.global_races
        lanes = self._lanes(address - _G, mask, whole=races is not None)
        if not lanes.offsets.size:
            return [np.zeros((1, 1), f"u{width}")] * vector
        good = self._check_global(lanes, width * vector, step, write=False)
        if races is not None:
            races.access(lanes, good, width * vector, step, write=False, strong=strong)
        return self._take(self.launch.arena.data, lanes, width, vector, good)

    def store_global(
        self, address: Array, values: Sequence[Array], width: int, mask: Array | None, step: int,
        strong: bool,
    ) -> None:  # fmt: skip
        """Store to global memory."""
        lanes = self._lanes(address - _G, mask, whole=True)
        if not lanes.offsets.size:
            return
        size = width * len(values)
        good = self._check_global(lanes, size, step, write=True)
        arena = self.launch.arena
        if self.global_races is not None:
            self.global_races.access(
                lanes, good, size, step, write=True, strong=strong, values=values, width=width
            )
        self._put(arena.data, lanes, values, width, good)
        if self.check_init:
            self._mark(arena.shadow, lanes, size, good, WRITTEN)

    def _mark(self, shadow: Array, lanes: Lanes, size: int, good: Array | None, value: int) -> None:
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

    # Shared memory

    def _shared_lanes(
        self, address: Array, mask: Array | None, size: int, step: int, write: bool, whole: bool
    ) -> tuple[Lanes, Array | None]:
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
                    f"{self.describe_shared(offset)}, by {self.who(int(numbers[0]))}",
                )  # fmt: skip
                address = np.where(self._back(good, near), address, np.uint64(0))
        far = self._lanes(address + self.shared_base, mask, whole=True)
        if good is not None and good.size != far.offsets.size:
            good = self.spread(good.reshape(near.shape)).reshape(-1)
        return far, good

    def _back(self, chosen: Array, lanes: Lanes) -> Array:
        """Put a value per active lane back to the shape of lanes."""
        if lanes.mask is None:
            return chosen.reshape(lanes.shape)
        out = np.zeros(self.full.shape, bool)
        out[lanes.mask] = chosen
        return out

    def _inside_shared(self, lanes: Lanes, size: int) -> Array | None:
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

    def describe_shared(self, offset: int) -> str:
        """Say where an offset of shared memory lies."""
        program = self.launch.program
        regions = [(r.name, r.offset, r.size) for r in program.shared]
        if self.launch.dynamic_shared:
            regions.append(
                ("dynamic shared memory", program.dynamic_offset, self.launch.dynamic_shared)
            )
        for name, start, size in regions:
            if start <= offset < start + size:
                return f"{name} + {offset - start:,} bytes"
        before = [r for r in regions if r[1] + r[2] <= offset]
        if not before:
            return f"offset {offset:,}, where the kernel has no shared memory"
        name, start, size = max(before, key=lambda r: r[1])
        return f"{offset - start - size:,} bytes past the end of {name} ({size:,} bytes)"

    def load_shared(
        self, address: Array, width: int, vector: int, mask: Array | None, step: int, strong: bool
    ) -> list[Array]:
        """Load from shared memory."""
        size = width * vector
        races = self.shared_races
        if races is not None and address.size == 1:
            address = self.spread(address)
        if address.shape[1] == 1 and mask is None and races is None:
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

    def _shared_rows(self, address: Array, size: int, step: int) -> tuple[Lanes, Array | None]:
        """Prepare a load that all threads of a block make at one address."""
        rows = np.broadcast_to(address, (self.count, 1))
        near = Lanes(rows.reshape(-1), None, rows.shape)
        self._check_alignment(near, size, step, "shared")
        good = self._inside_shared(near, size)
        if good is not None:
            self._shared_lanes(address, None, size, step, False, whole=True)
            rows = np.where(good.reshape(rows.shape), rows, np.uint64(0))
        far = rows + self.shared_base
        return Lanes(far.reshape(-1), None, far.shape), good

    def _check_written(
        self, written: Array, lanes: Lanes, good: Array | None, width: int, vector: int,
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
                where = self._name_private(place, space)
                self.report_lanes(
                    "init", "never-written", numbers, step,
                    partial(self._unwritten, where, int(numbers[0])),
                )  # fmt: skip

    def _unwritten(self, where: str, number: int, _: int) -> str:
        return f"reads {where}, which nobody wrote, by {self.who(number)}"

    def _name_private(self, place: int, space: str) -> str:
        if space == "shared":
            return self.describe_shared(place % max(1, self.shared_stride))
        offset = place % max(1, self.local_stride)
        for region in self.launch.program.local:
            if region.offset <= offset < region.offset + region.size:
                return f"{region.name} + {offset - region.offset} bytes (local)"
        return f"local memory at {offset}"

    def store_shared(
        self, address: Array, values: Sequence[Array], width: int, mask: Array | None, step: int,
        strong: bool,
    ) -> None:  # fmt: skip
        """Store to shared memory."""
        size = width * len(values)
        lanes, good = self._shared_lanes(self.spread(address), mask, size, step, True, whole=True)
        if not lanes.offsets.size:
            return
        if self.shared_races is not None:
            self.shared_races.access(
                lanes, good, size, step, write=True, strong=strong, values=values, width=width
            )
        self._put(self.shared, lanes, values, width, good)
        if self.check_init:
            self._mark(self.shared_written, lanes, size, good, 1)

    # Local memory

    def _local_lanes(
        self, address: Array, mask: Array | None, size: int, step: int, verb: str
    ) -> tuple[Lanes, Array | None]:
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
        """Load from a thread's own memory."""
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
        """Store to a thread's own memory."""
        size = width * len(values)
        lanes, good = self._local_lanes(address, mask, size, step, "writes")
        if not lanes.offsets.size:
            return
        self._put(self.local, lanes, values, width, good)
        if self.check_init:
            self._mark(self.local_written, lanes, size, good, 1)

    # Generic addresses

    def windows(self, address: Array, mask: Array | None) -> list[tuple[str, int, Array | None]]:
        """Sort lanes by the space that their generic address lies in."""
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
        """Load from wherever a generic address points."""
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
        """Store to wherever a generic address points."""
        for space, base, chosen in self.windows(address, mask):
            store = getattr(self, f"store_{space}")
            store(address - np.uint64(base), values, width, chosen, step, strong)

    def report_trap(self, mask: Array, step: int) -> None:
        """Report that threads executed ``trap``."""
        numbers = np.flatnonzero(mask)
        row, lane = divmod(int(numbers[0]), self.width)
        where = f"thread {show_index(self.thread_index(lane))} (block " + (
            f"{show_index(self.block_index(row))})"
        )
        self.report_lanes("trap", "trap", numbers, step, lambda _: f"trap executed by {where}")

    def finish(self) -> None:
        """Let go of a batch."""

"""Atomic operations: lanes that share an address take turns, in the order of blocks and threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.accesses import Accesses
from gpuemu_flow.emulator.memory import GLOBAL_BASE, WRITTEN
from gpuemu_flow.emulator.semantics import convert, floats
from gpuemu_flow.emulator.semantics.mbarrier import MBARRIER_TURNS
from gpuemu_flow.emulator.types import DTYPES, SIZES, ActiveLanes, Array

_G = np.uint64(GLOBAL_BASE)

Combine = Callable[[Array, Array, Array], Array]


def _add_bfloat(old: Array, value: Array) -> Array:
    return convert.in_bfloat(convert.odd_sum)(old, value)


def _wrap_up(old: Array, limit: Array) -> Array:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _wrap_down(old: Array, limit: Array) -> Array:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


def _float_extreme(least: bool) -> Combine:
    function = floats.minimum if least else floats.maximum
    return lambda old, value, _: floats.canonical(function(old, value))


_HALVES: dict[str, Callable[..., Array]] = {
    "f16": np.add, "bf16": _add_bfloat,
    "f16x2": convert.twice_f16(np.add), "bf16x2": convert.twice_bits(_add_bfloat),
}  # fmt: skip
_FLOATS: dict[str, Combine] = {
    "add": lambda old, value, _: floats.canonical(old + value),
    "min": _float_extreme(True),
    "max": _float_extreme(False),
    "exch": lambda old, value, _: value,
}
_INTEGERS: dict[str, Combine] = {
    "add": lambda old, value, _: old + value,
    "min": lambda old, value, _: np.minimum(old, value),
    "max": lambda old, value, _: np.maximum(old, value),
    "and": lambda old, value, _: old & value,
    "or": lambda old, value, _: old | value,
    "xor": lambda old, value, _: old ^ value,
    "exch": lambda old, value, _: value,
    "cas": lambda old, value, new: np.where(old == value, new, old),
    "inc": lambda old, value, _: _wrap_up(old, value),
    "dec": lambda old, value, _: _wrap_down(old, value),
}


def combiner(operation: str, type_name: str) -> Combine | None:
    """Return the function that computes the new value that an atomic stores."""
    if operation in MBARRIER_TURNS:
        return MBARRIER_TURNS[operation]
    if type_name in _HALVES:
        adding = _HALVES[type_name]
        return (lambda old, value, _: adding(old, value)) if operation == "add" else None
    if type_name in ("f32", "f64"):
        return _FLOATS.get(operation)
    return _INTEGERS.get(operation) if SIZES.get(type_name, 0) in (2, 4, 8) else None


class AtomicForm(Struct, frozen=True, dict=True):
    """One atomic: its operation and type, and whether it releases earlier writes."""

    operation: str
    type_name: str
    releases: bool = False

    @cached_property
    def combine(self) -> Combine:
        """Return the function that computes the new value from the old value and the operands."""
        found = combiner(self.operation, self.type_name)
        if found is None:
            raise ValueError(f"no atomic {self.operation} of .{self.type_name}")
        return found


class Atomics(Accesses):
    """Executes the atomic operations of one batch of blocks."""

    def atomic(
        self,
        space: str,
        form: AtomicForm,
        address: Array,
        values: tuple[Array, ...],
        mask: Array | None,
        step: int,
    ) -> Array:
        out = np.zeros(self.full.shape, DTYPES[form.type_name])
        spaces: list[tuple[str, int, Array | None]] = [(space, 0, mask)]
        if space == "generic":
            spaces = self.windows(address, mask)
        for window, base, chosen in spaces:
            active = self.spread(self.live if chosen is None else chosen)
            if active.any():
                self._atomic_in(window, form, address - np.uint64(base), values, active, step, out)
        return out

    def check_vector(self, address: Array, size: int, mask: Array | None, step: int) -> None:
        bad = self.spread(self.live if mask is None else mask) & (
            (address & np.uint64(size - 1)) != 0
        )
        if bad.any():
            numbers = np.flatnonzero(bad)
            self.report_lanes(
                "mem", "misaligned", numbers, step,
                lambda _: f"accesses {size} bytes at an address that is not a multiple of {size}, "
                f"by {self.who(int(numbers[0]))}",
            )  # fmt: skip

    def _atomic_in(
        self, space: str, form: AtomicForm, address: Array, values: tuple[Array, ...],
        active: Array, step: int, out: Array,
    ) -> None:  # fmt: skip
        size = SIZES[form.type_name]
        lanes, good, data = self._atomic_lanes(space, address, active, size, step, form.releases)
        numbers, offsets = np.flatnonzero(active), lanes.offsets
        operands = [self.active(v, active) for v in values]
        if good is not None:
            numbers, offsets = numbers[good], offsets[good]
            operands = [v[good] for v in operands]
        cells = data[: len(data) // size * size].view(DTYPES[form.type_name])
        places = (offsets >> np.uint64(size.bit_length() - 1)).astype(np.int64)
        out.reshape(-1)[numbers] = _take_turns(cells, places, operands, form.combine)

    def _atomic_lanes(
        self, space: str, address: Array, active: Array, size: int, step: int, releases: bool
    ) -> tuple[ActiveLanes, Array | None, Array]:
        """Check an atomic's access, as a read and as a write."""
        if space == "shared":
            lanes, good = self._shared_lanes(address, active, size, step, True, whole=True)
            if self.check_init:
                self._check_written(self.shared_written, lanes, good, size, 1, step, "shared")
            shared = self.thread_races
            if shared is not None:
                for write in (False, True):
                    shared.access(lanes, good, size, step, write=write, strong=True)
            return lanes, self._aligned(lanes, good, size), self.shared
        if space == "local":
            lanes, good = self._local_lanes(address, active, size, step, "writes")
            return lanes, self._aligned(lanes, good, size), self.local
        lanes = self._lanes(address - _G, active, whole=True)
        self.launch.arena.touch(lanes.offsets, size)
        good = self._check_global(lanes, size, step, write=False)
        writable = self._check_global(lanes, size, step, write=True)
        if writable is not None:
            good = writable if good is None else good & writable
        if self.global_races is not None:
            races = self.global_races
            races.signal(self, active, releases=releases)
            for write in (False, True):
                races.access(self, lanes, good, size, step, write=write, strong=True)
        if self.check_init:
            self._mark(self.launch.arena.shadow, lanes, size, good, WRITTEN)
        return lanes, self._aligned(lanes, good, size), self.launch.arena.data

    def _aligned(self, lanes: ActiveLanes, good: Array | None, size: int) -> Array | None:
        bad = (lanes.offsets & np.uint64(size - 1)) != 0
        if not bad.any():
            return good
        return ~bad if good is None else good & ~bad


def _take_turns(cells: Array, places: Array, operands: list[Array], combine: Combine) -> Array:
    """Apply an atomic: lanes with the same address take turns, different addresses run together.
    Lanes are stably sorted by address. Round n handles the n-th lane of every address."""
    count = len(places)
    old = np.zeros(count, cells.dtype)
    if not count:
        return old
    blank = operands[0]
    second = operands[1] if len(operands) > 1 else blank
    order = np.argsort(places, kind="stable")
    sorted_places = places[order]
    first = np.concatenate(([True], sorted_places[1:] != sorted_places[:-1]))
    if first.all():
        there = cells[places]
        cells[places] = combine(there, operands[0], second)
        return there
    starts = np.flatnonzero(first)
    lengths = np.diff(np.concatenate((starts, [count])))
    rank = np.arange(count) - np.repeat(starts, lengths)
    by_rank = np.argsort(rank, kind="stable")
    bounds = np.searchsorted(rank[by_rank], np.arange(int(lengths.max()) + 1))
    for low, high in pairwise(bounds):
        chosen = order[by_rank[low:high]]
        where = places[chosen]
        there = cells[where]
        old[chosen] = there
        cells[where] = combine(there, operands[0][chosen], second[chosen])
    return old

"""Barrier objects of one batch: arrivals, waits, and the copies that a wait delivers."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.atomics import AtomicForm
from gpuemu_flow.emulator.semantics import mbarrier
from gpuemu_flow.emulator.types import Array
from gpuemu_flow.emulator.warps import Asynchronous

PATIENCE = 1_000_000
"""Number of failed waits in a row after which the threads are taken to wait for ever."""

ALONE = 500
"""Number of failed waits that one failed wait counts for when no other thread is running."""

IDLE = 20_000
"""Number of failed waits that one failed wait counts for when, since the last arrival at any
barrier object, all running threads have done nothing but wait in vain."""

_INCREMENT = AtomicForm("mbarrier.increment", "b64")
_ARRIVE = AtomicForm("mbarrier.arrive", "b64")


class StuckError(Exception):
    """Raised when threads wait for ever at a barrier object, after this has been reported."""


class _CopyArrival(Struct):
    """Arrivals that are counted once the arriving threads' copies are complete. They come from
    ``cp.async.mbarrier.arrive``."""

    lanes: Array
    space: str
    address: Array
    step: int


class Mbarriers(Asynchronous):
    """Executes the ``mbarrier`` instructions of one batch of blocks."""

    def begin(self, block_ids: Array) -> None:
        super().begin(block_ids)
        self._arrivals: list[_CopyArrival] = []
        self._fruitless = 0
        self.idle: Array = np.zeros(self.full.shape, bool)
        self.any_idle = False

    def worked(self, group: Array) -> None:
        """Record that threads did something other than wait for a barrier object."""
        self.idle &= ~group
        self.any_idle = bool(self.idle.any())

    def _begin_anew(self) -> None:
        """Restart the count of failed waits, and count no thread as idle. Called before a barrier
        object changes, since the change may end the wait of a thread."""
        self._fruitless = 0
        if self.any_idle:
            self.worked(self.full)

    def start_mbarrier(
        self, space: str, address: Array, count: Array, mask: Array | None, step: int
    ) -> None:
        self._begin_anew()
        store = getattr(self, f"store_{space}")
        store(address, (mbarrier.fresh(self.spread(count)),), 8, mask, step, False)

    def arrive_mbarrier(
        self, space: str, form: AtomicForm, address: Array, count: Array, awaited: Array,
        mask: Array | None, step: int,
    ) -> Array:  # fmt: skip
        self._begin_anew()
        active = self.spread(self.live if mask is None else mask)
        wide = self.spread(count).astype(np.uint64)
        nbytes = self.spread(awaited).astype(np.int64).view(np.uint64)
        self.signal_mbarrier(space, address, active)
        if self.cluster_size > 1 and self.global_races is not None:
            there = self._places(space, address, active) // max(1, self.shared_stride)
            lanes = np.flatnonzero(active)
            other = np.zeros(self.full.size, bool)
            other[lanes[there != lanes // self.width]] = True
            if other.any():  # blocks that wait see what these threads wrote
                self.global_races.signal(self, other.reshape(self.full.shape), releases=True)
        old = self.atomic(space, form, address, (wide, nbytes), mask, step)
        many = active & (mbarrier.pending(old) < wide)
        if many.any():
            self.report_mask(
                "sync", "too-many-arrivals", many, step,
                "arrives at a barrier object that waits for no more arrivals in this phase",
            )  # fmt: skip
        return old

    def _places(self, space: str, address: Array, active: Array) -> Array:
        offsets = self.spread(address)
        if space == "generic":
            offsets = offsets & np.uint64((1 << 36) - 1)
        return self.spread(self.shared_places(offsets))[active].astype(np.int64)

    def signal_mbarrier(self, space: str, address: Array, active: Array) -> None:
        """Store the vector clocks of the arriving threads' warps at the barrier objects. A thread
        that later waits at the object takes over these clocks. What it does afterwards is then
        ordered after everything that the arriving threads did before."""
        if self.thread_races is not None:
            places = self._places(space, address, active)
            self.thread_races.signal(places, np.flatnonzero(active))

    def arrive_with_copies(
        self, space: str, address: Array, increment: bool, mask: Array | None, step: int
    ) -> None:
        active = self.spread(self.live if mask is None else mask)
        if increment:
            one = np.ones((1, 1), np.uint64)
            self.atomic(space, _INCREMENT, address, (one, one), mask, step)
        self._arrivals.append(_CopyArrival(active, space, self.spread(address), step))

    def _deliver_arrivals(self, waited: Array) -> None:
        """Count the pending arrivals at the barrier objects `waited`, for which threads wait. The
        copies on which these arrivals depend are completed first."""
        left = []
        for arrival in self._arrivals:
            places = np.full(self.full.shape, -1, np.int64)
            places[arrival.lanes] = self._places(arrival.space, arrival.address, arrival.lanes)
            due = arrival.lanes & np.isin(places, waited)
            if due.any():
                self.wait_copies(0, due, everything=True)
                one, none = np.ones((1, 1), np.uint64), np.zeros((1, 1), np.int64)
                self.arrive_mbarrier(
                    arrival.space, _ARRIVE, arrival.address, one, none, due, arrival.step
                )
                arrival.lanes = arrival.lanes & ~due
            if arrival.lanes.any():
                left.append(arrival)
        self._arrivals = left

    def deliver_for(self, waited: Array) -> None:
        self._deliver_arrivals(waited)

    def _ended(
        self, space: str, address: Array, awaited: Array, parity: bool, mask: Array | None,
        step: int,
    ) -> Array:  # fmt: skip
        word = self.spread(getattr(self, f"load_{space}")(address, 8, 1, mask, step, True)[0])
        now, wanted = mbarrier.phase(word), self.spread(awaited).astype(np.uint64)
        if parity:
            return np.asarray((now & np.uint64(1)) != (wanted & np.uint64(1)))
        return np.asarray(now != mbarrier.phase(wanted))

    def wait_mbarrier(
        self, space: str, address: Array, awaited: Array, parity: bool, mask: Array | None,
        step: int,
    ) -> Array:  # fmt: skip
        active = self.spread(self.live if mask is None else mask)
        done = self._ended(space, address, awaited, parity, mask, step)
        late = active & ~done
        if late.any():  # copies arrive now and no earlier, so that a phase ended too soon shows
            self.deliver_for(np.unique(self._places(space, address, late)))
            done = self._ended(space, address, awaited, parity, mask, step)
        passed = active & done
        if passed.any():
            self._fruitless = 0
            if self.any_idle:
                self.worked(passed)
            if self.cluster_size > 1 and self.global_races is not None:
                self.global_races.acquire(self, passed)
            if self.thread_races is not None:
                passed_places = self._places(space, address, passed)
                self.thread_races.learn(passed_places, np.flatnonzero(passed))
        else:
            self.idle |= active
            self.any_idle = True
            idle = int(np.count_nonzero(self.idle & self.live))
            self._fruitless += IDLE if idle >= self.running else (
                ALONE if self.group_is_alone else 1)  # fmt: skip
            if self._fruitless > PATIENCE:
                self.report_mask(
                    "sync", "never-completed", active, step,
                    "waits for a barrier object whose phase is never completed",
                )  # fmt: skip
                raise StuckError
        return done

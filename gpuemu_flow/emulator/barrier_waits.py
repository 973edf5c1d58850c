"""Threads that wait at barriers of their blocks (``bar``, ``barrier``) in one batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.types import Array


class BarrierRequest(Struct):
    """The operands of the barrier instruction that ends a basic block.

    Attributes
    ----------
    name : array
        Number of the barrier, 0 to 15.
    wanted : array or None
        Number of threads for which the barrier waits; None for all threads of the block.
    arrive_only : bool
        True if the threads go on without waiting.
    predicate : array or None
        The predicate of each thread that ``bar.red`` combines.
    operation : str
        The operation of ``bar.red``: ``popc``, ``and`` or ``or``.
    result : int
        Number of the register that takes the result of ``bar.red``.
    """

    name: Array
    wanted: Array | None = None
    arrive_only: bool = False
    predicate: Array | None = None
    operation: str = ""
    result: int = -1

    @property
    def plain(self) -> bool:
        """Tell whether all threads name the same barrier, which waits for the whole block."""
        return self.wanted is None and self.name.size == 1

    def by_name(self, group: Array) -> Iterator[tuple[int, Array]]:
        """Yield each barrier number that threads of a group name, and a mask of these threads."""
        names = np.broadcast_to(self.name, group.shape)
        for name in np.unique(names[group]).tolist():
            yield name, group & (names == name)


class BarrierWaits:
    """The warps that wait at each barrier of each block."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.block = np.full(shape, -1, np.int32)
        self.name = np.zeros(shape, np.int32)
        self.wanted = np.full(shape, -1, np.int64)
        self.step = np.zeros(shape, np.int32)
        self.plain = np.zeros(shape, bool)
        self.predicate = np.zeros(shape, bool)
        self.results: dict[int, tuple[str, int]] = {}
        self.arrived: dict[int, Array] = {}
        self._known: dict[int, Array] = {}

    def arrive(self, request: BarrierRequest, group: Array, block: int, step: int) -> None:
        """Record that a group of threads has reached a barrier.

        Parameters
        ----------
        request : BarrierRequest
        group : ndarray of bool
            Mask of the threads.
        block : int
            Number of the basic block in which the threads go on after the barrier.
        step : int
            Number of the barrier instruction.
        """
        if request.arrive_only:
            for name, arrived in request.by_name(group):
                here = arrived.sum(axis=1)
                self.arrived[name] = self.arrived.get(name, np.zeros(len(group), np.int64)) + here
            return
        names = np.broadcast_to(request.name, group.shape)
        self.block[group] = block
        self.name[group] = names[group]
        self.step[group] = step
        self.plain[group] = request.plain
        self.wanted[group] = -1
        if request.wanted is not None:
            self.wanted[group] = np.broadcast_to(request.wanted, group.shape)[group]
        if request.predicate is not None:
            self.predicate[group] = np.broadcast_to(request.predicate, group.shape)[group]
            self.results[step] = (request.operation, request.result)

    def learn(self, name: int, known: Array | None) -> None:
        """Store the vector clocks of threads that arrived at barrier `name` without waiting.

        `known` holds these clocks, or is None if races are not checked. The clocks are merged with
        those already stored for the barrier.
        """
        if known is not None:
            before = self._known.get(name)
            self._known[name] = known if before is None else np.maximum(before, known)

    def released(self, live: Array) -> list[tuple[Array, Array | None]]:
        """Return the warps that barriers release, and reset the arrivals at these barriers.

        Returns
        -------
        list of tuple of array, and array or None
            For each barrier, the released warps, and the vector clocks of the threads that arrived
            without waiting (None if there are none).
        """
        found: list[tuple[Array, Array | None]] = []
        waits = self.block >= 0
        for name in np.unique(self.name[waits]).tolist():
            here = waits & (self.name == name)
            extra = self.arrived.get(name, 0)
            present = here.sum(axis=1) + extra
            wanted = np.where(here, self.wanted, -1).max(axis=1)
            wanted = np.where(wanted < 0, live.sum(axis=1) + extra, wanted)
            done = here.any(axis=1) & (present >= wanted)
            if done.any():
                if name in self.arrived:
                    self.arrived[name] = np.where(done, 0, self.arrived[name])
                known = self._known.get(name)
                found.append((here & done[:, None], known))
                if known is not None:
                    self._known[name] = np.where(done[:, None], 0, known)
        return found

    def give_results(self, released: Array, registers: list[Array]) -> None:
        """Write the results of ``bar.red``, computed over the threads of each block."""
        for step, (operation, number) in self.results.items():
            chosen = released & (self.step == step)
            if not chosen.any():
                continue
            value = self.predicate & released
            if operation == "popc":
                total = value.sum(axis=1).astype(np.uint32)
            elif operation == "or":
                total = value.any(axis=1)
            else:
                total = (self.predicate | ~released).all(axis=1)
            registers[number] = np.where(chosen, total[:, None], registers[number])

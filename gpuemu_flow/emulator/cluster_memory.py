"""Accesses to shared memory of other blocks of a cluster: their addresses and permissions."""

from __future__ import annotations

import numpy as np

from gpuemu_flow.emulator.clusters import OFFSET, RANK_AT
from gpuemu_flow.emulator.findings import show_index
from gpuemu_flow.emulator.global_memory import GlobalMemory
from gpuemu_flow.emulator.memory import SHARED_BASE, WINDOW
from gpuemu_flow.emulator.types import Array

_OFFSET = np.uint64(OFFSET)
_RANK_AT = np.uint64(RANK_AT)


class ClusterMemory(GlobalMemory):
    """Translates addresses of shared memory within the clusters of one batch."""

    def begin(self, block_ids: Array) -> None:
        """Start a batch, and record the place of each cluster's blocks within the batch."""
        super().begin(block_ids)
        size = self.cluster_size
        order = np.argsort(self.ranks.reshape(-1, size), axis=1)
        self._row_of_rank: Array = order + np.arange(0, self.count, size)[:, None]
        self._cluster_of_row: Array = np.arange(self.count)[:, None] // size

    def shared_rows(self, address: Array) -> tuple[Array, Array]:
        """Split addresses of shared memory into offsets and blocks.

        Returns
        -------
        tuple of array
            Offsets in a block's memory, and the blocks' numbers in the batch. Where an address
            names a block that the cluster does not have, the offset is beyond every block's memory.
        """
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
        """Return the address by which a block accesses a place in the batch's shared memory.

        Parameters
        ----------
        place : int
            Offset of the place in the shared memory of the whole batch.
        row : int
            Number of the block within the batch.
        """
        there, offset = divmod(place, max(1, self.shared_stride))
        return offset if there == row else offset | (int(self.ranks[there]) + 1) << RANK_AT

    def rows_of_cluster(self, row: int) -> list[int]:
        """Return the blocks in the cluster of block `row`, by rank, as numbers within the batch."""
        found: list[int] = self._row_of_rank[row // self.cluster_size].tolist()
        return found

    def refused_rows(
        self, rows: Array, mask: Array | None, step: int, write: bool
    ) -> Array | None:  # fmt: skip
        """Mark and report lanes that may not access the shared memory of other blocks.

        Parameters
        ----------
        rows : array
            For each lane, the number within the batch of the block whose memory it accesses.
        mask : array or None
            Mask of the lanes that perform the access; None for all lanes that have not ended.
        step : int
            Index of the program's step that accesses the memory.
        write : bool
            True for a write, False for a read.

        Returns
        -------
        array or None
            Mask of the lanes whose access is refused; None if every access is allowed.
        """
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
        """Compute ``mapa``: the address of the same offset in another block's shared memory.

        `rank` is the other block's rank in the cluster. `generic` is True if addresses are generic,
        False if they belong to the state space ``.shared``.
        """
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
        ``.shared``.
        """
        _, rows = self.shared_rows(address - np.uint64(SHARED_BASE if generic else 0))
        return self.ranks[rows].astype(np.uint32)

    def is_own_shared(self, address: Array) -> Array:
        """Compute ``isspacep.shared::cta``: mark addresses in the own block's shared memory."""
        offsets = address - np.uint64(SHARED_BASE)
        inside = offsets < np.uint64(WINDOW)
        if self.cluster_size == 1:
            return inside
        return inside & (self.shared_rows(offsets)[1] == np.arange(self.count)[:, None])

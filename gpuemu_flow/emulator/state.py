"""State of a launch: what all of its batches share, and what each batch has for itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.emulator.blocks import place_of
from gpuemu_flow.emulator.clusters import ALONE, Dimensions, block_indices, ranks, size_of
from gpuemu_flow.emulator.errors import BudgetError
from gpuemu_flow.emulator.findings import CheckFinding, show_index
from gpuemu_flow.emulator.ir import KernelProgram
from gpuemu_flow.emulator.memory import LaunchArena
from gpuemu_flow.emulator.types import WARP, WARPGROUP, Array
from gpuemu_flow.model.errors import Problem


class _Tally(Struct):
    rule: str
    message: str
    block: Dimensions
    thread: Dimensions
    count: int
    there: int = -1


class CaseMemory(Struct, frozen=True):
    """The parameters and variables of one case of a launch, which differ between cases."""

    parameters: bytes
    parameter_address: int
    symbols: list[int]


class KernelLaunch(Struct):
    """One launch of a kernel: the state that all of its blocks share."""

    program: KernelProgram
    arena: LaunchArena
    grid: Dimensions
    block: Dimensions
    parameters: bytes
    parameter_address: int
    symbols: list[int]
    dynamic_shared: int
    checks: frozenset[str]
    budget: int
    cases: tuple[CaseMemory, ...] = ()
    warps_reversed: bool = False
    cluster: Dimensions = ALONE
    workspace: int = 0
    failed: int = -1
    spent: int = 0
    executed: int = 0
    printed: list[str] = field(default_factory=list)
    _tallies: dict[tuple[str, str, int], _Tally] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def all_blocks(self) -> int:
        """Return the number of blocks of all cases."""
        return self.blocks * max(1, len(self.cases))

    def charge(self, steps: int, threads: int, least: int) -> None:
        """Count executed instructions, and charge them to the budget. Each of `threads` threads
        executed `steps` instructions. Fewer threads than `least` cost as much as `least` threads.
        Raises BudgetError: The budget is spent."""
        self.executed += steps * threads
        self.spent += steps * max(threads, least)
        if self.spent > self.budget:
            raise BudgetError(
                Problem(
                    "emulator-budget",
                    f"{self.program.name} did not end within {self.budget:,} thread instructions",
                    "look for a loop that never ends, or raise the budget",
                    self.program.module.source.file,
                )
            )

    def tally(
        self, check: str, rule: str, step: int, block: Dimensions, thread: Dimensions,
        count: int, message: Callable[[], str], there: int = -1,
    ) -> None:  # fmt: skip
        """Count an event that a check found, and keep the message of the first event at each step.
        The text that `message` returns may refer to a second step by the placeholder `THERE`, which
        stands for the step's location in the source. `there` is the number of this second step; -1
        if there is none."""
        key = (check, rule, step)
        known = self._tallies.get(key)
        if known is None:
            self._tallies[key] = _Tally(rule, message(), block, thread, count, there)
        else:
            known.count += count

    def take_findings(self, other: KernelLaunch) -> None:
        self._tallies = other._tallies

    def findings(self) -> list[CheckFinding]:
        """List findings, sorted by check and step; merge those of one rule, opcode and line."""
        found: dict[tuple[str, str, str, int, str], CheckFinding] = {}
        for (check, rule, step), tally in sorted(
            self._tallies.items(), key=lambda item: (item[0][0], item[0][2], item[0][1])
        ):
            place = place_of(self.program, step)
            opcode = self.program.steps[step].opcode.text
            key = (check, rule, place.file, place.line or -step - 1, opcode)
            count = tally.count + (found[key].count if key in found else 0)
            kept = found.get(key) or CheckFinding(
                check, rule, tally.message, self.program.name, place, tally.block, tally.thread, 0,
                None if tally.there < 0 else place_of(self.program, tally.there),
            )  # fmt: skip
            found[key] = replace(kept, count=count)
        return list(found.values())


class State:
    """One batch of blocks: lanes, special registers, and names of threads for findings."""

    def __init__(self, launch: KernelLaunch) -> None:
        self.launch = launch
        threads = launch.threads
        self.width = -(-threads // WARP) * WARP
        self.count = 0
        self.block_ids: Array = np.zeros(0, np.int64)
        self.special: dict[str, Array] = {}
        self._threads: Array = np.zeros(0, np.int64)
        self.live: Array = np.zeros((0, 0), bool)
        self.full: Array = np.zeros((0, 0), bool)
        self.group_is_alone = True
        self.running = 0
        self.carry: Array = np.zeros((1, 1), bool)
        self.cluster_size = size_of(launch.cluster)
        self.ranks: Array = np.zeros(0, np.int64)
        self.thread_races: Any = None  # of `races`, which imports this module

    def begin(self, block_ids: Array) -> None:
        """Set up lanes and special registers; the blocks of a cluster must be adjacent."""
        self.block_ids = block_ids
        self.count = len(block_ids)
        self.full = np.ones((self.count, self.width), bool)
        self._threads = lanes = self._threads_of_lanes()
        self.live = np.broadcast_to(lanes < self.launch.threads, self.full.shape)
        if self.launch.threads == self.width:
            self.live = self.full
        blocks = block_ids % self.launch.blocks
        self.ranks = ranks(blocks, self.launch.grid, self.launch.cluster)
        self.special = _specials(self.launch, lanes, blocks, self.ranks)

    def _threads_of_lanes(self) -> Array:
        """Return the linear index of the thread in each lane of a block."""
        threads = np.arange(self.width)
        if not self.launch.warps_reversed:
            return threads
        # wgmma works on four neighbouring warps, which must stay in their order.
        steps = self.launch.program.steps
        together = WARPGROUP if any(s.opcode.base == "wgmma" for s in steps) else WARP
        if self.width % together:
            return threads
        return np.ascontiguousarray(threads.reshape(-1, together)[::-1]).reshape(-1)

    def spread(self, x: Array) -> Array:
        return np.broadcast_to(x, self.full.shape)

    def block_index(self, row: int) -> Dimensions:
        number = int(self.block_ids[row]) % self.launch.blocks
        x, y, _ = self.launch.grid
        return number % x, number // x % y, number // (x * y)

    def thread_index(self, lane: int) -> Dimensions:
        lane = int(self._threads[lane])
        x, y, _ = self.launch.block
        return lane % x, lane // x % y, lane // (x * y)

    def report_lanes(
        self, check: str, rule: str, lanes: Array, step: int, message: Callable[[int], str],
        there: int = -1,
    ) -> None:  # fmt: skip
        """Count a finding for some lanes."""
        if not len(lanes) or (check != "trap" and check not in self.launch.checks):
            return
        row, lane = divmod(int(lanes[0]), self.width)
        self.launch.tally(
            check, rule, step, self.block_index(row), self.thread_index(lane),
            len(lanes), lambda: message(0), there,
        )  # fmt: skip

    def report_mask(
        self, check: str, rule: str, mask: Array, step: int, message: str, there: int = -1
    ) -> None:
        """Count a finding for the lanes of a mask. `message` describes the finding. It may refer to
        a second step by the placeholder `THERE`, which stands for the step's location in the
        source. `there` is the number of this second step; -1 if there is none."""
        self.report_lanes(check, rule, np.flatnonzero(mask), step, lambda _: message, there)

    def check_members(self, members: Array, mask: Array | None, step: int) -> None:
        """Report wrong member masks of warp operations. A lane that executes the operation must be
        in its own mask. Every other lane of the mask must execute the operation too, unless that
        lane has left the kernel."""
        if "sync" not in self.launch.checks or (mask is None and _all_members(members)):
            return
        active = self.full if mask is None else self.spread(mask)
        lanes = self.spread(self.special["laneid"])
        given = self.spread(members)
        outside = active & ((given >> lanes) & np.uint32(1) == 0)
        if outside.any():
            self.report_mask(
                "sync", "not-a-member", outside, step,
                "is executed by a thread that its member mask does not name",
            )  # fmt: skip
        warps = (self.count, -1, WARP)
        bits = np.uint32(1) << np.arange(WARP, dtype=np.uint32)
        present = (active.reshape(warps) * bits).sum(axis=2, dtype=np.uint32)
        alive = (self.live.reshape(warps) * bits).sum(axis=2, dtype=np.uint32)
        missing = given & np.repeat(alive & ~present, WARP, axis=1)
        absent = active & (missing != 0)
        if absent.any():
            self.report_mask(
                "sync", "absent-lanes", absent, step,
                "waits for threads of its warp that its member mask names and that do not come",
            )  # fmt: skip

    def who(self, flat: int) -> str:
        """Name a lane of the batch: its thread and block."""
        row, lane = divmod(flat, self.width)
        thread, block = self.thread_index(lane), self.block_index(row)
        return f"thread {show_index(thread)} (block {show_index(block)})"


def _all_members(members: Array) -> bool:
    return members.size == 1 and int(members.flat[0]) == 0xFFFFFFFF


def _specials(
    launch: KernelLaunch, lanes: Array, block_ids: Array, rank: Array
) -> dict[str, Array]:
    def wide(x: Array) -> Array:
        return np.asarray(x).astype(np.uint32)

    def one(value: int) -> Array:
        return np.full((1, 1), value & 0xFFFFFFFF, np.uint32)

    row, column = lanes[None, :], block_ids[:, None]
    (bx, by, bz), (gx, gy, gz) = launch.block, launch.grid
    lane = row % WARP
    bit = np.uint64(1) << lane.astype(np.uint64)
    found = {
        "tid.x": wide(row % bx),
        "tid.y": wide(row // bx % by) if by > 1 else one(0),
        "tid.z": wide(row // (bx * by) % bz) if bz > 1 else one(0),
        "ctaid.x": wide(column % gx),
        "ctaid.y": wide(column // gx % gy) if gy > 1 else one(0),
        "ctaid.z": wide(column // (gx * gy)) if gz > 1 else one(0),
        "laneid": wide(lane),
        "warpid": wide(row // WARP),
        "nwarpid": one(-(-launch.threads // WARP)),
        "smid": wide(column % 108),
        "nsmid": one(108),
        "gridid": one(1),
        "lanemask_eq": wide(bit),
        "lanemask_lt": wide(bit - np.uint64(1)),
        "lanemask_le": wide(bit * np.uint64(2) - np.uint64(1)),
        "lanemask_gt": wide(~(bit * np.uint64(2) - np.uint64(1)) & np.uint64(0xFFFFFFFF)),
        "lanemask_ge": wide(~(bit - np.uint64(1)) & np.uint64(0xFFFFFFFF)),
        "dynamic_smem_size": one(launch.dynamic_shared),
        "total_smem_size": one(launch.program.shared_bytes + launch.dynamic_shared),
        "aggr_smem_size": one(launch.program.shared_bytes + launch.dynamic_shared),
        "is_explicit_cluster": one(int(launch.cluster != ALONE)),
        "cluster_ctarank": wide(rank[:, None]) if launch.cluster != ALONE else one(0),
        "cluster_nctarank": one(size_of(launch.cluster)),
        "envreg1": one(launch.workspace >> 32),
        "envreg2": one(launch.workspace),
    }
    places = block_indices(column, launch.grid)
    sizes = zip("xyz", launch.block, launch.grid, launch.cluster, places, strict=True)
    for axis, threads, blocks, members, place in sizes:
        found[f"ntid.{axis}"] = one(threads)
        found[f"nctaid.{axis}"] = one(blocks)
        found[f"cluster_ctaid.{axis}"] = wide(place % members) if members > 1 else one(0)
        found[f"cluster_nctaid.{axis}"] = one(members)
        own = found[f"ctaid.{axis}"]
        found[f"clusterid.{axis}"] = wide(place // members) if members > 1 else own
        found[f"nclusterid.{axis}"] = one(blocks // members)
    return found

"""Execution of one batch of blocks: threads grouped by basic block, barriers, divergence."""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from gpuemu_flow.emulator.blocks import (
    ENDS_THREADS,
    Blocks,
    is_barrier,
    is_cluster_barrier,
    is_unaligned,
)
from gpuemu_flow.emulator.clusters import ClusterBarriers
from gpuemu_flow.emulator.ir import KernelProgram
from gpuemu_flow.emulator.mbarriers import StuckError
from gpuemu_flow.emulator.memory import GLOBAL_BASE, LOCAL_BASE
from gpuemu_flow.emulator.state import KernelLaunch
from gpuemu_flow.emulator.types import BITS, WARP, Array
from gpuemu_flow.emulator.wmma import WarpGroups
from gpuemu_flow.model.types import THERE

# Text that a kernel prints by ``printf``, and its failed assertions.

MAX_PRINTED = 1 << 20
"""Largest number of characters that are kept of the output of one launch."""

MAX_TEXT = 4096
_DIRECTIVE = re.compile(
    r"%([-+ #0]{0,5})(\d{1,3})?(?:\.(\d{1,3}))?(hh|h|ll|l|j|z|t)?([diouxXeEfFgGaAcsp%])", re.ASCII
)
_LONG = ("ll", "l", "j", "z", "t")


class Printing(WarpGroups):
    """Executes ``vprintf`` and reports failed assertions, for one batch of blocks."""

    def print(self, words: Array, arguments: Array, mask: Array | None, step: int) -> Array:
        active = self.spread(self.live if mask is None else mask)
        words, arguments = self.spread(words), self.spread(arguments)
        counts = np.zeros(self.full.shape, np.uint32)
        kept = sum(map(len, self.launch.printed))
        for flat in np.flatnonzero(active).tolist():
            if kept > MAX_PRINTED:
                break
            row, lane = divmod(flat, self.width)
            form = self._text(int(words[row, lane]))
            base = int(arguments[row, lane])

            def fetch(offset: int, size: int, flat: int = flat, base: int = base) -> bytes:
                return self._bytes(base + offset, size, flat)

            text, counts[row, lane] = format_c(form, fetch, self._text)
            self.launch.printed.append(text)
            kept += len(text)
        return counts

    def assertion_failed(
        self, message: Array, file: Array, line: Array, mask: Array | None, step: int
    ) -> None:
        """Report a failed ``assert``."""
        active = self.spread(self.live if mask is None else mask)
        numbers = np.flatnonzero(active)
        if not numbers.size:
            return
        row, lane = divmod(int(numbers[0]), self.width)
        said = self._text(int(self.spread(message)[row, lane]))
        where = self._text(int(self.spread(file)[row, lane])).rpartition("/")[2]
        at = int(self.spread(line)[row, lane])
        who = self.who(int(numbers[0]))
        self.report_lanes(
            "trap", "assertion", numbers, step,
            lambda _: f"assertion {said!r} of {where}:{at} failed in {who}",
        )  # fmt: skip

    def _bytes(self, address: int, size: int, flat: int) -> bytes:
        data, start, limit = self.launch.arena.data, address - GLOBAL_BASE, 0
        if address >> 36 == LOCAL_BASE >> 36:
            start = address - LOCAL_BASE
            inside = start >= 0 and start + size <= self.launch.program.local_bytes
            data, start = self.local, start + flat * self.local_stride
            limit = len(data) if inside else 0
        else:
            limit = len(data)
        if start < 0 or start + size > limit:
            return bytes(size)
        return data[start : start + size].tobytes()

    def _text(self, address: int) -> str:
        start = address - GLOBAL_BASE
        if not 0 <= start < len(self.launch.arena.data):
            return "(no text)"
        raw = self.launch.arena.data[start : start + MAX_TEXT].tobytes()
        return raw.partition(b"\0")[0].decode("utf-8", "replace")


def format_c(
    form: str, fetch: Callable[[int, int], bytes], text: Callable[[int], str]
) -> tuple[str, int]:
    """Format as C's ``printf`` does."""
    out: list[str] = []
    position = offset = count = 0
    for match in _DIRECTIVE.finditer(form):
        out.append(form[position : match.start()])
        position = match.end()
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            out.append("%")
            continue
        size = 8 if kind in "eEfFgGaAsp" or length in _LONG else 4
        offset = -(-offset // size) * size
        raw = fetch(offset, size)
        offset += size
        count += 1
        out.append(_one(raw, flags, width, precision, length, kind, text))
    out.append(form[position:])
    return "".join(out), count


def _one(
    raw: bytes, flags: str, width: str | None, precision: str | None, length: str | None,
    kind: str, text: Callable[[int], str],
) -> str:  # fmt: skip
    number = int.from_bytes(raw, "little")
    spec = f"%{flags}{width or ''}" + (f".{precision}" if precision is not None else "")
    if kind in "eEfFgG":
        return (spec + kind) % struct.unpack("<d", raw)[0]
    if kind in "aA":
        said = float(struct.unpack("<d", raw)[0]).hex()
        return said.upper() if kind == "A" else said
    if kind == "s":
        return (spec + "s") % text(number)
    if kind == "p":
        return f"0x{number:x}"
    if kind == "c":
        return f"%{flags}{width or ''}s" % chr(number & 255)
    bits = {"hh": 8, "h": 16}.get(length or "", 8 * len(raw))
    number &= (1 << bits) - 1
    if kind in "di" and number >> (bits - 1):
        number -= 1 << bits
    return (spec + ("d" if kind in "diu" else kind)) % number


BlockFunction = Callable[[Any, list[Array], "Array | None", Array], "Array | None"]
CodeSource = Callable[[int, bool], BlockFunction]

PATIENCE = 64
"""Rounds that a group may wait in a loop for other groups before one of them runs."""

LEAST_CHARGE = 1024
"""Least number of threads that a step is charged for, so that a loop of one thread ends soon."""


class BlockMachine(Printing):
    """Executes batches of whole blocks of one launch."""

    def __init__(self, launch: KernelLaunch, blocks: Blocks, code: CodeSource) -> None:
        super().__init__(launch)
        self._blocks = blocks
        self._code = code
        self._steps = launch.program.steps
        self._waits = _waiting_blocks(launch.program, blocks)
        self._collective = _collective_blocks(launch.program, blocks)
        self._idles = _idle_blocks(launch.program, blocks)
        self.barrier_request = BarrierRequest(np.zeros((1, 1), np.int32))

    def run(self, block_ids: Array) -> None:
        self.begin(block_ids)
        registers: list[Array] = [
            np.zeros((1, 1), BITS.get(t, "u4")) for t in self.launch.program.register_types
        ]
        with contextlib.suppress(StuckError):
            _Schedule(self, registers).run()
        self.finish()

    def clock(self, code: str) -> Array:
        """Return the number of executed instructions as a clock, in the numpy type `code`."""
        return np.full((1, 1), self.launch.executed & 0xFFFFFFFF, code)

    def request_barrier(
        self, name: Array, wanted: Array | None, arrive_only: bool,
        predicate: Array | None, operation: str, result: int,
    ) -> None:  # fmt: skip
        """Store the operands of the barrier instruction that ends a basic block. The parameters are
        the fields of `BarrierRequest`."""
        self.barrier_request = BarrierRequest(
            name, wanted, arrive_only, predicate, operation, result
        )

    def barrier_passed(self, released: Array | None, arrived: Array | None = None) -> None:
        if self.thread_races is not None:
            self.thread_races.barrier(released, arrived)
        if self.global_races is not None and self.launch.blocks > 1:
            self.global_races.barrier(self, released)

    def barrier_arrived(self, group: Array) -> Array | None:
        return None if self.thread_races is None else self.thread_races.arrive(group)

    def warp_barrier(self, members: Array, mask: Array | None, group: Array, step: int) -> None:
        self.check_members(members, mask, step)
        if self.thread_races is not None:
            self.thread_races.warp_barrier(None if mask is None else self.spread(mask))

    def cluster_arrived(self, group: Array, releases: bool) -> None:
        """Record that threads arrived at the barrier of their cluster. `releases` is False for a
        relaxed arrival, which does not publish the threads' writes."""
        if self.cluster_races is not None:
            self.cluster_races.cluster_arrive(group, releases)
        if self.global_races is not None and releases and self.cluster_size > 1:
            self.global_races.cluster_arrive(self, group)

    def cluster_completed(self, clusters: Array) -> None:
        """Record that all threads of some clusters have arrived at their barrier."""
        if clusters.size and self.cluster_races is not None:
            self.cluster_races.cluster_complete(clusters)
        if clusters.size and self.global_races is not None and self.cluster_size > 1:
            self.global_races.cluster_complete(self, clusters)

    def cluster_passed(self, group: Array) -> None:
        if self.cluster_races is not None:
            self.cluster_races.cluster_pass(group)
        if self.global_races is not None and self.cluster_size > 1:
            self.global_races.cluster_pass(self, group)

    def blocks_ended(self, gone: Array) -> None:
        """Report accesses by other blocks to the shared memory of blocks that have ended. An access
        is not reported if it is ordered before the end of the block whose memory it reaches. `gone`
        is a mask of the threads that have just ended."""
        rows = np.flatnonzero(gone.any(axis=1) & ~self.live.any(axis=1))
        for row in rows.tolist():
            self.leave_copies(row)
            if self.cluster_races is not None:
                self.cluster_races.block_ended(row)

    def step_block(
        self, block: int, registers: list[Array], mask: Array | None, group: Array, alone: bool
    ) -> Array | None:
        """Execute one basic block for a group of threads; return the condition of its branch.
        `alone` is True if no other thread is running or waiting."""
        return self._code(block, not alone)(self, registers, mask, group)


class _Schedule:
    """The running threads of one batch, grouped by the basic block that they execute next."""

    def __init__(self, machine: BlockMachine, registers: list[Array]) -> None:
        self._m = machine
        self._registers = registers
        self._blocks = machine._blocks
        self._steps = machine._steps
        self._groups: dict[int, Array] = {}
        self._counts: dict[int, int] = {}
        self._turn = -1
        self._waiting: BarrierWaits | None = None
        self._cluster = ClusterBarriers(machine.full.shape, machine.cluster_size)
        self._in_cluster = False
        self._live = machine.live
        self._live_count = int(np.count_nonzero(self._live))

    def run(self) -> None:
        machine = self._m
        total = self._live.size
        self._groups = {0: self._live}
        self._counts = {0: self._live_count}
        last, rounds = -1, 0
        while self._groups:
            block = min(self._groups)
            if len(self._groups) > 1 and machine._waits[block] and block <= last:
                rounds += 1
                if rounds % PATIENCE == 0:
                    block = self._another(block)
            last = block
            group, count = self._groups.pop(block), self._counts.pop(block)
            alone = not self._groups and self._waiting is None and not self._in_cluster
            mask = None if alone and count == total else group
            length = self._blocks.ends[block] - self._blocks.starts[block]
            machine.launch.charge(length, count, LEAST_CHARGE)
            machine.group_is_alone = alone
            machine.running = count + sum(self._counts.values())
            if machine.any_idle and not machine._idles[block]:
                machine.worked(group)
            condition = machine.step_block(block, self._registers, mask, group, alone)
            self._after(block, group, count, condition, alone)
            if not self._groups and (self._waiting is not None or self._in_cluster):
                self._deadlock()
                return

    def _another(self, block: int) -> int:
        """Choose the basic block to run in place of `block`, whose threads seem to wait for others.
        The other blocks take turns; the result is `block` if no other can run."""
        others = sorted(
            b
            for b, group in self._groups.items()
            if b != block and (not self._m._collective[b] or self._is_whole(group))
        )
        if not others:
            return block
        self._turn = next((b for b in others if b > self._turn), others[0])
        return self._turn

    def _is_whole(self, group: Array) -> bool:
        """Tell whether a group includes all running threads of each of its warps."""
        warps = (-1, WARP)
        here, alive = group.reshape(warps), self._live.reshape(warps)
        return bool(((here == alive).all(axis=1) | ~here.any(axis=1)).all())

    def _after(
        self, block: int, group: Array, count: int, condition: Array | None, alone: bool
    ) -> None:
        index = self._blocks.ends[block] - 1
        step = self._steps[index]
        base = step.opcode.base
        if base == "brx":
            self._table(step.targets, group, condition, index)
            return
        if step.opcode.is_branch or base in ENDS_THREADS:
            taken, number = self._taken(group, count, condition)
            if number:
                if step.opcode.is_branch:
                    self._put(self._blocks.number[step.targets[0]], taken, number)
                else:
                    if base == "trap":
                        self._m.report_trap(taken, index)
                    self._leave(taken, number)
            if number < count:
                rest = group & ~taken if number else group
                self._put(block + 1, rest, count - number)
        elif is_barrier(step):
            self._barrier(block, group, count, alone, index)
        elif is_cluster_barrier(step):
            self._cluster_barrier(block, group, count, index)
        else:
            self._put(block + 1, group, count)

    def _taken(self, group: Array, count: int, condition: Array | None) -> tuple[Array, int]:
        if condition is None:
            return group, count
        if condition.size == 1:
            return group, count if bool(condition.flat[0]) else 0
        taken = condition & group
        number = int(np.count_nonzero(taken))
        return (group if number == count else taken), number

    def _table(
        self, targets: tuple[int, ...], group: Array, condition: Array | None, index: int
    ) -> None:
        assert condition is not None
        choice = np.broadcast_to(condition, group.shape)
        for value in np.unique(choice[group]).tolist():
            chosen = group & (choice == value)
            number = int(np.count_nonzero(chosen))
            if value < len(targets):
                self._put(self._blocks.number[targets[value]], chosen, number)
            else:
                self._m.report_mask(
                    "mem", "branch-index", chosen, index,
                    f"jumps to entry {value} of a table of {len(targets)}",
                )  # fmt: skip
                self._leave(chosen, number)

    def _leave(self, gone: Array, number: int) -> None:
        self._live = self._live & ~gone
        self._live_count -= number
        self._m.live = self._live
        if self._m.cluster_size > 1:
            self._m.blocks_ended(gone)
            self._release_clusters()
        if self._waiting is not None:
            self._release()

    def _put(self, block: int, group: Array, count: int) -> None:
        if block >= len(self._blocks.starts):
            self._leave(group, count)
        elif block in self._groups:
            self._groups[block] = self._groups[block] | group
            self._counts[block] += count
        else:
            self._groups[block] = group
            self._counts[block] = count

    def _barrier(self, block: int, group: Array, count: int, alone: bool, index: int) -> None:
        request = self._m.barrier_request
        everyone = request.plain and alone and count == self._live_count
        if everyone and request.predicate is None:
            self._m.barrier_passed(None)
            self._put(block + 1, group, count)
            return
        if self._waiting is None:
            self._waiting = BarrierWaits(group.shape)
        self._waiting.arrive(request, group, block + 1, index)
        if request.arrive_only:
            for name, arrived in request.by_name(group):
                self._waiting.learn(name, self._m.barrier_arrived(arrived))
            self._put(block + 1, group, count)
        self._release()

    def _cluster_barrier(self, block: int, group: Array, count: int, index: int) -> None:
        words = self._steps[index].opcode.segments
        if "arrive" in words:
            self._m.cluster_arrived(group, "relaxed" not in words)
            self._m.report_mask(
                "sync", "arrived-twice", self._cluster.arrive(group), index,
                "arrives at the barrier of the cluster again without having waited",
            )  # fmt: skip
            self._put(block + 1, group, count)
        else:
            found = self._cluster.wait(group, block + 1, index)
            self._m.report_mask(
                "sync", "not-arrived", found.absent, index,
                "waits at the barrier of the cluster without having arrived",
            )  # fmt: skip
            self._m.cluster_passed(found.passed)
            self._go_on(found.passed | found.absent, block + 1)
        self._release_clusters()

    def _go_on(self, group: Array, block: int) -> None:
        number = int(np.count_nonzero(group))
        if number:
            self._put(block, group, number)

    def _release_clusters(self) -> None:
        """Let threads continue if all running threads of their cluster have arrived."""
        cluster = self._cluster
        ended, released = cluster.complete(self._live)
        self._m.cluster_completed(ended)
        if released.any():
            self._m.cluster_passed(released)
            for block in np.unique(cluster.block[released]).tolist():
                self._go_on(released & (cluster.block == block), block)
        self._in_cluster = bool(cluster.waiting.any())

    def _release(self) -> None:
        waiting = self._waiting
        assert waiting is not None
        for released, arrived in waiting.released(self._live):
            self._m.barrier_passed(released, arrived)
            self._check_alike(released)
            waiting.give_results(released, self._registers)
            blocks = waiting.block[released]
            for block in np.unique(blocks).tolist():
                chosen = released & (waiting.block == block)
                self._put(block, chosen, int(np.count_nonzero(chosen)))
            waiting.block[released] = -1
        if not (waiting.block >= 0).any():
            waiting.block[...] = -1
            if not any(counts.any() for counts in waiting.arrived.values()):
                self._waiting = None

    def _check_alike(self, released: Array) -> None:
        """Report threads of a block that wait for the same barrier at different instructions.
        `released` is a mask of the threads that a barrier has just released. A ``barrier`` without
        ``.aligned`` is exempt."""
        waiting = self._waiting
        assert waiting is not None
        steps = waiting.step
        if len(np.unique(steps[released])) == 1:
            return
        low = np.where(released, steps, np.iinfo(np.int32).max).min(axis=1)
        # Warps may reach a barrier.sync without .aligned by different instructions.
        free = [i for i, s in enumerate(self._steps) if is_unaligned(s)]
        other = released & (steps != low[:, None]) & waiting.plain & ~np.isin(steps, free)
        for step in np.unique(steps[other]).tolist():
            chosen = other & (steps == step)
            row = int(np.flatnonzero(chosen.any(axis=1))[0])
            self._m.report_mask(
                "sync", "different-barriers", chosen, step,
                f"is waited at by some threads of a block while others wait at {THERE}",
                int(low[row]),
            )  # fmt: skip

    def _deadlock(self) -> None:
        self._cluster_deadlock()
        waiting = self._waiting
        if waiting is None:
            return
        stuck = waiting.block >= 0
        for step in np.unique(waiting.step[stuck]).tolist():
            chosen = stuck & (waiting.step == step)
            row = int(np.flatnonzero(chosen.any(axis=1))[0])
            there = int(np.count_nonzero(chosen[row]))
            self._m.report_mask(
                "sync", "never-completed", chosen, step,
                f"is never completed: {there} of {self._m.launch.threads} threads of the block "
                "wait there",
            )  # fmt: skip

    def _cluster_deadlock(self) -> None:
        cluster = self._cluster
        for step in np.unique(cluster.step[cluster.waiting]).tolist():
            chosen = cluster.waiting & (cluster.step == step)
            size = self._m.cluster_size
            first = int(np.flatnonzero(chosen.any(axis=1))[0]) // size * size
            there = int(np.count_nonzero(chosen[first : first + size]))
            self._m.report_mask(
                "sync", "never-completed", chosen, step,
                f"is never completed: {there} of {size * self._m.launch.threads} threads of the "
                "cluster wait there",
            )  # fmt: skip


def _waiting_blocks(program: KernelProgram, blocks: Blocks) -> list[bool]:
    """Tell for each basic block whether a thread may wait in it for another thread. Such a block
    has an ``atom``, a strong load, a ``nanosleep`` or an ``mbarrier`` instruction."""
    words = {"volatile", "acquire", "relaxed", "mbarrier", "try_wait", "test_wait"}
    found = []
    for start, end in zip(blocks.starts, blocks.ends, strict=True):
        found.append(
            any(
                step.opcode.base in ("atom", "nanosleep", "mbarrier")
                or (step.opcode.base == "ld" and words.intersection(step.opcode.segments))
                for step in program.steps[start:end]
            )
        )
    return found


_IDLE = frozenset({"bra", "setp", "selp", "mov", "nanosleep"})


def _idle_blocks(program: KernelProgram, blocks: Blocks) -> list[bool]:
    """Tell for each basic block whether it does nothing but poll barrier objects and branch."""
    return [
        all(
            step.opcode.base in _IDLE or step.opcode.segments[1:2] in (("try_wait",),
                                                                       ("test_wait",))
            for step in program.steps[start:end]
        )
        for start, end in zip(blocks.starts, blocks.ends, strict=True)
    ]  # fmt: skip


def _collective_blocks(program: KernelProgram, blocks: Blocks) -> list[bool]:
    """Tell for each basic block whether the threads of a warp must enter it together."""
    return [
        any(
            "sync" in step.opcode.segments or step.opcode.base in ("mma", "ldmatrix", "wmma")
            for step in program.steps[start:end]
        )
        for start, end in zip(blocks.starts, blocks.ends, strict=True)
    ]


# Threads that wait at barriers of their blocks (``bar``, ``barrier``) in one batch.


class BarrierRequest(Struct):
    """The operands of the barrier instruction that ends a basic block."""

    name: Array
    wanted: Array | None = None
    arrive_only: bool = False
    predicate: Array | None = None
    operation: str = ""
    result: int = -1

    @property
    def plain(self) -> bool:
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
        those already stored for the barrier."""
        if known is not None:
            before = self._known.get(name)
            self._known[name] = known if before is None else np.maximum(before, known)

    def released(self, live: Array) -> list[tuple[Array, Array | None]]:
        """Return the warps that barriers release, and reset the arrivals at these barriers."""
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

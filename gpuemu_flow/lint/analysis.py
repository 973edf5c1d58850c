"""What lint rules are made of: analysis of a kernel, divergent barriers, the rule itself."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import cached_property

from msgspec import Struct

from gpuemu_flow.lint.kernel import Finding, KernelPolicy, KernelView, PtxLocation
from gpuemu_flow.lint.ptx.flow import (
    ControlFlowGraph,
    Dataflow,
    Registers,
    analyse_dataflow,
    build_cfg,
)
from gpuemu_flow.lint.ptx.model import Function, Instruction, Opcode, split_operands
from gpuemu_flow.lint.ptx.parser import read_body

MAX_FINDINGS = 20
"""Largest number of findings that one rule reports per kernel; the last one sums up the rest."""

_CALLED = re.compile(r"(?:\([^()]*\)\s*,\s*)?([A-Za-z_$%][\w$%]*)", re.ASCII)


class KernelAnalysis:
    """The body of a kernel and facts derived from it, each computed when first needed."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.body = read_body(function)

    @cached_property
    def graph(self) -> ControlFlowGraph:
        return build_cfg(self.body)

    @cached_property
    def flow(self) -> Dataflow:
        return analyse_dataflow(self.body)

    @cached_property
    def by_opcode(self) -> dict[Opcode, list[int]]:
        found: dict[Opcode, list[int]] = {}
        for index, instruction in enumerate(self.body.instructions):
            opcode = instruction[0]
            if opcode in found:
                found[opcode].append(index)
            else:
                found[opcode] = [index]
        return found

    @cached_property
    def _opcodes_by_base(self) -> dict[str, list[Opcode]]:
        found: dict[str, list[Opcode]] = {}
        for opcode in self.by_opcode:
            found.setdefault(opcode.base, []).append(opcode)
        return found

    @cached_property
    def calls(self) -> dict[str, list[int]]:
        """Map each called function to the indices of its calls, in file order. For a call through a
        register, the register's name stands for the function."""
        found: dict[str, list[int]] = {}
        for index in self.select("call"):
            match = _CALLED.match(self.body.instructions[index].text.lstrip())
            if match is not None:
                found.setdefault(match.group(1), []).append(index)
        return found

    @cached_property
    def loop_blocks(self) -> list[bool]:
        """Tell for each block whether it lies in a loop."""
        return self.graph.blocks_in_loops()

    def select(self, *bases: str, where: Callable[[Opcode], bool] | None = None) -> list[int]:
        """Return the indices of the instructions with the given opcodes, in file order."""
        found = [
            self.by_opcode[opcode]
            for base in bases
            for opcode in self._opcodes_by_base.get(base, ())
            if where is None or where(opcode)
        ]
        if len(found) == 1:
            return found[0]
        return sorted(index for indices in found for index in indices)

    def in_loop(self, index: int) -> bool:
        return self.loop_blocks[self.graph.block_of(index)]

    def operands(self, index: int) -> tuple[str, ...]:
        return split_operands(self.body.instructions[index].text)

    def place(self, index: int) -> PtxLocation:
        instruction = self.body.instructions[index]
        line = self.function.module.source.line_of(instruction.offset)
        return self._with_source(instruction, line)

    def _with_source(self, instruction: Instruction, line: int) -> PtxLocation:
        location = self.body.location_of(instruction)
        if location is None:
            return PtxLocation(line)
        files = self.function.module.files
        call = location.inlined_at
        return PtxLocation(
            line,
            files.get(location.file, ""),
            location.line,
            files.get(call[0], "") if call else "",
            call[1] if call else 0,
        )

    @cached_property
    def kernel_place(self) -> PtxLocation:
        """Return the kernel's location: the PTX line of its header, and its first source line."""
        line = self.function.line
        if not self.body.locations:
            return PtxLocation(line)
        first = self.body.locations[0]
        path = self.function.module.files.get(first.file, "")
        return PtxLocation(line, path, first.line)

    def group(self, indices: Iterable[int], describe: Callable[[int, int], str]) -> list[Finding]:
        """Return one finding for each source line of the given instructions. There are at most
        `MAX_FINDINGS`; the last one then covers all remaining instructions."""
        groups: dict[tuple[int, int], list[int]] = {}
        instructions, locations = self.body.instructions, self.body.locations
        for index in indices:
            number = instructions[index].location
            key = (locations[number].file, locations[number].line) if number >= 0 else (-1, 0)
            groups.setdefault(key, []).append(index)
        findings = []
        shown = list(groups.values())
        if len(shown) > MAX_FINDINGS:
            rest = [index for members in shown[MAX_FINDINGS - 1 :] for index in members]
            shown = [*shown[: MAX_FINDINGS - 1], rest]
        for members in shown:
            first, count = members[0], len(members)
            findings.append(Finding(describe(first, count), self.place(first), actual=count))
        return findings


_STEPS_PER_BLOCK = 50
_MIN_STEPS = 200_000


class DivergentBarrier(Struct, frozen=True):
    """A barrier, and a branch that decides which threads reach it; both as instruction indices.
    ``branch`` is the barrier itself if the barrier has a predicate. ``early_exit`` is True if the
    threads that miss the barrier run to the end without meeting any barrier. Such code works,
    because a barrier waits only for threads that have not ended (CUDA C++ Programming Guide,
    "Independent Thread Scheduling")."""

    barrier: int
    branch: int
    early_exit: bool


def divergent_barriers(analysis: KernelAnalysis) -> list[DivergentBarrier]:
    """Find block-wide barriers that threads reach or miss depending on the thread index. A branch
    on the thread index counts if the barrier lies between the branch and the point where its paths
    meet again (the branch's immediate post-dominator). If the search in an entangled graph would
    take much more than linear time, it ends early and may miss barriers. Barriers that have a
    predicate of their own are never missed."""
    instructions = analysis.body.instructions
    barriers = analysis.select("bar", "barrier", where=_may_be_block_wide)
    barriers = [b for b in barriers if not _counts_threads(analysis, b)]
    graph = analysis.graph
    branches = [
        end - 1
        for block, end in enumerate(graph.ends)
        if instructions[end - 1].guard is not None
        and (len(graph.successors[block]) > 1 or instructions[end - 1].opcode.is_terminator)
    ]
    guarded = [b for b in barriers if instructions[b].guard is not None]
    if not barriers or not (branches or guarded):
        return []
    divergent = thread_dependent_guards(analysis)
    found = {b: DivergentBarrier(b, b, early_exit=False) for b in guarded if b in divergent}
    _search_regions(analysis, barriers, [b for b in branches if b in divergent], found)
    return [found[barrier] for barrier in sorted(found)]


def _search_regions(
    analysis: KernelAnalysis,
    barriers: list[int],
    branches: list[int],
    found: dict[int, DivergentBarrier],
) -> None:
    """Add to `found` the barriers that lie between a branch and the point where its paths meet."""
    graph = analysis.graph
    after = _immediate_post_dominators(graph) if branches else None
    if after is None:
        return
    barrier_in: dict[int, int] = {}
    for barrier in barriers:
        barrier_in.setdefault(graph.block_of(barrier), barrier)
    reaches = _blocks_that_reach(graph, list(barrier_in))
    component = graph.components()
    budget = _MIN_STEPS + _STEPS_PER_BLOCK * len(graph)
    for branch in branches:
        block = graph.block_of(branch)
        members, steps = _region(graph, block, after[block], budget)
        budget -= steps
        if budget < 0:
            return
        sides = graph.successors[block]
        one_side_ends = graph.leaves[block] or not all(reaches[side] for side in sides)
        for barrier in (barrier_in[member] for member in members if member in barrier_in):
            loop = component[block]
            same_loop = len(loop) > 1 and component[graph.block_of(barrier)] is loop
            exits = one_side_ends and not same_loop
            known = found.get(barrier)
            if known is None or (known.early_exit and not exits):
                found[barrier] = DivergentBarrier(barrier, branch, exits)


def _may_be_block_wide(opcode: Opcode) -> bool:
    segments = opcode.segments
    if opcode.base == "bar":
        return len(segments) == 1 or segments[1] in ("sync", "red", "arrive", "cta")
    waits = not {"sync", "red", "cluster"}.isdisjoint(segments)
    return waits and "aligned" in segments


def _counts_threads(analysis: KernelAnalysis, barrier: int) -> bool:
    reduces = "red" in analysis.body.instructions[barrier].opcode.segments
    return len(analysis.operands(barrier)) > (3 if reduces else 1)


def _immediate_post_dominators(graph: ControlFlowGraph) -> list[int] | None:
    """Return the immediate post-dominator of each block; ``len(graph)`` is the kernel's end. The
    algorithm is that of Cooper, Harvey and Kennedy (2001) on the reversed graph. The result is None
    if the algorithm takes too many steps. A block from which the end cannot be reached gets the end
    as its post-dominator."""
    end = len(graph)
    order = _reverse_postorder_from_end(graph)
    position = {block: place for place, block in enumerate(order)}
    after = [-1] * (end + 1)
    after[end] = end
    budget = _MIN_STEPS + _STEPS_PER_BLOCK * len(graph)
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            best = -1
            successors = (
                [*graph.successors[block], end]
                if graph.leaves[block]
                else (graph.successors[block])
            )
            for successor in successors:
                if successor not in position or after[successor] < 0:
                    continue
                if best < 0:
                    best = successor
                    continue
                left, right = successor, best
                while left != right:
                    budget -= 1
                    if position[left] > position[right]:
                        left = after[left]
                    else:
                        right = after[right]
                best = left
                if budget < 0:
                    return None
            if best >= 0 and after[block] != best:
                after[block] = best
                changed = True
    return [end if place < 0 else place for place in after[:end]]


def _reverse_postorder_from_end(graph: ControlFlowGraph) -> list[int]:
    """Return the blocks in reverse postorder of a walk against the edges, from the kernel's end.
    The end itself, as number ``len(graph)``, comes first."""
    end = len(graph)
    before_end = [block for block in range(end) if graph.leaves[block]]
    visited = [False] * (end + 1)
    visited[end] = True
    postorder: list[int] = []
    stack: list[tuple[int, list[int]]] = [(end, list(before_end))]
    while stack:
        block, pending = stack[-1]
        if not pending:
            postorder.append(block)
            stack.pop()
            continue
        predecessor = pending.pop()
        if not visited[predecessor]:
            visited[predecessor] = True
            stack.append((predecessor, list(graph.predecessors[predecessor])))
    postorder.reverse()
    return postorder


def _blocks_that_reach(graph: ControlFlowGraph, targets: list[int]) -> list[bool]:
    """Tell for each block whether execution can reach one of the targets from it."""
    reaches = [False] * len(graph)
    waiting = list(targets)
    for target in targets:
        reaches[target] = True
    while waiting:
        for predecessor in graph.predecessors[waiting.pop()]:
            if not reaches[predecessor]:
                reaches[predecessor] = True
                waiting.append(predecessor)
    return reaches


def _region(graph: ControlFlowGraph, block: int, meeting: int, budget: int) -> tuple[set[int], int]:
    """Return the blocks between a branch and the block where its paths meet, and the steps taken.
    The search stops when the number of steps exceeds `budget`."""
    members: set[int] = set()
    waiting = list(graph.successors[block])
    steps = 0
    while waiting and steps <= budget:
        steps += 1
        current = waiting.pop()
        if current != meeting and current not in members:
            members.add(current)
            waiting.extend(graph.successors[current])
    return members, steps


# Find predicates that depend on the thread index, by following values through the program.


_THREAD_SOURCES = re.compile(r"%(?:tid|laneid|lanemask_\w+|warpid)\b", re.ASCII)
_UNIFORM_RESULTS = frozenset({"vote", "bar", "barrier", "redux", "match"})
_VISITS_PER_INSTRUCTION = 50
_MIN_VISITS = 200_000


def thread_dependent_guards(analysis: KernelAnalysis) -> set[int]:
    """Return the indices of instructions whose guard depends on the thread index. Compilers reuse
    registers for unrelated values. For a register with several definitions, the dependence is
    therefore found for each instruction separately. Values that differ between threads only because
    the threads took different paths do not count. If the analysis would take much longer than a few
    passes over the kernel, it ends early, and the instructions found so far are returned."""
    return _Propagation(analysis).run()


class _Propagation:
    """The state of one analysis, which visits blocks until nothing changes. If a register has one
    definition, it depends on the thread index everywhere or nowhere. For registers with several
    definitions, the dependence is kept separately for the start of each block."""

    def __init__(self, analysis: KernelAnalysis) -> None:
        self._graph = analysis.graph
        self._flow = analysis.flow
        self._instructions = analysis.body.instructions
        definitions = Counter(r for written in self._flow.defs for r in written)
        self._reused = {register for register, count in definitions.items() if count > 1}
        self._sources = _thread_sources(analysis)
        self._single: set[int] = set()
        self._entering: list[set[int]] = [set() for _ in self._graph.starts]
        self._readers = self._blocks_reading_single_definitions()
        self._guards: set[int] = set()

    def run(self) -> set[int]:
        """Visit blocks until nothing changes or the budget is spent; return the guards found. The
        guards are given by the indices of their instructions."""
        graph = self._graph
        waiting = deque(range(len(graph)))
        queued = [True] * len(graph)
        budget = _MIN_VISITS + _VISITS_PER_INSTRUCTION * len(self._instructions)
        while waiting and budget > 0:
            block = waiting.popleft()
            queued[block] = False
            budget -= graph.ends[block] - graph.starts[block]
            for other in self._walk(block):
                if not queued[other]:
                    queued[other] = True
                    waiting.append(other)
        return self._guards

    def _walk(self, block: int) -> set[int]:
        """Propagate dependence through one block; return the blocks that must be visited again."""
        flow, instructions, single = self._flow, self._instructions, self._single
        current = set(self._entering[block])
        again: set[int] = set()
        for index in range(self._graph.starts[block], self._graph.ends[block]):
            tainted = index in self._sources
            for register in flow.uses[index]:
                if register in single or register in current:
                    tainted = True
                    break
            guard = instructions[index].guard
            if tainted and guard is not None:
                predicate = flow.uses[index][-1:]  # the guard is the last use
                if not single.isdisjoint(predicate) or not current.isdisjoint(predicate):
                    self._guards.add(index)
            if tainted and instructions[index].opcode.base in _UNIFORM_RESULTS:
                tainted = False
            if tainted:
                self._taint(flow.defs[index], current, again)
            elif current and guard is None:
                current.difference_update(flow.defs[index])
        for successor in self._graph.successors[block]:
            if not current <= self._entering[successor]:
                self._entering[successor] |= current
                again.add(successor)
        return again

    def _taint(self, registers: Registers, current: set[int], again: set[int]) -> None:
        for register in registers:
            if register in self._reused:
                current.add(register)
            elif register not in self._single:
                self._single.add(register)
                again.update(self._readers.get(register, ()))

    def _blocks_reading_single_definitions(self) -> dict[int, set[int]]:
        """Map each register with one definition to the blocks that read it before they write it."""
        readers: dict[int, set[int]] = {}
        graph, flow = self._graph, self._flow
        for block, (start, end) in enumerate(zip(graph.starts, graph.ends, strict=True)):
            written: set[int] = set()
            for index in range(start, end):
                for register in flow.uses[index]:
                    if register not in written and register not in self._reused:
                        readers.setdefault(register, set()).add(block)
                written.update(flow.defs[index])
        return readers


def _thread_sources(analysis: KernelAnalysis) -> set[int]:
    """Return the indices of instructions that read the thread index, and of atomics. All of these
    give different values to different threads."""
    found = set(analysis.select("atom"))
    function, instructions = analysis.function, analysis.body.instructions
    text = function.module.source.text
    for match in _THREAD_SOURCES.finditer(text, function.body_start, function.body_end):
        found.add(bisect_right(instructions, match.start(), key=lambda i: i.offset) - 1)
    return found


Findings = Iterable[Finding]


class Rule(Struct, frozen=True):
    """One lint rule; ``severity`` is the default of its findings. ``what``, ``why``, ``example``
    and ``instead`` are its page: what it looks for, why that matters, a kernel that breaks it, and
    what to do instead. ``find`` searches the PTX once, whatever the policy; what it finds is kept
    in the kernel view, and is what the rule finds unless it has a ``check``, which judges a view by
    a policy. ``unchecked`` returns why the rule cannot judge a view, or an empty text; without it,
    a rule with ``find`` needs the PTX."""

    id: str
    severity: str
    what: str
    why: str
    example: str
    instead: str
    find: Callable[[KernelAnalysis], Findings] | None = None
    check: Callable[[KernelView, KernelPolicy], Findings] | None = None
    unchecked: Callable[[KernelView, KernelPolicy], str] | None = None

    def findings(self, view: KernelView, policy: KernelPolicy) -> Findings:
        """Return what the rule finds in a kernel under a policy."""
        if self.check is not None:
            return self.check(view, policy)
        return view.findings.get(self.id, ())

    def why_unchecked(self, view: KernelView, policy: KernelPolicy) -> str:
        """Return the reason why the rule cannot judge a kernel; empty if it can."""
        unchecked = self.unchecked or (needs_ptx if self.find is not None else None)
        return unchecked(view, policy) if unchecked is not None else ""


def needs_ptx(view: KernelView, _policy: KernelPolicy) -> str:
    return "" if view.has_ptx else "needs the kernel's PTX"


def needs_exact_figures(view: KernelView, _policy: KernelPolicy) -> str:
    return "" if view.metrics.is_exact else "needs a cubin or the output of ptxas -v"

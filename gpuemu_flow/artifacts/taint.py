"""Find predicates that depend on the thread index, by following values through the program."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, deque

from gpuemu_flow.artifacts.analysis import KernelAnalysis
from gpuemu_flow.artifacts.ptx.dataflow import Registers

_THREAD_SOURCES = re.compile(r"%(?:tid|laneid|lanemask_\w+|warpid)\b", re.ASCII)
_UNIFORM_RESULTS = frozenset({"vote", "bar", "barrier", "redux", "match"})
_VISITS_PER_INSTRUCTION = 50
_MIN_VISITS = 200_000


def thread_dependent_guards(analysis: KernelAnalysis) -> set[int]:
    """Return the indices of instructions whose guard depends on the thread index.

    Compilers reuse registers for unrelated values. For a register with several definitions, the
    dependence is therefore found for each instruction separately. Values that differ between
    threads only because the threads took different paths do not count. If the analysis would take
    much longer than a few passes over the kernel, it ends early, and the instructions found so far
    are returned.
    """
    return _Propagation(analysis).run()


class _Propagation:
    """The state of one analysis, which visits blocks until nothing changes.

    If a register has one definition, it depends on the thread index everywhere or nowhere. For
    registers with several definitions, the dependence is kept separately for the start of each
    block.
    """

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
        """Visit blocks until nothing changes or the budget is spent; return the guards found.

        The guards are given by the indices of their instructions.
        """
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
    """Return the indices of instructions that read the thread index, and of atomics.

    All of these give different values to different threads.
    """
    found = set(analysis.select("atom"))
    function, instructions = analysis.function, analysis.body.instructions
    text = function.module.source.text
    for match in _THREAD_SOURCES.finditer(text, function.body_start, function.body_end):
        found.add(bisect_right(instructions, match.start(), key=lambda i: i.offset) - 1)
    return found

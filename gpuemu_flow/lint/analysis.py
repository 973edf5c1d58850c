"""The parsed body of one kernel, which all rules that examine PTX share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property

from gpuemu_flow.lint.kernel import Finding, PtxLocation
from gpuemu_flow.lint.ptx.flow import ControlFlowGraph, Dataflow, analyse_dataflow, build_cfg
from gpuemu_flow.lint.ptx.model import Function, Instruction
from gpuemu_flow.lint.ptx.opcode import Opcode, split_operands
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
        """Map each distinct opcode to the indices of its instructions, in file order."""
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
        """Map each called function to the indices of its calls, in file order.

        For a call through a register, the register's name stands for the function.
        """
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
        """Tell whether an instruction lies in a loop."""
        return self.loop_blocks[self.graph.block_of(index)]

    def operands(self, index: int) -> tuple[str, ...]:
        """Return the operands of an instruction."""
        return split_operands(self.body.instructions[index].text)

    def place(self, index: int) -> PtxLocation:
        """Return the location of an instruction in the PTX and in its source."""
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
        """Return one finding for each source line of the given instructions.

        There are at most `MAX_FINDINGS`; the last one then covers all remaining instructions.
        """
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

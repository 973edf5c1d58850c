"""Coverage of a PTX file: instructions that can be run, and why others cannot."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from gpuemu_flow.emulator.codegen import why_not
from gpuemu_flow.emulator.decode import decode_program
from gpuemu_flow.emulator.errors import UnsupportedError
from gpuemu_flow.emulator.launch import read_entries


class MissingOpcode(Struct, frozen=True):
    """An opcode that the emulator cannot run: its count in a kernel, first line, and the reason."""

    opcode: str
    count: int
    line: int
    reason: str


class KernelCoverage(Struct, frozen=True):
    """Coverage of one kernel's instructions."""

    name: str
    steps: int
    opcodes: dict[str, int]
    missing: tuple[MissingOpcode, ...]
    problem: str = ""

    @property
    def runs(self) -> bool:
        """Tell whether the emulator can run the kernel."""
        return not self.missing and not self.problem


def cover_file(data: bytes, file: str) -> list[KernelCoverage]:
    """Examine every kernel of a PTX file.

    Raises UnsupportedError when the file is not PTX or holds no kernel.
    """
    found = []
    for entry in read_entries(data, file):
        try:
            program = decode_program(entry)
        except UnsupportedError as error:
            found.append(KernelCoverage(entry.name, 0, {}, (), str(error)))
            continue
        opcodes: Counter[str] = Counter()
        missing: dict[str, MissingOpcode] = {}
        for step in program.steps:
            name = step.opcode.text
            opcodes[name] += 1
            reason = why_not(step)
            if reason and name in missing:
                known = missing[name]
                missing[name] = MissingOpcode(name, known.count + 1, known.line, known.reason)
            elif reason:
                line = program.module.source.line_of(step.offset)
                missing[name] = MissingOpcode(name, 1, line, reason)
        found.append(
            KernelCoverage(
                entry.name, len(program.steps), dict(opcodes.most_common()), tuple(missing.values())
            )
        )
    return found

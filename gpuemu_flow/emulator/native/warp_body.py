"""C for a step that a warp executes together: read each lane, compute, then write each lane."""

from __future__ import annotations

from collections.abc import Sequence

from gpuemu_flow.emulator.effects.checking import items_of
from gpuemu_flow.emulator.ir import KernelProgram, MemoryOperand, Operand, Sink, Step
from gpuemu_flow.emulator.native.writer import SegmentWriter, bits_type, c_type
from gpuemu_flow.emulator.types import SIZES

KINDS = {
    "f16": 0, "bf16": 1, "tf32": 2, "s8": 3, "u8": 4, "s4": 5, "u4": 6, "e4m3": 7, "e5m2": 8,
    "f32": 9, "s32": 10, "b1": 11,
}  # fmt: skip
"""Numbers of element types in C."""


class WarpBody:
    """Writer of the C for one step that a warp executes together."""

    def __init__(self, program: KernelProgram) -> None:
        self.program = program
        self.reader, self.writer = SegmentWriter(program), SegmentWriter(program)
        self.arrays: list[str] = []
        self.work: list[str] = []

    def take(self, operand: Operand, type_name: str) -> str:
        """Write code that reads an operand of every lane into an array; return the array's name."""
        name = f"x{len(self.arrays)}"
        self.arrays.append(f"{c_type(type_name)} {name}[32]")
        self.reader.do(f"{name}[l] = {self.reader.read(operand, type_name)};")
        return name

    def take_all(self, name: str, operands: Sequence[Operand]) -> None:
        """Write code that reads several registers of every lane into rows of the array `name`."""
        self.arrays.append(f"uint32_t {name}[{len(operands)}][32]")
        for k, operand in enumerate(operands):
            self.reader.do(f"{name}[{k}][l] = {self.reader.read(operand, 'b32')};")

    def take_address(self, address: Operand) -> str:
        """Write code that reads an address operand of every lane; return the name of the array."""
        assert isinstance(address, MemoryOperand)
        name = f"x{len(self.arrays)}"
        self.arrays.append(f"uint64_t {name}[32]")
        self.reader.do(f"{name}[l] = {self.reader.address(address)};")
        return name

    def give(self, step: Step, values: Sequence[str], types: Sequence[str]) -> None:
        """Write code that assigns a step's results to the step's first operand."""
        items = items_of(step.operands[0])
        names = [
            self.writer.temporary("uint8_t" if t == "pred" else bits_type(SIZES[t]), v)
            for v, t in zip(values, types, strict=False)
        ]
        for item, name, type_name in zip(items, names, types, strict=False):
            if not isinstance(item, Sink):
                self.writer.write(item, name, type_name)

    def check_members(self, given: str = "") -> None:
        """Write the check that all living threads of each lane's member mask execute the step.

        `given` is the name of the C array with the lanes' masks. If it is empty, every mask
        contains all threads of the warp.
        """
        if not given:
            self.work.append("uint32_t everyone[32]; memset(everyone, 255, sizeof everyone);")
        self.work.append(f"members(s, {given or 'everyone'}, mask, alive);")

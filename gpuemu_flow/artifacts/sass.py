"""Machine code as NVIDIA's disassemblers print it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any

from gpuemu_flow.errors import Problem
from gpuemu_flow.quick_dataclass import dataclass

_SPILL_ANNOTATION = "SpillRefill"


@dataclass(frozen=True)
class SassInstruction:
    """One machine instruction: its opcode, such as ``LDG.E.128``, and its operands as printed.

    ``spill`` is True if ``nvdisasm -json -annotate`` says that the instruction is a spill.
    """

    opcode: str
    operands: str = ""
    spill: bool = False


@dataclass
class SassListing:
    """Machine instructions of the functions of one cubin."""

    functions: dict[str, list[SassInstruction]] = field(default_factory=dict)

    def histogram(self, name: str) -> dict[str, int] | None:
        """Count the opcodes of a function, except padding; return None for an unlisted function."""
        instructions = self.functions.get(name)
        if instructions is None:
            return None
        counts: dict[str, int] = {}
        for instruction in instructions:
            if instruction.opcode != "NOP":
                counts[instruction.opcode] = counts.get(instruction.opcode, 0) + 1
        return dict(sorted(counts.items()))

    def histograms(self) -> dict[str, dict[str, int]]:
        """Return the result of `histogram` for every function, by name."""
        return {name: self.histogram(name) or {} for name in self.functions}


@dataclass(frozen=True)
class MachineCode:
    """Counts of machine opcodes in the functions of one cubin, and the tool that listed them.

    Attributes
    ----------
    tool : str
        Disassembler and version, such as ``nvdisasm 13.0.88``.
    functions : mapping of str to mapping of str to int
        By function, the count of each opcode, without padding. Code that the compiler inlined into
        a kernel's section counts as the kernel's.
    """

    tool: str
    functions: Mapping[str, Mapping[str, int]]

    def to_json(self) -> dict[str, Any]:
        """Return the arguments of the constructor as plain JSON."""
        return asdict(self)


def parse_nvdisasm_json(text: bytes | str, file: str = "") -> SassListing | Problem:
    """Parse the output of ``nvdisasm -json``, whether made with ``-annotate`` or not.

    The output has the form ``[header, [function, ...]]``. The result is a problem for other text.
    """
    try:
        data = json.loads(text)
        listing = SassListing()
        for function in data[1]:
            listing.functions[str(function["function-name"])] = [
                SassInstruction(
                    str(item["opcode"]),
                    str(item.get("operands", "")),
                    any(a.get("info") == _SPILL_ANNOTATION for a in item.get("annotations", ())),
                )
                for item in function["sass-instructions"]
            ]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return Problem(
            "sass-unreadable",
            f"not the output of nvdisasm -json ({type(error).__name__}: {error})",
            "",
            file,
        )
    return listing

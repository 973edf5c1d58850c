"""Read PTX text into modules, functions, statements and control-flow graphs."""

from gpuemu_flow.lint.ptx.model import (
    Body,
    Destination,
    Function,
    Instruction,
    LaunchBounds,
    Module,
    Opcode,
    PtxFile,
    SourceLocation,
    Variable,
)
from gpuemu_flow.lint.ptx.parser import read_body, read_ptx

__all__ = [
    "Body",
    "Destination",
    "Function",
    "Instruction",
    "LaunchBounds",
    "Module",
    "Opcode",
    "PtxFile",
    "SourceLocation",
    "Variable",
    "read_body",
    "read_ptx",
]

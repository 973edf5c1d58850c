"""Rule 16: neighbouring scalar accesses that could be one vector access."""

from __future__ import annotations

from typing import NamedTuple

from gpuemu_flow.lint.ptx.opcode import Opcode, parse_address
from gpuemu_flow.lint.rules.base import Findings, KernelAnalysis, Rule, plural

_RUN = 4
_WIDEST_ELEMENT = 4
_ORDERED = frozenset(
    {"volatile", "relaxed", "acquire", "release", "mmio", "v2", "v4", "v8", "async", "bulk"}
)


class _Stream(NamedTuple):
    """Properties that scalar accesses must share so that one vector access could replace them."""

    block: int
    operation: str
    base: str
    base_defined_at: int
    size: int
    guard: str | None


def find(analysis: KernelAnalysis) -> Findings:
    """Find runs of four global accesses to consecutive addresses, in one basic block."""
    scalar = analysis.select("ld", "st", where=_is_scalar_global)
    if len(scalar) < _RUN:
        return ()
    streams: dict[_Stream, dict[int, int]] = {}
    instructions, graph = analysis.body.instructions, analysis.graph
    last_definition = _last_definitions(analysis, scalar)
    for index in scalar:
        instruction = instructions[index]
        address = parse_address(instruction.text)
        if address is None:
            continue
        stream = _Stream(
            graph.block_of(index),
            instruction.opcode.base,
            address.base,
            last_definition[index],
            instruction.opcode.access_bytes,
            instruction.guard,
        )
        streams.setdefault(stream, {}).setdefault(address.displacement, index)
    runs = [run for stream, accesses in streams.items() for run in _runs(accesses, stream.size)]
    return analysis.group(
        sorted(runs),
        lambda first, count: (
            f"{plural(count, 'run')} of {_RUN} scalar accesses to consecutive "
            f"addresses ({instructions[first].opcode.text})"
        ),
    )


def _is_scalar_global(opcode: Opcode) -> bool:
    return (
        opcode.space == "global"
        and 0 < opcode.access_bytes <= _WIDEST_ELEMENT
        and _ORDERED.isdisjoint(opcode.segments)
    )


def _last_definitions(analysis: KernelAnalysis, accesses: list[int]) -> dict[int, int]:
    """Map each access to the last earlier instruction that wrote the access's base register.

    Two accesses use the same base address if they have the same base and map to the same
    instruction. An access without such an instruction maps to -1. Accesses and instructions are
    given by index.
    """
    defs, uses = analysis.flow.defs, analysis.flow.uses
    interesting = {register for index in accesses for register in uses[index][:1]}
    written: dict[int, int] = {}
    wanted = set(accesses)
    answers: dict[int, int] = {}
    for index, registers in enumerate(defs):
        if index in wanted:
            answers[index] = written.get(uses[index][0], -1) if uses[index] else -1
        for register in registers:
            if register in interesting:
                written[register] = index
    return answers


def _runs(accesses: dict[int, int], size: int) -> list[int]:
    """Return the index of the first instruction of each run of consecutive displacements.

    `accesses` maps displacements to instructions. A run has `_RUN` accesses of `size` bytes.
    """
    offsets = sorted(accesses)
    starts = []
    position = 0
    while position + _RUN <= len(offsets):
        if offsets[position + _RUN - 1] - offsets[position] == (_RUN - 1) * size:
            starts.append(min(accesses[o] for o in offsets[position : position + _RUN]))
            position += _RUN
        else:
            position += 1
    return starts


RULE = Rule(
    id="scalar-accesses",
    severity="info",
    what="Four loads or stores of consecutive 4-byte (or smaller) elements of global memory from "
    "the same base address.",
    why="One `ld.global.v4` moves the same bytes with a quarter of the instructions and of the "
    "memory requests.",
    example="a = p[0]; b = p[1]; c = p[2]; d = p[3];      // four ld.global.f32",
    instead="Read a `float4` through an aligned pointer, or give Triton a contiguous block with "
    "`tl.multiple_of`. The address must be a multiple of 16 bytes.",
    find=find,
)

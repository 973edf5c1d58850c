"""Register pressure by liveness in PTX: an estimate of the registers that ptxas will allocate."""

from __future__ import annotations

from gpuemu_flow.artifacts.ptx.cfg import ControlFlowGraph
from gpuemu_flow.artifacts.ptx.dataflow import Dataflow
from gpuemu_flow.artifacts.ptx.model import Body, LaunchBounds
from gpuemu_flow.quick_dataclass import dataclass

MAX_TABLE_BITS = 1_000_000_000
"""Limit on the number of blocks times that of registers live between blocks (125 MB of bits).

Larger bodies get no estimate.
"""

REGISTERS_PER_BLOCK = 65_536
MAX_REGISTERS_PER_THREAD = 255
_MIN_REGISTERS = 8
_MIN_REGISTERS_WITH_CALLS = 24


@dataclass(frozen=True)
class Pressure:
    """The highest number of live 32-bit registers, and the instruction at which it is reached."""

    max_live: int
    instruction: int


def max_live(body: Body, graph: ControlFlowGraph, flow: Dataflow) -> Pressure | None:
    """Return the highest register pressure in a body; None if the body is too large to analyse.

    This is the classic backward liveness analysis of basic blocks, with bit sets of the registers
    that are live across a block boundary. A 64-bit register counts as two registers, a predicate as
    none. A definition with a guard does not end the life of the old value.
    """
    effects = [
        _block_effects(body, flow, range(start, end))
        for start, end in zip(graph.starts, graph.ends, strict=True)
    ]
    crossing: set[int] = set().union(*(reads for reads, _ in effects))
    if len(graph) * len(crossing) > MAX_TABLE_BITS:
        return None
    bits = {register: bit for bit, register in enumerate(sorted(crossing))}
    live_out = _solve(graph, effects, bits)
    masks: dict[int, int] = {}
    for register, bit in bits.items():
        width = flow.widths[register]
        masks[width] = masks.get(width, 0) | 1 << bit
    best, where = 0, 0
    for block in range(len(graph)):
        alive = live_out[block]
        pressure = sum((alive & mask).bit_count() * width for width, mask in masks.items())
        found, instruction = _pressure_in_block(
            body, flow, range(graph.starts[block], graph.ends[block]), alive, bits, pressure
        )
        if found > best:
            best, where = found, instruction
    return Pressure(best, where)


def _block_effects(body: Body, flow: Dataflow, block: range) -> tuple[set[int], set[int]]:
    """Return the registers that a block reads before it writes them, and those it always writes."""
    reads: set[int] = set()
    writes: set[int] = set()
    defs, uses, instructions = flow.defs, flow.uses, body.instructions
    for index in block:
        for register in uses[index]:
            if register not in writes:
                reads.add(register)
        if instructions[index].guard is None:
            writes.update(defs[index])
        else:
            reads.update(r for r in defs[index] if r not in writes)
    return reads, writes


def _solve(
    graph: ControlFlowGraph, effects: list[tuple[set[int], set[int]]], bits: dict[int, int]
) -> list[int]:
    """Return, for each block, the bit set of the registers that are live at its end."""
    used = [_bit_set(reads, bits) for reads, _ in effects]
    killed = [~_bit_set(writes, bits) for _, writes in effects]
    count = len(graph)
    live_in = [0] * count
    live_out = [0] * count
    waiting = list(range(count))
    queued = [True] * count
    while waiting:
        block = waiting.pop()
        queued[block] = False
        leaving = 0
        for successor in graph.successors[block]:
            leaving |= live_in[successor]
        live_out[block] = leaving
        entering = used[block] | (leaving & killed[block])
        if entering != live_in[block]:
            live_in[block] = entering
            for predecessor in graph.predecessors[block]:
                if not queued[predecessor]:
                    queued[predecessor] = True
                    waiting.append(predecessor)
    return live_out


def _bit_set(registers: set[int], bits: dict[int, int]) -> int:
    """Return a set of registers as an integer, with the bits that `bits` assigns to them.

    Registers that are not in `bits` are left out.
    """
    found = [bits[r] for r in registers if r in bits]
    if not found:
        return 0
    table = bytearray(max(found) // 8 + 1)
    for bit in found:
        table[bit >> 3] |= 1 << (bit & 7)
    return int.from_bytes(table, "little")


def _pressure_in_block(
    body: Body,
    flow: Dataflow,
    block: range,
    alive_at_end: int,
    bits: dict[int, int],
    pressure: int,
) -> tuple[int, int]:
    """Walk a block backwards; return the highest pressure and the instruction that reaches it.

    `alive_at_end` is the bit set of the registers that are live at the block's end, and `pressure`
    their number, counted in units of 32 bits.
    """
    defs, uses, widths, instructions = flow.defs, flow.uses, flow.widths, body.instructions
    table = alive_at_end.to_bytes(alive_at_end.bit_length() // 8 + 1, "little")
    size = len(table) * 8
    alive: set[int] = set()
    seen: set[int] = set()
    best, where = pressure, block[-1]
    for index in reversed(block):
        for register in (*defs[index], *uses[index]):
            if register not in seen:
                seen.add(register)
                bit = bits.get(register, size)
                if bit < size and table[bit >> 3] >> (bit & 7) & 1:
                    alive.add(register)
        unconditional = instructions[index].guard is None
        at_definition = pressure
        for register in defs[index]:
            if register not in alive:
                at_definition += widths[register]  # a dead result still needs a place
            elif unconditional:
                alive.discard(register)
                pressure -= widths[register]
        for register in uses[index]:
            if register not in alive:
                alive.add(register)
                pressure += widths[register]
        if at_definition > best or pressure > best:
            best, where = max(at_definition, pressure), index
    return best, where


def estimate_registers(pressure: int, has_calls: bool, bounds: LaunchBounds) -> int:
    """Estimate the number of registers per thread that ptxas will use.

    The estimate is ``min(cap, max(8, pressure))``, with 24 in place of 8 for a kernel with calls;
    `register_cap` gives the cap. The estimate was compared with ptxas on 894 kernels of published
    packages that had not been used to fit it: the correlation (Pearson) is 0.93, and the mean error
    is 17 %.
    """
    floor = _MIN_REGISTERS_WITH_CALLS if has_calls else _MIN_REGISTERS
    return min(register_cap(bounds), max(floor, pressure))


def register_cap(bounds: LaunchBounds) -> int:
    """Return the largest number of registers per thread that launch bounds permit."""
    cap = MAX_REGISTERS_PER_THREAD
    if bounds.max_registers:
        cap = min(cap, bounds.max_registers)
    if bounds.max_threads:
        warps = -(-bounds.max_threads // 32)
        blocks = max(bounds.min_blocks, 1)
        cap = min(cap, max(REGISTERS_PER_BLOCK // (warps * 32 * blocks) // 8 * 8, _MIN_REGISTERS))
    return cap

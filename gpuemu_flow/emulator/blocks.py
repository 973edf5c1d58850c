"""Basic blocks of a program, and the registers that are live at their ends."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.emulator.ir import (
    Inverted,
    KernelProgram,
    MemoryOperand,
    Operand,
    OperandGroup,
    Register,
    Step,
    StepLocation,
    TensorPlace,
)
from gpuemu_flow.lint.ptx.model import Destination

ENDS_THREADS = frozenset({"ret", "exit", "trap"})


class Blocks(Struct):
    """Basic blocks in program order; block ``b`` holds steps ``starts[b]`` to ``ends[b] - 1``."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    number: dict[int, int] = field(default_factory=dict)
    successors: list[list[int]] = field(default_factory=list)
    live_out: list[frozenset[int]] = field(default_factory=list)
    entry_live: frozenset[int] = frozenset()


def is_barrier(step: Step) -> bool:
    base, segments = step.opcode.base, step.opcode.segments
    return base in ("bar", "barrier") and "warp" not in segments and "cluster" not in segments


def is_cluster_barrier(step: Step) -> bool:
    """Tell whether a step arrives at the barrier of the cluster, or waits for it."""
    return step.opcode.segments[:2] == ("barrier", "cluster")


def is_unaligned(step: Step) -> bool:
    """Tell whether a step is a ``barrier`` without ``.aligned``. The threads that meet at such a
    barrier may wait at different instructions."""
    return step.opcode.base == "barrier" and "aligned" not in step.opcode.segments


def _ends_block(step: Step) -> bool:
    ends = step.opcode.is_branch or step.opcode.base in ENDS_THREADS
    return ends or is_barrier(step) or is_cluster_barrier(step)


def registers_in(operand: Operand) -> tuple[int, ...]:
    if isinstance(operand, Register):
        return (operand.number,)
    if isinstance(operand, Inverted):
        return (operand.register.number,)
    if isinstance(operand, MemoryOperand):
        return registers_in(operand.base)
    if isinstance(operand, OperandGroup):
        return tuple(n for item in operand.items for n in registers_in(item))
    if isinstance(operand, TensorPlace):
        return tuple(n for o in (operand.map, *operand.coordinates) for n in registers_in(o))
    return ()


def defined_and_used(step: Step) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """List the registers that a step writes and reads; a guarded step reads its destination too."""
    defined: tuple[int, ...] = ()
    operands = step.operands
    writes = step.opcode.destination is Destination.WRITES
    if writes and operands and not isinstance(operands[0], MemoryOperand):
        defined, operands = registers_in(operands[0]), operands[1:]
    used = tuple(n for operand in operands for n in registers_in(operand))
    if step.opcode.destination is Destination.READS_AND_WRITES:
        defined = registers_in(step.operands[0])
    if step.guard is not None:
        used = (*used, step.guard.number, *defined)
    return defined, used


def place_of(program: KernelProgram, step: int) -> StepLocation:
    """Return where a step stands. Compilers give none to what they move, such as a load that they
    take out of a loop: then it is where its result is used first."""
    place = program.place(step)
    made = set() if place.line or not place.file else set(defined_and_used(program.steps[step])[0])
    for later in range(step + 1, len(program.steps) if made else 0):
        used = program.place(later)
        if used.line and not made.isdisjoint(defined_and_used(program.steps[later])[1]):
            return replace(place, file=used.file, line=used.line)
    return place


def split_blocks(program: KernelProgram, also: Iterable[int] = ()) -> Blocks:
    """Cut a program into basic blocks, and compute the registers that are live at their ends."""
    steps = program.steps
    leaders = {0, *also}
    for index, step in enumerate(steps):
        if _ends_block(step):
            leaders.add(index + 1)
            leaders.update(step.targets)
    blocks = Blocks()
    blocks.starts = sorted(leader for leader in leaders if leader < len(steps))
    blocks.ends = [*blocks.starts[1:], len(steps)]
    blocks.number = {start: b for b, start in enumerate(blocks.starts)}
    for b, end in enumerate(blocks.ends):
        last = steps[end - 1]
        follow = [blocks.number[t] for t in dict.fromkeys(last.targets)]
        falls = last.guard is not None or not (
            last.opcode.is_branch or last.opcode.base in ENDS_THREADS
        )
        if falls and b + 1 < len(blocks.starts) and b + 1 not in follow:
            follow.append(b + 1)
        blocks.successors.append(follow)
    _liveness(program, blocks)
    return blocks


def _liveness(program: KernelProgram, blocks: Blocks) -> None:
    reads: list[frozenset[int]] = []
    writes: list[frozenset[int]] = []
    for start, end in zip(blocks.starts, blocks.ends, strict=True):
        read: set[int] = set()
        written: set[int] = set()
        for step in program.steps[start:end]:
            defined, used = defined_and_used(step)
            read.update(n for n in used if n not in written)
            written.update(defined)
        reads.append(frozenset(read))
        writes.append(frozenset(written))
    count = len(blocks.starts)
    predecessors: list[list[int]] = [[] for _ in range(count)]
    for b, follow in enumerate(blocks.successors):
        for target in follow:
            predecessors[target].append(b)
    live_in: list[frozenset[int]] = [frozenset()] * count
    blocks.live_out = [frozenset()] * count
    pending = list(range(count))
    waiting = set(pending)
    while pending:
        b = pending.pop()
        waiting.discard(b)
        out: frozenset[int] = frozenset().union(*(live_in[s] for s in blocks.successors[b]))
        into = reads[b] | (out - writes[b])
        blocks.live_out[b] = out
        if into != live_in[b]:
            live_in[b] = into
            for p in predecessors[b]:
                if p not in waiting:
                    waiting.add(p)
                    pending.append(p)
    blocks.entry_live = live_in[0] if count else frozenset()

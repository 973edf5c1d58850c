"""Find loads that wait for other threads, by the uses of a volatile or relaxed load's value.

If nothing orders a volatile or relaxed load and another thread's strong store to the same address,
the PTX memory model does not call this a data race. Still, timing decides whether the load gets the
value before the store or the value after it. The load is correct only if the kernel handles both.
Examples are a flag that is read until it changes, a value that ``cas`` compares again, and a test
that only avoids an unnecessary atomic. Every other volatile or relaxed load uses its value as data,
and is checked for races like a plain load. A plain load, too, may give the first value of a loop
around a ``cas``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from gpuemu_flow.emulator.blocks import Blocks, defined_and_used, registers_in
from gpuemu_flow.emulator.ir import KernelProgram, MemoryOperand, Step

STRONG = frozenset({"volatile", "relaxed", "acquire", "release", "mmio"})
"""Modifiers of accesses that several threads may make to one address at the same time."""

ORDERS_NOTHING = "; a volatile or relaxed access orders nothing, so the value depends on timing"
"""Words added to a finding about two strong accesses."""

RELEASES = frozenset({"release", "acq_rel"})
"""Modifiers of accesses that publish the earlier accesses of their thread."""

_ALWAYS = frozenset({"acquire", "mmio"})
_ATOMICS = frozenset({"atom", "red"})
_HIDDEN = frozenset({"shared", "local", ""})
"""State spaces of stores that may pass a loaded value on to later loads of the block."""


def is_strong(step: Step) -> bool:
    """Tell whether a step is an atomic, or an access that is volatile, relaxed or stronger."""
    return step.opcode.base in _ATOMICS or not STRONG.isdisjoint(step.opcode.segments)


def polling_loads(program: KernelProgram, blocks: Blocks) -> frozenset[int]:
    """Return the step numbers of the acquire and mmio loads, and of other loads that poll. A
    volatile or relaxed load counts as polling if its value decides whether to load again, or
    whether an atomic update takes place. The kernel is then expected to be correct whether the load
    comes before or after another thread's store. The module's docstring has examples."""
    steps = program.steps
    strong = [n for n, step in enumerate(steps) if step.opcode.base == "ld" and is_strong(step)]
    unclear = [n for n in strong if not _ALWAYS.intersection(steps[n].opcode.segments)]
    found = set(strong).difference(unclear)
    if unclear:
        flow = _Flow(program, blocks)
        found.update(n for n in unclear if flow.is_polling(n))
    compared = {n for step in steps if _is_cas(step) for n in registers_in(step.operands[2])}
    if compared:
        found.update(n for n in range(len(steps)) if _starts_cas(program, n, compared))
    return frozenset(found)


def _is_cas(step: Step) -> bool:
    return step.opcode.base == "atom" and "cas" in step.opcode.segments


def _starts_cas(program: KernelProgram, load: int, compared: set[int]) -> bool:
    """Tell whether a plain load only gives the first value that a ``cas`` compares with memory. So
    begins the loop with which CUDA's programming guide makes an atomic of its own."""
    step = program.steps[load]
    if (
        step.opcode.base != "ld"
        or is_strong(step)
        or step.opcode.space not in ("global", "shared", "")
    ):
        return False
    reached = set(_passed(step)[0])
    size = 0
    while size != len(reached):
        size = len(reached)
        for other in program.steps:
            if other.opcode.base == "mov" and reached.intersection(_passed(other)[1]):
                reached.update(_passed(other)[0])
    return not reached.isdisjoint(compared)


def _loops(blocks: Blocks) -> list[frozenset[int]]:
    """List the natural loops. Loops with the same first block are merged."""
    before: list[list[int]] = [[] for _ in blocks.starts]
    for b, follow in enumerate(blocks.successors):
        for target in follow:
            before[target].append(b)
    bodies: dict[int, set[int]] = {}
    for b, follow in enumerate(blocks.successors):
        for head in follow:
            if head <= b:
                body = bodies.setdefault(head, {head})
                pending = [b]
                while pending:
                    member = pending.pop()
                    if member not in body:
                        body.add(member)
                        pending += before[member]
    return [frozenset(body) for body in bodies.values()]


_Passed = tuple[tuple[int, ...], tuple[int, ...]]


def _passed(step: Step) -> _Passed:
    defined, used = defined_and_used(step)
    if step.opcode.base in ("bar", "barrier") and "red" in step.opcode.segments:
        defined = registers_in(step.operands[0])
    return defined, used


class _Reach(Struct):
    """The registers that depend on a loaded value, and the blocks that run only for some values."""

    registers: set[int]
    decided: set[int]
    hidden: bool = False


class _Flow:
    """Flow of values from step to step of a program."""

    def __init__(self, program: KernelProgram, blocks: Blocks) -> None:
        self.program = program
        self.blocks = blocks
        self._loops = _loops(blocks)
        self._passes = [_passed(step) for step in program.steps]
        self._count = len(blocks.starts)

    def is_polling(self, load: int) -> bool:
        """Tell whether a load's value decides whether to load again or to make an atomic update.

        This is so in each of these cases:

        - The value decides whether a loop that repeats the load is entered or goes on.
        - An ``atom.cas`` compares the value with memory.
        - The value only decides which atomics and harmless stores run; see `_only_saves_work`.
        """
        reach = self._follow(load)
        return (
            self._is_repeated(load, reach)
            or self._is_first_look(load, reach)
            or self._is_compared(reach)
            or self._only_saves_work(load, reach)
        )

    def _block_of(self, index: int) -> int:
        return max(b for b, start in enumerate(self.blocks.starts) if start <= index)

    def _numbers_of(self, chosen: Iterable[int]) -> Iterator[int]:
        for b in chosen:
            yield from range(self.blocks.starts[b], self.blocks.ends[b])

    def _condition(self, block: int) -> set[int]:
        """Return the registers that decide which successor of a block is executed next."""
        step = self.program.steps[self.blocks.ends[block] - 1]
        found = set(registers_in(step.operands[0])) if step.opcode.base == "brx" else set()
        if step.guard is not None:
            found.add(step.guard.number)
        return found if len(self.blocks.successors[block]) > 1 else set()

    def _follow(self, load: int) -> _Reach:
        steps = self.program.steps
        reach = _Reach(set(self._passes[load][0]), set())
        before = (-1, -1, False)
        while before != (size := (len(reach.registers), len(reach.decided), reach.hidden)):
            before = size
            for number, step in enumerate(steps):
                self._through(step, self._passes[number], reach)
            for block in range(self._count):
                if self._condition(block) & reach.registers:
                    self._decide(block, reach)
        return reach

    def _through(self, step: Step, passes: _Passed, reach: _Reach) -> None:
        """Add a step's destination registers to `reach` if the step depends on the loaded value.
        The step depends on the value if it reads a register in `reach`, or if it loads from memory
        to which a dependent step may have stored. `passes` has the registers that the step sets and
        those that it reads. A dependent store sets `reach.hidden`."""
        base, space = step.opcode.base, step.opcode.space
        defined, used = passes
        if base == "ld" and reach.hidden and space in _HIDDEN:
            reach.registers.update(defined)
        elif not reach.registers.isdisjoint(used):
            reach.registers.update(defined)
            reach.hidden |= base == "st" and space in _HIDDEN

    def _decide(self, block: int, reach: _Reach) -> None:
        """Add to `reach` the blocks and registers that depend on the branch at the end of
        `block`. A block depends on the branch if only some of the branch's targets lead to the
        block. Registers that such a block sets, and that a later block reads, depend on the
        branch, too."""
        ways = [self._forward(target) for target in self.blocks.successors[block]]
        only = {b for way in ways for b in way if not all(b in other for other in ways)}
        reach.decided |= only
        made = {n for k in self._numbers_of(only) for n in self._passes[k][0]}
        others = set().union(*map(self._forward, only)) - only
        reach.registers |= made & {n for k in self._numbers_of(others) for n in self._passes[k][1]}

    def _forward(self, start: int) -> set[int]:
        found, pending = {start}, [start]
        while pending:
            b = pending.pop()
            for target in self.blocks.successors[b]:
                if target > b and target not in found:
                    found.add(target)
                    pending.append(target)
        return found

    def _is_repeated(self, load: int, reach: _Reach) -> bool:
        """Tell whether the loaded value decides if a loop around the load goes on or ends."""
        home = self._block_of(load)
        return any(
            self._condition(b) & reach.registers and not loop.issuperset(self.blocks.successors[b])
            for loop in self._loops
            if home in loop
            for b in loop
        )

    def _is_first_look(self, load: int, reach: _Reach) -> bool:
        """Tell whether the loaded value decides about entering a loop that repeats the same load.
        Compilers turn ``while`` into a first test, followed by a loop that tests at its end."""
        alike = [
            n
            for n, step in enumerate(self.program.steps)
            if n != load and step.opcode.text == self.program.steps[load].opcode.text
        ]
        return any(
            loop <= reach.decided
            and any(
                self._block_of(n) in loop and self._is_repeated(n, self._follow(n)) for n in alike
            )
            for loop in self._loops
        )

    def _is_compared(self, reach: _Reach) -> bool:
        """Tell whether an ``atom.cas`` compares a register in `reach` with memory."""
        return any(
            step.opcode.base == "atom"
            and "cas" in step.opcode.segments
            and not reach.registers.isdisjoint(registers_in(step.operands[2]))
            for step in self.program.steps
        )

    def _only_saves_work(self, load: int, reach: _Reach) -> bool:
        """Tell whether the loaded value only decides which atomics and harmless stores run. A store
        is harmless if it writes to the address of the load. The result is False if an operand of a
        store or an atomic is the loaded value, or depends on it."""
        place = self.program.steps[load].operands[1]
        for step in self.program.steps:
            base = step.opcode.base
            if base != "st" and base not in _ATOMICS:
                continue
            taken = {n for operand in step.operands for n in registers_in(operand)}
            if base == "atom" and not isinstance(step.operands[0], MemoryOperand):
                taken -= set(registers_in(step.operands[0]))
            if not reach.registers.isdisjoint(taken):
                return False
        decided = set(self._numbers_of(reach.decided))
        return all(
            step.operands[0] == place
            for number, step in enumerate(self.program.steps)
            if step.opcode.base == "st"
            and (number in decided or (step.guard and step.guard.number in reach.registers))
        )

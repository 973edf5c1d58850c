"""Find loads that wait for other threads, by the uses of a volatile or relaxed load's value.

If nothing orders a volatile or relaxed load and another thread's strong store to the same address,
the PTX memory model does not call this a data race. Still, timing decides whether the load gets the
value before the store or the value after it. The load is correct only if the kernel handles both.
Examples are a flag that is read until it changes, a value that ``cas`` compares again, and a test
that only avoids an unnecessary atomic. Every other volatile or relaxed load uses its value as data,
and is checked for races like a plain load. A plain load, too, may give the first value of a loop
around a ``cas``, or a value that atomics of one kind will correct, as where ``atomicMin`` shortens
the paths of a graph; see `_Flow.is_corrected`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from msgspec import Struct

from gpuemu_flow.emulator.blocks import Blocks, defined_and_used, registers_in
from gpuemu_flow.emulator.ir import Immediate, KernelProgram, MemoryOperand, Step, Symbol

STRONG = frozenset({"volatile", "relaxed", "acquire", "release", "mmio"})
"""Modifiers of accesses that several threads may make to one address at the same time."""

ORDERS_NOTHING = "; a volatile or relaxed access orders nothing, so the value depends on timing"
"""Words added to a finding about two strong accesses."""

RELEASES = frozenset({"release", "acq_rel"})
"""Modifiers of accesses that publish the earlier accesses of their thread."""

_ALWAYS = frozenset({"acquire", "mmio"})
_ATOMICS = frozenset({"atom", "red"})
_EXTREMES = frozenset({"min", "max"})
_CLAIMS = frozenset({"cas", "exch", "or", "and"})
"""Atomics that only lower or only raise a value, and those whose result tells who came first."""

_TURNING = {"neg": 1, "rcp": 1, "sub": 2, "div": 2}
"""Of operations whose result falls when an operand rises: the position of that operand."""

_OF_BITS = frozenset({"and", "or", "xor", "not", "lop3", "shr"})
"""Operations that may stand in an order-preserving conversion of floats to integers."""

_OF_FLOATS = (
    {("min", "s32"), ("max", "u32")},
    {("max", "s32"), ("min", "u32")},
)
"""How a float's minimum and maximum are made of those of integers, by its sign."""

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
    plain = _beside_atomics(program)
    if unclear or plain:
        flow = _Flow(program, blocks)
        found.update(n for n in unclear if flow.is_polling(n))
        found.update(n for n in plain if flow.is_corrected(n, flow.follow(n)))
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


def _is_negative(constant: Immediate) -> bool:
    return bool(constant.value >> (31 if constant.kind == "f32" else 63))


def _kind(program: KernelProgram, number: int) -> str:
    """Return what an atomic does, if that is min, max or a claim: ``cas`` may store a minimum."""
    step = program.steps[number]
    kind = next((word for word in step.opcode.segments if word in _EXTREMES | _CLAIMS), "")
    if kind != "cas":
        return kind
    pending, made = [*registers_in(step.operands[3])], set()
    for register in pending:
        for other in program.steps:
            defined, used = _passed(other)
            if register in defined and other.opcode.base == "mov":
                pending += set(used).difference(pending)
            elif register in defined:
                made.add(other.opcode.base)
    return made.pop() if len(made) == 1 and made <= _EXTREMES else kind


def _beside_atomics(program: KernelProgram) -> list[int]:
    """List the plain loads from global memory that an atomic of the kernel may write."""
    atomics = [
        n
        for n, step in enumerate(program.steps)
        if step.opcode.base in _ATOMICS
        and step.opcode.space in ("global", "")
        and _kind(program, n)
    ]
    if not atomics:
        return []
    places = _Places(program)
    written = set().union(*map(places.of, atomics))
    return [
        n
        for n, step in enumerate(program.steps)
        if step.opcode.base == "ld"
        and step.opcode.space in ("global", "")
        and not is_strong(step)
        and "nc" not in step.opcode.segments
        and written & places.of(n)
    ]


class _Places:
    """What the addresses of a program point into: parameters, variables, what a load gave."""

    def __init__(self, program: KernelProgram) -> None:
        self._steps = program.steps
        self._found: dict[int, frozenset[object]] = {}
        size = -1
        while size != (size := sum(map(len, self._found.values()))):
            for number, step in enumerate(program.steps):
                defined, used = defined_and_used(step)
                given = self._given(number, step, used)
                for register in defined:
                    self._found[register] = self._found.get(register, frozenset()) | given

    def _given(self, number: int, step: Step, used: tuple[int, ...]) -> frozenset[object]:
        if step.opcode.base == "ld":
            place = step.operands[1]
            if not isinstance(place, MemoryOperand) or not step.opcode.type.endswith("64"):
                return frozenset()
            base = place.base
            if isinstance(base, Symbol) and base.space == "param":
                return frozenset({("param", base.offset + place.displacement)})
            return frozenset({number})
        variables = (o for o in step.operands if isinstance(o, Symbol))
        named = frozenset((v.space, v.offset) for v in variables)
        return named.union(*(self._found.get(n, frozenset()) for n in used))

    def of(self, step: int) -> frozenset[object]:
        operands = [o for o in self._steps[step].operands if isinstance(o, MemoryOperand)]
        if not operands:
            return frozenset()
        base = operands[0].base
        if isinstance(base, Symbol):
            return frozenset({(base.space, base.offset)})
        return frozenset().union(*(self._found.get(n, frozenset()) for n in registers_in(base)))


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

    @cached_property
    def _places(self) -> _Places:
        return _Places(self.program)

    def is_polling(self, load: int) -> bool:
        """Tell whether a load's value decides whether to load again or to make an atomic update.

        This is so in each of these cases:

        - The value decides whether a loop that repeats the load is entered or goes on.
        - An ``atom.cas`` compares the value with memory.
        - The value only decides which atomics and harmless stores run; see `_only_saves_work`.
        - Atomics correct what comes of an old value; see `is_corrected`.
        """
        reach = self.follow(load)
        return (
            self._is_repeated(load, reach)
            or self._is_first_look(load, reach)
            or self._is_compared(reach)
            or self._only_saves_work(load, reach)
            or self.is_corrected(load, reach)
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

    def follow(self, load: int) -> _Reach:
        return self._spread(_Reach(set(self._passes[load][0]), set()))

    def _spread(self, reach: _Reach) -> _Reach:
        before = (-1, -1, False)
        while before != (size := (len(reach.registers), len(reach.decided), reach.hidden)):
            before = size
            for number, step in enumerate(self.program.steps):
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
                self._block_of(n) in loop and self._is_repeated(n, self.follow(n)) for n in alike
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
        for number, step in enumerate(self.program.steps):
            changes = step.opcode.base in ("st", *_ATOMICS)
            if changes and not reach.registers.isdisjoint(self._given(number)):
                return False
        return all(
            self.program.steps[number].operands[0] == place
            for number in self._decided_by(reach)
            if self.program.steps[number].opcode.base == "st"
        )

    def is_corrected(self, load: int, reach: _Reach) -> bool:
        """Tell whether atomics make up for an old value: all writes to the parameter or variable
        are atomics of one kind, and the value only decides whether one of these is made, at its own
        place, and after that (of claims, by their results) what else is. It may be the operand of
        ``min`` or ``max``, which corrects it later: not if the operand falls when the value rises,
        nor if the value decides where the operand goes."""
        steps, place = self.program.steps, self._places.of(load)
        changing = [n for n, step in enumerate(steps) if step.opcode.base in ("st", *_ATOMICS)]
        writes = {n for n in changing if place & self._places.of(n)}
        kinds = {(_kind(self.program, n), steps[n].opcode.type) for n in writes}
        names = {kind for kind, _ in kinds}
        if "" in names or (len(kinds) != 1 and kinds not in _OF_FLOATS):
            return False
        decided = self._decided_by(reach)
        using = {n for n in changing if not reach.registers.isdisjoint(self._given(n))}
        if using - (writes if names <= _EXTREMES else set()) or self._is_turned(load, using):
            return False
        made = writes & (using | decided)
        later = decided.intersection(changing) - writes
        address = self._address(load)
        if not made or any(self._address(n) != address for n in made - using):
            return False  # the value decides about another place
        given = {n for number in made for n in self._passes[number][0]}
        claimed = not names <= _EXTREMES  # only who came first goes on
        after = self._spread(_Reach(given, set())) if claimed else self._after(load, made)
        return later <= self._decided_by(after)

    def _address(self, step: int) -> MemoryOperand | None:
        operands = self.program.steps[step].operands
        return next((each for each in operands if isinstance(each, MemoryOperand)), None)

    def _is_turned(self, load: int, atomics: set[int]) -> bool:
        """Tell whether a loaded value is in the address of an atomic, or falls in its operand."""
        steps, passes = self.program.steps, self._passes
        values, size = set(passes[load][0]), 0
        while size != (size := len(values)):
            for number, (defined, used) in enumerate(passes):
                if steps[number].opcode.base not in _ATOMICS and not values.isdisjoint(used):
                    values.update(defined)
        pending: list[int] = []
        for number in atomics:
            for operand in steps[number].operands:
                own = values.intersection(registers_in(operand))
                if own and isinstance(operand, MemoryOperand):
                    return True
                pending += own
        for register in pending:
            for number, (defined, used) in enumerate(passes):
                base, operands = steps[number].opcode.base, steps[number].operands
                if register not in defined or base in _OF_BITS or number == load:
                    continue
                turned = operands[_TURNING[base]] if base in _TURNING else None
                if turned is not None and not values.isdisjoint(registers_in(turned)):
                    return True
                factors = operands[1:3] if base in ("mul", "mad", "fma") else ()
                if any(isinstance(each, Immediate) and _is_negative(each) for each in factors):
                    return True
                pending += values.intersection(used).difference(pending)
        return False

    def _after(self, load: int, made: set[int]) -> _Reach:
        start, homes = self._block_of(load), {self._block_of(n) for n in made}
        aside = self._around(start, homes)
        behind = (self._around(start, set()) - aside) | homes
        given = {n for k in self._numbers_of(behind) for n in self._passes[k][0]}
        given &= {n for k in self._numbers_of(aside) for n in self._passes[k][1]}
        return self._spread(_Reach(given.union(*(self._passes[n][0] for n in made)), behind))

    def _decided_by(self, reach: _Reach) -> set[int]:
        found = set(self._numbers_of(reach.decided))
        for number, step in enumerate(self.program.steps):
            if step.guard is not None and step.guard.number in reach.registers:
                found.add(number)
        return found

    def _given(self, number: int) -> set[int]:
        """Return the registers that a store or an atomic reads, its guard aside."""
        step = self.program.steps[number]
        operands = step.operands
        if step.opcode.base == "atom" and not isinstance(operands[0], MemoryOperand):
            operands = operands[1:]
        return {n for operand in operands for n in registers_in(operand)}

    def _around(self, start: int, homes: set[int]) -> set[int]:
        found, pending = {start} - homes, [start]
        while pending:
            for target in self.blocks.successors[pending.pop()]:
                if target not in found and target not in homes:
                    found.add(target)
                    pending.append(target)
        return found

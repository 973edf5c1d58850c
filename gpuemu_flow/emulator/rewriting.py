"""Replace steps of a program by other steps, and adjust the program's branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gpuemu_flow.emulator.blocks import Blocks, defined_and_used, registers_in
from gpuemu_flow.emulator.effects.checking import UNDEFINED
from gpuemu_flow.emulator.findings import WRAPPED
from gpuemu_flow.emulator.forms import find_form
from gpuemu_flow.emulator.ir import (
    Immediate,
    Inverted,
    KernelProgram,
    MemoryOperand,
    Operand,
    OperandGroup,
    Register,
    Sink,
    Step,
    TensorPlace,
)
from gpuemu_flow.lint.ptx.model import Opcode


def rewritten(
    program: KernelProgram,
    pieces: Mapping[int, Sequence[Step]],
    *,
    first: Sequence[Step] = (),
    types: Sequence[str] = (),
) -> KernelProgram:
    steps, starts = list(first), []
    for index, step in enumerate(program.steps):
        starts.append(len(steps))
        steps += pieces.get(index, (step,))
    for index, step in enumerate(steps):
        if step.targets:
            steps[index] = replace(step, targets=tuple(starts[t] for t in step.targets))
    return replace(program, steps=steps, register_types=[*program.register_types, *types])


def like(step: Step, **changes: Any) -> Step:
    return replace(step, targets=(), **changes)


# Detect registers that are read before they are written, by additional steps that watch them.


_MOVES = frozenset({"mov", "setp", "set", "cvta"})
_STORES = frozenset({"st", "red", "atom"})
_MERGES = frozenset({"prmt", "bfi", "and", "or", "lop3", "shf"})
"""Instructions whose result need not depend on an undefined operand, or on all of its bits."""


def watch_registers(program: KernelProgram, blocks: Blocks) -> KernelProgram:
    """Add steps that watch the registers that may be read before they are written."""
    if not blocks.entry_live:
        return program
    return _Watch(program, blocks.entry_live).program()


def _sources(step: Step) -> tuple[Operand, ...]:
    defined, _ = defined_and_used(step)
    return step.operands[1:] if defined else step.operands


class _Watch:
    _exchange = "shfl"  # takes another lane's value, and whether that is undefined
    _own_types: tuple[str, ...] = ("u32", "u32")  # of registers for what is computed in between

    def __init__(self, program: KernelProgram, unwritten: frozenset[int]) -> None:
        self._old = program
        self._shadows: dict[int, Register] = {}
        self._steps: list[Step] = []
        count = len(program.register_types)
        for offset, number in enumerate(sorted(self._reached(unwritten))):
            self._shadows[number] = Register(count + offset, "pred")
        self._unwritten = unwritten
        first = count + len(self._shadows)
        self._own = [Register(first + n, kind) for n, kind in enumerate(self._own_types)]

    def _computes(self, step: Step) -> bool:
        """Tell whether a step computes each lane's result from the lane's operands alone."""
        return step.opcode.base in _MOVES or find_form(step.opcode) is not None

    def _reached(self, unwritten: frozenset[int]) -> set[int]:
        found, before = set(unwritten), -1
        while len(found) != before:
            before = len(found)
            for step in self._old.steps:
                if self._computes(step) or step.opcode.base == self._exchange:
                    defined, used = defined_and_used(step)
                    if not found.isdisjoint(used):
                        found.update(defined)
        return found

    def program(self) -> KernelProgram:
        """Return the new program, with the steps that watch registers."""
        model = self._old.steps[0]
        first = [
            like(model, opcode=Opcode("mov.pred"), guard=None, negated=False,
                 operands=(shadow, Immediate(int(number in self._unwritten))))
            for number, shadow in self._shadows.items()
        ]  # fmt: skip
        pieces: dict[int, list[Step]] = {}
        for index, step in enumerate(self._old.steps):
            self._steps = pieces[index] = []
            self._look(step)
            self._follow(step)
            self._steps.append(step)
        types = ["pred"] * len(self._shadows) + [*self._own_types]
        return rewritten(self._old, pieces, first=first, types=types)

    def _add(self, model: Step, text: str, operands: tuple[Operand, ...]) -> None:
        self._steps.append(like(model, opcode=Opcode(text), operands=operands))

    def _look(self, step: Step) -> None:
        """Add steps that report undefined addresses, conditions and values to be stored. CUB also
        exchanges values of threads that have none, and drops them behind that."""
        base = step.opcode.base
        wanted: dict[int, str] = {}
        for operand in step.operands:
            if isinstance(operand, (MemoryOperand, TensorPlace)):
                wanted.update(dict.fromkeys(registers_in(operand), "as an address"))
            elif base in _STORES and "_exchange." not in step.headers:
                values = operand.items if isinstance(operand, OperandGroup) else (operand,)
                if operand is not step.operands[0] or base == "red":
                    for value in values:
                        wanted.update(dict.fromkeys(registers_in(value), "as a value to store"))
        if step.guard is not None and (step.opcode.is_branch or base in _STORES):
            self._report(replace(step, guard=None, negated=False), step.guard.number,
                         "as a condition")  # fmt: skip
        if base == "brx":
            wanted.update(dict.fromkeys(registers_in(step.operands[0]), "as a condition"))
        for number, use in wanted.items():
            self._report(step, number, use)

    def _report(self, model: Step, number: int, use: str) -> None:
        shadow = self._shadows.get(number)
        if shadow is not None:
            names = self._old.register_names
            name = names[number] if number < len(names) else "a register"
            steps = self._steps
            self._add(model, UNDEFINED, (Sink(), shadow))
            steps[-1] = replace(steps[-1], note=f"uses {name} {use}, which nobody wrote")

    def _follow(self, step: Step) -> None:
        """Add steps that compute whether the results of `step` are undefined."""
        defined, _ = defined_and_used(step)
        targets = [self._shadows[n] for n in defined if n in self._shadows]
        if not targets:
            return
        found = [
            self._shadows[n]
            for operand in _sources(step)
            if not isinstance(operand, MemoryOperand)
            for n in registers_in(operand)
            if n in self._shadows
        ]
        source = self._shadow_of(step.operands[1]) if len(step.operands) > 1 else None
        if step.opcode.base == self._exchange and isinstance(source, Register):
            own, other = self._own
            self._add(step, "selp.b32", (own, Immediate(1), Immediate(0), source))
            self._steps.append(like(step, operands=(other, own, *step.operands[2:])))
            self._add(step, "setp.ne.u32", (targets.pop(0), other, Immediate(0)))
        for target in targets:
            self._assign(step, target, found)

    def _assign(self, step: Step, target: Register, found: list[Register]) -> None:
        base = step.opcode.base
        whole = all(
            any(n in self._shadows for n in registers_in(o)) for o in _sources(step)
        )  # fmt: skip
        merges = base in _MERGES or (base == "mov" and isinstance(step.operands[-1], OperandGroup))
        if not found or not self._computes(step) or (merges and not whole):
            self._add(step, "mov.pred", (target, Immediate(0)))
        elif base == "selp":
            a, b, chosen = (self._shadow_of(o) for o in step.operands[1:])
            if isinstance(step.operands[3], (Register, Inverted)):
                self._add(step, "selp.pred", (target, a, b, step.operands[3]))
                if isinstance(chosen, Register):
                    self._add(step, "or.pred", (target, target, chosen))
        elif merges:
            self._add(step, "and.pred", (target, found[0], found[-1]))
        else:
            self._add(step, "mov.pred", (target, found[0]))
            for other in found[1:]:
                self._add(step, "or.pred", (target, target, other))

    def _shadow_of(self, operand: Operand) -> Operand:
        for number in registers_in(operand):
            if number in self._shadows:
                return self._shadows[number]
        return Immediate(0)


# Detect addresses computed from products of 32 bits that are too small for them.


_LINEAR = frozenset({"add", "sub", "mov", "shl", "mad", "mul", "cvt", "cvta", "selp"})


def is_narrow_product(step: Step) -> bool:
    words = step.opcode.segments
    return words[0] in ("mul", "mad") and "lo" in words and words[-1] in ("s32", "u32")


def watch_products(program: KernelProgram) -> KernelProgram:
    """Add steps that report addresses to which a product wider than 32 bits would belong."""
    products = [step for step in program.steps if is_narrow_product(step)]
    made = {number for step in products for number in defined_and_used(step)[0]}
    return _WatchProducts(program, frozenset(made)).program() if made else program


class _WatchProducts(_Watch):
    """Here, a register's shadow says that it comes from a product that wrapped around."""

    _exchange = ""
    _own_types: tuple[str, ...] = ("u64", "s64", "u64", "u32", "pred", "pred")

    def __init__(self, program: KernelProgram, made: frozenset[int]) -> None:
        super().__init__(program, made)
        self._unwritten = frozenset()

    def _look(self, step: Step) -> None:
        verb = "writes" if step.opcode.base in _STORES else "reads"
        for operand in step.operands:
            for number in registers_in(operand) if isinstance(operand, MemoryOperand) else ():
                if number in self._shadows:
                    self._add(step, UNDEFINED, (Sink(), self._shadows[number]))
                    note = f"{verb} at an address from {WRAPPED} (widen a factor first)"
                    self._steps[-1] = replace(self._steps[-1], note=note)

    def _follow(self, step: Step) -> None:
        if step.opcode.base not in _LINEAR:
            for number in defined_and_used(step)[0]:
                if number in self._shadows:
                    self._add(step, "mov.pred", (self._shadows[number], Immediate(0)))
            return
        whole, signed, wide, low, wrapped, second = self._own
        if is_narrow_product(step):
            factors = step.operands[1:3]
            self._add(step, "mul.lo.u32", (low, *factors))
            for sign, to, differs in (("s", signed, wrapped), ("u", wide, second)):
                self._add(step, f"mul.wide.{sign}32", (whole, *factors))
                self._add(step, f"cvt.{sign}64.{sign}32", (to, low))
                self._add(step, "setp.ne.u64", (differs, whole, to))
            self._add(step, "and.pred", (wrapped, wrapped, second))
        super()._follow(step)
        for number in defined_and_used(step)[0] if is_narrow_product(step) else ():
            shadow = self._shadows[number]
            self._add(step, "or.pred", (shadow, shadow, wrapped))

"""What an instruction's effect is, and the checks of its operands, made before a kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gpuemu_flow.emulator.ir import (
    Immediate,
    Inverted,
    MemoryOperand,
    Operand,
    OperandGroup,
    Register,
    Sink,
    Special,
    Step,
    Symbol,
    TensorPlace,
)
from gpuemu_flow.emulator.types import BITS, SIZES

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

    Emit = Callable[["Emitter", Step, int], None]
else:
    Emit = Callable[..., Any]


class Effect(Struct, frozen=True):
    """The functions that check and compile one family of instructions."""

    problem: Callable[[Step], str]
    emit: Emit
    section: str


UNKNOWN_FORM = "the emulator does not know this form of the instruction"


def operand_problem(operand: Operand, type_name: str) -> str:
    if isinstance(operand, (OperandGroup, MemoryOperand, TensorPlace, Sink)):
        return "an operand has a form that this instruction does not take"
    if isinstance(operand, Inverted):
        return "" if type_name == "pred" else "a negated predicate is used as a number"
    if isinstance(operand, Register):
        return register_problem(operand, type_name)
    if operand == Special("is_explicit_cluster"):
        return "" if type_name == "pred" else "the special register is a predicate"
    if isinstance(operand, (Symbol, Special)) and type_name == "pred":
        return "an address or special register is used as a predicate"
    return ""


def register_problem(register: Register, type_name: str) -> str:
    if register.type not in BITS:
        return f"registers of type .{register.type} are not supported"
    if (register.type == "pred") != (type_name == "pred"):
        return f"a register of type .{register.type} is used as .{type_name}"
    if SIZES[register.type] < SIZES[type_name]:
        return f"a register of type .{register.type} is too small for .{type_name}"
    return ""


def result_problem(operand: Operand, type_name: str) -> str:
    if isinstance(operand, Sink):
        return ""
    if not isinstance(operand, Register):
        return "a result goes to something that is no register"
    return register_problem(operand, type_name)


def operands_problem(step: Step, types: tuple[str, ...], result: str = "") -> str:
    wanted = len(types) + bool(result)
    if len(step.operands) != wanted:
        return f"it has {len(step.operands)} operands, not {wanted}"
    rest = step.operands
    if result:
        problem = result_problem(rest[0], result)
        if problem:
            return problem
        rest = rest[1:]
    for operand, type_name in zip(rest, types, strict=True):
        problem = operand_problem(operand, type_name)
        if problem:
            return problem
    return ""


def address_problem(operand: Operand) -> str:
    if not isinstance(operand, MemoryOperand):
        return "its address has an unknown form"
    base = operand.base
    if isinstance(base, Register) and SIZES.get(base.type, 0) not in (4, 8):
        return "its address lies in a register that is neither 32 nor 64 bits wide"
    return ""


def tensor_problem(operand: Operand, dimensions: int) -> str:
    """Return the reason why an operand is not a tensor map with coordinates; empty if it is."""
    if not isinstance(operand, TensorPlace) or len(operand.coordinates) != dimensions:
        return f"it needs a tensor map with {dimensions} coordinates"
    problems = (operand_problem(c, "s32") for c in operand.coordinates)
    return address_problem(operand.map) or next((p for p in problems if p), "")


def items_of(operand: Operand) -> tuple[Operand, ...]:
    """Return the elements of a vector operand; any other operand counts as one element."""
    return operand.items if isinstance(operand, OperandGroup) else (operand,)


def constant_of(operand: Operand) -> int | None:
    """Return the value of an operand that is an integer constant; None for any other operand."""
    if isinstance(operand, Immediate) and operand.kind == "int":
        value = operand.value
        return value - (1 << 64) if value >> 63 else value
    return None


# The step that reports lanes with an undefined register; the emulator adds it to a program.


UNDEFINED = "!undefined"


def _emit(emitter: Emitter, step: Step, index: int) -> None:
    undefined = emitter.read(step.operands[1], "pred")
    emitter.do(f"m.check_defined({undefined}, {emitter.mask(step)}, {index})")


EFFECTS: dict[str, Effect] = {UNDEFINED: Effect(lambda step: "", _emit, "")}

"""Stack instructions: alloca, stacksave, stackrestore."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    Effect,
    constant_of,
    operand_problem,
    operands_problem,
    result_problem,
)
from gpuemu_flow.emulator.ir import Step, Symbol

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter


_TYPES = ("u32", "u64")


def _alignment(step: Step) -> int:
    value = 8 if len(step.operands) < 3 else constant_of(step.operands[2]) or 0
    return value if 0 < value <= 128 and value & (value - 1) == 0 else 0


def _alloca_problem(step: Step) -> str:
    kind = step.opcode.type
    if kind not in _TYPES or len(step.operands) not in (2, 3) or not _alignment(step):
        return UNKNOWN_FORM
    return result_problem(step.operands[0], kind) or operand_problem(step.operands[1], kind)


def _emit_alloca(emitter: Emitter, step: Step, index: int) -> None:
    kind = step.opcode.type
    size = f"{emitter.read(step.operands[1], kind)}.astype('u8')"
    found = f"m.allocate_stack({size}, {_alignment(step)}, {emitter.mask(step)}, {index})"
    narrow = ".astype('u4')" if kind == "u32" else ""
    emitter.write(step.operands[0], f"{found}{narrow}", kind, step)


def _save_problem(step: Step) -> str:
    kind = step.opcode.type
    return operands_problem(step, (), kind) if kind in _TYPES else UNKNOWN_FORM


def _emit_save(emitter: Emitter, step: Step, index: int) -> None:
    narrow = ".astype('u4')" if step.opcode.type == "u32" else ""
    emitter.write(step.operands[0], f"m.stack_pointer{narrow}", step.opcode.type, step)


def _restore_problem(step: Step) -> str:
    kind = step.opcode.type
    return operands_problem(step, (kind,)) if kind in _TYPES else UNKNOWN_FORM


def _emit_restore(emitter: Emitter, step: Step, index: int) -> None:
    value = emitter.read(step.operands[0], step.opcode.type)
    emitter.do(f"m.restore_stack({value}.astype('u8'), {emitter.mask(step)})")


EFFECTS: dict[str, Effect] = {
    "alloca": Effect(_alloca_problem, _emit_alloca, "alloca"),
    "stacksave": Effect(_save_problem, _emit_save, "stacksave"),
    "stackrestore": Effect(_restore_problem, _emit_restore, "stackrestore"),
}


# Functions that the driver provides: vprintf and __assertfail.


def _vprintf_problem(step: Step) -> str:
    if len(step.operands) != 3 or not all(
        isinstance(o, Symbol) and o.space == "local" for o in step.operands
    ):
        return "its arguments have an unknown form"
    return ""


def _slot(emitter: Emitter, step: Step, number: int, width: int, index: int) -> str:
    operand = step.operands[number]
    assert isinstance(operand, Symbol)
    return emitter.temporary(
        f"m.load_local({emitter.symbol(operand)}, {width}, 1, {emitter.mask(step)}, {index}, "
        "False)[0]"
    )


def _emit_vprintf(emitter: Emitter, step: Step, index: int) -> None:
    words = _slot(emitter, step, 1, 8, index)
    arguments = _slot(emitter, step, 2, 8, index)
    found = emitter.temporary(f"m.print({words}, {arguments}, {emitter.mask(step)}, {index})")
    result = step.operands[0]
    assert isinstance(result, Symbol)
    emitter.do(
        f"m.store_local({emitter.symbol(result)}, ({found},), 4, {emitter.mask(step)}, {index}, "
        "False)"
    )


def _assert_problem(step: Step) -> str:
    good = len(step.operands) == 5 and all(
        isinstance(o, Symbol) and o.space == "local" for o in step.operands
    )
    return "" if good else "its arguments have an unknown form"


def _emit_assert(emitter: Emitter, step: Step, index: int) -> None:
    message = _slot(emitter, step, 0, 8, index)
    file = _slot(emitter, step, 1, 8, index)
    line = _slot(emitter, step, 2, 4, index)
    emitter.do(f"m.assertion_failed({message}, {file}, {line}, {emitter.mask(step)}, {index})")


EFFECTS |= {
    "call.vprintf": Effect(_vprintf_problem, _emit_vprintf, "vprintf (system call)"),
    "call.__assertfail": Effect(_assert_problem, _emit_assert, "__assertfail (system call)"),
}

"""Functions that the driver provides: vprintf and __assertfail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.ir import Step, Symbol

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter


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


EFFECTS = {
    "call.vprintf": Effect(_vprintf_problem, _emit_vprintf, "vprintf (system call)"),
    "call.__assertfail": Effect(_assert_problem, _emit_assert, "__assertfail (system call)"),
}

"""Barriers of blocks and warps, and fences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    constant_of,
    operand_problem,
    operands_problem,
    result_problem,
)
from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.ir import Register, Step

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter


def _words(step: Step) -> frozenset[str]:
    return frozenset(step.opcode.segments[1:])


def _bar_problem(step: Step) -> str:
    words = _words(step)
    operands = step.operands
    if step.guard is not None:
        return "a barrier under a predicate is not supported"
    if "cluster" in words:
        return "" if not operands and step.opcode.segments[2:3] in (("arrive",), ("wait",)) else (
            UNKNOWN_FORM)  # fmt: skip
    if "warp" in words:
        return operands_problem(step, ("b32",))
    if "red" in words:
        combined = "popc" in words or "and" in words or "or" in words
        if not combined or len(operands) not in (3, 4):
            return UNKNOWN_FORM
        problem = result_problem(operands[0], "u32" if "popc" in words else "pred")
        problem = problem or operand_problem(operands[-1], "pred")
        middle = operands[1:-1]
    elif words & {"sync", "arrive"}:
        problem, middle = "", operands
        if not 1 <= len(operands) <= 2 or ("arrive" in words and len(operands) != 2):
            return UNKNOWN_FORM
    else:
        return UNKNOWN_FORM
    return problem or next((p for o in middle if (p := operand_problem(o, "u32"))), "")


def _emit_bar(emitter: Emitter, step: Step, index: int) -> None:
    words, operands = _words(step), step.operands
    if "cluster" in words:
        return
    if "warp" in words:
        members = emitter.read(operands[0], "u32")
        emitter.do(f"m.warp_barrier({members}, {emitter.mask(step)}, G, {index})")
        return
    predicate, operation, result = "None", "", -1
    middle = operands
    if "red" in words:
        middle = operands[1:-1]
        if isinstance(operands[0], Register):
            predicate = emitter.read(operands[-1], "pred")
            operation = next(w for w in ("popc", "and", "or") if w in words)
            result = operands[0].number
    name = emitter.read(middle[0], "u32")
    wanted = emitter.read(middle[1], "u32") if len(middle) > 1 else "None"
    arrive = "arrive" in words
    emitter.do(
        f"m.request_barrier({name}, {wanted}, {arrive}, {predicate}, {operation!r}, {result})"
    )


def _fence_problem(step: Step) -> str:
    return ""


def _emit_fence(emitter: Emitter, step: Step, index: int) -> None:
    words = _words(step)
    if not words & {"proxy", "mbarrier_init"}:
        emitter.do(f"m.fence({emitter.mask(step)}, within_block={'cta' in words})")


def _clockless(step: Step) -> str:
    return ""


def _registers_problem(step: Step) -> str:
    """Return the reason why a ``setmaxnreg`` cannot be run, or an empty string.

    Its operand must be a multiple of 8 from 24 to 256.
    """
    words, count = step.opcode.segments[1:], [constant_of(o) for o in step.operands]
    known = words in (("inc", "sync", "aligned", "u32"), ("dec", "sync", "aligned", "u32"))
    if not known or len(count) != 1:
        return UNKNOWN_FORM
    return "" if count[0] in range(24, 257, 8) else "its count is no multiple of 8 from 24 to 256"


EFFECTS = {
    "setmaxnreg": Effect(_registers_problem, lambda e, s, i: None, "setmaxnreg"),
    "bar": Effect(_bar_problem, _emit_bar, "bar, barrier"),
    "barrier": Effect(_bar_problem, _emit_bar, "bar, barrier"),
    "membar": Effect(_fence_problem, _emit_fence, "membar, fence"),
    "fence": Effect(_fence_problem, _emit_fence, "membar, fence"),
    "griddepcontrol": Effect(_clockless, lambda e, s, i: None, "griddepcontrol"),
}

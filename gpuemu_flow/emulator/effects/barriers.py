"""Barriers of blocks and warps, and fences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuemu_flow.emulator.atomics import AtomicForm
from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    Effect,
    address_problem,
    constant_of,
    operand_problem,
    operands_problem,
    result_problem,
)
from gpuemu_flow.emulator.ir import MemoryOperand, Operand, Register, Step

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
    words, count = step.opcode.segments[1:], [constant_of(o) for o in step.operands]
    known = words in (("inc", "sync", "aligned", "u32"), ("dec", "sync", "aligned", "u32"))
    if not known or len(count) != 1:
        return UNKNOWN_FORM
    return "" if count[0] in range(24, 257, 8) else "its count is no multiple of 8 from 24 to 256"


EFFECTS: dict[str, Effect] = {
    "setmaxnreg": Effect(_registers_problem, lambda e, s, i: None, "setmaxnreg"),
    "bar": Effect(_bar_problem, _emit_bar, "bar, barrier"),
    "barrier": Effect(_bar_problem, _emit_bar, "bar, barrier"),
    "membar": Effect(_fence_problem, _emit_fence, "membar, fence"),
    "fence": Effect(_fence_problem, _emit_fence, "membar, fence"),
    "griddepcontrol": Effect(_clockless, lambda e, s, i: None, "griddepcontrol"),
}


# Barrier objects in shared memory: mbarrier.


_ARRIVALS = frozenset({"arrive", "arrive_drop"})
_WAITS = frozenset({"test_wait", "try_wait"})
_MEMBERS = frozenset({"init", "inval", "expect_tx", "complete_tx", *_ARRIVALS, *_WAITS})
_WORDS = frozenset(
    {
        "shared", "shared::cta", "shared::cluster", "b64", "expect_tx", "noComplete", "parity",
        "relaxed", "release", "acquire", "cta", "cluster",
    }
)  # fmt: skip


def _member(step: Step) -> str:
    words = step.opcode.segments
    return words[1] if len(words) > 1 else ""


def _split(step: Step) -> tuple[Operand | None, Operand, tuple[Operand, ...]]:
    operands = step.operands
    if isinstance(operands[0], MemoryOperand):
        return None, operands[0], operands[1:]
    return operands[0], operands[1], operands[2:]


def _problem(step: Step) -> str:
    member, words = _member(step), set(step.opcode.segments[2:])
    operands = step.operands
    if member not in _MEMBERS or not words <= _WORDS or not operands:
        return UNKNOWN_FORM
    if not isinstance(operands[0], MemoryOperand) and len(operands) < 2:
        return UNKNOWN_FORM
    result, address, rest = _split(step)
    problem = address_problem(address)
    if problem:
        return problem
    if result is not None:
        if member not in _ARRIVALS | _WAITS:
            return UNKNOWN_FORM
        problem = result_problem(result, "pred" if member in _WAITS else "b64")
    elif member in _WAITS:
        return UNKNOWN_FORM
    least, most, kind = {
        "init": (1, 1, "u32"), "inval": (0, 0, "u32"), "expect_tx": (1, 1, "u32"),
        "complete_tx": (1, 1, "u32"), "test_wait": (1, 1, "b64"), "try_wait": (1, 2, "b64"),
    }.get(member, (0, 1, "u32"))  # fmt: skip
    if "parity" in words:
        kind = "u32"
    if not least <= len(rest) <= most or ("expect_tx" in words and len(rest) != 1):
        return f"it has {len(operands)} operands"
    return problem or (operand_problem(rest[0], kind) if rest else "")


def _emit_arrival(emitter: Emitter, step: Step, index: int) -> None:
    result, address, rest = _split(step)
    assert isinstance(address, MemoryOperand)
    member, words = _member(step), step.opcode.segments
    count, awaited = emitter.immediate_number(1, "u32"), emitter.immediate_number(0, "s32")
    if member in ("expect_tx", "complete_tx"):
        count = emitter.immediate_number(0, "u32")
    if rest and ("expect_tx" in words or member == "complete_tx"):
        awaited = f"{emitter.read(rest[0], 'u32')}.astype('i8')"
        awaited = f"(-{awaited})" if member == "complete_tx" else awaited
    elif rest:
        count = emitter.read(rest[0], "u32")
    form = AtomicForm("mbarrier.arrive_drop" if member == "arrive_drop" else "mbarrier.arrive",
                      "b64")  # fmt: skip
    call = (
        f"m.arrive_mbarrier({step.opcode.space or 'generic'!r}, "
        f"{emitter.function(form, f'atomic {form}')}, {emitter.address(address)}, {count}, "
        f"{awaited}, {emitter.mask(step)}, {index})"
    )
    if result is None:
        emitter.do(call)
    else:
        emitter.write(result, call, "b64", step)


def _emit(emitter: Emitter, step: Step, index: int) -> None:
    result, address, rest = _split(step)
    assert isinstance(address, MemoryOperand)
    member, space = _member(step), step.opcode.space or "generic"
    if member == "inval":
        return
    if member not in ("init", *_WAITS):
        _emit_arrival(emitter, step, index)
        return
    where, mask = emitter.address(address), emitter.mask(step)
    if member == "init":
        count = emitter.read(rest[0], "u32")
        emitter.do(f"m.start_mbarrier({space!r}, {where}, {count}, {mask}, {index})")
        return
    parity = "parity" in step.opcode.segments
    awaited = emitter.read(rest[0], "u32" if parity else "b64")
    assert result is not None
    emitter.write(
        result, f"m.wait_mbarrier({space!r}, {where}, {awaited}, {parity}, {mask}, {index})",
        "pred", step,
    )  # fmt: skip


EFFECTS |= {"mbarrier": Effect(_problem, _emit, "mbarrier")}

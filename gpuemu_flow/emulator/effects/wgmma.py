"""Matrix products of warp groups (sm_90): wgmma."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    constant_of,
    items_of,
    operand_problem,
    result_problem,
)
from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.ir import Operand, OperandGroup, Step
from gpuemu_flow.emulator.wgmma import GroupForm

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

_SHAPE = re.compile(r"m64n(\d{1,3})k(\d{1,3})\Z", re.ASCII)
DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
_FLOATS = frozenset({"f16", "bf16", "tf32", "e4m3", "e5m2"})


def _plain(step: Step) -> bool:
    return step.opcode.segments[1] in ("fence", "commit_group", "wait_group")


def read_product(step: Step) -> GroupForm | None:
    """Return the form of a ``wgmma.mma_async``, or None if the emulator does not know it."""
    words = [w for w in step.opcode.segments[1:] if w != "satfinite"]
    if words[:3] != ["mma_async", "sync", "aligned"] or len(words) != 7:
        return None
    shape, (d, a, b) = _SHAPE.match(words[3]), words[4:]
    if shape is None or a not in DEPTHS or b not in DEPTHS:
        return None
    n, k = int(shape.group(1)), int(shape.group(2))
    alike = a == b or (a[0] == b[0] == "e") or {a, b} <= {"s8", "u8"}
    sums = {"f16": {"f16", "f32"}, "e4m3": {"f16", "f32"}, "e5m2": {"f16", "f32"},
            "s8": {"s32"}, "u8": {"s32"}}.get(a, {"f32"})  # fmt: skip
    if not 8 <= n <= 256 or n % 8 or k != DEPTHS[a] or not alike or d not in sums:
        return None
    flags = [constant_of(o) for o in step.operands[4:]]
    if a not in _FLOATS:
        return GroupForm(n, k, a, b, d, saturate="satfinite" in step.opcode.segments) if (
            not flags) else None  # fmt: skip
    described = len(step.operands) > 1 and not isinstance(step.operands[1], OperandGroup)
    wanted = 2 + ((1 + described) if a in ("f16", "bf16") else 0)
    if len(flags) != wanted or not set(flags[:2]) <= {1, -1} or not set(flags[2:]) <= {0, 1}:
        return None
    transposed = [bool(f) for f in flags[2:]]
    if len(transposed) == 1:
        transposed.insert(0, False)
    turn_a, turn_b = transposed or (False, False)
    return GroupForm(n, k, a, b, d, flags[0] == -1, flags[1] == -1, turn_a, turn_b)


def _problem(step: Step) -> str:
    words = step.opcode.segments
    if len(words) < 2:
        return UNKNOWN_FORM
    if _plain(step):
        return "" if set(words[2:]) == {"sync", "aligned"} else UNKNOWN_FORM
    form = read_product(step)
    if form is None or not 4 <= len(step.operands) <= 8:
        return UNKNOWN_FORM
    d, a, b, accumulate = step.operands[:4]
    if len(items_of(d)) != form.registers:
        return f"its d has {len(items_of(d))} registers, not {form.registers}"
    kind = "b32"
    problems = [result_problem(i, kind) for i in items_of(d)]
    if isinstance(a, OperandGroup):
        if len(a.items) != 4:
            return f"its a has {len(a.items)} registers, not 4"
        problems += [operand_problem(i, kind) for i in a.items]
    else:
        problems.append(operand_problem(a, "b64"))
    problems += [operand_problem(b, "b64"), operand_problem(accumulate, "pred")]
    return next((p for p in problems if p), "")


def _listed(emitter: Emitter, operand: Operand) -> str:
    return "(" + "".join(f"{emitter.read(i, 'b32')}, " for i in items_of(operand)) + ")"


def _emit(emitter: Emitter, step: Step, index: int) -> None:
    if _plain(step):
        return
    form = read_product(step)
    assert form is not None
    d, a, b, accumulate = step.operands[:4]
    left = _listed(emitter, a) if isinstance(a, OperandGroup) else emitter.read(a, "u64")
    bound = emitter.function(form, f"wgmma {form}")
    found = emitter.temporary(
        f"m.group_multiply({bound}, {left}, {emitter.read(b, 'u64')}, {_listed(emitter, d)}, "
        f"{emitter.read(accumulate, 'pred')}, {emitter.mask(step)}, {index})"
    )
    for k, item in enumerate(items_of(d)):
        emitter.write(item, f"{found}[{k}]", "b32", step)


EFFECTS = {"wgmma": Effect(_problem, _emit, "wgmma.mma_async")}

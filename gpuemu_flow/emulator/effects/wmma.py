"""Matrix instructions with opaque fragments: wmma.load, wmma.mma, wmma.store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    address_problem,
    items_of,
    operand_problem,
    result_problem,
)
from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.ir import Immediate, MemoryOperand, Operand, Step
from gpuemu_flow.emulator.wmma import FragmentForm, WmmaForm

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

_SHAPE = re.compile(r"m(\d{1,2})n(\d{1,2})k(\d{1,3})\Z", re.ASCII)
_WIDE = frozenset({(16, 16, 16), (8, 32, 16), (32, 8, 16)})
SHAPES: dict[str, frozenset[tuple[int, int, int]]] = {
    "f16": _WIDE, "bf16": _WIDE, "s8": _WIDE, "u8": _WIDE,
    "tf32": frozenset({(16, 16, 8)}), "f64": frozenset({(8, 8, 4)}),
    "s4": frozenset({(8, 8, 32)}), "u4": frozenset({(8, 8, 32)}), "b1": frozenset({(8, 8, 128)}),
}  # fmt: skip
_SUMS: dict[str, frozenset[str]] = {
    "f16": frozenset({"f16", "f32"}), "bf16": frozenset({"f32"}), "tf32": frozenset({"f32"}),
    "f64": frozenset({"f64"}),
}  # fmt: skip


def fragment_form(role: str, shape: tuple[int, int, int], kind: str) -> FragmentForm:
    """Return the rows and columns of a fragment, and the number of its registers.

    `role` is ``a``, ``b``, ``c`` or ``d``. Source: PTX ISA, "Matrix Fragments for WMMA".
    """
    m, n, k = shape
    rows, columns = {"a": (m, k), "b": (k, n)}.get(role, (m, n))
    if role in "ab" and kind == "f16":
        return FragmentForm(rows, columns, kind, 8)
    bits = {"f32": 32, "s32": 32, "f64": 64, "f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8,
            "s4": 4, "u4": 4, "b1": 1}[kind]  # fmt: skip
    whole = 64 if bits == 64 else 32
    return FragmentForm(rows, columns, kind, max(1, rows * columns * bits // whole // 32))


def _shape_of(words: tuple[str, ...]) -> tuple[int, int, int] | None:
    for word in words:
        match = _SHAPE.match(word)
        if match is not None:
            m, n, k = (int(number) for number in match.groups())
            return m, n, k
    return None


def _kind_of(step: Step) -> str:
    return step.opcode.segments[-1]


def _has_sums(shape: tuple[int, int, int], kind: str) -> bool:
    """Tell whether any WMMA product of shape (m, n, k) has accumulators of the given type."""
    return any(
        shape in shapes and kind in _SUMS.get(source, frozenset({"s32"}))
        for source, shapes in SHAPES.items()
    )


def _access(step: Step) -> tuple[FragmentForm, bool] | None:
    """Return the form of the fragment that a step loads or stores, and True for row-major order.

    The result is None if the emulator does not know the form.
    """
    words = step.opcode.segments[1:]
    if len(words) < 6 or words[2:4] != ("sync", "aligned"):
        return None
    role, shape, kind = words[1], _shape_of(words), _kind_of(step)
    if shape is None or words[4] not in ("row", "col"):
        return None
    if role in ("a", "b"):
        if words[0] != "load" or shape not in SHAPES.get(kind, frozenset()):
            return None
        if kind in ("s4", "u4", "b1") and words[4] != {"a": "row", "b": "col"}[role]:
            return None
    elif role != {"load": "c", "store": "d"}.get(words[0]) or not _has_sums(shape, kind):
        return None
    return fragment_form(role, shape, kind), words[4] == "row"


def _register_type(kind: str) -> str:
    return {"f32": "f32", "f64": "f64", "s32": "s32"}.get(kind, "b32")


def _bits_of(kind: str) -> str:
    return "b64" if kind == "f64" else "b32"


def _access_problem(step: Step) -> str:
    found = _access(step)
    loads = step.opcode.segments[1] == "load"
    if found is None or not 2 <= len(step.operands) <= 3:
        return UNKNOWN_FORM
    form, _ = found
    items = items_of(step.operands[0 if loads else 1])
    if len(items) != form.registers:
        return f"its fragment has {len(items)} registers, not {form.registers}"
    check = result_problem if loads else operand_problem
    problems = [check(item, _register_type(form.kind)) for item in items]
    problems.append(address_problem(step.operands[1 if loads else 0]))
    if len(step.operands) == 3:
        problems.append(operand_problem(step.operands[2], "u32"))
    return next((p for p in problems if p), "")


def read_product(step: Step) -> WmmaForm | None:
    """Return the form of a ``wmma.mma``, or None if the emulator does not know it."""
    words = list(step.opcode.segments[1:])
    bits = next((w for w in words if w in ("xor", "and")), "")
    saturate = "satfinite" in words
    words = [w for w in words if w not in ("xor", "and", "popc", "satfinite", "rn", "rz")]
    shape = _shape_of(tuple(words))
    if words[:3] != ["mma", "sync", "aligned"] or shape is None or len(words) < 8:
        return None
    if not set(words[3:5]) <= {"row", "col"}:
        return None
    kinds = words[6:]
    if len(kinds) == 2:
        d, a, b, c = kinds[0], "f16", "f16", kinds[1]
    elif len(kinds) == 4:
        d, a, b, c = kinds
    else:
        return None
    sums = _SUMS.get(a, frozenset({"s32"}))
    if shape not in SHAPES.get(a, frozenset()) or a != b or not {c, d} <= sums:
        return None
    if (a == "b1") != bool(bits):
        return None
    forms = [
        fragment_form(role, shape, kind) for role, kind in zip("abcd", (a, b, c, d), strict=True)
    ]
    return WmmaForm(forms[0], forms[1], forms[2], forms[3], saturate, bits)


def _product_problem(step: Step) -> str:
    form = read_product(step)
    if form is None or len(step.operands) != 4:
        return UNKNOWN_FORM
    for name, operand in zip("dabc", step.operands, strict=True):
        part: FragmentForm = getattr(form, name)
        items = items_of(operand)
        if len(items) != part.registers:
            return f"its {name} has {len(items)} registers, not {part.registers}"
        check = result_problem if name == "d" else operand_problem
        problem = next((p for i in items if (p := check(i, _register_type(part.kind)))), "")
        if problem:
            return problem
    return ""


def _problem(step: Step) -> str:
    words = step.opcode.segments
    if len(words) < 2 or words[1] not in ("load", "store", "mma"):
        return UNKNOWN_FORM
    return _product_problem(step) if words[1] == "mma" else _access_problem(step)


def _listed(emitter: Emitter, operand: Operand, kind: str) -> str:
    return "(" + "".join(f"{emitter.read(i, _bits_of(kind))}, " for i in items_of(operand)) + ")"


def _emit_access(emitter: Emitter, step: Step, index: int) -> None:
    found = _access(step)
    assert found is not None
    form, by_row = found
    loads = step.opcode.segments[1] == "load"
    address = step.operands[1 if loads else 0]
    assert isinstance(address, MemoryOperand)
    least = form.columns if by_row else form.rows
    stride = step.operands[2] if len(step.operands) == 3 else Immediate(least)
    space = step.opcode.space or "generic"
    bound = emitter.function(form, f"fragment {form}")
    where, apart = emitter.address(address), emitter.read(stride, "u32")
    tail = f"{apart}, {by_row}, {emitter.mask(step)}, {index})"
    if loads:
        given = emitter.temporary(f"m.load_fragment({space!r}, {bound}, {where}, {tail}")
        for k, item in enumerate(items_of(step.operands[0])):
            emitter.write(item, f"{given}[{k}]", _bits_of(form.kind), step)
        return
    values = _listed(emitter, step.operands[1], form.kind)
    emitter.do(f"m.store_fragment({space!r}, {bound}, {where}, {values}, {tail}")


def _emit(emitter: Emitter, step: Step, index: int) -> None:
    if step.opcode.segments[1] != "mma":
        _emit_access(emitter, step, index)
        return
    form = read_product(step)
    assert form is not None
    lists = [
        _listed(emitter, operand, getattr(form, name).kind)
        for name, operand in zip("abc", step.operands[1:], strict=True)
    ]
    bound = emitter.function(form, f"wmma {form}")
    found = emitter.temporary(
        f"m.multiply_fragments({bound}, {', '.join(lists)}, {emitter.mask(step)}, {index})"
    )
    for k, item in enumerate(items_of(step.operands[0])):
        emitter.write(item, f"{found}[{k}]", _bits_of(form.d.kind), step)


EFFECTS = {"wmma": Effect(_problem, _emit, "wmma.load, wmma.mma, wmma.store")}

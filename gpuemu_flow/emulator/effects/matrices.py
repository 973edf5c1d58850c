"""Matrix instructions of warps: ldmatrix, stmatrix, mma."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    address_problem,
    constant_of,
    items_of,
    operand_problem,
    result_problem,
)
from gpuemu_flow.emulator.effects.effect import Effect
from gpuemu_flow.emulator.ir import MemoryOperand, Step
from gpuemu_flow.emulator.matrices import ELEMENT_BITS, MatrixForm
from gpuemu_flow.emulator.sparse import SPARSE_SHAPES, SparseForm

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

_SHAPE = re.compile(r"m(\d{1,2})n(\d{1,2})k(\d{1,3})\Z", re.ASCII)
SHAPES: dict[str, frozenset[tuple[int, int, int]]] = {
    "f16": frozenset({(16, 8, 8), (16, 8, 16)}),
    "bf16": frozenset({(16, 8, 8), (16, 8, 16)}),
    "tf32": frozenset({(16, 8, 4), (16, 8, 8)}),
    "f64": frozenset({(8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)}),
    "8": frozenset({(8, 8, 16), (16, 8, 16), (16, 8, 32)}),
    "4": frozenset({(8, 8, 32), (16, 8, 32), (16, 8, 64)}),
    "1": frozenset({(8, 8, 128), (16, 8, 128), (16, 8, 256)}),
    "fp8": frozenset({(16, 8, 16), (16, 8, 32)}),
}


_SPARSE = frozenset({"sp", "sp::ordered_metadata"})


def read_form(step: Step) -> MatrixForm | None:
    """Return shape and types of a dense ``mma``, or None if the emulator does not know it."""
    return _read_words(step.opcode.segments[1:], SHAPES)


def is_sparse(step: Step) -> bool:
    """Tell whether the matrix A of an ``mma`` is sparse."""
    return bool(_SPARSE & set(step.opcode.segments[1:2]))


def read_sparse(step: Step) -> SparseForm | None:
    """Return the shape, types and selector of an ``mma.sp``; None if it is an unknown form."""
    whole = _read_words(step.opcode.segments[2:], SPARSE_SHAPES)
    if whole is None or len(step.operands) != 6 or whole.bit_operation:
        return None
    selector = constant_of(step.operands[5])
    form = SparseForm(whole, selector or 0, step.opcode.segments[1] != "sp")
    return form if selector in range(form.selectors) else None


def _read_words(
    words: tuple[str, ...], shapes: dict[str, frozenset[tuple[int, int, int]]]
) -> MatrixForm | None:
    if words[:2] != ("sync", "aligned") or len(words) < 9:
        return None
    shape = _SHAPE.match(words[2])
    if shape is None or words[3:5] != ("row", "col"):
        return None
    rest = [w for w in words[5:] if w not in ("satfinite", "xor", "and", "popc", "rn")]
    if len(rest) != 4:
        return None
    d, a, b, c = rest
    m, n, k = (int(number) for number in shape.groups())
    if a not in ELEMENT_BITS or b not in ELEMENT_BITS or ELEMENT_BITS[a] != ELEMENT_BITS[b]:
        return None
    if a[0] in "sub" and a not in ("bf16",):
        family, sums = str(ELEMENT_BITS[a]), {"s32"}
    elif a[0] == "e":
        family, sums = "fp8", {"f32", "f16"}
    else:
        family = a
        sums = {"f16": {"f16", "f32"}, "f64": {"f64"}}.get(a, {"f32"})
    same_kind = a == b or family in ("8", "4", "fp8")
    if not same_kind or (m, n, k) not in shapes.get(family, ()) or not {c, d} <= sums:
        return None
    operation = ""
    if a == "b1":
        operation = next((w for w in words if w in ("xor", "and")), "")
        if not operation:
            return None
    return MatrixForm(m, n, k, a, b, c, d, "satfinite" in words, operation)


def _register_type(kind: str, *, accumulator: bool) -> str:
    if kind == "f64":
        return "f64"
    return {"f32": "f32", "s32": "s32"}.get(kind, "b32") if accumulator else "b32"


def _mma_problem(step: Step) -> str:
    sparse = read_sparse(step) if is_sparse(step) else None
    form = read_form(step) if sparse is None else sparse.whole
    if form is None:
        return UNKNOWN_FORM
    if len(step.operands) != (4 if sparse is None else 6):
        return f"it has {len(step.operands)} operands, not 4"
    for name, operand in zip("dabc", step.operands, strict=False):
        items = items_of(operand)
        wanted = (sparse.stored if sparse is not None and name == "a" else form).registers(name)
        if len(items) != wanted:
            return f"its {name} has {len(items)} registers, not {wanted}"
        kind = _register_type(getattr(form, name), accumulator=name in "cd")
        for item in items:
            problem = result_problem(item, kind) if name == "d" else operand_problem(item, kind)
            if problem:
                return problem
    return "" if sparse is None else operand_problem(step.operands[4], "b32")


def _emit_mma(emitter: Emitter, step: Step, index: int) -> None:
    sparse = read_sparse(step) if is_sparse(step) else None
    form = read_form(step) if sparse is None else sparse.whole
    assert form is not None
    lists = []
    for name, operand in zip("abc", step.operands[1:], strict=False):
        bits = "b64" if getattr(form, name) == "f64" else "b32"
        lists.append("(" + "".join(f"{emitter.read(i, bits)}, " for i in items_of(operand)) + ")")
    method, bound = "matrix_multiply", emitter.function(sparse or form, f"form {sparse or form}")
    if sparse is not None:
        method = "sparse_multiply"
        lists.append(emitter.read(step.operands[4], "b32"))
    found = emitter.temporary(
        f"m.{method}({bound}, {', '.join(lists)}, {emitter.mask(step)}, {index})"
    )
    for k, item in enumerate(items_of(step.operands[0])):
        emitter.write(item, f"{found}[{k}]", "b64" if form.d == "f64" else "b32", step)


def _count(step: Step) -> int:
    return next((int(w[1]) for w in step.opcode.segments if w in ("x1", "x2", "x4")), 0)


def _matrix_access_problem(step: Step) -> str:
    opcode = step.opcode
    words = set(opcode.segments[1:])
    known = {"sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta", "b16"}
    if not words <= known or "m8n8" not in words or "b16" not in words or not _count(step):
        return UNKNOWN_FORM
    if len(step.operands) != 2:
        return UNKNOWN_FORM
    at = 1 if opcode.base == "ldmatrix" else 0
    items = items_of(step.operands[1 - at])
    if len(items) != _count(step):
        return UNKNOWN_FORM
    check = result_problem if at else operand_problem
    problems = (check(item, "b32") for item in items)
    return next((p for p in problems if p), "") or address_problem(step.operands[at])


def _emit_matrix_access(emitter: Emitter, step: Step, index: int) -> None:
    opcode = step.opcode
    loads = opcode.base == "ldmatrix"
    address = step.operands[1 if loads else 0]
    assert isinstance(address, MemoryOperand)
    space = opcode.space or "generic"
    transposed = "trans" in opcode.segments
    where = emitter.address(address)
    mask = emitter.mask(step)
    if loads:
        found = emitter.temporary(
            f"m.load_matrices({space!r}, {where}, {_count(step)}, {transposed}, {mask}, {index})"
        )
        for k, item in enumerate(items_of(step.operands[0])):
            emitter.write(item, f"{found}[{k}]", "b32", step)
        return
    values = "".join(f"{emitter.read(i, 'b32')}, " for i in items_of(step.operands[1]))
    emitter.do(f"m.store_matrices({space!r}, {where}, ({values}), {transposed}, {mask}, {index})")


EFFECTS = {
    "mma": Effect(_mma_problem, _emit_mma, "mma, mma.sp"),
    "ldmatrix": Effect(_matrix_access_problem, _emit_matrix_access, "ldmatrix"),
    "stmatrix": Effect(_matrix_access_problem, _emit_matrix_access, "stmatrix"),
}

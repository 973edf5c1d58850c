"""Matrix instructions of warps: ldmatrix, stmatrix, mma."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    Effect,
    address_problem,
    constant_of,
    items_of,
    operand_problem,
    result_problem,
)
from gpuemu_flow.emulator.ir import Immediate, MemoryOperand, Operand, OperandGroup, Step
from gpuemu_flow.emulator.matrices import ELEMENT_BITS, SPARSE_SHAPES, MatrixForm, SparseForm
from gpuemu_flow.emulator.wmma import FragmentForm, GroupForm, WmmaForm

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter

# Matrix instructions with opaque fragments: wmma.load, wmma.mma, wmma.store.


_WIDE = frozenset({(16, 16, 16), (8, 32, 16), (32, 8, 16)})
SHAPES_WMMA: dict[str, frozenset[tuple[int, int, int]]] = {
    "f16": _WIDE, "bf16": _WIDE, "s8": _WIDE, "u8": _WIDE,
    "tf32": frozenset({(16, 16, 8)}), "f64": frozenset({(8, 8, 4)}),
    "s4": frozenset({(8, 8, 32)}), "u4": frozenset({(8, 8, 32)}), "b1": frozenset({(8, 8, 128)}),
}  # fmt: skip
_SUMS: dict[str, frozenset[str]] = {
    "f16": frozenset({"f16", "f32"}), "bf16": frozenset({"f32"}), "tf32": frozenset({"f32"}),
    "f64": frozenset({"f64"}),
}  # fmt: skip


def fragment_form(role: str, shape: tuple[int, int, int], kind: str) -> FragmentForm:
    """Return the rows and columns of a fragment, and the number of its registers. `role` is ``a``,
    ``b``, ``c`` or ``d``. Source: PTX ISA, "Matrix Fragments for WMMA"."""
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
        for source, shapes in SHAPES_WMMA.items()
    )


def _access(step: Step) -> tuple[FragmentForm, bool] | None:
    """Return the form of the fragment that a step loads or stores, and True for row-major order.
    The result is None if the emulator does not know the form."""
    words = step.opcode.segments[1:]
    if len(words) < 6 or words[2:4] != ("sync", "aligned"):
        return None
    role, shape, kind = words[1], _shape_of(words), _kind_of(step)
    if shape is None or words[4] not in ("row", "col"):
        return None
    if role in ("a", "b"):
        if words[0] != "load" or shape not in SHAPES_WMMA.get(kind, frozenset()):
            return None
        if kind in ("s4", "u4", "b1") and words[4] != {"a": "row", "b": "col"}[role]:
            return None
    elif role != {"load": "c", "store": "d"}.get(words[0]) or not _has_sums(shape, kind):
        return None
    return fragment_form(role, shape, kind), words[4] == "row"


def _wmma_register_type(kind: str) -> str:
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
    problems = [check(item, _wmma_register_type(form.kind)) for item in items]
    problems.append(address_problem(step.operands[1 if loads else 0]))
    if len(step.operands) == 3:
        problems.append(operand_problem(step.operands[2], "u32"))
    return next((p for p in problems if p), "")


def read_wmma_product(step: Step) -> WmmaForm | None:
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
    if shape not in SHAPES_WMMA.get(a, frozenset()) or a != b or not {c, d} <= sums:
        return None
    if (a == "b1") != bool(bits):
        return None
    forms = [
        fragment_form(role, shape, kind) for role, kind in zip("abcd", (a, b, c, d), strict=True)
    ]
    return WmmaForm(forms[0], forms[1], forms[2], forms[3], saturate, bits)


def _product_problem(step: Step) -> str:
    form = read_wmma_product(step)
    if form is None or len(step.operands) != 4:
        return UNKNOWN_FORM
    for name, operand in zip("dabc", step.operands, strict=True):
        part: FragmentForm = getattr(form, name)
        items = items_of(operand)
        if len(items) != part.registers:
            return f"its {name} has {len(items)} registers, not {part.registers}"
        check = result_problem if name == "d" else operand_problem
        problem = next((p for i in items if (p := check(i, _wmma_register_type(part.kind)))), "")
        if problem:
            return problem
    return ""


def _wmma_problem(step: Step) -> str:
    words = step.opcode.segments
    if len(words) < 2 or words[1] not in ("load", "store", "mma"):
        return UNKNOWN_FORM
    return _product_problem(step) if words[1] == "mma" else _access_problem(step)


def _wmma_items(emitter: Emitter, operand: Operand, kind: str) -> str:
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
    values = _wmma_items(emitter, step.operands[1], form.kind)
    emitter.do(f"m.store_fragment({space!r}, {bound}, {where}, {values}, {tail}")


def _emit_wmma(emitter: Emitter, step: Step, index: int) -> None:
    if step.opcode.segments[1] != "mma":
        _emit_access(emitter, step, index)
        return
    form = read_wmma_product(step)
    assert form is not None
    lists = [
        _wmma_items(emitter, operand, getattr(form, name).kind)
        for name, operand in zip("abc", step.operands[1:], strict=True)
    ]
    bound = emitter.function(form, f"wmma {form}")
    found = emitter.temporary(
        f"m.multiply_fragments({bound}, {', '.join(lists)}, {emitter.mask(step)}, {index})"
    )
    for k, item in enumerate(items_of(step.operands[0])):
        emitter.write(item, f"{found}[{k}]", _bits_of(form.d.kind), step)


EFFECTS: dict[str, Effect] = {
    "wmma": Effect(_wmma_problem, _emit_wmma, "wmma.load, wmma.mma, wmma.store")
}


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
    return _read_words(step.opcode.segments[1:], SHAPES)


def is_sparse(step: Step) -> bool:
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


EFFECTS |= {
    "mma": Effect(_mma_problem, _emit_mma, "mma, mma.sp"),
    "ldmatrix": Effect(_matrix_access_problem, _emit_matrix_access, "ldmatrix"),
    "stmatrix": Effect(_matrix_access_problem, _emit_matrix_access, "stmatrix"),
}


# Matrix products of warp groups (sm_90): wgmma.


_SHAPE_WGMMA = re.compile(r"m64n(\d{1,3})k(\d{1,3})\Z", re.ASCII)
DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32}
_FLOATS = frozenset({"f16", "bf16", "tf32", "e4m3", "e5m2"})


def _plain(step: Step) -> bool:
    return step.opcode.segments[1] in ("fence", "commit_group", "wait_group")


def read_product(step: Step) -> GroupForm | None:
    words = [w for w in step.opcode.segments[1:] if w != "satfinite"]
    if words[:3] != ["mma_async", "sync", "aligned"] or len(words) != 7:
        return None
    shape, (d, a, b) = _SHAPE_WGMMA.match(words[3]), words[4:]
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


EFFECTS |= {"wgmma": Effect(_problem, _emit, "wgmma.mma_async")}

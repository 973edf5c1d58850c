"""Moves, comparisons and address conversions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from gpuemu_flow.emulator.effects.checking import (
    UNKNOWN_FORM,
    Effect,
    items_of,
    operand_problem,
    operands_problem,
    result_problem,
)
from gpuemu_flow.emulator.ir import Operand, OperandGroup, Step, Symbol
from gpuemu_flow.emulator.memory import LOCAL_BASE, SHARED_BASE, WINDOW
from gpuemu_flow.emulator.semantics.convert import bfloat_to_f32, high, low
from gpuemu_flow.emulator.semantics.floats import flush
from gpuemu_flow.emulator.semantics.integers import compare, multiply_high
from gpuemu_flow.emulator.types import DTYPES, SIZES, Array, is_float

if TYPE_CHECKING:
    from gpuemu_flow.emulator.emitter import Emitter


_COMPARISONS = frozenset(
    {
        "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs",
        "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan",
    }
)  # fmt: skip
_COMBINE = {"and": "&", "or": "|", "xor": "^"}
_FLUSHED = frozenset({"f16", "f16x2", "f32"})
"""Types whose comparisons may have ``.ftz``."""
_FLOAT_ONLY = frozenset(["equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"])


def _comparison(step: Step) -> tuple[str, str, str]:
    """Return a comparison's operator, its Boolean operation, and its type.

    The Boolean operation combines the result with another predicate; it is empty if there is none.
    """
    words = step.opcode.segments[1:]
    name = words[0] if words else ""
    combined = next((w for w in words[1:] if w in _COMBINE), "")
    return name, combined, step.opcode.type


def _setp_problem(step: Step) -> str:
    name, combined, type_name = _comparison(step)
    operands = step.operands
    if name not in _COMPARISONS or type_name not in DTYPES or type_name == "pred":
        return UNKNOWN_FORM
    floats = is_float(type_name) or type_name in ("bf16", "f16x2", "bf16x2")
    if name in _FLOAT_ONLY and not floats:
        return UNKNOWN_FORM
    flags = set(step.opcode.segments[2:]) - {*step.opcode.types, *_COMBINE}
    if flags - ({"ftz"} if type_name in _FLUSHED else set()):
        return UNKNOWN_FORM
    if len(operands) != 3 + bool(combined):
        return f"it has {len(operands)} operands"
    if combined and operand_problem(operands[3], "pred"):
        return operand_problem(operands[3], "pred")
    if step.opcode.base == "set":
        to = step.opcode.types[0]
        if len(step.opcode.types) != 2 or to not in DTYPES:
            return UNKNOWN_FORM
        result = result_problem(operands[0], to)
        if result:
            return result
        if type_name.endswith("x2") != (to.endswith("x2")) and not (
            type_name.endswith("x2") and to in ("u32", "s32")
        ):
            return UNKNOWN_FORM
    else:
        for item in items_of(operands[0]):
            if result_problem(item, "pred"):
                return result_problem(item, "pred")
        if len(items_of(operands[0])) > 2:
            return UNKNOWN_FORM
    return operand_problem(operands[1], type_name) or operand_problem(operands[2], type_name)


def _compared(emitter: Emitter, step: Step) -> list[str]:
    """Write a comparison's code; return the name of its result, or both names for a packed type."""
    name, _, type_name = _comparison(step)
    function = emitter.function(compare(name), f"compare {name}")
    values = [emitter.read(o, type_name) for o in step.operands[1:3]]
    flushing = emitter.function(flush, "flush") if "ftz" in step.opcode.segments else ""
    if not type_name.endswith("x2"):
        values = [f"{flushing}({v})" for v in values]
    if type_name == "bf16":
        widen = emitter.function(bfloat_to_f32, "widen bf16")
        values = [f"{widen}({v})" for v in values]
    if not type_name.endswith("x2"):
        return [emitter.temporary(f"{function}({values[0]}, {values[1]})")]
    halves = []
    for part, label in ((low, "low"), (high, "high")):
        pick = emitter.function(part, f"{label} half")
        parts = [f"{pick}({v})" for v in values]
        if type_name == "f16x2":
            parts = [f"{flushing}({p}.view('f2'))" for p in parts]
        else:
            widen = emitter.function(bfloat_to_f32, "widen bf16")
            parts = [f"{widen}({p})" for p in parts]
        halves.append(emitter.temporary(f"{function}({parts[0]}, {parts[1]})"))
    return halves


def _emit_setp(emitter: Emitter, step: Step, index: int) -> None:
    found = _compared(emitter, step)
    _, combined, _ = _comparison(step)
    targets = items_of(step.operands[0])
    inverse = f"(~{found[0]})"
    values = found if len(found) == 2 else [found[0], inverse]
    if combined:
        other = emitter.read(step.operands[3], "pred")
        values = [f"({v} {_COMBINE[combined]} {other})" for v in values]
    values = [emitter.temporary(v) for v in values[: len(targets)]]
    for target, value in zip(targets, values, strict=False):
        emitter.write(target, value, "pred", step)


TRUE = {"f16": 0x3C00, "f16x2": 0x3C00, "bf16": 0x3F80, "bf16x2": 0x3F80}
"""Bits of 1.0, which ``set`` writes to 16-bit floats for true; integers get all ones."""


def _emit_set(emitter: Emitter, step: Step, index: int) -> None:
    values = _compared(emitter, step)
    _, combined, _ = _comparison(step)
    if combined:
        other = emitter.read(step.operands[3], "pred")
        values = [f"({value} {_COMBINE[combined]} {other})" for value in values]
    to = step.opcode.types[0]
    factory = _both_if(TRUE.get(to, 0xFFFF)) if len(values) == 2 else _value_if(to)
    function = emitter.function(factory, f"set {len(values)} {to}")
    emitter.write(step.operands[0], f"{function}({', '.join(values)})", to, step)


def _value_if(to: str) -> Callable[[Array], Array]:
    dtype = DTYPES[to]
    kind = np.dtype(dtype).type
    if is_float(to):
        return lambda p: p.astype(dtype)
    bits = np.array(TRUE.get(to, -1), np.int64).astype(dtype)
    return lambda p: np.where(p, bits, kind(0))


def _both_if(bits: int) -> Callable[[Array, Array], Array]:
    low_bits, high_bits, none = np.uint32(bits), np.uint32(bits << 16), np.uint32(0)
    return lambda p, q: np.where(p, low_bits, none) | np.where(q, high_bits, none)


def _mov_problem(step: Step) -> str:
    type_name = step.opcode.type
    if len(step.operands) != 2 or type_name not in DTYPES:
        return UNKNOWN_FORM
    target, source = step.operands
    for group in (target, source):
        if isinstance(group, OperandGroup) and _piece(type_name, len(group.items)) == "":
            return UNKNOWN_FORM
    if isinstance(target, OperandGroup) and isinstance(source, OperandGroup):
        return UNKNOWN_FORM
    if isinstance(target, OperandGroup):
        piece = _piece(type_name, len(target.items))
        problems = [result_problem(item, piece) for item in target.items]
        return next((p for p in problems if p), operand_problem(source, type_name))
    if isinstance(source, OperandGroup):
        piece = _piece(type_name, len(source.items))
        problems = [operand_problem(item, piece) for item in source.items]
        return next((p for p in problems if p), result_problem(target, type_name))
    return operands_problem(step, (type_name,), type_name)


def _piece(type_name: str, count: int) -> str:
    bits = 8 * SIZES[type_name] // count
    return f"b{bits}" if bits in (8, 16, 32) and bits * count == 8 * SIZES[type_name] else ""


def _emit_mov(emitter: Emitter, step: Step, index: int) -> None:
    target, source = step.operands
    type_name = step.opcode.type
    if isinstance(target, OperandGroup):
        piece = _piece(type_name, len(target.items))
        whole = emitter.temporary(emitter.read(source, f"b{8 * SIZES[type_name]}"))
        function = emitter.function(_part, "part")
        for k, item in enumerate(target.items):
            shift = 8 * SIZES[piece] * k
            emitter.write(item, f"{function}({whole}, {shift}, {DTYPES[piece]!r})", piece, step)
    elif isinstance(source, OperandGroup):
        piece = _piece(type_name, len(source.items))
        values = ", ".join(emitter.read(item, piece) for item in source.items)
        function = emitter.function(_joined, "joined")
        bits = f"b{8 * SIZES[type_name]}"
        emitter.write(target, f"{function}(({values},), {DTYPES[bits]!r})", bits, step)
    elif _is_parameter_offset(source, type_name):
        offset = source.offset + source.displacement
        value = emitter.constant(np.array([[offset]], np.uint32), ("parameter", offset))
        emitter.write(target, value, type_name, step)
    else:
        emitter.write(target, emitter.read(source, type_name), type_name, step)


def _is_parameter_offset(source: Operand, type_name: str) -> TypeGuard[Symbol]:
    """Tell whether a 32-bit move has a parameter's address as its source.

    Such a move gives an offset in the parameter block, because a generic address has 64 bits.
    """
    return isinstance(source, Symbol) and source.space == "param" and SIZES[type_name] == 4


def _part(whole: Array, shift: int, dtype: str) -> Array:
    return (whole >> whole.dtype.type(shift)).astype(dtype)


def _joined(parts: tuple[Array, ...], dtype: str) -> Array:
    kind = np.dtype(dtype).type
    bits = 8 * parts[0].dtype.itemsize
    out = parts[0].astype(dtype)
    for k, part in enumerate(parts[1:], 1):
        out = out | (part.astype(dtype) << kind(bits * k))
    return out


_BASES = {"shared": SHARED_BASE, "local": LOCAL_BASE}


def _cvta_space(step: Step) -> str:
    return step.opcode.space


def _cvta_problem(step: Step) -> str:
    type_name = step.opcode.type
    if type_name not in ("u64", "u32") or _cvta_space(step) not in (
        "global", "shared", "local", "const", "param",
    ):  # fmt: skip
        return UNKNOWN_FORM
    return operands_problem(step, (type_name,), type_name)


def _emit_cvta(emitter: Emitter, step: Step, index: int) -> None:
    value = emitter.read(step.operands[1], "u64") if step.opcode.type == "u64" else (
        f"{emitter.read(step.operands[1], 'u32')}.astype('u8')"
    )  # fmt: skip
    base = _BASES.get(_cvta_space(step), 0)
    if base:
        constant = emitter.constant(np.array([[base]], np.uint64), ("address", base))
        sign = "-" if "to" in step.opcode.segments else "+"
        value = f"({value} {sign} {constant})"
    elif _cvta_space(step) == "param" and "to" not in step.opcode.segments:
        value = f"m.generic_parameter({value})"
    if step.opcode.type == "u32":
        value = f"{value}.astype('u4')"
    emitter.write(step.operands[0], value, step.opcode.type, step)


def _isspacep_problem(step: Step) -> str:
    if step.opcode.space not in ("global", "shared", "local", "const", "param"):
        return UNKNOWN_FORM
    return operands_problem(step, ("u64",), "pred")


def _emit_isspacep(emitter: Emitter, step: Step, index: int) -> None:
    value = emitter.read(step.operands[1], "u64")
    if step.opcode.space == "shared" and "shared::cluster" not in step.opcode.segments:
        emitter.write(step.operands[0], f"m.is_own_shared({value})", "pred", step)
        return
    function = emitter.function(_in_space(step.opcode.space), f"in {step.opcode.space}")
    emitter.write(step.operands[0], f"{function}({value})", "pred", step)


def _in_space(space: str) -> Callable[[Array], Array]:
    def inside(address: Array, name: str) -> Array:
        base = np.uint64(_BASES[name])
        return (address >= base) & (address < base + np.uint64(WINDOW))

    if space in _BASES:
        return lambda address: inside(address, space)
    if space == "global":
        return lambda address: ~(inside(address, "shared") | inside(address, "local"))
    return lambda address: np.zeros(address.shape, bool)


EFFECTS: dict[str, Effect] = {
    "setp": Effect(_setp_problem, _emit_setp, "setp"),
    "set": Effect(_setp_problem, _emit_set, "set"),
    "mov": Effect(_mov_problem, _emit_mov, "mov"),
    "cvta": Effect(_cvta_problem, _emit_cvta, "cvta"),
    "isspacep": Effect(_isspacep_problem, _emit_isspacep, "isspacep"),
}


# Extended-precision arithmetic: instructions that read or write a thread's carry.


_TYPES = frozenset({"u32", "s32", "b32", "u64", "s64", "b64"})


def _operands(step: Step) -> int:
    return 3 if step.opcode.base in ("mad", "madc") else 2


def _problem(step: Step) -> str:
    words = set(step.opcode.segments[1:])
    type_name = step.opcode.type
    known = {"cc", "lo", "hi", type_name}
    chained = step.opcode.base.endswith("c") or "cc" in words
    if not chained or type_name not in _TYPES or not words <= known:
        return UNKNOWN_FORM
    if step.guard is not None:
        return "a carry under a predicate is not supported"
    if _operands(step) == 3 and not words & {"lo", "hi"}:
        return UNKNOWN_FORM
    return operands_problem(step, (type_name,) * _operands(step), type_name)


def _emit(emitter: Emitter, step: Step, index: int) -> None:
    opcode = step.opcode
    type_name = opcode.type
    wide = type_name.endswith("64")
    signed_type = ("s" if type_name[0] == "s" else "u") + type_name[1:]
    values = [emitter.read(o, signed_type) for o in step.operands[1:]]
    code = "u8" if wide else "u4"
    if _operands(step) == 3:
        if "hi" in opcode.segments:
            high = emitter.function(multiply_high, "multiply high")
            product = emitter.temporary(f"{high}({values[0]}, {values[1]})")
        else:
            product = emitter.temporary(f"{values[0]} * {values[1]}")
        values = [product, values[2]]
    left, right = (f"{v}.view({code!r})" for v in values)
    subtracts = opcode.base.startswith("sub")
    function = emitter.function(_subtract if subtracts else _add, f"carry {subtracts}")
    taken = "m.carry" if opcode.base.endswith("c") else "None"
    found = emitter.temporary(f"{function}({left}, {right}, {taken})")
    emitter.write(step.operands[0], f"{found}[0]", f"b{64 if wide else 32}", step)
    if "cc" in opcode.segments:
        emitter.do(f"m.carry = {found}[1]")


def _add(a: Array, b: Array, carry: Array | None) -> tuple[Array, Array]:
    total = a + b
    out = total < a
    if carry is not None:
        more = total + carry.astype(total.dtype)
        out = out | (more < total)
        total = more
    return total, out


def _subtract(a: Array, b: Array, borrow: Array | None) -> tuple[Array, Array]:
    rest = a - b
    out = a < b
    if borrow is not None:
        less = rest - borrow.astype(rest.dtype)
        out = out | (rest < borrow.astype(rest.dtype))
        rest = less
    return rest, out


_EFFECT = Effect(_problem, _emit, "Extended-Precision Integer Arithmetic Instructions")

EFFECTS |= dict.fromkeys(("add", "addc", "sub", "subc", "mad", "madc"), _EFFECT)


# Addresses in the shared memory of other blocks of a cluster: mapa, getctarank.


def _is_generic(step: Step) -> bool:
    return not step.opcode.space


def _words_problem(step: Step) -> str:
    words = step.opcode.segments[1:]
    known = words in (("u32",), ("u64",), ("shared::cluster", "u32"), ("shared::cluster", "u64"))
    if not known or (_is_generic(step) and step.opcode.type != "u64"):
        return UNKNOWN_FORM
    return ""


def _map_problem(step: Step) -> str:
    type_name = step.opcode.type
    return _words_problem(step) or operands_problem(step, (type_name, "u32"), type_name)


def _rank_problem(step: Step) -> str:
    return _words_problem(step) or operands_problem(step, (step.opcode.type,), "u32")


def _wide(emitter: Emitter, operand: Operand, type_name: str) -> str:
    value = emitter.read(operand, type_name)
    return value if type_name == "u64" else emitter.temporary(f"{value}.astype('u8')")


def _emit_map(emitter: Emitter, step: Step, index: int) -> None:
    type_name = step.opcode.type
    where = _wide(emitter, step.operands[1], type_name)
    rank = emitter.read(step.operands[2], "u32")
    value = f"m.map_shared({_is_generic(step)}, {where}, {rank}, {emitter.mask(step)}, {index})"
    if type_name == "u32":
        value = f"{value}.astype('u4')"
    emitter.write(step.operands[0], value, type_name, step)


def _emit_rank(emitter: Emitter, step: Step, index: int) -> None:
    where = _wide(emitter, step.operands[1], step.opcode.type)
    value = f"m.rank_of_shared({_is_generic(step)}, {where})"
    emitter.write(step.operands[0], value, "u32", step)


EFFECTS |= {
    "mapa": Effect(_map_problem, _emit_map, "mapa"),
    "getctarank": Effect(_rank_problem, _emit_rank, "getctarank"),
}

"""Integer, logic and selection opcodes as C expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuemu_flow.emulator.native.writer import arithmetic_type, c_type, width
from gpuemu_flow.emulator.registry import BIT_TYPES, INTEGERS
from gpuemu_flow.emulator.semantics.integers import _PRMT_TABLES as PERMUTATIONS
from gpuemu_flow.emulator.types import DTYPES
from gpuemu_flow.lint.ptx import Opcode

_PAIRS = frozenset({"u16x2", "s16x2"})
Words = frozenset[str]
Arguments = Sequence[str]
Writer = Callable[[Opcode, str, Words, Arguments], "str | None"]


def _wrapping(operator: str, type_name: str, a: str, b: str) -> str:
    wide = arithmetic_type(type_name)
    return f"({c_type(type_name)})(({wide})({a}) {operator} ({wide})({b}))"


def _product(type_name: str, words: Words, a: str, b: str) -> tuple[str, str]:
    """Write an integer multiplication as a C expression; return it and the product's PTX type."""
    bits, kind = width(type_name), type_name[0]
    if "lo" in words:
        return _wrapping("*", type_name, a, b), type_name
    wide = {16: f"{kind}32", 32: f"{kind}64"}.get(bits, "")
    wide_c = c_type(wide) if wide else ("s128" if kind == "s" else "u128")
    product = f"(({wide_c})({a}) * ({wide_c})({b}))"
    if "wide" in words:
        return product, wide
    if kind == "s":
        # Shifting bits: what a shift of a negative number gives is the compiler's affair.
        unsigned = {16: "uint32_t", 32: "uint64_t", 64: "u128"}[bits]
        product = f"(({unsigned}){product})"
    return f"({c_type(type_name)})({product} >> {bits})", type_name


def _pairs(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str:
    operation = ("add", "min", "max").index(opcode.base)
    sign, relu = int(kind[0] == "s"), int("relu" in words)
    return f"pairs({operation}, {sign}, {relu}, {args[0]}, {args[1]})"


def _differences(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str:
    sign, sums = int(kind == "s32"), int("add" in words)
    return f"differences({opcode.base[-1]}, {sign}, {sums}, {', '.join(args)})"


def _nth_set(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str:
    return f"nth_set({', '.join(args)})"


def _sum(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    if kind in _PAIRS and opcode.base == "add":
        return _pairs(opcode, kind, words, args)
    if kind not in INTEGERS:
        return None
    operator = "+" if opcode.base == "add" else "-"
    if "sat" in words:
        return f"clamp_32((int64_t)({args[0]}) {operator} (int64_t)({args[1]}))"
    return _wrapping(operator, kind, args[0], args[1])


def _mul(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    return _product(kind, words, args[0], args[1])[0] if kind in INTEGERS else None


def _mad(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    if kind not in INTEGERS:
        return None
    product, result = _product(kind, words, args[0], args[1])
    if "sat" in words:
        return f"clamp_32((int64_t)({product}) + (int64_t)({args[2]}))"
    return _wrapping("+", result, product, args[2])


def _short(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    product = f"(uint64_t)(low24_{kind}({args[0]}) * low24_{kind}({args[1]}))"
    product = f"({c_type(kind)})(({product}) >> {16 if 'hi' in words else 0})"
    return product if opcode.base == "mul24" else _wrapping("+", kind, product, args[2])


def _sad(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    a, b, c = args
    first, second = _wrapping("-", kind, b, a), _wrapping("-", kind, a, b)
    return _wrapping("+", kind, c, f"(({a}) < ({b}) ? {first} : {second})")


def _division(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    if kind not in INTEGERS:
        return None
    return f"{opcode.base}_{kind}({args[0]}, {args[1]})"


def _sign(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    if kind not in ("s16", "s32", "s64"):
        return None
    negative = _wrapping("-", kind, "0", args[0])
    return negative if opcode.base == "neg" else f"(({args[0]}) < 0 ? {negative} : ({args[0]}))"


def _extreme(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    if kind in _PAIRS:
        return _pairs(opcode, kind, words, args)
    if kind not in INTEGERS or len(args) != 2:
        return None
    sign = "<" if opcode.base == "min" else ">"
    found = f"(({args[0]}) {sign} ({args[1]}) ? ({args[0]}) : ({args[1]}))"
    return f"({found} < 0 ? 0 : {found})" if "relu" in words else found


def _logic(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    base = opcode.base
    if base == "not":
        return f"(!({args[0]}))" if kind == "pred" else f"({c_type(kind)})(~({args[0]}))"
    if base == "cnot":
        return f"({c_type(kind)})(({args[0]}) == 0)"
    sign = {"and": "&", "or": "|", "xor": "^"}[base]
    return f"({c_type(kind)})(({args[0]}) {sign} ({args[1]}))"


def _shift(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    bits = width(kind)
    if opcode.base == "shl":
        return f"({c_type(kind)})shl_{bits}((uint{bits}_t)({args[0]}), {args[1]})"
    sign = "s" if kind[0] == "s" else "u"
    return f"shr_{sign}{bits}({args[0]}, {args[1]})"


def _funnel(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    a, b, n = args
    count = f"(({n}) & 31)" if "wrap" in words else f"(({n}) > 32 ? 32 : ({n}))"
    return f"funnel({a}, {b}, {count}, {int('l' in words)})"


def _count(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    bits, base, a = width(kind), opcode.base, args[0]
    unsigned = f"(uint{bits}_t)({a})"
    if base == "popc":
        return f"(uint32_t)__builtin_popcountll((uint64_t){unsigned})"
    if base == "clz":
        return f"clz_{bits}({unsigned})"
    if base == "brev":
        return f"({c_type(kind)})brev_{bits}({unsigned})"
    if kind[0] == "s":
        unsigned = f"(uint{bits}_t)(({a}) < 0 ? ~({a}) : ({a}))"
    zeros = f"clz_{bits}({unsigned})"
    value = zeros if "shiftamt" in words else f"({bits - 1}u - {zeros})"
    return f"({zeros} == {bits} ? 0xFFFFFFFFu : {value})"


def _field(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    bits = width(kind)
    if opcode.base == "bfi":
        unsigned = [f"(uint{bits}_t)({a})" for a in args[:2]]
        return f"({c_type(kind)})bfi_{bits}({unsigned[0]}, {unsigned[1]}, {args[2]}, {args[3]})"
    sign = "s" if kind[0] == "s" else "u"
    if opcode.base == "bfe":
        return f"bfe_{sign}{bits}({args[0]}, {args[1]}, {args[2]})"
    wrap = "& 31" if "wrap" in words else ""
    if opcode.base == "bmsk":
        return f"shl_32(ones_32(({args[1]}) {wrap}), ({args[0]}) {wrap})"
    return f"({c_type(kind)})szext((uint32_t)({args[0]}), ({args[1]}) {wrap}, {int(sign == 's')})"


def _lop3(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    a, b, c, table = args
    number = int(table)
    terms = [
        f"({'' if row & 4 else '~'}({a}) & {'' if row & 2 else '~'}({b}) & "
        f"{'' if row & 1 else '~'}({c}))"
        for row in range(8)
        if number >> row & 1
    ]
    return f"(uint32_t)({' | '.join(terms)})" if terms else "0u"


def _prmt(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    a, b, selector = args
    if len(opcode.segments) == 2:
        return f"prmt({a}, {b}, {selector})"
    rows = PERMUTATIONS[opcode.segments[2]]
    packed = [sum(n << 4 * k for k, n in enumerate(row)) for row in rows]
    chosen = f"(({selector}) & 3)"
    picked = f"({chosen} == 0 ? {packed[0]} : {chosen} == 1 ? {packed[1]} : "
    return f"prmt({a}, {b}, {picked}{chosen} == 2 ? {packed[2]} : {packed[3]}))"


def _dot(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    types = opcode.types
    a_signed, b_signed = (int(t == "s32") for t in types)
    lanes = 4 if opcode.base == "dp4a" else 2
    offset = 2 if "hi" in words else 0
    value = f"dot({args[0]}, {args[1]}, (uint32_t)({args[2]}), "
    value += f"{a_signed}, {b_signed}, {lanes}, {offset})"
    return f"(int32_t){value}" if "s32" in types else value


def _selp(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    return f"(({args[2]}) ? ({args[0]}) : ({args[1]}))"


def _slct(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    return f"(({args[2]}) >= 0 ? ({args[0]}) : ({args[1]}))"


INTEGER_WRITERS: dict[str, Writer] = {
    "add": _sum, "sub": _sum, "mul": _mul, "mad": _mad, "mul24": _short, "mad24": _short,
    "sad": _sad, "div": _division, "rem": _division, "neg": _sign, "abs": _sign,
    "min": _extreme, "max": _extreme, "and": _logic, "or": _logic, "xor": _logic,
    "not": _logic, "cnot": _logic, "shl": _shift, "shr": _shift, "shf": _funnel,
    "popc": _count, "clz": _count, "brev": _count, "bfind": _count, "bfe": _field, "bfi": _field,
    "bmsk": _field, "szext": _field, "fns": _nth_set, "vabsdiff2": _differences,
    "vabsdiff4": _differences,
    "lop3": _lop3, "prmt": _prmt, "dp4a": _dot, "dp2a": _dot, "selp": _selp, "slct": _slct,
}  # fmt: skip
"""Functions by base name: they write the result of an opcode as a C expression of its type."""

__all__ = ["BIT_TYPES", "DTYPES", "INTEGER_WRITERS", "Arguments", "Words", "Writer"]

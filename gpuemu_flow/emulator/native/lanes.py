"""Lane-wise opcodes as C expressions; numpy runs kernels with any other lane-wise opcode."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuemu_flow.emulator.native.writer import INTEGRAL, MODES, arithmetic_type, c_type, width
from gpuemu_flow.emulator.semantics.integers import _PRMT_TABLES as PERMUTATIONS
from gpuemu_flow.emulator.types import INTEGERS, ROUNDINGS, is_float, rounding
from gpuemu_flow.lint.ptx.model import Opcode

_FLOATS = frozenset({"f16", "f32", "f64", "bf16", "f16x2", "bf16x2"})
_ARITHMETIC = frozenset({*ROUNDINGS, "ftz", "sat"})
_FUNCTION = frozenset({*ROUNDINGS, "ftz", "approx"})

_WORDS: dict[str, frozenset[str]] = {
    "add": _ARITHMETIC, "sub": _ARITHMETIC, "mul": _ARITHMETIC | {"lo", "hi", "wide"},
    "fma": _ARITHMETIC | {"relu"}, "mad": _ARITHMETIC | {"lo", "hi", "wide"},
    "mul24": frozenset({"lo", "hi"}), "mad24": frozenset({"lo", "hi"}),
    "div": _ARITHMETIC | {"approx", "full"},
    "min": frozenset({"ftz", "NaN", "relu"}), "max": frozenset({"ftz", "NaN", "relu"}),
    "vabsdiff2": frozenset({"add"}), "vabsdiff4": frozenset({"add"}),
    "neg": frozenset({"ftz"}), "abs": frozenset({"ftz"}),
    "rcp": _FUNCTION, "sqrt": _FUNCTION, "rsqrt": _FUNCTION, "sin": _FUNCTION, "cos": _FUNCTION,
    "lg2": _FUNCTION, "ex2": _FUNCTION, "tanh": _FUNCTION,
    "testp": frozenset(
        {"finite", "infinite", "number", "notanumber", "normal", "subnormal"}
    ),
    "shf": frozenset({"l", "r", "wrap", "clamp"}), "bfind": frozenset({"shiftamt"}),
    "bmsk": frozenset({"wrap", "clamp"}), "szext": frozenset({"wrap", "clamp"}),
    "prmt": frozenset({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"}),
    "dp2a": frozenset({"lo", "hi"}),
    "cvt": frozenset(
        {*ROUNDINGS, "rni", "rzi", "rmi", "rpi", "rna", "ftz", "sat", "relu", "satfinite"}
    ),
}  # fmt: skip
"""Words that an opcode may have besides its types; numpy runs an opcode with any other word."""


def lane_wise(opcode: Opcode, arguments: Arguments) -> str | None:
    words, kind = frozenset(opcode.segments[1:]), opcode.type
    if not words - set(opcode.types) <= _WORDS.get(opcode.base, frozenset()):
        return None
    if opcode.base == "cvt":
        return conversion(opcode, words, arguments)
    table = FLOAT_WRITERS if kind in _FLOATS else INTEGER_WRITERS
    writer = table.get(opcode.base)
    if writer is None and opcode.base in ("selp", "slct"):
        writer = INTEGER_WRITERS[opcode.base]
    return None if writer is None else writer(opcode, kind, words, arguments)


# Integer, logic and selection opcodes as C expressions.


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


def _integer_sign(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    if kind not in ("s16", "s32", "s64"):
        return None
    negative = _wrapping("-", kind, "0", args[0])
    return negative if opcode.base == "neg" else f"(({args[0]}) < 0 ? {negative} : ({args[0]}))"


def _integer_extreme(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
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
    "sad": _sad, "div": _division, "rem": _division, "neg": _integer_sign, "abs": _integer_sign,
    "min": _integer_extreme, "max": _integer_extreme, "and": _logic, "or": _logic, "xor": _logic,
    "not": _logic, "cnot": _logic, "shl": _shift, "shr": _shift, "shf": _funnel,
    "popc": _count, "clz": _count, "brev": _count, "bfind": _count, "bfe": _field, "bfi": _field,
    "bmsk": _field, "szext": _field, "fns": _nth_set, "vabsdiff2": _differences,
    "vabsdiff4": _differences,
    "lop3": _lop3, "prmt": _prmt, "dp4a": _dot, "dp2a": _dot, "selp": _selp, "slct": _slct,
}  # fmt: skip
"""Functions by base name: they write the result of an opcode as a C expression of its type."""


# Floating-point opcodes as C expressions.


_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_SUFFIX = {"f32": "f", "f64": "d"}


def _flagged(kind: str, words: Words, inner: str) -> str | None:
    """Apply ``.ftz`` and ``.sat`` to a result; None if the back end lacks the combination."""
    if kind == "f64":
        if words & {"ftz"}:
            return None
        return f"satd({inner})" if "sat" in words else f"cd({inner})"
    if "sat" in words:
        return f"satf(flf({inner}))" if "ftz" in words else f"satf({inner})"
    return f"flf(cf({inner}))" if "ftz" in words else f"cf({inner})"


def _flushed(kind: str, words: Words, args: Arguments) -> list[str]:
    if "ftz" in words and kind == "f32":
        return [f"flf({a})" for a in args]
    return [f"({a})" for a in args]


def _arithmetic(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    base, mode = opcode.base, rounding(words)
    if kind not in ("f32", "f64"):
        return _half(base, kind, words, args)
    given = _flushed(kind, words, args)
    if base in ("fma", "mad"):
        inner = f"fma{'f' if kind == 'f32' else ''}({', '.join(given)})"
        if mode != "rn":
            inner = f"fma_{kind}({', '.join(given)}, {MODES[mode]})"
    elif mode == "rn" or words & {"approx", "full"}:
        inner = f"{given[0]} {_SYMBOLS[base]} {given[1]}"
    elif base == "sub":
        inner = f"add_{kind}({given[0]}, -{given[1]}, {MODES[mode]})"
    else:
        inner = f"{base}_{kind}({given[0]}, {given[1]}, {MODES[mode]})"
    return _flagged(kind, words, inner)


_HALVES = {"f16": "h", "f16x2": "h", "bf16": "b", "bf16x2": "b"}


def _pairwise(kind: str, function: str, args: Arguments) -> str:
    """Return a C expression that calls a function of 16-bit floats. For a packed type, which holds
    two such floats, the function is called once for each of them."""
    if not kind.endswith("x2"):
        return f"{function}({', '.join(args)})"
    low, high = (", ".join(f"{part}({a})" for a in args) for part in ("LO", "HI"))
    return f"pack({function}({low}), {function}({high}))"


def _nested(kind: str, functions: list[str], args: Arguments) -> str:
    value = _pairwise(kind, functions[0], args)
    for function in functions[1:]:
        value = _pairwise(kind, function, [value])
    return value


def _half(base: str, kind: str, words: Words, args: Arguments) -> str | None:
    letter = _HALVES.get(kind)
    if letter is None or base not in ("add", "sub", "mul", "fma"):
        return None
    flush = "ftz" in words
    if flush:
        args = [_pairwise(kind, "flh", [a]) for a in args]
    functions = [f"{base}_{letter}"]
    if flush:
        functions.append("flh")
    if "sat" in words:
        functions.append("sath")
    if "relu" in words:
        functions.append(f"relu{letter}")
    return _nested(kind, functions, args)


def _extreme(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    name = opcode.base + ("nan" if "NaN" in words else "")
    if len(args) != 2:
        return None
    if kind in _HALVES:
        if "ftz" in words:
            return None
        return _pairwise(kind, f"{name}_{_HALVES[kind]}", args)
    if kind not in ("f32", "f64"):
        return None
    given = _flushed(kind, words, args)
    return f"c{_SUFFIX[kind]}({name}_{kind}({given[0]}, {given[1]}))"


def _sign(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    flip, value = opcode.base == "neg", args[0]
    if kind in _HALVES:
        mask = 0x80008000 if kind.endswith("x2") else 0x8000
        if "ftz" in words:
            if _HALVES[kind] != "h":
                return None
            value = _pairwise(kind, "flh", [value])
        most = 0xFFFFFFFF if kind.endswith("x2") else 0xFFFF
        return f"(({value}) ^ {mask}u)" if flip else f"(({value}) & {most ^ mask}u)"
    if kind == "f64":
        changed = "^ 0x8000000000000000ull" if flip else "& 0x7fffffffffffffffull"
        return f"asd(dau({value}) {changed})"
    if kind != "f32":
        return None
    value = f"flf({value})" if "ftz" in words else value
    return f"asf(fau({value}) {'^ 0x80000000u' if flip else '& 0x7fffffffu'})"


_APPROXIMATE = {
    "rcp": "1.0 / ({0})", "sqrt": "sqrt({0})", "rsqrt": "1.0 / sqrt({0})", "sin": "sin({0})",
    "cos": "cos({0})", "lg2": "log2({0})", "ex2": "exp2({0})", "tanh": "tanh({0})",
}  # fmt: skip


def _function(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    base = opcode.base
    if kind in _HALVES:
        if base not in ("ex2", "tanh"):
            return None
        return _pairwise(kind, f"{base}_{_HALVES[kind]}", args)
    given = _flushed(kind, words, args)[0]
    if base in ("rcp", "sqrt") and "approx" not in words:
        mode = rounding(words)
        one = "1.0f" if kind == "f32" else "1.0"
        if base == "rcp":
            inner = f"{one} / {given}"
            inner = inner if mode == "rn" else f"div_{kind}({one}, {given}, {MODES[mode]})"
        else:
            inner = f"sqrt{'f' if kind == 'f32' else ''}({given})"
            inner = inner if mode == "rn" else f"sqrt_{kind}({given}, {MODES[mode]})"
        return _flagged(kind, words, inner)
    form = _APPROXIMATE[base]
    if kind == "f64":
        return f"cd({form.format(args[0])})"
    return _flagged(kind, words, f"(float)({form.format(f'(double){given}')})")


def _copysign(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    return f"copysign{'f' if kind == 'f32' else ''}({args[1]}, {args[0]})"


def _testp(opcode: Opcode, kind: str, words: Words, args: Arguments) -> str | None:
    a = f"({args[0]})"
    least = "0x1p-126f" if kind == "f32" else "0x1p-1022"
    size = f"fabs{'f' if kind == 'f32' else ''}({a})"
    finite = f"({a} - {a} == 0)"
    known = {
        "finite": finite,
        "infinite": f"({a} == {a} && !{finite})",
        "number": f"({a} == {a})",
        "notanumber": f"({a} != {a})",
        "normal": f"({finite} && {size} >= {least})",
        "subnormal": f"({finite} && {a} != 0 && {size} < {least})",
    }
    return known.get(opcode.segments[1])


FLOAT_WRITERS: dict[str, Writer] = {
    "add": _arithmetic, "sub": _arithmetic, "mul": _arithmetic, "fma": _arithmetic,
    "mad": _arithmetic, "div": _arithmetic, "min": _extreme, "max": _extreme, "neg": _sign,
    "abs": _sign, "rcp": _function, "sqrt": _function, "rsqrt": _function, "sin": _function,
    "cos": _function, "lg2": _function, "ex2": _function, "tanh": _function,
    "copysign": _copysign, "testp": _testp,
}  # fmt: skip


# ``cvt`` as C expressions.


_INTEGER_TYPES = frozenset(f"{k}{b}" for k in "us" for b in (8, 16, 32, 64))


def conversion(opcode: Opcode, words: Words, args: Arguments) -> str | None:
    """Write a ``cvt`` as a C expression; return None if the back end lacks it."""
    to, source = opcode.types
    known = (*ROUNDINGS, "rni", "rzi", "rmi", "rpi", "rna")
    mode = next((m for m in known if m in words), "")
    small = {"e4m3x2": 1, "e5m2x2": 0}
    if to in small and source in ("f32", "f16x2"):
        pair = args if source == "f32" else [f"h2f({half}({args[0]}))" for half in ("HI", "LO")]
        return f"NARROW({pair[0]}, {pair[1]}, {small[to]}, {int('relu' in words)})"
    if source in small:
        return f"WIDEN({args[0]}, {small[source]})" if to == "f16x2" else None
    ftz, sat, relu = "ftz" in words, "sat" in words, "relu" in words
    if to in ("f16x2", "bf16x2") and source == "f32":
        scalar = to.removesuffix("x2")
        halves = [_convert(scalar, "f32", mode, a, ftz=ftz, sat=sat, relu=relu) for a in args]
        return f"pack({halves[1]}, {halves[0]})" if None not in halves else None
    return _convert(to, source, mode, args[0], ftz=ftz, sat=sat, relu=relu)


def _convert(
    to: str, source: str, mode: str, value: str, *, ftz: bool, sat: bool, relu: bool
) -> str | None:
    if source == "bf16":
        value, source = f"b2f({value})", "f32"
    if relu and to not in ("f16", "bf16"):
        return None
    if is_float(source):
        made = _from_float(to, source, mode, value, ftz=ftz, sat=sat)
        return made if made is None or not relu else f"relu{'h' if to == 'f16' else 'b'}({made})"
    if source not in _INTEGER_TYPES:
        return None
    if is_float(to):
        return _integer_to_float(to, source, mode or "rn", value)
    if to == "bf16":
        return f"d2b((double)({value}), {MODES[mode or 'rn']})" if width(source) < 64 else None
    if to not in _INTEGER_TYPES:
        return None
    return _saturated(to, source, value) if sat else f"(({c_type(to)})({value}))"


def _limits(kind: str) -> tuple[int, int]:
    bits = width(kind)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def _saturated(to: str, source: str, value: str) -> str:
    (low, high), (least, most) = _limits(to), _limits(source)
    out = f"({c_type(to)})({value})"
    suffix = "ll" if source[0] == "s" else "ull"
    if high < most:
        out = f"(({value}) > {high}{suffix} ? ({c_type(to)}){high}{suffix} : {out})"
    if low > least:
        text = "0ll" if low == 0 else f"(-{-low - 1}ll - 1)"
        out = f"(({value}) < {text} ? ({c_type(to)}){text} : {out})"
    return out


def _integer_to_float(to: str, source: str, mode: str, value: str) -> str | None:
    if to == "f16":
        # A 64-bit integer that double cannot hold is far beyond the largest half.
        return f"d2h_mode((double)({value}), {MODES[mode]})"
    if mode == "rn":
        return f"(({c_type(to)})({value}))"
    wide = f"({'int64_t' if source[0] == 's' else 'uint64_t'})({value})"
    return f"from_{source[0]}_{to}({wide}, {MODES[mode]})"


def _from_float(to: str, source: str, mode: str, value: str, *, ftz: bool, sat: bool) -> str | None:
    if ftz and source == "f32":
        value = f"flf({value})"
    if to == "tf32":
        number = {"rna": 1, "rn": 0, "rz": 2}.get(mode)
        return f"tf32({value}, {number})" if source == "f32" and number is not None else None
    if to == "bf16":
        chosen = MODES.get(mode or "rn")
        if sat or chosen is None:
            return None
        if source == "f64":
            return f"d2b({value}, {chosen})"
        return f"f2b({value if source == 'f32' else f'h2f({value})'}, {chosen})"
    if is_float(to):
        return _between(to, source, mode, value, ftz=ftz, sat=sat)
    if to in _INTEGER_TYPES and mode in INTEGRAL:
        wide = f"(double)h2f({value})" if source == "f16" else f"(double)({value})"
        return f"to_{to}({INTEGRAL[mode]}({wide}))"
    return None


def _between(to: str, source: str, mode: str, value: str, *, ftz: bool, sat: bool) -> str | None:
    """Write a conversion between float types in C; return None for the rounding mode ``rna``.
    `value` is the C expression to convert, and `source` is its type. `to` is the type of the
    result. The C back end does not support ``rna``."""
    if mode == "rna":
        return None
    if mode in INTEGRAL:
        if source == "f16":
            value = f"f2h({INTEGRAL[mode]}f(h2f({value})))"
        else:
            value = f"{INTEGRAL[mode]}{'f' if source == 'f32' else ''}({value})"
    chosen = MODES[mode if mode in MODES else "rn"]
    if to == "f16":
        if source == "f32":
            near = f"f2h({value})"
            value = near if chosen == MODES["rn"] else f"d2h_mode((double)({value}), {chosen})"
        elif source == "f64":
            value = f"d2h_mode({value}, {chosen})"
        else:
            value = f"f2h(h2f({value}))"
        return f"sath({value})" if sat else value
    if source == "f16":
        value = f"h2f({value})" if to == "f32" else f"(double)h2f({value})"
    elif to == "f32" and source == "f64":
        plain = mode in INTEGRAL or chosen == MODES["rn"]
        value = f"(float)({value})" if plain else f"narrow_f32({value}, {chosen})"
    elif to == "f64":
        value = f"(double)({value})"
    if ftz and to == "f32":
        value = f"flf({value})"
    letter = "f" if to == "f32" else "d"
    return f"sat{letter}({value})" if sat else f"c{letter}({value})"

"""Floating-point opcodes as C expressions."""

from __future__ import annotations

from gpuemu_flow.artifacts.ptx import Opcode
from gpuemu_flow.emulator.native.c_types import MODES
from gpuemu_flow.emulator.native.lanes_integers import Arguments, Words, Writer
from gpuemu_flow.emulator.registry import rounding

_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_SUFFIX = {"f32": "f", "f64": "d"}


def _flagged(kind: str, words: Words, inner: str) -> str | None:
    """Apply ``.ftz`` and ``.sat`` to a result; None if the back end lacks the combination.

    Parameters
    ----------
    kind : str
        Type of the result.
    words : frozenset of str
        Words of the opcode, such as ``ftz``.
    inner : str
        The result as a C expression, whose operands have been flushed already.
    """
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
    """Return a C expression that calls a function of 16-bit floats.

    For a packed type, which holds two such floats, the function is called once for each of them.
    """
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

"""``cvt`` as C expressions."""

from __future__ import annotations

from gpuemu_flow.artifacts.ptx import Opcode
from gpuemu_flow.emulator.native.c_types import INTEGRAL, MODES, c_type, width
from gpuemu_flow.emulator.native.lanes_integers import Arguments, Words
from gpuemu_flow.emulator.registry import ROUNDINGS
from gpuemu_flow.emulator.types import is_float

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
    result. The C back end does not support ``rna``.
    """
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

"""Conversions against rational arithmetic, at and around every bound."""

from __future__ import annotations

import random
from fractions import Fraction

import exact_floats as ef
from exact_floats import FORMATS
from known_answers import MODES, compare, edges, together

FLOAT_CONVERSIONS = [
    ("f64", "f32"), ("f32", "f16"), ("f64", "f16"), ("f32", "bf16"), ("f16", "f32"),
    ("f32", "f64"), ("f16", "f64"),
]  # fmt: skip


@together(pair=FLOAT_CONVERSIONS)
def test_conversions_between_floats(pair: tuple[str, str]) -> None:
    source, to = pair
    before, after = FORMATS[source], FORMATS[to]
    narrowing = after.width < before.width
    rng = random.Random(11)
    rows: list[tuple[int, ...]] = [(e,) for e in edges(before)]
    rows += [(rng.randrange(1 << before.width),) for _ in range(200)]
    for _ in range(200):  # near the bounds of what fits
        value = ef.decode(rng.randrange(after.infinity + 2), after)
        near = ef.encode(value.value, before, "rn") if value.kind == "finite" else before.infinity
        rows.append(((near + rng.randrange(-2, 3)) % (1 << before.width),))
    modes = ("rn", "rz") if to == "bf16" else MODES
    for mode in modes if narrowing else ("",):

        def answer(a: int, mode: str = mode or "rn") -> int:
            n = ef.decode(a, before)
            if n.kind == "nan":
                return after.nan
            if n.kind == "inf":
                return ef.infinity(after, n.negative)
            return ef.encode(n.value, after, mode, zero_negative=n.negative)

        dot = f".{mode}" if mode else ""
        compare(f"cvt{dot}.{to}.{source}", (source,), to, rows, answer)


INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")


def bounds(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


@together(to=["s16", "u16", "s32", "u32", "s64", "u64"], source=["f16", "f32", "f64"])
def test_conversions_to_integers(source: str, to: str) -> None:
    form, bits = FORMATS[source], int(to[1:])
    low, high = bounds(to)
    rng = random.Random(13)
    values = [Fraction(n, 2) for n in range(-9, 10)] + [Fraction(b) + Fraction(k, 2)
              for b in (low, high) for k in range(-4, 5)]  # fmt: skip
    rows: list[tuple[int, ...]] = [(e,) for e in edges(form)]
    rows += [(ef.encode(v, form, "rn"),) for v in values]
    rows += [(rng.randrange(1 << form.width),) for _ in range(100)]
    for mode in ("rni", "rzi", "rmi", "rpi"):

        def answer(a: int, mode: str = mode) -> int:
            n = ef.decode(a, form)
            if n.kind == "nan":
                return 1 << 63 if bits == 64 else 0
            if n.kind == "inf":
                return (low if n.negative else high) & ((1 << bits) - 1)
            floor = n.value.numerator // n.value.denominator
            whole = {
                "rmi": floor,
                "rpi": -(-n.value.numerator // n.value.denominator),
                "rzi": int(n.value),
                "rni": round(n.value),
            }[mode]
            return min(max(whole, low), high) & ((1 << bits) - 1)

        compare(f"cvt.{mode}.{to}.{source}", (source,), to, rows, answer)


@together(to=["f16", "f32", "f64"], source=["s16", "u16", "s32", "u32", "s64", "u64"])
def test_conversions_from_integers(source: str, to: str) -> None:
    form, bits = FORMATS[to], int(source[1:])
    low, _ = bounds(source)
    rng = random.Random(17)
    rows: list[tuple[int, ...]] = [(k & ((1 << bits) - 1),) for k in range(-3, 4)]
    rows += [(rng.getrandbits(bits) >> rng.randrange(bits),) for _ in range(200)]
    rows += [((1 << k) + d & ((1 << bits) - 1),) for k in range(bits) for d in (-1, 0, 1)]

    def signed(a: int) -> int:
        return a - (1 << bits) if low and a >> (bits - 1) else a

    for mode in MODES:
        compare(
            f"cvt.{mode}.{to}.{source}", (source,), to, rows,
            lambda a, mode=mode: ef.encode(Fraction(signed(a)), form, mode),
        )  # fmt: skip

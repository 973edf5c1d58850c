"""Eight-bit floats against ml_dtypes, tf32 and signs against rational arithmetic."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import exact_floats as ef
import ml_dtypes
import numpy as np
from exact_floats import FORMATS, Format
from known_answers import compare, edges, pairs, together

SMALL = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
F32 = FORMATS["f32"]
TF32 = Format(11, 8)


def value(bits: int) -> float:
    return float(np.array(bits, "u4").view("f4"))


def eight_bits(kind: str, x: float) -> int:
    """Return the byte that a conversion with .rn.satfinite makes of a number."""
    if x != x:
        return 0x7F
    top = float(ml_dtypes.finfo(SMALL[kind]).max)
    return int(np.array(min(max(x, -top), top), "f8").astype(SMALL[kind]).view("u1"))


@together(kind=SMALL, relu=[False, True])
def test_to_eight_bits(kind: str, relu: bool) -> None:
    rng = random.Random(3)
    codes = [np.array(c, "u1").view(SMALL[kind]).astype("f4").view("u4") for c in range(256)]
    near = [int(c) + d & 0xFFFFFFFF for c in codes for d in (-1, 0, 1)]
    halves = [int(np.array((value(int(a)) + value(int(b))) / 2, "f4").view("u4"))
              for a, b in itertools.pairwise(codes[:120])]  # fmt: skip
    singles = [*edges(F32), *near, *halves]
    rows: list[tuple[int, ...]] = [(a, rng.choice(singles)) for a in singles]

    def answer(high: int, low: int) -> int:
        xs = [value(b) for b in (high, low)]
        if relu:
            xs = [0.0 if x < 0 else x for x in xs]
        return eight_bits(kind, xs[0]) << 8 | eight_bits(kind, xs[1])

    word = ".relu" if relu else ""
    compare(f"cvt.rn.satfinite{word}.{kind}x2.f32", ("f32", "f32"), "b16", rows, answer)


@together(kind=SMALL)
def test_from_eight_bits(kind: str) -> None:
    rows: list[tuple[int, ...]] = [(c | (255 - c) << 8,) for c in range(256)]

    def answer(pair: int) -> int:
        out = 0
        for place in (0, 1):
            x = np.array(pair >> 8 * place & 255, "u1").view(SMALL[kind]).astype("f2")
            out |= (0x7FFF if np.isnan(x) else int(x.view("u2"))) << 16 * place
        return out

    def plain_nan(pair: int) -> bool:
        return any(np.isnan(np.array(pair >> s & 255, "u1").view(SMALL[kind]).astype("f4"))
                   for s in (0, 8))  # fmt: skip

    rows = [row for row in rows if not plain_nan(row[0])]
    compare(f"cvt.rn.f16x2.{kind}x2", ("b16",), "b32", rows, answer)


@together(mode=["rna", "rn", "rz"])
def test_to_tf32(mode: str) -> None:
    rng = random.Random(5)
    rows: list[tuple[int, ...]] = [(e,) for e in edges(F32)]
    rows += [(rng.getrandbits(32) & ~0x1FFF | t,) for t in (0, 0x1000, 0xFFF, 1) for _ in range(60)]

    def answer(a: int) -> int:
        n = ef.decode(a, F32)
        if n.kind == "nan":
            return 0x7FFFFFFF
        if n.kind == "inf":
            return a
        if mode == "rna":  # ties away from zero: half a unit more, cut off
            exact = abs(n.value)
            low = ef.decode(ef.encode(exact, TF32, "rz"), TF32).value
            high_bits = ef.encode(exact, TF32, "rp")
            high = ef.decode(high_bits, TF32)
            top = high.value if high.kind == "finite" else Fraction(2) ** 128
            away = exact - low >= top - exact and exact != low
            bits = high_bits if away else ef.encode(exact, TF32, "rz")
            return bits << 13 | (1 << 31 if n.negative else 0)
        return ef.encode(n.value, TF32, mode, zero_negative=n.negative) << 13

    compare(f"cvt.{mode}.tf32.f32", ("f32",), "b32", rows, answer)


@together(kind=["f32", "f64"])
def test_signs(kind: str) -> None:
    form = FORMATS[kind]
    top = 1 << (form.width - 1)
    plain = [p for p in pairs(form) if "nan" not in {ef.decode(b, form).kind for b in p}]
    compare(f"copysign.{kind}", (kind, kind), kind, plain, lambda a, b: (b & (top - 1)) | (a & top))
    ones: list[tuple[int, ...]] = [(p[0],) for p in plain]
    compare(f"neg.{kind}", (kind,), kind, ones, lambda a: a ^ top)
    compare(f"abs.{kind}", (kind,), kind, ones, lambda a: a & (top - 1))
    if kind == "f32":
        compare("neg.ftz.f32", (kind,), kind, ones, lambda a: ef.flush(a, form) ^ top)
        compare("abs.ftz.f32", (kind,), kind, ones, lambda a: ef.flush(a, form) & (top - 1))

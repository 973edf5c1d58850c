"""Floating-point instructions against rational arithmetic: modes, flags, NaN, signed zeros."""

from __future__ import annotations

import random

import exact_floats as ef
from exact_floats import FORMATS
from known_answers import MODES, compare, edges, pairs, together, triples

BINARY = {"add": ef.add, "sub": ef.subtract, "mul": ef.multiply, "div": ef.divide}


@together(name=BINARY, mode=MODES, kind=["f32", "f64"])
def test_binary_arithmetic(name: str, mode: str, kind: str) -> None:
    form = FORMATS[kind]
    compare(
        f"{name}.{mode}.{kind}", (kind, kind), kind, pairs(form),
        lambda a, b: BINARY[name](a, b, form, mode),
    )  # fmt: skip


@together(mode=MODES, kind=["f32", "f64"])
def test_fma(mode: str, kind: str) -> None:
    form = FORMATS[kind]
    compare(
        f"fma.{mode}.{kind}", (kind,) * 3, kind, triples(form, 3),
        lambda a, b, c: ef.fma(a, b, c, form, mode),
    )  # fmt: skip


@together(name=["sqrt", "rcp"], mode=MODES, kind=["f32", "f64"])
def test_roots_and_reciprocals(name: str, mode: str, kind: str) -> None:
    form = FORMATS[kind]
    one = form.bias << (form.precision - 1)
    rng = random.Random(7)
    rows: list[tuple[int, ...]] = [(e,) for e in edges(form)]
    rows += [(rng.randrange(form.infinity),) for _ in range(100)]

    def answer(a: int) -> int:
        if name == "sqrt":
            return ef.square_root(a, form, mode)
        return ef.divide(one, a, form, mode)

    compare(f"{name}.{mode}.{kind}", (kind,), kind, rows, answer)


@together(name=["add", "sub", "mul", "fma"])
def test_ftz_and_sat(name: str) -> None:
    form = FORMATS["f32"]
    rows = triples(form, 5) if name == "fma" else pairs(form)
    one = form.bias << 23

    def plain(*row: int) -> int:
        if name == "fma":
            return ef.fma(*row, form, "rn")
        return BINARY[name](*row, form, "rn")

    def saturated(bits: int) -> int:
        number = ef.decode(bits, form)
        if number.kind == "nan" or number.negative:
            return 0
        return min(bits, one)

    sources = ("f32",) * len(rows[0])

    def flushed(*row: int) -> int:
        return ef.flush(plain(*(ef.flush(v, form) for v in row)), form)

    compare(f"{name}.rn.ftz.f32", sources, "f32", rows, flushed)
    compare(f"{name}.rn.sat.f32", sources, "f32", rows, lambda *r: saturated(plain(*r)))


@together(name=["add", "sub", "mul", "fma"], kind=["f16", "bf16"])
def test_half_precision(name: str, kind: str) -> None:
    form = FORMATS[kind]
    rows = triples(form, 9) if name == "fma" else pairs(form)
    rounded = name if kind == "f16" and name != "fma" else f"{name}.rn"

    def answer(*row: int) -> int:
        return ef.fma(*row, form, "rn") if name == "fma" else BINARY[name](*row, form, "rn")

    compare(f"{rounded}.{kind}", (kind,) * len(rows[0]), kind, rows, answer)
    joined = [tuple(a | b << 16 for a, b in zip(r, s, strict=True))
              for r, s in zip(rows, rows[::-1], strict=True)]  # fmt: skip

    def both(*row: int) -> int:
        low, high = (answer(*((v >> s) & 0xFFFF for v in row)) for s in (0, 16))
        return low | high << 16

    compare(f"{rounded}.{kind}x2", (f"{kind}x2",) * len(rows[0]), "b32", joined, both)


@together(name=["min", "max", "min.NaN", "max.NaN"], kind=["f16", "bf16", "f32", "f64"])
def test_extremes_with_nan_and_signed_zeros(name: str, kind: str) -> None:
    if kind == "f64" and name.endswith("NaN"):
        return  # there is no such instruction
    form = FORMATS[kind]

    def answer(a: int, b: int) -> int:
        x, y = ef.decode(a, form), ef.decode(b, form)
        if "nan" in (x.kind, y.kind):
            if name.endswith("NaN") or x.kind == y.kind:
                return form.nan
            return b if x.kind == "nan" else a

        def key(n: ef.Number) -> tuple[object, ...]:
            big = {"inf": -1 if n.negative else 1}.get(n.kind, 0)
            return big, n.value, not n.negative

        first = key(x) <= key(y)
        return (a if first else b) if name.startswith("min") else (b if first else a)

    compare(f"{name}.{kind}", (kind, kind), kind, pairs(form), answer)

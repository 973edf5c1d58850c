"""Integer, bit and comparison instructions against Python's integers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from fractions import Fraction

import exact_floats as ef
from exact_floats import FORMATS
from known_answers import as_signed, compare, integer_edges, pairs, quotient, together

INTEGER_OPS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "div": lambda a, b: quotient(a, b) if b else -1,
    "rem": lambda a, b: a - quotient(a, b) * b if b else a,
    "min": min,
    "max": max,
}


@together(
    name=[*INTEGER_OPS, "mul.hi", "mul.wide", "mad.lo", "sad"],
    kind=["s16", "u16", "s32", "u32", "s64", "u64"],
)
def test_integer_arithmetic(name: str, kind: str) -> None:
    bits = int(kind[1:])
    mask = (1 << bits) - 1
    rows: list[tuple[int, ...]] = list(itertools.product(integer_edges(bits), repeat=2))

    def value(a: int) -> int:
        return as_signed(a, bits) if kind[0] == "s" else a

    if name == "mul.wide":
        if bits == 64:
            return  # there is no such instruction
        wide = kind[0] + str(2 * bits)
        compare(
            f"mul.wide.{kind}", (kind, kind), wide, rows,
            lambda a, b: value(a) * value(b) & ((1 << 2 * bits) - 1),
        )  # fmt: skip
        return
    if name in ("mad.lo", "sad"):
        rows = [(*r, r[0] ^ 5) for r in rows]

        def three(a: int, b: int, c: int) -> int:
            if name == "sad":
                return c + abs(value(a) - value(b)) & mask
            return a * b + c & mask

        compare(f"{name}.{kind}", (kind,) * 3, kind, rows, three)
        return
    if name == "mul.hi":
        compare(
            f"mul.hi.{kind}", (kind, kind), kind, rows,
            lambda a, b: (value(a) * value(b) >> bits) & mask,
        )  # fmt: skip
        return
    compare(
        f"{name}.{kind}", (kind, kind), kind, rows,
        lambda a, b: INTEGER_OPS[name](value(a), value(b)) & mask,
    )  # fmt: skip


@together(name=["shl", "shr"], kind=["b16", "b32", "b64", "s16", "s32", "s64", "u32", "u64"])
def test_shifts(name: str, kind: str) -> None:
    bits = int(kind[1:])
    if name == "shl" and kind[0] != "b":
        kind = f"b{bits}"
    counts = (0, 1, 5, bits - 1, bits, bits + 1, 255, 2**31, 2**32 - 1)
    rows: list[tuple[int, ...]] = list(itertools.product(integer_edges(bits), counts))

    def answer(a: int, n: int) -> int:
        if name == "shl":
            return (a << n if n < bits else 0) & ((1 << bits) - 1)
        if kind[0] == "s":
            return as_signed(a, bits) >> min(n, bits) & ((1 << bits) - 1)
        return a >> n if n < bits else 0

    compare(f"{name}.{kind}", (kind, "u32"), kind, rows, answer)


@together(kind=["u32", "s32", "u64", "s64"])
def test_bit_fields(kind: str) -> None:
    bits = int(kind[1:])
    places = (0, 1, 7, bits - 1, bits, 255, 256)
    rows: list[tuple[int, ...]] = list(itertools.product(integer_edges(bits), places, places))

    def extract(a: int, position: int, length: int) -> int:
        position, length = position & 255, length & 255
        sign = 0
        if kind[0] == "s" and length:
            sign = a >> min(position + length - 1, bits - 1) & 1
        out = 0
        for i in range(bits):
            inside = i < length and position + i < bits
            out |= ((a >> (position + i)) & 1 if inside else sign) << i
        return out

    compare(f"bfe.{kind}", (kind, "u32", "u32"), kind, rows, extract)
    if kind[0] == "s":
        return
    four = [(a, a * 7919 & ((1 << bits) - 1), p, n) for a, p, n in rows]

    def insert(a: int, b: int, position: int, length: int) -> int:
        position, length = position & 255, length & 255
        out = b
        for i in range(length):
            if position + i < bits:
                at = 1 << (position + i)
                out = (out & ~at) | (at if a >> i & 1 else 0)
        return out

    name = f"b{bits}"
    compare(f"bfi.{name}", (name, name, "u32", "u32"), name, four, insert)


@together(bits=[32, 64])
def test_counts_of_bits(bits: int) -> None:
    rng = random.Random(19)
    rows: list[tuple[int, ...]] = [(v,) for v in integer_edges(bits)]
    rows += [(rng.getrandbits(bits) >> rng.randrange(bits),) for _ in range(100)]
    kind = f"b{bits}"
    compare(f"popc.{kind}", (kind,), "u32", rows, lambda a: bin(a).count("1"))
    compare(f"clz.{kind}", (kind,), "u32", rows, lambda a: bits - a.bit_length())
    compare(f"brev.{kind}", (kind,), kind, rows, lambda a: int(f"{a:0{bits}b}"[::-1], 2))
    none = 0xFFFFFFFF
    compare(f"bfind.u{bits}", (f"u{bits}",), "u32", rows, lambda a: (a.bit_length() - 1) & none)
    mask = (1 << bits) - 1
    compare(
        f"bfind.s{bits}", (f"s{bits}",), "u32", rows,
        lambda a: ((a ^ mask if a >> (bits - 1) else a).bit_length() - 1) & none,
    )  # fmt: skip


@together()
def test_words_of_bytes() -> None:
    rng = random.Random(23)
    rows: list[tuple[int, ...]] = [tuple(rng.getrandbits(32) for _ in range(3)) for _ in range(200)]

    def prmt(a: int, b: int, selector: int) -> int:
        data = (a | b << 32).to_bytes(8, "little")
        out = 0
        for k in range(4):
            nibble = selector >> 4 * k & 15
            byte = data[nibble & 7]
            out |= ((255 if byte & 128 else 0) if nibble & 8 else byte) << 8 * k
        return out

    compare("prmt.b32", ("b32",) * 3, "b32", rows, prmt)
    for table in (0x80, 0xFE, 0x96, 0xCA, 0xE8, 0x1B, 0x00, 0xFF, 0x3C, 0xF8, 0xEA, 0xA8):

        def lop3(a: int, b: int, c: int, table: int = table) -> int:
            return sum(
                (table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i
                for i in range(32)
            )

        compare("lop3.b32", ("b32",) * 3, "b32", rows, lop3, tail=f", {table}")
    for side, mode in itertools.product("lr", ("wrap", "clamp")):

        def shf(a: int, b: int, n: int, side: str = side, mode: str = mode) -> int:
            n = n & 31 if mode == "wrap" else min(n, 32)
            pair = b << 32 | a
            return (pair << n >> 32 if side == "l" else pair >> n) & 0xFFFFFFFF

        compare(
            f"shf.{side}.{mode}.b32", ("b32", "b32", "u32"), "b32",
            [(a, b, c % 70) for a, b, c in rows], shf,
        )  # fmt: skip
    for x, y in itertools.product(("u32", "s32"), repeat=2):

        def dp4a(a: int, b: int, c: int, x: str = x, y: str = y) -> int:
            for k in range(4):
                p, q = a >> 8 * k & 255, b >> 8 * k & 255
                c += (as_signed(p, 8) if x == "s32" else p) * (as_signed(q, 8) if y == "s32" else q)
            return c & 0xFFFFFFFF

        compare(f"dp4a.{x}.{y}", ("b32", "b32", "b32"), "b32", rows, dp4a)


COMPARISONS = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


@together(name=COMPARISONS, kind=["f16", "f32", "f64", "s32", "u32", "s64", "u64"])
def test_comparisons(name: str, kind: str) -> None:
    if kind[0] != "f":
        bits = int(kind[1:])
        rows: list[tuple[int, ...]] = list(itertools.product(integer_edges(bits), repeat=2))

        def value(a: int) -> int:
            return as_signed(a, bits) if kind[0] == "s" else a

        compare(
            f"setp.{name}.{kind}", (kind, kind), "pred", rows,
            lambda a, b: int(COMPARISONS[name](value(a), value(b))),
        )  # fmt: skip
        return
    form = FORMATS[kind]

    def number(n: ef.Number) -> Fraction:
        big = Fraction(2) ** 2000
        return (-big if n.negative else big) if n.kind == "inf" else n.value

    for unordered in (False, True):

        def answer(a: int, b: int, unordered: bool = unordered) -> int:
            x, y = ef.decode(a, form), ef.decode(b, form)
            if "nan" in (x.kind, y.kind):
                return int(unordered)
            return int(COMPARISONS[name](number(x), number(y)))

        opcode = f"setp.{name}{'u' if unordered else ''}.{kind}"
        compare(opcode, (kind, kind), "pred", pairs(form), answer)
        if kind != "f64":
            flushed = opcode.replace(f".{kind}", f".ftz.{kind}")
            compare(
                flushed, (kind, kind), "pred", pairs(form),
                lambda a, b, answer=answer: answer(ef.flush(a, form), ef.flush(b, form)),
            )  # fmt: skip

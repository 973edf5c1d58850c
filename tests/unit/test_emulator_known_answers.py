"""Each instruction against independent arithmetic: rational numbers and Python's integers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from fractions import Fraction

import exact_floats as ef
import numpy as np
import pytest
from both_backends import launch_both
from exact_floats import FORMATS, Format

from gpuemu_flow.emulator.launch import BufferArgument, load_kernel

WIDTHS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "pred": 32}
Answer = Callable[..., int]


def width_of(kind: str) -> int:
    return WIDTHS.get(kind) or int(kind.lstrip("usbf").partition("x")[0]) * (
        2 if "x2" in kind else 1
    )


def execute(
    opcode: str, sources: Sequence[str], result: str, rows: list[tuple[int, ...]], tail: str = ""
) -> list[int]:
    """Run one instruction on many operands, a thread for each; returns bits."""
    widths = [width_of(s) for s in sources]
    out = width_of(result)
    names = [f"%a{k}" for k in range(len(sources))]
    lines = [f".reg .b{w} {n};" for n, w in zip(names, widths, strict=True)]
    lines += [
        f".reg .b{out} %d; .reg .b32 %t; .reg .pred %p; .reg .b64 %q<9>;",
        "mov.u32 %t, %tid.x;",
    ]
    lines += [".reg .b32 %c; mov.u32 %c, %ctaid.x; mad.lo.u32 %t, %c, 256, %t;"]
    for k, (name, width) in enumerate(zip(names, widths, strict=True)):
        lines += [
            f"ld.param.u64 %q{k}, [x{k}]; mul.wide.u32 %q8, %t, {width // 8}; "
            f"add.s64 %q{k}, %q{k}, %q8; ld.global.b{width} {name}, [%q{k}];"
        ]
    target = "%p" if result == "pred" else "%d"
    lines += [f"{opcode} {target}, {', '.join(names)}{tail};"]
    if result == "pred":
        lines += ["selp.b32 %d, 1, 0, %p;"]
    lines += [
        f"ld.param.u64 %q6, [out]; mul.wide.u32 %q8, %t, {out // 8}; add.s64 %q6, %q6, %q8; "
        f"st.global.b{out} [%q6], %d; ret;"
    ]
    heads = [f".param .u64 x{k}" for k in range(len(sources))] + [".param .u64 out"]
    ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k("
    ptx += ", ".join(heads) + ")\n{\n" + "\n".join(lines) + "\n}\n"
    count = -(-len(rows) // 256) * 256
    padded = rows + [rows[0]] * (count - len(rows))
    buffers = [
        BufferArgument(np.array([r[k] for r in padded], f"u{w // 8}")) for k, w in enumerate(widths)
    ]
    buffers.append(BufferArgument(np.zeros(count, f"u{out // 8}"), initialised=False))
    result_ = launch_both(load_kernel(ptx.encode(), opcode), [count // 256], [256], buffers)
    assert result_.findings == ()
    last = result_.buffers[-1]
    assert last is not None
    return [int(v) for v in last[: len(rows)]]


def compare(
    opcode: str, sources: Sequence[str], result: str, rows: list[tuple[int, ...]],
    answer: Answer, tail: str = "",
) -> None:  # fmt: skip
    got = execute(opcode, sources, result, rows, tail)
    form = FORMATS.get(result)
    for row, value in zip(rows, got, strict=True):
        wanted = answer(*row)
        if form is not None and form.width == 64 and ef.decode(wanted, form).kind == "nan":
            assert ef.decode(value, form).kind == "nan", (opcode, [hex(v) for v in row], hex(value))
            continue
        assert value == wanted, (opcode, [hex(v) for v in row], hex(value), hex(wanted))


def edges(form: Format) -> list[int]:
    """Zeros, subnormals, bounds, ones and their neighbours, infinities, NaN; both signs."""
    one, least = form.bias << (form.precision - 1), 1 << (form.precision - 1)
    third = ef.encode(Fraction(1, 3), form, "rn")
    plain = [
        0, 1, least - 1, least, least + 1, one - 1, one, one + 1, third, one + least // 2,
        one + 3 * least + 5, form.infinity - 1, form.infinity, form.infinity + least // 2,
        one - (form.precision << (form.precision - 1)), least + (3 << (form.precision - 1)) + 1,
    ]  # fmt: skip
    return [b | s for b in plain for s in (0, 1 << (form.width - 1))]


def pairs(form: Format) -> list[tuple[int, ...]]:
    return list(itertools.product(edges(form), repeat=2))


def triples(form: Format, seed: int) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    values = edges(form)
    rows: list[tuple[int, ...]] = [tuple(rng.choice(values) for _ in range(3)) for _ in range(300)]
    top = form.infinity
    for _ in range(300):
        # Sums that nearly cancel, and products that end near a boundary of rounding.
        a, b = (rng.randrange(top) for _ in range(2))
        product = ef.multiply(a, b, form, "rz")
        c = (product + rng.randrange(-3, 4)) % top | 1 << (form.width - 1)
        rows.append((a, b, c if rng.random() < 0.7 else rng.randrange(1 << form.width)))
    return rows


MODES = ("rn", "rz", "rm", "rp")
BINARY = {"add": ef.add, "sub": ef.subtract, "mul": ef.multiply, "div": ef.divide}


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BINARY)
def test_binary_arithmetic(name: str, mode: str, kind: str) -> None:
    form = FORMATS[kind]
    compare(
        f"{name}.{mode}.{kind}", (kind, kind), kind, pairs(form),
        lambda a, b: BINARY[name](a, b, form, mode),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("mode", MODES)
def test_fma(mode: str, kind: str) -> None:
    form = FORMATS[kind]
    compare(
        f"fma.{mode}.{kind}", (kind,) * 3, kind, triples(form, 3),
        lambda a, b, c: ef.fma(a, b, c, form, mode),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["sqrt", "rcp"])
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


@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
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


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
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


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("name", ["min", "max", "min.NaN", "max.NaN"])
def test_extremes_with_nan_and_signed_zeros(name: str, kind: str) -> None:
    if kind == "f64" and name.endswith("NaN"):
        pytest.skip("there is no such instruction")
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


FLOAT_CONVERSIONS = [
    ("f64", "f32"), ("f32", "f16"), ("f64", "f16"), ("f32", "bf16"), ("f16", "f32"),
    ("f32", "f64"), ("f16", "f64"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "to"), FLOAT_CONVERSIONS)
def test_conversions_between_floats(source: str, to: str) -> None:
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


@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
@pytest.mark.parametrize("to", ["s16", "u16", "s32", "u32", "s64", "u64"])
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


@pytest.mark.parametrize("source", ["s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("to", ["f16", "f32", "f64"])
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


def integer_edges(bits: int) -> list[int]:
    top = 1 << bits - 1
    mask = (1 << bits) - 1
    return [0, 1, 2, 3, 7, 31, mask, mask - 1, top, top - 1, top + 1, 0x5A5A5A5A5A5A5A5A & mask]


def as_signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def quotient(a: int, b: int) -> int:
    size = abs(a) // abs(b)
    return size if (a < 0) == (b < 0) else -size


INTEGER_OPS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "div": lambda a, b: quotient(a, b) if b else -1,
    "rem": lambda a, b: a - quotient(a, b) * b if b else a,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("name", [*INTEGER_OPS, "mul.hi", "mul.wide", "mad.lo", "sad"])
def test_integer_arithmetic(name: str, kind: str) -> None:
    bits = int(kind[1:])
    mask = (1 << bits) - 1
    rows: list[tuple[int, ...]] = list(itertools.product(integer_edges(bits), repeat=2))

    def value(a: int) -> int:
        return as_signed(a, bits) if kind[0] == "s" else a

    if name == "mul.wide":
        if bits == 64:
            pytest.skip("there is no such instruction")
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


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "s16", "s32", "s64", "u32", "u64"])
@pytest.mark.parametrize("name", ["shl", "shr"])
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


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
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


@pytest.mark.parametrize("bits", [32, 64])
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


@pytest.mark.parametrize("kind", ["f16", "f32", "f64", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("name", COMPARISONS)
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

"""Packed integers and comparisons of halves, and bits counted from a place, by plain arithmetic."""

from __future__ import annotations

import random
from collections.abc import Callable

import ml_dtypes
import numpy as np
from known_answers import compare, together

HALVES = {"f16x2": np.dtype("f2"), "bf16x2": np.dtype(ml_dtypes.bfloat16)}
RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "gt": lambda a, b: a > b, "eq": lambda a, b: a == b, "ne": lambda a, b: a < b or a > b,
    "geu": lambda a, b: not a < b, "neu": lambda a, b: a != b,
}  # fmt: skip


def words(seed: int, count: int = 200) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    edges = [0, 0x7FFF7FFF, 0x80008000, 0xFFFFFFFF, 0x00010001, 0x7FFF8000]
    chosen = [(a, b) for a in edges for b in edges]
    return [*chosen, *((rng.getrandbits(32), rng.getrandbits(32)) for _ in range(count))]


def parts(word: int, bits: int, signed: bool) -> list[int]:
    found = [word >> bits * k & (1 << bits) - 1 for k in range(32 // bits)]
    return [p - (1 << bits) if signed and p >> (bits - 1) else p for p in found]


def joined(values: list[int], bits: int) -> int:
    return sum((v & (1 << bits) - 1) << bits * k for k, v in enumerate(values))


@together(kind=["u16x2", "s16x2"], opcode=["add", "min", "max", "min.relu", "max.relu"])
def test_pairs_of_integers(kind: str, opcode: str) -> None:
    signed = kind[0] == "s"
    if "relu" in opcode and not signed:
        return
    operation = {"add": lambda a, b: a + b, "min": min, "max": max}[opcode[:3]]

    def answer(a: int, b: int) -> int:
        both = zip(parts(a, 16, signed), parts(b, 16, signed), strict=True)
        made = [operation(x, y) for x, y in both]
        return joined([max(m, 0) for m in made] if "relu" in opcode else made, 16)

    compare(f"{opcode}.{kind}", (kind, kind), "b32", words(1), answer)


@together(base=["max", "min"])
def test_the_larger_of_two_and_zero(base: str) -> None:
    def answer(a: int, b: int) -> int:
        x, y = (parts(v, 32, True)[0] for v in (a, b))
        return max(max(x, y) if base == "max" else min(x, y), 0)

    compare(f"{base}.relu.s32", ("s32", "s32"), "b32", words(2), answer)


@together(kind=["u32", "s32"], lanes=[2, 4], sums=[False, True])
def test_differences_of_parts(kind: str, lanes: int, sums: bool) -> None:
    bits, signed = 32 // lanes, kind == "s32"
    rng = random.Random(3)
    rows = [(a, b, rng.getrandbits(32)) for a, b in words(4)]

    def answer(a: int, b: int, c: int) -> int:
        pairs = zip(parts(a, bits, signed), parts(b, bits, signed), strict=True)
        found = [abs(x - y) for x, y in pairs]
        return (sum(found) + c) % (1 << 32) if sums else joined(found, bits)

    text = f"vabsdiff{lanes}.{kind}.{kind}.{kind}" + (".add" if sums else "")
    compare(text, ("b32", "b32", "b32"), "b32", rows, answer)


def test_the_nth_set_bit() -> None:
    rng = random.Random(5)
    rows = [
        (rng.getrandbits(32) & rng.getrandbits(32), rng.randrange(32), rng.randrange(-9, 10))
        for _ in range(400)
    ]
    rows = [(mask, base, offset % 2**32) for mask, base, offset in rows]

    def answer(mask: int, base: int, offset: int) -> int:
        count = offset - (1 << 32) if offset >> 31 else offset
        if not count:
            return base if mask >> base & 1 else 0xFFFFFFFF
        places = range(base, 32) if count > 0 else range(base, -1, -1)
        found = [p for p in places if mask >> p & 1]
        return found[abs(count) - 1] if len(found) >= abs(count) else 0xFFFFFFFF

    compare("fns.b32", ("b32", "u32", "s32"), "b32", rows, answer)


@together(kind=HALVES, name=RELATIONS, to=["u32", "same"])
def test_comparisons_of_two_halves(kind: str, name: str, to: str) -> None:
    dtype = HALVES[kind]
    true = 0xFFFF if to == "u32" else int(np.array(1.0, dtype).view("u2"))
    rng = random.Random(6)
    edges = [0, 0x8000, 0x3C00, 0x3F80, 0x7E00, 0x7FC0, 0xFC00, 0x0001]
    rows = [
        tuple(rng.choice(edges) | rng.choice(edges) << 16 for _ in range(2)) for _ in range(200)
    ]

    def answer(a: int, b: int) -> int:
        found = 0
        for place in (0, 16):
            x, y = (float(np.array(v >> place & 0xFFFF, "u2").view(dtype)) for v in (a, b))
            found |= true << place if RELATIONS[name](x, y) else 0
        return found

    compare(f"set.{name}.{kind if to == 'same' else to}.{kind}", (kind, kind), "b32", rows, answer)


@together(name=RELATIONS)
def test_comparisons_of_two_halves_that_flush_subnormals(name: str) -> None:
    edges = [0, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x7E00]
    rows = [(a | b << 16, b | a << 16) for a in edges for b in edges]

    def number(bits: int) -> float:
        held = float(np.array(bits, "u2").view("f2"))
        return 0.0 if abs(held) < 2.0**-14 else held

    def answer(a: int, b: int) -> int:
        halves = (
            RELATIONS[name](number(a >> k & 0xFFFF), number(b >> k & 0xFFFF)) for k in (0, 16)
        )
        return sum(0xFFFF << 16 * k for k, true in enumerate(halves) if true)

    compare(f"set.{name}.ftz.u32.f16x2", ("f16x2", "f16x2"), "b32", rows, answer)


@together(name=RELATIONS)
def test_a_comparison_that_gives_one_in_bf16(name: str) -> None:
    edges = [0, 0x8000, 0x3F80, 0x4000, 0x7FC0, 0xFF80]
    rows = [(a, b) for a in edges for b in edges]

    def answer(a: int, b: int) -> int:
        x, y = (float(np.array(v, "u2").view(HALVES["bf16x2"])) for v in (a, b))
        return 0x3F80 if RELATIONS[name](x, y) else 0

    compare(f"set.{name}.bf16.bf16", ("bf16", "bf16"), "b16", rows, answer)

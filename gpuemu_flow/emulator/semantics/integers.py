"""Integer and logic arithmetic (PTX ISA, "Integer Arithmetic", "Logic and Shift")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuemu_flow.emulator.types import Array

Lanes = Callable[..., Array]

_MASK32 = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)


def double_width(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return the integer type of twice the width and the same signedness."""
    return np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")


def multiply_wide(a: Array, b: Array) -> Array:
    wide = double_width(a.dtype)
    return a.astype(wide) * b.astype(wide)


def multiply_high(a: Array, b: Array) -> Array:
    """Compute ``mul.hi``: the upper half of the product."""
    size = a.dtype.itemsize
    if size < 8:
        return (multiply_wide(a, b) >> (8 * size)).astype(a.dtype)
    x, y = a.view(np.uint64), b.view(np.uint64)
    al, ah, bl, bh = x & _MASK32, x >> _S32, y & _MASK32, y >> _S32
    low = ah * bl + ((al * bl) >> _S32)
    middle = al * bh + (low & _MASK32)
    high = ah * bh + (low >> _S32) + (middle >> _S32)
    if a.dtype.kind == "i":
        zero = np.uint64(0)
        high = high - np.where(a < 0, y, zero) - np.where(b < 0, x, zero)
    return high.view(a.dtype)


def mad(multiply: Lanes) -> Lanes:
    """Turn a ``mul`` into the ``mad`` that adds a third operand (PTX ISA, "mad")."""
    return lambda a, b, c: multiply(a, b) + c


def mad_high_saturating(a: Array, b: Array, c: Array) -> Array:
    """Compute ``mad.hi.sat.s32`` (PTX ISA, "mad")."""
    total = (multiply_high(a, b).astype(np.int64)) + c
    return _clamp(total, a.dtype)


def _clamp(x: Array, dtype: np.dtype[np.integer]) -> Array:
    limits = np.iinfo(dtype)
    return np.clip(x, limits.min, limits.max).astype(dtype)


def add_saturating(a: Array, b: Array) -> Array:
    """Compute ``add.sat.s32`` (PTX ISA, "add")."""
    return _clamp(a.astype(np.int64) + b, a.dtype)


def subtract_saturating(a: Array, b: Array) -> Array:
    """Compute ``sub.sat.s32`` (PTX ISA, "sub")."""
    return _clamp(a.astype(np.int64) - b, a.dtype)


def multiply24(high: bool) -> Lanes:
    """Return ``mul24`` (PTX ISA, "mul24") as a function of arrays. The function multiplies the low
    24 bits of its operands. It returns bits 16-47 of the product if `high`, else bits 0-31."""

    def multiply(a: Array, b: Array) -> Array:
        x, y = _low24(a), _low24(b)
        product = x * y
        return (product >> 16 if high else product).astype(a.dtype)

    return multiply


def _low24(a: Array) -> Array:
    wide = a.astype(np.int64) & 0xFFFFFF
    if a.dtype.kind == "i":
        wide = (wide ^ 0x800000) - 0x800000
    return wide


def absolute_difference_sum(a: Array, b: Array, c: Array) -> Array:
    """Compute ``sad`` (PTX ISA, "sad"): c + |a - b|."""
    return c + np.where(a < b, b - a, a - b).astype(c.dtype)


def absolute_differences(signed: bool, lanes: int, sums: bool) -> Callable[..., Array]:
    bits = 32 // lanes

    def compute(a: Array, b: Array, c: Array) -> Array:
        total = c.astype(np.int64) if sums else np.zeros((1, 1), np.int64)
        for part in range(lanes):
            x, y = (_part(v, bits * part, bits, signed) for v in (a, b))
            difference = np.abs(x - y)
            total = total + (difference if sums else difference << bits * part)
        return (total & 0xFFFFFFFF).astype(np.uint32)

    return compute


def _part(x: Array, shift: int, bits: int, signed: bool) -> Array:
    raw = (x >> np.uint32(shift) & np.uint32((1 << bits) - 1)).astype(np.int64)
    return raw - ((raw >> (bits - 1)) << bits) if signed else raw


def find_nth_set(mask: Array, base: Array, offset: Array) -> Array:
    """Compute ``fns`` (PTX ISA, "fns"): the position of the n-th set bit, counted from bit `base`.
    `offset` is n; a negative n counts downwards. With n = 0, only the bit `base` itself counts. The
    result is all ones if there is no such bit."""
    mask, base, offset = np.broadcast_arrays(mask, base, offset)
    found = np.full(mask.shape, 0xFFFFFFFF, np.uint32)
    up, down = offset > 0, offset < 0
    seen = np.zeros(mask.shape, np.int64)
    wanted = np.abs(offset.astype(np.int64))
    for distance in range(32):
        place = base.astype(np.int64) + np.where(down, -distance, distance)
        inside = (place >= 0) & (place < 32)
        bit = np.where(inside, mask >> np.where(inside, place, 0).astype(np.uint32), 0) & 1 != 0
        seen += bit
        hit = bit & (up | down) & (seen == wanted) & (found == 0xFFFFFFFF)
        if not distance:
            hit |= bit & (offset == 0)
        found = np.where(hit, place.astype(np.uint32), found)
    return found


def divide(a: Array, b: Array) -> Array:
    """Compute ``div`` (PTX ISA, "div"), rounded towards zero; a zero divisor gives all ones."""
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        return np.where(zero, ~a.dtype.type(0), a // safe)
    quotient = a // safe
    rest = a - quotient * safe
    quotient = quotient + ((rest != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(zero, a.dtype.type(-1), quotient)


def remainder(a: Array, b: Array) -> Array:
    """Compute ``rem`` (PTX ISA, "rem") with the dividend's sign; divisor 0 gives the dividend."""
    return np.where(b == 0, a, a - divide(a, b) * b)


def negate(a: Array) -> Array:
    return a.dtype.type(0) - a


def shift_left(a: Array, n: Array) -> Array:
    """Compute ``shl`` (PTX ISA, "shl"): shift counts of at least the width give 0."""
    bits = 8 * a.dtype.itemsize
    small = np.minimum(n, np.uint32(bits - 1)).astype(a.dtype)
    shifted = a << small
    if (n >= bits).any():
        return np.where(n >= bits, a.dtype.type(0), shifted)
    return shifted


def shift_right(a: Array, n: Array) -> Array:
    """Compute ``shr`` (PTX ISA, "shr"). Shift counts of at least the width give 0; for signed
    integers, copies of the sign bit."""
    bits = 8 * a.dtype.itemsize
    shifted = a >> np.minimum(n, np.uint32(bits - 1)).astype(a.dtype)
    if a.dtype.kind == "u" and (n >= bits).any():
        return np.where(n >= bits, a.dtype.type(0), shifted)
    return shifted


def funnel_left(wrap: bool) -> Lanes:
    """Return ``shf.l`` (PTX ISA, "shf") as a function of arrays `a`, `b` and `n`. The function
    joins `b`, as the upper half, and `a` to 64 bits, shifts them left by `n` bits, and returns the
    upper half. If `wrap`, `n` is taken modulo 32; else it is limited to 32."""

    def shift(a: Array, b: Array, n: Array) -> Array:
        count = _funnel_count(n, wrap)
        pair = (b.astype(np.uint64) << _S32) | a
        return ((pair << count) >> _S32).astype(np.uint32)

    return shift


def funnel_right(wrap: bool) -> Lanes:
    """Return ``shf.r`` (PTX ISA, "shf") as a function of arrays `a`, `b` and `n`. The function
    joins `b`, as the upper half, and `a` to 64 bits, shifts them right by `n` bits, and returns the
    lower half. If `wrap`, `n` is taken modulo 32; else it is limited to 32."""

    def shift(a: Array, b: Array, n: Array) -> Array:
        count = _funnel_count(n, wrap)
        pair = (b.astype(np.uint64) << _S32) | a
        return ((pair >> count) & _MASK32).astype(np.uint32)

    return shift


def _funnel_count(n: Array, wrap: bool) -> Array:
    count = n & np.uint32(31) if wrap else np.minimum(n, np.uint32(32))
    return count.astype(np.uint64)


def population(a: Array) -> Array:
    if hasattr(np, "bitwise_count"):
        counted: Array = np.bitwise_count(a).astype(np.uint32)
        return counted
    shape = np.broadcast_shapes(a.shape)
    raw = np.ascontiguousarray(a).view(np.uint8).reshape(*shape, a.dtype.itemsize)
    return np.unpackbits(raw, axis=-1).sum(axis=-1, dtype=np.uint32)


def leading_zeros(a: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    smeared = a
    step = 1
    while step < bits:
        smeared = smeared | (smeared >> a.dtype.type(step))
        step *= 2
    return np.uint32(bits) - population(smeared)


def find_bit(signed: bool, shift_amount: bool) -> Lanes:
    """Return ``bfind`` (PTX ISA, "bfind"): the index of the top bit that differs from the sign."""

    def find(a: Array) -> Array:
        bits = 8 * a.dtype.itemsize
        raw = np.where(a < 0, ~a, a).view(f"u{a.dtype.itemsize}") if signed else a
        zeros = leading_zeros(raw)
        none = zeros == bits
        value = zeros if shift_amount else np.uint32(bits - 1) - zeros
        return np.where(none, np.uint32(0xFFFFFFFF), value)

    return find


def reverse_bits(a: Array) -> Array:
    kind = a.dtype.type
    bits = 8 * a.dtype.itemsize
    out, step = a, bits // 2
    ones = (1 << bits) - 1
    while step:
        mask = kind(ones // ((1 << step) + 1))
        out = ((out >> kind(step)) & mask) | ((out & mask) << kind(step))
        step //= 2
    return out


def extract_field(a: Array, position: Array, length: Array) -> Array:
    """Compute ``bfe`` (PTX ISA, "bfe")."""
    bits = 8 * a.dtype.itemsize
    position = position & np.uint32(255)
    length = length & np.uint32(255)
    raw = a.view(f"u{a.dtype.itemsize}")
    unsigned = shift_right(raw, position) & _ones(raw, length)
    if a.dtype.kind == "u":
        return unsigned
    top = np.minimum(position + length - np.uint32(1), np.uint32(bits - 1))
    top = np.where(length == 0, np.uint32(0), top)
    sign = (shift_right(raw, top) & raw.dtype.type(1)) != 0
    # Bits above the word take the sign, so a field that reaches beyond it is filled from there.
    kept = np.maximum(bits - position.astype(np.int64), 0)
    reach = np.minimum(length, kept).astype(np.uint32)
    filled = np.where(length == 0, raw.dtype.type(0), unsigned | ~_ones(raw, reach))
    return np.where(sign & (length != 0), filled, unsigned).view(a.dtype)


def _ones(like: Array, length: Array) -> Array:
    kind = like.dtype.type
    return shift_left(np.ones_like(like[:1, :1]) * kind(1), length) - kind(1)


def insert_field(a: Array, b: Array, position: Array, length: Array) -> Array:
    """Compute ``bfi`` (PTX ISA, "bfi"): the low bits of `a` placed into `b`."""
    position = position & np.uint32(255)
    mask = shift_left(_ones(b, length & np.uint32(255)), position)
    return (b & ~mask) | (shift_left(a, position) & mask)


def bit_mask(wrap: bool) -> Lanes:
    """Return ``bmsk`` (PTX ISA, "bmsk") as a function of arrays `a` and `b`. The function makes a
    mask of `b` ones, of which the lowest is bit `a`. If `wrap`, `a` and `b` are taken modulo 32."""

    def mask(a: Array, b: Array) -> Array:
        one = np.ones((1, 1), np.uint32)
        if wrap:
            a, b = a & np.uint32(31), b & np.uint32(31)
        return shift_left(shift_left(one, b) - np.uint32(1), a)

    return mask


def sign_extend(wrap: bool) -> Lanes:
    """Return ``szext`` (PTX ISA, "szext") as a function of arrays `a` and `n`. The function keeps
    the `n` low bits of `a`, and extends them by the sign or, in an unsigned type, by zeros. If
    `wrap`, `n` is taken modulo 32; else, an `n` of at least 32 leaves `a` unchanged."""

    def extend(a: Array, n: Array) -> Array:
        if wrap:
            n = n & np.uint32(31)
        full = n >= 32
        n = np.minimum(n, np.uint32(31))
        raw = a.view(np.uint32)
        low = raw & (shift_left(np.ones((1, 1), np.uint32), n) - np.uint32(1))
        if a.dtype.kind == "i":
            top = shift_left(np.ones((1, 1), np.uint32), np.where(n == 0, n, n - np.uint32(1)))
            low = np.where((low & top != 0) & (n != 0), low - (top << np.uint32(1)), low)
        return np.where(full, raw, low).view(a.dtype)

    return extend


def lookup3(table: int) -> Lanes:
    """Return ``lop3`` (PTX ISA, "lop3") for one lookup table."""

    def combine(a: Array, b: Array, c: Array) -> Array:
        out: Array | None = None
        for row in range(8):
            if table >> row & 1:
                term = a if row & 4 else ~a
                term = term & (b if row & 2 else ~b) & (c if row & 1 else ~c)
                out = term if out is None else out | term
        return np.zeros((1, 1), np.uint32) if out is None else out

    known: dict[int, Lanes] = {
        0x80: lambda a, b, c: a & b & c,
        0xFE: lambda a, b, c: a | b | c,
        0x96: lambda a, b, c: a ^ b ^ c,
        0xC0: lambda a, b, c: a & b,
        0xFC: lambda a, b, c: a | b,
        0x3C: lambda a, b, c: a ^ b,
        0xF8: lambda a, b, c: a | (b & c),
        0xEA: lambda a, b, c: (a & b) | c,
        0xA8: lambda a, b, c: (a | b) & c,
        0xE0: lambda a, b, c: a & (b | c),
        0xCA: lambda a, b, c: (a & b) | (~a & c),
        0xE8: lambda a, b, c: (a & (b | c)) | (b & c),
    }
    return known.get(table, combine)


_PRMT_TABLES: dict[str, tuple[tuple[int, ...], ...]] = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


def permute(mode: str) -> Lanes:
    """Return ``prmt`` (PTX ISA, "prmt"): pick four of eight bytes."""

    def pick(a: Array, b: Array, selector: Array) -> Array:
        pair = (b.astype(np.uint64) << _S32) | a
        if mode:
            table = np.array(_PRMT_TABLES[mode], np.uint32)
            packed = table @ np.array([1, 16, 256, 4096], np.uint32)
            selector = packed.astype(np.uint32)[selector & np.uint32(3)]
        out = np.zeros((1, 1), np.uint32)
        for byte in range(4):
            nibble = (selector >> np.uint32(4 * byte)) & np.uint32(15)
            shift = (nibble & np.uint32(7)).astype(np.uint64) << np.uint64(3)
            value = ((pair >> shift) & np.uint64(255)).astype(np.uint32)
            sign = np.where(value & np.uint32(128), np.uint32(255), np.uint32(0))
            value = np.where(nibble & np.uint32(8), sign, value)
            out = out | (value << np.uint32(8 * byte))
        return out

    return pick


def dot_product(a_signed: bool, b_signed: bool, lanes: int, high: bool = False) -> Lanes:
    """Return ``dp4a`` or ``dp2a`` (PTX ISA, "dp4a", "dp2a") as a function of arrays. The function
    of `a`, `b` and `c` multiplies parts of `a` by bytes of `b`, and adds the products to `c`."""

    def dot(a: Array, b: Array, c: Array) -> Array:
        out = c.view(np.uint32)
        bits = 32 // lanes
        offset = 2 if high else 0
        for k in range(lanes):
            x = _piece(a, bits, k, a_signed)
            y = _piece(b, 8, k + offset, b_signed)
            out = out + (x * y).view(np.uint32)
        return out

    return dot


def _piece(word: Array, bits: int, index: int, signed: bool) -> Array:
    value = ((word >> np.uint32(bits * index)) & np.uint32((1 << bits) - 1)).astype(np.int32)
    if signed:
        half = np.int32(1 << (bits - 1))
        value = (value ^ half) - half
    return value


def compare(name: str) -> Lanes:
    """Return a comparison of ``setp`` as a function (PTX ISA, "Comparison Operations")."""
    ordered: dict[str, Lanes] = {
        "eq": np.equal, "ne": lambda a, b: (a < b) | (a > b) if a.dtype.kind == "f" else a != b,
        "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
        "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
        "equ": lambda a, b: ~((a < b) | (a > b)), "neu": np.not_equal,
        "ltu": lambda a, b: ~(a >= b), "leu": lambda a, b: ~(a > b),
        "gtu": lambda a, b: ~(a <= b), "geu": lambda a, b: ~(a < b),
        "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
        "nan": lambda a, b: np.isnan(a) | np.isnan(b),
    }  # fmt: skip
    return ordered[name]

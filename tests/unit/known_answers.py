"""Running one instruction on many operands, and what independent arithmetic says of them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

import exact_floats as ef
import numpy as np
from both_backends import launch_both
from exact_floats import FORMATS, Format

from gpuemu_flow.emulator.launch import BufferArgument, load_kernel

WIDTHS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "pred": 32}
Answer = Callable[..., int]

ANSWERS: Counter[str] = Counter()
"""Number of answers compared, by instruction."""

counting = False
"""True while `compare` only counts."""


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
    kernel = load_kernel(ptx.encode(), opcode)
    result_ = launch_both(kernel, [count // 256], [256], buffers, every=True)
    assert result_.findings == ()
    last = result_.buffers[-1]
    assert last is not None
    return [int(v) for v in last[: len(rows)]]


def compare(
    opcode: str, sources: Sequence[str], result: str, rows: list[tuple[int, ...]],
    answer: Answer, tail: str = "",
) -> None:  # fmt: skip
    ANSWERS[opcode + tail] += len(rows)
    if counting:
        return
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


def integer_edges(bits: int) -> list[int]:
    top = 1 << bits - 1
    mask = (1 << bits) - 1
    return [0, 1, 2, 3, 7, 31, mask, mask - 1, top, top - 1, top + 1, 0x5A5A5A5A5A5A5A5A & mask]


def as_signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def quotient(a: int, b: int) -> int:
    size = abs(a) // abs(b)
    return size if (a < 0) == (b < 0) else -size

"""Running instructions on many operands, and what independent arithmetic says of them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

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


@dataclass(frozen=True)
class Question:
    """An instruction, the operands to run it on, and what must come out."""

    opcode: str
    sources: Sequence[str]
    result: str
    rows: list[tuple[int, ...]]
    answer: Answer
    tail: str


TOGETHER = 24
"""Instructions of one kernel: each kernel costs a start of the C compiler."""

_waiting: list[Question] | None = None


def execute(questions: Sequence[Question]) -> list[list[int]]:
    """Run instructions on many operands, a thread for each row; returns bits."""
    count = -(-max(len(q.rows) for q in questions) // 256) * 256
    heads: list[str] = []
    lines = [
        ".reg .b32 %t; .reg .b64 %q<9>; mov.u32 %t, %tid.x;",
        ".reg .b32 %c; mov.u32 %c, %ctaid.x; mad.lo.u32 %t, %c, 256, %t;",
    ]
    buffers = []
    for n, question in enumerate(questions):
        widths = [width_of(s) for s in question.sources]
        out = width_of(question.result)
        names = [f"%a{n}_{k}" for k in range(len(widths))]
        lines += [f".reg .b{w} {n};" for n, w in zip(names, widths, strict=True)]
        lines += [f".reg .b{out} %d{n}; .reg .pred %p{n};"]
        for k, (name, width) in enumerate(zip(names, widths, strict=True)):
            lines += [
                f"ld.param.u64 %q{k}, [x{n}_{k}]; mul.wide.u32 %q8, %t, {width // 8}; "
                f"add.s64 %q{k}, %q{k}, %q8; ld.global.b{width} {name}, [%q{k}];"
            ]
        target = f"%p{n}" if question.result == "pred" else f"%d{n}"
        lines += [f"{question.opcode} {target}, {', '.join(names)}{question.tail};"]
        if question.result == "pred":
            lines += [f"selp.b32 %d{n}, 1, 0, %p{n};"]
        lines += [
            f"ld.param.u64 %q6, [out{n}]; mul.wide.u32 %q8, %t, {out // 8}; "
            f"add.s64 %q6, %q6, %q8; st.global.b{out} [%q6], %d{n};"
        ]
        heads += [f".param .u64 x{n}_{k}" for k in range(len(widths))] + [f".param .u64 out{n}"]
        padded = question.rows + [question.rows[0]] * (count - len(question.rows))
        buffers += [
            BufferArgument(np.array([r[k] for r in padded], f"u{w // 8}"))
            for k, w in enumerate(widths)
        ]
        buffers.append(BufferArgument(np.zeros(count, f"u{out // 8}"), initialised=False))
    ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k("
    ptx += ", ".join(heads) + ")\n{\n" + "\n".join(lines) + "\nret;\n}\n"
    kernel = load_kernel(ptx.encode(), ", ".join(q.opcode for q in questions))
    result_ = launch_both(kernel, [count // 256], [256], buffers, every=True)
    assert result_.findings == ()
    found, at = [], -1
    for question in questions:
        at += len(question.sources) + 1
        values = result_.buffers[at]
        assert values is not None
        found.append([int(v) for v in values[: len(question.rows)]])
    return found


def compare(
    opcode: str, sources: Sequence[str], result: str, rows: list[tuple[int, ...]],
    answer: Answer, tail: str = "",
) -> None:  # fmt: skip
    """Compare what an instruction makes of operands; in a test that is `together`, at its end."""
    ANSWERS[opcode + tail] += len(rows)
    if counting:
        return
    question = Question(opcode, sources, result, rows, answer, tail)
    if _waiting is None:
        _judge([question])
    else:
        _waiting.append(question)


def together(**values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Make one test of a function and all combinations of its arguments.

    What they compare runs at the end, in few kernels.
    """

    def one_test(function: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            global _waiting  # noqa: PLW0603
            asked: list[Question] = []
            _waiting = asked
            try:
                for chosen in itertools.product(*values.values()):
                    function(**dict(zip(values, chosen, strict=True)))
            finally:
                _waiting = None
            for start in range(0, len(asked), TOGETHER):
                _judge(asked[start : start + TOGETHER])

        test.__name__, test.__doc__ = function.__name__, function.__doc__
        return test

    return one_test


def _judge(questions: Sequence[Question]) -> None:
    for question, got in zip(questions, execute(questions), strict=True):
        form = FORMATS.get(question.result)
        opcode = question.opcode + question.tail
        for row, value in zip(question.rows, got, strict=True):
            wanted = question.answer(*row)
            if form is not None and form.width == 64 and ef.decode(wanted, form).kind == "nan":
                kind = ef.decode(value, form).kind
                assert kind == "nan", (opcode, [hex(v) for v in row], hex(value))
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

"""Odd forms of each instruction that the tests know are declined or decoded for both back ends.

Operands are left out, doubled, and replaced by each of a list of others; words of the opcode are
left out and replaced. That makes 83,000 forms; the suite takes every 40th, ``PTX_FORMS=all`` in
the environment all of them, in about a minute.
"""

from __future__ import annotations

import os
import re
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuemu_flow.emulator.decode import decode_program
from gpuemu_flow.emulator.launch import Kernel, choose_entry, read_entries
from gpuemu_flow.emulator.native.generate import generate
from gpuemu_flow.emulator.native.writer import LackingError
from gpuemu_flow.model.errors import FlowError

TESTS = Path(__file__).resolve().parent.parent
EVERY = 1 if os.environ.get("PTX_FORMS") == "all" else 40
"""One in so many forms is tried."""

HEAD = """.version 8.5
.target sm_90a
.address_size 64
.global .align 16 .b8 table[64];
.visible .entry k(.param .u64 x, .param .u32 n) {
 .reg .b32 %r<200>; .reg .b64 %rd<100>; .reg .f32 %f<200>; .reg .b16 %rs<100>; .reg .b16 %h<100>;
 .reg .pred %p<40>; .reg .f64 %fd<60>; .reg .b8 %b<9>; .reg .b128 %q<9>;
 .shared .align 16 .b8 s[512]; .local .align 8 .b8 l[64];
L:
 """
MORE = (
    "activemask.b32 %r1", "atom.global.add.v2.f32 {%f5,%f6}, [%rd1], {%f1,%f2}",
    "bar.red.popc.u32 %r1, 0, %p1", "elect.sync %r1|%p1, -1", "fns.b32 %r11, %r5, %r2, 1",
    "getctarank.shared::cluster.u32 %r1, %r2", "mapa.shared::cluster.u32 %r1, %r2, %r3",
    "mapa.u64 %rd1,%rd2,%r3", "match.all.sync.b32 %r1|%p1, %r2, -1",
    "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2}, "
    "{%r3,%r4}, {%f5,%f6,%f7,%f8}, %r5, 0",
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], %r2, "
    "[%r3]",
    "red.global.add.noftz.v4.bf16x2 [%rd1], {%r1,%r2,%r3,%r4}", "redux.sync.add.s32 %r1, %r2, -1",
    "set.lt.ftz.u32.f16x2 %r10, %r5, %r1",
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3]",
    "vabsdiff4.u32.u32.u32.add %r12, %r1, %r5, %r2",
)  # fmt: skip
"""Instructions that no test kernel has."""

ODD = (
    "_", "{}", "{%r1}", "{_,_}", "{%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8,%r9}", "%tid.x", "%nope",
    "0f3F800000", "0d3FF0000000000000", "99999999999999999999999999", "-1", "s", "x", "table", "k",
    "L", "[x]", "[s+4]", "[s]", "[0]", "[-1]", "[%r1]", "[%rd1]", "[%p1]", "[%f1]", "[L]", "[k]",
    "[table+-99999999999]", "[l]", "!%p1", "%p1", "%p1|%p2", "%f1", "%fd1", "%rd1", "%rs1", "%b1",
    "%q1", "%r1", "%laneid", "%clock64", "(%r1)", "[%rd1, {%r1,%r2}]", "[x, {%r1}]", '"a"', "",
)  # fmt: skip
WORDS = (
    "ftz.rni", "ftz", "v4", "f16x2", "pred", "b128", "shared", "sync", "foo", "u8", "f64", "rn",
    "rz", "rm", "rni", "rpi", "rna", "sat", "relu", "satfinite", "hi", "wide", "x2", "cc",
    "approx", "popc", "arrive", "cluster", "s8", "tf32", "e4m3x2", "bf16", "u32", "s64", "b8", "",
)  # fmt: skip
_STATEMENT = re.compile(
    r"(?:^|;|\})\s*(?:@!?%p\d+\s+)?((?:[a-z]\w*)(?:[.:][\w:]+)*(?:\s[^;]*)?);", re.MULTILINE
)
_BODY = re.compile(r"^\.visible \.entry .*?\{(.*?)^\}", re.DOTALL | re.MULTILINE)
_QUOTED = re.compile(r'"((?:[a-z]\w*)(?:\.[\w:]+)+ [^"]*)"')


def known_instructions() -> list[str]:
    """One statement for each opcode with its modifiers, in order."""
    found: dict[str, str] = {}
    for path in sorted((TESTS / "emulator_kernels").glob("*.ptx")):
        for body in _BODY.findall(path.read_text()):
            for statement in _STATEMENT.findall(body):
                found.setdefault(statement.split()[0], statement)
    declined = (TESTS / "unit" / "test_emulator_coverage.py").read_text()
    for statement in (*_QUOTED.findall(declined), *MORE):
        found.setdefault(statement.split()[0], statement)
    return [found[name] for name in sorted(found)]


def operands_of(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, last = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "{[(") - (letter in "}])")
        if letter == "," and not depth:
            parts.append(text[last:at].strip())
            last = at + 1
    rest = text[last:].strip()
    return [*parts, rest] if rest else parts


def forms_of(statement: str) -> Iterator[str]:
    """The odd forms of one statement."""
    head, _, rest = statement.partition(" ")
    parts, words = operands_of(rest), head.split(".")

    def told(*operands: str) -> str:
        return f"{head} {', '.join(operands)}"

    yield from (told(*parts[:k]) for k in range(len(parts) + 1))
    for k in range(len(parts)):
        yield told(*parts[:k], *parts[k + 1 :])
        yield from (told(*parts[:k], odd, *parts[k + 1 :]) for odd in ODD)
    yield told(*parts, "%r1")
    for k in range(1, len(words)):
        yield f"{'.'.join(words[:k] + words[k + 1 :])} {rest}"
        yield from (f"{'.'.join([*words[:k], w, *words[k + 1 :]])} {rest}" for w in WORDS)
    yield f"{words[0]} {rest}"


def decode(form: str) -> str:
    """Decode a form and write its code for both back ends; return what came of it."""
    data = f"{HEAD}{form};\n ret;\n}}\n".encode()
    try:
        program = decode_program(choose_entry(read_entries(data, "odd.ptx"), "", "odd.ptx"))
        kernel = Kernel(program)
    except FlowError as error:
        return error.slug
    for block in range(len(kernel._blocks.starts)):
        kernel._code(block, False)
        kernel._code(block, True)
    try:
        generate(program, races=True)
    except LackingError:
        return "without C"
    return "both"


INSTRUCTIONS = known_instructions()


def test_the_instructions_are_found() -> None:
    assert len(INSTRUCTIONS) > 300
    assert sum(1 for statement in INSTRUCTIONS for _ in forms_of(statement)) > 80_000


@pytest.mark.ci
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_an_odd_form_is_declined_or_decoded() -> None:
    outcomes: Counter[str] = Counter()
    crashes: dict[str, str] = {}
    for statement in INSTRUCTIONS:
        first = zlib.crc32(statement.encode()) % EVERY
        for number, form in enumerate(forms_of(statement)):
            if number % EVERY != first:
                continue
            try:
                outcomes[decode(form)] += 1
            except Exception:  # each place is shown once
                crashes.setdefault(traceback.format_exc().splitlines()[-3], form)
    print(outcomes.most_common())
    assert not crashes, "\n".join(f"{place}: {form}" for place, form in crashes.items())
    assert {"both", "without C", "emulator-unsupported"} <= outcomes.keys()

"""PTX that someone has damaged, executed: an error with a slug, or a run within its limits.

Nothing outside of the launch's buffers is written, nothing read outside becomes a result, and no
mutation takes more steps than its budget. The suite runs a few of each kernel;
``PTX_EXECUTIONS=100000`` in the environment is the full count, and ``-rP`` shows what came of them.
"""

from __future__ import annotations

import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gpuemu_flow.emulator import launch as launching
from gpuemu_flow.emulator.decode import decode_program
from gpuemu_flow.emulator.described import DEFAULT_CHECKS
from gpuemu_flow.emulator.launch import (
    Argument,
    BufferArgument,
    Kernel,
    ScalarArgument,
    choose_entry,
    read_entries,
)
from gpuemu_flow.emulator.memory import READ_ONLY, LaunchArena
from gpuemu_flow.emulator.session import cover_file
from gpuemu_flow.model.errors import FlowError

KERNELS = Path(__file__).resolve().parent.parent / "emulator_kernels"
FILES = sorted(KERNELS.glob("*.ptx"))
EXECUTIONS = int(os.environ.get("PTX_EXECUTIONS", "600"))
"""Mutations over all kernels."""

SEED = os.environ.get("PTX_EXECUTION_SEED", "")
BUDGET = 500_000

LONGEST = 60.0
"""Seconds of processor time after which one mutation counts as hanging; most take 5 ms."""

_WORD = re.compile(rb"%?[A-Za-z_][\w.:]*|-?\d+|[\[\]{},;!@+|]")
_ENTRY = re.compile(
    rb"^\.visible \.entry .*?(?=^\.(?:visible|weak|func)|\Z)", re.DOTALL | re.MULTILINE
)
_REGISTER = re.compile(rb"%(?:rd|rs|r|fd|f|p|h|hh|b|q)\d+")
_NUMBER = re.compile(rb"(?<![\w%.$])-?\d+(?![\w.])")
_LABEL = re.compile(rb"\$?[\w$]+(?=\s*;)")
_EDGES = (0, 1, -1, 2, 3, 7, 31, 32, 33, 64, 255, 2**31, 2**32 - 1, 2**63, 2**64 - 1, -(2**31))
SIBLINGS: tuple[tuple[bytes, ...], ...] = (
    (b".s32", b".u32", b".b32", b".f32"), (b".s64", b".u64", b".b64", b".f64"),
    (b".b16", b".u16", b".s16", b".f16"), (b".lt", b".le", b".ge", b".gt", b".eq", b".ne"),
    (b"add", b"sub", b"mul.lo", b"max", b"min", b"div", b"rem"), (b"and", b"or", b"xor"),
    (b".shared", b".global", b".local"), (b"shl", b"shr"), (b".rn", b".rz", b".rm", b".rp"),
    (b".lo", b".hi"), (b".down", b".up", b".bfly", b".idx"), (b".v4", b".v2"),
    (b"ld.", b"st."), (b".sync", b".arrive"), (b"%tid.x", b"%ctaid.x", b"%ntid.x", b"%laneid"),
    (b".wide", b".lo"), (b".approx", b""), (b".ftz", b""), (b".wait_group", b".commit_group"),
)  # fmt: skip
"""Words that stand for each other without the text ceasing to be PTX."""


def kernels_of(path: Path) -> list[bytes]:
    """Each kernel of a file as a module of its own, with what stands before the first."""
    data = path.read_bytes()
    first = _ENTRY.search(data)
    assert first is not None
    head = data[: first.start()]
    return [head + match.group() for match in _ENTRY.finditer(data)]


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Swap, drop, double or change some words of the body; most of it is no PTX any more."""
    start = data.index(b"{", data.index(b".entry"))
    words = [m.span() for m in _WORD.finditer(data, start)]
    for _ in range(rng.choice((1, 1, 2, 4))):
        (a, b), (c, d) = rng.choice(words), rng.choice(words)
        if max(b, d) > len(data):
            continue
        other = data[c:d]
        kind = rng.randrange(6)
        if kind == 0:
            data = data[:a] + data[b:]
        elif kind == 1:
            data = data[:a] + other + data[b:]
        elif kind == 2:
            data = data[:b] + b" " + other + data[b:]
        elif kind == 3:
            data = data[:a] + str(rng.choice(_EDGES)).encode() + data[b:]
        elif kind == 4:
            at = rng.randrange(a, b)
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        else:
            data = data[:a] + data[c : c + rng.randrange(1, 80)] + data[b:]
    return data


def _another_register(line: bytes, lines: list[bytes], rng: random.Random) -> bytes:
    found = list(_REGISTER.finditer(line))
    if not found:
        return line
    old = rng.choice(found)
    stem = old.group().rstrip(b"0123456789")
    others = [w for w in _REGISTER.findall(b" ".join(rng.sample(lines, min(20, len(lines)))))
              if w.rstrip(b"0123456789") == stem]  # fmt: skip
    return line[: old.start()] + rng.choice(others or [old.group()]) + line[old.end() :]


def _another_number(line: bytes, lines: list[bytes], rng: random.Random) -> bytes:
    found = list(_NUMBER.finditer(line))
    if not found:
        return line
    old = rng.choice(found)
    near = int(old.group()) + rng.choice((-1, 1, 4, -4, 16))
    new = rng.choice((near, rng.choice(_EDGES)))
    return line[: old.start()] + str(new).encode() + line[old.end() :]


def _sibling(line: bytes, lines: list[bytes], rng: random.Random) -> bytes:
    fits = [(w, group) for group in SIBLINGS for w in group if w and w in line]
    if not fits:
        return line
    old, group = rng.choice(fits)
    return line.replace(old, rng.choice(group), 1)


def _drop(line: bytes, lines: list[bytes], rng: random.Random) -> bytes:
    return b""


def _twice(line: bytes, lines: list[bytes], rng: random.Random) -> bytes:
    return line + b"\n" + line


def _elsewhere(line: bytes, lines: list[bytes], rng: random.Random) -> bytes:
    return line + b"\n" + rng.choice(lines)


def _other_label(line: bytes, lines: list[bytes], rng: random.Random) -> bytes:
    labels = [text.strip()[:-1] for text in lines if text.strip().endswith(b":")]
    if b"bra" not in line or not labels:
        return _sibling(line, lines, rng)
    return _LABEL.sub(lambda _: rng.choice(labels), line, count=1)


def _guard(line: bytes, lines: list[bytes], rng: random.Random) -> bytes:
    if b"@!" in line:
        return line.replace(b"@!", b"@", 1)
    if b"@" in line:
        return line.replace(b"@", rng.choice((b"@!", b"//")), 1)
    return line


CHANGES: tuple[Callable[[bytes, list[bytes], random.Random], bytes], ...] = (
    _another_register, _another_register, _another_number, _another_number, _sibling, _sibling,
    _drop, _twice, _elsewhere, _other_label, _guard,
)  # fmt: skip


def altered(data: bytes, rng: random.Random) -> bytes:
    """Change some instructions into others that are mostly PTX still."""
    start = data.index(b"{", data.index(b".entry")) + 1
    lines = data[start:].split(b"\n")
    places = [n for n, line in enumerate(lines) if line.rstrip().endswith(b";")
              and not line.strip().startswith((b".", b"//"))]  # fmt: skip
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.choice(places)
        lines[at] = rng.choice(CHANGES)(lines[at], lines, rng)
    return data[:start] + b"\n".join(lines)


class Watched(LaunchArena):
    """An arena that its test can look at after the launch."""

    latest: LaunchArena

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(sizes)
        Watched.latest = self


def check_nothing_outside_changed(arena: LaunchArena, before: dict[str, bytes]) -> None:
    """Look at the guard zones and at what is constant."""
    outside = np.ones(len(arena.data), bool)
    for buffer in arena.buffers:
        outside[buffer.start : buffer.end] = False
        if not buffer.writable:
            assert (arena.shadow[buffer.start : buffer.end] == READ_ONLY).all()
            if buffer.name in before:
                assert arena.read(buffer).tobytes() == before[buffer.name]
    assert not arena.data[outside].any()
    assert not arena.shadow[outside].any()


def run_one(kernel: Kernel, rng: random.Random) -> None:
    """Launch with small buffers for pointers and small numbers for the rest."""
    arguments: list[Argument] = []
    for parameter in kernel.parameters:
        if parameter.size == 8:
            arguments.append(BufferArgument(np.ones(256, "f4"), name=parameter.name))
        else:
            number = rng.choice((5, 64)).to_bytes(max(4, parameter.size), "little")
            arguments.append(ScalarArgument(number[: parameter.size]))
    threads = kernel.program.required_threads or 64
    constant = {v.name: v.initial.ljust(v.size, b"\0") for v in kernel.program.globals
                if v.constant and not v.pointers}  # fmt: skip
    checks = rng.choice((DEFAULT_CHECKS, DEFAULT_CHECKS, (), ("mem",)))
    try:
        grid = kernel.program.required_cluster or (2,)
        result = kernel.launch(
            grid, [threads], arguments, shared=1024, budget=BUDGET, checks=checks
        )
        assert result.instructions <= BUDGET
    finally:
        check_nothing_outside_changed(Watched.latest, constant)


@dataclass(frozen=True)
class Source:
    """One kernel of the test kernels' files as a module of its own."""

    name: str
    data: bytes

    @property
    def weight(self) -> int:
        """Its share of the mutations: reading a long kernel takes as long as running three."""
        return 1 if len(self.data) > 8_000 else 3

    @property
    def executions(self) -> int:
        """Number of mutations of this source that are tried."""
        return -(-EXECUTIONS * self.weight // sum(other.weight for other in SOURCES))


def all_sources() -> list[Source]:
    """List the kernels, named by file and place in it."""
    return [
        Source(f"{path.stem}-{number}", data)
        for path in FILES
        for number, data in enumerate(kernels_of(path), 1)
    ]


SOURCES = all_sources()


class HangError(BaseException):
    """Raised in the middle of a mutation that does not end."""


@contextmanager
def watchdog() -> Iterator[None]:
    """End what takes too much processor time, so that the load of the machine does not count."""

    def stop(_number: int, _frame: object) -> None:
        raise HangError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


MANY = 40
"""Mutations of one kernel of which a share must be executed."""


def execute(data: bytes, rng: random.Random, covered: bool) -> str:
    """Read and launch one mutation; what came of it, as a slug or ``executed``."""
    try:
        if covered:
            cover_file(data, "hostile.ptx")
        entry = choose_entry(read_entries(data, "hostile.ptx"), "", "hostile.ptx")
        run_one(Kernel(decode_program(entry)), rng)
    except FlowError as error:
        assert error.slug
        return error.slug
    return "executed"


@pytest.mark.ci
def test_each_kernel_can_be_run_before_it_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "LaunchArena", Watched)
    assert len(SOURCES) > 60
    for source in SOURCES:
        outcome = execute(source.data, random.Random(1), covered=True)
        assert outcome in ("executed", "emulator-budget"), source.name


FAR = """
.version 8.0
.target sm_80
.address_size 64
.global .align 4 .b8 table[64];
.visible .entry far(.param .u64 out)
{{
  .reg .b64 %rd<4>; .reg .b32 %r<3>;
  ld.param.u64 %rd1, [out];
  mov.u64 %rd2, {name}{added};
  cvta.{space}.u64 %rd2, %rd2;
  st.global.u64 [%rd1], %rd2;
  ret;
}}
"""


@pytest.mark.parametrize(("name", "space"), [("table", "global"), ("out", "param")])
@pytest.mark.parametrize("added", [2**63, -(2**63), 2**64 - 8, -1, 2**64 - 1, 2**31])
def test_a_displacement_wraps_round(name: str, space: str, added: int) -> None:
    text = FAR.format(name=name, space=space, added=f"+{added}").encode()
    buffer = BufferArgument(np.zeros(2, "u8"), name="out")
    outputs = []
    for moved in (text, FAR.format(name=name, space=space, added="+0").encode()):
        entry = choose_entry(read_entries(moved, "far.ptx"), "", "far.ptx")
        (held,) = Kernel(decode_program(entry)).launch([1], [1], [buffer]).buffers
        assert held is not None
        outputs.append(int(held[0]))
    assert outputs[0] == (outputs[1] + added) % 2**64


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.name)
def test_mutated_ptx_ends_in_an_error_or_within_its_limits(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "LaunchArena", Watched)
    rng = random.Random(source.name + SEED)
    outcomes: Counter[str] = Counter()
    crashes: list[str] = []
    wanted = source.executions
    for number in range(wanted):
        change = damaged if number % 4 == 0 else altered
        data = change(source.data, rng)
        try:
            with watchdog():
                outcomes[execute(data, rng, covered=number % 8 < 2)] += 1
        except (Exception, HangError) as error:
            crashes.append(f"{error!r}\n{data.decode('latin-1')}")
            assert len(crashes) < 20, "\n\n".join(crashes)
    for outcome, count in outcomes.most_common():
        print(f"{source.name}: {count} {outcome}")
    assert not crashes, "\n\n".join(crashes)
    ran = outcomes["executed"] + outcomes["emulator-budget"]
    # Of a few mutations all may be refused; of many that would mean that nothing is tried.
    assert ran > wanted // 4 or wanted < MANY, f"{ran} of {wanted} mutations were executed"

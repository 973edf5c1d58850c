"""Hostile PTX and cubins: no crash, no hang, bounded diagnoses and bounded memory.

The suite tries 800 mutations of a PTX file, and some of compiled ones; ``PTX_MUTATIONS`` in the
environment is another count, and a larger one takes more of the compiled ones, too: `.ci/run` asks
for 30,000.
"""

from __future__ import annotations

import json
import os
import random
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import convert, to_builtins

from gpuemu_flow.lint.cubin import Cubin, read_cubin
from gpuemu_flow.lint.kernel import KernelPolicy, KernelView
from gpuemu_flow.lint.measure import Artifact, Linter, measure, parse_allowances
from gpuemu_flow.lint.ptx.flow import analyse_dataflow, build_cfg
from gpuemu_flow.lint.ptx.parser import MAX_PROBLEMS, read_body, read_ptx
from gpuemu_flow.lint.rules import RULES_BY_ID
from gpuemu_flow.lint.toolchain import parse_ptxas_output
from gpuemu_flow.model.errors import Problem

REPOSITORY = Path(__file__).resolve().parent.parent.parent
KERNELS = REPOSITORY / "scripts" / "kernels"

SMALL = b"""\
.version 8.0
.target sm_80, debug
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 a);
.shared .align 4 .b8 pool[64]; .global .b8 t[3] = {1, 2, 3};
.func h(.param .b32 a) { .reg .f32 %f<4>; div.rn.f32 %f1, %f2, %f3; call h, (a); ret; }
// comment
.visible .entry k(.param .u64 p) .maxntid 64, 1, 1 .minnctapersm 2
.pragma "nounroll";
{
.reg .pred %p<4>; .reg .b32 %r<9>, x; .reg .v4 .f32 %v; .reg .f64 %fd<4>; .local .b8 d[8];
.loc 1 5 3, function_name $L, inlined_at 1 2 3
mov.u32 %r1, %tid.x; mov.b32 %r9, 0;
$L1: setp.lt.s32 %p1|%p2, %r1, 10; @!%p1 bra $L2;
{ .reg .b32 x; call (r), vprintf, (p0); rem.s32 x, %r1, %r2; atom.add.u32 x, [%r3+4], 1; }
cvt.f64.f32 %fd1, %v.x; mul.f64 %fd2, %fd1, 0d3FF0000000000000; bar.sync 0; bra.uni $L1;
ts: .branchtargets $L1, $L2; brx.idx %r1, ts;
$L2: ld.global.v2.u32 {%r4, %r5}, [%r6+-8]; shfl.down.b32 %r1, %r2, 1, 31; /* x */ ret;
}
.file 1 "k.cu"
.section .debug_str { $S: .b8 1 }
"""
SNIPPETS = (
    b"{", b"}", b";", b'"', b"//", b"/*", b"*/", b"\n", b"\0", b"\xff", b".entry ", b".func ", b"@",
    b".version 8.0\n", b".reg ", b"<999999999>", b"[", b"]", b"(", b")", b":", b"::", b"%r1",
    b"bra L;", b"call ", b".loc 1 1 1", b".branchtargets ", b".section x {", b".pragma ", b"\\",
    b"9" * 40,
)  # fmt: skip


def mutated(rng: random.Random, original: bytes, alphabet: tuple[bytes, ...]) -> bytes:
    """A few random edits: replace, delete, insert, repeat, truncate."""
    data = bytearray(original)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at : at + rng.randint(1, 40)]
        elif kind == 2:
            data[at:at] = rng.choice(alphabet)
        elif kind == 3:
            end = at + rng.randint(1, 60)
            data[at:at] = data[at:end] * rng.randint(1, 3)
        elif kind == 4 and rng.random() < 0.2:
            del data[at:]
        else:
            start = rng.randrange(len(data) + 1)
            data[at:at] = data[start : start + rng.randint(1, 60)]
    return bytes(data)


def read_everything(data: bytes) -> None:
    """Read a file to its last statement and check what is promised of every input."""
    ptx = read_ptx(data, "m.ptx")
    assert len(ptx.problems) <= MAX_PROBLEMS + 1
    assert ptx.modules or ptx.problems
    lines = data.count(b"\n") + 1
    for function in ptx.functions():
        body = read_body(function)
        assert len(body.problems) <= MAX_PROBLEMS + 1
        assert all(1 <= p.line <= lines and p.slug.startswith("ptx-") for p in body.problems)
        graph = build_cfg(body)
        assert sum(e - s for s, e in zip(graph.starts, graph.ends, strict=True)) == len(
            body.instructions
        )
        flow = analyse_dataflow(body)
        assert len(flow.defs) == len(flow.uses) == len(body.instructions)
        assert all(0 <= r < len(flow.names) for registers in flow.uses for r in registers)


MUTATIONS = int(os.environ.get("PTX_MUTATIONS", "800"))
OF_COMPILED, OF_CUBINS = (500, 5_000) if MUTATIONS > 800 else (150, 1_500)
SEEDS = 4  # of each kind of test: the work is spread over processes


@pytest.mark.parametrize("seed", range(SEEDS))
def test_mutations_are_read_without_error(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(MUTATIONS * 4 // 5 // SEEDS):
        read_everything(mutated(rng, SMALL, SNIPPETS))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_mutations_are_measured_and_linted(seed: int) -> None:
    rng = random.Random(100 + seed)
    linter = Linter(
        KernelPolicy(expect_tensor_cores=True, forbidden_instructions=("f64", "printf"))
    )
    for index in range(MUTATIONS // 5 // SEEDS):
        measured = measure(Artifact("m.ptx", mutated(rng, SMALL, SNIPPETS)))
        assert measured.kernels or measured.problems
        for view in measured.kernels:
            linter.lint(view)
        if index % 10 == 0:
            assert all(convert(to_builtins(v), KernelView) == v for v in measured.kernels)


def test_mutations_of_compiled_ptx() -> None:
    rng = random.Random(7)
    original = (KERNELS / "sm_80" / "histogram.ptx").read_bytes()
    for _ in range(OF_COMPILED):
        read_everything(mutated(rng, original, SNIPPETS))


def test_mutations_of_a_cubin() -> None:
    rng = random.Random(3)
    original = (KERNELS / "sm_90" / "forced_spills.cubin").read_bytes()
    table = struct.unpack_from("<Q", original, 40)[0]
    for _ in range(OF_CUBINS):
        data = bytearray(original)
        for _ in range(rng.randint(1, 4)):
            # the tables at both ends decide everything: aim there half of the time
            at = rng.randrange(table, len(data)) if rng.random() < 0.5 else rng.randrange(len(data))
            width = rng.choice((1, 2, 4, 8))
            data[at : at + width] = rng.randbytes(width)
        if rng.random() < 0.1:
            del data[rng.randrange(len(data)) :]
        outcome = read_cubin(bytes(data), "m.cubin")
        if isinstance(outcome, Cubin):
            json.dumps(to_builtins(list(outcome.kernels.values())))
        else:
            assert outcome.slug.startswith("cubin-")


@given(st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_ptx_or_a_diagnosis(data: bytes) -> None:
    read_everything(data)
    read_everything(b".version 8.0\n.target sm_80\n.entry k(){" + data)


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_cubin_or_a_diagnosis(data: bytes) -> None:
    for prefix in (b"", b"\x7fELF", b"\x7fELF\x02\x01\x01"):
        assert isinstance(read_cubin(prefix + data), Cubin | Problem)


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text_of_tools_and_sources_is_read(text: str) -> None:
    parse_ptxas_output("ptxas info : " + text)
    parse_allowances(b"// gpuemu: allow " + text.encode(), "k.cu", RULES_BY_ID)


HEAD = b".version 8.0\n.target sm_80\n.address_size 64\n"
IN_BODY = HEAD + b".entry k(){"
HOSTILE = {
    "open braces": IN_BODY + b"{" * 1_000_000,
    "closed braces": HEAD + b"}" * 1_000_000,
    "vectors": IN_BODY + b"a {}" * 500_000,
    "statements in braces": IN_BODY + b"a{;}" * 500_000,
    "empty strings": IN_BODY + b'"' * 1_000_000,
    "escaped quotes": IN_BODY + b'\\"' * 1_000_000,
    "strings with semicolons": IN_BODY + b'.a";"' * 400_000,
    "labels": IN_BODY + b"a:" * 500_000,
    "colons": IN_BODY + b"a" + b":" * 2_000_000,
    "spaces": IN_BODY + b"a" + b" " * 2_000_000,
    "one long name": IN_BODY + b"a" * 2_000_000,
    "guards": IN_BODY + b"@" * 1_000_000,
    "unclosed functions": HEAD + b".entry k(){ " * 150_000,
    "unclosed parameter lists": HEAD + b".func(" * 300_000,
    "versions": b".version 8.0\n" * 150_000,
    "pragmas after a header": HEAD + b".entry k() " + b'.pragma "a";\n' * 100_000,
    "sections": HEAD + b".section a " * 150_000,
    "sections without end": HEAD + b".section a {" * 100_000,
    "comments": HEAD + b"/*" * 1_000_000,
    "comment lines": HEAD + b"//\n" * 500_000,
    "specifiers": IN_BODY + b".reg " + b".b32 " * 400_000 + b"a; ret; }",
    "registers": IN_BODY + b".reg .b32 " + b"a," * 500_000 + b"b; ret; }",
    "scopes": IN_BODY + b"{ .reg .b32 a;" * 100_000,
    "deep scopes that use an outer name": (
        IN_BODY
        + b".reg .b32 %z<9>; "
        + b"{ .reg .b32 a; " * 1_500
        + b"add.s32 %z1, %z2, %z3; " * 10_000
    ),
    "deep scopes that branch to an outer label": (
        IN_BODY + b"L: " + b"{" * 100_000 + b"bra L;" * 100_000 + b"}" * 100_001
    ),
    "branches to one label": IN_BODY + b"L: @p bra L;" * 100_000 + b"}",
    "branch tables": (
        IN_BODY
        + b"t: .branchtargets "
        + b"L," * 20_000
        + b"L; L:"
        + b"brx.idx a, t;" * 20_000
        + b"}"
    ),
    "shared variables": HEAD + b".shared .b32 a;" * 20_000 + b".entry k(){ mov.u32 b, a; }" * 2_000,
    "distinct opcodes": IN_BODY + b"".join(b"op%d.f64 a;" % i for i in range(60_000)) + b"}",
    "locations": IN_BODY + b"".join(b".loc 1 %d 1\nret;" % i for i in range(60_000)) + b"}",
    "calls": HEAD + b"".join(b".func f%d(){ call f%d; }" % (i, i + 1) for i in range(10_000)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_makes_reading_quadratic(name: str) -> None:
    # The sizes are such that quadratic work would run into the test's time limit.
    measured = measure(Artifact("h.ptx", HOSTILE[name]))
    assert len(measured.problems) <= 200_000
    assert measured.kernels or measured.problems


def test_divergence_search_in_a_ladder_of_branches_stays_bounded() -> None:
    rungs = b"".join(
        b"@%%p1 bra L%d; bar.sync 0; L%d: add.s32 %%r1, %%r1, 1;" % (i, i) for i in range(5_000)
    )
    text = IN_BODY + b".reg .pred %p<2>; .reg .b32 %r<2>; mov.u32 %r1, %tid.x;"
    text += b"S: setp.lt.s32 %p1, %r1, 9;" + rungs + b"@%p1 bra S; ret; }"
    (view,) = measure(Artifact("ladder.ptx", text)).kernels
    assert len(view.findings["divergent-barrier"]) > 0


SCRIPT = """
import resource, sys
from gpuemu_flow.lint.measure import Linter
from gpuemu_flow.lint.measure import Artifact, measure
from gpuemu_flow.lint.kernel import KernelPolicy
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
with open(sys.argv[1], "rb") as stream:
    measured = measure(Artifact("big.ptx", stream.read()))
linter = Linter(KernelPolicy())
print(len(measured.kernels), sum(v.metrics.instructions for v in measured.kernels),
      len(measured.problems), len([linter.lint(v) for v in measured.kernels]))
"""
MEGABYTES_28 = 28_000_000


def many_kernels() -> bytes:
    texts = [path.read_bytes() for path in sorted(KERNELS.glob("sm_*/*.ptx"))]
    once = b"\n".join(texts) + b"\n"
    return once * (MEGABYTES_28 // len(once) + 1)


def one_kernel() -> bytes:
    line = b"\tfma.rn.f32 \t%f1, %f2, %f3, %f4;\n"
    body = line * (MEGABYTES_28 // len(line) + 1)
    return IN_BODY + b".reg .f32 %f<9>;\n" + body + b"ret;\n}\n"


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="no limit on address space here")
@pytest.mark.parametrize("make", [many_kernels, one_kernel])
@pytest.mark.ci
def test_28_megabytes_in_less_than_600(make: object, tmp_path: Path) -> None:
    file = tmp_path / "big.ptx"
    file.write_bytes(make())  # type: ignore[operator]
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(file), str(600 << 20)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    kernels, instructions, problems, linted = map(int, run.stdout.split())
    assert problems == 0
    assert kernels == linted >= 1
    assert instructions > 600_000

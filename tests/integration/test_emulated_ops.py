"""Ops of kind ``ptx``: the commands of every op, findings as failures, mistakes in the launch."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from warm import warm_command

from gpuemu_flow.emulator.native.compiler import find_compiler

KERNELS = Path(__file__).resolve().parent.parent / "emulator_kernels"

PROGRAM = (
    '{{ kind = "ptx", file = "k.ptx", entry = "softmax_rows", grid = ["B*S"], block = [64], '
    'args = ["x", "out", {{ i32 = "{n}" }}], outputs = {{ out = ["B", "S", "H"] }} }}'
)

CONFIG = (
    """
[[ops]]
name = "softmax"
op = """
    + PROGRAM
    + """
reference = "ref.py:softmax"
input_names = ["x"]
cases = 6
strategies = ["normal"]
[ops.schema]
dims = {{ B = [1, 2], S = [1, 3], H = [5, 130] }}
inputs = {{ x = ["B", "S", "H"] }}
output = ["B", "S", "H"]
"""
)

REFERENCE = """
import numpy as np

def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
"""


def flow(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm_command(words, folder, os.environ)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "gpuemu.toml").write_text(CONFIG.format(n="H"))
    (tmp_path / "ref.py").write_text(REFERENCE)
    (tmp_path / "k.ptx").write_text((KERNELS / "matrices.ptx").read_text())
    return tmp_path


def without_barriers(ptx: str, entry: str) -> str:
    """Take the barriers out of one kernel."""
    start = ptx.index(f".entry {entry}(")
    end = ptx.index("\n}", start)
    body = ptx[start:end].replace("bar.sync \t0;", "")
    assert body != ptx[start:end]
    return ptx[:start] + body + ptx[end:]


def test_the_tools_own_machine_code_is_no_input(workspace: Path) -> None:
    """A kernel that nobody has compiled yet: its library is written during the run."""
    text = CONFIG.format(n="H").replace("block = [64]", 'block = [64], backend = "c"')
    text = '[project]\nname = "own"\n' + text
    (workspace / "gpuemu.toml").write_text(text)
    environ = {**os.environ, "XDG_CACHE_HOME": str(workspace / "own cache")}
    done = warm_command(("run", "--format", "json"), workspace, environ)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["problems"] == []
    made = workspace / "own cache" / "gpuemu-flow" / "kernels"
    if find_compiler(os.environ) is not None:
        assert list(made.glob("*.so"))
    done = warm_command(("explain", "op:softmax:float32"), workspace, environ)
    assert "own cache" not in done.stdout


def test_a_right_kernel_passes_and_is_current_then(workspace: Path) -> None:
    done = flow(workspace, "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout and "6 of 6" in done.stdout
    again = flow(workspace, "run")
    assert "0 ran" in again.stdout
    fuzzed = flow(workspace, "fuzz", "softmax", "-n", "8")
    assert fuzzed.returncode == 0 and "8 passed" in fuzzed.stdout


@pytest.mark.ci
def test_a_race_is_a_failure_of_its_own_kind(workspace: Path) -> None:
    ptx = workspace / "k.ptx"
    ptx.write_text(without_barriers(ptx.read_text(), "softmax_rows"))
    done = flow(workspace, "run", "--format", "json")
    assert done.returncode == 1, done.stderr
    assert "DataRace" in done.stdout and "racecheck: matrices.cu:" in done.stdout
    shown = flow(workspace, "failures")
    assert "DataRace" in shown.stdout
    seed = re.search(r"reproduce (\d+)", done.stdout)
    assert seed is not None
    again = flow(workspace, "reproduce", seed.group(1), "--op", "softmax")
    assert again.returncode == 1, again.stderr
    assert "racecheck" in again.stdout and "still fails" in again.stdout
    debugged = flow(workspace, "debug", "--seed", seed.group(1))
    assert debugged.returncode == 1, debugged.stderr
    assert "racecheck: matrices.cu:" in debugged.stdout
    assert "actual None" not in debugged.stdout


@pytest.mark.ci
def test_a_read_past_the_end_is_found_by_the_changed_argument_alone(workspace: Path) -> None:
    assert flow(workspace, "run").returncode == 0
    (workspace / "gpuemu.toml").write_text(CONFIG.format(n="H+1"))
    done = flow(workspace, "run")
    assert done.returncode == 1
    assert "OutOfBounds" in done.stdout and "memcheck: matrices.cu:" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('["B*S"]', '["B**S"]', "where a value must stand"),
        ('["B*S"]', "[]", "one to three sizes"),
        ('{ i32 = "H" }', '{ i31 = "H" }', "no argument type"),
        ('outputs = { out = ["B", "S", "H"] }', "outputs = {}", "no outputs"),
        ('outputs = { out = ["B", "S", "H"] }', 'outputs = { out = "B" }', "no dims"),
    ],
)
def test_a_launch_that_is_no_launch_is_refused_when_read(
    workspace: Path, old: str, new: str, said: str
) -> None:
    text = CONFIG.format(n="H")
    assert old in text
    (workspace / "gpuemu.toml").write_text(text.replace(old, new))
    done = flow(workspace, "run")
    assert done.returncode == 2
    assert "config-launch" in done.stderr and said in done.stderr


def test_a_misspelt_host_function_is_told_without_the_keys_of_a_launch(workspace: Path) -> None:
    text = """
    [project]
    name = "p"
    [[ops]]
    name = "scale"
    op = { kind = "cuda", file = "scale.cu", funtion = "run" }
    reference = "ref.py:scale"
    """
    (workspace / "scale.cu").write_text("")
    (workspace / "ref.py").write_text("def scale(x):\n    return x\n")
    (workspace / "gpuemu.toml").write_text(text)
    done = flow(workspace, "config", "check")
    assert done.returncode == 2
    said = done.stdout + done.stderr
    assert "did you mean 'function'?" in said
    assert said.count("config-launch") == 1 and "or `function`" in said


@pytest.mark.parametrize(
    ("old", "new", "slug"),
    [
        ('["B*S"]', '["Q"]', "emulator-launch"),
        *(
            pytest.param(*row, marks=pytest.mark.ci)
            for row in (
                ('["B*S"]', '["B // (S - S)"]', "emulator-launch"),
                ("[64]", "[4096]", "emulator-launch"),
                ('"softmax_rows"', '"softmax_row"', "emulator-launch"),
                ('"x", "out"', '"x", "y"', "emulator-launch"),
                ('{ i32 = "H" }', '{ i64 = "H" }', "emulator-argument"),
            )
        ),
        (', { i32 = "H" }', "", "emulator-argument"),
    ],
)
def test_a_launch_that_cannot_be_is_an_error_of_the_op(
    workspace: Path, old: str, new: str, slug: str
) -> None:
    text = CONFIG.format(n="H")
    assert old in text
    (workspace / "gpuemu.toml").write_text(text.replace(old, new))
    done = flow(workspace, "run")
    assert done.returncode == 3, done.stdout
    assert slug in done.stdout and "Traceback" not in done.stdout + done.stderr


def test_what_cannot_be_run_is_refused_before_anything_runs(workspace: Path) -> None:
    ptx = workspace / "k.ptx"
    text = ptx.read_text()
    start = text.index("{", text.index(".entry softmax_rows("))
    ptx.write_text(text[: start + 1] + "\ntcgen05.fence::before_thread_sync;\n" + text[start + 1 :])
    done = flow(workspace, "run")
    assert done.returncode == 3
    assert "emulator-unsupported" in done.stdout and "tcgen05.fence" in done.stdout


FUSED = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry same(.param .u64 x, .param .u64 out, .param .u32 n)
{
  .reg .pred %p<4>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1,[x]; ld.param.u64 %rd2,[out]; ld.param.u32 %r1,[n];
  mov.u32 %r2,%tid.x; setp.ge.u32 %p1,%r2,%r1; @%p1 ret;
  mul.wide.u32 %rd3,%r2,4; add.s64 %rd1,%rd1,%rd3; add.s64 %rd2,%rd2,%rd3;
  ld.global.f32 %f1,[%rd1];
  mul.f32 %f2,%f1,%f1;
  mul.rn.f32 %f3,%f1,%f1;
  sub.f32 %f4,%f2,%f3;
  fma.rn.f32 %f4,%f4,0f4B800000,%f1;
  st.global.f32 [%rd2],%f4; ret;
}
"""
FUSED_CONFIG = (
    """
[[ops]]
name = "same"
op = { kind = "ptx", file = "k.ptx", grid = [1], block = [64], """
    + """args = ["x", "out", { i32 = "N" }], outputs = { out = ["N"] }, """
    + """checks = ["mem"] }
reference = "ref.py:same"
input_names = ["x"]
cases = 4
strategies = ["normal"]
[ops.schema]
dims = { N = [5, 60] }
inputs = { x = ["N"] }
output = ["N"]
"""
)


@pytest.mark.ci
def test_bugs_are_planted_in_the_kernel_too(tmp_path: Path) -> None:
    (tmp_path / "gpuemu.toml").write_text(FUSED_CONFIG)
    (tmp_path / "ref.py").write_text("def same(x):\n    return x + 0\n")
    (tmp_path / "k.ptx").write_text(FUSED)
    done = flow(tmp_path, "mutate", "same")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same, the kernel: " in done.stdout and "planted PTX bugs found" in done.stdout
    assert "survives: flush-added at PTX line 12" in done.stdout
    found = json.loads(flow(tmp_path, "mutate", "same", "--format", "json").stdout)["kernel"]
    names = {killed["name"] for killed in found["killed"]}
    assert {"mask-off-by-one at PTX line 9", "stride-changed at PTX line 10"} <= names


TEMPLATE = """.version 8.0
.target sm_80
.address_size 64
.const .align 4 .f32 _ZN2nsL1wE[4];
.global .align 4 .u32 calls;
.visible .entry _ZN2ns5scaleIfLi4EEEvNS_4ArgsEPfi(
  .param .align 8 .b8 p[16], .param .u64 out, .param .u32 steps)
{
  .reg .b32 %r<12>; .reg .f32 %f<8>; .reg .b64 %d<12>; .reg .pred %p;
  ld.param.u64 %d0, [p]; ld.param.u32 %r0, [p+8]; ld.param.f32 %f0, [p+12];
  ld.param.u64 %d1, [out]; ld.param.u32 %r1, [steps];
  mov.u32 %r2, %ctaid.x; shl.b32 %r2, %r2, 5; mov.u32 %r3, %tid.x; add.u32 %r3, %r3, %r2;
  setp.ge.u32 %p, %r3, %r0; @%p bra END;
  mul.wide.u32 %d2, %r3, 4; add.s64 %d3, %d0, %d2; add.s64 %d4, %d1, %d2;
  and.b32 %r4, %r3, 3; mul.wide.u32 %d5, %r4, 4; mov.u64 %d6, _ZN2nsL1wE; add.s64 %d6, %d6, %d5;
  ld.global.f32 %f1, [%d3]; ld.const.f32 %f2, [%d6]; mul.f32 %f1, %f1, %f2; mul.f32 %f1, %f1, %f0;
  cvt.rn.f32.u32 %f3, %r1; add.f32 %f1, %f1, %f3; ld.global.u32 %r5, [calls];
  cvt.rn.f32.u32 %f4, %r5; add.f32 %f1, %f1, %f4; st.global.f32 [%d4], %f1;
END: ret;
}
"""
KIN = """.version 8.0
.target sm_80
.address_size 64
.const .align 4 .f32 table[8];
.global .align 8 .f64 _ZN2nsL4biasE[2];
.visible .entry _Z4pack4Pairj(.param .align 8 .b8 p[24], .param .u32 last)
{
  .reg .b32 %r<5>; .reg .f32 %f<3>; .reg .b64 %d<6>; .reg .pred %p;
  ld.param.u64 %d0, [p]; ld.param.u64 %d1, [p+8]; ld.param.u32 %r0, [p+16];
  ld.param.u32 %r1, [last]; mov.u32 %r2, %tid.x; setp.ge.u32 %p, %r2, %r0; @%p bra END;
  mul.wide.u32 %d2, %r2, 4; add.s64 %d3, %d1, %d2; ld.global.f32 %f0, [%d3];
  cvt.rn.f32.u32 %f1, %r1; add.f32 %f0, %f0, %f1; add.s64 %d4, %d0, %d2; st.global.f32 [%d4], %f0;
END: ret;
}
.visible .entry look(.param .u64 x, .param .u64 out, .param .u32 n)
{
  .reg .b32 %r<5>; .reg .f32 %f<3>; .reg .b64 %d<9>; .reg .pred %p;
  ld.param.u64 %d0, [x]; ld.param.u64 %d1, [out]; ld.param.u32 %r0, [n];
  mov.u32 %r2, %tid.x; setp.ge.u32 %p, %r2, %r0; @%p bra END;
  mul.wide.u32 %d2, %r2, 4; add.s64 %d3, %d0, %d2; ld.global.f32 %f0, [%d3];
  and.b32 %r3, %r2, 7; mul.wide.u32 %d4, %r3, 4; mov.u64 %d5, table; add.s64 %d5, %d5, %d4;
  ld.const.f32 %f1, [%d5]; add.f32 %f0, %f0, %f1; add.s64 %d6, %d1, %d2; st.global.f32 [%d6], %f0;
END: ret;
}
.visible .entry _ZN2ns5mixedIdEEvNS_4ArgsES1_(.param .align 8 .b8 p[24], .param .align 8 .b8 q[16])
{
  .reg .b32 %r<5>; .reg .f64 %f<5>; .reg .b64 %d<9>; .reg .pred %p;
  ld.param.f64 %f0, [p]; ld.param.u64 %d0, [p+8]; ld.param.u64 %d1, [p+16];
  ld.param.f64 %f1, [q]; ld.param.u64 %d2, [q+8]; mov.u32 %r0, %tid.x; cvt.u64.u32 %d3, %r0;
  setp.ge.u64 %p, %d3, %d0; @%p bra END; shl.b64 %d3, %d3, 3; add.s64 %d4, %d1, %d3;
  ld.global.f64 %f2, [%d4]; ld.global.f64 %f3, [_ZN2nsL4biasE+8]; mul.f64 %f2, %f2, %f0;
  add.f64 %f2, %f2, %f1; add.f64 %f2, %f2, %f3; add.s64 %d5, %d2, %d3; st.global.f64 [%d5], %f2;
END: ret;
}
"""
ARGUMENTS = """
[project]
name = "arguments"
[validation]
cause_budget = 0
[[ops]]
name = "scale"
reference = "ref.py:scale"
dtypes = ["float32"]
strategies = ["normal"]
cases = 3
[ops.op]
kind = "ptx"
file = "k.ptx"
entry = "scale<float, 4>"
grid = ["cdiv(C, 32)"]
block = [32]
args = [{ struct = ["x", { i32 = "C" }, { f32 = 0.5 }] }, "out", { i32 = "log2(C)" }]
symbols = { w = "w", calls = "n" }
outputs = { out = ["C"] }
[ops.schema]
dims = { C = [4, 40, 64] }
inputs.x = ["3*C"]
inputs.w = [4]
inputs.n = { dims = [1], dtype = "int32", range = [0, 9] }
output = ["C"]
"""
KIN_OPS = """
[[ops]]
name = "pack"
reference = "ref.py:pack"
dtypes = ["float32"]
strategies = ["normal"]
[ops.op]
kind = "ptx"
file = "kin.ptx"
entry = "pack"
grid = ["cdiv(B+1, 64)"]
block = [64]
args = [{ struct = ["out", "x", { i32 = "B+1" }] }, { i32 = "log2(2*B)" }]
outputs = { out = ["B+1"] }
[ops.schema]
dims = { B = [1, 9, 60] }
inputs.x = ["B+1"]
output = ["B+1"]

[[ops]]
name = "look"
reference = "ref.py:look"
dtypes = ["float32"]
strategies = ["normal"]
[ops.op]
kind = "ptx"
file = "kin.ptx"
entry = "look"
grid = [1]
block = ["2*H"]
args = ["x", "out", { i32 = "2*H" }]
symbols = { table = "t" }
outputs = { out = ["2*H"] }
[ops.schema]
dims = { H = [4, 20] }
inputs = { x = ["2*H"], t = [8] }
output = ["2*H"]

[[ops]]
name = "mixed"
reference = "ref.py:mixed"
dtypes = ["float64"]
strategies = ["normal"]
[ops.op]
kind = "ptx"
file = "kin.ptx"
entry = "mixed<double>"
grid = [1]
block = [64]
args = [{ struct = [{ f64 = 0.25 }, { i64 = "2*N-1" }, "x"] }, { struct = [{ f64 = 3.0 }, "out"] }]
symbols = { bias = "b" }
outputs = { out = ["2*N-1"] }
[ops.schema]
dims = { N = [3, 32] }
inputs = { x = ["2*N-1"], b = [2] }
output = ["2*N-1"]
"""
SCALE = """
import numpy as np

def pack(x):
    return x + np.floor(np.log2(2 * (len(x) - 1)))

def look(x, t):
    return x + t[np.arange(len(x)) % 8]

def mixed(x, b):
    return x * 0.25 + 3.0 + b[1]

def scale(x, w, n):
    c = len(x) // 3
    return x[:c] * np.tile(w, c // 4) * x.dtype.type(0.5) + int(np.log2(c)) + n[0]
"""


@pytest.mark.ci
def test_what_the_host_code_of_cuda_would_pass(tmp_path: Path) -> None:
    """Structures, variables of the module, dims that stand in expressions alone, log2."""
    (tmp_path / "gpuemu.toml").write_text(ARGUMENTS + KIN_OPS)
    (tmp_path / "k.ptx").write_text(TEMPLATE)
    (tmp_path / "kin.ptx").write_text(KIN)
    (tmp_path / "ref.py").write_text(SCALE)
    done = flow(tmp_path, "run", "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {r["verdict"] for r in json.loads(done.stdout)["results"]} == {"passed"}
    wrong = SCALE.replace("b[1]", "b[0]").replace("% 8", "% 4").replace("2 * (len", "(len")
    (tmp_path / "ref.py").write_text(wrong)
    done = flow(tmp_path, "run", "--format", "json")
    found = {r["op"]: r["verdict"] for r in json.loads(done.stdout)["results"]}
    kin = dict.fromkeys(("pack", "look", "mixed"), "failed")
    assert found == {**kin, "scale": "passed"}, "what is passed decides"
    (tmp_path / "ref.py").write_text(SCALE)
    (tmp_path / "gpuemu.toml").write_text(ARGUMENTS.replace('w = "w"', 'v = "w"'))
    done = flow(tmp_path, "run")
    assert done.returncode == 3 and "uses no variable 'v'" in done.stdout
    wrong = ARGUMENTS.replace('{ struct = ["x"', '{ struct = [{ struct = ["x"] }')
    (tmp_path / "gpuemu.toml").write_text(wrong)
    done = flow(tmp_path, "config", "check")
    assert done.returncode != 0 and "a struct holds a struct" in done.stdout + done.stderr


def test_the_dtype_of_an_output_is_said(tmp_path: Path) -> None:
    """Without a word it is the first input's: a contradiction is one of the configuration."""
    (tmp_path / "k.ptx").write_text(TEMPLATE)
    (tmp_path / "ref.py").write_text(SCALE)
    for dtype in ("int64", "float16", "bool", "float64"):
        other = f'output = {{ dims = ["C"], dtype = "{dtype}" }}'
        (tmp_path / "gpuemu.toml").write_text(ARGUMENTS.replace('output = ["C"]', other))
        done = flow(tmp_path, "config", "check")
        said = done.stdout + done.stderr
        assert done.returncode == 2 and "out has the dtype of the first input, x" in said, said
    narrow = ARGUMENTS.replace('outputs = { out = ["C"] }', 'outputs = { out = ["C//2"] }')
    (tmp_path / "gpuemu.toml").write_text(narrow)
    done = flow(tmp_path, "run")
    assert "OutOfBoundsWrite" in done.stdout
    doubt = "out has the dtype of the first input, float32: if the kernel writes another"
    assert doubt not in done.stdout, "what is stored is as wide as a float32"
    wide = "add.s64 %d4, %d4, %d2; cvt.f64.f32 %d7, %f1; st.global.f64 [%d4], %d7;"
    (tmp_path / "k.ptx").write_text(TEMPLATE.replace("st.global.f32 [%d4], %f1;", wide))
    done = flow(tmp_path, "run")
    (told,) = {line for line in done.stdout.splitlines() if doubt in line}
    assert "memcheck:" in told and "8 bytes at out[" in told and "printf" not in done.stdout

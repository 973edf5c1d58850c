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


@pytest.mark.parametrize(
    ("old", "new", "slug"),
    [
        ('["B*S"]', '["Q"]', "emulator-launch"),
        ('["B*S"]', '["B // (S - S)"]', "emulator-launch"),
        ("[64]", "[4096]", "emulator-launch"),
        ('"softmax_rows"', '"softmax_row"', "emulator-launch"),
        ('"x", "out"', '"x", "y"', "emulator-launch"),
        (', { i32 = "H" }', "", "emulator-argument"),
        ('{ i32 = "H" }', '{ i64 = "H" }', "emulator-argument"),
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
    + """checks = ["mem", "contract"] }
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


def test_a_verdict_that_a_fusion_flips_is_none(tmp_path: Path) -> None:
    (tmp_path / "gpuemu.toml").write_text(FUSED_CONFIG)
    (tmp_path / "ref.py").write_text("def same(x):\n    return x + 0\n")
    (tmp_path / "k.ptx").write_text(FUSED)
    said = "not with sub.f32 at PTX line 14 fused with mul.f32 at PTX line 12"
    done = flow(tmp_path, "run")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "inconclusive" in done.stdout and said in done.stdout
    fuzzed = flow(tmp_path, "fuzz", "same", "-n", "4")
    assert "4 inconclusive" in fuzzed.stdout
    (tmp_path / "k.ptx").write_text(FUSED.replace("mul.f32", "mul.rn.f32"))
    assert flow(tmp_path, "run").returncode == 0


@pytest.mark.ci
def test_bugs_are_planted_in_the_kernel_too(tmp_path: Path) -> None:
    (tmp_path / "gpuemu.toml").write_text(FUSED_CONFIG.replace(', "contract"', ""))
    (tmp_path / "ref.py").write_text("def same(x):\n    return x + 0\n")
    (tmp_path / "k.ptx").write_text(FUSED)
    done = flow(tmp_path, "mutate", "same")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same, the kernel: " in done.stdout and "planted PTX bugs found" in done.stdout
    assert "survives: flush-added at PTX line 12" in done.stdout
    found = json.loads(flow(tmp_path, "mutate", "same", "--format", "json").stdout)["kernel"]
    names = {killed["name"] for killed in found["killed"]}
    assert {"mask-off-by-one at PTX line 9", "stride-changed at PTX line 10"} <= names

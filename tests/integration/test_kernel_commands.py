"""Each command on an op of kind ``ptx`` with a race: as for every op, and without nvcc."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from kernel_workspace import KERNELS, KernelWorkspace, line_of, make_ptx_workspace, make_workspace

SAID = "racecheck: matrices.cu:"


@pytest.fixture(scope="module")
def racy(tmp_path_factory: pytest.TempPathFactory) -> KernelWorkspace:
    """The workspace after a run; the tests read it and change no file."""
    made = make_ptx_workspace(tmp_path_factory.mktemp("racy"))
    done = made.flow("run")
    assert done.returncode == 1 and SAID in done.stdout, done.stdout + done.stderr
    return made


def test_each_format_points_at_the_line_of_the_source(racy: KernelWorkspace) -> None:
    failure = racy.json("report", "--format", "json")["failures"][0]
    assert (failure["kind"], failure["file"]) == ("DataRace", "matrices.cu")
    line = failure["line"]
    assert {f["place"]["line"] for f in failure["findings"]} >= {line}
    at = f"matrices.cu:{line}"
    for name in ("text", "markdown", "html", "junit"):
        shown = racy.flow("report", "--format", name).stdout
        assert "DataRace" in shown and at in shown, name
    sarif = racy.json("report", "--format", "sarif")
    (result,) = [r for r in sarif["runs"][0]["results"] if r["ruleId"] == "validation/DataRace"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "matrices.cu"
    assert place["region"]["startLine"] == line
    xml = ElementTree.fromstring(racy.flow("report", "--format", "junit").stdout)
    assert {f.attrib["type"] for f in xml.iter("failure")} == {"DataRace"}
    job = racy.flow("ci", GITHUB_ACTIONS="true")
    assert f"::error file=matrices.cu,line={line}," in job.stdout + job.stderr


def test_the_workspace_is_described(racy: KernelWorkspace) -> None:
    assert "1 failed" in racy.flow("status").stdout
    rows = racy.flow("coverage").stdout
    op, dtype, cases, *_ = rows.splitlines()[1].split()
    assert (op, dtype) == ("softmax", "float32")
    assert int(cases) >= 3, "another test may have fuzzed it"
    assert "matrices.ptx" in racy.flow("explain", "op:softmax:float32").stdout
    assert "op:softmax:float32" in racy.flow("graph").stdout
    assert "DataRace" in racy.flow("failures").stdout
    lint = racy.flow("lint")
    assert lint.returncode in (0, 4) and "Traceback" not in lint.stderr


@pytest.mark.ci
def test_a_debugger_steps_through_it(racy: KernelWorkspace) -> None:
    (first, *_) = racy.json("failures", "--format", "json")["failures"]
    words = f"show {first['id']}\nreproduce\nstep all\ntensor actual[0]\ndiff\nstatus\nquit\n"
    done = racy.flow("debug", "--repl", given=words)
    assert done.returncode == 0, done.stderr
    assert SAID in done.stdout and "still fails" in done.stdout
    shown = racy.flow("debug", "--seed", str(first["id"]))
    assert shown.returncode == 1 and SAID in shown.stdout


def test_it_is_reproduced_minimised_and_not_exported(racy: KernelWorkspace) -> None:
    (first, *_) = racy.json("failures", "--format", "json")["failures"]
    again = racy.flow("reproduce", str(first["id"]))
    said = [line.removeprefix("  now: ") for line in again.stdout.splitlines() if SAID in line]
    assert again.returncode == 1 and 0 < len(set(said)) == len(said)
    small = racy.flow("minimize", str(first["id"]))
    assert small.returncode == 0 and SAID in small.stdout and "minimized" in small.stdout
    refused = racy.flow("failures", "export", str(first["id"]), "--pytest")
    assert refused.returncode == 2 and "export-refused" in refused.stderr


@pytest.mark.ci
def test_fuzz_finds_it_and_mutate_says_that_nothing_can_be_planted(racy: KernelWorkspace) -> None:
    done = racy.flow("fuzz", "softmax", "-n", "4")
    assert done.returncode == 1 and SAID in done.stdout
    planted = racy.flow("mutate", "softmax")
    assert "the kernel: 3 cases left out, as it does not pass as it is" in planted.stdout
    assert "PTX bugs found" not in planted.stdout


@pytest.mark.ci
def test_a_baseline_notices_a_race(tmp_path: Path) -> None:
    made = make_ptx_workspace(tmp_path / "ws")
    broken = made.source("matrices.ptx").read_text()
    made.source("matrices.ptx").write_text((KERNELS / "matrices.ptx").read_text())
    assert made.flow("run").returncode == 0
    assert made.flow("baseline", "store", "good").returncode == 0
    assert made.flow("diff").returncode == 0
    made.source("matrices.ptx").write_text(broken)
    done = made.flow("run", "--format", "json")
    assert done.returncode == 1
    worse = made.flow("diff", "good")
    assert worse.returncode == 1 and "softmax" in worse.stdout, worse.stdout + worse.stderr


def test_an_unchanged_ptx_runs_nothing_again(racy: KernelWorkspace) -> None:
    ptx = racy.source("matrices.ptx")
    ptx.write_bytes(ptx.read_bytes())  # saved anew, with the same text
    assert racy.json("run", "--format", "json")["executed"] == []


def test_without_line_information_the_lines_are_those_of_the_ptx(tmp_path: Path) -> None:
    made = make_ptx_workspace(tmp_path / "ws")
    kept = [
        line
        for line in made.source("matrices.ptx").read_text().splitlines()
        if not line.strip().startswith((".loc", ".file"))
    ]
    text = "// a comment\n" + "\n".join(kept) + "\n"
    made.source("matrices.ptx").write_text(text)
    failure = made.json("run", "--format", "json")["failures"][0]
    place = failure["findings"][0]["place"]
    assert place["file"] == "matrices.ptx"
    assert "ld.shared" in text.splitlines()[place["line"] - 1]
    assert f"racecheck: matrices.ptx:{place['line']} ld.shared" in failure["message"]


def test_a_source_outside_of_the_workspace_is_no_place_for_an_editor(tmp_path: Path) -> None:
    made = make_ptx_workspace(tmp_path / "ws")
    made.source("matrices.cu").unlink()
    made.edit("matrices.ptx", '"matrices.cu"', '"/elsewhere/matrices.cu"')
    assert SAID in made.flow("run").stdout
    sarif = made.json("report", "--format", "sarif")
    (result,) = [r for r in sarif["runs"][0]["results"] if r["ruleId"] == "validation/DataRace"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "gpuemu.toml"
    line = line_of(made.source("gpuemu.toml").read_text(), "[[ops]]")
    assert line <= place["region"]["startLine"] <= line + 2


@pytest.mark.ci
def test_what_a_kernel_prints_stands_with_the_case_that_fails(tmp_path: Path) -> None:
    made = make_workspace(tmp_path / "ws", 'kind = "ptx", file = "k.ptx"')
    made.source("k.ptx").write_text(PRINTING)
    config = made.source("gpuemu.toml").read_text()
    launch = config[config.index("entry =") : config.index(" }\nreference")]
    made.source("gpuemu.toml").write_text(
        config.replace(
            launch, 'grid = [1], block = [2], args = ["out"], outputs = { out = ["B", "H"] }'
        )
    )
    done = made.flow("run")
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[lines.index("printf:") + 1 :][:2] == ["| lane 0", "| lane 1"]
    notes = json.loads(made.flow("report", "--format", "json").stdout)["failures"][0]["notes"]
    assert "printf:\nlane 0\nlane 1\n" in notes
    for name in ("markdown", "html", "junit"):
        assert "lane 1" in made.flow("report", "--format", name).stdout, name
    assert "lane 1" in made.flow("fuzz", "softmax", "-n", "2").stdout


PRINTING = """
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 result) vprintf (.param .b64 form, .param .b64 values);
.global .align 1 .b8 text[9] = {108, 97, 110, 101, 32, 37, 100, 10};
.visible .entry prints(.param .u64 out)
{
  .local .align 8 .b8 values[8];
  .reg .b32 %r<4>; .reg .b64 %rd<6>;
  mov.u32 %r1, %tid.x;
  mov.u64 %rd1, values;
  st.local.u32 [%rd1], %r1;
  cvta.local.u64 %rd2, %rd1;
  mov.u64 %rd3, text;
  cvta.global.u64 %rd4, %rd3;
  { .param .b64 a; .param .b64 b; .param .b32 c;
    st.param.b64 [a], %rd4; st.param.b64 [b], %rd2;
    call.uni (c), vprintf, (a, b);
  }
  ret;
}
"""

SEVERAL = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 x, .param .u64 y, .param .u32 n)
{
  .reg .pred %p<2>; .reg .b32 %r<3>; .reg .f32 %f<3>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x;
  setp.ge.u32 %p1, %r2, %r1;
  @%p1 ret;
  mul.wide.u32 %rd3, %r2, 4;
  add.s64 %rd1, %rd1, %rd3;
  add.s64 %rd2, %rd2, %rd3;
  ld.global.f32 %f1, [%rd1];
  add.rn.f32 %f2, %f1, %f1;
  st.global.f32 [%rd2], %f2;
  ret;
}
"""
SEVERAL_CONFIG = """
[[ops]]
name = "fourfold"
op = { kind = "ptx", file = "k.ptx", launches = [ { entry = "twice", grid = [1], block = [64], args = ["x", "half", { i32 = "N" }] }, { entry = "twice", grid = [1], block = [64], args = ["half", "out", { i32 = "N + 0" }] } ], outputs = { out = ["N"] }, scratch = { half = { bytes = "4*N", init = "none" } } }
reference = "ref.py:fourfold"
strategies = ["normal"]
cases = 3
schema = { dims = { N = [5, 60] }, inputs = { x = ["N"] }, output = ["N"] }
"""  # noqa: E501


@pytest.mark.ci
def test_several_launches_of_one_op(tmp_path: Path) -> None:
    made = KernelWorkspace(tmp_path)
    made.source("gpuemu.toml").write_text(SEVERAL_CONFIG)
    made.source("k.ptx").write_text(SEVERAL)
    made.source("ref.py").write_text("def fourfold(x):\n    return 4 * x\n")
    assert made.flow("run").returncode == 0
    score = made.json("mutate", "fourfold", "--format", "json")["kernel"]
    assert "stride-changed at PTX line 12" in {killed["name"] for killed in score["killed"]}
    made.edit("gpuemu.toml", '"N + 0"', '"N + 1"')
    failure = made.json("run", "--format", "json")["failures"][0]
    assert failure["kind"].startswith("OutOfBounds")
    assert "half[" in failure["message"], "the second launch is the one that reads too far"
    made.edit("k.ptx", "add.rn.f32", "add.rn.f32x9")
    done = made.flow("run")
    assert done.returncode == 3 and "emulator-unsupported" in done.stdout

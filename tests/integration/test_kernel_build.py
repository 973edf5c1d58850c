"""Kernels really compiled: nvcc, ptxas, a command of the user's. Without nvcc they are skipped."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuemu_flow.lint.toolchain import Tool, find_tools

if TYPE_CHECKING:
    from mini_workspace import Mini

SOURCE = """\
#include "factor.cuh"
extern "C" __global__ void scaled(float *x) { x[threadIdx.x] *= FACTOR; }
"""
OTHER = 'extern "C" __global__ void other(float *x) { x[threadIdx.x] += 1.0f; }\n'

CONFIG = """
[project]
name = "kernels"

[[kernels]]
name = "scaled"
source = "k/scaled.cu"
build = { arch = ["sm_80", "sm_90"], flags = ["-Iinclude"] }

[[kernels]]
name = "other"
source = "k/other.cu"
"""


def need(name: str) -> str:
    tool = find_tools().first(name)
    if not isinstance(tool, Tool):
        pytest.skip(f"{tool.message}: {tool.hint}")
    return tool.path


@pytest.fixture
def built(mini: Mini, tmp_path: Path) -> Mini:
    """Two kernels, one with a header and two architectures, built once."""
    need("nvcc")
    mini = type(mini)(tmp_path / "kernels")
    mini.write("gpuemu.toml", CONFIG)
    mini.write("include/factor.cuh", "#define FACTOR 3.0f\n")
    (mini.root / "k").mkdir()
    (mini.root / "k/scaled.cu").write_text(SOURCE)
    (mini.root / "k/other.cu").write_text(OTHER)
    report = mini.run()
    assert report["tasks"]["ran"] == 8
    return mini


def executed(mini: Mini) -> set[str]:
    return set(mini.run()["executed"])


def named(report: dict[str, Any], kernel: str) -> dict[str, Any]:
    (found,) = (k for k in report["kernels"] if k["kernel"] == kernel)
    return dict(found)


@pytest.mark.ci
def test_figures_come_from_the_cubin_for_every_architecture(built: Mini) -> None:
    kernels = built.run()["kernels"]
    assert [(k["name"], k["arch"]) for k in kernels] == [
        ("scaled", "sm_80"),
        ("scaled", "sm_90"),
        ("other", "sm_80"),
    ]
    assert {k["metric_source"] for k in kernels} == {"cubin"}


@pytest.mark.ci
def test_an_edited_header_rebuilds_its_kernel_alone(built: Mini) -> None:
    assert executed(built) == set()
    built.write("include/factor.cuh", "#define FACTOR 4.0f\n")
    tasks = executed(built)
    assert {t for t in tasks if t.startswith("build:")} == {
        "build:scaled:sm_80",
        "build:scaled:sm_90",
    }
    assert "lint:scaled:sm_80" in tasks
    assert not [t for t in tasks if "other" in t]


@pytest.mark.ci
def test_a_rebuild_of_the_same_code_runs_no_lint(built: Mini) -> None:
    (built.root / "k/scaled.cu").write_text(SOURCE + "// a comment\n")
    assert executed(built) == {"build:scaled:sm_80", "build:scaled:sm_90"}
    assert executed(built) == set()


@pytest.mark.ci
def test_a_header_that_is_included_later_counts_from_then_on(built: Mini) -> None:
    built.write("k/more.cuh", "#define MORE 1.0f\n")
    (built.root / "k/other.cu").write_text('#include "more.cuh"\n' + OTHER.replace("1.0f", "MORE"))
    assert "build:other:sm_80" in executed(built)
    built.write("k/more.cuh", "#define MORE 2.0f\n")
    assert "build:other:sm_80" in executed(built)


@pytest.mark.ci
def test_an_include_by_macro_is_never_taken_for_current(built: Mini) -> None:
    built.write("k/more.cuh", "#define MORE 1.0f\n")
    text = '#define WHICH "more.cuh"\n#include WHICH\n' + OTHER.replace("1.0f", "MORE")
    (built.root / "k/other.cu").write_text(text)
    report = built.run()
    assert [p["slug"] for p in report["problems"]] == ["build-unseen-include"]
    built.write("k/more.cuh", "#define MORE 2.0f\n")
    assert "lint:other:sm_80" in executed(built)


@pytest.mark.ci
def test_a_source_that_does_not_compile_is_named_and_the_others_go_on(built: Mini) -> None:
    (built.root / "k/other.cu").write_text("// first\nint x = ;\n")
    built.write("include/factor.cuh", "#define FACTOR 5.0f\n")
    report = built.run(code=3)
    (problem,) = report["problems"]
    assert (problem["slug"], problem["file"], problem["line"]) == ("build-failed", "k/other.cu", 2)
    assert "expected an expression" in problem["message"]
    assert named(report, "other")["verdict"] == "error"
    assert {k["verdict"] for k in report["kernels"] if k["kernel"] == "scaled"} == {"passed"}
    assert "lint:scaled:sm_80" in report["executed"]
    (built.root / "k/other.cu").write_text(OTHER)
    assert named(built.run(), "other")["verdict"] == "passed"


@pytest.mark.ci
def test_a_missing_header_is_named_and_built_once_it_is_there(built: Mini) -> None:
    (built.root / "k/other.cu").write_text('#include "late.cuh"\n' + OTHER)
    report = built.run(code=3)
    assert report["problems"][0]["file"] == "k/other.cu"
    built.write("k/late.cuh", "#define LATE 1\n")
    assert named(built.run(), "other")["verdict"] == "passed"
    built.write("k/late.cuh", "#define LATE 2\n")
    assert "build:other:sm_80" in executed(built)


@pytest.mark.ci
def test_flags_reach_the_compiler_and_the_key(built: Mini) -> None:
    built.edit("gpuemu.toml", '["-Iinclude"]', '["-Iinclude", "-DUNUSED=1"]')
    assert executed(built) == {"build:scaled:sm_80", "build:scaled:sm_90"}
    built.edit("gpuemu.toml", "-DUNUSED=1", "--no-such-flag")
    report = built.run(code=3)
    assert "no-such-flag" in report["problems"][0]["message"]


@pytest.mark.ci
def test_variables_that_would_change_a_build_do_not(built: Mini) -> None:
    built.env["NVCC_APPEND_FLAGS"] = "-DFACTOR=9.0f -maxrregcount=16"
    (built.root / "k/scaled.cu").write_text(SOURCE + "// again\n")
    assert executed(built) == {"build:scaled:sm_80", "build:scaled:sm_90"}


@pytest.mark.ci
def test_a_violation_points_into_the_source(built: Mini) -> None:
    (built.root / "k/other.cu").write_text(
        '#include <cstdio>\nextern "C" __global__ void other(int *x) {\n'
        '    printf("left in %d\\n", *x);\n}\n'
    )
    found = named(built.run(code=None), "other")["violations"]
    (call,) = (v for v in found if v["rule"] == "debug-call")
    assert (call["file"], call["line"]) == ("k/other.cu", 3)
    (built.root / "k/other.cu").write_text(
        '#include <cstdio>\nextern "C" __global__ void other(int *x) {\n'
        '    printf("left in %d\\n", *x);  // gpuemu: allow debug-call wanted here\n}\n'
    )
    found = named(built.run(code=None), "other")["violations"]
    (call,) = (v for v in found if v["rule"] == "debug-call")
    assert call["allowed"] == "wanted here"


@pytest.mark.ci
def test_ptx_is_assembled_for_each_wanted_architecture(built: Mini) -> None:
    need("ptxas")
    committed = Path(__file__).resolve().parent.parent.parent / "scripts/kernels/sm_90/softmax.ptx"
    shutil.copy(committed, built.root / "k")
    with (built.root / "gpuemu.toml").open("a") as file:
        file.write(
            '[[kernels]]\nname = "softmax"\nsource = "k/softmax.ptx"\narch = ["sm_80", "sm_90"]\n'
        )
    report = built.run(code=1)
    kernels = {k["arch"]: k for k in report["kernels"] if k["kernel"] == "softmax"}
    assert kernels["sm_90"]["verdict"] == "passed"
    assert kernels["sm_90"]["metric_source"] == "cubin"
    broken = [v["rule"] for v in kernels["sm_80"]["violations"] if v["severity"] == "error"]
    assert broken == ["portability"]


@pytest.mark.ci
def test_damaged_ptx_is_named_with_its_line(built: Mini) -> None:
    need("ptxas")
    text = ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(){\nadd.s32 %r1, %r2, 1;\n}\n"
    (built.root / "k/bad.ptx").write_text(text)
    with (built.root / "gpuemu.toml").open("a") as file:
        file.write('[[kernels]]\nname = "bad"\nsource = "k/bad.ptx"\n')
    report = built.run(code=3)
    places = {(p["slug"], p["file"], p["line"]) for p in report["problems"]}
    assert ("ptxas-error", "k/bad.ptx", 5) in places


def command_config(inputs: str) -> str:
    return (
        '[project]\nname = "c"\n[[kernels]]\nname = "made"\nptx = "out/made.ptx"\n'
        f'build = {{ command = ["{sys.executable}", "make.py"]{inputs} }}\n'
    )


@pytest.fixture
def made(mini: Mini, tmp_path: Path) -> Mini:
    """A kernel that a script of the user's makes; needs no compiler."""
    mini = type(mini)(tmp_path / "made")
    mini.write("gpuemu.toml", command_config(', inputs = ["*.ptx"]'))
    kernel = Path(__file__).resolve().parent.parent.parent / "scripts/kernels/sm_80/softmax.ptx"
    (mini.root / "template.ptx").write_bytes(kernel.read_bytes())
    mini.write(
        "make.py",
        "from pathlib import Path\n"
        "Path('out').mkdir(exist_ok=True)\n"
        "Path('out/made.ptx').write_bytes(Path('template.ptx').read_bytes())\n",
    )
    return mini


def test_a_command_makes_what_it_promises(made: Mini) -> None:
    report = made.run()
    assert named(report, "made")["name"] == "softmax_kernel"
    assert executed(made) == set()
    made.write("make.py", (made.root / "make.py").read_text() + "# changed\n")
    assert executed(made) == {"build:made"}


def test_what_a_command_reads_by_its_inputs_counts(made: Mini) -> None:
    (made.root / "template.ptx").chmod(0o755)
    report = made.run()
    assert report["problems"] == []
    assert made.command("run").stdout.startswith("up to date")
    with (made.root / "template.ptx").open("a") as file:
        file.write("// edited\n")
    assert executed(made) == {"build:made", "lint:made"}
    made.write("another.ptx", "")
    assert executed(made) == {"build:made"}
    (made.root / "another.ptx").unlink()
    assert executed(made) == {"build:made"}
    (made.root / "template.ptx").chmod(0o644)
    assert executed(made) == {"build:made"}
    made.env["MADE_BY"] = "nobody that a command hears of"
    assert executed(made) == set()
    made.env["CXX"] = "another"
    assert executed(made) == {"build:made"}


def test_a_command_without_inputs_is_run_by_every_run(made: Mini) -> None:
    made.write("gpuemu.toml", command_config(""))
    for _ in range(2):
        (problem,) = made.run()["problems"]
        assert (problem["slug"], problem["warning"]) == ("build-undeclared-inputs", True)
    assert executed(made) == {"build:made"}
    with (made.root / "template.ptx").open("a") as file:
        file.write("// edited\n")
    assert executed(made) == {"build:made", "lint:made"}
    made.write("gpuemu.toml", command_config(", inputs = []"))
    (problem,) = made.run()["problems"]
    assert "also read template.ptx" in problem["message"]
    assert executed(made) == {"build:made"}, "which it does not declare"
    made.write("gpuemu.toml", command_config(", inputs = ['template.ptx']"))
    assert made.run()["problems"] == []
    assert executed(made) == set()


def test_a_command_waits_for_the_rule_that_makes_its_input(made: Mini) -> None:
    with (made.root / "gpuemu.toml").open("a") as file:
        file.write(
            '[[rules]]\nname = "copy"\ncommand = ["cp", "first", "template.ptx"]\n'
            'inputs = ["first"]\noutputs = ["template.ptx"]\n'
        )
    (made.root / "template.ptx").rename(made.root / "first")
    assert named(made.run(), "made")["name"] == "softmax_kernel"
    with (made.root / "first").open("a") as file:
        file.write("// edited\n")
    assert executed(made) == {"build:copy", "build:made", "lint:made"}
    assert executed(made) == set()


def test_inputs_that_match_nothing_or_say_nothing_are_told(made: Mini) -> None:
    made.write("gpuemu.toml", command_config(', inputs = ["no/*.ptx"]'))
    slugs = [problem["slug"] for problem in made.run()["problems"]]
    assert slugs == ["config-no-match", "build-undeclared-inputs"]
    made.write(
        "gpuemu.toml",
        '[project]\nname = "c"\n[[kernels]]\nname = "k"\nptx = "template.ptx"\n'
        'build = { inputs = ["*.ptx"] }\n',
    )
    done = made.command("config", "check", code=2)
    assert "build.inputs has no effect" in done.stdout + done.stderr


def test_a_command_that_fails_is_told_in_its_own_words(made: Mini) -> None:
    made.write("make.py", "raise SystemExit('no template today')\n")
    report = made.run(code=3)
    assert "no template today" in report["problems"][0]["message"]
    made.write("make.py", "print('did nothing')\n")
    shutil.rmtree(made.root / "out", ignore_errors=True)
    (problem, *_) = made.run(code=3)["problems"]
    assert problem["slug"] == "build-no-artifact"
    assert problem["message"] == "cannot read the artifact: No such file or directory"


def test_a_command_that_floods_its_output_is_stopped(made: Mini) -> None:
    made.write("make.py", "import sys\nwhile True:\n    sys.stdout.write('x' * 65536)\n")
    report = made.run(code=3)
    assert "stopped after printing" in report["problems"][0]["message"]


def test_an_interrupted_run_ends_the_compiler(made: Mini) -> None:
    made.write(
        "make.py",
        "import os, time\nfrom pathlib import Path\nPath('out').mkdir(exist_ok=True)\n"
        "Path('out/pid.part').write_text(str(os.getpid()))\nos.rename('out/pid.part', 'out/pid')\n"
        "time.sleep(600)\n",
    )
    process = made.popen("run")
    pid_file = made.root / "out" / "pid"
    while not pid_file.exists():
        assert process.poll() is None
    pid = int(pid_file.read_text())
    process.terminate()
    process.communicate(timeout=600)
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_triton_kernel_is_compiled_or_skipped_with_what_to_install(
    mini: Mini, tmp_path: Path
) -> None:
    mini = type(mini)(tmp_path / "triton")
    mini.write(
        "gpuemu.toml",
        """
        [project]
        name = "t"
        [[kernels]]
        name = "add"
        triton = "add.py:add"
        signature = { x = "*fp32", n = "i32" }
        constants = { BLOCK = 128 }
        """,
    )
    mini.write(
        "add.py",
        """
        import triton
        import triton.language as tl

        @triton.jit
        def add(x, n, BLOCK: tl.constexpr):
            i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(x + i, tl.load(x + i, mask=i < n) + 1.0, mask=i < n)
        """,
    )
    report = mini.run(code=None)
    kernel = named(report, "add")
    if importlib.util.find_spec("triton") is None:
        assert kernel["verdict"] == "skipped"
        assert "pip install triton" in kernel["reason"]
    else:
        assert (kernel["verdict"], kernel["metric_source"]) == ("passed", "cubin")

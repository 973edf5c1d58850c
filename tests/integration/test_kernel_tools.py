"""Kernels through the task graph with stand-ins for the tools: what runs again, and what fails."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import Mini
from stand_in_tools import KERNELS, StandIns

from gpuemu_flow.lint.toolchain import MachineCode, Tool
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.tasks.compilers import disassemble

pytestmark = pytest.mark.ci

CONFIG = """
[project]
name = "kernels"

[sandbox]
writable = ["calls"]

[[kernels]]
name = "first"
source = "k/first.cu"
build = { arch = ["sm_80", "sm_90"], flags = ["-Iinclude"] }

[[kernels]]
name = "second"
source = "k/second.cu"
artifact_checks = { forbidden_instructions = ["STL"] }
"""


def _log(folder: Path, name: str = "tools") -> Path:
    """Return the path of a log that compilers of `kernels` may write."""
    return folder / "kernels" / "calls" / f"{name}.log"


@pytest.fixture
def tools(tmp_path: Path) -> StandIns:
    found = StandIns(tmp_path / "tools", _log(tmp_path))
    found.add("nvcc")
    return found


@pytest.fixture
def kernels(tmp_path: Path, tools: StandIns) -> Mini:
    """Two kernels, one with a header and two architectures; not built yet."""
    mini = Mini(tmp_path / "kernels", {"PATH": tools.path})
    mini.write("gpuemu.toml", CONFIG)
    mini.write("include/size.cuh", "// makes softmax\n")
    mini.write("k/first.cu", '#include "size.cuh"\n')
    mini.write("k/second.cu", "// makes layernorm\n")
    return mini


def by_kernel(report: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [kernel for kernel in report["kernels"] if kernel["kernel"] == name]


def verdicts(report: dict[str, Any], name: str) -> set[str]:
    return {kernel["verdict"] for kernel in by_kernel(report, name)}


def test_what_changed_is_built_and_linted_alone(kernels: Mini, tools: StandIns) -> None:
    report = kernels.run()
    assert report["tasks"]["ran"] == 8
    assert {k["metric_source"] for k in report["kernels"]} == {"cubin"}
    tools.started()
    assert kernels.run()["executed"] == []
    assert tools.started() == []  # nothing is even asked for its version

    first = {f"build:first:{arch}" for arch in ("sm_80", "sm_90")}
    kernels.write("include/size.cuh", "// makes reduce_shuffle\n")
    executed = set(kernels.run()["executed"])
    assert executed == first | {"lint:first:sm_80", "lint:first:sm_90", "diff:first"}

    kernels.write("k/first.cu", '#include "size.cuh"\n// the same code\n')
    report = kernels.run()
    assert set(report["executed"]) == first  # the same bytes: no lint, not even a restored one
    assert (report["tasks"]["ran"], report["tasks"]["restored"]) == (2, 0)

    kernels.write("k/second.cu", "// makes histogram\n")
    executed = set(kernels.run()["executed"])
    assert executed == {"build:second:sm_80", "lint:second:sm_80", "diff:second"}


NEW_FILES = {
    "beside the source": ("k/size.cuh", "// makes reduce_shuffle\n"),
    "in an include folder": ("include/cuda_runtime.h", ""),
    "below an include folder": ("include/crt/host_config.h", ""),
    "asked for": ("include/extra.cuh", ""),
}


@pytest.mark.parametrize("way", NEW_FILES)
def test_a_new_header_that_could_be_read_is_no_up_to_date(kernels: Mini, way: str) -> None:
    (kernels.root / "include/crt").mkdir()
    kernels.write("k/first.cu", '#include "size.cuh"\n#if __has_include(<extra.cuh>)\n#endif\n')
    for _ in range(3):  # until the last looks are behind the last changes
        said = kernels.command("run").stdout
    assert "up to date" in said
    kernels.write(*NEW_FILES[way])
    assert "up to date" not in kernels.command("run").stdout
    kernels.write("include/notes.md", "")
    executed = set(kernels.run()["executed"])
    assert executed == set()


def test_a_disassembler_that_comes_is_used_and_named(kernels: Mini, tools: StandIns) -> None:
    before = kernels.run()
    (second, *_) = by_kernel(before, "second")
    if second["metrics"]["sass"] is None:  # else one is installed here
        assert {"rule": "forbidden-instruction", "reason": second["unchecked"][0]["reason"]} in (
            second["unchecked"]
        )
    tools.add("nvdisasm")
    after = kernels.run(code=1)
    for kernel in after["kernels"]:
        assert kernel["metrics"]["sass"]["source"] == "nvdisasm 13.0.99"
    broken = [v for v in by_kernel(after, "second")[0]["violations"] if v["severity"] == "error"]
    assert {v["rule"] for v in broken} == {"forbidden-instruction"}
    assert verdicts(after, "first") == {"passed"}
    tools.started()
    kernels.run(code=1)
    assert tools.started() == []


def test_a_configured_tool_goes_before_the_others(
    kernels: Mini, tools: StandIns, tmp_path: Path
) -> None:
    mine = StandIns(tmp_path / "mine", _log(tmp_path, "mine"))
    path = mine.add("nvcc", "12.9")
    table = f'[execution]\ntools = {{ nvcc = "{path}" }}\n'
    kernels.edit("gpuemu.toml", "[project]", table + "[project]")
    kernels.run()
    assert (mine.calls(), tools.calls()) == (["nvcc"] * 3, [])
    path.unlink()
    report = kernels.run()
    assert tools.calls() == ["nvcc"] * 3
    assert {p["slug"] for p in report["problems"]} == {"tool-unusable"}
    assert {p["file"] for p in report["problems"]} == {str(path)}
    assert all(p["warning"] for p in report["problems"])
    mine.add("nvcc", "12.9")
    assert kernels.run()["problems"] == []


def test_a_disassembler_that_fails_costs_the_listing_only(kernels: Mini, tools: StandIns) -> None:
    tools.add("nvdisasm")
    (tools.folder / "nvdisasm.fails").touch()
    kernels.edit("gpuemu.toml", "artifact_checks", "# artifact_checks")
    report = kernels.run()
    assert verdicts(report, "first") == verdicts(report, "second") == {"passed"}
    slugs = {problem["slug"] for problem in report["problems"]}
    assert slugs <= {"sass-unreadable"}  # none where another disassembler is installed


def test_the_next_disassembler_is_tried_and_what_the_last_one_said_is_a_warning(
    tools: StandIns, tmp_path: Path
) -> None:
    other = StandIns(tmp_path / "other")
    failing, working = (
        Tool("nvdisasm", str(place.add("nvdisasm")), (13, 0), f"13.0.{number}", "PATH")
        for number, place in enumerate((tools, other))
    )
    (tools.folder / "nvdisasm.fails").touch()
    data = (KERNELS / "sm_80" / "softmax.cubin").read_bytes()
    never = threading.Event()
    listed = disassemble(data, "k.cubin", [failing, working], tmp_path, never, None)
    assert isinstance(listed, MachineCode)
    assert (listed.tool, set(listed.functions)) == ("nvdisasm 13.0.1", {"softmax_kernel"})
    problem = disassemble(data, "k.cubin", [failing], tmp_path, never, None)
    assert isinstance(problem, Problem)
    assert (problem.slug, problem.file, problem.warning) == ("sass-unreadable", "k.cubin", True)
    assert "unsupported architecture" in problem.message
    assert disassemble(data[:99], "k.cubin", [failing], tmp_path, never, None) is None
    assert disassemble(data, "k.cubin", [], tmp_path, never, None) is None


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("// makes layernorm\n\n@ no C++\n", 3, "expected a declaration"),
        ('#include "nowhere.cuh"\n', 1, "No such file"),
        ("// makes layernorm @fail\n", 0, "something went wrong"),
    ],
)
def test_a_compiler_that_fails_is_quoted_and_the_others_go_on(
    kernels: Mini, source: str, line: int, message: str
) -> None:
    kernels.write("k/second.cu", source)
    report = kernels.run(code=3)
    (problem,) = report["problems"]
    assert (problem["slug"], problem["file"], problem["line"]) == (
        "build-failed",
        "k/second.cu",
        line,
    )
    assert message in problem["message"]
    assert (verdicts(report, "first"), verdicts(report, "second")) == ({"passed"}, {"error"})
    kernels.write("k/second.cu", "// makes layernorm\n")
    assert verdicts(kernels.run(), "second") == {"passed"}


def run_script(mini: Mini, name: str) -> dict[str, Any]:
    """Run a script of the workspace that prints the command's JSON."""
    done = subprocess.run(
        [sys.executable, name],
        cwd=mini.root,
        env=mini.environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    return dict(json.loads(done.stdout))


IMPATIENT = """
import sys
from gpuemu_flow.tasks import compilers
patient = compilers.run_tool
def impatient(arguments, *, timeout, **options):
    limit = 1.0 if arguments[-1] == "k/second.cu" else timeout
    return patient(arguments, timeout=limit, **options)
compilers.run_tool = impatient
sys.argv = ["gpuemu-flow", "run", "--format", "json"]
from gpuemu_flow.front import main
main()
"""


def test_a_compiler_that_hangs_is_stopped_and_the_others_go_on(kernels: Mini) -> None:
    kernels.write("k/second.cu", "// makes layernorm @hang\n")
    kernels.write("impatient.py", IMPATIENT)
    report = run_script(kernels, "impatient.py")
    (problem,) = report["problems"]
    assert "stopped after 1 s" in problem["message"]
    assert problem["file"] == "k/second.cu"
    assert (verdicts(report, "first"), verdicts(report, "second")) == ({"passed"}, {"error"})

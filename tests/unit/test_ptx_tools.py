"""NVIDIA's tools: their output is read, and the right one for a PTX file is chosen."""

from __future__ import annotations

import json
from pathlib import Path

from for_each import for_each

from gpuemu_flow.lint.toolchain import (
    Tool,
    Toolchain,
    find_tools,
    parse_nvdisasm_json,
    parse_ptxas_output,
)
from gpuemu_flow.model.errors import Problem

PTXAS_13 = """\
ptxas info    : 10 bytes gmem, 16 bytes cmem[4]
ptxas warning : Value of threads per SM for entry spills is out of range. \
.minnctapersm will be ignored
ptxas info    : Compiling entry function 'spills' for 'sm_86'
ptxas info    : Function properties for spills
    216 bytes stack frame, 220 bytes spill stores, 224 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 216 bytes cumulative stack size, \
372 bytes cmem[0]
ptxas info    : Compile time = 1.985 ms
ptxas info    : Compiling entry function 'recurses' for 'sm_86'
ptxas info    : Function properties for recurses
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers, 512 bytes smem, 364 bytes cmem[0]
ptxas info    : Function properties for _Z3reci
    24 bytes stack frame, 20 bytes spill stores, 20 bytes spill loads
"""
ERRORS = """\
ptxas x.ptx, line 12; error   : Unknown symbol 'foo'
ptxas x.ptx, line 9; fatal   : Unsupported .version 9.0; current version is '8.4'
ptxas fatal   : Ptx assembly aborted due to errors
"""


def test_ignored_launch_bounds_are_kept_by_kernel() -> None:
    report = parse_ptxas_output(PTXAS_13)
    assert list(report.unmet_bounds) == ["spills"]
    assert [(p.slug, p.warning) for p in report.problems] == [("ptxas-warning", True)]


def test_errors_name_the_users_file_and_line() -> None:
    report = parse_ptxas_output(ERRORS, "kernels/k.ptx")
    assert [(p.slug, p.file, p.line) for p in report.problems] == [
        ("ptxas-error", "kernels/k.ptx", 12),
        ("ptxas-error", "kernels/k.ptx", 9),
        ("ptxas-error", "kernels/k.ptx", 0),
    ]
    assert "newer ptxas" in report.problems[1].hint


def test_any_text_is_read_without_error() -> None:
    for text in ("", "ptxas", "Used 9 registers", "\0\xff" * 100, PTXAS_13[::-1]):
        assert parse_ptxas_output(text).unmet_bounds == {}


def listing(opcode: str = "FADD") -> str:
    instruction = {"opcode": opcode, "operands": "R1,R2"}
    spill = {"opcode": "STL", "annotations": [{"type": "program-analysis", "info": "SpillRefill"}]}
    function = {"function-name": "k", "sass-instructions": [instruction, spill, {"opcode": "NOP"}]}
    return json.dumps([{"ELF": {}}, [function]])


def test_machine_code_listing() -> None:
    found = parse_nvdisasm_json(listing())
    assert found == {"k": {"FADD": 1, "STL": 1}}


@for_each(
    "text",
    ["", "{}", "[]", "[1]", "[1, 2]", "[{}, [{}]]", '[{}, [{"function-name": "k"}]]', "[" * 50_000],
)
def test_what_is_no_listing_is_a_problem(text: str) -> None:
    problem = parse_nvdisasm_json(text, "k.cubin")
    assert isinstance(problem, Problem)
    assert (problem.slug, problem.file) == ("sass-unreadable", "k.cubin")


def test_nothing_found_says_what_to_install(tmp_path: Path) -> None:
    chain = find_tools({}, {"PATH": str(tmp_path)}, [tmp_path])
    for name, package in (("nvcc", "nvidia-cuda-nvcc"), ("nvdisasm", "nvidia-cuda-nvdisasm")):
        problem = chain.first(name)
        assert isinstance(problem, Problem)
        assert problem.slug == "tool-not-found"
        assert package in problem.hint


def chain_of(*releases: tuple[int, int]) -> Toolchain:
    tools = [Tool("ptxas", f"/p{i}", release, "x", "PATH") for i, release in enumerate(releases)]
    return Toolchain({"ptxas": tools})


def test_the_first_ptxas_that_reads_the_version_is_picked() -> None:
    chain = chain_of((12, 4), (13, 0), (12, 8))
    for version, path in (((8, 4), "/p0"), ((8, 7), "/p1"), ((9, 0), "/p1"), ((6, 0), "/p0")):
        found = chain.ptxas_for(version)
        assert isinstance(found, Tool)
        assert found.path == path


def test_no_ptxas_that_is_new_enough_is_said_clearly() -> None:
    problem = chain_of((12, 4), (13, 0)).ptxas_for((9, 2))
    assert isinstance(problem, Problem)
    assert problem.slug == "tool-too-old"
    assert "9.0" in problem.message
    assert "9.2" in problem.message


def test_releases_that_are_not_in_the_table() -> None:
    assert Tool("ptxas", "", (13, 7), "", "").newest_ptx == (9, 7)
    assert Tool("ptxas", "", (9, 0), "", "").newest_ptx == (0, 0)

"""Files linted by themselves: assembled where ptxas is found, and nothing done twice."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import Mini
from stand_in_tools import KERNELS, StandIns

UNFENCED = '[project]\nname = "files"\n[sandbox]\nmode = "off"\n'  # tools write a log
CONFIG = f"{UNFENCED}[policies.registers]\nmax = 10\n"


@pytest.fixture
def tools(tmp_path: Path) -> StandIns:
    found = StandIns(tmp_path / "tools")
    found.add("ptxas")
    return found


@pytest.fixture
def folder(tmp_path: Path, tools: StandIns) -> Mini:
    """A folder that is no workspace, with a PTX file, and a ptxas first on the path."""
    mini = Mini(tmp_path / "folder", {"PATH": tools.path})
    mini.root.mkdir()
    shutil.copy(KERNELS / "sm_80" / "softmax.ptx", mini.root)
    return mini


def lint(mini: Mini, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = mini.command("lint", "--format", "json", *arguments, code=code)
    return dict(json.loads(done.stdout))


def measured(tools: StandIns) -> int:
    """Count how often figures were made since the last question: a tool is asked its version then.

    At work itself it is behind a fence, and can leave no trace.
    """
    return tools.started().count("ptxas?")


def sources(found: dict[str, Any]) -> list[str]:
    return [kernel["metric_source"] for kernel in found["kernels"]]


@pytest.mark.parametrize("config", ["", CONFIG])
def test_ptx_is_assembled_for_exact_figures_once(
    folder: Mini, tools: StandIns, config: str
) -> None:
    code = 0
    if config:
        folder.write("gpuemu.toml", config)
        code = 1  # 15 registers: an error only if figures are exact and the policy is read
    first = lint(folder, "softmax.ptx", code=code)
    assert sources(first) == ["cubin"]
    assert first["kernels"][0]["metrics"]["registers"] == 15
    assert tools.started() == (["ptxas?", "ptxas"] if config else ["ptxas?"])
    assert lint(folder, "softmax.ptx", code=code) == first
    assert tools.started() == []


def test_a_changed_file_is_measured_again(folder: Mini, tools: StandIns) -> None:
    lint(folder, "softmax.ptx")
    path = folder.root / "softmax.ptx"
    path.write_bytes(path.read_bytes() + b"// more\n")
    lint(folder, "softmax.ptx")
    assert measured(tools) == 2


def test_a_tool_that_comes_or_changes_is_noticed(folder: Mini, tools: StandIns) -> None:
    tools.add("ptxas", "12.0")
    text = folder.root.joinpath("softmax.ptx").read_text()
    assert ".version 9.0" in text
    before = lint(folder, "softmax.ptx")
    assert tools.calls() == []
    if sources(before) == ["estimate"]:  # else another ptxas is installed here
        assert [p["slug"] for p in before["problems"]] == ["tool-too-old"]
    tools.add("ptxas", "13.0")
    assert sources(lint(folder, "softmax.ptx")) == ["cubin"]
    assert measured(tools) == 1


@pytest.mark.parametrize("place", ["file", "unreadable"])
def test_a_cache_that_cannot_be_used_costs_time_only(
    folder: Mini, tools: StandIns, place: str
) -> None:
    cache = folder.root / "cache"
    cache.write_text("no folder")
    folder.env["XDG_CACHE_HOME"] = str(cache) if place == "file" else "/proc/1/none"
    assert sources(lint(folder, "softmax.ptx")) == ["cubin"]
    assert sources(lint(folder, "softmax.ptx")) == ["cubin"]
    assert measured(tools) == 2


def test_a_damaged_cache_is_made_anew(folder: Mini, tools: StandIns) -> None:
    lint(folder, "softmax.ptx")
    (database,) = folder.root.rglob("home/.cache/gpuemu-flow/actions/cache.db")
    database.write_bytes(b"x" * 5000)
    for extra in database.parent.glob("cache.db-*"):
        extra.unlink()
    for _ in range(2):
        assert sources(lint(folder, "softmax.ptx")) == ["cubin"]
    assert measured(tools) == 2


def test_what_ptxas_refuses_is_named_with_its_line(folder: Mini) -> None:
    bad = folder.root / "bad.ptx"
    text = (folder.root / "softmax.ptx").read_text()
    bad.write_text(text.replace("\tret;", "\t@bad ret;", 1))
    line = bad.read_text()[: bad.read_text().index("@bad")].count("\n") + 1
    found = lint(folder, "bad.ptx", "softmax.ptx", code=3)
    places = {(p["slug"], p["file"], p["line"]) for p in found["problems"]}
    assert ("ptxas-error", "bad.ptx", line) in places
    assert {k["file"]: k["verdict"] for k in found["kernels"]}["softmax.ptx"] == "passed"


def test_a_ptxas_that_fails_leaves_the_estimate_and_says_so(folder: Mini) -> None:
    path = folder.root / "softmax.ptx"
    path.write_text(path.read_text() + "// @fail\n")
    found = lint(folder, "softmax.ptx")
    assert sources(found) == ["estimate"]
    (problem,) = found["problems"]
    assert problem["warning"]
    assert "something went wrong" in problem["message"]


def test_an_elf_for_another_machine_is_named_and_the_others_go_on(folder: Mini) -> None:
    data = bytearray((KERNELS / "sm_80" / "softmax.cubin").read_bytes())
    struct.pack_into("<H", data, 18, 62)
    (folder.root / "host.cubin").write_bytes(data)
    found = lint(folder, "host.cubin", "softmax.ptx", code=3)
    assert [(p["slug"], p["file"]) for p in found["problems"]] == [
        ("cubin-other-machine", "host.cubin")
    ]
    assert sources(found) == ["", "cubin"]


def test_figures_of_files_with_their_machine_instructions(folder: Mini, tools: StandIns) -> None:
    folder.write("gpuemu.toml", UNFENCED)
    tools.add("nvdisasm")
    shown = folder.command("artifacts", "softmax.ptx").stdout
    assert "4 instructions, listed by nvdisasm 13.0.99" in shown
    found = json.loads(folder.command("artifacts", "--format", "json", "softmax.ptx").stdout)
    (kernel,) = found["kernels"]
    assert kernel["metrics"]["sass"] == {
        "source": "nvdisasm 13.0.99",
        "instructions": 4,
        "families": {"f32": 2, "ld.global.x4": 1, "local": 1},
    }
    assert tools.calls() == ["ptxas", "nvdisasm"]
    lint(folder, "softmax.ptx")
    assert tools.calls() == ["ptxas"]  # a lint of files needs no listing


FUNCTION = """.version 8.0
.target sm_80
.address_size 64
.visible .func f() { ret; }
"""


def test_a_file_of_device_functions_among_others_is_passed_over(folder: Mini) -> None:
    (folder.root / "helpers.ptx").write_text(FUNCTION)
    found = lint(folder, "helpers.ptx", "softmax.ptx")
    assert len(found["kernels"]) == 1
    (problem,) = found["problems"]
    assert problem["slug"] == "artifact-no-kernels" and problem["warning"]
    assert lint(folder, "helpers.ptx", code=3)["kernels"][0]["verdict"] == "error"

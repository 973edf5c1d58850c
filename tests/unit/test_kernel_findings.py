"""Findings in compiled kernels as data: their text, their form in JSON, where editors show them."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from gpuemu_flow.judge.results import CaseVerdict, OpResult
from gpuemu_flow.lint.ptx.model import plain_ptx
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.types import (
    THERE,
    Case,
    CheckResult,
    CodePlace,
    Failure,
    FailureKind,
    KernelFinding,
    Verdict,
)
from gpuemu_flow.report.last_results import LastResults
from gpuemu_flow.services.lsp.document import ERROR, source_findings

SCHEMA = Path(__file__).resolve().parent.parent.parent / "gpuemu_flow/schemas/run.schema.json"
FINDING = KernelFinding(
    "race", "read-after-write", "softmax_rows", "ld.shared",
    f"reads buf[17], written by thread 49 (block 3) at {THERE} with no barrier in between",
    CodePlace("kernels/softmax.cu", 31, 90), CodePlace("kernels/softmax.cu", 28, 71),
    (3, 0, 0), (17, 0, 0), 1024,
)  # fmt: skip
TEXT = (
    "racecheck: softmax.cu:31 ld.shared reads buf[17], written by thread 49 (block 3) at "
    "softmax.cu:28 with no barrier in between · 1,024 times"
)


def test_a_finding_reads_as_the_issue_asks_and_survives_json() -> None:
    failure = Failure.of_kernel(FailureKind.RACE, FINDING)
    assert failure.message == TEXT
    again = convert(json.loads(json.dumps(plain(failure))), Failure, strict=False)
    assert again == failure
    whole = json.loads(SCHEMA.read_text())
    schema = {"$ref": "#/definitions/finding", "definitions": whole["definitions"]}
    jsonschema.validate(json.loads(json.dumps(to_builtins(FINDING))), schema)


def test_both_places_move() -> None:
    moved = FINDING.moved(lambda p: CodePlace(p.file, p.line + 2, p.code))
    assert str(moved) == TEXT.replace(":31", ":33").replace(":28", ":30")


@pytest.mark.parametrize("damage", [{"count": "many"}, {"place": 3}, {"there": {"file": 1}}])
def test_a_damaged_finding_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        convert({**to_builtins(FINDING), **damage}, KernelFinding)


def test_an_editor_shows_a_line_once() -> None:
    result = CheckResult(Verdict.FAILED, (Failure.of_kernel(FailureKind.RACE, FINDING),))
    case = Case(0, 1, "float32", "contiguous", "normal", ())
    failed = CaseVerdict("softmax", case, result)
    assert failed.source == FINDING.place
    op = OpResult("softmax", "float32", Verdict.FAILED, 2, failures=(failed, failed))
    (found,) = source_findings(LastResults({"softmax": (op,)}, frozenset(), {}))
    assert (found.file, found.line, found.level) == ("kernels/softmax.cu", 31, ERROR)
    assert found.code == "DataRace" and TEXT in found.message


def test_a_finding_in_a_header_of_the_toolkit_is_shown_where_the_next_one_is() -> None:
    headers = [
        Failure.of_kernel(FailureKind.RACE, replace(FINDING, place=CodePlace(path, 112, 7)))
        for path in (
            "/usr/local/cuda/include/device_atomic_functions.hpp",
            "/usr/include/cub/block/block_reduce.cuh",
            "/opt/cuda/targets/x86_64-linux/include/cooperative_groups.h",
            "/venv/lib/python3.11/site-packages/triton/language/standard.py",
        )
    ]
    own = Failure.of_kernel(FailureKind.RACE, FINDING)
    value = Failure(FailureKind.TOLERANCE, "3 of 9 elements")
    case = Case(0, 1, "float32", "contiguous", "normal", ())

    def source(*failures: Failure) -> CodePlace | None:
        return CaseVerdict("softmax", case, CheckResult(Verdict.FAILED, failures)).source

    assert source(*headers, own, value) == FINDING.place
    for header in headers:
        assert source(header, own, value) == FINDING.place
        assert source(header, value, own) is None
    assert source(value, own) is None


PTX = """// made by nvcc
.version 8.0
.target sm_80
.file 1 "a.cu"
.visible .entry k() {
  .loc 1 3 5
  ret;   // done
}
.section .debug_str {
  .b8 1
}
"""


def test_ptx_without_lines_and_comments() -> None:
    plain = plain_ptx(PTX.encode())
    assert plain.text.decode().splitlines() == [
        ".version 8.0", ".target sm_80", ".visible .entry k() {", "ret;", "}",
    ]  # fmt: skip
    assert plain.number(7) == 4 and plain.line(4) == 7
    assert plain.number(6) == 0 and plain.line(9) == plain.line(0) == 0
    moved = PTX.replace(".loc 1 3 5", ".loc 1 9 5\n").replace("made by", "compiled by")
    assert plain_ptx(moved.encode()).text == plain.text
    assert plain_ptx(PTX.replace("ret;", "exit;").encode()).text != plain.text

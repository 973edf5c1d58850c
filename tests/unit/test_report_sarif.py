"""SARIF: valid, at real lines, with names that stay while lines move, and bounded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from report_samples import failed, hostile, huge, report_of, sample

from gpuemu_flow.reports import report_sarif
from gpuemu_flow.reports.document import Place, Report
from gpuemu_flow.reports.report_sarif import report_to_sarif

SCHEMA = Path(__file__).resolve().parents[1] / "data" / "sarif-subset.schema.json"


def results(report: Report) -> list[dict[str, Any]]:
    whole = report_to_sarif(report)
    assert not list(Draft7Validator(json.loads(SCHEMA.read_text())).iter_errors(whole))
    rules = [rule["id"] for rule in whole["runs"][0]["tool"]["driver"]["rules"]]
    found: list[dict[str, Any]] = whole["runs"][0]["results"]
    assert all(rules[r["ruleIndex"]] == r["ruleId"] for r in found)
    return found


def place(result: dict[str, Any]) -> tuple[str, int]:
    physical = result["locations"][0]["physicalLocation"]
    return physical["artifactLocation"]["uri"], physical["region"]["startLine"]


def test_one_result_per_op_and_kind_at_the_line_of_its_source() -> None:
    found = {r["ruleId"]: r for r in results(sample())}
    assert set(found) == {
        "validation/ToleranceExceeded", "validation/ExecutionError", "register-limit", "regression",
    }  # fmt: skip
    wrong = found["validation/ToleranceExceeded"]
    assert wrong["occurrenceCount"] == 2
    assert wrong["properties"]["seeds"] == ["12", "13"], "worst first, as strings"
    assert place(wrong) == ("scripts/softmax.py", 7)
    assert place(found["validation/ExecutionError"]) == ("gpuemu.toml", 1), "nothing better known"
    assert place(found["register-limit"]) == ("scripts/softmax.cu", 12)
    assert place(found["regression"]) == ("scripts/softmax.py", 7)


def test_lints_are_named_from_the_repository_too() -> None:
    found = {r["ruleId"]: r for r in results(replace(sample(), prefix="kernels/mine"))}
    assert place(found["register-limit"]) == ("kernels/mine/scripts/softmax.cu", 12)


def test_a_finding_keeps_its_name_while_lines_and_seeds_move() -> None:
    def prints(report: Report) -> set[str]:
        found = [r["partialFingerprints"]["gpuemuFlow/v1"] for r in results(report)]
        assert len(set(found)) == len(found)
        return set(found)

    before = report_of([failed("softmax", 1), failed("gelu", 2)])
    after = report_of([failed("softmax", 9), failed("gelu", 2)])
    moved = replace(after, places={"softmax": Place("scripts/softmax.py", 99)})
    assert prints(before) == prints(moved)
    assert prints(before) != prints(report_of([failed("softmax", 1), failed("silu", 2)]))


def test_hostile_text_is_valid() -> None:
    text = json.dumps(report_to_sarif(hostile()))
    assert results(hostile())
    assert "\\u0000" not in text
    assert "\\u001b" not in text


def test_five_thousand_results_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    report = huge()
    found = results(report)
    assert len(found) == 5000
    assert len({r["partialFingerprints"]["gpuemuFlow/v1"] for r in found}) == 5000
    assert len(json.dumps(found)) < 10_000_000
    monkeypatch.setattr(report_sarif, "MAX_RESULTS", 100)
    whole = report_to_sarif(report)["runs"][0]
    assert len(whole["results"]) == 100
    (notice,) = whole["invocations"][0]["toolExecutionNotifications"]
    assert notice["message"]["text"] == "4900 more results were left out"

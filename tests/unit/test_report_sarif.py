"""SARIF: valid, at real lines, with names that stay while lines move, and bounded."""

from __future__ import annotations

import copy
import gzip
import json
from typing import Any

import pytest
from for_each import for_each
from msgspec import structs
from msgspec.structs import replace
from published_schemas import check_sarif, sarif_validator
from report_samples import KERNEL, failed, hostile, huge, report_of, sample

from gpuemu_flow.cli.report import render
from gpuemu_flow.judge.results import Regression
from gpuemu_flow.report import sarif
from gpuemu_flow.report.document import FileLine, Report
from gpuemu_flow.report.github import workflow_commands
from gpuemu_flow.report.sarif import lint_to_sarif, physical_location, report_to_sarif

GITHUB_LIMIT = 10_000_000
"""Bytes of a compressed file."""


def results(report: Report) -> list[dict[str, Any]]:
    """The results of the file as it is written, which has passed the standard's schema."""
    found = check_sarif(render(report, "sarif"))
    assert all(result["partialFingerprints"] for result in found)
    assert all("ruleIndex" in result for result in found)
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


def test_a_kernels_regression_stands_at_the_kernel() -> None:
    slower = Regression(kernel="softmax_kernel", arch="sm_80", entry="e", message="32 -> 40")
    worse = replace(sample(), regressions=(slower,))
    found = {r["ruleId"]: r for r in results(worse)}
    assert place(found["regression"]) == ("scripts/softmax.cu", 1)
    (told,) = [line for line in workflow_commands(worse) if "regression" in line]
    assert told.startswith("::error file=scripts/softmax.cu,line=1,")


def test_a_finding_without_a_line_has_one() -> None:
    found = structs.replace(KERNEL.entries[0].violations[0], line=0)
    kernel = replace(KERNEL, entries=(structs.replace(KERNEL.entries[0], violations=(found,)),))
    (result,) = check_sarif(json.dumps(lint_to_sarif(replace(sample().run, kernels=(kernel,)))))
    assert place(result)[1] == 1


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
    moved = replace(after, places={"softmax": FileLine("scripts/softmax.py", 99)})
    assert prints(before) == prints(moved)
    assert prints(before) != prints(report_of([failed("softmax", 1), failed("silu", 2)]))


def test_the_schema_is_one_that_refuses() -> None:
    """Each change is of a kind that only the whole schema of the standard knows."""
    good = report_to_sarif(sample())
    assert sarif_validator().is_valid(good)

    def refused(change: Any) -> bool:
        bad = copy.deepcopy(good)
        change(bad["runs"][0])
        return not sarif_validator().is_valid(bad)

    assert refused(lambda run: run["results"][0].update(level="fatal"))
    assert refused(lambda run: run["results"][0].update(occurrenceCount=0))
    assert refused(lambda run: run["results"][0].pop("message"))
    assert refused(lambda run: run["results"][0].update(flavour="x"))
    assert refused(lambda run: run["results"][0].update(baselineState="older"))
    assert refused(lambda run: run["tool"]["driver"]["rules"].append({"name": "without an id"}))
    assert refused(lambda run: run["invocations"][0].pop("executionSuccessful"))
    assert refused(lambda run: run["results"][0]["locations"].append({"id": "x"}))
    assert refused(lambda run: run.pop("tool"))


@pytest.mark.parametrize("make", [sample, hostile, lambda: report_of([])])
def test_lints_alone_are_valid_too(make: Any) -> None:
    found = check_sarif(json.dumps(lint_to_sarif(make().run)))
    assert len(found) == sum(
        len(entry.violations) for kernel in make().run.kernels for entry in kernel.entries
    )


@for_each(
    ("file", "uri"),
    [
        ("a b/c#1%.py", "a%20b/c%231%25.py"),
        ("a:b.py", "a%3Ab.py"),
        ("/tmp/ü.py", "file:///tmp/%C3%BC.py"),
        ("caf\udce9.py", "caf%E9.py"),  # how Python reads a name that is not UTF-8
        ("/caf\udce9.py", "file:///caf%E9.py"),
        ("\ud800.py", "%3F.py"),
        ("/\ud800.py", "file:///%3F.py"),
    ],
)
def test_any_name_of_a_file_is_a_uri(file: str, uri: str) -> None:
    assert physical_location(file, 0)["physicalLocation"]["artifactLocation"]["uri"] == uri


def test_hostile_text_is_valid() -> None:
    text = json.dumps(report_to_sarif(hostile()))
    assert results(hostile())
    assert "\\u0000" not in text
    assert "\\u001b" not in text


@pytest.mark.ci
def test_five_thousand_results_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    report = huge()
    found = results(report)
    assert len(found) == 5000
    assert len({r["partialFingerprints"]["gpuemuFlow/v1"] for r in found}) == 5000
    assert len(json.dumps(found)) < 10_000_000
    assert len(gzip.compress(render(report, "sarif").encode())) < GITHUB_LIMIT
    monkeypatch.setattr(sarif, "MAX_RESULTS", 100)
    whole = report_to_sarif(report)["runs"][0]
    assert len(whole["results"]) == 100
    (notice,) = whole["invocations"][0]["toolExecutionNotifications"]
    assert notice["message"]["text"] == "4900 more results were left out"

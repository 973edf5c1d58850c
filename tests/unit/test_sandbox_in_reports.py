"""The level that ops ran at, in every format."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from report_samples import passed, report_of

from gpuemu_flow.cli.report import FORMATS, render
from gpuemu_flow.report.document import Report

LEVELS = ("landlock 3, seccomp", "off")


def report() -> Report:
    """Two ops, one of them without a fence, and one that has no level as nothing ran here."""
    made = report_of([passed("first", 1), passed("second", 2), passed("third", 3)])
    levels = (*LEVELS, "")
    results = tuple(
        replace(result, sandbox=level)
        for result, level in zip(made.run.results, levels, strict=True)
    )
    return replace(made, run=replace(made.run, results=results))


@pytest.mark.parametrize("name", FORMATS)
def test_each_level_is_said(name: str) -> None:
    text = render(report(), name)
    for level in LEVELS:
        assert level in text
    assert "sandbox" in text.lower()


def test_each_result_says_its_own() -> None:
    (run,) = json.loads(render(report(), "sarif"))["runs"]
    assert [one["sandbox"] for one in run["properties"]["unjudged"]] == [*LEVELS, ""]
    results = json.loads(render(report(), "json"))["results"]
    assert [one["sandbox"] for one in results] == [*LEVELS, ""]
    tree = ElementTree.fromstring(render(report(), "junit"))
    found = [p.get("value") for p in tree.iter("property") if "sandbox" in (p.get("name") or "")]
    assert found == list(LEVELS)

"""Every format has one file, found by its name, by its endings and by the names that others use."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from report_samples import hostile, sample

from gpuemu_flow.cli.report_output import ALIASES, ENDINGS, format_of, render
from gpuemu_flow.reports.formats import FORMATS, ReaderOptions, ReportWriter


@pytest.mark.parametrize("name", FORMATS)
def test_a_writer_is_as_the_protocol_says(name: str) -> None:
    writer = FORMATS[name].writer
    wanted = inspect.signature(ReportWriter.write).parameters
    found = inspect.signature(writer.write).parameters
    assert [p.lstrip("_") for p in found] == [p for p in wanted if p != "self"]
    for report in (sample(), hostile()):
        text = writer.write(report, ReaderOptions())
        assert text.endswith("\n") and text == render(report, name)


def test_names_and_endings_are_of_one_format_each() -> None:
    aliases = [alias for form in FORMATS.values() for alias in (*form.aliases, *form.endings)]
    assert len(aliases) == len(set(aliases)) == len(ALIASES) + len(ENDINGS)
    assert len({form.module for form in FORMATS.values()}) == len(FORMATS)
    assert format_of(Path("r.XML"), "text") == "junit"
    assert format_of(Path("r.other"), "sarif") == "sarif"

"""Every format has one file, found by its name, by its endings and by the names that others use."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_samples import hostile, sample

from gpuemu_flow.cli.report import ALIASES, ENDINGS, format_of, render
from gpuemu_flow.report.formats import FORMATS, ReaderOptions


@pytest.mark.parametrize("name", FORMATS)
def test_a_writer_ends_its_file_with_a_line_break(name: str) -> None:
    for report in (sample(), hostile()):
        text = FORMATS[name].write(report, ReaderOptions())
        assert text.endswith("\n") and text == render(report, name)


def test_names_and_endings_are_of_one_format_each() -> None:
    aliases = [alias for form in FORMATS.values() for alias in (*form.aliases, *form.endings)]
    assert len(aliases) == len(set(aliases)) == len(ALIASES) + len(ENDINGS)
    assert len({form.module for form in FORMATS.values()}) == len(FORMATS)
    assert format_of(Path("r.XML"), "text") == "junit"
    assert format_of(Path("r.other"), "sarif") == "sarif"

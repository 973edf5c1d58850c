"""Each writer's whole output for one report, held against a file that people have read.

After a wanted change: ``GPUEMU_UPDATE_GOLD=1 python -m pytest tests/gold``, and read the diff.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from report_samples import sample

from gpuemu_flow import __version__
from gpuemu_flow.cli.report import render
from gpuemu_flow.report import github, report_text
from gpuemu_flow.report.document import Report
from gpuemu_flow.report.text import Style

FOLDER = Path(__file__).resolve().parent / "reports"


def scrubbed(text: str) -> str:
    """Without what changes with every release, and without our own style and script."""
    text = re.sub(r"<style>.*?</style>", "<style>…</style>", text, flags=re.DOTALL)
    text = re.sub(r"<script>.*?</script>", "<script>…</script>", text, flags=re.DOTALL)
    text = re.sub(r"sha256-[A-Za-z0-9+/=]+", "sha256-…", text)
    # The lint rules have a page and tests of their own.
    text = re.sub(r'"rules": \[.*?\n          \]', '"rules": […]', text, flags=re.DOTALL)
    text = re.sub(r'"ruleIndex": \d+', '"ruleIndex": …', text)
    return text.replace(f'"version": "{__version__}"', '"version": "…"')


WRITERS: dict[str, Callable[[Report], str]] = {
    "report.txt": lambda report: render(report, "text"),
    "test.txt": lambda report: report_text.render_test(report, Style(), warn_threshold=0.2) + "\n",
    "report.json": lambda report: render(report, "json"),
    "report.xml": lambda report: render(report, "junit"),
    "report.sarif": lambda report: render(report, "sarif"),
    "report.md": lambda report: render(report, "markdown"),
    "report.html": lambda report: render(report, "html"),
    "annotations.txt": lambda report: "\n".join(github.workflow_commands(report)) + "\n",
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_writer_says_what_it_said(name: str) -> None:
    text = scrubbed(WRITERS[name](sample()))
    path = FOLDER / name
    if os.environ.get("GPUEMU_UPDATE_GOLD"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_every_gold_file_has_its_writer() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(WRITERS)

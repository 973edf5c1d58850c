"""No text that a program or a pull request chose commands the terminal or log that shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from report_samples import KERNEL, failed, passed, recorded, report_of

import gpuemu_flow
from gpuemu_flow.cli.report import FORMATS, render
from gpuemu_flow.judge.results import KernelResult, Minimal, MinimalInput, OpResult, Regression
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.plain_text import inert, inert_markup, printable
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.report import failure_text, github, lint_text, markdown, report_text
from gpuemu_flow.report.document import FileLine, Report
from gpuemu_flow.report.text import Style

COMMANDS = (
    "::stop-commands::x", "::error::fake", "##[error]x", "##vso[task.complete]", "##[", ":", "::",
    "#", "# #[",
)  # fmt: skip
BLANKS = (" ", "\t", "\xa0", "\u3000", "\u200b", "\x1b[31m", "\x1b[2J", "\x07", "\ufeff")
MARKUP = ("<b>", "</script>", "]]>", "<!--", "`", "|", "&#58;", "{{", "\\", "%0A", "a", "\x00")
ENDS = ("\n", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r\n")
anything = st.lists(st.sampled_from((*ENDS, *COMMANDS, *BLANKS, *MARKUP)), max_size=6).map("".join)
pointed = st.tuples(
    anything,
    st.sampled_from(ENDS),
    st.sampled_from(("", *BLANKS)),
    st.sampled_from(COMMANDS),
    anything,
).map("".join)
hostile = pointed | anything
examples = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # fmt: skip

_LINES = re.compile("|".join(ENDS))
_CONTROLS = re.compile(r"\x1b\[[\d;]*m")


def assert_harmless(text: str, *, colored: bool = False) -> None:
    """As a reader of logs sees it: lines by any end, blanks before a command do not count."""
    for line in _LINES.split(_CONTROLS.sub("", text) if colored else text):
        assert not line.strip().startswith("::"), repr(line)
        assert not re.search(r"##\w*\[", line), repr(line)
    controls = {c for c in text if ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c in "\u2028\u2029"}
    assert controls <= {"\n", "\t"} | ({"\x1b"} if colored else set())


def report_with(text: str) -> Report:
    """A report in which `text` stands wherever something else than the tool has the word."""
    cases = [
        failed(text, 1, text, stderr=text, notes=(text,)),
        failed(f"op{text}", 2, f"a\n{text}", verdict=Verdict.ERROR),
        passed(text, 3),
    ]
    said = replace(cases[0].result, printed=text)
    cases[0] = replace(cases[0], result=said)
    base = report_of(cases, project=text, mode=text, project_version=text)
    (entry,) = KERNEL.entries
    (violation,) = entry.violations
    entry = replace(entry, name=text, violations=(replace(violation, message=text, file=text),))
    run = replace(
        base.run,
        problems=(
            Problem("task-broke", text, text, text, 3),
            Problem("untracked-inputs", text, text, warning=True),
        ),
        kernels=(
            KernelResult(text, "sm_80", Verdict.FAILED, entries=(entry,)),
            KernelResult(text, text, Verdict.ERROR, reason=text),
        ),
        results=(
            *base.run.results,
            OpResult(text, "float16", Verdict.SKIPPED, reason=text),
            OpResult("gone", "int8", Verdict.ERROR, reason=text, sandbox="landlock 7"),
        ),
        drawn_seed=7,
    )
    return replace(
        base,
        run=run,
        places={text: FileLine(text, 3)},
        regressions=(Regression(text, text, what=text, old=text, baseline=text),),
        fail_on_regression=True,
        recorded=(recorded("x", op=text, kind=text, source=text, message=text, cause=text),),
    )


@pytest.mark.parametrize("form", FORMATS)
@given(text=hostile)
@example("\n:")  # the report's own colon follows
@examples
def test_no_format_holds_a_command(form: str, text: str) -> None:
    shown = render(report_with(text), form)
    assert_harmless(shown)
    assert inert(shown) == shown, "the guard of what is printed must leave whole documents alone"
    if form in ("json", "sarif"):
        json.loads(shown)
    if form == "junit":
        ElementTree.fromstring(shown.encode())


OTHERS: dict[str, Callable[[Report], str]] = {
    "test": lambda report: report_text.render_test(report, Style(), warn_threshold=0.8),
    "summary": lambda report: markdown.report_to_markdown(report, github.MAX_SUMMARY_BYTES),
    "lint": lambda report: lint_text.render_lint(report.run, Style()),
    "artifacts": lambda report: lint_text.render_artifacts(report.run, Style()),
    "row": lambda report: failure_text.failure_row(report.recorded[0]),
    "failure": lambda report: failure_text.render_failure(
        report.recorded[0],
        Minimal(
            {"x": MinimalInput("float32", (1,), report.recorded[0].message)},
            says=report.recorded[0].message,
            place=report.recorded[0].message,
        ),
        Style(),
    ),
}


@pytest.mark.parametrize("form", OTHERS)
@given(text=hostile)
@examples
def test_no_other_text_holds_a_command(form: str, text: str) -> None:
    assert_harmless(OTHERS[form](report_with(text)))


@given(text=hostile)
@examples
def test_annotations_are_our_own_and_no_others(text: str) -> None:
    for line in github.workflow_commands(report_with(text)):
        assert re.match(r"::(error|warning|notice) [^:]*::", line)
        assert not _LINES.search(line)


@given(text=hostile)
@example(":\x1b[31m:\n::stop-commands::x")  # colours between the halves
@examples
def test_the_guard_leaves_nothing_and_changes_nothing_twice(text: str) -> None:
    assert_harmless(printable(text))
    assert printable(printable(text)) == printable(text)
    for after in (": x", "[x]"):
        assert_harmless(printable(text) + after)
    once = inert(text)
    assert inert(once) == once
    for line in _LINES.split(re.sub(r"\x1b\[[\d;]*m", "", once)):
        assert not line.strip().startswith("::")
    page = f"<p>{text.replace('<', '&lt;')}</p>"
    assert not any(line.strip().startswith("::") for line in _LINES.split(inert_markup(page)))


def test_blanks_and_empty_lines_cost_linear_time() -> None:
    for piece in ("\n", " ", "\x1b[31m", "\n ", "#", ":"):
        inert(piece * 400_000)


def test_commands_print_by_the_guard_only() -> None:
    """`click.echo` past the guard is for commands to GitHub that we make ourselves."""
    folder = Path(gpuemu_flow.__file__).parent / "cli"
    found = {
        path.name: text.count("click.echo(")
        for path in folder.glob("*.py")
        if "click.echo" in (text := path.read_text())
    }
    assert found == {"options.py": 1, "report.py": 1}

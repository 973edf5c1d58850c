"""Markdown for comments and summaries: within the limits, worst first, and nobody else's markup."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from for_each import for_each
from msgspec.structs import replace
from report_samples import HOSTILE, failed, hostile, huge, passed, report_of, sample

from gpuemu_flow.cli.report import FORMATS, render
from gpuemu_flow.report.github import MAX_ANNOTATIONS, MAX_SUMMARY_BYTES, workflow_commands
from gpuemu_flow.report.markdown import MARKER, code, report_to_markdown
from gpuemu_flow.report.text import printable

GITHUB_LIMIT = 65_536


def rendered(text: str) -> str:
    markdown = pytest.importorskip("markdown_it")  # comes with rich
    return str(markdown.MarkdownIt("commonmark", {"html": True}).enable("table").render(text))


def test_the_first_line_is_the_marker_and_failures_come_first() -> None:
    text = report_to_markdown(sample())
    assert text.splitlines()[0] == MARKER
    headings = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert headings == [
        "Failing cases", "Regressions", "Kernels", "Details", "Skipped", "Warnings", "All ops",
    ]  # fmt: skip
    rows = [line for line in text.splitlines() if line.startswith("| `softmax` | float32 | Tol")]
    assert rows == [
        "| `softmax` | float32 | ToleranceExceeded | `wrong in the last column` | 1,234 x | `12` |"
    ]
    assert "**3** failed" in text
    assert "no program for this machine" in text, "a skip is not silent"


def test_worst_first() -> None:
    report = report_of(
        [
            failed("mild", 1, used=1.5),
            failed("nan", 2, used=float("nan")),
            failed("bad", 3, used=9.0),
        ]
    )
    text = report_to_markdown(report)
    assert text.index("| `nan`") < text.index("| `bad`") < text.index("| `mild`")


@pytest.mark.parametrize("limit", [2_000, MAX_SUMMARY_BYTES])
def test_never_longer_than_the_limit_and_says_what_is_left_out(limit: int) -> None:
    text = report_to_markdown(huge(1500, 10), limit)
    assert len(text.encode()) <= limit
    assert re.search(r"… \d+ more in “", text)
    lines = text.splitlines()
    begun = sum(line.startswith("<details><summary>") for line in lines)
    assert begun == lines.count("</details>")
    assert begun > 0 or limit < 20_000


def test_the_default_fits_a_comment() -> None:
    text = report_to_markdown(huge(1500, 1000))
    assert 20_000 < len(text.encode()) < GITHUB_LIMIT


def test_hostile_text_makes_no_markup() -> None:
    html = rendered(report_to_markdown(hostile()))
    tags = set(re.findall(r"<(/?[a-z0-9]+)", html))
    assert {t.lstrip("/") for t in tags} <= {
        "h2", "h3", "p", "strong", "code", "table", "thead", "tbody", "tr", "th", "td", "details",
        "summary", "pre", "ul", "li", "sub",
    }, html  # fmt: skip
    assert "<a" not in html
    assert "&lt;script&gt;" in html
    assert html.count("<!--") == 1, "only the marker"
    outside = re.sub(r"<code[^>]*>.*?</code>", "", html, flags=re.DOTALL)
    assert "@everyone" not in re.sub(r"<summary>.*?</summary>", "", outside)
    cells = [
        len(re.findall(r"<t[dh]", row)) for row in re.findall(r"<tr>.*?</tr>", html, re.DOTALL)
    ]
    assert set(cells) <= {5, 6, 7}, "a pipe in a name makes no new column"


@for_each("text", ["a`b", "`", "``", "a|b", "a\nb", "", "  ", "`a``", "\\|", "a\\"])
def test_code_spans_show_what_they_hold(text: str) -> None:
    row = rendered(f"|a|\n|-|\n|{code(text)}|\n")
    shown = re.search(r"<td><code>(.*?)</code></td>", row, re.DOTALL)
    assert shown is not None, row
    assert shown[1].replace("&quot;", '"').strip() == " ".join(text.split())


def parse_command(line: str) -> tuple[dict[str, str], str]:
    found = re.fullmatch(r"::error ([^\n\r]*?)::([^\n\r]*)", line)
    assert found is not None, line

    def plain(text: str) -> str:
        for sign, name in ((":", "%3A"), (",", "%2C"), ("\r", "%0D"), ("\n", "%0A"), ("%", "%25")):
            text = text.replace(name, sign)
        return text

    words = dict(part.split("=", 1) for part in found[1].split(","))
    return {name: plain(value) for name, value in words.items()}, plain(found[2])


def test_annotations_stand_at_the_line_of_the_op() -> None:
    found = [parse_command(line) for line in workflow_commands(sample())]
    properties, message = found[0]
    assert (properties["file"], properties["line"]) == ("scripts/softmax.py", "7")
    assert message.startswith("x = [[1. 2.]]  expected 1  got 2\n"), "inputs and values first"
    assert "softmax: ToleranceExceeded in 2 cases" in message
    assert message.endswith("\nwrong in the last column")
    assert message.splitlines()[1] == "  at output[0, 1], scripts/softmax.py:7"
    assert message.splitlines()[2] == "  reproduce: gpuemu-flow reproduce min1"
    assert message.splitlines()[3].startswith("  unshrunk: gpuemu-flow reproduce 12 --op softmax")
    assert [p["title"] for p, _ in found] == [
        "gpuemu-flow: softmax: ToleranceExceeded", "gpuemu-flow: silu: ExecutionError",
        "gpuemu-flow: register-limit", "gpuemu-flow: regression",
    ]  # fmt: skip
    assert workflow_commands(report_of([passed("a", 1)])) == []


def test_annotations_are_few_and_cannot_be_forged() -> None:
    lines = workflow_commands(hostile())
    assert all(line.startswith("::error ") and line.count("\n") == 0 for line in lines)
    assert any(HOSTILE.split("\x1b")[0] in parse_command(line)[1] for line in lines)
    assert {parse_command(line)[0].get("line") for line in lines} <= {None, "3", "12"}
    many = workflow_commands(huge(50, 1000))
    assert len(many) == MAX_ANNOTATIONS
    assert many[-1] == "::error title=gpuemu-flow::41 more; see the report"
    cut = workflow_commands(replace(huge(50, 1000), timed_out=True))
    assert len(cut) == MAX_ANNOTATIONS
    assert cut[-2] == "::error title=gpuemu-flow::42 more; see the report"
    assert cut[-1].startswith("::error title=gpuemu-flow::FAILED: ")
    assert "the time limit came before the last tasks" in cut[-1]


def commands(text: str) -> list[str]:
    """Lines that GitHub's runner would obey, or Azure's: it looks at standard output too."""
    return [
        line
        for line in text.splitlines()
        if line.lstrip().startswith("::") or re.search(r"##\w*\[", line)
    ]


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "html"])
def test_what_is_printed_commands_nobody(name: str) -> None:
    assert commands(HOSTILE), "the sample is an attack"
    text = render(hostile(), name)
    assert commands(text) == []
    assert text.encode(), "no lone surrogate is in it"
    assert not [c for c in text if c in "\x1b\x9b\x07"]


@for_each(
    ("text", "shown"),
    [
        ("a::b", "a::b"),
        ("::error::x", "\\x3a:error::x"),
        ("a\n \t::x", "a\n \t\\x3a:x"),
        (": x", ": x"),
        ("## [x]", "## [x]"),
        ("a ##[x]", "a \\x23#[x]"),
        ("###vso[x]", "#\\x23#vso[x]"),
        ("a\x0b::x", "a\\x0b::x"),
    ],
)
def test_only_commands_are_made_harmless(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_what_is_made_harmless_is_the_same_to_a_parser() -> None:
    message = "a\n::error::x ##[y]"
    report = report_of([failed("a", 1, message)])
    (case,) = ElementTree.fromstring(render(report, "junit")).iter("testcase")
    assert message in (case[0].text or "")
    assert json.loads(render(report, "json"))["failures"][0]["message"] == message

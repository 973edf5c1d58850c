"""Accepting a violation by a comment in the source, found through the PTX's line information."""

from __future__ import annotations

import pytest
from for_each import for_each
from ptx_text import REPOSITORY, kernel_views

from gpuemu_flow.lint.kernel import KernelPolicy, PtxLocation
from gpuemu_flow.lint.measure import Allowances, Linter, parse_allowances
from gpuemu_flow.lint.rules import RULES_BY_ID


def read_source(path: str) -> bytes | None:
    file = REPOSITORY / path
    return file.read_bytes() if file.is_file() else None


def accepted(source: str, place: PtxLocation, rule: str = "debug-call") -> str:
    allowances = Allowances(lambda path: source.encode() if path == "k.cu" else None, RULES_BY_ID)
    return allowances.reason_for(rule, place)


def test_a_comment_above_the_line_in_a_real_kernel() -> None:
    views = kernel_views("printf_left_in")
    linter = Linter(KernelPolicy(), read_source)
    found = {
        name: [v.allowed for v in linter.lint(views[name]).violations if v.rule == "debug-call"]
        for name in ("printf_allowed_kernel", "printf_left_in_kernel")
    }
    assert found == {
        "printf_allowed_kernel": ["reports overflow once, on purpose"],
        "printf_left_in_kernel": [""],
    }


def test_the_comment_allows_its_rule_only() -> None:
    result = Linter(KernelPolicy(), read_source).lint(
        kernel_views("printf_left_in")["printf_allowed_kernel"]
    )
    assert {v.rule: bool(v.allowed) for v in result.violations} == {
        "debug-call": True,
        "local-memory": False,
    }


@for_each(
    ("source", "line", "reason"),
    [
        ("f(); // gpuemu: allow debug-call on purpose", 1, "on purpose"),
        ("// gpuemu: allow debug-call on purpose\nf();", 2, "on purpose"),
        ("// gpuemu: allow debug-call on purpose\n\n// more\nf();\ng();", 4, "on purpose"),
        ("// gpuemu: allow debug-call on purpose\n\n// more\nf();\ng();", 5, ""),
        ("f();\n// gpuemu: allow debug-call on purpose\n", 1, ""),
        ("# gpuemu: allow debug-call - a Triton kernel\nx", 2, "a Triton kernel"),
        ("//gpuemu:allow debug-call: tight", 1, "tight"),
        ("// gpuemu: allow debug-call windows\r\nf();", 2, "windows"),
        ("// gpuemu: allow local-memory other rule\nf();", 2, ""),
        ("gpuemu: allow debug-call no comment\nf();", 2, ""),
    ],
)
def test_which_lines_a_comment_speaks_for(source: str, line: int, reason: str) -> None:
    assert accepted(source, PtxLocation(9, "k.cu", line)) == reason


def test_inlined_code_is_spoken_for_where_it_is_called() -> None:
    source = "a();\n// gpuemu: allow debug-call called on purpose\nb();"
    assert accepted(source, PtxLocation(9, "header.h", 7, "k.cu", 3)) == "called on purpose"
    assert accepted(source, PtxLocation(9, "header.h", 7, "k.cu", 1)) == ""


def test_without_line_information_nothing_is_accepted() -> None:
    assert accepted("// gpuemu: allow debug-call x\nf();", PtxLocation(2)) == ""


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("// gpuemu: allow debug-call", "no reason"),
        ("// gpuemu: allow debug-call   */", "no reason"),
        ("// gpuemu: allow debug-cal because", "debug-cal"),
        ("// gpuemu: allow", "unknown rule"),
    ],
)
def test_a_comment_that_allows_nothing_is_a_warning(text: str, part: str) -> None:
    allowances, problems = parse_allowances(f"x\n{text}\nf();".encode(), "k.cu", RULES_BY_ID)
    assert allowances == []
    assert [(p.slug, p.line, p.warning) for p in problems] == [("lint-bad-allow", 2, True)]
    assert part in problems[0].message


def test_bytes_that_are_no_text_are_searched_all_the_same() -> None:
    data = b"\xff\xfe\x00\n// gpuemu: allow debug-call gr\xf6\xdfe\nf();\n"
    allowances, problems = parse_allowances(data, "k.cu", RULES_BY_ID)
    assert problems == []
    assert [(a.line, a.covers) for a in allowances] == [(2, 3)]


def test_sources_are_read_once() -> None:
    reads: list[str] = []

    def reader(path: str) -> bytes | None:
        reads.append(path)
        return None

    linter = Linter(KernelPolicy(), reader)
    for view in kernel_views("printf_left_in").values():
        linter.lint(view)
    assert reads == ["scripts/kernels/printf_left_in.cu"]

"""Input that is no PTX, or broken PTX: a diagnosis with a line, and the intact rest is read."""

from __future__ import annotations

import pytest
from for_each import for_each
from ptx_text import HEADER, module

from gpuemu_flow.lint.ptx.parser import MAX_PROBLEMS, read_body, read_ptx


@for_each(
    ("data", "slug", "line"),
    [
        (b"", "ptx-empty", 1),
        (b" \n\t\n", "ptx-empty", 1),
        (b"\0\0\0\0", "ptx-empty", 1),
        (b"\x7fELF\x02\x01\x01", "ptx-is-binary", 1),
        (b"hello world", "ptx-not-ptx", 1),
        (b'\n\n{"a": 1}', "ptx-not-ptx", 3),
        (b"__global__ void f(){}", "ptx-not-ptx", 1),
        (b"\n// only a comment\n", "ptx-empty", 1),
        (b"\n.target sm_80\n.version 8.0\n", "ptx-not-ptx", 2),
        (b"\t.target sm_80\n  /*0000*/ MOV R1, c[0x0][0x28] ;", "ptx-not-ptx", 1),
        (b".version nonsense\n", "ptx-not-ptx", 1),
    ],
)
def test_what_is_no_ptx_is_refused_with_a_line(data: bytes, slug: str, line: int) -> None:
    ptx = read_ptx(data, "in.ptx")
    assert [(p.slug, p.file, p.line) for p in ptx.problems] == [(slug, "in.ptx", line)]
    assert list(ptx.functions()) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (".visible .entry f(){\n.reg .b32 %r<4>;\nadd.s32 %r1, %r2, 1;\n", 4),
        (".entry f(){ ret; }\n.entry g(){\nret;\n", 5),
        (".global .b8 x[4] = {1,2,", 4),
        (".entry f(){ ret; }\n.section .debug_info\n{\n.b8 1\n", 5),
        (".entry f(.param .u64 p", 4),
        ('.entry f()\n.pragma "x";\n', 4),
    ],
)
def test_truncation_is_named_with_the_line_where_the_torn_part_starts(text: str, line: int) -> None:
    ptx = read_ptx(module(text), "t.ptx")
    assert [(p.slug, p.line) for p in ptx.problems] == [("ptx-truncated", line)]


def test_a_statement_that_is_cut_off_is_found_in_the_body() -> None:
    ptx = read_ptx(module(".entry f(){\nmov.b32 a, b;\nadd.s32 %r1, %r2"))
    (function,) = ptx.functions()
    body = read_body(function)
    assert [i.opcode.text for i in body.instructions] == ["mov.b32"]
    assert [(p.slug, p.line) for p in body.problems] == [("ptx-truncated", 6)]


def test_an_unclosed_body_does_not_swallow_the_next_kernel() -> None:
    ptx = read_ptx(module(".entry f(){ ret;\n.visible .entry g(){ mov.b32 a, 1; ret; }"))
    assert [(p.slug, p.line) for p in ptx.problems] == [("ptx-truncated", 4)]
    found = [(f.name, f.header, read_body(f)) for f in ptx.functions()]
    assert [(name, header, len(body.instructions)) for name, header, body in found] == [
        ("f", ".entry f()", 1),
        ("g", ".visible .entry g()", 2),
    ]
    assert [body.problems for _, _, body in found] == [[], []]


def test_an_unclosed_body_does_not_swallow_the_next_module() -> None:
    ptx = read_ptx(module(".entry f(){ ret;\n") + module(".entry g(){ ret; }"))
    assert [[f.name for f in m.functions] for m in ptx.modules] == [["f"], ["g"]]


def test_a_broken_statement_is_skipped_and_the_rest_is_read() -> None:
    ptx = read_ptx(module(".entry f(){\nmov.b32 a, 1;\n???garbage;\nADD a, b;\nret;\n}"), "t.ptx")
    (function,) = ptx.functions()
    body = read_body(function)
    assert [i.opcode.text for i in body.instructions] == ["mov.b32", "ret"]
    assert [(p.slug, p.file, p.line) for p in body.problems] == [
        ("ptx-syntax", "t.ptx", 6),
        ("ptx-syntax", "t.ptx", 7),
    ]
    assert "???garbage" in body.problems[0].message


def test_a_broken_top_level_statement_is_skipped() -> None:
    ptx = read_ptx(module('}\n"unterminated\n;\n.entry f(){ ret; }'))
    assert {p.slug for p in ptx.problems} == {"ptx-syntax"}
    assert [f.name for f in ptx.functions()] == ["f"]


def test_diagnoses_are_bounded() -> None:
    body_errors = module(".entry f(){ " + "?? ;" * 10_000 + "}")
    (function,) = read_ptx(body_errors).functions()
    problems = read_body(function).problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].slug == "ptx-too-many-errors"
    top_errors = read_ptx(module("}" * 10_000)).problems
    assert len(top_errors) == MAX_PROBLEMS + 1
    assert top_errors[-1].slug == "ptx-too-many-errors"


def test_messages_are_plain_ascii_whatever_the_bytes() -> None:
    ptx = read_ptx(HEADER.encode() + b".entry f(){ \xff\xfe\x00\x1b[31m; }")
    (function,) = ptx.functions()
    assert all(
        p.message.isascii() and p.message.isprintable() for p in read_body(function).problems
    )

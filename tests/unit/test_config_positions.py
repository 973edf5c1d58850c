"""Lines of keys: exact on valid TOML in every syntax, and never a failure on anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuemu_flow.config.report import MAX_DEPTH, KeyPath, positions, scan

DOCUMENT = '''\
# a comment = [not, "a key"]
title = "x"
a.b."c d" = 1
"quo\\u0074ed" = { in-line = [1, { deep = 2 }], 'literal key' = 3 }

[table]
list = [
  1,  # one ] " '
  "two, ]",
  [3, 4], { five = 5 },

]
text = """
fake = 1
[fake]
\\""" still text """
raw = \'\'\'
also_fake = 2\'\'\'
when = 1979-05-27 07:32:00
after = true

[[items]]
name = "first"
[items.sub]
key = 1
[[items.nested]]
[[items.nested]]
x = 1
[[items]]
name = "second"
[ "spaced" . 'header' ]
last = 0
'''


def test_lines_of_a_document_with_every_syntax() -> None:
    lines = positions(DOCUMENT)
    assert {path: lines[path] for path in all_paths(tomli.loads(DOCUMENT))} == {
        ("title",): 2,
        ("a",): 3, ("a", "b"): 3, ("a", "b", "c d"): 3,
        ("quoted",): 4, ("quoted", "in-line"): 4, ("quoted", "in-line", 0): 4,
        ("quoted", "in-line", 1): 4, ("quoted", "in-line", 1, "deep"): 4,
        ("quoted", "literal key"): 4,
        ("table",): 6, ("table", "list"): 7,
        ("table", "list", 0): 8, ("table", "list", 1): 9,
        ("table", "list", 2): 10, ("table", "list", 2, 0): 10, ("table", "list", 2, 1): 10,
        ("table", "list", 3): 10, ("table", "list", 3, "five"): 10,
        ("table", "text"): 13, ("table", "raw"): 17, ("table", "when"): 19,
        ("table", "after"): 20,
        ("items",): 22,
        ("items", 0): 22, ("items", 0, "name"): 23, ("items", 0, "sub"): 24,
        ("items", 0, "sub", "key"): 25,
        ("items", 0, "nested"): 26, ("items", 0, "nested", 0): 26, ("items", 0, "nested", 1): 27,
        ("items", 0, "nested", 1, "x"): 28,
        ("items", 1): 29, ("items", 1, "name"): 30,
        ("spaced",): 31, ("spaced", "header"): 31, ("spaced", "header", "last"): 32,
    }  # fmt: skip


def test_windows_line_ends_count_once() -> None:
    windows = DOCUMENT.replace("\n", "\r\n")
    assert positions(windows) == positions(DOCUMENT)


def test_an_unknown_key_has_the_line_of_its_nearest_ancestor() -> None:
    found = scan(DOCUMENT)
    assert found.line(("items", 1, "missing", "deeper")) == 29
    assert found.line(("table", "list", 9)) == 7
    assert found.line(("nowhere",)) == 0


def test_a_dotted_table_within_the_newest_element_of_an_array() -> None:
    text = "[[a]]\n[[a]]\n[a.b.c]\nx = 1\n[a.b.d]\n"
    lines = positions(text)
    assert lines["a", 1, "b", "c", "x"] == 4
    assert lines["a", 1, "b", "d"] == 5
    assert ("a", 0, "b") not in lines


@pytest.mark.parametrize(
    ("text", "line"),
    [("a = 1\nb = [\n1,\n2\n", 2), ("a = 1\n\nb = '''x\ny\n", 3), ("\nb = {\n a = [1,\n", 3)],
)
def test_what_is_left_open_is_named_by_the_line_where_it_opens(text: str, line: int) -> None:
    assert scan(text).unclosed == line


def test_nesting_and_long_numbers_are_found_before_a_parser_meets_them() -> None:
    assert scan("x = 1\ny = " + "[" * 10**6).too_deep == 2
    assert scan("\n\n" + "a." * 10**5 + "a = 1").too_deep == 3
    assert scan("[" + "a." * MAX_DEPTH + "a]\n").too_deep == 1
    assert scan("[" + "a." * (MAX_DEPTH - 1) + "a]\n").too_deep == 0
    assert scan("x = " + "1" * 10**6).too_long == 1
    assert scan("x = '" + "1" * 10**6 + "'").too_long == 0


def all_paths(value: Any, prefix: KeyPath = ()) -> list[KeyPath]:
    """Every key path of a parsed document, array elements included."""
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    found: list[KeyPath] = [(*prefix, key) for key, _ in items]
    for key, inner in items:
        found += all_paths(inner, (*prefix, key))
    return found


BARE = st.text("abz019_-", min_size=1, max_size=4)
PLAIN_TEXT = st.text("a.=[]{}#,' \t", max_size=6)
KEYS = st.one_of(
    BARE,
    PLAIN_TEXT.map(lambda t: json.dumps(t.replace("\t", ""))),
    st.text('ab.=[]{}#," ', max_size=5).map(lambda t: f"'{t}'"),
    st.sampled_from(['"\\u0041\\n"', '"\\\\"', '"\\""']),
)
DOTTED = st.lists(KEYS, min_size=1, max_size=3).map(" . ".join)
SCALARS = st.one_of(
    st.sampled_from(
        ["1", "-0.5e3", "inf", "true", "0x1F", "1_000", "07:32:00", "1979-05-27",
         "1979-05-27 07:32:00Z", '""', "''", '"""a"b""c\n[x]\nk = 1\n"""', "'''it's ''q\n#'''",
         '"\\"#]"', '""""two quotes""\n"""', "'''''a\n'''", '"""\\\n  x"""', '"""x\\\\"""',
         '"""ends with one""""', '"""with two"""""', "'''with two'''''"]
    ),
    PLAIN_TEXT.map(json.dumps),
)  # fmt: skip
GAPS = st.sampled_from(["", " ", "\n", " # ] } \" '''\n", "\r\n\t"])


def arrays(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda items, gap, comma: "[" + gap + f"{gap},{gap}".join(items) + gap
        + (f"{comma}{gap}" if items else "") + "]",
        st.lists(inner, max_size=3), GAPS, st.sampled_from(["", ","]),
    )  # fmt: skip


def inline_tables(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.builds(lambda key, value: f"{key} = {value}", DOTTED, inner)
    return st.lists(pair, max_size=3).map(lambda pairs: "{ " + ", ".join(pairs) + " }")


VALUES = st.recursive(SCALARS, lambda v: st.one_of(arrays(v), inline_tables(v)), max_leaves=6)
STATEMENTS = st.one_of(
    st.builds(lambda key, value: f"{key} = {value}", DOTTED, VALUES),
    DOTTED.map(lambda key: f"[{key}]"),
    DOTTED.map(lambda key: f"[[ {key} ]]"),
    st.just("# a = 1"),
    st.just(""),
)
NEWLINES = st.sampled_from(["\n", "\r\n", ' # \' """ [\n'])
DOCUMENTS = st.lists(st.tuples(STATEMENTS, NEWLINES), max_size=12)


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS)
def test_every_key_that_tomli_finds_has_the_line_on_which_it_stands(
    document: list[tuple[str, str]],
) -> None:
    """Statements that make the document invalid are left out, so that most of it is kept."""
    text = ""
    for statement, newline in document:
        longer = text + statement + newline
        try:
            tomli.loads(longer)
        except tomli.TOMLDecodeError:
            continue
        text = longer
    lines = positions(text)
    written = text.split("\n")
    for path in all_paths(tomli.loads(text)):
        assert path in lines, f"{path} has no line in:\n{text}"
        line = written[lines[path] - 1]
        key = path[-1]
        if isinstance(key, str) and key.isidentifier():
            assert key in line or "\\" in line, f"{path} is not in line {lines[path]} of:\n{text}"


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=200), st.text("[]{}=.,#\"'\\ \n\rab1", max_size=200)))
def test_no_text_makes_the_scan_fail(text: str) -> None:
    found = scan(text)
    last = text.count("\n") + 1
    assert all(1 <= line <= last for line in found.lines.values())

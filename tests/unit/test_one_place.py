"""Rules that stand in one place of the package, found by reading its syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from import_graph import ROOT

WIDE = "float64"


def nodes(*words: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield every node of the syntax trees of files that hold one of the words, with its file."""
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(word in text for word in words) else ():
            yield str(path.relative_to(ROOT)), node


def calls(node: ast.AST, name: str) -> bool:
    """Tell whether a node calls a function or class of a name."""
    return (
        isinstance(node, ast.Call)
        and name == (getattr(node.func, "id", None) or getattr(node.func, "attr", None))
    )  # fmt: skip


def orders_dtypes(node: ast.AST) -> bool:
    """Tell whether a node is a short sequence that begins with float64: an order of trial."""
    if not isinstance(node, (ast.Tuple, ast.List)) or not 2 <= len(node.elts) <= 3:
        return False
    if not isinstance(node.ctx, ast.Load):
        return False
    names = [getattr(part, "id", getattr(part, "value", None)) for part in node.elts]
    return names[0] in (WIDE, "WIDE") and names[1] in (None, "float32", "SINGLE", "OWN", "own")


def test_one_function_makes_subjects() -> None:
    assert [file for file, node in nodes("Subject(") if calls(node, "Subject")] == [
        "fuzz/subjects.py"
    ]
    users = {file for file, node in nodes("make_subject") if calls(node, "make_subject")}
    assert users == {"fuzz/subjects.py", "fuzz/wire_ops.py"}


def test_all_that_judges_an_op_of_a_workspace_looks_for_missing_needs() -> None:
    """By `open_ordered`, or where each verdict is looked at; causes are of failures found so."""
    users = {file for file, node in nodes("open_evaluator") if calls(node, "open_evaluator")}
    expected = {"fuzz/subjects.py", "fuzz/case_queue.py", "fuzz/own_outputs.py", "fuzz/causes.py"}
    assert users == expected


def test_the_order_of_dtypes_that_a_reference_is_given_stands_once() -> None:
    found = {file for file, node in nodes(WIDE, "WIDE") if orders_dtypes(node)}
    assert found == {"numerics/reference_order.py"}
    users = {file for file, node in nodes("dtypes_to_try") if calls(node, "dtypes_to_try")}
    expected = {"judging/judge_service.py", "tasks/run_reference.py", "numerics/evaluations.py"}
    assert users == expected


def test_an_order_of_dtypes_is_seen() -> None:
    for text in ('("float64", "float32", "own")', "[WIDE, None]", "(WIDE, SINGLE)"):
        assert orders_dtypes(ast.parse(text, mode="eval").body)
    for text in ('("float64",)', '["int8", "float64"]'):
        assert not orders_dtypes(ast.parse(text, mode="eval").body)

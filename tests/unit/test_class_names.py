"""A public class name stands for one class, so that an import and a traceback say which."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from import_graph import ROOT

SHARED = {
    # Users import both: a case of `SeededFuzzer`, and a case of the daemon, with its inputs.
    "TestCase": ["client/results.py", "fuzzing.py"],
}
"""Names that several classes have, and their files."""


def public_classes(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the public classes of a module or class; those inside functions cannot be imported."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
            yield from public_classes(node.body)
        elif isinstance(node, (ast.If, ast.Try)):
            yield from public_classes([*node.body, *node.orelse])


def files_by_name() -> dict[str, list[str]]:
    """Return the files that define a public class, by the name of the class."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for name in public_classes(ast.parse(path.read_text(encoding="utf-8")).body):
            found[name].append(path.relative_to(ROOT).as_posix())
    return found


def test_no_two_classes_share_a_name() -> None:
    found = files_by_name()
    assert len(found) > 700
    assert {name: files for name, files in found.items() if len(files) > 1} == SHARED


def test_classes_of_modules_and_of_classes_are_seen() -> None:
    text = "class A:\n    class B: ...\nif True:\n    class C: ...\nclass _D: ...\n"
    inside = "def f():\n    class E: ...\n"
    assert list(public_classes(ast.parse(text + inside).body)) == ["A", "B", "C"]

"""Docstrings say in their first line what something does or is, and are read once."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from import_graph import ROOT, every_statement

FREE_RELATIVE = re.compile(r"(What|Whether|Which|How|Why|Where|Who|When|Return what|Tell what)\b")
HANGING = re.compile(r"; (its|their) (\w+|\w+ and [\w ]+)\.$|; how many\.$")
"""A value that is named behind a semicolon, in place of a verb that returns it."""

SECTION = re.compile(
    r"^(Parameters|Attributes)\n-+\n((?:.*\n?)+?)(?=\n\w[\w ]*\n-+\n|\Z)", re.MULTILINE
)

DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

REPOSITORY = ROOT.parent
BESIDE = ("tests", "scripts", "benchmarks")
"""Folders of programs beside the package; generated and foreign code is left out of them."""


def constant_summaries(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Yield the line and the first line of every string that stands behind an assignment."""
    for before, node in itertools.pairwise(body):
        if isinstance(before, (ast.Assign, ast.AnnAssign)) and isinstance(node, ast.Expr):
            value = node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield node.lineno, value.value.partition("\n")[0]


def summaries(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the first line of every docstring, those of constants included."""
    for node in every_statement(tree):
        if isinstance(node, DEFINITIONS):
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            if first:
                yield getattr(node, "lineno", 1), first
            yield from constant_summaries(node.body)


@cache
def package() -> dict[str, tuple[bool, list[tuple[int, str]]]]:
    """Tell of each module of the package whether it has a docstring, and list its first lines."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[str(path.relative_to(ROOT))] = (bool(ast.get_docstring(tree)), [*summaries(tree)])
    return found


def documented(text: str, section: str) -> Iterator[str]:
    """Yield the names that a section of a docstring describes."""
    for title, body in SECTION.findall(text):
        for line in body.splitlines() if title == section else ():
            if line and not line.startswith(" "):
                yield from (name.strip(" *") for name in line.partition(" : ")[0].split(","))


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names of a function's arguments."""
    own = node.args
    every = [*own.posonlyargs, *own.args, *own.kwonlyargs, own.vararg, own.kwarg]
    return {each.arg for each in every if each is not None}


def members(node: ast.ClassDef) -> set[str]:
    """Return the names of fields, methods and of attributes that a class sets on itself."""
    found = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)
             and isinstance(each.ctx, ast.Store)}  # fmt: skip
    for each in node.body:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(each.name)
        elif isinstance(each, (ast.Assign, ast.AnnAssign)):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def misnamed(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every described parameter or attribute that is not there.

    Functions that take any arguments are left out, as are attributes of a base class.
    """
    for node in every_statement(tree):
        if not isinstance(node, DEFINITIONS) or isinstance(node, ast.Module):
            continue
        text = ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef):
            own = members(node)
            made = [each for each in node.body if getattr(each, "name", "") == "__init__"]
            accepted = arguments(made[0]) if made and hasattr(made[0], "args") else own
            wanted = [("Attributes", own), ("Parameters", accepted)]
        else:
            wanted = [("Parameters", arguments(node))] if node.args.kwarg is None else []
        for section, known in wanted:
            yield from ((node.lineno, name) for name in documented(text, section)
                        if name not in known)  # fmt: skip


def sources_beside() -> list[Path]:
    """List the Python files of tests, scripts and benchmarks that git would not ignore."""
    found = [path for folder in BESIDE for path in (REPOSITORY / folder).rglob("*.py")]
    return sorted(path for path in found if not any(p.startswith(".") for p in path.parts))


def offending(first: str) -> bool:
    """Tell whether a first line has to be read twice."""
    return bool(FREE_RELATIVE.match(first) or HANGING.search(first))


def test_no_first_line_is_a_riddle() -> None:
    found = [
        f"{module}:{line}: {first}"
        for module, (_, firsts) in package().items()
        for line, first in firsts
        if offending(first)
    ]
    assert found == []


def test_no_first_line_beside_the_package_begins_with_a_free_relative() -> None:
    files = sources_beside()
    assert files
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {first}"
        for path in files
        for line, first in summaries(ast.parse(path.read_text(encoding="utf-8")))
        if FREE_RELATIVE.match(first)
    ]
    assert found == []


def test_described_parameters_and_attributes_exist() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(ROOT.rglob("*.py"))
        for line, name in misnamed(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_a_description_of_nothing_is_seen() -> None:
    text = (
        "class A:\n"
        "    '''A.\n\n    Attributes\n    ----------\n    x, gone : int\n        Of it.\n    '''\n"
        "    x: int = 0\n"
        "    def f(self, y):\n"
        "        '''F.\n\n        Parameters\n        ----------\n        y : int\n        z\n\n"
        "        Raises\n        ------\n        KeyError\n        '''\n"
    )
    assert list(misnamed(ast.parse(text))) == [(1, "gone"), (10, "z")]


def test_every_module_says_what_it_is_for() -> None:
    bare = [module for module, (documented, _) in package().items() if not documented]
    assert bare == []


@pytest.mark.parametrize(
    "first",
    [
        "What a minimisation came to.", "Whether a task is current.", "Which cases are made.",
        "Record one failing case; its id.", "Delete results; how many.", "Return what it gave.",
    ],
)  # fmt: skip
def test_riddles_are_seen(first: str) -> None:
    assert offending(first)


def test_docstrings_of_constants_are_read() -> None:
    text = '"""A module."""\nLIMIT = 3\n"""How many there are."""\n'
    assert list(summaries(ast.parse(text))) == [(1, "A module."), (3, "How many there are.")]

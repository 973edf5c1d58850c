"""docs/errors.md lists every slug that the code holds, and no other."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterable, Iterator

import pytest
from import_graph import ROOT, every_node, source_files

DOCUMENT = ROOT.parent / "docs" / "errors.md"
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
_ROW = re.compile(r"^\| `([^`]*)` \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)

pytestmark = pytest.mark.ci
Tree = dict[str, ast.Module]


@pytest.fixture(scope="module")
def trees() -> Tree:
    """Module name to syntax tree."""
    gc.disable()  # half a million nodes are made, and none of them is garbage
    try:
        return {
            module: ast.parse(path.read_text(encoding="utf-8"))
            for module, path in source_files().items()
        }
    finally:
        gc.enable()


def reporters(trees: Tree) -> dict[str, set[int]]:
    """Functions and classes that take a slug, and its place among the arguments of a call."""
    found: dict[str, set[int]] = {}
    for tree in trees.values():
        for node in every_node(tree):
            if isinstance(node, ast.FunctionDef):
                arguments = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
                names = arguments[1:] if arguments[:1] in (["self"], ["cls"]) else arguments
                names += [a.arg for a in node.args.kwonlyargs]
            elif isinstance(node, ast.ClassDef):
                fields = [f for f in node.body if isinstance(f, ast.AnnAssign)]
                names = [f.target.id for f in fields if isinstance(f.target, ast.Name)]
            else:
                continue
            if "slug" in names:
                found.setdefault(node.name, set()).add(names.index("slug"))
    return found


def words(node: ast.AST | None) -> Iterator[tuple[str, int]]:
    """Kebab-case literals below a node."""
    for part in ast.walk(node) if node is not None else ():
        if (
            isinstance(part, ast.Constant)
            and isinstance(part.value, str)
            and SLUG.fullmatch(part.value)
        ):
            yield part.value, part.lineno


def slug_arguments(call: ast.Call, known: dict[str, set[int]]) -> list[ast.AST]:
    """The arguments of a call that stand where a slug is taken."""
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
    places = known.get(name, set())
    if name == "add" and not re.search(r"\bout(_of\(.*\))?\.add$", ast.unparse(call.func)):
        places = set()  # a set's own method
    named = [keyword.value for keyword in call.keywords if keyword.arg == "slug"]
    return [*(call.args[place] for place in places if place < len(call.args)), *named]


def _mentions_slug(targets: Iterable[ast.AST]) -> bool:
    names = (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
    return any("slug" in name.lower() for name in names)


def slugs_in(tree: ast.Module, known: dict[str, set[int]]) -> Iterator[tuple[str, int]]:
    """Literals that are handed to a reporter, or kept under a name that says ``slug``."""
    for node in every_node(tree):
        if isinstance(node, ast.Call):
            for argument in slug_arguments(node, known):
                yield from words(argument)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and _mentions_slug(
            node.targets if isinstance(node, ast.Assign) else [node.target]
        ):
            yield from words(node.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "slug":
                    yield from words(value)


@pytest.fixture(scope="module")
def in_code(trees: Tree) -> dict[str, str]:
    """Slug to a place where it stands."""
    known = reporters(trees)
    assert {"Problem", "RunError", "report", "add", "problem_at"} <= set(known)
    found: dict[str, str] = {}
    for module, tree in trees.items():
        for text, line in slugs_in(tree, known):
            found.setdefault(text, f"{module}:{line}")
    return found


@pytest.fixture(scope="module")
def documented() -> list[tuple[str, str, str]]:
    return _ROW.findall(DOCUMENT.read_text(encoding="utf-8"))


def test_every_slug_of_the_code_is_documented(
    in_code: dict[str, str], documented: list[tuple[str, str, str]]
) -> None:
    assert len(in_code) > 80, "the scan does not see the code"
    names = {slug for slug, _, _ in documented}
    missing = {slug: place for slug, place in in_code.items() if slug not in names}
    assert not missing, f"add to docs/errors.md: {missing}"


def test_every_documented_slug_is_in_the_code(
    in_code: dict[str, str], documented: list[tuple[str, str, str]]
) -> None:
    assert {slug for slug, _, _ in documented} - set(in_code) == set()


def test_each_is_documented_once_with_cause_and_mend(
    documented: list[tuple[str, str, str]],
) -> None:
    names = [slug for slug, _, _ in documented]
    assert sorted(names) == sorted(set(names))
    assert all(cause.strip() and mend.strip() for _, cause, mend in documented)
    table_lines = [
        line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    assert len(table_lines) == len(names), "a row has another form than | `slug` | cause | mend |"


def test_slugs_are_literals(trees: Tree) -> None:
    """A slug put together at run time could not be found, here or by a user."""
    known = reporters(trees)
    built = [
        f"{module}:{node.lineno}"
        for module, tree in trees.items()
        for node in every_node(tree)
        if isinstance(node, ast.Call)
        and any(isinstance(argument, ast.JoinedStr) for argument in slug_arguments(node, known))
    ]
    assert built == []


def test_slugs_have_one_form(trees: Tree) -> None:
    for module, tree in trees.items():
        for node in every_node(tree):
            named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if named and node.func.id in ("Problem", "RunError") and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    assert SLUG.fullmatch(str(first.value)), f"{module}:{node.lineno}"


def test_a_new_slug_would_be_seen() -> None:
    source = """
class Problem:
    slug: str
    message: str

class Reporter:
    def add(self, path, slug): ...

def fail(slug): ...

BAD_SLUGS = {"kept-in-a-name"}
ID = "a-rule"
raise FlowError(Problem("given-to-a-class", "not-this-one"))
self.out.add(where, "given-to-a-method" if x else "or-this-one")
fail(slug="given-by-name")
"""
    tree = ast.parse(source)
    assert {text for text, _ in slugs_in(tree, reporters({"m": tree}))} == {
        "kept-in-a-name", "given-to-a-class", "given-to-a-method", "or-this-one", "given-by-name",
    }  # fmt: skip

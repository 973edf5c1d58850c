"""Find tests that compare two values, and the tests' parameters; no code is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from gpuemu_flow.problems.asserted_values import Expander, NotUnderstoodError, last_name
from gpuemu_flow.quick_dataclass import dataclass

_CLOSE = re.compile(r"(?:assert_)?(?:\w*_)?(?:all_?close|assert_close|assert_array_equal|equal)\w*")
_EXPECTED = re.compile(
    r"(?:^|_)(?:refs?|reference|expected?|desired|gold|golden|naive|eager|torch|pt|truth|native"
    r"|base|baseline|numpy|np|hf|manual|slow|ans|answer)(?:_|\d*$)"
)
_ACTUAL = re.compile(
    r"(?:^|_)(?:tri|triton|actual|fused|cuda|ours|test|got|fast|custom|kernel|liger|flash|opt)"
    r"(?:_|\d*$)"
)
_ATOL, _RTOL = "atol", "rtol"
_ORDER = {"assert_close": (_ATOL, _RTOL)}  # Triton's; PyTorch's takes them by name only


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that one ``parametrize`` sets together.

    Attributes
    ----------
    names : tuple of str
    rows : tuple of tuple of ast.expr
        For each set of values, one value per name.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[ast.expr, ...], ...]


@dataclass(frozen=True)
class Comparison:
    """One comparison in a test.

    Attributes
    ----------
    line : int
    actual, expected : ast.expr
        The first and the second of the compared values. The names are a guess: the second may be
        the value under test.
    tolerances : mapping of str to ast.expr
        ``atol`` and ``rtol`` where they are given.
    function : str
        Name of the function that compares.
    """

    line: int
    actual: ast.expr
    expected: ast.expr
    tolerances: Mapping[str, ast.expr] = field(default_factory=dict)
    function: str = ""


@dataclass(frozen=True)
class Test:
    """A test of a file.

    Attributes
    ----------
    name : str
        The test's name; ``CLASS.NAME`` for a test in a class.
    node : ast.FunctionDef
    groups : tuple of ParameterGroup
    comparisons : tuple of Comparison
    left : tuple of (int, str)
        Lines that were not understood, each with the reason.
    """

    name: str
    node: ast.FunctionDef
    groups: tuple[ParameterGroup, ...]
    comparisons: tuple[Comparison, ...]
    left: tuple[tuple[int, str], ...] = ()


def find_tests(tree: ast.Module) -> Iterator[Test]:
    """Yield the tests of a file, including those in test classes."""
    expander = Expander(tree)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield _test(node.name, node, node.decorator_list, expander)
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            for one in node.body:
                if isinstance(one, ast.FunctionDef) and one.name.startswith("test"):
                    decorators = [*one.decorator_list, *node.decorator_list]
                    yield _test(f"{node.name}.{one.name}", one, decorators, expander)


def _test(
    name: str, node: ast.FunctionDef, decorators: Sequence[ast.expr], expander: Expander
) -> Test:
    groups, left = [], []
    for one in decorators:
        if not isinstance(one, ast.Call) or last_name(one.func) != "parametrize":
            continue
        try:
            groups.append(_group(one, expander))
        except NotUnderstoodError as error:
            left.append((one.lineno, str(error)))
    found = []
    for statement in _statements(node.body):
        comparison = _comparison(statement)
        if comparison is not None:
            found.append(comparison)
    return Test(name, node, tuple(groups), tuple(found), tuple(left))


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, including those inside ``with`` and ``if``."""
    for one in body:
        yield one
        if isinstance(one, (ast.With, ast.If)):
            yield from _statements(one.body)
            yield from _statements(one.orelse if isinstance(one, ast.If) else [])


def _group(call: ast.Call, expander: Expander) -> ParameterGroup:
    keywords = {one.arg: one.value for one in call.keywords}
    given = dict(zip(("argnames", "argvalues"), call.args, strict=False)) | keywords
    if "argnames" not in given or "argvalues" not in given:
        raise NotUnderstoodError("parametrize without names and values")
    names = _names(given["argnames"])
    rows = []
    for one in expander.elements(given["argvalues"]):
        value = one
        if isinstance(value, ast.Call) and last_name(value.func) == "param":
            row: tuple[ast.expr, ...] = tuple(value.args)
        elif len(names) == 1:
            row = (value,)
        else:
            row = tuple(expander.elements(value))
        if len(row) != len(names):
            raise NotUnderstoodError(f"a row of parametrize has {len(row)} values")
        rows.append(row)
    if not rows:
        raise NotUnderstoodError("parametrize without values")
    return ParameterGroup(names, tuple(rows))


def _names(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return tuple(one.strip() for one in node.value.split(",") if one.strip())
    if isinstance(node, (ast.Tuple, ast.List)):
        texts = [one.value for one in node.elts if isinstance(one, ast.Constant)]
        return tuple(str(one) for one in texts)
    raise NotUnderstoodError("the names of parametrize are no text")


def _comparison(statement: ast.stmt) -> Comparison | None:
    if isinstance(statement, ast.Expr):
        node = statement.value
    elif isinstance(statement, ast.Assert):
        node = statement.test
    else:
        return None
    found = _largest_difference(node)
    if found is not None:
        return found
    for call in ast.walk(node):
        if not isinstance(call, ast.Call) or not _CLOSE.fullmatch(last_name(call.func)):
            continue
        keywords = {one.arg: one.value for one in call.keywords if one.arg}
        sides = [*call.args[:2]]
        for name in ("actual", "input", "a"):
            sides += [keywords[name]] if name in keywords and not sides else []
        for name in ("expected", "desired", "other", "b"):
            sides += [keywords[name]] if name in keywords and len(sides) == 1 else []
        if len(sides) == 2:
            order = _ORDER.get(last_name(call.func), (_RTOL, _ATOL))
            tolerances = dict(zip(order, call.args[2:], strict=False))
            tolerances |= {key: keywords[key] for key in order if key in keywords}
            return Comparison(
                statement.lineno, sides[0], sides[1], tolerances, ast.unparse(call.func)
            )
    return None


def _largest_difference(node: ast.expr) -> Comparison | None:
    """Return the comparison in ``(a - b).abs().max() < …``; None for other expressions."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Lt, ast.LtE)):
        return None
    inner = node.left
    names = []
    while isinstance(inner, ast.Call):
        names.append(last_name(inner.func))
        if isinstance(inner.func, ast.Attribute) and not inner.args:
            inner = inner.func.value
        elif len(inner.args) == 1:
            inner = inner.args[0]
        else:
            return None
    if "abs" not in names or "max" not in names:
        return None
    if not isinstance(inner, ast.BinOp) or not isinstance(inner.op, ast.Sub):
        return None
    limit = node.comparators[0]
    constant = isinstance(limit, ast.Constant)
    tolerances = {_ATOL: limit, _RTOL: ast.Constant(0.0)} if constant else {}
    return Comparison(node.lineno, inner.left, inner.right, tolerances, "abs().max()")


def looks_expected(names: Iterator[str] | Sequence[str]) -> int:
    """Return 1 if names suggest that a value is the expected one, -1 for the actual one, else 0."""
    said = 0
    for name in names:
        if _EXPECTED.search(name.lower()):
            said += 1
        if _ACTUAL.search(name.lower()):
            said -= 1
    return (said > 0) - (said < 0)

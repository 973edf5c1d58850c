"""Classify a test's parameters: sizes, dtypes, scalars, implementations or a choice."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from gpuemu_flow.problems.asserted_found import ParameterGroup, Test
from gpuemu_flow.problems.asserted_values import Expander, NotUnderstoodError, dtype_of
from gpuemu_flow.problems.options import halved
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LARGEST_LOCAL = 128
"""Named integers of a test above this value are taken for sizes that may be scaled."""


@dataclass(frozen=True)
class ParameterOfTest:
    """A parameter of a test.

    Attributes
    ----------
    name : str
    kind : str
        ``size``, ``shape``, ``dtype``, ``scalar``, ``callable``, ``choice``, or ``default`` for an
        argument that no ``parametrize`` sets.
    values : tuple of JSON
        Plain values; empty for ``callable``, ``choice`` and ``default``.
    nodes : tuple of ast.expr
        Source expressions of the values. Empty for a size that a default or an assignment sets.
    """

    name: str
    kind: str
    values: tuple[Json, ...]
    nodes: tuple[ast.expr, ...] = ()

    @property
    def dims(self) -> tuple[str, ...]:
        """Return the names of the dims that the parameter sets.

        A shape ``x`` has one dim per axis: ``x0``, ``x1`` and so on. Any other parameter is itself
        a dim, with the same name.
        """
        if self.kind != "shape":
            return (self.name,)
        return tuple(f"{self.name}{at}" for at in range(len(self.values[0])))

    def sizes(self, dim: str) -> list[int]:
        """Return the sizes that one of the parameter's dims takes."""
        if self.kind != "shape":
            return [int(one) for one in self.values]
        return [int(one[self.dims.index(dim)]) for one in self.values]


@dataclass
class Parameters:
    """The parameters of one test, by name.

    Attributes
    ----------
    test : Test
    all : dict of str to ParameterOfTest
    """

    test: Test
    all: dict[str, ParameterOfTest] = field(default_factory=dict)

    @classmethod
    def of(cls, test: Test, expander: Expander) -> Parameters:
        """Return a test's parameters; large integers that the test assigns count as sizes."""
        found = cls(test)
        for group in test.groups:
            for at, name in enumerate(group.names):
                found.all[name] = _parameter(name, [row[at] for row in group.rows], expander)
        for name, value in _local_sizes(test.node).items():
            found.all.setdefault(name, ParameterOfTest(name, "size", (value,)))
        for name, node in _defaults(test.node.args).items():
            found.all.setdefault(name, _default(name, node))
        return found

    def of_kind(self, kind: str) -> list[ParameterOfTest]:
        """Return the parameters of one kind."""
        return [one for one in self.all.values() if one.kind == kind]

    def relations(self, sizes: Mapping[str, Sequence[int]], scaled: int) -> list[str]:
        """Return relations such as ``a == b`` and ``a % b == 0`` between sizes of the test.

        Each relation holds in all rows of the ``parametrize`` that sets both sizes.

        Parameters
        ----------
        sizes : mapping of str to (sequence of int)
            Maps each dim of interest to its sizes. Relations with other dims are left out.
        scaled : int
            Before the comparison, sizes are halved until they are at most this number; see
            `halved`.
        """
        found = []
        for group in self.test.groups:
            dims = [
                (dim, self.all[name].sizes(dim))
                for name in group.names
                if self.all[name].kind in ("size", "shape")
                for dim in self.all[name].dims
                if dim in sizes
            ]
            for (a, left), (b, right) in itertools.permutations(dims, 2):
                pairs = [
                    (halved(x, scaled), halved(y, scaled)) for x, y in zip(left, right, strict=True)
                ]
                if len(set(pairs)) < 2 and len(pairs) < 2:
                    continue
                if all(x == y for x, y in pairs):
                    found += [f"{a} == {b}"] if a < b else []
                elif all(y and x % y == 0 for x, y in pairs):
                    found.append(f"{a} % {b} == 0")
        return found


def _parameter(name: str, nodes: list[ast.expr], expander: Expander) -> ParameterOfTest:
    given = tuple(nodes)
    dtypes = [dtype_of(one) for one in nodes]
    if all(dtypes):
        return ParameterOfTest(name, "dtype", tuple(dict.fromkeys(dtypes)), given)
    try:
        values = [expander.plain(one) for one in nodes]
    except NotUnderstoodError:
        values = []
    if not values:
        names = [isinstance(one, (ast.Name, ast.Attribute)) for one in nodes]
        return ParameterOfTest(name, "callable" if all(names) else "choice", (), given)
    kinds = {type(one) for one in values}
    if kinds == {int} and min(values) >= 0:
        return ParameterOfTest(name, "size", tuple(values), given)
    if kinds == {tuple}:
        ranks = {len(one) for one in values}
        whole = all(type(each) is int and each >= 0 for one in values for each in one)
        if whole and len(ranks) == 1 and ranks != {0}:
            return ParameterOfTest(name, "shape", tuple(values), given)
    if kinds <= {int, float, bool} or (kinds == {str} and all(map(_WORD.fullmatch, values))):
        return ParameterOfTest(name, "scalar", tuple(dict.fromkeys(values)), given)
    return ParameterOfTest(name, "choice", (), given)


def _local_sizes(node: ast.FunctionDef) -> dict[str, int]:
    """Map names to integers that the test assigns to them and that may be sizes.

    An assignment is used if at least one of its integers is above `LARGEST_LOCAL`, and if the test
    assigns each of its names only once.
    """
    found: dict[str, int] = {}
    stored = [
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    ]
    for one in node.body:
        named = named_integers(one)
        large = any(value > LARGEST_LOCAL for value in named.values())
        if large and all(stored.count(name) == 1 for name in named):
            found |= named
    return found


def named_integers(node: ast.stmt) -> dict[str, int]:
    """Return the integers that a statement assigns, by name; empty for any other statement."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return {}
    target, value = node.targets[0], node.value
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    values = value.elts if isinstance(value, ast.Tuple) else [value]
    found = {
        name.id: one.value
        for name, one in zip(names, values, strict=False)
        if isinstance(name, ast.Name) and isinstance(one, ast.Constant) and type(one.value) is int
    }
    return found if len(found) == len(names) == len(values) else {}


def _defaults(arguments: ast.arguments) -> dict[str, ast.expr]:
    """Return the default values of a test function's arguments, by name."""
    names = [one.arg for one in arguments.args]
    last = zip(reversed(names), reversed(arguments.defaults), strict=False)
    keyword = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {**dict(last), **{one.arg: node for one, node in keyword if node is not None}}


def _default(name: str, node: ast.expr) -> ParameterOfTest:
    value = node.value if isinstance(node, ast.Constant) else None
    if type(value) is int and value > LARGEST_LOCAL:
        return ParameterOfTest(name, "size", (value,))
    return ParameterOfTest(name, "default", (), (node,))


def group_of(groups: Sequence[ParameterGroup], name: str) -> ParameterGroup | None:
    """Return the group that a parameter belongs to; None if there is none."""
    return next((one for one in groups if name in one.names), None)

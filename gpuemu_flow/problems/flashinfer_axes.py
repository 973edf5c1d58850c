"""Turn the axes and constraints of a FlashInfer-Bench definition into dims and rules of inputs."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import field

from gpuemu_flow.expressions import ExpressionError, compute, names_in
from gpuemu_flow.problems.found_flashinfer import Definition, parsed_constraint
from gpuemu_flow.problems.probing import ProbeError
from gpuemu_flow.quick_dataclass import dataclass

CLASSES = (1, 3, 7, 16, 33)
LARGEST_SIZE = 64
_SIGNS = {ast.Eq: "==", ast.LtE: "<=", ast.Lt: "<", ast.GtE: ">=", ast.Gt: ">", ast.NotEq: "!="}
_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29)


@dataclass
class Axes:
    """The axes of a definition, and the constraints on their sizes.

    Attributes
    ----------
    consts : dict of str to int
        Axes of constant size, with their sizes.
    free : tuple of str
        Axes of variable size whose size can be chosen freely.
    derived : dict of str to str
        Axes whose size is computed from other axes, with the expressions that compute it.
    offsets : dict of str to str
        For each input that holds offsets, the axis whose size equals the last offset.
    kept : list of str
        Constraints that cases have to satisfy.
    """

    consts: dict[str, int]
    free: tuple[str, ...]
    derived: dict[str, str] = field(default_factory=dict)
    offsets: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)

    def sizes(self, chosen: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of all axes.

        Parameters
        ----------
        chosen : mapping of str to int
            Sizes of the axes in `free`.

        Raises
        ------
        ProbeError
            The expression of an axis needs an unknown size, such as that of the axis itself.
        """
        found = {**self.consts, **chosen}
        left = dict(self.derived)
        while left:
            ready = [name for name, text in left.items() if names_in(text) <= set(found)]
            if not ready:
                raise ProbeError("its constraints define an axis by itself")
            for name in ready:
                found[name] = compute(left.pop(name), found, {})
        return found

    def spread(self) -> dict[str, int]:
        """Return sizes of all axes, with a different size for each axis in `free`."""
        return self.sizes(dict(zip(self.free, _PRIMES * len(self.free), strict=False)))


def axes_of(definition: Definition) -> Axes:
    """Read the constraints of a definition; they are parsed, never evaluated.

    Raises
    ------
    ProbeError
        A constraint is not understood.
    """
    found = Axes(dict(definition.consts), definition.variables)
    for text in definition.constraints:
        if not _take(text, definition, found):
            raise ProbeError(f"its constraint {text[:80]!r} is in a form that is not read")
    found.free = tuple(name for name in definition.variables if name not in found.derived)
    return found


def rules_of_axes(definition: Definition, axes: Axes) -> dict[str, tuple[str, int, int, int]]:
    """Return the rule for the size of each axis that only outputs have.

    A rule computes the size from that of one axis of an input.

    Returns
    -------
    dict of str to (str, int, int, int)
        By output axis: an input's axis, a factor, an offset and a divisor. The size is
        ``(factor * size_of_input_axis + offset) // divisor``.

    Raises
    ------
    ProbeError
        The size of an axis cannot be computed from one axis of an input.
    """
    known = {axis for one in definition.inputs.values() for axis in one.axes or ()}
    wanted = {axis for one in definition.outputs.values() for axis in one.axes or ()}
    found = {}
    for name in wanted - known - set(axes.consts):
        rules = [(name, axes.derived.get(name, ""), False)]
        rules += [(other, text, True) for other, text in axes.derived.items() if other in known]
        for other, text, inverse in rules:
            names = names_in(text) - set(axes.consts) if text else frozenset()
            source = next(iter(names)) if len(names) == 1 else ""
            if not (source == name if inverse else source in known):
                continue
            zero, one, two = (compute(text, {**axes.consts, source: n}, {}) for n in range(3))
            factor = one - zero
            if factor < 1 or two - one != factor:
                continue
            found[name] = (other, 1, -zero, factor) if inverse else (source, factor, zero, 1)
            break
        else:
            raise ProbeError(f"the size of its axis {name} cannot be told from its inputs")
    return found


def _take(text: str, definition: Definition, axes: Axes) -> bool:
    tree = parsed_constraint(text)
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
        return False
    sign = _SIGNS.get(type(tree.ops[0]))
    sides = [tree.left, tree.comparators[0]]
    if sign == "==":
        for side, other in (sides, sides[::-1]):
            ends = _last_of(other)
            if isinstance(side, ast.Name) and ends in definition.inputs:
                axes.offsets[ends] = side.id
                return side.id in definition.variables
    names = {*definition.variables, *definition.consts}
    try:
        left, right = (ast.unparse(side) for side in sides)
        if sign is None or not names_in(left) | names_in(right) <= names:
            return False
        for name, formula in ((left, right), (right, left)):
            free = name in definition.variables and name not in axes.derived
            if sign == "==" and free and name not in names_in(formula):
                axes.derived[name] = formula
                return True
        if (names_in(left) | names_in(right)) - set(definition.consts):
            axes.kept.append(f"{left} {sign} {right}")
    except ExpressionError:
        return False
    return True


def _last_of(node: ast.expr) -> str:
    """Return ``name`` for ``name[-1]`` or ``name[-1].item()``; empty for other expressions."""
    if isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Attribute):
        if node.func.attr != "item":
            return ""
        node = node.func.value
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
        return ""
    return node.value.id if ast.unparse(node.slice) == "-1" else ""


def sizes_to_try(
    definition: Definition, name: str, *, small: bool, varied: bool
) -> tuple[int, ...]:
    """Return the sizes to try for an axis, in ascending order.

    Parameters
    ----------
    small : bool
        True to leave out those sizes in the workloads that are larger than `LARGEST_SIZE`.
    varied : bool
        True to try the sizes in `CLASSES`, too. They are tried in any case if the workloads give
        no size.
    """
    theirs = {sizes[name] for sizes in definition.sizes}
    if small:
        theirs = {size for size in theirs if size <= LARGEST_SIZE}
    return tuple(sorted(theirs | set(CLASSES if varied or not theirs else ())))

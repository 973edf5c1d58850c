"""Turn a comparison in a test into an op, a reference and a schema."""

from __future__ import annotations

import ast
import builtins
import copy
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field

from gpuemu_flow.expressions import compute
from gpuemu_flow.problems.asserted_found import Comparison, Test, looks_expected
from gpuemu_flow.problems.asserted_inputs import (
    FOLLOWS,
    GIVEN,
    MadeTensor,
    StatementReader,
    buffers_of,
    walk_all,
    written_names,
)
from gpuemu_flow.problems.asserted_parameters import ParameterOfTest, Parameters, named_integers
from gpuemu_flow.problems.asserted_slices import ModuleText, Slicer, backward_graph, names_read
from gpuemu_flow.problems.asserted_values import (
    FRAMEWORKS,
    Expander,
    KnownSizes,
    NotUnderstoodError,
    first_name,
)
from gpuemu_flow.problems.options import Options, halved
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import DTYPES, Json

MOST_ELEMENTS = 1 << 17
_CAPS = (128, 64, 32, 16)
_ODD = (1, 7, 33)
_OUTSIDE = {*FRAMEWORKS, "F", "nn", "math", "pytest", "random", "einops", "os", "functools",
            "itertools", "scipy", "warnings", "typing", "lax", "rearrange", "repeat", "einsum",
            "triton", "device", "DEVICE", *dir(builtins)}  # fmt: skip
"""Names that no kernel under test has."""


@dataclass(frozen=True)
class ComparisonSide:
    """One side of a comparison: the statements that it needs, and the names in them.

    Attributes
    ----------
    value : ast.expr
        The expression that is compared.
    body : tuple of ast.stmt
        Statements of the test that compute what the expression uses.
    needed : frozenset of str
        Names that `body` and `value` use and that are bound before `body`: the test's parameters,
        and names of the file.
    own : frozenset of str
        The names in `needed` that may be functions under test. Frameworks, builtins, common
        libraries and parameters that hold plain values are left out.
    top : tuple of ast.stmt
        Statements of the file's top level that the side needs.
    names : frozenset of str
        All names of the file that the side needs, including those that only `top` uses.
    """

    value: ast.expr
    body: tuple[ast.stmt, ...]
    needed: frozenset[str]
    own: frozenset[str]
    top: tuple[ast.stmt, ...]
    names: frozenset[str]

    @property
    def inputs(self) -> set[str]:
        """Return the names of the inputs that the side uses."""
        return {
            str(node.slice.value)
            for one in (*self.body, self.value)
            for node in ast.walk(one)
            if isinstance(node, ast.Subscript)
            and first_name(node.value) == GIVEN
            and isinstance(node.slice, ast.Constant)
        }


@dataclass(frozen=True)
class AssertedProblem:
    """A problem: an op, a reference, and the facts about their inputs.

    Attributes
    ----------
    line : int
        Line of the comparison.
    actual, expected : ComparisonSide
    inputs : tuple of MadeTensor
    parameters : Parameters
    schema : mapping of str to JSON
    dtypes : tuple of str
    main : str
        The input that has the dtype of the case.
    scaled : mapping of str to (int, int)
        Sizes that were scaled down: the values before and after.
    notes : tuple of str
        Remarks on the problem, to be printed.
    """

    line: int
    actual: ComparisonSide
    expected: ComparisonSide
    inputs: tuple[MadeTensor, ...]
    parameters: Parameters
    schema: Mapping[str, Json]
    dtypes: tuple[str, ...]
    main: str
    scaled: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def bindings(self, side: ComparisonSide) -> list[str]:
        """Return the lines of code that assign values to the parameters used by one side.

        Raises
        ------
        NotUnderstoodError
            A size cannot be computed from the inputs.
        """
        lines = []
        for one in self.parameters.all.values():
            if one.name not in side.needed or one.kind == "callable":
                continue
            lines.append(f"{one.name} = {self._bound(one)}")
        if "device" in side.needed and "device" not in self.parameters.all:
            lines.append('device = "cuda"')
        return lines

    def _bound(self, one: ParameterOfTest) -> str:
        if one.kind == "dtype":
            return f"{GIVEN}.dtype"
        if one.kind == "choice":
            texts = ", ".join(ast.unparse(node) for node in one.nodes)
            return f"({texts},)[{GIVEN}[{choice_name(one)!r}]]"
        if one.kind == "default":
            return ast.unparse(one.nodes[0])
        if one.kind == "shape":
            return f"({''.join(self._size(dim) + ', ' for dim in one.dims)})"
        if one.kind == "size" and one.name in self.schema["dims"]:
            return self._size(one.name)
        return f"{GIVEN}[{one.name!r}]"

    def _size(self, dim: str) -> str:
        for made in self.inputs:
            for at, axis in enumerate(made.axes):
                if axis == dim:
                    return f"{GIVEN}.size({made.name!r}, {at})"
        for made in self.inputs:
            for at, axis in enumerate(made.axes):
                factor, _, rest = str(axis).partition("*")
                if rest == dim and factor.isdigit() and int(factor):
                    return f"{GIVEN}.size({made.name!r}, {at}, {factor})"
                rest, _, factor = str(axis).partition("*")
                if rest == dim and factor.isdigit() and int(factor):
                    return f"{GIVEN}.size({made.name!r}, {at}, {factor})"
        raise NotUnderstoodError(f"no input has an axis of {dim} alone")


def choice_name(one: ParameterOfTest) -> str:
    """Return the name of the scalar input that selects the value of parameter `one` in a case."""
    return f"{one.name}_choice"


def read_comparison(
    test: Test, comparison: Comparison, module: ModuleText, expander: Expander, options: Options
) -> AssertedProblem:
    """Return the problem that a comparison poses.

    Raises
    ------
    NotUnderstoodError
        The inputs, op or reference of the comparison cannot be determined from the text.
    """
    parameters = Parameters.of(test, expander)
    fixed: set[str] = set()
    while True:
        reader, first, second = _sides(test, comparison, module, expander, parameters, fixed)
        used = first.inputs & second.inputs
        alone = {one.name for one in reader.made if one.constant and one.name not in used}
        if not alone - fixed:
            break
        fixed |= alone  # a constant that one side alone has stays what it is
    actual, expected = _actual_and_expected(first, second)
    used = actual.inputs | expected.inputs
    inputs = tuple(one for one in reader.made if one.name in used)
    if not inputs:
        raise NotUnderstoodError("it makes no tensor of random values that both sides could get")
    sides = actual.needed | expected.needed
    _demand_bound(sides, parameters, module)
    notes = _skips(test, sides)
    dtypes, main, inputs = _dtypes(inputs, parameters)
    schema, scaled = _schema(inputs, parameters, sides, options)
    return AssertedProblem(
        comparison.line, actual, expected, inputs, parameters, schema, dtypes, main, scaled, notes
    )


def _sides(
    test: Test,
    comparison: Comparison,
    module: ModuleText,
    expander: Expander,
    parameters: Parameters,
    fixed: AbstractSet[str],
) -> tuple[StatementReader, ComparisonSide, ComparisonSide]:
    sizes = KnownSizes(expander)
    dtypes = {}
    for one in parameters.all.values():
        if one.kind == "shape":
            sizes.known[one.name] = one.dims
        elif one.kind == "size":
            sizes.known[one.name] = one.name
        elif one.kind == "dtype":
            dtypes[one.name] = FOLLOWS
    if len(dtypes) > 1:
        raise NotUnderstoodError(f"several parameters are dtypes: {', '.join(dtypes)}")
    prefix = _prefix(copy.deepcopy(test.node.body), comparison.line)
    prefix = [one for one in prefix if not _is_local_size(one, parameters)]
    scalars = {one.name for one in parameters.all.values()}
    written = written_names(prefix)
    reader = StatementReader(sizes, dtypes, fixed, {*scalars, GIVEN}, written)
    body = reader.read(prefix)
    buffers = buffers_of(body)
    graph = backward_graph(body)
    sides = []
    for value in (comparison.actual, comparison.expected):
        slicer = Slicer(names_read(value), buffers, graph)
        kept = slicer.cut(body)
        needed = frozenset(one for one in slicer.wanted if "." not in one) - {GIVEN}
        top, names = module.closure(needed - set(parameters.all))
        own = _own(needed, parameters)
        sides.append(ComparisonSide(value, tuple(kept), needed, own, tuple(top),
                          frozenset(names)))  # fmt: skip
    return reader, sides[0], sides[1]


def _is_local_size(node: ast.stmt, parameters: Parameters) -> bool:
    """Tell whether a statement does no more than repeat sizes that `parameters` already holds.

    Such a statement assigns integers, and each name has the same value in `parameters`.
    """
    named = named_integers(node)
    known = {name: one.values for name, one in parameters.all.items() if one.kind == "size"}
    return bool(named) and all(known.get(name) == (value,) for name, value in named.items())


def _prefix(body: list[ast.stmt], line: int) -> list[ast.stmt]:
    """Return the statements of a test that come before a line.

    If the line lies in an ``if`` statement, the earlier statements of its branch replace the
    ``if``. If it lies in a ``with`` statement, the ``with`` is kept, with the earlier part of its
    body. The earlier statements of any other block that contains the line are left out.
    """
    found: list[ast.stmt] = []
    for node in body:
        if node.lineno <= line <= (node.end_lineno or node.lineno):
            if isinstance(node, ast.With):
                found.append(ast.With(node.items, _prefix(node.body, line) or [ast.Pass()], None))
                ast.copy_location(found[-1], node)
            elif isinstance(node, ast.If):
                inside = node.body if line <= (node.body[-1].end_lineno or 0) else node.orelse
                found += _prefix(inside, line)
            return found
        found.append(node)
    return found


def _own(names: AbstractSet[str], parameters: Parameters) -> frozenset[str]:
    plain = {one.name for one in parameters.all.values() if one.kind not in ("callable", "choice")}
    return frozenset(names - plain - _OUTSIDE)


def _actual_and_expected(
    first: ComparisonSide, second: ComparisonSide
) -> tuple[ComparisonSide, ComparisonSide]:
    """Find out which side of a comparison is the actual one; return it, then the expected one.

    Raises
    ------
    NotUnderstoodError
        No function is under test: both sides call only frameworks, or the expected side also calls
        every function that the actual side calls.
    """
    if not first.own and not second.own:
        raise NotUnderstoodError("both sides are a framework's: no function is under test")
    if not first.own or not second.own:
        actual, expected = (second, first) if not first.own else (first, second)
    else:
        said = [looks_expected(_calling(one)) for one in (first, second)]
        actual, expected = (second, first) if said[0] > said[1] else (first, second)
    if not actual.own - expected.own:
        raise NotUnderstoodError("the expected value comes from the function under test, too")
    return actual, expected


def _calling(side: ComparisonSide) -> list[str]:
    """Return names that may tell if a side of a comparison is the actual or the expected one.

    These are the names in the expression that is compared, and the names in `own`, which may be
    functions under test.
    """
    return [*(n for n in names_read(side.value) if "." not in n), *sorted(side.own)]


def _demand_bound(names: AbstractSet[str], parameters: Parameters, module: ModuleText) -> None:
    known = {*parameters.all, *dir(builtins), GIVEN, "device"}
    for name in sorted(names - known):
        top, _ = module.closure({name})
        if not top:
            raise NotUnderstoodError(f"{name} comes from a fixture, or from nowhere")
        fixture = isinstance(top[-1], ast.FunctionDef) and any(
            "fixture" in ast.unparse(one) for one in top[-1].decorator_list
        )
        if fixture:
            raise NotUnderstoodError(f"{name} comes from a fixture")


def _skips(test: Test, needed: AbstractSet[str]) -> tuple[str, ...]:
    """Return a note for each condition under which the test skips cases.

    The op that is made from the test does not keep these conditions. A condition is noted only if
    it uses a name in `needed`. These are the names that the compared values need.
    """
    found = []
    for node in walk_all(test.node.body):
        if isinstance(node, ast.If) and names_read(node.test) & needed:
            calls = [ast.unparse(one) for one in node.body]
            if any(text.startswith(("pytest.skip", "return")) for text in calls):
                found.append(f"line {node.lineno}: not kept: skipped if {ast.unparse(node.test)}")
    return tuple(found)


def _dtypes(
    inputs: Sequence[MadeTensor], parameters: Parameters
) -> tuple[tuple[str, ...], str, tuple[MadeTensor, ...]]:
    """Choose the dtypes of the op, and the input that has the op's dtype in each case.

    Returns
    -------
    dtypes : tuple of str
    name : str
        The name of the chosen input.
    inputs : tuple of MadeTensor
        All inputs; those of the op's dtype have the dtype `FOLLOWS`.
    """
    following = [one for one in inputs if one.dtype == FOLLOWS]
    given = [dtype for one in parameters.of_kind("dtype") for dtype in one.values]
    if following:
        dtypes = tuple(one for one in given if DTYPES[one].kind == "float")
        if not dtypes:
            raise NotUnderstoodError("it has no dtype of floats")
        return dtypes, following[0].name, tuple(inputs)
    floats = [one for one in inputs if DTYPES[one.dtype].kind == "float"]
    if not floats:
        return ("float32",), inputs[0].name, tuple(inputs)
    main = floats[0]
    same = tuple(
        MadeTensor(one.name, one.line, one.axes, FOLLOWS, one.rules, one.library, one.constant)
        if one.dtype == main.dtype
        else one
        for one in inputs
    )
    return (main.dtype,), main.name, same


def _schema(
    inputs: Sequence[MadeTensor], parameters: Parameters, needed: AbstractSet[str], options: Options
) -> tuple[dict[str, Json], dict[str, tuple[int, int]]]:
    known = {dim: one for one in parameters.all.values() for dim in one.dims
             if one.kind in ("size", "shape")}  # fmt: skip
    used = {
        node.id
        for made in inputs
        for axis in made.axes
        for node in ast.walk(ast.parse(str(axis), mode="eval"))
        if isinstance(node, ast.Name)
    }
    dims = [dim for dim in known if dim in used]
    sizes = {dim: known[dim].sizes(dim) for dim in dims}
    cap = _cap(inputs, sizes) if options.small else 0
    relations = parameters.relations(sizes, cap)
    found: dict[str, Json] = {"dims": {}}
    for dim in dims:
        few = {halved(one, cap) for one in sizes[dim]}
        if options.varied and any(one % 2 for one in sizes[dim] if one > 1):
            few |= {one for one in _ODD if not relations}
        found["dims"][dim] = sorted(few)
    scaled = {
        dim: (max(sizes[dim]), halved(max(sizes[dim]), cap))
        for dim in dims
        if halved(max(sizes[dim]), cap) != max(sizes[dim])
    }
    found["inputs"] = {one.name: _input(one, parameters, set(dims)) for one in inputs}
    scalars: dict[str, Json] = {}
    for one in parameters.all.values():
        if one.name not in needed or set(one.dims) & set(dims):
            continue
        if one.kind == "choice":
            scalars[choice_name(one)] = list(range(len(one.nodes)))
        elif one.kind == "size":
            scalars[one.name] = sorted(set(one.values))
        elif one.kind == "scalar":
            scalars[one.name] = list(one.values)
        elif one.kind == "shape":
            raise NotUnderstoodError(f"{one.name} is used, and no input has its sizes")
    if scalars:
        found["scalars"] = scalars
    if relations:
        found["constraints"] = relations
    return found, scaled


def _cap(inputs: Sequence[MadeTensor], sizes: Mapping[str, Sequence[int]]) -> int:
    """Return the size that no dim may exceed, so that inputs stay small."""
    for cap in _CAPS:
        most = {dim: max(halved(one, cap) for one in of) for dim, of in sizes.items()}
        if all(_elements(made, most) <= MOST_ELEMENTS for made in inputs):
            return cap
    return _CAPS[-1]


def _elements(made: MadeTensor, most: Mapping[str, int]) -> int:
    return math.prod(compute(axis, most, {}) for axis in made.axes)


def _input(made: MadeTensor, parameters: Parameters, dims: AbstractSet[str]) -> dict[str, Json]:
    found: dict[str, Json] = {"dims": list(made.axes)}
    if made.dtype != FOLLOWS:
        found["dtype"] = made.dtype
    rules = dict(made.rules)
    if "range" in rules:
        rules["range"] = [_end(one, parameters, dims) for one in rules["range"]]
    found |= rules
    if "kind" not in rules and (made.dtype == FOLLOWS or DTYPES[made.dtype].kind == "float"):
        found["nonfinite"] = False
    return found


def _end(value: Json, parameters: Parameters, dims: AbstractSet[str]) -> Json:
    """Return a bound of a range: unchanged if it is a number or uses only names in `dims`.

    Otherwise, compute the bound from the smallest value of each size that it names.
    """
    if not isinstance(value, str):
        return value
    tree = ast.parse(value, mode="eval")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    if names <= dims:
        return value
    least = {}
    for name in names:
        one = parameters.all.get(name)
        if one is None or one.kind != "size":
            raise NotUnderstoodError(f"a bound that cannot be read: {value[:80]}")
        least[name] = min(one.values)
    return compute(value, least, {})

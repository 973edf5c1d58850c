"""Import FlashInfer-Bench: make a reference from a definition's `run`, and an op per solution."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec
from msgspec.structs import replace

from gpuemu_flow.model.syntax import ExpressionError, compute, names_in, parse_python
from gpuemu_flow.model.types import DTYPES, Json
from gpuemu_flow.services.problems.found import files_with, plain_name, read_source, unique_name
from gpuemu_flow.services.problems.importing import (
    Collection,
    ImportAttempt,
    import_each,
    json_file,
)
from gpuemu_flow.services.problems.model import (
    SEED,
    Argument,
    CandidateProgram,
    ImportedProblem,
    ImportOutcome,
    Options,
    ProblemFacts,
    ProblemSource,
    ReferenceOutput,
    SkippedProblem,
    halved,
)
from gpuemu_flow.services.problems.probing import ProbeError, Prober, open_prober
from gpuemu_flow.workers.pool import Pool

MOST_ELEMENTS = 1 << 18
"""Largest number of elements of one input; with more, constant axes are scaled down."""
_CAPS = (256, 128, 64, 32)
_PLAIN_FLOATS = ("float32", "float16", "bfloat16")
_INDICES = ("int16", "int32", "int64")
_SCALARS: dict[str, list[Json]] = {"float": [1.0, 0.125], "bool": [False, True]}
AxisRules = Mapping[str, tuple[str, int, int, int]]
_RUNTIME = ("flashinfer.py", "files.py", "solution.py", "stand_in.py", "tensors.py")
_GPU_ONLY = ("cuda", "cpp", "c++", "cutlass")
_COLLECTION = Collection(
    "flashinfer-bench",
    _RUNTIME,
    "flashinfer",
    "a solution, a file of JSON",
    "no candidate: no solution in Python names it",
    suffix=".json",
    skip_if=(*(f'"language":{space}"{name}"' for name in _GPU_ONLY for space in (" ", "")),),
)


def import_flashinfer(
    path: Path, options: Options, announce: Callable[[str], None]
) -> ImportOutcome:
    """Make a workspace from definitions and solutions. Raises UsageError: ``import-not-found``,
    ``import-too-many``, ``import-unreadable``. A problem that cannot be imported does not raise an
    error; `ImportOutcome.left` lists it."""
    definitions, left = find_flashinfer(path, options.candidates)
    return import_each(_COLLECTION, _attempts(definitions, options), left, options, announce)


def _attempts(definitions: Iterable[Definition], options: Options) -> Iterator[ImportAttempt]:
    names: list[str] = []
    for definition in definitions:
        name = unique_name(plain_name(definition.name), names)
        names.append(name)
        yield ImportAttempt(name, name, partial(_take, definition, name, options))


def _take(
    definition: Definition, name: str, options: Options, pool: Pool
) -> tuple[ImportedProblem, dict[str, bytes]]:
    axes = axes_of(definition)
    told = rules_of_axes(definition, axes)
    source = definition.reference.encode()
    problem = {"problem/reference.py": source}
    with open_prober("flashinfer_probe.py", _RUNTIME, problem, pool) as prober:
        scaled = _scaled(prober, definition, axes, options)
        axes.consts.update({const: new for const, (_, new) in scaled.items()})
        tops = _ranges(prober, definition, axes)
        dims = _dims(prober, definition, axes, options)
    arguments, dtype = _arguments(definition, axes, tops)
    outputs = tuple(_output(key, one, axes) for key, one in definition.outputs.items())
    scalars = {
        key: _scalar_values(definition, key, one)
        for key, one in definition.inputs.items()
        if one.axes is None
    }
    schema: dict[str, Json] = {"scalars": scalars} if scalars else {}
    if axes.kept:
        schema["constraints"] = [_without_consts(text, axes) for text in axes.kept]
    candidates = tuple(
        CandidateProgram(one.name, definition.path, b"") for one in definition.solutions
    )
    taken = ImportedProblem(
        ProblemSource(name, definition.path, source, definition.consts, candidates),
        ProblemFacts((), arguments, {}, outputs),
        dims,
        tuple(_axes(definition.inputs[one.name], axes) for one in arguments),
        scaled,
        dtype=dtype,
        schema=schema,
        notes=_notes(definition, tops),
    )
    return taken, _files(definition, taken, told)


def _notes(definition: Definition, tops: Mapping[str, str]) -> tuple[str, ...]:
    found = [f"{name}: values from 0 to {top}, found by trying" for name, top in tops.items()]
    if definition.stored:
        names = ", ".join(sorted(definition.stored))
        found.append(f"values of {names} in safetensors files are not read; ours are drawn")
    return tuple(found)


def _shape(one: TensorDefinition, sizes: Mapping[str, int]) -> list[int]:
    return [sizes[axis] for axis in one.axes or ()]


def _axes(one: TensorDefinition, axes: Axes) -> tuple[int | str, ...]:
    return tuple(axes.consts.get(axis, axis) for axis in one.axes or ())


def _try(
    prober: Prober,
    definition: Definition,
    axes: Axes,
    sizes: Mapping[str, int],
    tops: Mapping[str, int],
) -> None:
    """Run the reference with given sizes of the axes, on random inputs. `tops` gives the largest
    index in an input of indices. Without an entry, such an input contains only 0, unless it holds
    offsets. Raises ProbeError: The reference does not run, or its outputs do not have the shapes in
    the definition."""
    inputs: dict[str, Json] = {}
    for name, one in definition.inputs.items():
        if one.axes is None:
            inputs[name] = {"value": _scalar_values(definition, name, one)[0]}
            continue
        made: dict[str, Json] = {"shape": _shape(one, sizes), "dtype": one.dtype}
        if name in axes.offsets:
            made["to"] = sizes[axes.offsets[name]]
        else:
            made["high"] = tops.get(name, 0 if one.dtype in _INDICES else 1)
        inputs[name] = made
    answer = prober.ask_json({"inputs": inputs, "outputs": list(definition.outputs), "seed": SEED})
    wanted = [_shape(one, sizes) for one in definition.outputs.values()]
    if answer.get("shapes") != wanted:
        raise ProbeError("its reference gives outputs whose shapes are not those of the definition")


def _scaled(
    prober: Prober, definition: Definition, axes: Axes, options: Options
) -> dict[str, tuple[int, int]]:
    """Reduce constant axes if an input is too large; return old and new values, by axis. The result
    is empty if nothing is reduced."""
    if not options.small or _elements(definition, axes.spread()) <= MOST_ELEMENTS:
        return {}
    for cap in _CAPS:
        consts = {name: halved(value, cap) for name, value in axes.consts.items()}
        smaller = replace(axes, consts=consts)
        if _elements(definition, smaller.spread()) > MOST_ELEMENTS:
            continue
        try:
            _try(prober, definition, smaller, smaller.spread(), {})
        except ProbeError:
            continue
        return {
            name: (old, consts[name]) for name, old in axes.consts.items() if consts[name] != old
        }
    if _elements(definition, axes.spread()) > MOST_ELEMENTS << 5:
        raise ProbeError("its inputs are too large for a CPU, and smaller ones do not run")
    return {}


def _elements(definition: Definition, sizes: Mapping[str, int]) -> int:
    return max((math.prod(_shape(one, sizes)) for one in definition.inputs.values()), default=1)


def _ranges(prober: Prober, definition: Definition, axes: Axes) -> dict[str, str]:
    """Map each input of indices to the largest index that it may hold, as an expression. The
    indices may point into the first or the second axis of any other input. The reference is run for
    each of these axes, the longest first, with indices up to the end of the axis. The first axis
    with which the run succeeds gives the result, such as ``rows-1``. If no run succeeds, the result
    is ``0``. Inputs that hold offsets are left out."""
    found: dict[str, str] = {}
    tops: dict[str, int] = {}
    sizes = axes.spread()
    _try(prober, definition, axes, sizes, tops)
    for name, one in definition.inputs.items():
        if one.axes is None or one.dtype not in _INDICES or name in axes.offsets:
            continue
        others = {
            axis
            for key, other in definition.inputs.items()
            if key != name
            for axis in (other.axes or ())[:2]
        }
        for axis in sorted(others, key=lambda each: -sizes[each]):
            try:
                _try(prober, definition, axes, sizes, {**tops, name: sizes[axis] - 1})
            except ProbeError:
                continue
            tops[name] = sizes[axis] - 1
            found[name] = f"{axes.consts.get(axis, axis)}-1"
            break
        else:
            found[name] = "0"
    return found


def _dims(
    prober: Prober, definition: Definition, axes: Axes, options: Options
) -> dict[str, tuple[int, ...] | str]:
    """Map free axes to sizes with which the reference runs, and derived axes to expressions."""
    found: dict[str, tuple[int, ...] | str] = {}
    base = axes.spread()
    for name in axes.free:
        wanted = sizes_to_try(definition, name, small=options.small, varied=options.varied)
        runs = []
        for size in wanted:
            try:
                chosen = {**{free: base[free] for free in axes.free}, name: size}
                _try(prober, definition, axes, axes.sizes(chosen), {})
            except ProbeError:
                continue
            runs.append(size)
        found[name] = tuple(runs) or (base[name],)
    found.update({name: _without_consts(text, axes) for name, text in axes.derived.items()})
    return found


def _without_consts(text: str, axes: Axes) -> str:
    """Replace the names of constant axes in an expression by their values."""
    words = "".join(c if c.isalnum() or c == "_" else f" {c} " for c in text).split(" ")
    return "".join(str(axes.consts.get(word, word)) for word in words)


def _arguments(
    definition: Definition, axes: Axes, tops: Mapping[str, str]
) -> tuple[tuple[Argument, ...], str]:
    """Return the input tensors with rules for their values, and the definition's main dtype. Inputs
    of the main dtype are drawn in the dtype of each case. All other inputs keep their own dtype.
    `tops` is the result of `_ranges`."""
    tensors = {key: one for key, one in definition.inputs.items() if one.axes is not None}
    dtypes = [one.dtype for one in tensors.values()]
    main = next((dtype for dtype in dtypes if dtype in _PLAIN_FLOATS), "float32")
    found = []
    for name, one in tensors.items():
        rules: dict[str, Json] = {} if one.dtype == main else {"dtype": one.dtype}
        floating = DTYPES[one.dtype].kind == "float"
        if name in axes.offsets:
            rules |= {"kind": "offsets", "to": axes.offsets[name]}
        elif one.dtype == "bool":
            rules |= {"kind": "mask", "allow_empty_rows": True}
        elif floating:
            rules["nonfinite"] = False
        elif name in tops:
            rules["range"] = [0, int(tops[name]) if tops[name].isdigit() else tops[name]]
        found.append(Argument(name, dtype=one.dtype, floating=floating, rules=rules))
    return tuple(found), main


def _output(name: str, one: TensorDefinition, axes: Axes) -> ReferenceOutput:
    dims = _axes(one, axes)
    return ReferenceOutput(len(dims), name=name, dims=dims, rules={"dtype": one.dtype})


def _scalar_values(definition: Definition, name: str, one: TensorDefinition) -> list[Json]:
    kind = DTYPES[one.dtype].kind
    return definition.scalars.get(name) or _SCALARS.get(kind, [1])


def _files(definition: Definition, taken: ImportedProblem, told: AxisRules) -> dict[str, bytes]:
    """Return the files of a problem by their paths in the problem's folder. `taken` is the problem
    as imported, and `told` is the result of `rules_of_axes`."""
    return {
        "reference.py": _COLLECTION.with_reference(taken.source.source, "the reference"),
        "problem.json": json_file(_described(definition, taken, told)),
        **{
            f"candidates/{solution.name}.json": json_file(solution.content)
            for solution in definition.solutions
        },
    }


def _described(definition: Definition, taken: ImportedProblem, told: AxisRules) -> dict[str, Json]:
    scaled = {name: new for name, (_, new) in taken.scaled.items()}
    return {
        "definition": definition.name,
        "inputs": {key: list(one.axes or ()) for key, one in definition.inputs.items()},
        "outputs": {
            key: {"shape": list(one.axes or ()), "dtype": one.dtype}
            for key, one in definition.outputs.items()
        },
        "consts": {**definition.consts, **scaled},
        "told": {key: list(one) for key, one in told.items()},
        "sha256": hashlib.sha256(taken.source.source).hexdigest(),
    }


# Read definitions, workloads and solutions, and what their axes demand.


MOST_LINES = 2_000
MOST_TENSORS = 64
MOST_SOURCES = 64


class TensorDefinition(msgspec.Struct, frozen=True):
    """An input or output of a definition: its axes (None for a scalar) and its dtype."""

    axes: tuple[str, ...] | None
    dtype: str


class PythonSolution(msgspec.Struct, frozen=True):
    """A solution in Python."""

    name: str
    # Content of the solution's file.
    content: Mapping[str, Json]


class Definition(msgspec.Struct):
    """A definition with its workloads and solutions."""

    name: str
    path: Path
    # Sizes of the axes whose size is fixed.
    consts: dict[str, int]
    # Axes whose sizes workloads choose.
    variables: tuple[str, ...]
    # Conditions in Python, such as ``len_indptr == batch_size + 1``.
    constraints: tuple[str, ...]
    inputs: dict[str, TensorDefinition]
    outputs: dict[str, TensorDefinition]
    # Python source.
    reference: str
    # Sizes of the variable axes, one mapping per workload.
    sizes: list[Mapping[str, int]] = []
    # Different values of each scalar input in the workloads, at most 8.
    scalars: dict[str, list[Json]] = {}
    # Inputs whose values a workload takes from a safetensors file.
    stored: set[str] = set()
    solutions: list[PythonSolution] = []


class FormatError(Exception):
    """Raised for a file that is not in FlashInfer-Bench's format; the message is the reason."""


def find_flashinfer(
    path: Path, candidates: tuple[Path, ...] = ()
) -> tuple[list[Definition], list[SkippedProblem]]:
    """Return the definitions in a file or folder, each with its workloads and solutions."""
    found: dict[str, Definition] = {}
    left: list[SkippedProblem] = []
    rest: list[tuple[Path, Json]] = []
    places = (path, *candidates)
    listed = (files_with(place, (".json", ".jsonl"), "files of JSON") for place in places)
    for file in dict.fromkeys(itertools.chain.from_iterable(listed)):
        try:
            for content in _objects(file):
                if "reference" in content and "axes" in content:
                    one = _definition(file, content)
                    found.setdefault(one.name, one)
                elif "definition" in content:
                    rest.append((file, content))
                else:
                    left.append(
                        SkippedProblem(str(file), "it is no definition, workload or solution")
                    )
        except (FormatError, ValueError, RecursionError) as error:
            left.append(SkippedProblem(str(file), _line(error)))
    for file, content in rest:
        try:
            _attach(file, content, found, left)
        except (FormatError, ValueError, RecursionError, SyntaxError) as error:
            left.append(SkippedProblem(str(file), _line(error)))
    return list(found.values()), left


def _line(error: BaseException) -> str:
    text = str(error).splitlines()[:1] if isinstance(error, FormatError) else []
    return text[0] if text else f"no JSON that can be read: {type(error).__name__}"


def _objects(file: Path) -> Iterator[dict[str, Json]]:
    text = read_source(file).decode("utf-8")
    lines = text.splitlines()[:MOST_LINES] if file.suffix == ".jsonl" else [text]
    for line in lines:
        if line.strip():
            content = json.loads(line)
            if isinstance(content, dict):
                yield content


def _definition(file: Path, content: Mapping[str, Json]) -> Definition:
    axes = _mapping(content["axes"], "axes")
    consts: dict[str, int] = {}
    variables = []
    for name, axis in axes.items():
        if not name.isidentifier() or not isinstance(axis, dict):
            raise FormatError(f"its axis {name[:80]!r} is no axis")
        if axis.get("type") == "const":
            value = axis.get("value")
            if type(value) is not int or not 0 <= value < 1 << 31:
                raise FormatError(f"its axis {name} has no value")
            consts[name] = value
        elif axis.get("type") == "var":
            variables.append(name)
        else:
            raise FormatError(f"its axis {name} is neither const nor var")
    inputs = _tensors(content, "inputs", axes)
    outputs = _tensors(content, "outputs", axes)
    constraints = content.get("constraints") or []
    reference = content["reference"]
    if not isinstance(constraints, list) or not all(isinstance(c, str) for c in constraints):
        raise FormatError("its constraints are no list of texts")
    if not isinstance(reference, str) or not isinstance(content.get("name"), str) or not outputs:
        raise FormatError("it has no name, no reference or no outputs")
    return Definition(
        str(content["name"]), file, consts, tuple(variables), tuple(constraints), inputs, outputs,
        reference,
    )  # fmt: skip


def _mapping(value: Json, what: str) -> dict[str, Json]:
    if not isinstance(value, dict) or len(value) > MOST_TENSORS:
        raise FormatError(f"its {what} are no short mapping")
    return value


def _tensors(
    content: Mapping[str, Json], key: str, axes: Mapping[str, Json]
) -> dict[str, TensorDefinition]:
    found = {}
    for name, one in _mapping(content.get(key), key).items():
        if not name.isidentifier() or not name.isascii() or not isinstance(one, dict):
            raise FormatError(f"its {key} have {name[:80]!r}, which is no tensor")
        shape, dtype = one.get("shape"), one.get("dtype")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise FormatError(f"{name} is {str(dtype)[:40]}, which no workspace can express")
        if shape is not None and not (
            isinstance(shape, list)
            and all(isinstance(axis, str) and axis in axes for axis in shape)
        ):
            raise FormatError(f"the shape of {name} is no list of its axes")
        found[name] = TensorDefinition(None if shape is None else tuple(shape), str(dtype))
    return found


def _attach(
    file: Path,
    content: Mapping[str, Json],
    found: Mapping[str, Definition],
    left: list[SkippedProblem],
) -> None:
    definition = found.get(str(content["definition"]))
    if definition is None:
        left.append(
            SkippedProblem(str(file), f"there is no definition {str(content['definition'])[:80]!r}")
        )
    elif "sources" in content:
        definition.solutions.append(_solution(content, definition))
    elif isinstance(content.get("workload", content), dict):
        _add_workload(content.get("workload", content), definition)


def _add_workload(content: Mapping[str, Json], definition: Definition) -> None:
    axes = content.get("axes")
    if isinstance(axes, dict) and set(axes) == set(definition.variables):
        sizes = {name: size for name, size in axes.items() if type(size) is int and size >= 0}
        if len(sizes) == len(axes):
            definition.sizes.append(sizes)
    inputs = content.get("inputs")
    for name, one in inputs.items() if isinstance(inputs, dict) else ():
        if not isinstance(one, dict) or name not in definition.inputs:
            continue
        value = one.get("value")
        if one.get("type") == "scalar" and type(value) in (int, float, bool):
            values = definition.scalars.setdefault(name, [])
            if value not in values and len(values) < 8:
                values.append(value)
        elif one.get("type") == "safetensors":
            definition.stored.add(name)


def _solution(content: Mapping[str, Json], definition: Definition) -> PythonSolution:
    spec = _mapping(content.get("spec"), "spec")
    language = str(spec.get("language", "")).lower()
    if language not in ("python", "triton", "pytorch", "torch"):
        text = f"GPU-only code: its language is {language[:40]!r}"
        raise FormatError(f"{text}; a source in Python that calls load_inline is taken")
    sources = content["sources"]
    if not isinstance(sources, list) or not 0 < len(sources) <= MOST_SOURCES:
        raise FormatError("its sources are no short list")
    files: dict[str, bytes] = {}
    for one in sources:
        if not isinstance(one, dict) or not isinstance(one.get("content"), str):
            raise FormatError("one of its sources has no content")
        files[_place(one.get("path"))] = one["content"].encode()
    file, _, function = str(spec.get("entry_point", "")).partition("::")
    if file not in files or not file.endswith(".py") or not function.isidentifier():
        raise FormatError("its entry point is no function of its sources")
    taken = [one.name for one in definition.solutions]
    return PythonSolution(
        unique_name(plain_name(str(content.get("name", "solution"))), taken), content
    )


def _place(path: Json) -> str:
    """Return the checked path of one of a solution's sources; raise FormatError if it is unsafe."""
    if not isinstance(path, str) or not 0 < len(path) < 200 or "\\" in path:
        raise FormatError("one of its sources has no path")
    place = PurePosixPath(path)
    parts = place.parts
    if place.is_absolute() or ".." in parts or any(plain_name(one) != one for one in parts):
        raise FormatError(f"one of its sources has the path {path[:80]!r}")
    return str(place)


def parsed_constraint(text: str) -> ast.expr | None:
    """Return a constraint's syntax tree; None if the constraint is not a Python expression."""
    try:
        body = parse_python(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    only = body[0] if len(body) == 1 else None
    return only.value if isinstance(only, ast.Expr) else None


CLASSES = (1, 3, 7, 16, 33)
LARGEST_SIZE = 64
_SIGNS = {ast.Eq: "==", ast.LtE: "<=", ast.Lt: "<", ast.GtE: ">=", ast.Gt: ">", ast.NotEq: "!="}
_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29)


class Axes(msgspec.Struct):
    """The axes of a definition, and the constraints on their sizes."""

    # Axes of constant size, with their sizes.
    consts: dict[str, int]
    # Axes of variable size whose size can be chosen freely.
    free: tuple[str, ...]
    # Axes whose size is computed from other axes, with the expressions that compute it.
    derived: dict[str, str] = {}
    # For each input that holds offsets, the axis whose size equals the last offset.
    offsets: dict[str, str] = {}
    # Constraints that cases have to satisfy.
    kept: list[str] = []

    def sizes(self, chosen: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of all axes. Raises ProbeError: The expression of an axis needs an
        unknown size, such as that of the axis itself."""
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
    """Read the constraints of a definition; they are parsed, never evaluated. Raises ProbeError: A
    constraint is not understood."""
    found = Axes(dict(definition.consts), definition.variables)
    for text in definition.constraints:
        if not _takes_constraint(text, definition, found):
            raise ProbeError(f"its constraint {text[:80]!r} is in a form that is not read")
    found.free = tuple(name for name in definition.variables if name not in found.derived)
    return found


def rules_of_axes(definition: Definition, axes: Axes) -> dict[str, tuple[str, int, int, int]]:
    """Return the rule for the size of each axis that only outputs have. A rule computes the size
    from that of one axis of an input. Raises ProbeError: The size of an axis cannot be computed
    from one axis of an input."""
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


def _takes_constraint(text: str, definition: Definition, axes: Axes) -> bool:
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
    """Return the sizes to try for an axis, in ascending order."""
    theirs = {sizes[name] for sizes in definition.sizes}
    if small:
        theirs = {size for size in theirs if size <= LARGEST_SIZE}
    return tuple(sorted(theirs | set(CLASSES if varied or not theirs else ())))

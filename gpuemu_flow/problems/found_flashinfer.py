"""Read definitions, workloads and solutions of FlashInfer-Bench; no code is run."""

from __future__ import annotations

import ast
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path, PurePosixPath

from gpuemu_flow.problems.found import (
    files_with,
    needs_compiler,
    plain_name,
    read_source,
    unique_name,
)
from gpuemu_flow.problems.model import SkippedProblem
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.syntax import parse_python
from gpuemu_flow.types import DTYPES, Json

MOST_LINES = 2_000
MOST_TENSORS = 64
MOST_SOURCES = 64


@dataclass(frozen=True)
class TensorDefinition:
    """An input or output of a definition: its axes (None for a scalar) and its dtype."""

    axes: tuple[str, ...] | None
    dtype: str


@dataclass(frozen=True)
class PythonSolution:
    """A solution in Python.

    Attributes
    ----------
    name : str
    content : mapping
        Content of the solution's file.
    """

    name: str
    content: Mapping[str, Json]


@dataclass
class Definition:
    """A definition with its workloads and solutions.

    Attributes
    ----------
    name : str
    path : Path
    consts : dict of str to int
        Sizes of the axes whose size is fixed.
    variables : tuple of str
        Axes whose sizes workloads choose.
    constraints : tuple of str
        Conditions in Python, such as ``len_indptr == batch_size + 1``.
    inputs, outputs : dict of str to TensorDefinition
    reference : str
        Python source.
    sizes : list of (mapping of str to int)
        Sizes of the variable axes, one mapping per workload.
    scalars : dict of str to (list of JSON)
        Different values of each scalar input in the workloads, at most 8.
    stored : set of str
        Inputs whose values a workload takes from a safetensors file.
    solutions : list of PythonSolution
    """

    name: str
    path: Path
    consts: dict[str, int]
    variables: tuple[str, ...]
    constraints: tuple[str, ...]
    inputs: dict[str, TensorDefinition]
    outputs: dict[str, TensorDefinition]
    reference: str
    sizes: list[Mapping[str, int]] = field(default_factory=list)
    scalars: dict[str, list[Json]] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    solutions: list[PythonSolution] = field(default_factory=list)


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
        raise FormatError(f"GPU-only code: its language is {language[:40]!r}")
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
    for path, source in files.items():
        reason = needs_compiler(parse_python(source, path)) if path.endswith(".py") else ""
        if reason:
            raise FormatError(reason)
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

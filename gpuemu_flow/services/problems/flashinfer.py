"""Import FlashInfer-Bench: make a reference from a definition's `run`, and an op per solution."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from gpuemu_flow.model.types import DTYPES, Json
from gpuemu_flow.services.problems.flashinfer_definitions import (
    Axes,
    Definition,
    TensorDefinition,
    axes_of,
    find_flashinfer,
    rules_of_axes,
    sizes_to_try,
)
from gpuemu_flow.services.problems.found import plain_name, unique_name
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

"""Import problems of GPU MODE: `ref_kernel` becomes a reference, each `custom_kernel` an op."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpuemu_flow.problems.answers import described
from gpuemu_flow.problems.found_gpumode import Task, find_gpumode
from gpuemu_flow.problems.importing import (
    Collection,
    ImportAttempt,
    candidate_files,
    import_each,
    json_file,
)
from gpuemu_flow.problems.model import (
    Argument,
    ImportedProblem,
    ImportOutcome,
    ProblemFacts,
    ReferenceOutput,
    SkippedProblem,
)
from gpuemu_flow.problems.options import SEED, Options, halved
from gpuemu_flow.problems.probing import ProbeError, Prober, open_prober
from gpuemu_flow.problems.sizes import CachedAttempts, VariableSizes, largest, same_but_shapes, vary
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.types import DTYPES, Json

MOST_VARIANTS = 16
MOST_ELEMENTS = 1 << 17
"""Limit on elements of one input, to stay below 4 MiB; with more, sizes are halved further."""
_CAPS = (128, 64, 32, 16)
_ODD = (1, 7, 33)
_RUNTIME = ("gpumode.py", "files.py", "stand_in.py", "tensors.py")
_ENTRY_POINTS = """\
_gpuemu_folder = str(_GpuemuPath(__file__).parent)
gpuemu_reference = _gpuemu_gpumode.reference(globals(), _gpuemu_folder)
gpuemu_generate = _gpuemu_gpumode.generator(globals(), _gpuemu_folder)
gpuemu_check = _gpuemu_gpumode.checker(globals(), _gpuemu_folder)
"""
_COLLECTION = Collection(
    "gpumode",
    _RUNTIME,
    "gpumode",
    "`custom_kernel` of a candidate's file",
    "no candidate: no file with a custom_kernel",
    skip_if=("cpp_extension", "from reference import"),
)


def import_gpumode(path: Path, options: Options, announce: Callable[[str], None]) -> ImportOutcome:
    """Make a workspace from problems of GPU MODE and their submissions.

    Parameters
    ----------
    announce : callable
        Called with each problem's name before its code is tried.

    Raises
    ------
    UsageError
        ``import-not-found``, ``import-too-many``, ``import-unreadable``. A problem that cannot be
        imported does not raise an error; `ImportOutcome.left` lists it.
    """
    tasks, left = find_gpumode(path, options.candidates)
    attempts = [
        ImportAttempt(
            task.source.name,
            str(task.source.path.parent),
            partial(_take, task, options, left),
        )
        for task in tasks
    ]
    return import_each(_COLLECTION, attempts, left, options, announce)


def _take(
    task: Task, options: Options, left: list[SkippedProblem], pool: Pool
) -> tuple[ImportedProblem, dict[str, bytes]]:
    modules = {"reference.py": task.source.source, **task.support}
    problem = {f"problem/{name}": content for name, content in modules.items()}
    with open_prober("gpumode_probe.py", _RUNTIME, problem, pool) as prober:
        base, about, scaled = _base(prober, task, options)
        numbers = {name: value for name, value in base.items() if type(value) is int}
        tries = CachedAttempts(lambda constants: _ask(prober, {**base, **constants}))
        varied = VariableSizes({}, about.shapes)
        if options.varied:
            wanted = {name: _wanted(task.tests, name, options) for name in numbers}
            varied = vary(tries, numbers, {}, about, wanted)
        calls = _calls(prober, task, base, about, varied, options, left)
    dtype = next((one.dtype for one in about.tensors if one.floating), "float32")
    data = json.loads(str(about.arguments[-1].value))
    taken = ImportedProblem(
        task.source,
        _with_rules(task, about, dtype),
        varied.dims,
        varied.axes,
        scaled,
        dtype=dtype,
        notes=_notes(task, about),
    )
    axes = {name: _axis(name, about, varied) for name in base}
    content: dict[str, Json] = {
        "calls": calls,
        "inputs": [{"name": one.name} for one in about.tensors],
        "axes": {name: place for name, place in axes.items() if place is not None},
        "data": data,
        "sha256": hashlib.sha256(task.source.source).hexdigest(),
    }
    return taken, _files(task, content)


def _base(
    prober: Prober, task: Task, options: Options
) -> tuple[dict[str, Json], ProblemFacts, dict[str, tuple[int, int]]]:
    """Choose the base arguments of `generate_input`: those of the first test, or smaller ones.

    Returns
    -------
    arguments : dict of str to JSON
    about : ProblemFacts
        Facts about the problem with these arguments.
    scaled : dict of str to (int, int)
        Sizes that were scaled down: the values before and after.
    """
    first = dict(task.tests[0])
    if options.small:
        for cap in _CAPS:
            base = {name: halved(value, cap) for name, value in first.items()}
            try:
                about = _ask(prober, base, check=True)
            except ProbeError:
                continue
            if largest(about) <= MOST_ELEMENTS:
                scaled = {
                    name: (int(first[name]), int(value))
                    for name, value in base.items()
                    if type(value) is int and value != first[name]
                }
                return base, about, scaled
    about = _ask(prober, first, check=True)
    if largest(about) > MOST_ELEMENTS * 8:
        raise ProbeError("its inputs are too large for a CPU, and smaller ones do not run")
    return first, about, {}


def _ask(prober: Prober, arguments: Mapping[str, Json], *, check: bool = False) -> ProblemFacts:
    request: dict[str, Json] = {
        "arguments": dict(arguments), "seed": SEED, "check": check, "dtypes": list(DTYPES)
    }  # fmt: skip
    return described(prober.ask_json(request))


def _wanted(tests: Sequence[Mapping[str, Json]], name: str, options: Options) -> tuple[int, ...]:
    """Return the sizes to try for an argument: those in the tests, sorted.

    If the tests use an odd size above 1, some more odd sizes are included.
    """
    theirs = [test[name] for test in tests if type(test.get(name)) is int]
    sizes = {halved(value, _CAPS[0]) if options.small else value for value in theirs}
    if any(value % 2 for value in theirs if value > 1):
        sizes.update(_ODD)
    return tuple(sorted(int(size) for size in sizes))


def _calls(
    prober: Prober,
    task: Task,
    base: Mapping[str, Json],
    about: ProblemFacts,
    varied: VariableSizes,
    options: Options,
    left: list[SkippedProblem],
) -> list[Json]:
    """Return the sets of arguments to check: the base arguments, then those of further tests.

    In the arguments of a test, the sizes in `varied` are replaced by those of the base arguments.
    The test is left out if its arguments then equal an earlier set.

    Tests that do not run, or whose inputs have other shapes than the base inputs, are added to
    `left` instead.
    """
    found: list[Json] = [dict(base)]
    tried = {json.dumps(base, sort_keys=True)}
    for test in task.tests:
        changed = {
            key: halved(value, _CAPS[0]) if options.small else value for key, value in test.items()
        }
        changed |= {key: base[key] for key in base if key in varied.dims or key not in test}
        text = json.dumps(changed, sort_keys=True)
        if text in tried or len(tried) >= MOST_VARIANTS:
            continue
        tried.add(text)
        try:
            other = _ask(prober, changed)
        except ProbeError as error:
            left.append(SkippedProblem(f"{task.source.name}: test {text}", str(error)))
            continue
        if same_but_shapes(about, other) and about.shapes == other.shapes:
            found.append(changed)
        else:
            left.append(
                SkippedProblem(f"{task.source.name}: test {text}", "its inputs have other shapes")
            )
    return found


def _axis(name: str, about: ProblemFacts, varied: VariableSizes) -> list[Json] | None:
    for tensor, axes in zip(about.tensors, varied.axes, strict=True):
        if name in axes:
            return [tensor.name, axes.index(name)]
    return None


def _with_rules(task: Task, about: ProblemFacts, dtype: str) -> ProblemFacts:
    program = f"problems/{task.source.name}/reference.py"
    arguments = tuple(_generated(one, dtype, program) for one in about.tensors)
    return replace(
        about,
        arguments=arguments,
        outputs=tuple(_judged(one, task, about, program) for one in about.outputs),
    )


def _generated(one: Argument, dtype: str, program: str) -> Argument:
    own = {} if one.floating and one.dtype == dtype else {"dtype": one.dtype}
    return replace(one, generate=f"{program}:gpuemu_generate", rules=own)


def _judged(one: ReferenceOutput, task: Task, about: ProblemFacts, program: str) -> ReferenceOutput:
    if task.tolerance is None:
        alone = len(about.outputs) == 1
        return replace(one, rules={"compare": f"{program}:gpuemu_check"} if alone else {})
    return replace(one, rules={"tolerance": dict(task.tolerance)} if one.floating else {})


def _notes(task: Task, about: ProblemFacts) -> tuple[str, ...]:
    if task.tolerance is not None:
        return ()
    if len(about.outputs) == 1:
        return ("judged by its own check_implementation",)
    return ("its check_implementation of several outputs is not used: compared with ref_kernel",)


def _files(task: Task, content: Mapping[str, Json]) -> dict[str, bytes]:
    """Return the files of a problem by their paths in the problem's folder."""
    source = task.source
    original = repr(source.path.name)
    return {
        "reference.py": _COLLECTION.with_reference(source.source, original, _ENTRY_POINTS),
        "problem.json": json_file(content),
        **task.support,
        **candidate_files(source.candidates),
    }

"""Import problems of KernelBench: `Model` becomes a reference, each `ModelNew` an op."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from gpuemu_flow.model.types import Json
from gpuemu_flow.services.problems.adapters.constants import constants_in
from gpuemu_flow.services.problems.found import (
    defined_names,
    named_home,
    parsed,
    plain_name,
    python_files,
    read_source,
    unique_name,
)
from gpuemu_flow.services.problems.importing import (
    Collection,
    ImportAttempt,
    candidate_files,
    import_each,
    json_file,
)
from gpuemu_flow.services.problems.model import (
    SEED,
    CandidateProgram,
    ImportedProblem,
    ImportOutcome,
    Options,
    ProblemFacts,
    ProblemSource,
    SkippedProblem,
)
from gpuemu_flow.services.problems.probing import Prober, described, open_prober
from gpuemu_flow.services.problems.sizes import (
    CachedAttempts,
    Constants,
    VariableSizes,
    scale_down,
    vary,
    with_given,
)
from gpuemu_flow.workers.pool import Pool

_NUMBERED = re.compile(r"(?:\A|[/_])problem_(\d+)(?:_|\Z)")
_RUNTIME = ("kernelbench.py", "files.py", "tensors.py")
_COLLECTION = Collection(
    "kernelbench",
    _RUNTIME,
    "kernelbench",
    "`ModelNew` of a candidate's file",
    "no candidate: no file with a class ModelNew is for it",
    triton_if=("triton", "cuda"),
)


def import_kernelbench(
    path: Path, options: Options, announce: Callable[[str], None]
) -> ImportOutcome:
    """Make a workspace from problems of KernelBench and their candidates.

    Raises UsageError: ``import-not-found``, ``import-too-many``, ``import-unreadable``. A problem
    that cannot be imported does not raise an error; `ImportOutcome.left` lists it.
    """
    sources, left = find_kernelbench(path, options.candidates)
    attempts = [
        ImportAttempt(source.name, str(source.path), partial(_take, source, options))
        for source in sources
    ]
    return import_each(_COLLECTION, attempts, left, options, announce)


def _take(
    source: ProblemSource, options: Options, pool: Pool
) -> tuple[ImportedProblem, dict[str, bytes]]:
    problem = {"reference.py": source.source}
    with open_prober("kernelbench_probe.py", (*_RUNTIME, "constants.py"), problem, pool) as prober:

        def attempt(constants: Constants) -> ProblemFacts:
            return _ask(prober, "run", constants)

        tries = CachedAttempts(attempt)
        chosen: dict[str, int] = {}
        about: ProblemFacts | None = None
        if options.small:
            chosen, about = scale_down(tries, source.constants)
        if about is None:
            about = attempt({})  # says why it does not run
        varied = VariableSizes({}, about.shapes)
        if options.varied:
            varied = vary(tries, source.constants, chosen, about)
            varied = with_given(tries, source.constants, chosen, varied)
        weights = prober.ask({"what": "weights", "constants": chosen, "seed": SEED})
        about = _ask(prober, "run", chosen, values=True)
    taken = ImportedProblem(
        source,
        about,
        varied.dims,
        varied.axes,
        {name: (source.constants[name], value) for name, value in chosen.items()},
        weights if weights.startswith(b"PK") else b"",
        schema={"constraints": list(varied.limits)} if varied.limits else {},
    )
    return taken, _files(taken)


def _ask(prober: Prober, what: str, constants: Constants, *, values: bool = False) -> ProblemFacts:
    request = {"what": what, "constants": dict(constants), "seed": SEED, "values": values}
    return described(prober.ask_json(request))


def _files(taken: ImportedProblem) -> dict[str, bytes]:
    source = taken.source
    return {
        "reference.py": _COLLECTION.with_reference(source.source, repr(source.path.name)),
        "problem.json": json_file(_described(taken)),
        **({"weights.npz": taken.weights} if taken.weights else {}),
        **candidate_files(source.candidates),
    }


def _described(taken: ImportedProblem) -> dict[str, Json]:
    about = taken.about
    arguments: list[Json] = []
    for one in about.arguments:
        if not one.name:
            arguments.append({"value": one.value})
        else:
            arguments.append({"name": one.name, **({"part": one.part} if one.part else {})})
    return {
        "seed": SEED,
        "init": list(about.init),
        "arguments": arguments,
        "globals": dict(about.globals),
        "scaled": {name: list(pair) for name, pair in taken.scaled.items()},
        "sha256": hashlib.sha256(taken.source.source).hexdigest(),
    }


def find_kernelbench(
    path: Path, candidates: tuple[Path, ...] = ()
) -> tuple[list[ProblemSource], list[SkippedProblem]]:
    """Return the problems of KernelBench in a file or folder, each with its candidates."""
    left: list[SkippedProblem] = []
    problems: list[ProblemSource] = []
    found: list[CandidateProgram] = []
    for file in dict.fromkeys(_all_files(path, candidates)):
        content = read_source(file)
        tree = parsed(content, file, left)
        if tree is None:
            continue
        names = defined_names(tree)
        if "ModelNew" in names:
            found.append(CandidateProgram(plain_name(file.stem), file, content))
        elif "Model" in names and {"get_inputs", "get_init_inputs"} <= names:
            name = unique_name(plain_name(file.stem), [one.name for one in problems])
            problems.append(ProblemSource(name, file, content, constants_in(tree)))
    for candidate in found:
        at = _home(candidate, problems)
        if at is None:
            reason = "no problem is named like it or its folder, nor stands alone beside it"
            left.append(SkippedProblem(str(candidate.path), reason))
            continue
        source = problems[at]
        name = unique_name(candidate.name, [one.name for one in source.candidates])
        taken = replace(candidate, name=name)
        problems[at] = replace(source, candidates=(*source.candidates, taken))
    return problems, left


def _all_files(path: Path, candidates: tuple[Path, ...]) -> Iterator[Path]:
    yield from python_files(path)
    for folder in candidates:
        yield from python_files(folder)
    if path.is_file() and not candidates and (path.parent / "candidates").is_dir():
        yield from python_files(path.parent / "candidates")


def _home(candidate: CandidateProgram, problems: list[ProblemSource]) -> int | None:
    """Return the index of the problem that a candidate solves; None if it is unclear.

    The names of its file and folders decide, else a number in the file's name, else that a problem
    stands alone in its folder, or in the folders above.
    """
    stems = [one.path.stem for one in problems]
    named = named_home(candidate.path, stems)
    if named is not None:
        return named
    number = _NUMBERED.search(candidate.path.stem)
    if number is not None:
        numbered = [at for at, stem in enumerate(stems) if stem.split("_")[0] == number[1]]
        if numbered:
            return max(numbered, key=lambda at: len(stems[at]))
    beside = [at for at, one in enumerate(problems) if one.path.parent == candidate.path.parent]
    above = [at for at, one in enumerate(problems) if one.path.parent in candidate.path.parents]
    return next((alone[0] for alone in (beside, above) if len(alone) == 1), None)

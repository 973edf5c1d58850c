"""Import problems of KernelBench: `Model` becomes a reference, each `ModelNew` an op."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpuemu_flow.problems.answers import described
from gpuemu_flow.problems.found import find_kernelbench
from gpuemu_flow.problems.importing import (
    Collection,
    ImportAttempt,
    candidate_files,
    import_each,
    json_file,
)
from gpuemu_flow.problems.model import ImportedProblem, ImportOutcome, ProblemFacts, ProblemSource
from gpuemu_flow.problems.options import SEED, Options
from gpuemu_flow.problems.probing import Prober, open_prober
from gpuemu_flow.problems.sizes import CachedAttempts, Constants, VariableSizes, scale_down, vary
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.types import Json

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
    with open_prober("kernelbench_probe.py", _RUNTIME, problem, pool) as prober:

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
        weights = prober.ask({"what": "weights", "constants": chosen, "seed": SEED})
        about = _ask(prober, "run", chosen, values=True)
    taken = ImportedProblem(
        source,
        about,
        varied.dims,
        varied.axes,
        {name: (source.constants[name], value) for name, value in chosen.items()},
        weights if weights.startswith(b"PK") else b"",
    )
    return taken, _files(taken)


def _ask(prober: Prober, what: str, constants: Constants, *, values: bool = False) -> ProblemFacts:
    request = {"what": what, "constants": dict(constants), "seed": SEED, "values": values}
    return described(prober.ask_json(request))


def _files(taken: ImportedProblem) -> dict[str, bytes]:
    """Return the files of a problem by their paths in the problem's folder."""
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

"""Problems of KernelBench: `Model` is the reference, each `ModelNew` an op."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from gpuemu_flow.problems.answers import described
from gpuemu_flow.problems.found import find_kernelbench
from gpuemu_flow.problems.model import Described, Imported, Left, Source, Taken
from gpuemu_flow.problems.options import SEED, Options
from gpuemu_flow.problems.probing import ADAPTERS, ProbeError, Prober, open_prober
from gpuemu_flow.problems.sizes import Constants, Tries, Varied, scale_down, vary
from gpuemu_flow.problems.toml_text import OpTable, workspace_text
from gpuemu_flow.types import Json

_APPENDED = """

# ---- added by gpuemu-flow import: the lines above are {original}, unchanged ----
from pathlib import Path as _GpuemuPath

from adapters import kernelbench as _gpuemu_kernelbench

gpuemu_reference = _gpuemu_kernelbench.reference(globals(), str(_GpuemuPath(__file__).parent))
"""
_OP = """\
# Runs `ModelNew` of {file}; written by gpuemu-flow import.
from pathlib import Path

from adapters import kernelbench

_FOLDER = Path(__file__).parent

op = kernelbench.candidate(str(_FOLDER / "candidates" / "{file}"), str(_FOLDER))
"""


def import_kernelbench(path: Path, options: Options, announce: Callable[[str], None]) -> Imported:
    """Make a workspace of problems.

    Parameters
    ----------
    announce : callable
        Told each problem's name before its code is tried.

    Raises
    ------
    UsageError
        ``import-not-found`` and its like; a problem that cannot be taken is in `Imported.left`.
    """
    sources, left = find_kernelbench(path, options.candidates)
    taken = []
    for source in sources:
        announce(source.name)
        try:
            taken.append(_take(source, options))
        except ProbeError as error:
            left.append(Left(str(source.path), str(error)))
            continue
        if not source.candidates:
            left.append(Left(source.name, "no candidate: no file with a class ModelNew is for it"))
    return Imported(_files(taken, options), tuple(taken), tuple(left))


def _take(source: Source, options: Options) -> Taken:
    adapters = {"probe.py": "kernelbench_probe.py"}
    with open_prober(adapters, {"reference.py": source.source}) as prober:

        def attempt(constants: Constants) -> Described:
            return _ask(prober, "run", constants)

        tries = Tries(attempt)
        chosen: dict[str, int] = {}
        about: Described | None = None
        if options.small:
            chosen, about = scale_down(tries, source.constants)
        if about is None:
            about = attempt({})  # says why it does not run
        varied = Varied({}, about.shapes)
        if options.varied:
            varied = vary(tries, source.constants, chosen, about)
        weights = prober.ask({"what": "weights", "constants": chosen, "seed": SEED})
        about = _ask(prober, "run", chosen, values=True)
    return Taken(
        source,
        about,
        varied.dims,
        varied.axes,
        {name: (source.constants[name], value) for name, value in chosen.items()},
        weights if weights.startswith(b"PK") else b"",
    )


def _ask(prober: Prober, what: str, constants: Constants, *, values: bool = False) -> Described:
    request = {"what": what, "constants": dict(constants), "seed": SEED, "values": values}
    return described(prober.ask_json(request))


def _files(taken: list[Taken], options: Options) -> dict[str, bytes]:
    """Return the files of the workspace; the configuration last."""
    files = {"adapters/kernelbench.py": (ADAPTERS / "kernelbench.py").read_bytes()}
    ops = []
    for one in taken:
        source, folder = one.source, f"problems/{one.source.name}"
        appended = _APPENDED.format(original=repr(source.path.name))
        files[f"{folder}/reference.py"] = source.source + appended.encode()
        files[f"{folder}/problem.json"] = _described(one)
        if one.weights:
            files[f"{folder}/weights.npz"] = one.weights
        for candidate in source.candidates:
            file = f"{candidate.name}.py"
            files[f"{folder}/candidates/{file}"] = candidate.source
            files[f"{folder}/op_{file}"] = _OP.format(file=file).encode()
            ops.append(
                OpTable(
                    name=f"{source.name}/{candidate.name}",
                    op=f"{folder}/op_{file}",
                    function="op",
                    reference=f"{folder}/reference.py:gpuemu_reference",
                    triton=candidate.triton,
                    taken=one,
                )
            )
    files["gpuemu.toml"] = workspace_text("kernelbench", ops, options.cases).encode()
    return files


def _described(taken: Taken) -> bytes:
    about = taken.about
    arguments: list[Json] = []
    for one in about.arguments:
        if not one.name:
            arguments.append({"value": one.value})
        else:
            arguments.append({"name": one.name, **({"part": one.part} if one.part else {})})
    content: dict[str, Json] = {
        "seed": SEED,
        "init": list(about.init),
        "arguments": arguments,
        "globals": dict(about.globals),
        "scaled": {name: list(pair) for name, pair in taken.scaled.items()},
        "sha256": hashlib.sha256(taken.source.source).hexdigest(),
    }
    return (json.dumps(content, indent=1) + "\n").encode()

"""Import the problems of a collection, whatever its format: the loop that all importers share."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from gpuemu_flow.model.types import Json
from gpuemu_flow.services.problems.model import (
    Argument,
    CandidateProgram,
    ImportedProblem,
    ImportOutcome,
    Options,
    SkippedProblem,
)
from gpuemu_flow.services.problems.probing import ADAPTERS, ProbeError, probe_workers
from gpuemu_flow.workers.pool import Pool

DATA = (".json", ".npz")
"""Suffixes of the data files that an import writes for a reference and its candidates."""
APART = ("problems/*/candidates",)
"""Globs of the candidates' files."""
_OP = """\
# Runs {runs}; written by gpuemu-flow import.
from pathlib import Path

from adapters import {adapter}


def load(path):
    return {adapter}.candidate(path, str(Path(__file__).parent))
"""
_APPENDED = """

# ---- added by gpuemu-flow import: the lines above are {original}, unchanged ----
from pathlib import Path as _GpuemuPath

from adapters import {adapter} as _gpuemu_{adapter}

"""
REFERENCE = (
    "gpuemu_reference = _gpuemu_{adapter}.reference(globals(), str(_GpuemuPath(__file__).parent))\n"
)
"""The line by which the file of a reference defines it for a workspace."""


class Collection(msgspec.Struct, frozen=True):
    """Facts about a format that hold for each of its problems."""

    # The name that the workspace gets.
    name: str
    # Files of `ADAPTERS` that the workspace needs.
    runtime: tuple[str, ...]
    # The module of `ADAPTERS` that runs references and candidates.
    adapter: str
    # A phrase that names the part of a candidate that is run.
    runs: str
    # The reason given for a problem that has no candidate.
    no_candidate: str
    # Suffix of a candidate's file.
    suffix: str = ".py"
    # Words in a candidate that show that it needs Triton's interpreter.
    triton_if: tuple[str, ...] = ("triton",)
    # Words in a candidate that show that it cannot run here.
    skip_if: tuple[str, ...] = ()

    def op_text(self) -> str:
        """Return the text of the program that loads a candidate's file and runs the candidate."""
        return _OP.format(runs=self.runs, adapter=self.adapter)

    def with_reference(self, source: bytes, original: str, lines: str = REFERENCE) -> bytes:
        """Return a reference's source with `lines` appended, which adapt it to a workspace."""
        text = (_APPENDED + lines).format(original=original, adapter=self.adapter)
        return source + text.encode()


class ImportAttempt(msgspec.Struct, frozen=True):
    """A problem that was found, and the function that imports it."""

    name: str
    # Where the problem was found; shown if it cannot be imported.
    place: str
    # Runs the problem's code in the given workers. Returns the imported problem, and the
    # contents of its files by path in the problem's folder. Raises `ProbeError`.
    take: Callable[[Pool], tuple[ImportedProblem, Mapping[str, bytes]]]


def import_each(
    collection: Collection,
    attempts: Iterable[ImportAttempt],
    left: list[SkippedProblem],
    options: Options,
    announce: Callable[[str], None],
) -> ImportOutcome:
    """Import problems one after the other, and make a workspace from them."""
    files = {f"adapters/{name}": (ADAPTERS / name).read_bytes() for name in collection.runtime}
    every: list[ImportedProblem] = []
    ops: list[str] = []
    with probe_workers() as pool:
        for attempt in attempts:
            announce(attempt.name)
            try:
                taken, own = attempt.take(pool)
            except ProbeError as error:
                left.append(SkippedProblem(attempt.place, str(error)))
                continue
            every.append(taken)
            folder = f"problems/{attempt.name}"
            files |= {f"{folder}/{name}": content for name, content in own.items()}
            files[f"{folder}/op.py"] = collection.op_text().encode()
            ops.append(_op(taken, collection, folder, own))
            if not taken.source.candidates:
                left.append(SkippedProblem(attempt.name, collection.no_candidate))
    files["gpuemu.toml"] = workspace_text(
        collection.name, ops, options, _originals(every, options.into), APART
    ).encode()
    return ImportOutcome(files, tuple(every), tuple(left))


def _originals(taken: Iterable[ImportedProblem], into: Path) -> list[str]:
    """Return the paths of the problems' and candidates' files, relative to the workspace."""
    sources = (one.source for one in taken)
    found = {path for s in sources for path in (s.path, *(c.path for c in s.candidates))}
    return sorted(
        Path(os.path.relpath(path.resolve(), into.resolve())).as_posix()
        for path in found
        if path.is_file()
    )


def json_file(content: Mapping[str, Json]) -> bytes:
    """Return the bytes of a JSON file."""
    return (json.dumps(content, indent=1) + "\n").encode()


def candidate_files(candidates: Iterable[CandidateProgram]) -> dict[str, bytes]:
    """Return the source of each candidate, by the path of its file in the problem's folder.

    Each of these candidates consists of a single file.
    """
    return {f"candidates/{one.name}.py": one.source for one in candidates}


# Write the configuration of an imported workspace.


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def table_text(heading: str, table: Mapping[str, Json]) -> str:
    """Return a table under its heading, such as ``[validation]`` or ``[[ops]]``.

    Nested tables are written inline, in braces.
    """
    lines = [heading, *(f"{_key(name)} = {toml_value(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def toml_value(value: Json) -> str:
    """Return a value as TOML, in one line."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {toml_value(one)}" for key, one in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(toml_value, value))}]"
    if type(value) is float:
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's, too, but JSON leaves one control character as it is.
        return json.dumps(value).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml_value(name)


def workspace_text(
    project: str,
    ops: Sequence[str],
    options: Options,
    hidden: Sequence[str] = (),
    apart: Sequence[str] = (),
) -> str:
    """Return the text of ``gpuemu.toml``."""
    parts = [
        "# Written by gpuemu-flow import; yours to change.\n"
        f"[project]\nname = {toml_value(project)}\n\n"
        "[validation]\n"
        f"cases = {options.cases}\n"
        f'dtypes = ["{options.dtype}"]\n'
        "# These problems promise their kernels contiguous tensors and finite values.\n"
        'layouts = ["contiguous"]\nstrategies = ["core"]\n'
    ]
    if hidden or apart:
        lines = "".join(f"    {toml_value(path)},\n" for path in hidden)
        parts.append(
            "# No candidate reads another's files, nor the originals, which hold references, too.\n"
            f"[sandbox]\napart = {toml_value(list(apart))}\nhidden = [\n{lines}]\n"
        )
    return "\n".join([*parts, *ops])


def _op(taken: ImportedProblem, collection: Collection, folder: str, files: Iterable[str]) -> str:
    """Return the tables that define an op for each candidate of a problem."""
    about, candidates = taken.about, f"{folder}/candidates/*{collection.suffix}"
    program = {
        "kind": "callable",
        "path": f"{folder}/op.py",
        "function": "load",
        "loads": candidates.replace("*", "{candidate}"),
        "triton_if": collection.triton_if,
    }
    table: dict[str, Json] = {
        "name": f"{taken.source.name}/{{candidate}}",
        "foreach": {"candidate": {"files": candidates}},
        "op": program | ({"skip_if": collection.skip_if} if collection.skip_if else {}),
        "reference": f"{folder}/reference.py:gpuemu_reference",
        "isolation": "warm",  # importing torch takes seconds: not for each case that fails
    }
    if taken.dtype != "float32":
        table["dtypes"] = [taken.dtype]
    shared = [n for n in sorted(files) if n.endswith(DATA) and not n.startswith("candidates/")]
    if shared:
        table["shared"] = [f"{folder}/{name}" for name in shared]
    inputs = {
        tensor.name: _input(tensor, axes, tensor.name in about.free)
        for tensor, axes in zip(about.tensors, taken.axes, strict=True)
    }
    outputs = {
        output.name or f"out{at}": {"dims": output.dims or ["?"] * output.rank, **output.rules}
        for at, output in enumerate(about.outputs)
    }
    schema = {**({"dims": taken.dims} if taken.dims else {}), **taken.schema}
    return (
        "# A file that is put there is a candidate from then on.\n"
        + table_text("[[ops]]", table)
        + table_text("[ops.schema]", schema)
        + (table_text("[ops.schema.inputs]", inputs) if inputs else "")
        + (table_text("[ops.schema.outputs]", outputs) if outputs else "")
    )


def _input(tensor: Argument, axes: tuple[int | str, ...], free: bool) -> dict[str, Json]:
    table: dict[str, Json] = {"dims": list(axes)}
    bounds = None if tensor.low is None or tensor.high is None else (tensor.low, tensor.high)
    if tensor.generate or tensor.rules:
        made = {"generate": tensor.generate} if tensor.generate else {}
        return {**table, **tensor.rules, **made}
    if not tensor.floating:
        table["dtype"] = tensor.dtype
        if tensor.dtype == "bool":
            return table | {"kind": "mask", "allow_empty_rows": True}
        return table | ({"range": [*map(int, bounds)]} if bounds else {})
    if tensor.kind:
        return table | {"kind": tensor.kind}
    if bounds and not free:  # the model gives NaN or Inf for other values, or fails
        table["range"] = [float(math.floor(bounds[0])), float(math.ceil(bounds[1]))]
    return table | {"nonfinite": False}

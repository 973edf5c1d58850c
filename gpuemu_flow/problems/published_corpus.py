"""Find the ops of a published gpuemu corpus: one folder each, described by `meta.json`."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from gpuemu_flow.cases.schema import WARNING_SLUGS, parse_schema
from gpuemu_flow.config.names import name_fault
from gpuemu_flow.config.report import Reporter
from gpuemu_flow.config.values import INVALID
from gpuemu_flow.config.vocabulary import NAME, TOLERANCES
from gpuemu_flow.problems.found import (
    files_named,
    needs_compiler,
    plain_name,
    read_source,
    unique_name,
)
from gpuemu_flow.problems.model import SkippedProblem
from gpuemu_flow.problems.published_files import PlaceError, Places
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.syntax import parse_python
from gpuemu_flow.types import Json

META, SCHEMA, RUN = "meta.json", "op_schema.json", "run"
_KNOWN = {"name", "kernel", "reference", "op_schema", "tolerances", "requires_gpu"}
_TOLD = {"description", "version", "author", "license", "tags", "notes", "category", "url"}
"""Keys that inform readers and have no effect."""
_STORED = {"cases", "seeds", "failures", "baseline", "baselines", "seed"}


@dataclass(frozen=True)
class CorpusOp:
    """One op of a corpus.

    Attributes
    ----------
    name : str
    path : Path
        Path of the op's `meta.json`.
    kernel : str
        Path of the kernel's file in the new workspace. The file's function `run` takes a dict of
        arrays.
    reference : JSON
        The value of ``reference`` in the new workspace's configuration.
    schema, tolerances : mapping of str to JSON
    triton, gpu : bool
        `triton` is True if the op launches Triton kernels, `gpu` if it asks for a GPU.
    """

    name: str
    path: Path
    kernel: str
    reference: Json
    schema: Mapping[str, Json] = field(default_factory=dict)
    tolerances: Mapping[str, Json] = field(default_factory=dict)
    triton: bool = False
    gpu: bool = False


class _NotTakenError(Exception):
    """Raised for an op that cannot be imported; its text is the reason."""


def find_corpus(places: Places, names: list[str], left: list[SkippedProblem]) -> list[CorpusOp]:
    """Return the ops whose `meta.json` lies in the published workspace or a folder below it.

    An op whose name is already taken, by `names` or by another op, gets a number in its name. The
    reasons why ops or keys are not imported are added to `left`.

    Raises
    ------
    UsageError
        ``import-too-many``, ``import-unreadable``.
    """
    found: list[CorpusOp] = []
    for file in files_named(META, places.root):
        try:
            op = _read(file, places, left)
        except (_NotTakenError, PlaceError) as error:
            left.append(SkippedProblem(str(file), str(error)))
            continue
        taken = [*names, *(one.name for one in found)]
        found.append(replace(op, name=unique_name(op.name, taken)))
    return found


def _json(file: Path) -> dict[str, Json]:
    def refuse(text: str) -> None:
        raise ValueError(text)

    try:
        value = json.loads(read_source(file), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise _NotTakenError(f"{file.name} is no JSON: {str(error)[:100]}") from None
    if not isinstance(value, dict):
        raise _NotTakenError(f"{file.name} holds no object")
    return value


def _read(file: Path, places: Places, left: list[SkippedProblem]) -> CorpusOp:
    about, folder = _json(file), file.parent
    if "op_schema" not in about and (folder / SCHEMA).is_file():
        about["op_schema"] = _json(folder / SCHEMA)
    texts = {key: about.get(key) for key in ("kernel", "reference")}
    for key, value in texts.items():
        if not isinstance(value, str) or not value.strip():
            raise _NotTakenError(f"it names no {key}")
    kernel = places.file(str(texts["kernel"]), folder)
    content = read_source(places.root / kernel.removeprefix(places.prefix))
    _demand_run(content)
    schema = _schema(about.get("op_schema"))
    op = CorpusOp(
        _name(str(about.get("name") or folder.name)),
        file,
        kernel,
        places.program(texts["reference"], folder),
        schema,
        _tolerances(about.get("tolerances", {}), file),
        triton=b"triton" in content,
        gpu=about.get("requires_gpu") is True or b"cuda" in content,
    )
    left += _left_keys(file, about)
    return op


def _name(text: str) -> str:
    fits = NAME.check(text, (), Reporter("")) is not INVALID and not name_fault(text)
    return text if fits else plain_name(text)


def _left_keys(file: Path, about: Mapping[str, Json]) -> list[SkippedProblem]:
    """List the keys of an op's `meta.json` that are not imported, each with the reason.

    `about` is the parsed content of `file`.
    """
    reasons = {}
    for key in sorted(set(about) - _KNOWN - _TOLD):
        reasons[key] = "no meaning here; remove it"
        if key in _STORED:
            reasons[key] = (
                "stored cases are those of another generator's seeds; `gpuemu-flow fuzz` finds "
                "failures anew and keeps them"
            )
    return [SkippedProblem(f"{file}: {key[:80]}", reason) for key, reason in reasons.items()]


def _demand_run(content: bytes) -> None:
    try:
        tree = parse_python(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _NotTakenError(f"its kernel does not parse: {type(error).__name__}") from None
    if not any(isinstance(node, ast.FunctionDef) and node.name == RUN for node in tree.body):
        raise _NotTakenError(f"its kernel defines no function {RUN}")
    reason = needs_compiler(tree)
    if reason:
        raise _NotTakenError(reason)


def _schema(value: Json) -> dict[str, Json]:
    """Convert a corpus's lists of named dims and tensors to a schema of this tool."""
    if not isinstance(value, dict):
        raise _NotTakenError("it has no op_schema")
    try:
        found: dict[str, Json] = {
            "dims": {one["name"]: one["candidates"] for one in value.get("dims", ())},
            "inputs": {one["name"]: _tensor(one) for one in value["inputs"]},
        }
        output = value.get("output")
        if isinstance(output, dict):
            found["output"] = output["dims"]
    except (KeyError, TypeError, AttributeError):
        raise _NotTakenError("its op_schema is no lists of names with candidates or dims") from None
    faults: list[str] = []

    def report(_: tuple[str | int, ...], slug: str, message: str, hint: str) -> None:
        if slug not in WARNING_SLUGS:
            faults.append(message)

    parse_schema(found, (), report)
    if faults:
        raise _NotTakenError(f"its op_schema: {faults[0]}")
    return found


def _tensor(one: Mapping[str, Json]) -> Json:
    return {"dims": one["dims"], "dtype": one["dtype"]} if "dtype" in one else one["dims"]


def _tolerances(value: Json, file: Path) -> dict[str, Json]:
    out = Reporter(str(file))
    found = TOLERANCES.check(value, ("tolerances",), out)
    if found is INVALID or out.problems:
        said = out.problems[0].message if out.problems else "no table"
        raise _NotTakenError(f"its tolerances: {said}")
    return dict(found)

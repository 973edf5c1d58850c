"""Import published gpuemu workspaces: their ops, kernels and corpus, judged as in gpuemu 0.1.0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path, PurePosixPath

from gpuemu_flow.config.find import is_file
from gpuemu_flow.config.names import name_fault
from gpuemu_flow.problems.found import plain_name, read_source
from gpuemu_flow.problems.model import (
    CandidateProgram,
    ImportedProblem,
    ImportOutcome,
    ProblemFacts,
    ProblemSource,
    SkippedProblem,
)
from gpuemu_flow.problems.options import Options
from gpuemu_flow.problems.probing import ADAPTERS
from gpuemu_flow.problems.published import CONFIG, PublishedConfig, read_published
from gpuemu_flow.problems.published_corpus import CorpusOp, find_corpus
from gpuemu_flow.problems.published_files import PlaceError, Places
from gpuemu_flow.problems.toml_tables import table_text
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json

ORIGINAL = "gpuemu-0.1.0.toml"
_HEAD = "# Written by gpuemu-flow import; yours to change.\n"
_SAME = """\
# Values, tolerances and checks are those of gpuemu 0.1.0. Without `strategies`, `layouts` and the
# tolerances, here and in the ops, values are adversarial and tolerances follow from the reference.
"""
_RUNTIME = ("published.py", "stand_in.py", "tensors.py")
_OP = """\
# Runs `run` of {kernel!r}; written by gpuemu-flow import.
from pathlib import Path

from adapters import published

op = published.kernel(str(Path(__file__).parents[1] / {kernel!r}), gpu={gpu})
"""
_KERNEL_FILES = ("source", "ptx", "cubin")


def import_gpuemu(path: Path, options: Options, announce: Callable[[str], None]) -> ImportOutcome:
    """Convert a workspace of the published gpuemu to one of this tool; run none of its code.

    Parameters
    ----------
    path : Path
        The folder of the published workspace, or its `gpuemu.toml`.
    announce : callable
        Called with each op's name.

    Raises
    ------
    UsageError
        The workspace's configuration cannot be read. An op that cannot be imported does not raise
        an error; `ImportOutcome.left` lists it.
    """
    config = path if path.is_file() else path / CONFIG
    places = Places(config.parent, options.into)
    found = read_published(config)
    left = list(found.left)
    ops = _Ops(config, places, left)
    for line, table in found.ops:
        ops.add(line, table)
    kernels = [_kernel(config, line, table, places, left) for line, table in found.kernels]
    corpus = find_corpus(places, list(ops.tables), left)
    if not (found.ops or found.kernels or corpus):
        left.append(SkippedProblem(str(path), f"it holds neither a {CONFIG} with ops nor a corpus"))
    for name in (*ops.tables, *(one.name for one in corpus)):
        announce(name)
    tables = [*ops.tables.values(), *(_corpus_table(at, one) for at, one in enumerate(corpus))]
    files = places.copies(left)
    files.pop(CONFIG, None)
    files |= _adapters(corpus)
    files |= _original(config, places)
    taken = (*ops.taken, *(_taken(one.name, one.path, PurePosixPath(one.kernel)) for one in corpus))
    if taken or any(kernels):
        text = _text(found, tables, [one for one in kernels if one], options)
        files[CONFIG] = text.encode()
    return ImportOutcome(files, taken, tuple(left), in_place=places.in_place)


@dataclass
class _Ops:
    """Ops of the new workspace, in the order of the published workspace.

    Attributes
    ----------
    config : Path
        The file that defines the ops.
    places : Places
    left : list of SkippedProblem
        List to which ops that cannot be imported are added.
    """

    config: Path
    places: Places
    left: list[SkippedProblem]
    tables: dict[str, Mapping[str, Json]] = field(default_factory=dict)
    taken: list[ImportedProblem] = field(default_factory=list)

    def add(self, line: int, table: Mapping[str, Json]) -> None:
        """Add one op; if it cannot be imported, add the reason to `left`."""
        name = str(table.get("name", ""))
        where = f"{self.config}:{line}: {name or 'an op'}"
        try:
            self._demand(table)
            moved = self._moved(table)
        except PlaceError as error:
            self.left.append(SkippedProblem(where, str(error)))
            return
        self.tables[name] = moved
        program = moved.get("op")
        if program is None and "module" not in moved:
            reason = "no op_script: kept for clients, skipped by `run`; name its program as `op`"
            self.left.append(SkippedProblem(where, reason))
            return
        stem = PurePosixPath(str(program or moved["module"]).partition(":")[0])
        self.taken.append(_taken(name, self.config, stem))

    def _demand(self, table: Mapping[str, Json]) -> None:
        for key in ("name", "reference"):
            if key not in table:
                raise PlaceError(f"it has no {key} that can be read")
        name = table["name"]
        if name in self.tables:
            raise PlaceError("there is an op of this name already; gpuemu takes the first")
        fault = name_fault(name)
        if fault:
            raise PlaceError(f"its name {fault}; rename it")
        names = table.get("input_names", [])
        if len(set(names)) < len(names):
            raise PlaceError("two of its inputs have one name")

    def _moved(self, table: Mapping[str, Json]) -> dict[str, Json]:
        """Return an op with its paths relative to the new workspace."""
        moved = dict(table)
        for key in ("op", "reference"):
            if key in moved:
                moved[key] = self.places.program(moved[key])
        if moved.get("op") == moved["reference"]:
            text = "its op_script is its reference: it would pass whatever it does"
            raise PlaceError(f"{text}; name a reference that is written independently")
        if "module" in moved and self.places.prefix:
            raise PlaceError("it is a module: import into its own folder")
        if "depends" in moved:
            moved["depends"] = [f"{self.places.prefix}{one}" for one in moved["depends"]]
        return moved


def _kernel(
    config: Path, line: int, table: Mapping[str, Json], places: Places, left: list[SkippedProblem]
) -> dict[str, Json]:
    """Return a kernel with its paths relative to the new workspace.

    If the kernel cannot be imported, the result is empty and the reason is added to `left`.
    """
    moved = dict(table)
    where = f"{config}:{line}: {table.get('name', 'a kernel')}"
    try:
        for key in _KERNEL_FILES:
            if key in moved:
                moved[key] = places.file(str(moved[key]))
    except PlaceError as error:
        left.append(SkippedProblem(where, str(error)))
        return {}
    if "name" not in moved or not {*_KERNEL_FILES, "triton"} & set(moved):
        left.append(SkippedProblem(where, "it names no file"))
        return {}
    return moved


def _taken(name: str, path: Path, program: PurePosixPath) -> ImportedProblem:
    candidate = CandidateProgram(plain_name(program.stem), path, b"")
    return ImportedProblem(ProblemSource(name, path, b"", {}, (candidate,)), ProblemFacts((), ()))


def _adapter(at: int, one: CorpusOp) -> str:
    return f"imported/{plain_name(one.name)}_{at}.py"


def _corpus_table(at: int, one: CorpusOp) -> dict[str, Json]:
    program: Json = f"{one.kernel}:run"
    if one.triton:
        program = {"kind": "triton", "file": _adapter(at, one), "function": "op"}
    elif one.gpu:
        program = f"{_adapter(at, one)}:op"
    table: dict[str, Json] = {"name": one.name, "op": program, "reference": one.reference}
    if one.tolerances:
        table |= {"dtypes": list(one.tolerances), "tolerances": one.tolerances}
    else:
        table["tolerances"] = {"float32": {"atol": 1e-5, "rtol": 0.0}}
    if one.triton or one.gpu:
        table["isolation"] = "warm"  # importing torch takes seconds: not for each case that fails
    return {**table, "schema": one.schema}


def _adapters(corpus: list[CorpusOp]) -> dict[str, bytes]:
    files = {}
    for at, one in enumerate(corpus):
        if one.triton or one.gpu:
            text = _OP.format(kernel=one.kernel, gpu=not one.triton)
            files[_adapter(at, one)] = text.encode()
    if files:
        files |= {f"adapters/{name}": (ADAPTERS / name).read_bytes() for name in _RUNTIME}
    return files


def _original(config: Path, places: Places) -> dict[str, bytes]:
    """Return a copy of the published configuration, if the import will overwrite the original.

    The result maps the name of the new file to its content. It is empty if nothing is overwritten,
    or if an earlier import has made the copy.
    """
    if not places.in_place or places.prefix or not is_file(config):
        return {}
    content = read_source(config)
    original = places.root / ORIGINAL
    if content.startswith(_HEAD.encode()) or is_file(original):
        return {}
    return {ORIGINAL: content}


def _text(
    found: PublishedConfig,
    ops: list[Mapping[str, Json]],
    kernels: list[dict[str, Json]],
    options: Options,
) -> str:
    parts = [_HEAD + _SAME]
    for name, table in found.sections.items():
        own = {"cases": options.cases, **table} if name == "validation" else table
        if own:
            parts.append(table_text(f"[{name}]", own))
    parts += [table_text("[[ops]]", op) for op in ops]
    parts += [table_text("[[kernels]]", kernel) for kernel in kernels]
    return "\n".join(parts)

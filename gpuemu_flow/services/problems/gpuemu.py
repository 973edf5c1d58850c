"""Import published gpuemu workspaces: their ops, kernels and corpus, judged as in gpuemu 0.1.0."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

import msgspec
from msgspec.inspect import type_info
from msgspec.structs import replace

from gpuemu_flow.cases.op_schema import WARNING_SLUGS
from gpuemu_flow.cases.schema import parse_schema
from gpuemu_flow.config.check import INVALID, check
from gpuemu_flow.config.fields import Name, Table, Tolerances, name_fault, names_of
from gpuemu_flow.config.paths import is_file
from gpuemu_flow.config.read import check_file
from gpuemu_flow.config.read import read_source as read_config
from gpuemu_flow.config.report import KeyPath, Reporter
from gpuemu_flow.config.tables import Project
from gpuemu_flow.config.tables_ops import KernelTable, OpTable
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.syntax import parse_python
from gpuemu_flow.model.types import DTYPES, Json
from gpuemu_flow.services.problems.found import (
    LARGEST_FILE,
    MOST_FILES,
    SKIPPED,
    files_named,
    plain_name,
    read_source,
    unique_name,
)
from gpuemu_flow.services.problems.importing import table_text
from gpuemu_flow.services.problems.model import (
    CandidateProgram,
    ImportedProblem,
    ImportOutcome,
    Options,
    ProblemFacts,
    ProblemSource,
    SkippedProblem,
)
from gpuemu_flow.services.problems.probing import ADAPTERS

CONFIG = "gpuemu.toml"
_UNUSED = ("frameworks", "xla_compatible")
_PASSED_ON = ("policies", "ci", "execution", "daemon", "storage", "targets")
_DEFAULT_TOLERANCES = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-3}
"""Tolerances of gpuemu 0.1.0 for a file without any ``[validation]``."""
_OTHER_TOLERANCE = 1e-5
"""Tolerance of a dtype that a file with ``[validation]`` does not name."""


class PublishedConfig(msgspec.Struct, frozen=True):
    """A configuration of gpuemu 0.1.0 in today's spelling."""

    # All tables of the file except ops and kernels.
    sections: Mapping[str, Json] = {}
    # The tables, each with the line in which it begins.
    ops: tuple[tuple[int, Mapping[str, Json]], ...] = ()
    kernels: tuple[tuple[int, Mapping[str, Json]], ...] = ()
    # Keys that this tool does not use, each with advice.
    left: tuple[SkippedProblem, ...] = ()


def read_published(file: Path) -> PublishedConfig:
    """Return the content of a workspace's configuration. Raises UsageError: It is not TOML."""
    raw: dict[str, Json] = {}

    def check(found: Mapping[str, Json], out: Reporter) -> dict[str, Json]:
        raw.update(found)
        return check_file(found, out)

    source = read_config(file, str(file), check=check)
    if not raw and source.out.problems:
        raise UsageError(*source.out.problems)
    tree, out = source.tree, source.out
    sections: dict[str, Json] = {
        "project": _with_effect(Project, tree.get("project", {})),
        "validation": _validation(tree.get("validation"), given="validation" in raw),
        **{name: dict(tree[name]) for name in _PASSED_ON if isinstance(tree.get(name), dict)},
    }
    ops = _tables(tree, "ops", OpTable, out)
    return PublishedConfig(
        sections,
        tuple((line, _op(table, sections["validation"])) for line, table in ops),
        _tables(tree, "kernels", KernelTable, out),
        (*map(_left, out.problems), *_without_effect(tree, out, str(file))),
    )


def _without_effect(tree: Mapping[str, Json], out: Reporter, file: str) -> list[SkippedProblem]:
    """List the keys in ``[[ops]]`` tables whose values gpuemu 0.1.0 ignores. `tree` is the content
    of `file`. `out` knows the line of each key in it."""
    ops = tree.get("ops")
    found = []
    for at, table in enumerate(ops if isinstance(ops, list) else ()):
        for name in _UNUSED if isinstance(table, dict) else ():
            if name in table:
                place = f"{file}:{out.line(('ops', at, name))}"
                found.append(
                    SkippedProblem(place, f"ops[{at}].{name} has no effect in gpuemu 0.1.0")
                )
    return found


def _left(problem: Problem) -> SkippedProblem:
    place = f"{problem.file}:{problem.line}" if problem.line else problem.file
    return SkippedProblem(
        place, f"{problem.message}; {problem.hint}" if problem.hint else problem.message
    )


def _with_effect(section: type[Table], table: Json) -> dict[str, Json]:
    """Return a table without the keys that have no effect."""
    if not isinstance(table, dict):
        return {}
    return {name: value for name, value in table.items() if not names_of(section)[name].unread}


def _tables(
    tree: Mapping[str, Json], name: str, section: type[Table], out: Reporter
) -> tuple[tuple[int, Mapping[str, Json]], ...]:
    found = tree.get(name)
    if not isinstance(found, list):
        return ()
    lines: list[KeyPath] = [(name, at) for at in range(len(found))]
    return tuple(
        (out.line(path), _with_effect(section, table))
        for path, table in zip(lines, found, strict=True)
        if table is not INVALID
    )


def _validation(table: Json, *, given: bool) -> dict[str, Json]:
    """Return the table ``[validation]``, with gpuemu 0.1.0's defaults for missing keys."""
    own = dict(table) if isinstance(table, dict) else {}
    defaults: dict[str, Json] = {"dtypes": ["float32"], "layouts": ["contiguous"]}
    if not {"nan_policy", "check_nan"} & set(own):
        defaults["check_nan"] = True
    if not {"inf_policy", "check_inf"} & set(own):
        defaults["check_inf"] = True
    if "strategies" not in own:
        defaults["strategies"] = ["uniform"]
    if not given:
        defaults["tolerances"] = {dtype: _plain(at) for dtype, at in _DEFAULT_TOLERANCES.items()}
    return {**defaults, **own}


def _plain(absolute: float) -> dict[str, Json]:
    return {"atol": absolute, "rtol": 0.0}


def _op(table: Mapping[str, Json], validation: Mapping[str, Json]) -> dict[str, Json]:
    """Return an op with the dtypes and tolerances that gpuemu 0.1.0 judges it by."""
    found = {name: value for name, value in table.items() if name not in ("op_script", *_UNUSED)}
    if "op_script" in table:
        found.setdefault("op", table["op_script"])
    if found.get("execution_mode") == "script_based" and "op" in found:
        del found["execution_mode"]  # follows from the program
    own: Mapping[str, Json] = table.get("tolerances", {})
    shared: Mapping[str, Json] = validation.get("tolerances", {})
    if "dtypes" not in found:
        dtypes = list(dict.fromkeys([*own, *validation["dtypes"]]))
        if dtypes != validation["dtypes"]:
            found["dtypes"] = dtypes
    tested: list[str] = found.get("dtypes") or validation["dtypes"]
    tolerances = {
        dtype: _plain(_OTHER_TOLERANCE)
        for dtype in tested
        if DTYPES[dtype].kind == "float" and dtype not in own and dtype not in shared
    }
    if tolerances or own:
        found["tolerances"] = {**own, **tolerances}
    return found


ORIGINAL = "gpuemu-0.1.0.toml"
_HEAD = "# Written by gpuemu-flow import; yours to change.\n"
_SAME = """\
# Values, tolerances and checks are those of gpuemu 0.1.0. Without `strategies`, `layouts` and the
# tolerances, here and in the ops, values are adversarial and tolerances follow from the reference.
"""
_RUNTIME = ("published.py", "files.py", "stand_in.py", "tensors.py")
_OP = """\
# Runs `run` of {kernel!r}; written by gpuemu-flow import.
from adapters import published


def load(path):
    return published.kernel(path, gpu={gpu})
"""
_KERNEL_FILES = ("source", "ptx", "cubin")


def import_gpuemu(path: Path, options: Options, announce: Callable[[str], None]) -> ImportOutcome:
    """Convert a workspace of the published gpuemu to one of this tool; run none of its code. Raises
    UsageError: The workspace's configuration cannot be read. An op that cannot be imported does not
    raise an error; `ImportOutcome.left` lists it."""
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


class _Ops(msgspec.Struct):
    """Ops of the new workspace, in the order of the published workspace."""

    # The file that defines the ops.
    config: Path
    places: Places
    # List to which ops that cannot be imported are added.
    left: list[SkippedProblem]
    tables: dict[str, Mapping[str, Json]] = {}
    taken: list[ImportedProblem] = []

    def add(self, line: int, table: Mapping[str, Json]) -> None:
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
    """Return a kernel with its paths relative to the new workspace. If the kernel cannot be
    imported, the result is empty and the reason is added to `left`."""
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
    if one.gpu:
        place = {"path": _adapter(at, one), "function": "load", "loads": one.kernel}
        program = {"kind": "callable", **place, "triton_if": ["triton"]}
    table: dict[str, Json] = {"name": one.name, "op": program, "reference": one.reference}
    if one.tolerances:
        table |= {"dtypes": list(one.tolerances), "tolerances": one.tolerances}
    else:
        table["tolerances"] = {"float32": {"atol": 1e-5, "rtol": 0.0}}
    if one.gpu:
        table["isolation"] = "warm"  # importing torch takes seconds: not for each case that fails
    return {**table, "schema": one.schema}


def _adapters(corpus: list[CorpusOp]) -> dict[str, bytes]:
    files = {}
    for at, one in enumerate(corpus):
        if one.gpu:
            text = _OP.format(kernel=one.kernel, gpu=one.stands_in)
            files[_adapter(at, one)] = text.encode()
    if files:
        files |= {f"adapters/{name}": (ADAPTERS / name).read_bytes() for name in _RUNTIME}
    return files


def _original(config: Path, places: Places) -> dict[str, bytes]:
    """Return a copy of the published configuration, if the import will overwrite the original. The
    result maps the name of the new file to its content. It is empty if nothing is overwritten, or
    if an earlier import has made the copy."""
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


# Find the files and the corpus of a published workspace, for use in place or as copies.


MOST_COPIED = 64 << 20
_INTERPRETER = re.compile(r"python(?:3(?:\.\d+)?)?\s+(?=\S)")
_FUNCTION = re.compile(r"(.+\.py):([^:]*)", re.DOTALL)
_MODULE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)")


class PlaceError(Exception):
    """Raised if a program cannot be used in the new workspace; its text is the reason."""


class Places(msgspec.Struct, frozen=True):
    """Finds the files of a workspace of the published gpuemu, and gives their new paths."""

    # Folder of the published workspace.
    root: Path
    # Folder of the new workspace.
    into: Path

    @property
    def in_place(self) -> bool:
        """Tell whether the files are used where they are instead of being copied."""
        return self.root.resolve().is_relative_to(self.into.resolve())

    @property
    def prefix(self) -> str:
        """Return the path to the published workspace, with ``/``; empty where files are copied."""
        if not self.in_place:
            return ""
        below = self.root.resolve().relative_to(self.into.resolve()).as_posix()
        return "" if below == "." else f"{below}/"

    def program(self, value: Json, base: Path | None = None) -> Json:
        """Return the value that names a program in the new workspace's configuration. Raises
        PlaceError: There is no such file in the published workspace, or the program cannot be
        moved."""
        if not isinstance(value, str):
            if self.prefix:
                raise PlaceError("a program that is no text: import into its own folder")
            return value
        text = _INTERPRETER.sub("", value.strip(), count=1)
        function = _FUNCTION.fullmatch(text)
        if function:
            return f"{self.file(function[1], base)}:{function[2]}"
        module = _MODULE.fullmatch(text)
        if module and not text.endswith(".py"):
            return self._module(module[1], module[2])
        return self.file(text, base)

    def _module(self, name: str, function: str) -> str:
        if self.prefix:
            # A dotted name starts at the published workspace, which is not the present one.
            stem = name.replace(".", "/")
            for file in (f"{stem}.py", f"{stem}/__init__.py"):
                if is_file(self.root / file):
                    return f"{self.prefix}{file}:{function}"
        return f"{name}:{function}"

    def file(self, text: str, base: Path | None = None) -> str:
        """Convert a file's path in the published workspace to its path in the new workspace. An
        absolute path may come from another machine. The file is therefore also looked for by the
        last parts of its path. Raises PlaceError: There is no such file in the published
        workspace."""
        root, path = self.root.resolve(), Path(text)
        starts = [folder for folder in (base, self.root) if folder is not None]
        tried = [start / path for start in starts]
        if path.is_absolute():
            parts = PurePosixPath(text).parts[1:]
            tried += [start.joinpath(*parts[at:]) for at in range(len(parts)) for start in starts]
        for place in tried:
            real = Path(os.path.realpath(place))
            if is_file(real) and real.is_relative_to(root):
                return self.prefix + real.relative_to(root).as_posix()
        if any(is_file(place) for place in tried):
            raise PlaceError(f"{text[:200]} lies outside of its workspace; move it there")
        raise PlaceError(f"there is no file {text[:200]}")

    def copies(self, left: list[SkippedProblem]) -> dict[str, bytes]:
        """Return the content of the files to be copied, by path; empty if none need copying. Files
        are not copied if they can be used in place. Files that are too large to copy are added to
        `left`. Raises UsageError: ``import-too-many``."""
        if self.in_place:
            return {}
        found: dict[str, bytes] = {}
        total, seen, into = 0, 0, self.into.resolve()
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(
                name
                for name in folders
                if name not in SKIPPED
                and not name.startswith(".")
                and Path(folder, name).resolve() != into
            )
            for name in sorted(names):
                file = Path(folder, name)
                seen += 1
                if seen > MOST_FILES or total > MOST_COPIED:
                    text = f"{self.root} holds more than {MOST_FILES} files or 64 MiB"
                    hint = "import into that folder itself: its files are then read in place"
                    raise UsageError(Problem("import-too-many", text, hint))
                if name.startswith(".") or file.is_symlink() or not is_file(file):
                    continue
                if file.stat().st_size > LARGEST_FILE:
                    reason = f"more than {LARGEST_FILE} bytes: not copied; copy it if it is needed"
                    left.append(SkippedProblem(str(file), reason))
                    continue
                content = file.read_bytes()
                total += len(content)
                found[file.relative_to(self.root).as_posix()] = content
        return found


META, SCHEMA, RUN = "meta.json", "op_schema.json", "run"
_KNOWN = {"name", "kernel", "reference", "op_schema", "tolerances", "requires_gpu"}
_TOLD = {"description", "version", "author", "license", "tags", "notes", "category", "url"}
"""Keys that inform readers and have no effect."""
_STORED = {"cases", "seeds", "failures", "baseline", "baselines", "seed"}


class CorpusOp(msgspec.Struct, frozen=True):
    """One op of a corpus."""

    name: str
    # Path of the op's `meta.json`.
    path: Path
    # Path of the kernel's file in the new workspace. The file's function `run` takes a dict of
    # arrays.
    kernel: str
    # The value of ``reference`` in the new workspace's configuration.
    reference: Json
    schema: Mapping[str, Json] = {}
    tolerances: Mapping[str, Json] = {}
    # True if the kernel asks for a GPU, and so runs by an adapter, with tensors on the CPU;
    # `stands_in` if that adapter has to stand in for the GPU: Triton and CUDA bring their own.
    gpu: bool = False
    stands_in: bool = False


class _NotTakenError(Exception):
    """Raised for an op that cannot be imported; its text is the reason."""


def find_corpus(places: Places, names: list[str], left: list[SkippedProblem]) -> list[CorpusOp]:
    """Return the ops whose `meta.json` lies in the published workspace or a folder below it. An op
    whose name is already taken, by `names` or by another op, gets a number in its name. The reasons
    why ops or keys are not imported are added to `left`. Raises UsageError: ``import-too-many``,
    ``import-unreadable``."""
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
    theirs = any(word in content for word in (b"triton", b"cpp_extension"))
    op = CorpusOp(
        _name(str(about.get("name") or folder.name)),
        file,
        kernel,
        places.program(texts["reference"], folder),
        schema,
        _tolerances(about.get("tolerances", {}), file),
        gpu=about.get("requires_gpu") is True or theirs or b"cuda" in content,
        stands_in=not theirs,
    )
    left += _left_keys(file, about)
    return op


def _name(text: str) -> str:
    fits = check(type_info(Name), text, (), Reporter("")) is not INVALID and not name_fault(text)
    return text if fits else plain_name(text)


def _left_keys(file: Path, about: Mapping[str, Json]) -> list[SkippedProblem]:
    """List the keys of an op's `meta.json` that are not imported, each with the reason. `about` is
    the parsed content of `file`."""
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
        reason = str(error) or type(error).__name__
        raise _NotTakenError(f"its kernel does not parse: {reason}") from None
    if not any(isinstance(node, ast.FunctionDef) and node.name == RUN for node in tree.body):
        raise _NotTakenError(f"its kernel defines no function {RUN}")


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
    found = check(type_info(Tolerances), value, ("tolerances",), out)
    if found is INVALID or out.problems:
        said = out.problems[0].message if out.problems else "no table"
        raise _NotTakenError(f"its tolerances: {said}")
    return dict(found)

"""Find the files and the corpus of a published gpuemu workspace, for use in place or as copies."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import msgspec
from msgspec.inspect import type_info
from msgspec.structs import replace

from gpuemu_flow.cases.op_schema import WARNING_SLUGS
from gpuemu_flow.cases.schema import parse_schema
from gpuemu_flow.config.check import INVALID, check
from gpuemu_flow.config.fields import Name, Tolerances, name_fault
from gpuemu_flow.config.paths import is_file
from gpuemu_flow.config.report import Reporter
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.syntax import parse_python
from gpuemu_flow.model.types import Json
from gpuemu_flow.services.problems.found import (
    LARGEST_FILE,
    MOST_FILES,
    SKIPPED,
    files_named,
    plain_name,
    read_source,
    unique_name,
)
from gpuemu_flow.services.problems.model import SkippedProblem

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
        """Return the path from the new workspace to the published one, ending in ``/``. The path is
        empty if both workspaces are the same folder, or if the files are copied."""
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

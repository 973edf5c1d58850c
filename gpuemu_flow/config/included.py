"""Read the files that ``include`` names: further ops, kernels and rules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from gpuemu_flow.config.fields import names_of
from gpuemu_flow.config.globs import plain_glob
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.presence import ExpectedFiles
from gpuemu_flow.config.read import ConfigSource, check_file, read_source
from gpuemu_flow.config.report import Reporter, dotted, shown
from gpuemu_flow.config.tables import File
from gpuemu_flow.model.types import Json

MAX_FILES = 10_000
_WILDCARDS = frozenset("*?[")
_CACHE = ".gpuemu-cache"
ARRAYS = ("ops", "rules", "kernels")


class IncludedFiles(Struct):
    """Files that a configuration includes."""

    # The files, in the order of `patterns` and then by name.
    sources: list[ConfigSource] = []
    # Globs relative to the workspace, including those in templates.
    patterns: tuple[str, ...] = ()


def read_included(project: ConfigSource) -> IncludedFiles:
    """Read all files that the project's file includes; report those that cannot be read."""
    given = project.tree.get("include", [])
    root = Path(os.path.realpath(project.path.parent))
    patterns: list[str] = []
    found: dict[Path, None] = {}
    for place, written in enumerate(given):
        where = ("include", place)
        pattern = _pattern(written, where, project.out)
        if pattern:
            patterns.append(pattern)
            found.update(dict.fromkeys(_matches(root, pattern, where, project)))
    if len(found) > MAX_FILES:
        text = f"include matches {len(found)} files, more than {MAX_FILES}"
        project.out.add("config-include", ("include",), text, "put more tables into one file")
        found = {}
    shown_in = Path(project.out.file).parent
    sources = [
        read_source(path, str(shown_in / path.relative_to(root)), check=_check, root=root)
        for path in found
    ]
    patterns += [pattern for source in (project, *sources) for pattern in source.listings]
    return IncludedFiles(sources, tuple(dict.fromkeys(patterns)))


def _pattern(written: str, where: KeyPath, out: Reporter) -> str:
    """Return a glob as a normalised relative path; empty if a problem was reported."""
    path, fault = plain_glob(written)
    if fault:
        text = f"{dotted(where)} = {shown(written)} {fault}"
        out.add("config-include", where, text, "name files of the workspace")
        return ""
    return path.as_posix()


def _matches(root: Path, pattern: str, where: KeyPath, project: ConfigSource) -> list[Path]:
    """Return the files that a glob matches; report links out of `root`, and a missing file.

    A glob with wildcards that matches nothing is reported as well.
    """
    out, found = project.out, []
    own = root / project.path.name
    for path in sorted(root.glob(pattern)):
        if path == own or _CACHE in path.relative_to(root).parts or path.is_dir():
            continue
        if not Path(os.path.realpath(path)).is_relative_to(root):
            text = f"{dotted(where)}: {shown(path.name)} leads out of the workspace through a link"
            out.add("config-include", where, text, "move it inside")
            continue
        found.append(path)
    if not found and not _WILDCARDS & set(pattern):
        text = f"{dotted(where)} = {shown(pattern)} is no file"
        out.add("config-include", where, text, "correct it, or remove it")
    elif not found:
        ExpectedFiles(root).tell_of_none(pattern, where, out)
    return found


def _check(raw: Mapping[str, Json], out: Reporter) -> dict[str, Json]:
    """Check the tables of an included file, which may hold only arrays of tables."""
    allowed = {}
    for name, value in raw.items():
        if name in names_of(File) and name not in ARRAYS:
            text = f"{shown(name)} stands in a file that is included"
            hint = "such a file holds [[ops]], [[kernels]] and [[rules]]: write it into gpuemu.toml"
            out.add("config-include", (name,), text, hint)
        else:
            allowed[name] = value
    return check_file(allowed, out)

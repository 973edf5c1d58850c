"""Read the `gpuemu.toml` of a published gpuemu workspace; list the keys that have no effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from gpuemu_flow.config.keys import Section
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.read import read_source
from gpuemu_flow.config.report import Reporter
from gpuemu_flow.config.tables import FILE, PROJECT
from gpuemu_flow.config.tables_kernels import KERNEL
from gpuemu_flow.config.tables_ops import OP
from gpuemu_flow.config.values import INVALID
from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.problems.model import SkippedProblem
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import DTYPES, Json

CONFIG = "gpuemu.toml"
_UNUSED = ("frameworks", "xla_compatible")
_PASSED_ON = ("policies", "ci", "execution", "daemon", "storage", "targets")
_DEFAULT_TOLERANCES = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-3}
"""Tolerances of gpuemu 0.1.0 for a file without any ``[validation]``."""
_OTHER_TOLERANCE = 1e-5
"""Tolerance of a dtype that a file with ``[validation]`` does not name."""


@dataclass(frozen=True)
class PublishedConfig:
    """A configuration of gpuemu 0.1.0 in today's spelling.

    Attributes
    ----------
    sections : mapping of str to mapping
        All tables of the file except ops and kernels.
    ops, kernels : tuple of (int, mapping)
        The tables, each with the line in which it begins.
    left : tuple of SkippedProblem
        Keys that this tool does not use, each with advice.
    """

    sections: Mapping[str, Json] = field(default_factory=dict)
    ops: tuple[tuple[int, Mapping[str, Json]], ...] = ()
    kernels: tuple[tuple[int, Mapping[str, Json]], ...] = ()
    left: tuple[SkippedProblem, ...] = ()


def read_published(file: Path) -> PublishedConfig:
    """Return the content of a workspace's configuration.

    Raises
    ------
    UsageError
        The file cannot be read, or is not TOML.
    """
    raw: dict[str, Json] = {}

    def check(found: Mapping[str, Json], out: Reporter) -> dict[str, Json]:
        raw.update(found)
        checked: dict[str, Json] = FILE.check(found, (), out)
        return checked

    source = read_source(file, str(file), check=check)
    if not raw and source.out.problems:
        raise UsageError(*source.out.problems)
    tree, out = source.tree, source.out
    sections: dict[str, Json] = {
        "project": _with_effect(PROJECT, tree.get("project", {})),
        "validation": _validation(tree.get("validation"), given="validation" in raw),
        **{name: dict(tree[name]) for name in _PASSED_ON if isinstance(tree.get(name), dict)},
    }
    ops = _tables(tree, "ops", OP, out)
    return PublishedConfig(
        sections,
        tuple((line, _op(table, sections["validation"])) for line, table in ops),
        _tables(tree, "kernels", KERNEL, out),
        (*map(_left, out.problems), *_without_effect(tree, out, str(file))),
    )


def _without_effect(tree: Mapping[str, Json], out: Reporter, file: str) -> list[SkippedProblem]:
    """List the keys in ``[[ops]]`` tables whose values gpuemu 0.1.0 ignores.

    `tree` is the content of `file`. `out` knows the line of each key in it.
    """
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


def _with_effect(section: Section, table: Json) -> dict[str, Json]:
    """Return a table without the keys that have no effect."""
    if not isinstance(table, dict):
        return {}
    return {name: value for name, value in table.items() if not section.by_name[name].unread}


def _tables(
    tree: Mapping[str, Json], name: str, section: Section, out: Reporter
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

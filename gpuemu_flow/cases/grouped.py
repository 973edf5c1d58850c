"""Arguments that consist of several input tensors: complex numbers, and lists of tensors.

Code that draws, lays out, shrinks or reports inputs handles the members as ordinary tensors. Only
the program gets the members joined into one argument. See `runners.grouping`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuemu_flow.cases.op_schema import LIST, ArgumentGroup
from gpuemu_flow.cases.schema_rules import KeyPath, Report
from gpuemu_flow.model.types import COMPLEX, Json

MOST_MEMBERS = 16
PARTS = ("real", "imag")
_PART_DTYPES = {"complex64": "float32", "complex128": "float64"}
_KEPT = ("dims", "dtype", "range", "nonfinite", "strategy")
"""Keys that both parts of a complex input take over, so that a range applies to each part."""


def spread(
    schema: Json, names: Sequence[str], report: Report
) -> tuple[Json, tuple[str, ...], dict[str, ArgumentGroup]]:
    """Replace the groups in an op's schema and input names by the members of the groups. A group is
    one argument of the op that consists of several input tensors, such as a list."""
    inputs = schema.get("inputs") if isinstance(schema, Mapping) else None
    if not isinstance(inputs, Mapping):
        return schema, tuple(names), {}
    groups: dict[str, ArgumentGroup] = {}
    tables: dict[object, object] = {}
    for name, value in inputs.items():
        members = _members(name, value, report)
        if members is None:
            tables[name] = value
            continue
        for member in members:
            if member in inputs:
                text = f"{name!r} has a member {member!r}, and so is an input called"
                report(("inputs", member), "schema-duplicate", text, "rename the input")
        tables.update(members)
        kind = LIST if "list" in value else str(value["dtype"])
        groups[str(name)] = ArgumentGroup(kind, tuple(members))
    if not groups:
        return schema, tuple(names), {}
    spread_names = [m for n in names for m in (groups[n].members if n in groups else (n,))]
    return {**schema, "inputs": tables}, tuple(spread_names), groups


def _members(name: object, value: Any, report: Report) -> dict[str, object] | None:
    """Return the tables of an input's members; None for an input that is one tensor."""
    if not isinstance(value, Mapping):
        return None
    path: KeyPath = ("inputs", str(name))
    is_complex = isinstance(value.get("dtype"), str) and value["dtype"] in COMPLEX
    if "list" not in value:
        return _parts(str(name), value, path, report) if is_complex else None
    counts = value["list"]
    counts = [counts, counts] if isinstance(counts, int) else counts
    plain = {key: one for key, one in value.items() if key != "list"}
    right = (
        isinstance(counts, list)
        and len(counts) == 2
        and all(type(n) is int for n in counts)
        and 0 < counts[0] <= counts[1] <= MOST_MEMBERS
    )
    if not right:
        text = f"{name!r}: list is a number of tensors, or the fewest and the most of them"
        hint = f"for example list = [1, 4]; from 1 to {MOST_MEMBERS}"
        report((*path, "list"), "schema-group", text, hint)
        counts = [1, 1]
    if is_complex or "optional" in value:
        text = f"{name!r}: a list has no {'complex numbers' if is_complex else 'optional'}"
        hint = "make each an input of its own" if is_complex else "list = [1, 4] varies the number"
        report(path, "schema-group", text, hint)
        plain = {key: one for key, one in plain.items() if key not in ("optional", "dtype")}
    fewest, most = counts
    return {
        f"{name}.{n}": {**plain, **({"optional": True} if n >= fewest else {})} for n in range(most)
    }


def _parts(
    name: str, value: Mapping[str, object], path: KeyPath, report: Report
) -> dict[str, object]:
    for key in value:
        if key not in _KEPT:
            text = f"{name!r} is an input of complex numbers, which has no {key!r}"
            report((*path, key), "schema-group", text, f"its keys are {', '.join(_KEPT)}")
    plain = {key: one for key, one in value.items() if key in _KEPT}
    plain["dtype"] = _PART_DTYPES[str(value["dtype"])]
    return {f"{name}.{part}": plain for part in PARTS}

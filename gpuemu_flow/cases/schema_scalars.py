"""Scalars of a schema: arguments that are Python numbers, drawn for each case.

The numbers come from a list or a range.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuemu_flow.cases.op_schema import TensorDef
from gpuemu_flow.cases.schema_rules import MOST_VALUES, Report, RuleReader, shown
from gpuemu_flow.errors import did_you_mean
from gpuemu_flow.value_rules import SCALAR, ValueRule

EXAMPLE = 'scalars = { eps = [1e-6, 1e-3], causal = [true, false], k = { range = [1, "N"] } }'
DTYPES_OF = {"int": "int64", "float": "float64"}


def read_scalars(value: object, dims: tuple[str, ...], report: Report) -> tuple[TensorDef, ...]:
    """Return a schema's scalars as inputs of one element; errors are reported."""
    if not isinstance(value, Mapping) or len(value) > MOST_VALUES:
        report(("scalars",), "schema-type", f"scalars is {shown(value)}", EXAMPLE)
        return ()
    found = (_scalar(str(name), given, dims, report) for name, given in value.items())
    return tuple(scalar for scalar in found if scalar is not None)


def _scalar(name: str, given: object, dims: tuple[str, ...], report: Report) -> TensorDef | None:
    path = ("scalars", name)
    if isinstance(given, (list, tuple)):
        return _listed(name, list(given), report)
    if not isinstance(given, Mapping) or "range" not in given:
        text = f"scalar {name!r} is {shown(given)}"
        report(path, "schema-type", text, f"a list, or a table with a range: {EXAMPLE}")
        return None
    for key in given:
        if key not in ("range", "type"):
            hint = did_you_mean(str(key), ("range", "type"))
            report((*path, str(key)), "config-unknown-key", f"unknown key {shown(key)}", hint)
    low, high = RuleReader(path, name, given, dims, report).bounds()
    floating = any(isinstance(end, float) for end in (low, high))
    kind = given.get("type", "float" if floating else "int")
    if kind not in DTYPES_OF:
        text = f"scalar {name!r} is of type {shown(kind)}"
        report((*path, "type"), "schema-type", text, '"int" or "float"')
        return None
    if low is None or high is None:
        text = f"scalar {name!r} has no two ends"
        report((*path, "range"), "schema-range", text, "range = [lowest, highest]")
        return None
    return TensorDef(name, (), DTYPES_OF[kind], rule=ValueRule(kind=SCALAR, low=low, high=high))


def _listed(name: str, values: list[Any], report: Report) -> TensorDef | None:
    path = ("scalars", name)
    plain = all(v is None or isinstance(v, (bool, int, float, str)) for v in values)
    finite = all(not isinstance(v, float) or abs(v) < float("inf") for v in values)
    small = all(not isinstance(v, int) or abs(v) < 1 << 63 for v in values)
    if not 0 < len(values) <= MOST_VALUES or not (plain and finite and small):
        text = f"scalar {name!r} has no usable values: {shown(values)}"
        report(path, "schema-values", text, f"1 to {MOST_VALUES} finite numbers, booleans or words")
        return None
    if all(isinstance(v, bool) for v in values):
        return TensorDef(name, (), "bool", rule=ValueRule(kind=SCALAR, values=tuple(values)))
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(numbers) == len(values) and len({type(v) for v in values}) == 1:
        dtype = "int64" if isinstance(values[0], int) else "float64"
        return TensorDef(name, (), dtype, rule=ValueRule(kind=SCALAR, values=tuple(values)))
    # Words, and lists of several types: the element is an index into the list.
    chosen = ValueRule(kind=SCALAR, values=tuple(range(len(values))), choices=tuple(values))
    return TensorDef(name, (), "int64", rule=chosen)

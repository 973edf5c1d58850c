"""Schemas of inputs given as tables: their parsing, their faults, their cases."""

from __future__ import annotations

from typing import Any

from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.cases.plan import plan_cases
from gpuemu_flow.cases.schema import parse_schema
from gpuemu_flow.model.types import Case

Table = dict[str, Any]


def schema_of(table: Table) -> OpSchema:
    found: list[object] = []
    schema = parse_schema(table, (), lambda *problem: found.append(problem))
    assert schema is not None, found
    assert found == []
    return schema


def faults(table: Table) -> list[tuple[tuple[str | int, ...], str]]:
    found: list[tuple[tuple[str | int, ...], str]] = []
    parse_schema(table, (), lambda path, slug, message, hint: found.append((path, slug)))
    return found


def cases_of(table: Table, dtype: str = "float32", count: int = 60) -> list[Case]:
    layouts = ("contiguous", "strided", "offset")
    return plan_cases(
        schema_of(table), seed=7, dtype=dtype, count=count, strategies=(), layouts=layouts
    )

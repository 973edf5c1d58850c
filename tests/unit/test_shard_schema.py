"""The schema of shards' reports: it takes all that we write, and says what is wrong with others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from for_each import for_each
from msgspec import Struct
from msgspec.structs import asdict, replace
from report_samples import KERNEL, failed, report_of, sample

import gpuemu_flow.schemas
from gpuemu_flow.cases.cause import Cause, Condition, Counts
from gpuemu_flow.judge.results import (
    KernelChange,
    KernelResult,
    Minimal,
    MinimalInput,
    OpResult,
    Regression,
    ResultChange,
    RunReport,
)
from gpuemu_flow.lint.kernel import KernelRecord
from gpuemu_flow.model.types import (
    Case,
    CheckResult,
    CodePlace,
    ErrorStats,
    Failure,
    FailureKind,
    GeneratedValues,
    InputSpec,
    KernelFinding,
    Lean,
    Unused,
    ValueRule,
    WeakOutput,
)
from gpuemu_flow.report.document import Report, ShardPart, TaskState
from gpuemu_flow.report.shard_document import document_of, rebuilt, violation

PART = ShardPart(
    1, 2, "split", {"softmax": "digest"}, {"softmax": "digest"}, {"--since": ""}, ("softmax",)
)
SCHEMA = json.loads((Path(gpuemu_flow.schemas.__path__[0]) / "report.schema.json").read_text())


def rich() -> Report:
    """A report in which every optional part is there."""
    rule = ValueRule(
        "indices", 0, "N - 1", values=(1, 2.5), share=0.5, nonfinite=False, to="N", of="x", axis=1,
        bits=4, descending=True, allow_empty_rows=True, total=3, relation="<=", other="y",
        columns=((0, "<=", 2),), optional=True, choices=("mean", None, 2),
        generate="make.py:values", unused=Unused("n", 1, (0,)),
    )  # fmt: skip
    given = GeneratedValues("AAAA", "generate-failed", "message", "hint", "make.py", 3)
    spec = InputSpec(
        "x", (2, 3), "int32", low=0.0, high=7.5, ends=1, near=(0.5,), rule=rule, given=given
    )
    place = CodePlace("a.cu", 3, 9)
    finding = KernelFinding(
        "approx", "rule", "kernel", "ld", "words", place, place, (0, 0, 0), (1, 0, 0), 2
    )
    wrong = failed("softmax", 12, notes=("a note",))
    result = replace(
        wrong.result,
        failures=(Failure.of_kernel(FailureKind.RACE, finding), *wrong.result.failures),
        weak=(WeakOutput("y", 1.0, zeros=True),),
        empty=("z",), printed="printed", stderr="said", stdout="told", blank=True, uncounted=True,
        lean=(Lean("y", 0.5, 9, cut=True),),
        stats=replace(wrong.result.stats, max_abs=float("inf"), worst_expected=float("nan")),
    )  # fmt: skip
    wrong = replace(
        wrong, case=replace(wrong.case, inputs=(spec,), dims=(("N", 3),)), result=result
    )
    report = report_of([wrong])
    condition = Condition("multiple", "N", 4, "N is a multiple of 4")
    cause = Cause("sentence", "text", (condition,), Counts(4, 4, 0, 4), (("float32", "12"),))
    of_op = replace(
        report.run.results[0], causes=(cause,), loose=("y",), constant=(("y", float("nan")),)
    )
    kernel = replace(
        KERNEL, changes=(KernelChange("k", "sm_80", "regression", "registers", "m", 1.0, None),)
    )
    changes = (ResultChange("softmax", "float32", "new", "op", None, "failed"),)
    shown = Minimal(
        {"x": MinimalInput("int32", (2, 1), "[[0] [7]]", [[0], [7]])}, "nan", "y", (1, 0),
        float("nan"), 7.0, "expected nan  got 7", "a.py:3", "gpuemu-flow reproduce 1", "1",
    )  # fmt: skip
    run = replace(
        report.run, results=(of_op,), kernels=(kernel,), changes=changes, drawn_seed=5,
        minima={("softmax", 12, "float32"): shown, ("softmax", 13, "float32"): Minimal()},
    )  # fmt: skip
    return replace(report, run=run)


def shard_of(report: Report) -> Any:
    """The part of a report that a merge reads, as it comes out of a file."""
    return json.loads(json.dumps({**asdict(PART), "document": document_of(report)}))


@pytest.mark.parametrize("make", [sample, rich])
def test_what_we_write_fits_and_is_read_again(make: Callable[[], Report]) -> None:
    shard = shard_of(make())
    assert violation(shard) == ""
    again = rebuilt(PART, shard["document"])
    assert json.loads(json.dumps(document_of(again))) == shard["document"]


def definition(*path: str) -> Any:
    """The object in the schema that a path leads to, from the definitions on."""
    found = SCHEMA["definitions"]
    for word in path:
        found = found["items"][int(word)] if word.isdigit() else found[word]
    return found


CASE = ("shard_document", "properties", "cases", "items", "1")
CHECK = ("shard_document", "properties", "cases", "items", "2")
INPUT = (*CASE, "properties", "inputs", "items")
KERNEL_CHANGE = ("shard_kernel", "properties", "changes", "items")


@for_each(
    ("kind", "path", "elsewhere"),
    [
        (Case, CASE, ()),
        (InputSpec, INPUT, ()),
        (ValueRule, (*INPUT, "properties", "rule"), ()),
        (GeneratedValues, (*INPUT, "properties", "given"), ()),
        (CheckResult, CHECK, ()),
        (ErrorStats, (*CHECK, "properties", "stats"), ()),
        (WeakOutput, (*CHECK, "properties", "weak", "items"), ()),
        (Failure, ("shard_failure",), ()),
        (OpResult, ("shard_result",), ("failures", "passing")),
        (Minimal, ("shard_minimal",), ()),
        (MinimalInput, ("shard_minimal", "properties", "inputs", "additionalProperties"), ()),
        (KernelResult, ("shard_kernel",), ()),
        (KernelRecord, ("shard_kernel", "properties", "entries", "items"), ()),
        (KernelChange, KERNEL_CHANGE, ()),
        (TaskState, ("shard_document", "properties", "states", "items"), ()),
        (Regression, ("shard_document", "properties", "regressions", "items"), ()),
    ],
)
def test_the_schema_has_each_field(
    kind: type[Struct], path: tuple[str, ...], elsewhere: tuple[str, ...]
) -> None:
    names = set(kind.__struct_fields__)
    assert set(definition(*path)["properties"]) == names - set(elsewhere)


def test_the_schema_has_each_field_of_the_run() -> None:
    names = set(RunReport.__struct_fields__)
    assert names <= set(definition("shard_document", "properties"))


@for_each(
    ("path", "value", "said"),
    [
        (("index",), "1", "shard.index: '1' is not of type 'integer'"),
        (("index",), 0, "shard.index: 0 is less than the minimum of 1"),
        (("settings", "softmax"), 3, "shard.settings.softmax: 3 is not of type 'string'"),
        (("document", "format"), 2, "shard.document.format: 1 was expected"),
        (("document", "edges", 0), 3, "shard.document.edges[0]: 3 is not of type 'array'"),
        (("document", "timed_out"), "no", "shard.document.timed_out: 'no' is not of type"),
        (("document", "more"), 1, "'more' was unexpected"),
        (("document", "cases", 0, 1, "seed"), 1.0, "cases[0][1].seed: 1.0 is not of type"),
        (("document", "cases", 0, 1, "seed"), True, "cases[0][1].seed: True is not of type"),
        (("document", "cases", 0, 2, "stats", "max_abs"), "big", "'big' does not match"),
        (("document", "minima", 0, 3, "index"), "0", "minima[0][3].index: '0' is not of type"),
        (("document", "kernels", 0, "entries", 0, "metrics", "occupancy", "warps"), "8", "warps"),
    ],
)
def test_the_place_and_the_reason_are_told(path: tuple[Any, ...], value: Any, said: str) -> None:
    shard = shard_of(sample())
    node = shard
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    assert said in violation(shard)


@pytest.mark.parametrize("name", ["places", "tasks", "drawn_seed"])
def test_a_missing_part_is_told(name: str) -> None:
    shard = shard_of(sample())
    del shard["document"][name]
    assert violation(shard) == f"shard.document: '{name}' is a required property"


@pytest.mark.parametrize("other", [None, 3, [], "text", {}])
def test_what_is_no_shard_at_all_is_told(other: Any) -> None:
    assert violation(other).startswith("shard: ")


def test_a_long_reason_is_cut() -> None:
    shard = shard_of(sample())
    shard["document"]["edges"] = "x" * 100_000
    assert len(violation(shard)) <= 300

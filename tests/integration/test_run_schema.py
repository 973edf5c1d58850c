"""schemas/run.schema.json says what ``run --format json`` really prints."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from for_each import for_each
from mini_workspace import Mini
from msgspec.structs import replace

import gpuemu_flow.schemas
from gpuemu_flow.judge.results import CaseVerdict, OpResult, RunReport, TaskCounts
from gpuemu_flow.model.types import Case, CheckResult, Failure, FailureKind, InputSpec, Verdict
from gpuemu_flow.report.json_writer import dumps, run_report
from gpuemu_flow.tasks.diff import compare_summaries

PATH = Path(gpuemu_flow.schemas.__path__[0]) / "run.schema.json"

MORE_OPS = """
[[ops]]
name = "wrong"
op = "scripts/wrong.py:wrong"
reference = "scripts/scale_ref.py"
input_names = ["x"]
schema = { dims = { N = [1, 8, 9] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "infinite"
op = "scripts/infinite.py:infinite"
reference = "scripts/scale_ref.py"
input_names = ["x"]
schema = { dims = { N = [4] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "broken"
op = "scripts/broken.py:broken"
reference = "scripts/scale_ref.py"
input_names = ["x"]
schema = { dims = { N = [4] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "elsewhere"
reference = "scripts/scale_ref.py"
input_names = ["x"]

[targets]
"""


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return dict(json.loads(PATH.read_text(encoding="utf-8")))


def validate(document: object, schema: dict[str, Any]) -> None:
    jsonschema.Draft7Validator(schema).validate(document)


@pytest.fixture
def mixed(mini: Mini) -> Mini:
    """A workspace whose ops pass, fail, crash and are skipped."""
    mini.edit("gpuemu.toml", "\n[targets]\n", MORE_OPS)
    mini.write("scripts/wrong.py", "def wrong(x):\n    return x * 3 + (x.size > 8)\n")
    mini.write(
        "scripts/infinite.py", "def infinite(x):\n    return (x * 3) * x.dtype.type('inf')\n"
    )
    mini.write("scripts/broken.py", "def broken(x):\n    raise ValueError('as planned')\n")
    return mini


def test_the_schema_is_one(schema: dict[str, Any]) -> None:
    jsonschema.Draft7Validator.check_schema(schema)


@pytest.mark.ci
def test_all_verdicts_of_a_real_run_satisfy_it(mixed: Mini, schema: dict[str, Any]) -> None:
    report = mixed.run(code=1)
    validate(report, schema)
    verdicts = {result["op"]: result["verdict"] for result in report["results"]}
    assert verdicts == {
        "scale": "passed", "total": "passed", "relu": "passed", "wrong": "failed",
        "infinite": "failed", "broken": "error", "elsewhere": "skipped",
    }  # fmt: skip
    assert {failure["verdict"] for failure in report["failures"]} == {"failed", "error"}
    infinite = next(r for r in report["results"] if r["op"] == "infinite")
    assert infinite["max_abs"] == "Infinity"
    codes = {"wrong": 1, "broken": 3, "elsewhere": 4, "scale": 0, "generate": 4}
    for word, code in codes.items():
        validate(mixed.run(word, code=code), schema)


def test_a_dry_run_satisfies_it(mini: Mini, schema: dict[str, Any]) -> None:
    before = mini.run("--dry-run")
    validate(before, schema)
    assert before["would_run"]
    mini.run()
    mini.edit("scripts/scale.py", "* 3", "* 2")
    validate(mini.run("--dry-run"), schema)


@pytest.mark.ci
def test_changes_satisfy_it(mini: Mini, schema: dict[str, Any]) -> None:
    mini.run()
    mini.edit("scripts/scale.py", "* 3", "* 2")
    report = mini.run(code=1)
    validate(report, schema)
    (change,) = report["changes"]
    assert (change["kind"], change["what"], change["new"]) == ("regression", "verdict", "failed")


def test_an_interrupted_run_satisfies_it(schema: dict[str, Any]) -> None:
    report = RunReport(TaskCounts(total=3, ran=1, skipped=2), ("op:a:float32",), ())
    validate(json.loads(dumps(run_report(replace(report, interrupted=True)))), schema)


def _unknown_verdict(report: dict[str, Any]) -> None:
    report["results"][0]["verdict"] = "maybe"


def _missing_count(report: dict[str, Any]) -> None:
    del report["results"][0]["inconclusive"]


def _unknown_key(report: dict[str, Any]) -> None:
    report["results"][0]["colour"] = "green"


def _not_a_number(report: dict[str, Any]) -> None:
    report["results"][0]["max_abs"] = "very much"


def _negative(report: dict[str, Any]) -> None:
    report["tasks"]["ran"] = -1


def _other_version(report: dict[str, Any]) -> None:
    report["schema_version"] = 2


def _unknown_kind(report: dict[str, Any]) -> None:
    report["failures"][0]["kind"] = "BadLuck"


def _passed_failure(report: dict[str, Any]) -> None:
    report["failures"][0]["verdict"] = "passed"


@for_each(
    "spoil",
    [
        _unknown_verdict, _missing_count, _unknown_key, _not_a_number, _negative, _other_version,
        _unknown_kind, _passed_failure,
    ],
)  # fmt: skip
def test_what_run_never_prints_is_refused(
    one_failure: dict[str, Any], schema: dict[str, Any], spoil: Any
) -> None:
    report = copy.deepcopy(one_failure)
    validate(report, schema)
    spoil(report)
    with pytest.raises(jsonschema.ValidationError):
        validate(report, schema)


@pytest.fixture(scope="module")
def one_failure() -> dict[str, Any]:
    """The report of one failing case, from the writer itself."""
    inputs = (InputSpec("x", (3,), "float32"),)
    case = Case(0, (1 << 64) - 1, "float32", "strided", "special", inputs)
    reason = Failure(FailureKind.NAN, "a NaN", "result", (2,), float("nan"), 1.0)
    failure = CaseVerdict("softmax", case, CheckResult(Verdict.FAILED, (reason,)))
    failed = OpResult("softmax", "float32", Verdict.FAILED, 1, failed=1, failures=(failure,))
    report = RunReport(TaskCounts(total=1, ran=1), ("op:softmax:float32",), (failed,))
    return dict(json.loads(dumps(run_report(report))))


def _kinds_of_change() -> set[str]:
    """Every kind that the diff stage gives, but for ``new``, which a report leaves out."""
    summaries = [
        {"verdict": verdict, "max_abs": error, "cases_digest": "same"}
        for verdict in ("passed", "failed", "error")
        for error in (0.5, 1.0)
    ]
    return {
        change["kind"]
        for old in summaries
        for new in summaries
        for change in compare_summaries("float32", old, new, 0.1)
    }


def test_the_vocabularies_are_those_of_the_code(schema: dict[str, Any]) -> None:
    definitions = schema["definitions"]
    assert set(definitions["verdict"]["enum"]) == {verdict.value for verdict in Verdict}
    assert set(definitions["change"]["properties"]["kind"]["enum"]) == _kinds_of_change()
    kinds = set(definitions["failure"]["properties"]["kind"]["enum"])
    assert kinds == {kind.value for kind in FailureKind} | {""}

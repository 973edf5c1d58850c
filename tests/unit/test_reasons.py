"""Test that the reason why a case did not pass is data, whatever the messages say."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import msgspec
import pytest

from gpuemu_flow.cases.op_schema import default_schema
from gpuemu_flow.cases.plan import iterate_cases
from gpuemu_flow.judge.results import CaseVerdict, OpResult
from gpuemu_flow.judge.verdicts import reason, run_error_result
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.types import CheckResult, FailureKind, Verdict
from gpuemu_flow.report.document import causes
from gpuemu_flow.workers.api import Program, RunError
from gpuemu_flow.workers.diagnose import explain

PROGRAM = Program(kind="callable", root="/w", input_names=("x",), path="/w/op.py", function="op")
LYING = "the op: op-timeout: op-exception: KeyError: 12"


class OwnError(Exception):
    """An exception that an op has defined itself."""


def raised(error: BaseException, doing: str = "") -> CheckResult:
    return run_error_result(FailureKind.EXECUTION, explain(error, PROGRAM, doing=doing))


@pytest.mark.parametrize(
    ("error", "doing", "wanted"),
    [
        (ValueError(LYING), "", "ValueError"),
        (OwnError(LYING), "", "OwnError"),
        (KeyError(), "", "KeyError"),
        (SystemExit(LYING), "", "op-exit-code"),
        (MemoryError(LYING), "", "op-out-of-memory"),
        (ValueError(LYING), "loading", "op-not-loadable"),
    ],
)
def test_a_reason_is_what_was_raised_or_the_slug(
    error: BaseException, doing: str, wanted: str
) -> None:
    (failure,) = raised(error, doing).failures
    assert reason(failure) == f"{FailureKind.EXECUTION.value}:{wanted}"


def test_reasons_survive_being_stored() -> None:
    result = raised(ValueError("no"))
    stored = convert(json.loads(json.dumps(plain(result))), CheckResult, strict=False)
    assert stored == result
    error = RunError("op-exception", "no", exception="ValueError")
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(error))), RunError) == error


def failing(number: int, **about: Any) -> CaseVerdict:
    error = RunError("op-exception", **{"exception": "ValueError", "file": "op.py"} | about)
    cases = iterate_cases(
        default_schema(["x"]),
        seed=1,
        dtype="float32",
        strategies=("normal",),
        layouts=("contiguous",),
    )
    case = next(islice(cases, number, None))
    return CaseVerdict("it", case, run_error_result(FailureKind.EXECUTION, error))


def groups(*failures: CaseVerdict) -> int:
    result = OpResult("it", "float32", Verdict.ERROR, len(failures), failures=failures)
    return len(causes([result]))


def test_errors_of_one_place_are_one_cause_whatever_they_say() -> None:
    assert groups(failing(0, message="N is 4", line=3), failing(1, message="M: x", line=3)) == 1


def test_errors_of_two_places_or_classes_are_two() -> None:
    one = failing(0, message="bad 1", line=3)
    assert groups(one, failing(1, message="bad 2", line=4)) == 2
    assert groups(one, failing(1, message="bad 2", line=3, exception="KeyError")) == 2

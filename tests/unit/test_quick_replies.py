"""Replies that are written directly as text equal the JSON of the same replies."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gpuemu_flow.daemon.quick_replies import passed_text
from gpuemu_flow.daemon.replies import validation_result
from gpuemu_flow.store.result_records import CountedResult, NewResult
from gpuemu_flow.types import (
    CheckResult,
    ErrorStats,
    Failure,
    FailureKind,
    Json,
    Verdict,
    WeakOutput,
)
from gpuemu_flow.verdicts import Elements

AS_TEXT = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
ABOUT: dict[str, Any] = {"duration_s": 1.25, "timestamp": 1_700_000_000}
FLOATS = [
    name
    for name, value in vars(ErrorStats()).items()
    if isinstance(value, float) and not name.startswith("worst")
]


def _float(rng: random.Random) -> float:
    special = (0.0, -0.0, 5e-324, 1e-7, 1.0, 2.0**53, 1e22, 1.7976931348623157e308)
    return rng.choice((*special, rng.random(), rng.random() * 10.0 ** rng.randint(-300, 300)))


def passed(rng: random.Random, **changed: Any) -> CheckResult:
    """Return a case that passed, with random figures."""
    figures: dict[str, Any] = {name: _float(rng) for name in FLOATS}
    counts = {"count": rng.randint(2, 1000), "num_finite": rng.randint(0, 9)}
    counts |= {"num_no_verdict": rng.randint(0, 1), "num_exceeding": rng.randint(0, 3)}
    return CheckResult(Verdict.PASSED, (), ErrorStats(**counts, **figures), **changed)


def text_of(result: CheckResult, op: str = "op", repro_info: Json = None) -> str:
    """Return the quick text of a reply."""
    elements = Elements.of(result).to_text()
    return passed_text(op, 2**64 - 1, result, elements, repro_info=repro_info, **ABOUT)


def odd(rng: random.Random) -> Iterator[CheckResult]:
    """Yield results that only the general way can write, or whose elements are rare."""
    one = passed(rng)
    yield replace(one, empty=("y",))
    yield replace(one, weak=(WeakOutput("y\u00e4", 0.5), WeakOutput("z", None, True)))
    yield replace(one, blank=True)
    yield replace(one, size_only=True)
    yield replace(one, stats=replace(one.stats, num_no_verdict=0))


def test_the_text_of_a_pass_is_the_json_of_its_reply() -> None:
    rng = random.Random(1)
    quick = 0
    results = [passed(rng) for _ in range(500)] + [each for _ in range(20) for each in odd(rng)]
    for number, result in enumerate(results):
        op, info = (
            ('a "quoted" \\ \u00e4', {"seed": number, "shape": [1, 2]})
            if number % 2
            else ("o", None)
        )
        text = text_of(result, op, info)
        wanted = validation_result(op, 2**64 - 1, result, repro_info=info, **ABOUT)
        assert text in ("", AS_TEXT(wanted))
        quick += bool(text)
    assert quick > 400  # few sums of large floats overflow


@pytest.mark.parametrize(
    "changed",
    [
        {"verdict": Verdict.FAILED},
        {"verdict": Verdict.INCONCLUSIVE},
        {"failures": (Failure(FailureKind.TOLERANCE, "off"),)},
        {"notes": ("a note",)},
        {"stdout": "printed"},
    ],
)
def test_anything_but_a_plain_pass_has_no_quick_text(changed: dict[str, Any]) -> None:
    assert text_of(replace(CheckResult(Verdict.PASSED, (), ErrorStats(count=1)), **changed)) == ""


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1, "1.0", True, None])
def test_a_statistic_of_another_type_or_without_a_number_has_no_quick_text(
    name: str, value: Any
) -> None:
    stats = ErrorStats(count=2, **{name: value})
    assert text_of(CheckResult(Verdict.PASSED, (), stats)) == ""


def test_counted_results_and_records_are_written_as_their_json() -> None:
    rng = random.Random(2)
    results = [passed(rng) for _ in range(200)] + [each for _ in range(20) for each in odd(rng)]
    broken = ErrorStats(count=3, max_abs=float("inf"), max_rel=float("nan"))
    results.append(CheckResult(Verdict.FAILED, (Failure(FailureKind.TOLERANCE, "x"),), broken))
    for result in results:
        counted = CountedResult.of(result, 'id "')
        assert counted.to_text() == AS_TEXT(counted.to_json())
        assert counted.elements.to_text() == AS_TEXT(counted.elements.to_json())
        reply = validation_result("op", 7, result)
        new = NewResult('o"p', 7, "float32", counted, reply, "submit", client={"pid": 1})
        fields = {"op": 'o"p', "seed": 7, "dtype": "float32", "source": "submit"}
        whole = {**fields, "judged": counted.to_json(), "client": {"pid": 1}, "result": reply}
        assert new.encode() == AS_TEXT(whole)[:-1]

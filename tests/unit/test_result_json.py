"""Results survive a message between processes unchanged, in the short form and in the long one."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from gpuemu_flow.judging.result_json import result_from_json, result_to_json
from gpuemu_flow.types import (
    CheckResult,
    ErrorStats,
    Failure,
    FailureKind,
    Json,
    Verdict,
    WeakOutput,
)

PLAIN = CheckResult(
    Verdict.PASSED,
    (),
    ErrorStats(8, 0, 1, 7, *[0.1 * n for n in range(10)], (1, 2), 0.25, -0.0),
)
REMARKS: dict[str, Any] = {
    "failures": (Failure(FailureKind.TOLERANCE, "off", "y", (1,), 1.0, 2.0),),
    "notes": ("a note",),
    "empty": ("z",),
    "weak": (WeakOutput("y", 0.5),),
    "stderr": "e",
    "printed": "p",
    "stdout": "o",
    "blank": True,
    "size_only": True,
}


def sent(result: CheckResult) -> tuple[Json, CheckResult]:
    data = json.loads(json.dumps(result_to_json(result)))
    return data, result_from_json(data)


def test_a_result_with_figures_only_is_short_and_unchanged() -> None:
    rng = random.Random(3)
    for _ in range(200):
        figures = [rng.random() * 10.0 ** rng.randint(-320, 300) for _ in range(12)]
        index = rng.choice([None, (), (3,), (0, 5)])
        stats = ErrorStats(5, 1, 2, 3, *figures[:10], index, *figures[10:])
        result = CheckResult(rng.choice([Verdict.PASSED, Verdict.INCONCLUSIVE]), (), stats)
        data, found = sent(result)
        assert isinstance(data, list)
        assert found == result
        assert repr(found) == repr(result)  # the types and signs, too


@pytest.mark.parametrize("name", REMARKS)
def test_no_remark_is_lost(name: str) -> None:
    result = replace(PLAIN, **{name: REMARKS[name]})
    data, found = sent(result)
    assert isinstance(data, dict)
    assert found == (result if name not in ("stderr", "stdout") else found)
    assert getattr(found, name) == REMARKS[name]


def test_every_remark_has_an_example() -> None:
    assert {*REMARKS, "verdict", "stats"} == set(vars(PLAIN))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["max_abs", "mean_ulp", "worst_expected", "worst_actual"])
def test_figures_that_json_lacks_take_the_long_form(name: str, value: float) -> None:
    result = replace(PLAIN, stats=replace(PLAIN.stats, **{name: value}))
    data, found = sent(result)
    assert isinstance(data, dict)
    assert repr(found) == repr(result)


GOOD = result_to_json(PLAIN)


@pytest.mark.parametrize(
    "data",
    [
        [],
        GOOD[:-1],
        [*GOOD, 0.0],
        ["right", *GOOD[1:]],
        [None, *GOOD[1:]],
        ["passed", 0, *GOOD[2:]],  # nothing was compared
        ["passed", "8", *GOOD[2:]],
        ["passed", True, *GOOD[2:]],
        [*GOOD[:5], [1.0], *GOOD[6:]],
        [*GOOD[:5], "NaN", *GOOD[6:]],
        [*GOOD[:-3], 5, *GOOD[-2:]],
    ],
)
def test_an_answer_of_another_form_is_no_result(data: Json) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        result_from_json(data)

"""failure_rate: Wilson's interval, against published values and by its defining equation."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
from for_each import for_each

from gpuemu_flow.judge.fuzz_results import failure_rate
from gpuemu_flow.model.decoding import plain


@pytest.mark.parametrize(
    ("failed", "total", "low", "high"),
    [
        # Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_values(failed: int, total: int, low: float, high: float) -> None:
    rate = failure_rate(failed, total)
    assert rate.low == pytest.approx(low, abs=5e-5)
    assert rate.high == pytest.approx(high, abs=5e-5)


@for_each("confidence", [0.5, 0.9, 0.99])
@for_each(("failed", "total"), [(1, 2), (3, 100), (99, 100), (7, 12)])
def test_each_end_is_where_the_score_test_rejects(
    failed: int, total: int, confidence: float
) -> None:
    rate = failure_rate(failed, total, confidence)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    for end in (rate.low, rate.high):
        assert abs(rate.rate - end) / math.sqrt(end * (1 - end) / total) == pytest.approx(z)
    assert rate.low < rate.rate < rate.high


def test_none_and_all() -> None:
    none, every = failure_rate(0, 10), failure_rate(10, 10)
    assert (none.low, every.high) == (0.0, 1.0)
    assert none.high == pytest.approx(1 - every.low)
    assert 0 < none.high < 1


def test_no_case_tells_nothing() -> None:
    rate = failure_rate(0, 0)
    assert (rate.rate, rate.low, rate.high) == (0.0, 0.0, 1.0)


def test_the_sentence_and_json() -> None:
    rate = failure_rate(3, 100)
    assert rate.sentence == "3 of 100 fail: 3.0 % (95 % interval 1.0 % to 8.5 %)"
    assert plain(rate)["failed"] == 3
    assert plain(rate)["low"] == rate.low


@pytest.mark.parametrize(
    ("failed", "total", "confidence"), [(-1, 5, 0.95), (6, 5, 0.95), (1, 5, 0.0), (1, 5, 1.0)]
)
def test_impossible_arguments(failed: int, total: int, confidence: float) -> None:
    with pytest.raises(ValueError, match=r"failures among|confidence of"):
        failure_rate(failed, total, confidence)

"""The failure rate of an op over seeds, with the interval in which its true rate lies."""

from __future__ import annotations

import math
from statistics import NormalDist

from msgspec import Struct

from gpuemu_flow.model.types import Json

CONFIDENCE = 0.95


class FailureRate(Struct, frozen=True):
    """Failures among independent cases."""

    failed: int
    total: int
    # Wilson's interval for the true rate at `confidence`
    low: float
    high: float
    confidence: float = CONFIDENCE

    @property
    def rate(self) -> float:
        return self.failed / self.total if self.total else 0.0

    @property
    def sentence(self) -> str:
        """Return the rate in words: ``3 of 100 fail: 3.0 % (95 % interval 1.0 % to 8.5 %)``."""
        return (
            f"{self.failed} of {self.total} fail: {_percent(self.rate)} "
            f"({self.confidence * 100:g} % interval {_percent(self.low)} to {_percent(self.high)})"
        )

    def to_json(self) -> dict[str, Json]:
        return {
            "failed": self.failed,
            "total": self.total,
            "rate": self.rate,
            "low": self.low,
            "high": self.high,
            "confidence": self.confidence,
        }


def failure_rate(failed: int, total: int, confidence: float = CONFIDENCE) -> FailureRate:
    """Return the failure rate with Wilson's score interval.

    Raises ValueError when an argument is outside its range.

    The ends of the interval are computed from:

    - p: the failure rate, ``failed / total``
    - n: `total`
    - z: the standard normal quantile at ``(1 + confidence) / 2``

    They are ``(p + z²/(2n) ± z √(p(1-p)/n + z²/(4n²))) / (1 + z²/n)``.

    The simpler interval ``p ± z √(p(1-p)/n)`` can reach below 0 or above 1, and has no width if
    nothing failed. Wilson's interval avoids both.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", 1927.

    >>> failure_rate(0, 100).sentence
    '0 of 100 fail: 0.0 % (95 % interval 0.0 % to 3.7 %)'
    """
    if not 0 <= failed <= total:
        raise ValueError(f"{failed} failures among {total} cases")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"a confidence of {confidence}")
    if total == 0:
        return FailureRate(0, 0, 0.0, 1.0, confidence)
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    p, weight = failed / total, z * z / total
    middle = p + weight / 2.0
    reach = math.sqrt(weight * (p * (1.0 - p) + weight / 4.0))
    low = 0.0 if failed == 0 else max(0.0, (middle - reach) / (1.0 + weight))
    high = 1.0 if failed == total else min(1.0, (middle + reach) / (1.0 + weight))
    return FailureRate(failed, total, low, high, confidence)


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"

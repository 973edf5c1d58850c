"""Results that clients submitted, before and after they are stored."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import field
from operator import attrgetter

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import CheckResult, Json, Verdict, number_from_json, number_to_json
from gpuemu_flow.verdicts import Elements

TIME_DIGITS = 20  # keys sort as the times do


@dataclass(frozen=True)
class CountedResult:
    """The part of a validation that reports and baselines use."""

    verdict: Verdict
    elements: Elements = field(default_factory=Elements)
    max_abs: float = 0.0
    max_rel: float = 0.0
    max_ulp: float = 0.0
    tolerance_used: float = 0.0
    failure_id: str = ""

    @classmethod
    def of(cls, result: CheckResult, failure_id: str = "") -> CountedResult:
        """Make a CountedResult from a case's result."""
        stats = result.stats
        return cls(
            result.verdict,
            Elements.of(result),
            float(stats.max_abs),
            float(stats.max_rel),
            float(stats.max_ulp),
            float(stats.tolerance_used),
            failure_id,
        )

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse."""
        figures = _read_figures(self)
        if not math.isfinite(sum(figures)):
            figures = tuple(map(number_to_json, figures))
        return {
            "verdict": self.verdict.value,
            "elements": self.elements.to_json(),
            **dict(zip(_FIGURES, figures, strict=True)),
            "failure_id": self.failure_id,
        }

    @classmethod
    def from_json(cls, data: Json) -> CountedResult:
        """Rebuild from `to_json`'s result, or raise KeyError, TypeError or ValueError."""
        return cls(
            Verdict(data["verdict"]),
            Elements.from_json(data["elements"]),
            **{name: float(number_from_json(data[name])) for name in _FIGURES},
            failure_id=str(data["failure_id"]),
        )


_FIGURES = ("max_abs", "max_rel", "max_ulp", "tolerance_used")
_read_figures = attrgetter(*_FIGURES)


@dataclass(frozen=True)
class StoredResult:
    """The stored result of one validation."""

    key: str
    op: str
    seed: int
    dtype: str
    source: str
    judged_by: str
    judged: CountedResult
    text: str
    client: Mapping[str, Json] = field(default_factory=dict)

    @property
    def result(self) -> dict[str, Json]:
        """Return the daemon's reply."""
        found: dict[str, Json] = json.loads(self.text)
        return found

    @property
    def origin(self) -> str:
        """Return the name of the function that computed the output; empty if unknown."""
        return str(self.client.get("origin", ""))

    @property
    def batch(self) -> str:
        """Return what the submissions of one command have in common; empty if unknown."""
        return str(self.client.get("id", ""))

    @property
    def time_ns(self) -> int:
        """Return the Unix time in ns."""
        return int(self.key[:TIME_DIGITS])


@dataclass
class NewResult:
    """A validation that is to be stored; see `StoredResult`. `result` is the daemon's reply."""

    op: str
    seed: int
    dtype: str
    judged: CountedResult
    result: Mapping[str, Json]
    source: str
    judged_by: str = ""
    client: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """Return the record to store."""
        return {
            "op": self.op,
            "seed": int(self.seed),
            "dtype": self.dtype,
            "source": self.source,
            "judged": self.judged.to_json(),
            "client": dict(self.client),
            "result": dict(self.result),
            "judged_by": self.judged_by,
        }

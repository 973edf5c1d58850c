"""Read the parts of ``gpuemu-flow ci --format json`` reports that the wire protocol needs."""

from __future__ import annotations

import time
from collections.abc import Mapping

from gpuemu_flow.artifacts.kernel_record import KernelRecord
from gpuemu_flow.daemon.replies import LARGEST
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json, number_from_json

_COUNTED = ("total_tests", "passed", "skipped", "inconclusive", "duration_ms")
_KERNEL = tuple(KernelRecord.__dataclass_fields__)


@dataclass(frozen=True)
class CiFailure:
    """A failing case in a report.

    Attributes
    ----------
    op : str
    seed : int
    verdict, kind : str
    messages : tuple of str
    max_abs, max_rel : float
        May be NaN or infinite.
    """

    op: str
    seed: int
    verdict: str
    kind: str
    messages: tuple[str, ...]
    max_abs: float
    max_rel: float

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> CiFailure:
        """Read one of the report's ``failures``, or raise KeyError, TypeError or ValueError."""
        errors = (float(number_from_json(data[name])) for name in ("max_abs", "max_rel"))
        words = (str(data["verdict"]), str(data["kind"]), tuple(data["messages"]))
        return cls(str(data["op"]), int(data["seed"]), *words, *errors)

    def to_wire(self) -> dict[str, Json]:
        """Return the failure in the protocol's form, ``ValidationResult``."""
        return {
            "passed": False,
            "seed": self.seed,
            "op_name": self.op,
            "max_diff": _finite(self.max_abs),
            "max_rel_diff": _finite(self.max_rel),
            "failures": [
                {
                    "kind": self.kind,
                    "message": text,
                    "index": None,
                    "expected": None,
                    "actual": None,
                }
                for text in self.messages or (self.verdict,)
            ],
            "timestamp": int(time.time()),
            "duration_ms": 0,
            "repro_info": None,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class CiReport:
    """Counts, failing cases and linted kernels of a report."""

    counts: Mapping[str, int]
    failed: int
    failures: tuple[CiFailure, ...]
    kernels: tuple[KernelRecord, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> CiReport:
        """Read a report, or raise KeyError, TypeError or ValueError if `data` is not a report."""
        return cls(
            counts={name: data[name] for name in _COUNTED},
            failed=data["failed"] + data["errors"],
            failures=tuple(map(CiFailure.from_json, data["failures"])),
            kernels=tuple(
                KernelRecord.from_json({name: record[name] for name in _KERNEL})
                for record in data["kernels"]
                if record["metrics"] is not None  # else there was nothing to lint
            ),
        )

    def summary(self) -> dict[str, Json]:
        """Return the fields of ``CiRunComplete`` that come from the report."""
        return {
            **self.counts,
            "failed": self.failed,
            "timestamp": int(time.time()),
            "validation_results": [failure.to_wire() for failure in self.failures],
        }


def _finite(number: float) -> float:
    return number if -LARGEST <= number <= LARGEST else LARGEST

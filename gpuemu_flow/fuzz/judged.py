"""One judged case of a fuzz run, as data."""

from __future__ import annotations

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Case, CheckResult


@dataclass(frozen=True)
class Judged:
    """One case of a fuzz run."""

    number: int
    case: Case
    result: CheckResult
    cached: bool = False

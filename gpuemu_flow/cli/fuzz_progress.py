"""The live display of a fuzz run on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpuemu_flow.cli.progress import live_display
from gpuemu_flow.fuzz.outcome import Judged
from gpuemu_flow.types import Verdict

REDRAWS_PER_SECOND = 10


class FuzzDisplay:
    """Counts cases and renders the progress; the elapsed time advances even while an op hangs."""

    def __init__(self) -> None:
        self._op = ""
        self._wanted: int | None = None
        self._begin = 0.0
        self._done = self._failed = 0
        self._worst = 0.0
        self._classes: set[tuple[str, str, str]] = set()

    def start(self, op: str, wanted: int | None) -> None:
        """Begin the display of an op."""
        self._op, self._wanted = op, wanted
        self._begin = time.monotonic()
        self._done = self._failed = 0
        self._worst = 0.0
        self._classes = set()

    def case(self, judged: Judged) -> None:
        """Count a case that was judged."""
        self._done += 1
        result = judged.result
        if result.verdict in (Verdict.FAILED, Verdict.ERROR):
            self._failed += 1
        elif result.verdict is Verdict.PASSED:
            self._worst = max(self._worst, result.stats.tolerance_used)
        case = judged.case
        self._classes.add((case.shape_class, case.layout, case.strategy))

    def line(self) -> str:
        """Return the progress of the run as one line."""
        if not self._op:
            return ""
        elapsed = max(time.monotonic() - self._begin, 1e-9)
        total = f"/{self._wanted}" if self._wanted else ""
        return (
            f"{self._op}  {self._done}{total} cases  {self._done / elapsed:.0f} cases/s  "
            f"{elapsed:.1f} s  {self._failed} failures  worst margin {self._worst:.0%}  "
            f"{len(self._classes)} combinations of shape, layout and values"
        )


@contextmanager
def fuzz_display(*, live: bool) -> Iterator[FuzzDisplay]:
    """Yield a display; if `live`, draw it on the terminal."""
    display = FuzzDisplay()
    if not live:
        yield display
        return
    with live_display(display.line, REDRAWS_PER_SECOND):
        yield display

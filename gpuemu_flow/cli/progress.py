"""The live display of a run on a terminal."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from gpuemu_flow.build.graph import Listener, TaskEvent
from gpuemu_flow.cli.options import say
from gpuemu_flow.model.plain_text import printable
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.tasks.base import Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpuemu_flow.fuzz.outcome import Judged


def waiting_for(holder: str) -> str:
    """Return the line to show while this process waits for another process, `holder`."""
    return f"waiting for {printable(holder)}; Ctrl-C gives up"


def say_waiting(holder: str) -> None:
    """Print on standard error that another process holds the workspace's lock."""
    _show(waiting_for(holder))


def say_looking(op: str) -> None:
    """Print on standard error that new cases of an op are run, which may take a minute."""
    _show(f"looking for the cause of the failures of {printable(op)}")


def _show(text: str) -> None:
    """Print progress on standard error; do nothing if the terminal was closed. The command has to
    go on, to store what it has found."""
    try:
        say(text, err=True)
    except OSError as error:
        if error.errno != errno.EIO:
            raise


class LiveListener(Listener):
    """A live display, drawn by rich: stage, op, cases done, elapsed time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = ""
        self._begin = time.monotonic()
        self._todo = 0
        self._finished = 0
        self._fresh: dict[str, int] = {}
        self._running: dict[str, Progress] = {}

    def on_plan(self, total: int, todo: int) -> None:
        self._todo = todo
        self._waiting = ""

    def on_task(self, event: TaskEvent) -> None:
        with self._lock:
            self._waiting = ""
            if event.what == "started":
                self._running[event.task] = Progress(event.task, 0, 0, 0)
            else:
                self._running.pop(event.task, None)
                self._finished += 1

    def on_progress(self, progress: Progress) -> None:
        with self._lock:
            self._fresh[progress.task] = progress.fresh
            if progress.task in self._running:
                self._running[progress.task] = progress

    def on_wait(self, holder: str) -> None:
        with self._lock:
            self._waiting = waiting_for(holder)

    def picture(self) -> str:
        """Return the text to display; rich calls this several times a second."""
        with self._lock:
            return self._waiting or self._picture()

    def _picture(self) -> str:
        now = time.monotonic()
        elapsed = now - self._begin
        cases = sum(self._fresh.values())
        rate = cases / elapsed if elapsed > 0 else 0.0
        lines = [
            f"{self._finished}/{self._todo} tasks  {elapsed:.1f} s  "
            f"{rate:.{0 if rate >= 10 else 1}f} cases/s"
        ]
        for progress in self._running.values():
            stage, _, rest = progress.task.partition(":")
            count = f"{progress.done}/{progress.total}" if progress.total else ""
            lines.append(f"  {stage:10} {rest:32} {count}")
        return "\n".join(lines)


class PlainListener(Listener):
    """A display that prints only the reason for a long wait."""

    def on_wait(self, holder: str) -> None:
        say_waiting(holder)


@contextmanager
def make_listener(*, live: bool) -> Iterator[Listener]:
    """Yield a live display on a terminal, else a `PlainListener`."""
    if not live:
        yield PlainListener()
        return
    from rich.text import Text  # noqa: PLC0415 - only a terminal needs it

    listener = LiveListener()
    with live_display(lambda: Text(listener.picture()), 12):
        yield listener


@contextmanager
def live_display(picture: Callable[[], RenderableType], per_second: float) -> Iterator[None]:
    """Draw ``picture()`` on the terminal `per_second` times a second; erase it at the end. It is
    not an error if the terminal was closed, so that results of an interrupted run are kept."""
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.live import Live  # noqa: PLC0415

    display = Live(
        console=Console(),
        refresh_per_second=per_second,
        transient=True,
        get_renderable=picture,
    )
    display.start()
    try:
        yield
    finally:
        with suppress(OSError):
            display.stop()


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
        self._op, self._wanted = op, wanted
        self._begin = time.monotonic()
        self._done = self._failed = 0
        self._worst = 0.0
        self._classes = set()

    def case(self, judged: Judged) -> None:
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

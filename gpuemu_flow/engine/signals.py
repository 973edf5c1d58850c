"""Handle SIGINT and SIGTERM so that a run can end in an orderly way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

WAKE_SECONDS = 0.2
"""Longest uninterrupted sleep of the main thread.

Python runs a signal's handler only between two instructions of the main thread. If a signal arrives
when the main thread has just decided to sleep, the handler runs only after the sleep."""


@contextmanager
def on_signals(react: Callable[[], None]) -> Iterator[None]:
    """Call `react` on the first SIGINT or SIGTERM in the context; end the process on the second.

    Outside of the main thread, do nothing, since Python handles no signals there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = False

    def handler(_number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            raise KeyboardInterrupt
        seen = True
        react()

    with handled(handler, signal.SIGINT, signal.SIGTERM):
        yield


@contextmanager
def handled(
    handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals
) -> Iterator[None]:
    """Set the handler of some signals inside the context, and then restore the old handlers."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


@contextmanager
def cancel_on_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT or SIGTERM sets."""
    cancel = threading.Event()
    with on_signals(cancel.set):
        yield cancel

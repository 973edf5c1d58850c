"""Handle the signals that ask a process to end, so that a command can end in an orderly way."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

WAKE_SECONDS = 0.2
"""Longest uninterrupted sleep of the main thread.

Python runs a signal's handler only between two instructions of the main thread. If a signal arrives
when the main thread has just decided to sleep, the handler runs only after the sleep."""


REPEAT_SECONDS = 0.05
"""Seconds after which a signal is sent again whose exception Python has ignored."""


class TerminatedError(KeyboardInterrupt):
    """Raised by SIGTERM and SIGHUP where SIGINT raises KeyboardInterrupt."""


@contextmanager
def on_signals(react: Callable[[], None]) -> Iterator[None]:
    """Inside the context, call `react` on the first SIGINT, SIGTERM or SIGHUP. The second signal
    raises KeyboardInterrupt. A second SIGHUP is ignored, since a closing terminal sends several. In
    a thread other than the main thread, the context has no effect, since Python handles no signals
    there."""
    with _reacting(react, (signal.SIGINT, *_termination_signals())):
        yield


@contextmanager
def terminating_as_interrupting() -> Iterator[None]:
    """Inside the context, let SIGTERM and SIGHUP end a command as Ctrl-C does. They raise
    `TerminatedError`."""

    def end() -> None:
        raise TerminatedError

    with _reacting(end, _termination_signals()):
        yield


@contextmanager
def repeating_interrupts() -> Iterator[None]:
    """Inside the context, send a signal again if Python has ignored its KeyboardInterrupt. Python
    ignores exceptions in finalizers and in some callbacks, so that a signal that arrives there
    would have no effect. If the context ends first, it raises KeyboardInterrupt."""
    previous, waiting = sys.unraisablehook, list[threading.Timer]()

    def hook(ignored: sys.UnraisableHookArgs) -> None:
        if isinstance(ignored.exc_value, KeyboardInterrupt):
            # Not at once: it would arrive in this function, and be ignored, too.
            timer = threading.Timer(REPEAT_SECONDS, repeat)
            timer.daemon = True
            waiting.append(timer)
            timer.start()
        else:
            previous(ignored)

    def repeat() -> None:
        waiting.clear()
        ignores = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        number = signal.SIGTERM if ignores else signal.SIGINT
        signal.pthread_kill(threading.main_thread().ident or 0, number)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = previous
        if waiting:
            for timer in waiting:
                timer.cancel()
            raise KeyboardInterrupt


@contextmanager
def unwrapped_interrupts() -> Iterator[None]:
    """Inside the context, raise KeyboardInterrupt itself where Python has wrapped it. Python before
    3.12 raises RuntimeError in place of an exception in ``__set_name__``. That method runs for each
    field of a data class, thus while many modules are imported."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        raise


def _termination_signals() -> tuple[signal.Signals, ...]:
    """Return those of SIGTERM and SIGHUP that this process does not ignore. For example, a process
    that ``nohup`` started ignores SIGHUP."""
    both = (signal.SIGTERM, signal.SIGHUP)
    return tuple(number for number in both if signal.getsignal(number) is not signal.SIG_IGN)


@contextmanager
def _reacting(react: Callable[[], None], numbers: Sequence[signal.Signals]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = False

    def handler(number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        if not seen:
            seen = True
            react()
        elif number != signal.SIGHUP:  # a terminal that closes sends several
            raise KeyboardInterrupt

    with handled(handler, *numbers):
        yield


@contextmanager
def handled(
    handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals
) -> Iterator[None]:
    """Inside the context, let `handler` handle the given signals. At the end, the signals get their
    former handlers again."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


@contextmanager
def cancel_on_signals() -> Iterator[threading.Event]:
    """Yield an event that is set when SIGINT, SIGTERM or SIGHUP arrives."""
    cancel = threading.Event()
    with on_signals(cancel.set):
        yield cancel

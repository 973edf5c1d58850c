"""Wait until a watched file is saved."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from gpuemu_flow.inputs.files import Stamp, stamp_of
from gpuemu_flow.watch.files import FileWatch

POLL_S = 0.1
SETTLED_S = 0.03  # an editor writes, syncs and renames within this
LONGEST_SETTLING_S = 0.25
LOOK_ANYWAY_MS = 200  # network file systems send no events


class Alarm(Protocol):
    """Waits until something may have been saved."""

    def wait(self, folders: frozenset[str]) -> None:
        """Wait for an event in one of `folders`, or for a limited time."""


class Polling:
    """Alarm that polls; works everywhere."""

    def wait(self, folders: frozenset[str]) -> None:
        """Sleep for `POLL_S` seconds."""
        time.sleep(POLL_S)


class Events:
    """Alarm that uses the operating system's events (watchfiles), and polls if these fail."""

    def __init__(self) -> None:
        self._folders: frozenset[str] = frozenset()
        self._events: Iterator[object] | None = None

    def wait(self, folders: frozenset[str]) -> None:
        """Wait for an event, at most `LOOK_ANYWAY_MS` milliseconds."""
        from watchfiles import watch  # noqa: PLC0415 - an extra

        if self._events is None or folders != self._folders:
            self.close()
            self._folders = folders
            self._events = watch(
                *sorted(folders),
                watch_filter=None,
                debounce=int(SETTLED_S * 1e3),
                step=10,
                rust_timeout=LOOK_ANYWAY_MS,
                yield_on_timeout=True,
                recursive=False,
                ignore_permission_denied=True,
            )
        try:
            next(self._events)
        except (OSError, RuntimeError, StopIteration):  # no inotify watches left, a folder gone
            self._events = None
            time.sleep(POLL_S)

    def close(self) -> None:
        """Release the watches of the operating system."""
        events, self._events = self._events, None
        if events is not None and hasattr(events, "close"):
            events.close()


@contextmanager
def open_alarm(*, poll: bool) -> Iterator[Alarm]:
    """Yield `Polling` if `poll` is True or watchfiles is not installed, else `Events`."""
    from importlib.util import find_spec  # noqa: PLC0415

    if poll or find_spec("watchfiles") is None:
        yield Polling()
        return
    with closing(Events()) as events:
        yield events


def wait_for_save(files: FileWatch, alarm: Alarm) -> set[str]:
    """Wait until watched files are saved and no longer change; return their paths."""
    found = files.saved()
    while not found:
        alarm.wait(files.folders)
        found = files.saved()
    deadline = time.monotonic() + LONGEST_SETTLING_S
    state = _stamps(files.root, found)
    while time.monotonic() < deadline:
        time.sleep(SETTLED_S)
        found |= files.saved()
        last, state = state, _stamps(files.root, found)
        if last == state:
            break
    return found


def _stamps(root: Path, paths: Iterable[str]) -> dict[str, Stamp | None]:
    return {path: stamp_of(root / path) for path in paths}

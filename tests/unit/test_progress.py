"""Progress that nobody sees: a command whose terminal was closed still stores its results."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from gpuemu_flow.cli import progress
from gpuemu_flow.tasks.base import Progress

SHOW: dict[str, Callable[[], None]] = {
    "waiting": lambda: progress.say_waiting("a run"),
    "looking": lambda: progress.say_looking("scale"),
    "plan": lambda: progress.LineListener().on_plan(3, 2),
    "progress": lambda: progress.LineListener().on_progress(Progress("compare:scale", 1, 4, 1)),
}


@pytest.mark.parametrize("show", SHOW.values(), ids=SHOW)
def test_a_closed_terminal_is_no_error(
    show: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def closed(text: str, **_: object) -> None:
        told.append(text)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(progress, "say", closed)
    show()
    assert len(told) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE])
@pytest.mark.parametrize("show", SHOW.values(), ids=SHOW)
def test_other_errors_are_raised(
    show: Callable[[], None], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: str, **__: object) -> None:
        raise OSError(number, "")

    monkeypatch.setattr(progress, "say", fails)
    with pytest.raises(OSError):
        show()

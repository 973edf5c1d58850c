"""A file system's clock counts in ticks: who looks twice waits for the next, but not for ever."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpuemu_flow.build.discovery import Discovery
from gpuemu_flow.build.files import FileTable
from gpuemu_flow.build.run import Executor
from gpuemu_flow.model.types import ConfiguredEnv, Observation


class Counted(Discovery):
    """Counts how often it was asked for the time."""

    asked = 0
    stands_at: int | None = None

    def now(self) -> int:
        self.asked += 1
        return super().now() if self.stands_at is None else self.stands_at


def looking(root: Path) -> Counted:
    return Counted(FileTable(root), {}, staging=root / "staging")


def wait(inputs: Counted, begun: int) -> None:
    made: Any = SimpleNamespace(_context=SimpleNamespace(inputs=inputs))
    Executor._wait_until_after(made, begun)


def test_after_the_wait_what_was_replaced_before_it_has_not_moved(tmp_path: Path) -> None:
    inputs = looking(tmp_path)
    source = tmp_path / "fac.py"
    source.write_text("F = 4")
    names = inputs.discover(Observation(files=frozenset({str(source)})), ConfiguredEnv())
    for text in ("F = 3", "F = 4"):  # away and back: the content is as it was
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").replace(source)
    begun = source.stat().st_ctime_ns
    assert inputs.moved(names, begun) == ["fac.py"], "in the tick of the change nothing is sure"
    wait(inputs, begun)
    assert inputs.now() > begun
    assert inputs.moved(names, inputs.now()) == []


def test_a_clock_that_stands_still_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    inputs = looking(tmp_path)
    inputs.stands_at = 7
    wait(inputs, 7)
    assert 2 < inputs.asked < 1000
    inputs.asked = 0
    wait(inputs, 6)
    assert inputs.asked == 1, "it has gone on already"

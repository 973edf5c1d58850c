"""A watch of a broken configuration: what sets it off, and what is only written by programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuemu_flow.build.session import RunOptions
from gpuemu_flow.cli.watch import WatchState
from gpuemu_flow.judge.results import RunReport
from gpuemu_flow.model.errors import ConfigError, Problem
from gpuemu_flow.services import watched_files as watch_files
from gpuemu_flow.services.watched_files import PATIENCE_S, FileWatch

BROKEN = Problem("config-syntax", "not valid TOML", file="gpuemu.toml", line=3)
OTHER = Problem("config-path-missing", "scripts/op.py is missing", file="gpuemu.toml", line=4)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Broken(WatchState):
    """A watch whose configuration has the problem that the test sets."""

    problem: Problem = BROKEN

    def _run(self) -> RunReport:
        raise ConfigError(self.problem)


@pytest.fixture
def state(tmp_path: Path) -> Broken:
    """A watch that has shown its first problem."""
    config = tmp_path / "gpuemu.toml"
    config.write_text("[[[")
    (tmp_path / "run.log").write_text("a")
    (tmp_path / "op.py").write_text("a")
    files = FileWatch(tmp_path, clock=Clock())
    files.follow_config(config)
    found = Broken(config, files, RunOptions(), None)
    found.turn(set())
    return found


def wait(state: Broken, seconds: float) -> None:
    clock = state.files.clock
    assert isinstance(clock, Clock)
    clock.now += seconds


def grow(path: Path) -> None:
    with path.open("a") as file:
        file.write("more\n")


def test_a_file_that_changes_all_the_time_is_looked_at_now_and_then(state: Broken) -> None:
    root = state.files.root
    looks = 0
    for _ in range(100):
        grow(root / "run.log")
        saved = state.files.saved()
        assert saved <= {"run.log"}
        if saved:
            state.turn(saved)
            looks += 1
        wait(state, PATIENCE_S / 20)
    assert 5 <= looks <= 6


@pytest.mark.parametrize("suffix", ["tmp", "py", "pyc", "toml"])
def test_temporary_files_that_come_and_go_are_looked_at_now_and_then(
    state: Broken, suffix: str
) -> None:
    root = state.files.root
    looks = 0
    for number in range(100):
        (root / f"{number}.{suffix}").touch()
        if number > 2:
            (root / f"{number - 3}.{suffix}").unlink()
        saved = state.files.saved()
        if saved:
            state.turn(saved)
            looks += 1
        wait(state, PATIENCE_S / 20)
    assert 5 <= looks <= 6
    assert len(state.files._files) < 20, "names that are gone are forgotten"


@pytest.mark.parametrize(
    "name",
    [".op.py.swp", "#op.py#", ".git/index", "__pycache__/op.pyc", ".gpuemu-cache/lock"],
)
def test_what_editors_and_caches_write_sets_nothing_off(state: Broken, name: str) -> None:
    path = state.files.root / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert state.files.saved() == set()
    state.files.refresh()
    grow(path)
    assert state.files.saved() == set()


def test_what_mends_it_counts_at_once_beside_a_file_that_changes_all_the_time(
    state: Broken,
) -> None:
    root = state.files.root
    grow(root / "run.log")
    state.turn(state.files.saved())
    grow(root / "run.log")
    assert state.files.saved() == set()
    grow(root / "gpuemu.toml")
    assert state.files.saved() == {"gpuemu.toml"}
    state.turn({"gpuemu.toml"})
    grow(root / "gpuemu.toml")
    assert state.files.saved() == {"gpuemu.toml"}, "the second save of the configuration, too"
    state.files.refresh()
    (root / "op.py").rename(root / "op2.py")
    assert state.files.saved() == {"op.py", "op2.py"}
    state.problem = OTHER
    state.turn({"op.py", "op2.py"})
    (root / "op2.py").rename(root / "op.py")
    assert state.files.saved() == {"op.py", "op2.py"}
    state.problem = BROKEN
    state.turn({"op.py", "op2.py"})
    (root / "more").mkdir()
    (root / "more" / "ops.toml").touch()
    assert state.files.saved() == {"more"}


def test_a_change_that_gives_another_problem_was_not_in_vain(state: Broken) -> None:
    root = state.files.root
    grow(root / "run.log")
    state.problem = OTHER
    state.turn(state.files.saved())
    grow(root / "run.log")
    assert state.files.saved() == {"run.log"}


def test_a_log_is_mentioned_only_if_its_change_had_an_effect(
    state: Broken, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log may be this command's own output: each mention would change it again."""
    capsys.readouterr()
    state.turn({"run.log"})
    assert capsys.readouterr().out == ""
    state.problem = OTHER
    state.turn({"run.log"})
    told = capsys.readouterr()
    assert "saved: run.log" in told.out and "config-path-missing" in told.err
    state.turn({"run.log", "op.py"})
    told = capsys.readouterr()
    assert "saved: op.py, run.log" in told.out and "config-path-missing" in told.err
    state.turn({"gpuemu.toml"})
    assert "saved: gpuemu.toml" in capsys.readouterr().out


@pytest.mark.parametrize("anything", [True, False])
def test_the_file_that_it_prints_to_is_no_input(
    state: Broken, anything: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = state.files.root
    with (root / "run.log").open("a") as log:
        monkeypatch.setattr(watch_files, "_OUTPUTS", (log.fileno(),))
        state.files.anything = anything
        log.write("gpuemu.toml:3: config-syntax")
        log.flush()
        assert state.files.saved() == set()
        os.truncate(root / "op.py", 0)
        assert state.files.saved() == {"op.py"}

"""Each kind of process is killed at random moments: what was finished is kept, nothing is wrong.

``FAULT_ROUNDS=500`` is the full count, over all kinds; `docs/caching.md` says what it found.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disturbed import Disturbed, Leftovers, Started, adopting, figures, kill, parent_of, result_of
from once import once

ROUNDS = int(os.environ.get("FAULT_ROUNDS", "8"))
KINDS = ("run", "forkserver", "op", "reference", "rule", "watch", "all")
EACH = max(1, ROUNDS // (len(KINDS) + 3))
"""Rounds of each kind; ``fuzz`` has its own, and the daemon and its worker `test_kill_9_daemon`."""


@pytest.fixture(autouse=True)
def _adopting() -> Iterator[None]:
    with adopting():
        yield


@pytest.fixture
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[Any, ...]], float]:
    """Results of a run that nobody disturbs, and the seconds that it takes."""

    def make(folder: Path) -> tuple[list[tuple[Any, ...]], float]:
        disturbed = Disturbed(folder)
        begin = time.monotonic()
        found = figures(disturbed.mini.run())
        return found, time.monotonic() - begin

    return once(tmp_path_factory, "disturbed", make)


def moments(kind: str) -> Iterator[float]:
    """Parts of a time, each from a slice of its own: a few reach all of it."""
    rng = random.Random(kind)
    return iter(rng.sample([(n + rng.random()) / EACH for n in range(EACH)], EACH))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_a_random_moment(
    tmp_path: Path, undisturbed: tuple[list[tuple[Any, ...]], float], kind: str
) -> None:
    expected, seconds = undisturbed
    disturbed = Disturbed(tmp_path)
    for number, part in enumerate(moments(kind)):
        shutil.rmtree(disturbed.cache, ignore_errors=True)
        shutil.rmtree(disturbed.mini.root / "build", ignore_errors=True)
        disturbed.forget_programs()
        left = Leftovers()
        if kind in ("run", "all"):
            _kill_run(disturbed, seconds * part, below=kind == "all")
        elif kind == "watch":
            _kill_watch(disturbed, seconds * part, below=number % 2 == 1)
        else:
            _kill_program(disturbed, kind, 0.08 * part, expected)
        left.check()
        made = sorted(disturbed.pids.glob("made-*"))
        disturbed.check_after(expected)
        if kind in ("run", "all", "watch") and made:
            assert sorted(disturbed.pids.glob("made-*"))[: len(made)] == made, number
    disturbed.check_end()


@pytest.mark.timeout(7200)
def test_fuzz_is_killed(tmp_path: Path) -> None:
    """Alone, with all below it, or only a program: the next one has the same results."""
    disturbed = Disturbed(tmp_path)
    disturbed.mini.edit("ops/it.py", "    return (", "    x = x + (x.size == 8)\n    return (")
    words = ("fuzz", "-n", "24", "--format", "json", "--config", "validation.tolerance=table")
    begin = time.monotonic()
    expected = _fuzzed(disturbed, *words)
    seconds = time.monotonic() - begin
    assert 0 < expected["failed"] < expected["passed"] + expected["failed"] == 24
    for number, part in enumerate(moments("fuzz")):
        shutil.rmtree(disturbed.cache)
        disturbed.forget_programs()
        left = Leftovers()
        with disturbed.started(*words) as started:
            victim = _begun(disturbed, ("op", "reference")[number % 2], started)
            started.lasts(seconds * part)
            if number % 3 == 1:
                started.kill_all()
            elif number % 3 == 2:
                kill(victim)
                started.process.wait(600)
                assert started.process.returncode == 1, started.said
                assert _told(result_of(started)) == expected
        left.check()
        assert _fuzzed(disturbed, *words) == expected
        again = disturbed.mini.command(*words, code=1)
        assert json.loads(again.stdout)["cached"] == 24
    disturbed.check_end()


def _fuzzed(disturbed: Disturbed, *words: str) -> dict[str, Any]:
    return _told(json.loads(disturbed.mini.command(*words, code=1).stdout))


def _told(report: dict[str, Any]) -> dict[str, Any]:
    told = {name: report[name] for name in ("passed", "failed", "errors", "inconclusive")}
    return {**told, "failures": sorted(failure["id"] for failure in report["failures"])}


PATIENT = """
import subprocess, sys, time

child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"])
open("build/rule-%d" % child.pid, "w").close()
child.wait()
"""


@pytest.mark.parametrize("sandbox", ["off", "auto"])
def test_a_rule_s_command_ends_with_the_run(tmp_path: Path, sandbox: str) -> None:
    """Else it would write its outputs while the next run has them made."""
    disturbed = Disturbed(tmp_path)
    mini = disturbed.mini
    mini.edit("gpuemu.toml", 'mode = "off"', f'mode = "{sandbox}"')
    mini.write("make.py", PATIENT)
    disturbed.pids = mini.root / "build"
    left = Leftovers()
    with disturbed.started("run") as started:
        _begun(disturbed, "rule", started)
    left.check()


def _kill_run(disturbed: Disturbed, moment: float, *, below: bool) -> None:
    with disturbed.started("run") as started:
        started.lasts(moment)
        if below:
            started.kill_all()


def _kill_watch(disturbed: Disturbed, moment: float, *, below: bool) -> None:
    with disturbed.started("watch") as started:
        assert started.lasts(moment), started.said
        if below:
            started.kill_all()


def _kill_program(
    disturbed: Disturbed, kind: str, moment: float, expected: list[tuple[Any, ...]]
) -> None:
    """Kill a program, or the process that it was forked from; the command goes on."""
    with disturbed.started("run", "--format", "json") as started:
        victim = _begun(disturbed, "op" if kind == "forkserver" else kind, started)
        parent = parent_of(victim)
        started.lasts(moment)
        if kind == "forkserver":
            assert parent != started.process.pid
            kill(parent)
        else:
            kill(victim)
        started.process.wait(600)
        report = result_of(started)
    assert started.process.returncode in (0, 3), started.said
    for found, right in zip(figures(report), expected, strict=False):
        assert found == right or (kind == "rule" and found[2] == "error"), (found, right)


def _begun(disturbed: Disturbed, kind: str, started: Started) -> int:
    """Wait until a program of this kind runs, and return its process id."""
    while not (pid := disturbed.program(kind)):
        assert started.process.poll() is None, started.said
        time.sleep(0.002)
    return pid

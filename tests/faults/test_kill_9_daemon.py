"""The daemon and its workers are killed while clients submit: what was acknowledged is kept."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from daemon_workspace import Served
from disturbed import Leftovers, adopting, figures, kill, kill_all
from mini_workspace import Mini
from runner_workspace import wait_until
from test_kill_9 import EACH

from gpuemu_flow.client import Client, ClientError, DaemonUnreachableError

DOUBLE = """
import os, time

MARKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "marks")
open(os.path.join(MARKS, "worker-%d" % os.getpid()), "w").close()

def reference(x):
    time.sleep(0.002)
    return (x * 2).astype(x.dtype)
"""


@pytest.fixture(autouse=True)
def _adopting() -> Iterator[None]:
    with adopting():
        yield


class Submitter(threading.Thread):
    """A client that submits right and wrong outputs in turn until it is told to stop.

    Attributes
    ----------
    acknowledged : dict of int to bool
        Seed of each result that the daemon confirmed, and whether it has to pass.
    wrong : list of int
        Seeds of results with a wrong verdict.
    error : Exception or None
        The last answer in place of a result.
    """

    def __init__(self, socket: str) -> None:
        super().__init__()
        self._socket = socket
        self.stop = threading.Event()
        self.acknowledged: dict[int, bool] = {}
        self.wrong: list[int] = []
        self.error: Exception | None = None

    def run(self) -> None:
        x = np.arange(1, 9, dtype=np.float32)
        try:
            with Client(self._socket) as client:
                while not self.stop.is_set():
                    count = len(self.acknowledged)
                    right, given = count % 2 == 0, x + count  # equal inputs would be one case
                    result = client.validate_op("double", {"x": given}, given * (2 if right else 3))
                    self.acknowledged[result.seed] = right
                    if result.passed != right:
                        self.wrong.append(result.seed)
        except ClientError as error:
            self.error = error


def _check_kept(served: Served, known: dict[int, bool]) -> None:
    with served.client() as client:
        found = {result.seed: result.passed for result in client.list_results(10_000)}
    assert found.items() >= known.items()


def _marks(served: Served) -> list[Path]:
    return sorted((served.root / "scripts" / "marks").glob("worker-*"))


@pytest.mark.timeout(7200)
def test_the_daemon_is_killed(unserved: Served) -> None:
    unserved.write("scripts/double.py", DOUBLE)
    expected = figures(Mini(unserved.root).run("double"))
    rng = random.Random("daemon")
    known: dict[int, bool] = {}
    for number in range(EACH):
        left = Leftovers()
        unserved.start()
        submitter = Submitter(unserved.socket)
        submitter.start()
        wait_until(lambda s=submitter: s.acknowledged or not s.is_alive())  # type: ignore[misc]
        submitter.join(rng.random() * 0.1)
        (kill_all if number % 2 else kill)(int(unserved.info["pid"]))
        submitter.join(600)
        assert isinstance(submitter.error, DaemonUnreachableError), submitter.error
        assert not submitter.wrong
        known |= submitter.acknowledged
        left.check()
    unserved.start()
    _check_kept(unserved, known)
    unserved.stop()
    report = Mini(unserved.root).run("double")
    assert figures(report) == expected
    assert (report["executed"], report["problems"]) == ([], [])


@pytest.mark.timeout(7200)
def test_its_worker_is_killed(unserved: Served) -> None:
    """Nobody notices: the case is tried again in another worker."""
    unserved.write("scripts/double.py", DOUBLE)
    rng = random.Random("worker")
    left = Leftovers()
    unserved.start()
    submitter = Submitter(unserved.socket)
    submitter.start()
    for _ in range(EACH):
        assert wait_until(lambda: _marks(unserved) or not submitter.is_alive())
        submitter.join(rng.random() * 0.05)
        assert submitter.is_alive(), submitter.error
        marks = _marks(unserved)
        before = len(submitter.acknowledged)
        kill(int(marks[-1].name.partition("-")[2]))
        for mark in marks:
            mark.unlink()
        wait_until(lambda n=before: len(submitter.acknowledged) > n + 2 or not submitter.is_alive())  # type: ignore[misc]
    submitter.stop.set()
    submitter.join(600)
    assert submitter.error is None
    assert not submitter.wrong
    assert len(submitter.acknowledged) > 2 * EACH
    _check_kept(unserved, submitter.acknowledged)
    os.kill(int(unserved.info["pid"]), 15)
    left.check()


@pytest.mark.timeout(1800)
def test_runs_and_fuzz_beside_a_daemon(unserved: Served) -> None:
    """All at once in an empty cache: each is right, and nothing that was acknowledged is lost."""
    mini = Mini(unserved.root)
    fuzz = ("fuzz", "double", "wrong", "-n", "30", "--format", "json")
    commands = [("run", "double", "wrong", "--format", "json")] * 2 + [fuzz]
    unserved.start()
    submitter = Submitter(unserved.socket)
    submitter.start()
    started = [mini.popen(*words) for words in commands]
    said = [process.communicate(timeout=600) for process in started]
    submitter.stop.set()
    submitter.join(600)
    assert [process.returncode for process in started] == [1, 1, 1], said
    assert (submitter.error, submitter.wrong) == (None, [])
    _check_kept(unserved, submitter.acknowledged)
    unserved.stop()
    first, second, fuzzed = (json.loads(out) for out, _ in said)
    assert figures(first) == figures(second) == figures(mini.run("double", "wrong", code=1))
    assert [result[2] for result in figures(first)] == ["passed", "failed"]
    again = json.loads(mini.command(*fuzz, code=1).stdout)
    assert fuzzed["ops"][0]["passed"] == again["ops"][0]["passed"] == 30
    assert [op["cached"] for op in again["ops"]] == [30, 30]
    known = {f["id"] for report in (first, second) for f in report["failures"]}
    known |= {failure["id"] for op in fuzzed["ops"] for failure in op["failures"]}
    listed = json.loads(mini.command("failures", "-l", "999", "--format", "json").stdout)
    assert known <= {failure["id"] for failure in listed["failures"]}

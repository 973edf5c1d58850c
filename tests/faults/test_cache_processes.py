"""Eight processes use one cache and are killed again and again: what they acknowledged is there.

``CACHE_ACTIONS=1000 CACHE_REPETITIONS=20`` is the full count.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cache_actor import check, value_of

from gpuemu_flow.store.cache import WorkspaceCache

ACTORS = 8
ACTIONS = int(os.environ.get("CACHE_ACTIONS", "40"))
REPETITIONS = int(os.environ.get("CACHE_REPETITIONS", "1"))
KILLS = 3
"""Times that each process is killed on its way through its actions."""


class Actor(threading.Thread):
    """Sees one process through its actions; kills it at random ones, and starts it again.

    Attributes
    ----------
    acknowledged : list of str
    failure : str
        What a process said that ended by itself before it was through.
    """

    def __init__(self, folder: Path, name: str, seed: str) -> None:
        super().__init__(name=name)
        self._words = [sys.executable, str(Path(__file__).with_name("cache_actor.py")), str(folder)]
        rng = random.Random(f"{seed}{name}")
        self._kills = sorted(rng.sample(range(1, ACTIONS), KILLS))
        self.acknowledged: list[str] = []
        self.failure = ""

    def run(self) -> None:
        done = 0
        while done < ACTIONS and not self.failure:
            until = self._kills.pop(0) if self._kills else ACTIONS
            done = self._act(done, max(done, until))

    def _act(self, first: int, until: int) -> int:
        """Start the process, and kill it as soon as it has acknowledged an action."""
        words = [*self._words, self.name, str(first), str(ACTIONS)]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            last = first - 1
            for line in process.stdout:
                if not line.endswith("\n"):
                    break
                number, _, said = line.rstrip("\n").partition(" ")
                last = int(number)
                self.acknowledged.append(said)
                if last + 1 == until and until < ACTIONS:
                    process.kill()
            code = process.wait()
            if code not in (0, -signal.SIGKILL):
                self.failure = process.stderr.read()
        return last + 1


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("repetition", range(REPETITIONS))
def test_no_acknowledged_entry_is_lost(tmp_path: Path, repetition: int) -> None:
    folder = tmp_path / ".gpuemu-cache"
    actors = [Actor(folder, f"actor{n}", str(repetition)) for n in range(ACTORS)]
    for actor in actors:
        actor.start()
    for actor in actors:
        actor.join()
    assert [actor.failure for actor in actors if actor.failure] == []
    cache = WorkspaceCache(folder)
    count = 0
    for actor in actors:
        for said in actor.acknowledged:
            check(cache, said)
            count += 1
    assert count >= ACTORS * ACTIONS
    assert cache.problems == []
    assert not (folder / "quarantine").exists()
    cache.close()


def test_a_large_record_is_there_while_it_is_replaced(tmp_path: Path) -> None:
    """It lies in a file, which whoever replaces it deletes."""
    folder = tmp_path / ".gpuemu-cache"
    cache = WorkspaceCache(folder)
    cache.create()
    for store in (cache.state, cache.actions):
        store.put("large7", value_of("large7"))
    words = [sys.executable, str(Path(__file__).with_name("cache_actor.py")), str(folder)]
    with subprocess.Popen([*words, "replace", "0", "100"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        looked = 0
        while process.poll() is None or not looked:
            for store in (cache.state, cache.actions):
                assert store.get("large7") == value_of("large7")
            looked += 1
    assert process.returncode == 0
    cache.close()

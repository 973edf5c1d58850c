"""Fork servers that are forked from a loaded process are those that users have."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import warm
from mini_workspace import Mini
from runner_workspace import workspace
from warm_popen import stand_in

from gpuemu_flow.runners import process

FORK_SERVER = "gpuemu_flow.runners.forkserver"
TELLS = """
    import json, os, resource, signal, sys

    def op(x):
        told = {
            "modules": sorted(sys.modules),
            "path": [p for p in sys.path if "/ws" not in p],
            "variables": {n: v for n, v in os.environ.items() if "/tmp" not in v},
            "limits": [resource.getrlimit(n) for n in range(10)],
            "signals": [str(signal.getsignal(n)) for n in signal.Signals],
            "hash": hash("text"),
            "leader": os.getsid(0) == os.getpid(),
        }
        with open(os.path.dirname(__file__) + "/told.json", "w") as file:
            json.dump(told, file)
        return x
    """


def told(folder: Path) -> dict[str, Any]:
    """Return the facts of its process that an op sees."""
    with workspace(folder) as ws:
        (outcome,) = ws.run(ws.program("callable", TELLS))
        assert outcome.ok, outcome.error
        found: dict[str, Any] = json.loads((ws.folder / "told.json").read_text())
    return found


def test_an_op_sees_the_same_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "warm").mkdir()
    (tmp_path / "cold").mkdir()
    assert process.subprocess is not subprocess
    forked = told(tmp_path / "warm")
    monkeypatch.setattr(process, "subprocess", subprocess)
    started = told(tmp_path / "cold")
    # Run as a program, it is there as ``__main__`` alone; what judges is loaded ahead.
    more = set(forked.pop("modules")) - (without := set(started.pop("modules")))
    assert FORK_SERVER in more and "numpy" in without
    assert all(name.startswith("gpuemu_flow.") for name in more)
    assert forked == started


def test_a_loaded_process_that_was_ended_costs_time_only(
    tmp_path: Path, mini: Mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an op that ends all processes that it descends from."""
    loaded, commands = warm._Loaded(FORK_SERVER), warm._Loaded("gpuemu_flow")
    module, replacement = stand_in(FORK_SERVER, loaded)
    monkeypatch.setattr(module, "subprocess", replacement)
    monkeypatch.setattr(warm, "_COMMANDS", commands)
    for each in (loaded, commands):
        each()
        assert each._process is not None
        os.kill(each._process.pid, signal.SIGKILL)
        each._process.wait()
    assert told(tmp_path)["leader"]
    mini.command("config", "check")

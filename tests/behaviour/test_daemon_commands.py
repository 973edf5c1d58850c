"""``gpuemu-flow daemon``: what it says and does, and how it exits."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from warm import warm_command

from gpuemu_flow.client import Client
from gpuemu_flow.services.daemon.control import running, stop_daemon
from gpuemu_flow.wire import read_info

CONFIG = """\
[project]
name = "mini"

[[ops]]
name = "twice"
reference = "ref.py:reference"
input_names = ["x"]
execution_mode = "client_side"
"""


class Place:
    """A workspace in a folder whose path leaves room for a socket's name."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "ws"
        self.root.mkdir()
        (folder / "home").mkdir()
        (self.root / "gpuemu.toml").write_text(CONFIG)
        (self.root / "ref.py").write_text("def reference(x):\n    return x * 2\n")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUEMU", "XDG", "RUST"))}
        self.environ = {**kept, "HOME": str(folder / "home")}

    def popen(self, *arguments: str, group: str = "daemon") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gpuemu_flow", *([group] if group else []), *arguments],
            cwd=self.root, env=self.environ, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: str, code: int = 0, group: str = "daemon") -> str:
        words = (*([group] if group else []), *arguments)
        done = warm_command(words, self.root, self.environ)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def pid(self) -> int:
        found = running(self.root, self.environ)
        return found.pid if found is not None else 0


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="gf-") as folder:
        made = Place(Path(folder))
        try:
            yield made
        finally:
            stop_daemon(made.root, made.environ)


def test_start_status_restart_stop(place: Place) -> None:
    stopped = place.run("status", code=3)
    assert "running" not in stopped  # an editor extension looks for the word
    assert "no daemon" in place.run("stop")
    started = place.run("start", "--background")
    first = place.pid()
    assert str(first) in started
    assert "already" in place.run("start", "-b")
    assert place.pid() == first
    status = place.run("status")
    assert status.startswith("gpuemu-flow v")
    assert "running" in status
    assert "uptime" in status
    as_json = place.run("status", "--format", "json")
    assert f'"pid": {first}' in as_json
    place.run("restart")
    assert place.pid() not in (0, first)
    assert str(place.pid()) in place.run("stop")
    assert place.pid() == 0


@pytest.mark.ci
def test_the_workspace_status_names_the_daemon(place: Place) -> None:
    """Its first line is what an editor extension reads."""
    first, second, *_ = place.run("status", group="").splitlines()
    assert first.startswith("gpuemu-flow v") and "daemon stopped" in first
    assert "gpuemu-flow daemon start --background" in first
    assert "running" not in first
    assert second.startswith("workspace ")
    place.run("start", "-b")
    with Client(workspace=place.root, socket_path=running_socket(place)) as client:
        client.list_results()
        client.list_failures()
    line = place.run("status", group="").splitlines()[0]
    assert re.match(r"gpuemu-flow v\d+\.\d+\.\d+ daemon running, uptime \d+s, since 20\d\d-", line)
    assert f"process {place.pid()}, 2 requests, socket {running_socket(place)}" in line
    found = json.loads(place.run("status", "--format", "json", group=""))["daemon"]
    assert (found["running"], found["answers"], found["requests"]) == (True, True, 2)
    place.run("stop")
    found = json.loads(place.run("status", "--format", "json", group=""))["daemon"]
    assert found == {"running": False, "answers": False}


def running_socket(place: Place) -> str:
    info = read_info(place.root, place.environ)
    assert info is not None
    return str(info["socket"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_until_it_is_interrupted(place: Place, number: signal.Signals) -> None:
    process = place.popen("start")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("listening at ")
    with Client(line.removeprefix("listening at ").strip()) as client:
        assert client.ping()["workspace"] == str(place.root.resolve())
    process.send_signal(number)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0
    assert "Traceback" not in err
    assert place.pid() == 0


@pytest.mark.ci
def test_logs(place: Place) -> None:
    assert "daemon-no-log" in place.run("logs", code=2)
    place.run("start", "-b")
    assert "listens at" in place.run("logs")
    assert place.run("logs", "-l", "0") == ""
    place.run("stop")
    assert "daemon ends" in place.run("logs", "-l", "1")


def test_outside_of_a_workspace(place: Place) -> None:
    (place.root / "gpuemu.toml").unlink()
    for command in ("start", "stop", "status", "logs", "restart"):
        assert "config-not-found" in place.run(command, code=2)


def test_a_wrong_configuration(place: Place) -> None:
    (place.root / "gpuemu.toml").write_text("[[ops]]\nname = 3\n")
    for arguments in (("start",), ("start", "-b")):
        text = place.run(*arguments, code=2)
        assert "gpuemu.toml:" in text

"""Start a daemon in the background, as a new process and not as a fork of the caller."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import gpuemu_flow
from gpuemu_flow.model.errors import FlowError, Problem
from gpuemu_flow.model.types import Json

START_SECONDS = 60.0
ENDING_SECONDS = 2.0
"""Longest time in seconds that a daemon may take to end after it has closed its pipe."""
_started: list[subprocess.Popen[bytes]] = []  # a dropped handle would warn that its process lives


class DaemonNotStartedError(FlowError):
    """Raised if a daemon reports why it cannot start, or does not answer in time."""

    def __init__(self, *problems: Problem, exit_code: int = 3) -> None:
        super().__init__(*problems)
        self.exit_code = exit_code


def start_daemon(
    root: Path,
    environ: Mapping[str, str],
    *,
    idle_seconds: float = 0.0,
    seconds: float = START_SECONDS,
) -> dict[str, Json]:
    """Start a daemon for a workspace and wait until clients can connect.

    Raises DaemonNotStartedError: The error contains the problems that the daemon reports, or
    ``daemon-not-started``.
    """
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "gpuemu_flow.services.daemon", "--root", str(root),
                "--ready-fd", str(writing), "--idle-seconds", str(idle_seconds),
            ],
            pass_fds=[writing],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Start in the package's root, so that -m finds this package and no workspace module.
            cwd=Path(gpuemu_flow.__file__).resolve().parent.parent,
            env=dict(environ),
            start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(writing)
    try:
        message = _read(reading, time.monotonic() + seconds)
    finally:
        os.close(reading)
    if message is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_SECONDS)
        code = process.poll()
        why = f"it ended with code {code}" if code is not None else "it did not answer in time"
        if code is None:
            process.kill()
            process.wait()
        raise DaemonNotStartedError(
            Problem("daemon-not-started", f"the daemon for {root} did not start: {why}",
                    "run `gpuemu-flow daemon start` to see why")
        )  # fmt: skip
    if "problems" not in message:
        _started.append(process)
        return message
    process.wait(seconds)
    if message["exit_code"] == 0:
        return {}
    raise DaemonNotStartedError(
        *(Problem(**problem) for problem in message["problems"]), exit_code=message["exit_code"]
    )


def _read(descriptor: int, deadline: float) -> dict[str, Json] | None:
    """Read one line of JSON from the daemon; None if the stream ends first or time runs out."""
    data = b""
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return None
        piece = os.read(descriptor, 65536)
        if not piece:
            return None
        data += piece
    message = json.loads(data)
    return message if isinstance(message, dict) else None

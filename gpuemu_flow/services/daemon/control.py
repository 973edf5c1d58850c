"""Control a daemon from another process: find it, stop it, read its log."""

from __future__ import annotations

import contextlib
import os
import signal
import socket as sockets
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import pynng
from msgspec import Struct

from gpuemu_flow.model.errors import Problem, RunnerError, UsageError
from gpuemu_flow.model.types import Json
from gpuemu_flow.services.daemon.files import DaemonFiles, DaemonState, find_place, holder
from gpuemu_flow.wire import WireError, parse, read_info, render

STOP_SECONDS = 15.0
KILL_SECONDS = 5.0
PING_MILLISECONDS = 3000
REFUSED_SECONDS = 1.0
"""Seconds within which a daemon that accepts no more clients closes a new connection."""
_GREETING = b"\x00SP\x00\x00\x30\x00\x00"  # the transport's greeting from a requester
_SLICE = 0.05


class Running(Struct, frozen=True):
    """A running daemon."""

    place: DaemonFiles
    pid: int


def running(root: Path, environ: Mapping[str, str]) -> Running | None:
    """Return the workspace's daemon, or None if no process holds its lock."""
    place = find_place(root, environ)
    pid = holder(place.lock) if place is not None else None
    return Running(place, pid) if place is not None and pid is not None else None


def stop_daemon(root: Path, environ: Mapping[str, str]) -> int | None:
    """End the workspace's daemon and return its process id, or None when there was none. Raises
    RunnerError: ``daemon-not-stopped``."""
    found = running(root, environ)
    if found is None or not found.pid:
        return None
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.pid, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if holder(found.place.lock) != found.pid:
                return found.pid
            time.sleep(_SLICE)
    raise RunnerError(Problem("daemon-not-stopped", f"process {found.pid} does not end"))


def describe(root: Path, environ: Mapping[str, str]) -> DaemonState:
    """Ask the workspace's daemon for its state."""
    found = running(root, environ)
    if found is None:
        return DaemonState()
    info = read_info(root, environ) or {}
    socket = str(info.get("socket", found.place.socket))
    pong = _ping(socket)
    return DaemonState(
        pid=found.pid,
        socket=socket,
        log=str(found.place.log),
        started=float(info.get("started", 0.0)),
        pong=pong,
        full=pong is None and _is_full(socket),
    )


def _ping(socket_path: str) -> dict[str, Json] | None:
    limit = PING_MILLISECONDS
    with pynng.Req0(resend_time=-1, recv_timeout=limit, send_timeout=limit) as socket:
        try:
            socket.dial(f"ipc://{socket_path}", block=True)
            socket.send(render({"type": "Ping"}))
            return parse(socket.recv())
        except (pynng.NNGException, WireError):
            return None


def _is_full(socket_path: str) -> bool:
    """Tell whether a daemon refuses new clients. Such a daemon accepts each new connection, and
    closes the connection at once."""
    with sockets.socket(sockets.AF_UNIX) as sock:
        sock.settimeout(REFUSED_SECONDS)
        try:
            sock.connect(socket_path)
            sock.sendall(_GREETING)
            while sock.recv(len(_GREETING)):
                pass
        except ConnectionResetError:
            return True
        except OSError:
            return False
        return True


def log_path(root: Path, environ: Mapping[str, str]) -> Path:
    """Return the path of the daemon's log. Raises UsageError: no daemon has been started yet."""
    place = find_place(root, environ)
    if place is None or not place.log.exists():
        text = f"no daemon of {root} has written a log yet"
        raise UsageError(Problem("daemon-no-log", text, "start one: `gpuemu-flow daemon start`"))
    return place.log


def log_tail(root: Path, environ: Mapping[str, str], count: int) -> list[str]:
    """Return the last lines of the log; raise UsageError as `log_path` does."""
    with log_path(root, environ).open(encoding="utf-8", errors="replace") as file:
        return [line.rstrip("\n") for line in deque(file, maxlen=count)]

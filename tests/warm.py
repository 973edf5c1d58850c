"""The real command in a process forked from one that has loaded the package already.

A command spends a third of a second on imports, and a test calls several. `warm_command` gives the
command a process, an environment, a folder and pipes of its own, as `subprocess` does; only what is
imported is there from the beginning, and strings have the same hashes in all of a worker's
commands. Its fork servers and daemons, and those that tests start themselves, are forked likewise:
see `warm_popen`. Tests of how a process starts, or of the order of what it prints, start an
interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warm_popen import (
    LENT,
    ForkedProcess,
    request_of,
    stand_in,
    start_variables,
    starts_otherwise,
)

import gpuemu_flow

_COMMAND = "gpuemu_flow"
_HERE = Path(__file__).parent
_PACKAGE_ROOT = Path(gpuemu_flow.__file__).resolve().parent.parent


class _Loaded:
    """A loaded process, as the tests see it; started by the first that needs it."""

    def __init__(self, program: str, lends: tuple[_Loaded, ...] = ()) -> None:
        self._program = program
        self._lends = lends
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = threading.Lock()
        self._variables: dict[str, str] = {}

    def __call__(self) -> tuple[socket.socket, Mapping[str, str]]:
        """Return its socket, and the variables that it was started with."""
        with self._lock:
            if self._control is None:
                self._control = self._start()
            return self._control, self._variables

    def _start(self) -> socket.socket:
        environ = {**os.environ}
        if self._program == "gpuemu_flow.workers.forkserver":
            environ.update(_one_thread())
        self._variables = start_variables(environ)
        lent = {loaded._program: loaded() for loaded in self._lends}
        controls = {name: (control.fileno(), kept) for name, (control, kept) in lent.items()}
        about = json.dumps({"tests": str(_HERE), "controls": controls} if lent else None)
        control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        text = (_HERE / "warm_process.py").read_text()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-c", text, self._program, str(other.fileno()), about],
                cwd=_PACKAGE_ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno(), *(fd for fd, _ in controls.values())],
            )  # fmt: skip
        atexit.register(self._end)
        return control

    def _end(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.kill()  # whoever was forked meanwhile may hold the other end open
            self._process.wait()


def _one_thread() -> dict[str, str]:
    """Return the variables that the product adds to a fork server and that its start reads."""
    from gpuemu_flow.workers.process import THREAD_VARIABLES

    return {**dict.fromkeys(THREAD_VARIABLES, "1"), "PYTHONHASHSEED": "0"}


_FORK_SERVERS = _Loaded("gpuemu_flow.workers.forkserver")
_DAEMONS = _Loaded("gpuemu_flow.services.daemon", (_FORK_SERVERS,))
_COMMANDS = _Loaded(_COMMAND, (_FORK_SERVERS, _DAEMONS))
_LENT = {"gpuemu_flow.workers.forkserver": _FORK_SERVERS, "gpuemu_flow.services.daemon": _DAEMONS}


def stand_ins() -> list[tuple[Any, Any]]:
    """Return the modules that start our programs, each with what to use as ``subprocess``."""
    return [stand_in(program, _LENT[program]) for program in LENT]


def load_all() -> None:
    """Start the loaded processes now, for tests that look for processes that are left behind."""
    for loaded in (_FORK_SERVERS, _DAEMONS, _COMMANDS):
        loaded()


def warm_command(
    arguments: tuple[str, ...], folder: Path, environ: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run ``gpuemu-flow`` to its end, with nothing on standard input.

    An interpreter is started all the same where it would start in another way than the loaded one
    did: because of a variable, or of a module in the folder.

    Parameters
    ----------
    arguments : tuple of str
    folder : Path
        Where it runs.
    environ : mapping
        All of its environment.
    """
    out, err = os.pipe(), os.pipe()
    process = start_command(arguments, folder, environ, out[1], err[1])
    os.close(out[1])
    os.close(err[1])
    stdout, stderr = _read_all(out[0], err[0])
    return subprocess.CompletedProcess(arguments, process.wait(), stdout, stderr)


def start_command(
    arguments: tuple[str, ...], folder: Path, environ: Mapping[str, str], out: int, err: int
) -> ForkedProcess | subprocess.Popen[bytes]:
    """Start ``gpuemu-flow`` as `warm_command` does, and return the process.

    Parameters
    ----------
    out, err : int
        Descriptors of its standard streams; they stay open here.
    """
    control, variables = _COMMANDS()
    request = request_of(arguments, str(folder), environ, (0, 1, 2))
    if not starts_otherwise(environ, variables, folder, request):
        with Path(os.devnull).open() as nothing, contextlib.suppress(ConnectionError):
            return ForkedProcess(control, request, (nothing.fileno(), out, err))
    return subprocess.Popen(
        [sys.executable, "-m", "gpuemu_flow", *arguments],
        cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
    )  # fmt: skip


def place_command(path: Path) -> int:
    """Write a program that a shell can call as ``gpuemu-flow``, and which is forked likewise.

    Returns
    -------
    int
        A descriptor that the shell has to inherit.
    """
    control, variables = _COMMANDS()
    words = [sys.executable, "-s", "-S", "-E", str(_HERE / "warm_shell.py")]
    words += [str(control.fileno()), json.dumps(variables)]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o755)
    return control.fileno()


def _read_all(*ends: int) -> list[str]:
    """Read pipes until nobody writes to them, and close them."""
    found: dict[int, bytearray] = {end: bytearray() for end in ends}
    with selectors.DefaultSelector() as selector:
        for end in ends:
            selector.register(end, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                found[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    return [text.decode().replace("\r\n", "\n").replace("\r", "\n") for text in found.values()]

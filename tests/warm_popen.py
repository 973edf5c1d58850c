"""Fork servers and daemons of the package, forked from processes that have loaded them already.

`lend` puts a stand-in for ``subprocess.Popen`` into the two modules that start them. The process is
a real one, with the folder, the environment and the descriptors that were asked for; an interpreter
is started all the same where it would start in another way than the loaded one did.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

OTHER_START = (
    "PYTHON", "LANG", "LC_", "LD_", "TZ", "OPENBLAS", "OMP", "MKL", "NPY", "MALLOC", "GLIBC",
    "BLIS", "GOMP", "KMP", "NUMEXPR", "VECLIB",
)  # fmt: skip
"""Beginnings of variables that interpreters and libraries read as they start."""
LARGEST = 150_000
LONGEST = 600.0
"""Seconds to wait for a process of a test that does not answer, or does not end."""
_SHADOWS = sys.stdlib_module_names | {"click", "diskcache", "doit", "gpuemu_flow", "ml_dtypes"} | {
    "numpy", "tomli", "jsonschema", "rich", "pynng"
}  # fmt: skip
LENT = {
    "gpuemu_flow.workers.forkserver": "gpuemu_flow.workers.process",
    "gpuemu_flow.services.daemon": "gpuemu_flow.wire",
}
"""Modules that are run as programs, each with the one that starts it."""

Control = Callable[[], tuple[socket.socket, Mapping[str, str]]]
"""Return a loaded process's socket, and the variables with which it was started."""


def start_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(OTHER_START)}


def starts_otherwise(
    environ: Mapping[str, str], variables: Mapping[str, str], folder: Path, request: bytes
) -> bool:
    """Tell whether a command has to be started, as it would start in another way than was loaded.

    Parameters
    ----------
    environ : mapping
        All of its environment.
    variables : mapping
        Those that the loaded process was started with.
    folder : Path
        Where it runs: a module there may stand before one that was loaded.
    request : bytes
    """
    return (
        start_variables(environ) != variables
        or any(path.name.partition(".")[0] in _SHADOWS for path in folder.iterdir())
        or len(request) > LARGEST
    )


class ForkedProcess:
    """As much of ``subprocess.Popen`` as a process that is nobody's child here needs.

    Parameters
    ----------
    control : socket
        Of the loaded process.
    request : bytes
    fds : iterable of int
        As many as the request has places for; they stay open here.
    """

    def __init__(self, control: socket.socket, request: bytes, fds: Iterable[int]) -> None:
        self._reply, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._said = b""
        with theirs:
            socket.send_fds(control, [request], [theirs.fileno(), *fds])
        self.returncode: int | None = None
        self._reply.settimeout(LONGEST)
        while b"\n" not in self._said:
            said = self._reply.recv(64)
            if not said:
                raise ConnectionError("the loaded process ended")
            self._said += said
        pid, _, self._said = self._said.partition(b"\n")
        self.pid = int(pid)
        self._reply.settimeout(None)

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        limit = LONGEST if timeout is None else timeout
        if self._ended(limit) is None:
            raise subprocess.TimeoutExpired("a forked process", limit)
        assert self.returncode is not None
        return self.returncode

    def _ended(self, seconds: float) -> int | None:
        deadline = time.monotonic() + seconds
        while self.returncode is None:
            with self._lock:
                if self.returncode is None and not self._said.endswith(b"\n"):
                    left = max(0.0, deadline - time.monotonic())
                    if not select.select([self._reply], [], [], min(left, 0.2))[0]:
                        if left:
                            continue
                        return None
                    said = self._reply.recv(64)
                    self._said += said or b"-9\n"
                if self.returncode is None and self._said.endswith(b"\n"):
                    self.returncode = int(self._said)
                    self._reply.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def request_of(
    arguments: Iterable[str],
    folder: str,
    environ: Mapping[str, str],
    places: Iterable[int],
    *,
    session: bool = False,
) -> bytes:
    return json.dumps({
        "arguments": [*arguments], "folder": folder, "environ": {**environ},
        "places": [*places], "session": session,
    }).encode()  # fmt: skip


class _Subprocess:
    """The module ``subprocess``, but for the starts of one of our programs."""

    def __init__(self, program: str, control: Control) -> None:
        self._program = program
        self._control = control

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, arguments: list[str], **options: Any) -> Any:
        forked = self._forked(arguments, **options)
        return subprocess.Popen(arguments, **options) if forked is None else forked

    def _forked(
        self, arguments: list[str], *, cwd: Any, env: Mapping[str, str], stdin: int, stdout: int,
        stderr: int, pass_fds: list[int], start_new_session: bool,
    ) -> ForkedProcess | None:  # fmt: skip
        if arguments[0] != sys.executable:  # in namespaces, which another program makes
            return None
        assert arguments[:3] == [sys.executable, "-m", self._program], arguments
        control, variables = self._control()
        standard, places = (stdin, stdout, stderr), [0, 1, 2, *pass_fds]
        request = request_of(
            arguments[3:], str(cwd), env, places, session=start_new_session
        )  # fmt: skip
        if start_variables(env) != variables or len(request) > LARGEST:
            return None
        with Path(os.devnull).open("r+") as nothing:
            ends = [nothing.fileno() if end == subprocess.DEVNULL else end for end in standard]
            assert min(ends) >= 0, "a pipe is asked for"
            try:
                return ForkedProcess(control, request, [*ends, *pass_fds])
            except ConnectionError:  # a program ended the loaded process, which is its parent's
                return None


def stand_in(program: str, control: Control) -> tuple[Any, Any]:
    """Return the module that starts a program, and what it is to use as ``subprocess``."""
    __import__(LENT[program])
    return sys.modules[LENT[program]], _Subprocess(program, control)


def lend(controls: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
    """Let this process, a loaded one, and its forks ask other loaded ones.

    Parameters
    ----------
    controls : mapping
        By program, the descriptor of a loaded process's socket and its start's variables.
    """
    for program, (fd, variables) in controls.items():
        sock = socket.socket(fileno=fd)
        sock.set_inheritable(False)
        module, replacement = stand_in(program, lambda s=sock, v=variables: (s, v))  # type: ignore[misc]
        module.subprocess = replacement

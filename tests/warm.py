"""The real command in a process forked from one that has loaded the package already.

A command spends a third of a second on imports, and a test calls several. `warm_command` gives the
command a process, an environment, a folder and pipes of its own, as `subprocess` does; only what is
imported is there from the beginning, and strings have the same hashes in all of a worker's
commands. Tests of how a command starts, or of the order of what it prints, start an interpreter.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

_LOADED = (
    "gpuemu_flow.cli.main",
    "gpuemu_flow.cli.progress",
    "gpuemu_flow.engine.run",
    "gpuemu_flow.fuzz.causes",
    "gpuemu_flow.fuzz.failures",
    "gpuemu_flow.fuzz.fuzzing",
    "gpuemu_flow.judging.case_evaluator",
    "gpuemu_flow.reporting.report",
    "gpuemu_flow.reports.text",
)
_OTHER_START = ("PYTHON", "LANG", "LC_", "LD_", "OPENBLAS", "OMP", "MKL", "NPY", "MALLOC", "GLIBC")
"""Beginnings of variables that interpreters and libraries read as they start."""
_SHADOWS = sys.stdlib_module_names | {"click", "diskcache", "doit", "gpuemu_flow", "ml_dtypes"} | {
    "numpy", "pybase64", "tomli", "jsonschema", "rich", "pynng"
}  # fmt: skip
_LARGEST = 150_000
_FDS = 4


class _Server:
    """The loaded process, as the tests see it; started by the first command that needs it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = threading.Lock()
        self.variables: dict[str, str] = {}

    def socket(self) -> socket.socket:
        with self._lock:
            return self._started()

    def _started(self) -> socket.socket:
        if self._control is None:
            self.variables = _start_variables(os.environ)
            self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(other.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(other.fileno(),),
            )  # fmt: skip
            other.close()
            atexit.register(self._end)
        return self._control

    def _end(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.kill()  # whoever was forked meanwhile may hold the other end open
            self._process.wait()


def _start_variables(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_OTHER_START)}


_SERVER = _Server()


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
    control = _SERVER.socket()
    request = json.dumps([arguments, str(folder), {**environ}]).encode()
    starts_otherwise = (
        _start_variables(environ) != _SERVER.variables
        or any(path.name.partition(".")[0] in _SHADOWS for path in folder.iterdir())
        or len(request) > _LARGEST
    )
    if starts_otherwise:
        return subprocess.run(
            [sys.executable, "-m", "gpuemu_flow", *arguments], cwd=folder, env=environ,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
    reply, theirs = socket.socketpair()
    out, err = os.pipe(), os.pipe()
    with reply, Path(os.devnull).open() as nothing:
        passed = [theirs.fileno(), nothing.fileno(), out[1], err[1]]
        socket.send_fds(control, [request], passed)
        theirs.close()
        for end in passed[2:]:
            os.close(end)
        stdout, stderr = _read_all(out[0], err[0])
        status = reply.recv(64)
    assert status, "the loaded process ended"
    return subprocess.CompletedProcess(arguments, int(status), stdout, stderr)


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


def _serve(control: socket.socket) -> list[str]:
    """Fork a process for each request; return in that process, with the command's arguments."""
    wakeup, wakeup_end = os.pipe()
    os.set_blocking(wakeup_end, False)
    signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    replies: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(wakeup, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == wakeup:
                    os.read(wakeup, 4096)
                    _tell_ends(replies)
                    continue
                request, fds, _, _ = socket.recv_fds(control, 1 << 20, _FDS)
                if not request:
                    os._exit(0)
                pid = os.fork()
                if pid == 0:
                    own = {control.fileno(), wakeup, wakeup_end, fds[0], *replies.values()}
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    selector.close()
                    control.detach()
                    for number, fd in enumerate(fds[1:]):
                        os.dup2(fd, number)
                    for fd in {*own, *fds[1:]}:
                        os.close(fd)
                    return _become(*json.loads(request))
                replies[pid] = fds[0]
                for fd in fds[1:]:
                    os.close(fd)


def _tell_ends(replies: dict[int, int]) -> None:
    while replies:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        reply = replies.pop(pid)
        os.write(reply, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(reply)


def _become(arguments: list[str], folder: str, environ: dict[str, str]) -> list[str]:
    """Take on the folder and the environment of a command that was just called."""
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    sys.path[0] = folder
    sys.orig_argv[:] = [sys.executable, "-m", "gpuemu_flow", *arguments]
    random.seed()
    return arguments


def main() -> None:
    """Load the package, then become each command that is asked for."""
    control = socket.socket(fileno=int(sys.argv[1]))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command does before it imports
    for name in _LOADED:
        importlib.import_module(name)
    importlib.import_module("gpuemu_flow.cli.main").cli.load_all()
    front = importlib.import_module("gpuemu_flow.front")
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "what is forked must have one thread"
    gc.collect()
    gc.freeze()
    arguments = _serve(control)
    sys.argv[:] = [str(Path(front.__file__).with_name("__main__.py")), *arguments]
    front.main()


if __name__ == "__main__":
    main()

"""The coordinator's side of worker processes: the fork server's handle and one session's handle."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from gpuemu_flow.model.errors import CancelledRunError, Problem, RunnerError
from gpuemu_flow.model.let_through import USER_CACHE, let_through, user_cache_of
from gpuemu_flow.model.types import Json
from gpuemu_flow.workers import channel
from gpuemu_flow.workers.api import Program
from gpuemu_flow.workers.imports import framework_of, identity
from gpuemu_flow.workers.sandbox.spec import Sandbox
from gpuemu_flow.workers.sightings import Sightings

START_SECONDS = 60.0
PRELOAD_SECONDS = 120.0
BUILD_SECONDS = 900.0
"""How long a compiler may take to build the emulated GPU, or an extension of PyTorch."""
_DYING_SECONDS = 2.0
_SEND_SECONDS = struct.pack("ll", 30, 0)  # struct timeval
_EXITING = 4  # PF_EXITING of linux/sched.h
_SLICE = 0.1  # seconds between looks at a cancel event
_PATIENCE = 1.0  # seconds of silence after which possibly stopped processes are resumed

_SERVER_MODULE = "gpuemu_flow.workers.forkserver"
_PACKAGE_ROOT = Path(__file__).absolute().parents[2]
"""The server's working folder, from which ``-m`` finds this package and no workspace module."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

# Read when an interpreter or its libraries start, so that setting them in a fork has no effect.
_STARTUP_VARIABLES = (*THREAD_VARIABLES, "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_STARTUP_PREFIXES = ("LD_", "DYLD_", "MALLOC_", "GLIBC_", "OPENBLAS_", "MKL_", "OMP_", "KMP_",
                     "NPY_", "PYTHON")  # fmt: skip


def startup_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a program's environment that must be set before its interpreter starts."""
    return {
        name: value
        for name, value in sorted(env.items())
        if name in _STARTUP_VARIABLES or name.startswith(_STARTUP_PREFIXES)
    }


class ServerDiedError(Exception):
    """Raised when the fork server is gone, or does not answer."""


class WorkerEndedError(Exception):
    """Raised when a session's process has ended."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


class DeadlineError(Exception):
    """Raised when no message came in time."""


class WorkerProcess:
    """The coordinator's handle of one worker process.

    It holds a socket for messages, and a second socket, the lifeline: when the lifeline is closed,
    the fork server kills the worker. It also holds three files in memory, for the worker's status,
    its standard error, and its records of used files and variables. Not thread-safe.

    `close` or `kill` ends the process and all that stayed in its group.
    """

    def __init__(self, server: int) -> None:
        self._server = server
        self.sock, self._child_end = socket.socketpair()
        self._lifeline, self._server_end = socket.socketpair()
        self.status = channel.create("status")
        os.ftruncate(self.status, 64)
        self.stderr = channel.append_only(channel.create("stderr"))
        self.report = channel.append_only(channel.create("report"))
        self.sightings: Sightings | None = None
        # A stopped worker must not block a process that sends it a request.
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_SECONDS)
        self._frames = channel.FrameReader(self.sock, wait=False)
        self._facts = channel.FrameReader(self._lifeline, max_fds=1, wait=False)
        self._poll = select.poll()
        self._poll.register(self.sock, select.POLLIN)
        self._poll.register(self._lifeline, select.POLLIN)
        self.pid = 0
        self.scratch = ""
        self._busy = False
        self._closed = False
        self._server_died = False

    def hand_over(self) -> list[int]:
        """Return the descriptors for the fork server, in the order that it expects."""
        return [self._child_end.fileno(), self._server_end.fileno(), self.status, self.stderr,
                self.report]  # fmt: skip

    def handed_over(self) -> None:
        """Close this process's copies of the two socket ends that the fork server has received.

        While the copies are open, this process is not told when the worker or the server ends.
        """
        self._child_end.close()
        self._server_end.close()

    def follow_with(self, sightings: Sightings) -> None:
        """Make `sightings` collect the worker's records of used files and variables."""
        self.sightings = sightings
        sightings.follow(self.report, self.scratch)

    def leave_sightings(self) -> None:
        """Collect the remaining records; the next `follow_with` begins with the first one again."""
        if self.sightings is not None:
            self.sightings.leave(self.report)
            self.sightings = None

    def wait_started(self, seconds: float) -> None:
        """Wait until the fork server has reported the worker's process id.

        Raises ServerDiedError. Raises RunnerError: ``worker-not-started``: the system refuses
        another process.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                fact = self._facts.read()
            except (channel.ChannelClosedError, channel.ChannelJunkError):
                raise ServerDiedError from None
            if fact is not None:
                break
            left = deadline - time.monotonic()
            if left <= 0:
                raise ServerDiedError
            if not self._poll_lifeline(min(left, _PATIENCE)):
                self._let_go_on()
        if "pid" not in fact:
            reason = f"a worker cannot be started: {fact.get('failed')}"
            hint = "run fewer jobs at once, and see that nothing empties the temporary folder"
            raise RunnerError(Problem("worker-not-started", reason, hint))
        self.pid = int(fact["pid"])
        self.scratch = str(fact.get("scratch", ""))

    def _poll_lifeline(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._lifeline, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def send(self, message: Mapping[str, Json], fds: Sequence[int] = ()) -> None:
        """Send a request; if the worker is gone, `receive` reports it."""
        self._busy = True
        with contextlib.suppress(channel.ChannelClosedError):
            channel.send(self.sock, message, fds)

    def receive(self, deadline: float, cancel: threading.Event | None = None) -> dict[str, Json]:
        """Return the worker's next message.

        Raises WorkerEndedError, DeadlineError, CancelledRunError. Raises ChannelJunkError: The
        program wrote to our socket.
        """
        message = self._frames.buffered()
        let_go_on = time.monotonic() + _PATIENCE
        while message is None:
            if cancel is not None and cancel.is_set():
                raise CancelledRunError
            left = min(deadline, let_go_on) - time.monotonic()
            slice_left = left if cancel is None else min(left, _SLICE)
            ready = [fd for fd, _ in self._poll.poll(max(0.0, 1000 * slice_left))]
            if self.sock.fileno() in ready:
                # Messages first, then the end of the process: its last message still counts.
                try:
                    message = self._frames.read()
                except channel.ChannelClosedError:
                    raise WorkerEndedError(self.wait_exit(_DYING_SECONDS)) from None
            elif ready:
                self._look_for_end()
            elif time.monotonic() >= deadline:
                # Checked first, so that a program that stopped itself is not resumed at its
                # deadline.
                raise DeadlineError
            elif time.monotonic() >= let_go_on:
                self._let_go_on()
                let_go_on = time.monotonic() + _PATIENCE
        if self._server_ends():
            self._server_died = True
            raise WorkerEndedError(None)
        self._busy = False
        return message

    def _server_ends(self) -> bool:
        """Tell whether the fork server was killed. Its descriptors are closed before its workers
        are killed: meanwhile the calls that it would answer fail, and a program that goes on
        without the files that it needs gives an answer that is not its own."""
        try:
            with open(f"/proc/{self._server}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - hot
                text = file.read()
        except OSError:
            return Path("/proc/self").exists()
        return bool(int(text.rpartition(b")")[2].split()[6]) & _EXITING)

    def _let_go_on(self) -> None:
        """Resume the worker and the fork server, which the program may have stopped."""
        for process in filter(None, (self.pid, self._server)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGCONT)

    def _look_for_end(self) -> None:
        try:
            fact = self._facts.read()
        except (channel.ChannelClosedError, channel.ChannelJunkError):
            self._server_died = True
            raise WorkerEndedError(None) from None
        if fact is not None and "exit" in fact:
            raise WorkerEndedError(int(fact["exit"]))

    def wait_exit(self, seconds: float) -> int | None:
        """Wait at most `seconds` for the process to end, and return its exit code.

        If the process still runs, return 1, as for a failed process. If the fork server died, the
        exit code is unknown: return None.
        """
        deadline = time.monotonic() + seconds
        try:
            while True:
                self._look_for_end()
                left = deadline - time.monotonic()
                if left <= 0:
                    return 1  # it closed our socket but still runs; the caller kills it
                self._poll_lifeline(left)
        except WorkerEndedError as ended:
            return ended.code

    def stderr_tail(self) -> str:
        """Return the end of the program's standard error since the case began."""
        return channel.tail(self.stderr)

    @property
    def closed(self) -> bool:
        """Tell whether `close` or `kill` was called."""
        return self._closed

    def close(self, grace: float = 1.0) -> None:
        """Kill the process; if it is idle, first give it `grace` seconds to end by itself."""
        if self._closed:
            return
        self.sock.close()
        if self.pid and not self._busy:
            self.wait_exit(grace)
        self.kill()

    def kill(self) -> None:
        """Kill the process and its group now: close the lifeline, so that the server kills them."""
        if self._closed:
            return
        self._closed = True
        if self._server_died and self.pid:
            # The worker died with the server (PDEATHSIG); processes that it started are left to us.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        for end in (self.sock, self._lifeline, self._child_end, self._server_end):
            end.close()
        self.leave_sightings()
        for fd in (self.status, self.stderr, self.report):
            os.close(fd)


class ServerStart(Struct, frozen=True):
    """Settings of a fork server; programs with equal settings share one server."""

    env: tuple[tuple[str, str], ...] = ()
    framework: str = ""
    identity: str = ""
    gpu: str = ""  # "torch" or "host" with the emulated GPU, for extensions or C functions

    @classmethod
    def plain(cls, program: Program) -> ServerStart:
        """Return the settings for a program without a framework."""
        gpu = "" if not program.gpu_folder else "host" if program.kind == "cuda-host" else "torch"
        return cls(tuple(startup_environment(program.env).items()), gpu=gpu)

    @classmethod
    def of(cls, program: Program) -> ServerStart:
        """Return the settings for a program.

        If the server imports a framework, the settings include all of the program's variables.
        """
        plain = cls.plain(program)
        framework = framework_of(program)
        known = identity(framework) if framework else ""
        if not known:
            return plain
        env = tuple(sorted(program.env.items()))
        return replace(plain, env=env, framework=framework, identity=known)


def _server_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a fork server; `more` are further variables for its programs."""
    kept = let_through(os.environ)
    home = os.environ.get("HOME", "")
    if home:
        kept["HOME"] = home  # to find packages; a program's HOME is its scratch folder
    kept[USER_CACHE] = user_cache_of(os.environ)
    threads = dict.fromkeys(THREAD_VARIABLES, "1")
    return {**threads, "PYTHONHASHSEED": "0", **kept, **more}


class ServerHandle:
    """Starts one fork server and requests workers from it. Thread-safe."""

    def __init__(self, env: Mapping[str, str], framework: str = "", gpu: str = "") -> None:
        self._patience = START_SECONDS + (PRELOAD_SECONDS if framework else 0.0)
        self._patience += BUILD_SECONDS if gpu else 0.0
        self._lock = threading.Lock()
        self._control, peer = socket.socketpair()
        self._stderr = channel.create("forkserver-stderr")
        preload = [framework, *([gpu] if gpu else [])] if framework or gpu else []
        with peer:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _SERVER_MODULE, str(peer.fileno()), *preload],
                pass_fds=[peer.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                cwd=_PACKAGE_ROOT,
                env=_server_environment(env),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the server's process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Tell whether the server runs."""
        return self._process.poll() is None

    def open_worker(
        self,
        *,
        fresh: bool,
        sandbox: Sandbox | None = None,
        calls_only: bool = False,
        first: Mapping[str, Json] | None = None,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> WorkerProcess:
        """Return a new worker process.

        Raises ServerDiedError. Raises RunnerError: ``worker-not-started``.
        """
        worker = WorkerProcess(self._process.pid)
        try:
            with self._lock:
                fence = to_builtins(sandbox)
                request = {"fresh": fresh, "sandbox": fence, "calls_only": calls_only}
                channel.send(self._control, request, worker.hand_over())
            worker.handed_over()
            if first is not None:
                worker.send(first)
            meanwhile()
            worker.wait_started(self._patience)
        except channel.ChannelClosedError:
            worker.kill()
            raise ServerDiedError from None
        except BaseException:
            worker.kill()
            raise
        return worker

    def stderr_tail(self) -> str:
        """Return the end of the server's standard error."""
        return channel.tail(self._stderr)

    def close(self) -> None:
        """End the server and every process below it."""
        self._control.close()
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._stderr)

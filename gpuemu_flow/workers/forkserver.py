"""The fork server: a single-threaded process with numpy loaded, which forks for each session.

``python -m gpuemu_flow.workers.forkserver FD [PACKAGE [GPU]]``: FD is a Unix socket on which the
coordinator asks for sessions; an installed PACKAGE is imported first, see `imports.preload`, with
the emulated GPU if GPU is given. Each
request carries the session's socket, a lifeline, the status page and the standard error file. Over
the lifeline (a socket) the server reports the session's process id and later its exit status. When
the coordinator closes the lifeline or dies, the server kills the session's whole process group. No
module of a workspace is ever imported here.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # what is imported stays: a search for garbage among it is a tenth of the start

import base64
import contextlib
import fcntl
import importlib
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
from typing import NoReturn

import ml_dtypes
import numpy as np
from msgspec.structs import replace

from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.let_through import USER_CACHE, keep_user_cache, user_cache_of
from gpuemu_flow.numerics.rng_arrays import prefix_table
from gpuemu_flow.workers import channel, imports, jobs, limits, listener, notices, worker
from gpuemu_flow.workers.sandbox import enter, listings, spec

PRELOADED = (base64, json, ml_dtypes)
_FOR_JOBS = (
    "gpuemu_flow.judge.judge",
    "gpuemu_flow.judge.judge_service",
    "gpuemu_flow.numerics.rng_arrays",
    "gpuemu_flow.numerics.shadow",
    "numpy.ma",  # for medians
)
"""Modules that sessions need for judging.

They are loaded once here instead of in each session, but not for the first session after an edit,
which only calls the op.
"""
_FDS_PER_SESSION = 5
_SHUTDOWN_ROUNDS = 1000
_IDLE_SECONDS = 5.0  # until the entries kept open for the next sandbox are closed
_CONTROL, _WAKEUP = "control", "wakeup"
_LOCK = "server"


def kill_group(pid: int) -> None:
    """Send SIGKILL to a session: its leader, and all processes left in its group."""
    for kill in (os.kill, os.killpg):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


class ForkServer:
    """Forks sessions on request and reports their ends."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._requests = channel.FrameReader(control, max_fds=_FDS_PER_SESSION, wait=False)
        self._sessions: dict[int, socket.socket] = {}
        self._scratch: dict[int, str] = {}
        self._folder, self._lock = _own_folder()
        self._selector = selectors.DefaultSelector()
        self._complete = False
        self._wakeup, self._wakeup_end = os.pipe()
        self._listings, self._open_files = listings.raise_limit()

    def run(self) -> NoReturn:
        """Serve until the coordinator ends, then end all processes."""
        os.set_blocking(self._wakeup, False)
        os.set_blocking(self._wakeup_end, False)
        signal.set_wakeup_fd(self._wakeup_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._control, selectors.EVENT_READ, _CONTROL)
        self._selector.register(self._wakeup, selectors.EVENT_READ, _WAKEUP)
        try:
            while True:
                events = self._selector.select(None if self._listings.is_empty else _IDLE_SECONDS)
                if not events:
                    self._listings.forget()
                for key, _ in events:
                    self._react(key.data)
        except (channel.ChannelClosedError, channel.ChannelJunkError):
            pass
        finally:
            self._shut_down()
            os._exit(0)

    def _react(self, source: str | int | listener.Incoming | listener.Listener) -> None:
        if isinstance(source, (listener.Listener, listener.Incoming)):
            listener.react(self._selector, source)
        elif source == _CONTROL:
            while (request := self._requests.read()) is not None:
                if not request.get("calls_only"):
                    self._import_for_jobs()
                fence = request.get("sandbox")
                sandbox = convert(fence, spec.Sandbox | None)
                self._fork(fresh=bool(request.get("fresh")), sandbox=sandbox)
        elif source == _WAKEUP:
            try:
                os.read(self._wakeup, 4096)
            except BlockingIOError:
                pass
            self._reap()
        elif isinstance(source, int) and source in self._sessions:
            # The coordinator never writes on a lifeline: it is closed.
            kill_group(source)
            self._forget(source)

    def _import_for_jobs(self) -> None:
        """Import the modules that sessions need for judging, unless this has been done."""
        if not self._complete:
            for name in _FOR_JOBS:
                importlib.import_module(name)
            prefix_table()  # most of them draw values
            record_imports()
            self._complete = True

    def _fork(self, *, fresh: bool, sandbox: spec.Sandbox | None) -> None:
        fds = self._requests.fds[:_FDS_PER_SESSION]
        del self._requests.fds[:_FDS_PER_SESSION]
        if len(fds) < _FDS_PER_SESSION:
            raise channel.ChannelJunkError("a session needs its descriptors")
        given = worker.Descriptors(fds[0], *fds[2:])
        lifeline = socket.socket(fileno=fds[1])
        server = os.getpid()
        incoming, outgoing = socket.socketpair()
        given = replace(given, notices=outgoing.fileno())
        scratch, ready = "", None
        try:
            if not os.path.isdir(self._folder):  # noqa: PTH112 - a cleaner of /tmp took it
                self._folder, self._lock = _own_folder()
            scratch = enter.make_scratch(self._folder)
            ready = self._ready(sandbox, scratch)
            pid = os.fork()
        except OSError as error:
            incoming.close()
            _remove(scratch)
            _tell(lifeline, {"failed": error.strerror or str(error)})
            lifeline.close()
        else:
            if pid == 0:
                resource.setrlimit(resource.RLIMIT_NOFILE, self._open_files)
                _fence(sandbox, scratch, ready, given.stderr)
                _child(given, server=server, fresh=fresh)
            self._sessions[pid] = lifeline
            self._scratch[pid] = scratch
            lifeline.setblocking(False)
            self._selector.register(lifeline, selectors.EVENT_READ, pid)
            taker = listener.Incoming(incoming, os.dup(given.report))
            listener.register(self._selector, taker)
            _tell(lifeline, {"pid": pid, "scratch": scratch})
        if ready is not None:
            ready.close()
        outgoing.detach()
        for fd in given.numbers():
            os.close(fd)

    def _ready(self, sandbox: spec.Sandbox | None, scratch: str) -> enter.Ready | None:
        """Return a prepared sandbox; None if no sandbox is needed, or if preparing it fails.

        After a failure, the worker prepares the sandbox itself, and reports the error.
        """
        if sandbox is None:
            return None
        try:
            home = os.environ.get("HOME", "")
            return enter.make_ready(sandbox, scratch, home, self._listings)
        except Exception:
            return None

    def _forget(self, pid: int) -> None:
        lifeline = self._sessions.pop(pid, None)
        if lifeline is not None:
            self._selector.unregister(lifeline)
            lifeline.close()

    def _collect(self) -> tuple[int, int] | None:
        """Reap one ended child and kill its group; return its id and wait status."""
        pid = -1
        try:
            if hasattr(os, "waitid"):
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None:
                    return None
                pid = ended.si_pid
                if pid in self._sessions:
                    kill_group(pid)  # now: the zombie keeps its id from being used again
            ended_pid, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid < 0 and ended_pid in self._sessions:
            kill_group(ended_pid)
        return (ended_pid, status) if ended_pid else None

    def _reap(self) -> None:
        """Reap ended children and report them to the coordinator."""
        while (ended := self._collect()) is not None:
            pid, status = ended
            lifeline = self._sessions.get(pid)
            if lifeline is not None:
                _tell(lifeline, {"exit": os.waitstatus_to_exitcode(status)})
                self._forget(pid)
            _remove(self._scratch.pop(pid, ""))
        if not self._sessions:
            # Processes that left their session were adopted. With no session alive, they belong to
            # none.
            for orphan in limits.own_children():
                kill_group(orphan)

    def _shut_down(self) -> None:
        for pid in list(self._sessions):
            kill_group(pid)
        for _ in range(_SHUTDOWN_ROUNDS):
            for pid in limits.own_children():
                kill_group(pid)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        _remove_all(self._folder)


def _own_folder() -> tuple[str, int]:
    """Make the folder that holds those of the sessions, and remove what killed servers left. Each
    server holds a lock in its own, so that none takes that of another one; a folder without one is
    left, as servers of other versions have none."""
    while True:
        folder = enter.make_scratch()
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(f"{folder}/{_LOCK}", os.O_CREAT | os.O_WRONLY, 0o600)
            fcntl.lockf(lock, fcntl.LOCK_EX)  # none that is forked from here holds it, or frees it
            if os.path.exists(f"{folder}/{_LOCK}"):  # noqa: PTH110 - else another server took it
                break
            os.close(lock)
    above, _, own = folder.rpartition("/")
    with contextlib.suppress(OSError):
        for name in os.listdir(above):  # noqa: PTH208
            if name.startswith(spec.SCRATCH) and name != own:
                _remove_unlocked(f"{above}/{name}")
    return folder, lock


def _remove_unlocked(folder: str) -> None:
    with contextlib.suppress(OSError):
        if os.lstat(folder).st_uid != os.getuid():
            return
        lock = os.open(f"{folder}/{_LOCK}", os.O_WRONLY | os.O_NOFOLLOW)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_all(folder)
        finally:
            os.close(lock)


def _remove_all(folder: str) -> None:
    """Remove a server's folder, and its lock last: who is killed meanwhile leaves it for others."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208
            if name != _LOCK:
                _remove(f"{folder}/{name}")
        _remove(folder)


def _tell(lifeline: socket.socket, message: dict[str, object]) -> None:
    try:
        channel.send(lifeline, message)
    except channel.ChannelClosedError:
        pass


def _remove(scratch: str) -> None:
    """Remove a session's folder with all that the program put into it."""
    if not scratch:
        return
    try:
        shutil.rmtree(scratch, ignore_errors=True)
    except RecursionError:  # folders in folders in folders
        subprocess.run(["rm", "-rf", "--", scratch], check=False, stderr=subprocess.DEVNULL)


def _fence(
    sandbox: spec.Sandbox | None, scratch: str, ready: enter.Ready | None, stderr: int
) -> None:
    """Set up the forked process's folder and sandbox; end the process if that fails."""
    try:
        home = enter.move_in(scratch, trusted=sandbox is None)
        if sandbox is not None:
            enter.enter(sandbox, scratch, home, ready)
    except BaseException as error:
        os.write(stderr, f"{type(error).__name__}: {error}\n".encode("utf-8", "replace"))
        os._exit(spec.FAILED)


def _child(given: worker.Descriptors, *, server: int, fresh: bool) -> NoReturn:
    """Run the forked process as a worker, or start a fresh interpreter that becomes one."""
    try:
        os.setsid()
        if fresh:
            for fd in given.numbers():
                os.set_inheritable(fd, True)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            arguments = [str(n) for n in (*given.numbers(), server)]
            arguments.append(user_cache_of({}))
            module = ["-m", "gpuemu_flow.workers.worker"]
            os.execv(sys.executable, [sys.executable, *module, *arguments])  # noqa: S606
        worker.become_worker(given, parent=server)
    finally:
        os._exit(1)


def _preload(package: str, gpu: str, control: socket.socket) -> None:
    """Import a package; if that fails, restart the server, and leave the import to each worker."""
    environ = dict(os.environ)
    try:
        if gpu:
            imports.prepare_gpu(torch=gpu == "torch")
        if package:
            imports.preload(package, gpu=bool(gpu))
    except imports.PreloadError as refused:
        sys.stderr.write(f"not imported before: {refused}\n")
        sys.stderr.flush()
        control.set_inheritable(True)
        words = ["-m", "gpuemu_flow.workers.forkserver", str(control.fileno())]
        os.execve(sys.executable, [sys.executable, *words], environ)  # noqa: S606


def record_imports() -> None:
    """Record the modules that this process has imported, for all processes forked from now on."""
    jobs.prepare()
    notices.base_records(anew=True)  # last, so that it covers all modules loaded here
    imports.forget_folders()
    gc.disable()
    gc.freeze()  # garbage, too: of our own imports it is a fiftieth, and to look for it takes 10 ms


def main() -> NoReturn:
    """Run the server with the arguments of the command line."""
    gc.disable()
    control = socket.socket(fileno=int(sys.argv[1]))
    limits.tune()
    limits.adopt_orphans()
    np.random.seed(0)  # loads numpy.random, which is lazy, before forking
    keep_user_cache(os.environ.get(USER_CACHE, ""))
    if len(sys.argv) > 2:
        _preload(sys.argv[2], "".join(sys.argv[3:]), control)
        gc.collect()  # a framework may leave much more garbage than our own modules
    enter.prepare()
    record_imports()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # From here on, a signal must not end this process before it removes files; the closed socket
    # does.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ForkServer(control).run()


if __name__ == "__main__":
    main()

"""Start the fork server before the programs that it will run are known.

The server's interpreter and ours then load their modules at the same time. This module imports
almost nothing, since the entry point (`front`) uses it.
"""

import os
import sys

from gpuemu_flow.let_through import USER_CACHE, let_through, user_cache_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

SERVER_MODULE = "gpuemu_flow.runners.forkserver"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
"""The server's working folder, from which ``-m`` finds this package and no workspace module."""
_FAILED = 127
_TICK_S = 0.002
_ENDING_S = 60.0


def server_environment(environ: "Mapping[str, str]", more: "Mapping[str, str]") -> dict[str, str]:
    """Return the environment of a fork server.

    Parameters
    ----------
    environ : mapping of str to str
        Environment of this process; every worker receives a part of it.
    more : mapping of str to str
        Further variables for the programs.
    """
    kept = let_through(environ)
    home = environ.get("HOME", "")
    if home:
        kept["HOME"] = home  # to find packages; a program's HOME is its scratch folder
    threads = dict.fromkeys(THREAD_VARIABLES, "1")
    kept[USER_CACHE] = user_cache_of(environ)
    return {**threads, "PYTHONHASHSEED": "0", **kept, **more}


def server_command(control: int, framework: str) -> list[str]:
    """Return the command of a fork server whose control socket is descriptor `control`."""
    command = [sys.executable, "-m", SERVER_MODULE, str(control)]
    return [*command, framework] if framework else command


class EarlyServer:
    """A fork server's process that was started before it was needed.

    It has the methods of `subprocess.Popen` that `ServerHandle` uses.

    Attributes
    ----------
    pid : int
    control : int
        Descriptor of our end of its control socket.
    stderr : int
        Descriptor of the file that its standard error goes to.
    environment : dict of str to str
    """

    def __init__(self, environment: dict[str, str]) -> None:
        from _socket import socket, socketpair  # noqa: PLC0415 - a built-in part of `socket`

        self.environment = environment
        self.returncode: int | None = None
        self.stderr = os.memfd_create("forkserver-stderr", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        ends: tuple[socket, socket] = socketpair()
        self.control, peer = (end.detach() for end in ends)
        self.pid = os.fork()
        if self.pid == 0:
            self._become(peer)
        os.close(peer)

    def _become(self, control: int) -> None:
        """Turn the forked process into the server; never returns."""
        try:
            os.setsid()
            os.chdir(PACKAGE_ROOT)
            nothing = os.open(os.devnull, os.O_RDWR)
            for number, source in enumerate((nothing, nothing, self.stderr)):
                os.dup2(source, number)
            os.set_inheritable(control, True)
            for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - as few imports as possible
                if int(name) > 2 and int(name) != control:
                    os.set_inheritable(int(name), False)
        except OSError:
            pass
        try:
            command = server_command(control, "")
            os.execve(sys.executable, command, self.environment)  # noqa: S606
        finally:
            os._exit(_FAILED)

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self.returncode = _FAILED
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended.

        Raises
        ------
        subprocess.TimeoutExpired
        """
        import time  # noqa: PLC0415

        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if timeout is not None and deadline is not None and time.monotonic() > deadline:
                from subprocess import TimeoutExpired  # noqa: PLC0415

                raise TimeoutExpired(SERVER_MODULE, timeout)
            time.sleep(_TICK_S)
        assert self.returncode is not None  # noqa: S101 - `poll` has set it
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def drop(self) -> None:
        """End the process, which must not have been used yet, and so has no workers."""
        import signal  # noqa: PLC0415

        os.close(self.control)
        os.close(self.stderr)
        # While it still loads modules, this ends it; later, the closed socket does.
        self.send_signal(signal.SIGTERM)
        self.wait(_ENDING_S)


_started: list[EarlyServer] = []


def start(environ: "Mapping[str, str]") -> None:
    """Start a fork server for programs with default settings, before any thread is started."""
    if not hasattr(os, "memfd_create") or not os.path.isdir("/proc/self/fd"):  # noqa: PTH112
        return
    try:
        _started.append(EarlyServer(server_environment(environ, {})))
    except OSError:  # whoever needs a server starts one, and says why that cannot be done
        return


def take(environment: "Mapping[str, str]") -> EarlyServer | None:
    """Return the server that was started early; the caller then owns the server.

    Returns
    -------
    EarlyServer or None
        None if there is none with this `environment`, or it has ended.
    """
    if _started and _started[0].environment == environment and _started[0].poll() is None:
        return _started.pop()
    return None


def drop() -> None:
    """End the server that was started early, if nobody took it."""
    while _started:
        _started.pop().drop()

"""Run a command that ends when its starter ends: ``guarded.py FD LC_CTYPE PROGRAM ARGUMENT...``.

FD is the reading end of a pipe whose writing end only the starter holds. When the starter closes
that end or dies, even by SIGKILL, the command is killed with all that it started, in whatever
process group: ninja gives each compiler one of its own. Otherwise the command could still write its
outputs when the next run makes them again.

LC_CTYPE is the value of the environment variable of that name for the command, because a Python
interpreter may change the variable as it starts. The file runs as a script that does not import the
package, which saves time for each command.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
from typing import NoReturn

NOT_STARTED = 127


def main() -> NoReturn:
    """Start the command in a new process group, wait for it, and exit with its exit code."""
    lifeline, locale, words = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    os.set_inheritable(lifeline, False)
    ended, ended_end = os.pipe()
    os.set_blocking(ended_end, False)
    signal.set_wakeup_fd(ended_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pid = os.fork()
    with contextlib.suppress(OSError):  # both processes try; the later one may fail
        os.setpgid(pid, pid)
    if pid == 0:
        _become(locale, words)
    for stream in (0, 1, 2):  # readers of the command's output wait for its end, not for ours
        os.close(stream)
    while True:
        ready, _, _ = select.select([lifeline, ended], [], [])
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            _end_as(os.waitstatus_to_exitcode(status))
        if lifeline in ready:
            _end_all(pid)
        os.read(ended, 4096)


def _end_all(pid: int) -> NoReturn:
    """Kill the command and all that it started; what is stopped starts nothing more."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            os.kill(one, signal.SIGSTOP)
            for thread in os.listdir(f"/proc/{one}/task"):  # noqa: PTH208 - pathlib is slow to load
                with open(f"/proc/{one}/task/{thread}/children") as file:  # noqa: PTH123 - as above
                    found += map(int, file.read().split())
    for one in found:
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(one, signal.SIGKILL)
    _end_as(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _become(locale: str, words: list[str]) -> NoReturn:
    signal.set_wakeup_fd(-1)
    os.environ.pop("LC_CTYPE", None)
    if locale:
        os.environ["LC_CTYPE"] = locale
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores some of these
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(words[0], words)  # noqa: S606 - no shell is meant
    except OSError as error:
        os.write(2, os.fsencode(f"{error.strerror}: {words[0]}\n"))
    os._exit(NOT_STARTED)


def _end_as(code: int) -> NoReturn:
    """End this process with an exit code; if the code is negative, with signal number ``-code``."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()

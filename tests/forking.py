"""A fork of the process that runs the tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable


def in_child(work: Callable[[], int]) -> int:
    """Do some work in a fork of this process, and return the exit code that it gives.

    The child collects no garbage: sockets of nng that an earlier test left would abort it.
    """
    gc.disable()
    try:
        pid = os.fork()
        if pid == 0:
            code = 255
            try:
                code = work()
            finally:
                os._exit(code)
    finally:
        gc.enable()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

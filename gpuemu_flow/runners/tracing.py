"""Make the fork server observe the files that a worker's machine code and children use."""

from __future__ import annotations

import array
import os
import socket
import stat
from contextlib import suppress

from gpuemu_flow.runners import notices, tracer


class Tracing:
    """Asks the system, once in each process, to report file accesses to the fork server.

    This is done when the reports are first needed; see `notices`.

    Parameters
    ----------
    server : int
        Descriptor of a socket that leads to the fork server.
    """

    def __init__(self, server: int) -> None:
        self._server = server
        self._failure: str | None = None
        self._own_calls = False

    def begin(self, *, children_only: bool, looks: bool) -> str:
        """Start tracing of this process and of all that it starts from now on.

        Parameters
        ----------
        children_only : bool
            True to leave this process out, if the program runs in other processes.
        looks : bool
            True to report also files that are only looked for. Has no effect once tracing has
            begun.

        Returns
        -------
        str
            Reason why tracing is impossible; empty once it has begun.
        """
        if self._failure is None:
            self._failure = self._begin(children_only=children_only, looks=looks)
            self._own_calls = not self._failure and not children_only
        return self._failure

    def announce(self, folder: str) -> None:
        """Tell the tracer that Python, and not machine code, will list this folder next."""
        if self._own_calls:
            with suppress(OSError):
                os.close(os.open(tracer.ANNOUNCED + os.fsencode(folder), os.O_RDONLY))

    def _begin(self, *, children_only: bool, looks: bool) -> str:
        try:
            if not stat.S_ISSOCK(os.fstat(self._server).st_mode):
                return "the program closed the checker's files"
            sock = socket.socket(fileno=os.dup(self._server))
        except OSError:
            return "the program closed the checker's files"
        with sock:
            fds = array.array("i", [0])
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
            kind = [tracer.CHILDREN_ONLY if children_only else tracer.ALL]
            try:
                fds[0] = notices.ask(looks=looks)
            except notices.NoNoticesError as error:
                return str(error)
            # Do nothing in between: every opening of a file waits until the fork server has the
            # descriptor.
            try:
                sock.sendmsg(kind, rights)
            except OSError:  # no receiver: waiting calls fail once the descriptor is closed
                return "the program closed the checker's files"
            finally:
                os.close(fds[0])
        return ""

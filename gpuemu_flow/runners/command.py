"""Run executables that speak the script protocol, in a new process for each call."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence

import numpy as np

from gpuemu_flow.runners.api import OpError, Program, RunError
from gpuemu_flow.runners.arguments import for_protocol
from gpuemu_flow.runners.codec import decode_response, encode_request
from gpuemu_flow.runners.diagnose import signal_name
from gpuemu_flow.runners.limits import output_limit
from gpuemu_flow.runners.script import check_size
from gpuemu_flow.runners.streams import StandardStreams
from gpuemu_flow.runners.watch import Watch
from gpuemu_flow.types import Failure


class CommandRunner:
    """Starts an executable for each call, in the worker's own process group."""

    hint = ""

    def __init__(self, program: Program, streams: StandardStreams, argv: Sequence[str]) -> None:
        self._program = program
        self._streams = streams
        self._argv = list(argv)
        self._limits = resource.getrlimit(resource.RLIMIT_AS)
        self._killed_again = False

    def call(self, inputs: Mapping[str, np.ndarray], watch: Watch) -> dict[str, np.ndarray]:
        """Return the outputs by name.

        Raises OpError: ``op-not-loadable``, ``op-crashed`` or ``op-exit-code``; if stdout is no
        valid response, the error that `codec.decode_response` raises.
        """
        tensors, rest = for_protocol(self._program, inputs)
        request = encode_request(tensors, {**self._program.kwargs, **rest})
        code = self._called(request, watch)
        if code == -signal.SIGKILL and not self._killed_again:
            # This may not be the program's fault: the system may have killed it for other
            # processes' memory.
            code = self._called(request, watch)
            self._killed_again = code == -signal.SIGKILL
        if code < 0:
            message = f"the program was killed by {signal_name(-code)}"
            raise OpError(RunError("op-crashed", message))
        if code:
            raise OpError(RunError("op-exit-code", f"the program exited with code {code}"))
        check_size(self._streams, output_limit(len(request)))
        return decode_response(self._streams.written(), self._program.output_names)

    def _called(self, request: bytes, watch: Watch) -> int:
        stdin, stdout = self._streams.load(request)
        with watch:
            return self._run(stdin, stdout)

    def violations(self) -> Sequence[Failure]:
        """Return nothing, since the actions of another process are not observed."""
        return ()

    def _run(self, stdin: int, stdout: int) -> int:
        limit = self._program.memory_limit

        def limit_memory() -> None:
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_AS, (limit, self._limits[1]))

        try:
            # The worker has one thread, so that preexec_fn is safe here.
            return subprocess.run(
                self._argv,
                stdin=stdin,
                stdout=stdout,
                stderr=2,
                env={**os.environ},
                preexec_fn=limit_memory if limit is not None else None,
                check=False,
            ).returncode
        except (OSError, subprocess.SubprocessError) as error:
            message = f"cannot start {self._argv[0]}: {error}"
            hint = "make it executable, with a #! line if it is a script"
            if isinstance(error, PermissionError) and os.access(self._argv[0], os.X_OK):
                hint = "its sandbox hides it, or the program that its #! line names"
            raise OpError(RunError("op-not-loadable", message, hint, file=self._argv[0])) from None

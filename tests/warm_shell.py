"""A program that passes for ``gpuemu-flow`` in a shell, forked from the process that has loaded it.

`warm.place_command` writes it; what it asks for is the same as `warm.warm_command` asks for.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

from warm_popen import ForkedProcess, request_of, starts_otherwise


def run(control: int, variables: dict[str, str], arguments: list[str]) -> int:
    """Run the command with this process's folder, environment and standard streams.

    An interpreter is started for ``watch``, too, which signals end.

    Parameters
    ----------
    control : int
        Descriptor of the loaded process's socket, which the shell has inherited.
    variables : dict
        Those that the loaded process was started with.
    arguments : list of str

    Returns
    -------
    int
        The exit code; minus its number where a signal ended the command.
    """
    environ, folder = dict(os.environ), Path.cwd()
    request = request_of(arguments, str(folder), environ, (0, 1, 2))
    if arguments[:1] == ["watch"] or starts_otherwise(environ, variables, folder, request):
        os.execv(sys.executable, [sys.executable, "-m", "gpuemu_flow", *arguments])
    return ForkedProcess(socket.socket(fileno=control), request, (0, 1, 2)).wait()


if __name__ == "__main__":
    code = run(int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
    sys.exit(128 - code if code < 0 else code)

"""Find what a user's build command depends on besides the content of its declared inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuemu_flow.observed import Observation


def command_uses(
    program: str, inputs: Sequence[str], root: Path, environment: Mapping[str, str]
) -> Observation | None:
    """Return the dependencies of a command besides the content of its inputs.

    These are the file of its program, and which of its inputs are executable.

    Parameters
    ----------
    program : str
        The first word of the command.
    inputs : sequence of str
        Paths relative to `root`.
    root : Path
        The workspace.
    environment : mapping of str to str
        The variables that the command gets.

    Returns
    -------
    Observation or None
        None if there is no such program on ``PATH``.
    """
    paths = (os.path.join(root, name) for name in inputs)  # noqa: PTH118
    looked = frozenset(path for path in paths if os.access(path, os.X_OK))
    if "/" in program:
        files = frozenset({os.path.join(root, program)})  # noqa: PTH118
        return Observation(files=files, looked=looked)
    missed: list[str] = []
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(root, folder or ".", program)  # noqa: PTH118
        if os.access(path, os.X_OK) and not os.path.isdir(path):  # noqa: PTH112
            files = frozenset({path})
            return Observation(files, frozenset(missed), looked=looked)
        missed.append(path)
    return None

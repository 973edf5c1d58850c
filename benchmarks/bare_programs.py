"""The bare work of a cold run: each program in a forked child, inputs made, outputs compared.

    python benchmarks/bare_programs.py FOLDER OPS

One process that has loaded numpy makes each op's inputs, and forks once for the op and once for its
reference. The child reads the program's file, calls the function and sends the outputs back.
Nothing is kept, hidden from the op, limited, watched or looked up.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

ELEMENTS = 8  # as the schema of `workspaces.write_gpuemu` says


def called_in_child(path: Path, function: str, x: np.ndarray) -> np.ndarray:
    """Call a function of a file in a process of its own.

    Raises
    ------
    ChildProcessError
        It did not end with 0.
    """
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            space: dict[str, object] = {"__name__": path.stem, "__file__": str(path)}
            exec(compile(path.read_bytes(), path, "exec"), space)
            outputs = space[function](x)  # type: ignore[operator]  # exec made it
            os.write(sending, outputs.tobytes())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(sending)
    with os.fdopen(receiving, "rb") as stream:
        data = stream.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise ChildProcessError(f"{path} ended with {status}")
    return np.frombuffer(data, x.dtype)


def run(folder: Path, ops: int) -> None:
    """Check so many ops of a workspace.

    Raises
    ------
    ValueError
        An op is wrong.
    """
    scripts = folder / "scripts"
    for n in range(ops):
        x = np.random.default_rng(n).uniform(-10, 10, ELEMENTS).astype(np.float32)
        got = called_in_child(scripts / f"op_{n}.py", "op", x)
        expected = called_in_child(scripts / f"reference_{n}.py", "reference", x.astype(float))
        if not np.allclose(got, expected):
            raise ValueError(f"op {n} is wrong")


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))

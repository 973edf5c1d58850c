"""Start a compiler in the sandbox of ops: ``launch.py FOLDER SANDBOX PROGRAM ARGUMENT...``.

Kernel sources are as untrusted as ops: a compiler reads any file that they name, or imports them.
It writes into FOLDER; SANDBOX is the sandbox as JSON. This file runs as a script, not with ``-m``,
so that the workspace is not on the interpreter's path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from gpuemu_flow.model.decoding import known
from gpuemu_flow.workers.sandbox import enter, spec

NOT_STARTED = 127


def main() -> NoReturn:
    """Enter the sandbox, then execute the program in place of this process."""
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    import msgspec  # noqa: PLC0415

    folder, wall, *words = sys.argv[1:]
    try:
        sandbox = msgspec.json.decode(wall, type=known(spec.Sandbox))
        home = enter.move_in(folder, trusted=False)
        enter.enter(sandbox, folder, home)
    except (enter.SandboxError, OSError, TypeError, ValueError) as error:
        sys.stderr.write(f"the compiler could not be fenced: {error}\n")
        os._exit(spec.FAILED)
    try:
        os.execvp(words[0], words)  # noqa: S606 - no shell is meant
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        os._exit(NOT_STARTED)


if __name__ == "__main__":
    main()

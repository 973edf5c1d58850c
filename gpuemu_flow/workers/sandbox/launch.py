"""Start a compiler in the sandbox of ops: ``launch.py HOW PROGRAM ARGUMENT...``.

Kernel sources are as untrusted as ops: a compiler reads any file that they name, or imports them.
HOW is a `Launch` as JSON. This file runs as a script, not with ``-m``, so that the workspace is not
on the interpreter's path.
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

    how, *words = sys.argv[1:]
    try:
        launch = msgspec.json.decode(how, type=known(spec.Launch))
        if launch.sandbox is not None:
            home = enter.move_in(launch.folder, trusted=False)
            enter.enter(launch.sandbox, launch.folder, home)
    except (enter.SandboxError, OSError, TypeError, ValueError) as error:
        sys.stderr.write(f"the compiler could not be fenced: {error}\n")
        os._exit(spec.FAILED)
    # This interpreter may have set it as it started.
    os.environ.pop("LC_CTYPE", None)
    os.environ.update({"LC_CTYPE": launch.locale} if launch.locale else {})
    if launch.seen_at:
        from gpuemu_flow.workers.notices import be_seen  # noqa: PLC0415 - compilers need it not

        be_seen(*launch.seen_at)
        for fd in launch.seen_at:
            os.close(fd)
    try:
        os.execvp(words[0], words)  # noqa: S606 - no shell is meant
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        os._exit(NOT_STARTED)


if __name__ == "__main__":
    main()

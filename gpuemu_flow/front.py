"""The entry point: answers "nothing changed" at once, and hands everything else to the CLI."""

from __future__ import annotations

import os
import sys

_GARBAGE_THRESHOLD = 20_000  # what is imported stays: looking for garbage among it is waste


def _fill_standard_streams() -> None:
    """Put the null device where a standard stream was closed.

    Else the next file to be opened, a database of the cache perhaps, would take its number, and
    what a worker prints would be written into it.
    """
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            break
        os.set_inheritable(descriptor, True)
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def main() -> None:
    """Run the command line; never returns."""
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        _fill_standard_streams()
    if sys.argv[1:] == ["run"] and "GPUEMU_CONFIG" not in os.environ:
        from gpuemu_flow.engine import plan  # noqa: PLC0415 - only the fast path needs it

        root = plan.find_workspace(os.getcwd())  # noqa: PTH109
        if root is not None:
            path = f"{root}/{plan.CACHE_NAME}/{plan.PLAN_NAME}"
            summary = plan.up_to_date(path, os.environ)
            if summary is not None:
                print(summary, flush=True)
                os._exit(0)  # the interpreter's own tidying up costs more than the answer did
    import gc  # noqa: PLC0415 - as everything that the fast path does without

    gc.set_threshold(_GARBAGE_THRESHOLD)
    # Our own arithmetic uses no BLAS, whose threads spin for a while once numpy is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from gpuemu_flow.cli.main import run_cli  # noqa: PLC0415 - click only when it is needed
    except KeyboardInterrupt:  # later ones are the commands' own
        sys.exit(130)
    run_cli()


def for_vscode() -> None:
    """Run `main` for the published VS Code extension; never returns.

    It throws away what a command printed and takes it for broken down at each exit code but 0; so
    1, which says that a check failed, becomes 0. All others stay.
    """
    try:
        main()
    except SystemExit as end:
        sys.exit(0 if end.code == 1 else end.code)

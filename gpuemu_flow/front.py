"""The entry point: answers "nothing changed" at once, and hands everything else to the CLI."""

import atexit
import gc
import io
import os
import sys

_GARBAGE_THRESHOLD = 400_000  # what is imported stays: looking for garbage among it is waste


def _fill_standard_streams() -> None:
    """Open the null device in place of each closed standard stream.

    Otherwise the next file to be opened, perhaps a database of the cache, would get the stream's
    number, and output of a worker would be written into it.
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


def leave(code: int) -> None:
    """End the process as `sys.exit` does, but skip the cleanup of loaded modules; never returns.

    That cleanup takes as long as a short command. Exit functions still run, and running threads are
    waited for as usual.
    """
    threading = sys.modules.get("threading")
    if threading is not None and any(
        not thread.daemon and thread is not threading.main_thread()
        for thread in threading.enumerate()
    ):
        sys.exit(code)
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(code)  # the interpreter's own words and exit code for it
    os._exit(code)


def main() -> None:
    """Run the command line; never returns."""
    leave(_answer())


def _answer() -> int:
    """Run the command line, and return the exit code."""
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        _fill_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path may hold bytes that are no text, and the locale may lack our signs.
            stream.reconfigure(errors="backslashreplace")
    if sys.argv[1:] == ["run"] and "GPUEMU_CONFIG" not in os.environ:
        # before anything heavy
        from gpuemu_flow.build.stamps import clean_summary, find_workspace  # noqa: PLC0415

        root = find_workspace(os.getcwd())  # noqa: PTH109
        summary = None if root is None else clean_summary(root, os.environ)
        if summary is not None:
            print(summary, flush=True)
            os._exit(0)
    gc.set_threshold(_GARBAGE_THRESHOLD)
    # Our own arithmetic uses no BLAS, whose threads spin for a while once numpy is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from gpuemu_flow.cli.main import run_cli  # noqa: PLC0415 - click only when it is needed
    except KeyboardInterrupt:  # later ones are the commands' own
        return 130
    return run_cli()


def for_vscode() -> None:
    """Run `main` for the published VS Code extension; never returns.

    For every exit code but 0, the extension discards the command's output and reports a breakdown.
    Exit code 1, which means that a check failed, therefore becomes 0. All other codes stay as they
    are. The command `failures` prints the format that the extension parses.
    """
    if sys.argv[1:2] == ["failures"]:
        sys.argv[2:2] = ["--format", "published"]  # a format that is given comes later, and holds
    code = _answer()
    leave(0 if code == 1 else code)

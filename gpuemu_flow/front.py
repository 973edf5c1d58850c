"""The entry point: answers "nothing changed" at once, and hands everything else to the CLI."""

import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuemu_flow.inputs.answers import Answer
    from gpuemu_flow.inputs.plan import Seen

_GARBAGE_THRESHOLD = 100_000  # what is imported stays: looking for garbage among it is waste


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

    Parameters
    ----------
    code : int
        The exit code.
    """
    threading = sys.modules.get("threading")
    if threading is not None and any(
        not thread.daemon and thread is not threading.main_thread()
        for thread in threading.enumerate()
    ):
        sys.exit(code)
    import atexit  # noqa: PLC0415 - the fast path does without

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
        from gpuemu_flow.inputs import plan  # noqa: PLC0415 - only the fast path needs it

        root = plan.find_workspace(os.getcwd())  # noqa: PTH109
        if root is not None:
            path = f"{root}/{plan.CACHE_NAME}/{plan.PLAN_NAME}"
            seen: dict[str, Seen] = {}
            summary, works, holds = plan.look(path, os.environ, seen)
            if summary is not None:
                print(summary, flush=True)
                os._exit(0)
            return _run_plainly(seen, works=works, holds=holds)
    return _run_cli()


def _run_plainly(seen: "dict[str, Seen]", *, works: bool, holds: bool) -> int:
    """Run the command ``run``, given without arguments, and return the exit code.

    Parameters
    ----------
    seen : dict of absolute path to Seen
        Stamps of files that were just read and need not be read again.
    works : bool
        True to start the fork server first.
    holds : bool
        True if the stored manifests, which record the results of tasks, are known to be unchanged
        since the last run in which everything passed.
    """
    from gpuemu_flow.runners import early  # noqa: PLC0415 - seldom needed

    if works:
        early.start(os.environ)
    try:
        _prepare_imports()
        import gc  # noqa: PLC0415

        gc.disable()  # until the workspace is loaded: almost all of it stays, too
        try:
            from gpuemu_flow.cli.validate import run_plainly  # noqa: PLC0415 - loads no click
        except KeyboardInterrupt:
            return 130
        return run_plainly(seen, holds=holds)
    finally:
        early.drop()


def _prepare_imports() -> None:
    """Prepare this process for the imports that the fast path avoids."""
    import gc  # noqa: PLC0415

    gc.set_threshold(_GARBAGE_THRESHOLD)
    # Our own arithmetic uses no BLAS, whose threads spin for a while once numpy is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _run_cli() -> int:
    """Run the command line and return the exit code, or print a valid cached answer and end."""
    answer = _cached_answer()
    _prepare_imports()
    try:
        from gpuemu_flow.cli.main import run_cli  # noqa: PLC0415 - click only when it is needed
    except KeyboardInterrupt:  # later ones are the commands' own
        return 130
    code = run_cli()
    if answer is not None and code == 0:
        answer.keep()
    return code


def _cached_answer() -> "Answer | None":
    """Print a command's cached answer and end the process, if there is one.

    Otherwise return a recorder of the command's new answer; None if it must not be cached.
    """
    arguments = sys.argv[1:]
    if arguments[:1] not in (["run"], ["list"], ["status"], ["explain"], ["ci"]):
        return None
    from time import perf_counter  # noqa: PLC0415

    begin = perf_counter()
    from gpuemu_flow.inputs import answers, plan  # noqa: PLC0415

    if "GPUEMU_CONFIG" in os.environ or not answers.may_be_cached(arguments, os.environ):
        return None
    root = plan.find_workspace(os.getcwd())  # noqa: PTH109
    if root is None:
        return None
    answer = answers.Answer(root, arguments, os.environ, terminal=sys.stdout.isatty())
    if not answer.text:
        answers.recording = answer
        return answer
    text = answers.with_duration(answer.text, perf_counter() - begin)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader went away (`| head`)
        os._exit(1)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"error: cannot write the output: {error}\n")
        os._exit(3)
    os._exit(0)


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

"""Diagnose a program's failure: its meaning, its location in the user's code, and a hint."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from gpuemu_flow.workers.api import OpError, Program, RunError
from gpuemu_flow.workers.imports import is_workspace_path
from gpuemu_flow.workers.sandbox.spec import FAILED

_OWN_FOLDER = str(Path(__file__).parent.parent) + os.sep
_MEMORY_WORDS = ("bad_alloc", "out of memory", "Cannot allocate memory", "MemoryError")
MAX_MESSAGE = 500
_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS)
_FENCED = (
    "an op reads no credentials, opens no sockets, and writes its temporary folder and what "
    "`[sandbox] writable` names"
)
_HIDDEN = (
    "compute without it; if both need the file, name it in the op's `shared` (for a module, an "
    "import statement of the op will do)"
)
_PLACES = (
    "an input that holds places of another says so in the schema: "
    '`{ dims = ["N"], dtype = "int64", kind = "indices", of = "x" }`'
)
_ARRAYS = (
    "the function gets arrays of numpy; "
    '`{ kind = "torch", file = "FILE.py", function = "f" }` gives it tensors'
)
INTERFERED = "the program wrote to the runner's own socket, or closed it"
CUT_OFF = 97  # exit code of a worker whose socket the program closed


def shown_path(path: str, root: str) -> str:
    """Return a path relative to the workspace if it is inside, else unchanged."""
    prefix = root.rstrip(os.sep) + os.sep
    return path.removeprefix(prefix)


def locate(error: BaseException, program: Program) -> tuple[str, int]:
    """Return file and line of the innermost frame in the program's file, else in the workspace.

    The result is "" and 0 if there is no such frame.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return shown_path(error.filename, program.root), error.lineno or 0
    frames = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    in_file = [place for place in frames if program.path and place[0] == program.path]
    in_workspace = [
        place
        for place in frames
        if is_workspace_path(place[0], program.root) and not place[0].startswith(_OWN_FOLDER)
    ]
    for places in (in_file, in_workspace):
        if places:
            path, line = places[-1]
            return shown_path(path, program.root), line
    return "", 0


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # a hostile __str__ may raise anything
        text = "(its message cannot be shown)"
    name = type(error).__name__
    return f"{name}: {text}"[:MAX_MESSAGE] if text else name


def _outside_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the runner's frames at its beginning."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
        trace = trace.tb_next
    return trace


def print_traceback(error: BaseException, root: str = "") -> None:
    """Write a traceback to standard error as an interpreter would, without our own frames.

    Paths below `root` are shown relative to it.
    """
    try:
        lines = traceback.format_exception(
            type(error), error, _outside_frames(error.__traceback__), limit=-20
        )
        text = "".join(lines)
        if root:
            text = text.replace(f'File "{root.rstrip(os.sep)}{os.sep}', 'File "')
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except BaseException:  # noqa: S110 - hostile exceptions; the message is reported anyway
        pass


def _limit_text(program: Program) -> str:
    if program.memory_limit is None:
        return "memory is exhausted"
    return f"memory_limit = {program.memory_limit} bytes is exhausted"


MOST_NAME = 80
"""Maximum number of characters of an exception's name."""


def explain(error: BaseException, program: Program, *, doing: str = "", hint: str = "") -> RunError:
    """Return a RunError for an exception that a program raised, or that loading it raised."""
    if isinstance(error, OpError):
        return error.error
    file, line = locate(error, program)
    if doing and not file:
        file = shown_path(program.path, program.root)
    prefix = f"{doing}: " if doing else ""
    if isinstance(error, MemoryError):
        return RunError("op-out-of-memory", prefix + _limit_text(program), file=file, line=line)
    if isinstance(error, SystemExit):
        return RunError(
            "op-exit-code", f"{prefix}sys.exit({error.code!r:.80}) was called", file=file, line=line
        )
    hidden = _hidden_path(error, program)
    if hidden:
        text = f"{prefix}the op reads what is hidden from it, {hidden}"
        return RunError("op-reads-reference", text, _HIDDEN, file=file, line=line)
    slug = "op-not-loadable" if doing else "op-exception"
    if isinstance(error, RecursionError):
        hint = "raise the recursion limit or use a loop"
    elif isinstance(error, IndexError):
        hint = hint or _PLACES
    elif isinstance(error, AttributeError) and type(error.obj).__module__ == "numpy":
        hint = hint or _ARRAYS
    fenced = program.sandbox is not None
    hint = hint or hint_for(error, fenced=fenced)
    if fenced and isinstance(error, OSError) and error.errno in _REFUSALS:
        hint = hint or _FENCED
    raised = type(error).__name__[:MOST_NAME]
    text = prefix + _text(error)
    return RunError(slug, text, hint, file=file, line=line, exception=raised)


def _hidden_path(error: BaseException, program: Program) -> str:
    """Return the hidden path whose use the kernel refused with this error; empty if it did not."""
    if not isinstance(error, OSError) or error.errno not in _REFUSALS or program.sandbox is None:
        return ""
    path = error.filename
    if not isinstance(path, str):
        return ""
    real = os.path.realpath(path)
    places = map(os.path.realpath, (program.root, *program.sandbox.hidden))
    if not any(Path(real).is_relative_to(place) for place in places):
        return ""
    try:
        os.close(os.open(real, os.O_RDONLY | os.O_NONBLOCK))
    except PermissionError:
        return shown_path(real, program.root)
    except OSError:
        pass
    return ""


def explain_exit(code: int, program: Program, stderr_tail: str) -> RunError:
    """Return a RunError for a worker that ended in the middle of a case."""
    if any(word in stderr_tail for word in _MEMORY_WORDS):
        return RunError("op-out-of-memory", _limit_text(program), stderr_tail=stderr_tail)
    if code == CUT_OFF:
        return RunError("op-broke-runner", INTERFERED, stderr_tail=stderr_tail)
    if code == FAILED and program.sandbox is not None:
        return RunError(
            "sandbox-failed",
            f"the sandbox ({program.sandbox.level}) could not be enforced, so nothing ran",
            'its output says why; `[sandbox] mode = "off"` runs ops without a sandbox',
            stderr_tail,
        )
    if code >= 0:
        return RunError(
            "op-crashed",
            f"the program ended its own process with exit code {code}",
            "return instead of calling os._exit",
            stderr_tail,
        )
    name = signal_name(-code)
    hint = "perhaps the system ran out of memory" if name == "SIGKILL" else ""
    return RunError("op-crashed", f"the process was killed by {name}", hint, stderr_tail)


def signal_name(number: int) -> str:
    """Return the name of a signal: ``SIGSEGV`` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# Explain failures that come from the processes and programs that an op starts.


SPAWNED = (
    "processes that `multiprocessing` spawns cannot import the op's own file: have them run a "
    "function of a module that it imports, or take the start method `fork`"
)
_MANAGED = (
    "a `Manager` talks over sockets, which an op may not open: share by `multiprocessing.Array`, "
    "`shared_memory`, a queue or a pipe"
)
_FORK_SERVER = (
    "the start method `forkserver`, the default from Python 3.14 on, needs sockets, which an op "
    'may not open: take `multiprocessing.get_context("fork")`'
)
_STARTED = (
    "a program that an op starts is kept from the same as the op: it reads no credentials and no "
    "folder of version control (`git`), opens no sockets, and writes the temporary folder and what "
    "`[sandbox] writable` names"
)
_OF_SPAWNED = "--multiprocessing-fork"
_TRACKER = "from multiprocessing.resource_tracker import main"


def spawns(group: int) -> bool:
    """Tell whether a worker's process group holds processes that `multiprocessing` spawned.

    If the processes of a pool die when they start, the pool keeps restarting them, and possibly
    none is alive at this moment. Therefore, the resource tracker of `multiprocessing`, which
    outlives them, counts as well.
    """
    for pid in _processes():
        try:
            if os.getpgid(pid) == group and _is_spawned(pid):
                return True
        except OSError:
            continue
    return False


def _processes() -> Iterator[int]:
    try:
        names = os.listdir("/proc")  # noqa: PTH208
    except OSError:
        return
    yield from (int(name) for name in names if name.isdecimal())


def _is_spawned(pid: int) -> bool:
    with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
        words = os.fsdecode(file.read(4096)).split("\0")
    return _OF_SPAWNED in words or any(word.startswith(_TRACKER) for word in words)


def hint_for(error: BaseException, *, fenced: bool) -> str:
    """Return a hint for errors of `multiprocessing` and `subprocess`; empty if none applies."""
    pools = sys.modules.get("concurrent.futures.process")
    if isinstance(error, getattr(pools, "BrokenProcessPool", ())):
        return SPAWNED if _has_tracker() else ""
    if not fenced:
        return ""
    if isinstance(error, EOFError) and _came_from(error.__traceback__, "multiprocessing.managers"):
        return _MANAGED
    if isinstance(error, OSError) and _came_from(error.__traceback__, "multiprocessing.forkserver"):
        return _FORK_SERVER
    programs = sys.modules.get("subprocess")
    return _STARTED if isinstance(error, getattr(programs, "SubprocessError", ())) else ""


def _has_tracker() -> bool:
    """Tell whether this process has started the resource tracker that spawning needs."""
    tracker = getattr(
        sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None
    )
    return getattr(tracker, "_pid", None) is not None


def _came_from(trace: TracebackType | None, module: str) -> bool:
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == module:
            return True
        trace = trace.tb_next
    return False

"""Run protocol scripts in this process as an interpreter would, without its start-up time."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import types
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuemu_flow.runners import malloc
from gpuemu_flow.runners.api import OpError, Program, RunError
from gpuemu_flow.runners.arguments import for_protocol
from gpuemu_flow.runners.codec import decode_response, encode_request
from gpuemu_flow.runners.imports import read_source
from gpuemu_flow.runners.limits import output_limit
from gpuemu_flow.runners.script_style import function_to_call
from gpuemu_flow.runners.streams import StandardStreams
from gpuemu_flow.runners.watch import Watch
from gpuemu_flow.types import Failure


def function_in_script(program: Program) -> str:
    """Return the name of the function to call in a script; empty for a protocol script.

    See `script_style.function_to_call`.

    Raises OpError: ``op-not-loadable``: the source does not parse.
    """
    source = read_source(program)
    try:
        return function_to_call(source, program.path)
    except SyntaxError as error:
        message, line = error.msg, error.lineno or 0
    except (ValueError, RecursionError, MemoryError) as error:
        message, line = str(error) or type(error).__name__, 0
    message = f"{program.path} is no Python: {message}"
    raise OpError(RunError("op-not-loadable", message, file=program.path, line=line))


def check_size(streams: StandardStreams, limit: int) -> None:
    """Raise OpError ``op-output-junk`` if stdout reached its limit."""
    if streams.written_size() >= limit:
        raise OpError(RunError("op-output-junk", f"stdout holds over {limit} bytes"))


_UNFLUSHED = 120  # the interpreter's own exit code for this


class ScriptRunner:
    """Compiles a script once, and runs it often, with fresh globals and real descriptors 0 to 2."""

    hint = ""

    def __init__(self, program: Program, streams: StandardStreams) -> None:
        self._program = program
        self._streams = streams
        self.code = compile(read_source(program), program.path, "exec", dont_inherit=True)

    def call(self, inputs: Mapping[str, np.ndarray], watch: Watch) -> dict[str, np.ndarray]:
        """Execute the script once, and return the outputs by name.

        Raises OpError: ``op-exit-code``; if stdout is no valid response, the error that
        `codec.decode_response` raises. Raises BaseException: Whatever the script raises.
        """
        tensors, rest = for_protocol(self._program, inputs)
        request = encode_request(tensors, {**self._program.kwargs, **rest})
        self._streams.connect(request)
        try:
            with watch:
                code = self._execute()
            malloc.flush_c_streams()
        finally:
            self._streams.quiet()
        if code:
            raise OpError(RunError("op-exit-code", f"the script exited with code {code}"))
        check_size(self._streams, output_limit(len(request)))
        return decode_response(self._streams.written(), self._program.output_names)

    def violations(self) -> Sequence[Failure]:
        """Return an empty sequence: a script gets copies, and so cannot change the inputs."""
        return ()

    def _execute(self) -> int:
        """Run the code object as ``__main__``, and return the exit code."""
        saved = sys.stdin, sys.stdout, sys.stderr, sys.argv, sys.modules.get("__main__")
        main = types.ModuleType("__main__")
        main.__file__ = self._program.path
        main.__dict__["__builtins__"] = __builtins__
        sys.modules["__main__"] = main
        sys.argv = [self._program.path, *self._program.argv]
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(  # noqa: SIM115
            2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )
        streams = (sys.stdout, sys.stderr)
        code = 0
        flushed = True
        try:
            exec(self.code, main.__dict__)  # noqa: S102 - running the user's op is our work
        except SystemExit as error:
            code = _exit_code(error)
        finally:
            flushed = _leave(streams)
            # Its functions refer to it, so the tensors would stay alive until a garbage collection.
            main.__dict__.clear()
            sys.stdin, sys.stdout, sys.stderr, sys.argv = saved[:4]
            if saved[4] is not None:
                sys.modules["__main__"] = saved[4]
        return code or (0 if flushed else _UNFLUSHED)


def _exit_code(error: SystemExit) -> int:
    """Convert the argument of ``sys.exit`` to an exit code as the interpreter does."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _leave(streams: tuple[Any, ...]) -> bool:
    """Finish as an interpreter does: wait for threads, run exit functions, flush."""
    if os.getpid() != _OWN_PID:
        return True  # a fork that the script made; it is ended by the worker
    # Only the end of the interpreter wakes idle threads of executors.
    executors = sys.modules.get("concurrent.futures.thread")
    idle = getattr(executors, "_threads_queues", {})
    current = threading.current_thread()
    for thread in threading.enumerate():
        if thread is not current and not thread.daemon and thread not in idle:
            thread.join()
    atexit._run_exitfuncs()
    _renew_exit_functions()
    flushed = True
    for stream in {id(s): s for s in (*streams, sys.stdout, sys.stderr)}.values():
        try:
            stream.flush()
        except (ValueError, AttributeError):  # closed or replaced by the script
            pass
        except OSError:
            flushed = False
    return flushed


def _renew_exit_functions() -> None:
    """Make exit functions of the standard library run again at the end of the script's next call.

    `multiprocessing` and `weakref` register an exit function once, and remember that the function
    ran. Processes that the next call forks would then end without running it, and lose the data
    that they put into a queue.
    """
    processes: Any = sys.modules.get("multiprocessing.util")
    if processes is not None:
        processes._exiting = False
        atexit.register(processes._exit_function)
    finalize: Any = weakref.finalize
    finalize._shutdown = finalize._registered_with_atexit = False


_OWN_PID = 0


def own_process() -> None:
    """Record that this process is the worker, and unregister all ``atexit`` functions.

    A forked worker has inherited these functions from the fork server.
    """
    global _OWN_PID  # noqa: PLW0603 - a fact on the process, like its id
    _OWN_PID = os.getpid()
    atexit._clear()

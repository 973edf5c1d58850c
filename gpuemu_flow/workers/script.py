"""Run scripts and executables that speak the script protocol: tensors as JSON on stdin."""

from __future__ import annotations

import ast
import atexit
import base64
import fcntl
import io
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuemu_flow.model.syntax import parse_python
from gpuemu_flow.model.types import DTYPES, MAX_DIMS, Failure, Json, canonical_dtype
from gpuemu_flow.numerics.dtypes import (
    ImpossibleShapeError,
    TensorBytesError,
    bytes_of,
    is_size,
    tensor_of,
)
from gpuemu_flow.workers import channel, limits
from gpuemu_flow.workers.api import DEFAULT_OUTPUT, MAX_OUTPUTS, OpError, Program, RunError
from gpuemu_flow.workers.arguments import for_protocol
from gpuemu_flow.workers.channel import Watch
from gpuemu_flow.workers.diagnose import signal_name
from gpuemu_flow.workers.imports import read_source
from gpuemu_flow.workers.limits import output_limit
from gpuemu_flow.workers.tensors import MAX_OUTPUT_BYTES, element_type

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def function_in_script(program: Program) -> str:
    """Return the name of the function to call in a script; empty for a protocol script. See
    `script_style.function_to_call`. Raises OpError: ``op-not-loadable``: the source does not
    parse."""
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
        """Execute the script once, and return the outputs by name. Raises OpError:
        ``op-exit-code``; if stdout is no valid response, the error that `codec.decode_response`
        raises. Raises BaseException: Whatever the script raises."""
        tensors, rest = for_protocol(self._program, inputs)
        request = encode_request(tensors, {**self._program.kwargs, **rest})
        self._streams.connect(request)
        try:
            with watch:
                code = self._execute()
            limits.flush_c_streams()
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
    that they put into a queue."""
    processes: Any = sys.modules.get("multiprocessing.util")
    if processes is not None:
        processes._exiting = False
        atexit.register(processes._exit_function)
    finalize: Any = weakref.finalize
    finalize._shutdown = finalize._registered_with_atexit = False


_OWN_PID = 0


def own_process() -> None:
    """Record that this process is the worker, and unregister all ``atexit`` functions. A forked
    worker has inherited these functions from the fork server."""
    global _OWN_PID  # noqa: PLW0603 - a fact on the process, like its id
    _OWN_PID = os.getpid()
    atexit._clear()


# Distinguish scripts that speak the protocol from those that define a function to be called.


_READERS = ("stdin", "__stdin__", "fileinput")
_STDIN_PATHS = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_OPENERS = ("open", "fdopen", "read", "FileIO", "readv")
_DEFINING = (
    ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign,
    ast.Try, ast.Pass,
)  # fmt: skip


def _called_name(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _reads_stdin(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = _called_name(node)
        first = node.args[0] if node.args else None
        opened = isinstance(first, ast.Constant) and first.value == 0
        return (name == "input" and isinstance(node.func, ast.Name)) or (
            name in _OPENERS and opened
        )
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value in _STDIN_PATHS
    names = [getattr(node, "attr", ""), getattr(node, "id", "")]
    if isinstance(node, ast.alias):
        names.append(node.name)
    return any(name in _READERS for name in names)


def _only_defines(node: ast.stmt) -> bool:
    """Tell whether a top-level statement only defines names."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)  # a docstring
    if isinstance(node, ast.If):
        names = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
        return "__name__" not in names and all(map(_only_defines, node.body + node.orelse))
    return isinstance(node, _DEFINING)


@lru_cache(maxsize=4)
def function_to_call(source: bytes, path: str) -> str:
    """Return the name of the function to call in a script; empty for a protocol script. A function
    is called if the script only defines things, never mentions standard input, and has a function
    named ``reference``, ``op`` or ``kernel``, or named like the file. The first of these names that
    exists is returned. A script with a ``__main__`` block is a protocol script, since the block may
    call a helper module that reads the request. Raises SyntaxError, ValueError: The source does not
    parse."""
    tree = parse_python(source, path)
    if not all(map(_only_defines, tree.body)) or any(map(_reads_stdin, ast.walk(tree))):
        return ""
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    wanted = ("reference", "op", "kernel", Path(path).stem)
    return next((name for name in wanted if name in defined), "")


# Give protocol programs real file descriptors 0, 1 and 2, made ready again for each call.


_HIGH = 200  # so that ops that close or count low descriptors miss ours


def keep_high(fd: int) -> int:
    """Move a descriptor to a high number that programs do not use, and return it."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:  # the system allows fewer descriptors
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return high


class _Tail(io.FileIO):
    """A file object for descriptor 1, which keeps the last bytes that are written through it.
    Output that is written to the descriptor directly is not kept, and costs no memory."""

    end = b""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write to the descriptor, and keep the last bytes."""
        view = memoryview(data)
        self.end = (self.end + view[-channel.TAIL :])[-channel.TAIL :]
        return super().write(data)


class StandardStreams:
    """The standard descriptors 0, 1 and 2 of this process, connected anew for each call.
    Descriptors 0 and 1 are connected to files in memory. Descriptor 2 is restored in case a program
    has closed it."""

    def __init__(self, stderr_fd: int) -> None:
        self._stderr = stderr_fd
        self._null = keep_high(os.open(os.devnull, os.O_RDWR))
        self._in: int | None = None
        self._out: int | None = None
        self._tail = _Tail(1, "w", closefd=False)
        self._printed = io.TextIOWrapper(io.BufferedWriter(self._tail))

    def watch(self) -> None:
        """Replace ``sys.stdout`` by a stream that keeps the last bytes that programs print."""
        self._printed.reconfigure(encoding=sys.stdout.encoding, errors=sys.stdout.errors)
        sys.stdout = self._printed

    def files(self) -> tuple[int, int]:
        """Return the descriptors of the stdin and stdout files, which are made on first use."""
        if self._in is None or self._out is None:
            self._in = keep_high(channel.create("stdin"))
            self._out = keep_high(channel.create("stdout"))
        return self._in, self._out

    def quiet(self) -> None:
        """Connect descriptors 0 and 1 to ``/dev/null``, and restore descriptor 2."""
        os.dup2(self._null, 0)
        os.dup2(self._null, 1)
        os.dup2(self._stderr, 2)

    def load(self, request: bytes) -> tuple[int, int]:
        """Write a request to the stdin file, rewind the stdout file, and return both descriptors.
        The files keep their pages: returning them to the system and getting new ones would cost
        more than the copy."""
        stdin, stdout = self.files()
        os.lseek(stdin, 0, os.SEEK_SET)
        channel.write_all(stdin, request)
        os.ftruncate(stdin, len(request))
        os.lseek(stdin, 0, os.SEEK_SET)
        os.lseek(stdout, 0, os.SEEK_SET)
        return stdin, stdout

    def connect(self, request: bytes) -> None:
        """Connect descriptor 0 to a file with the request, and descriptor 1 to the stdout file."""
        stdin, stdout = self.load(request)
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.dup2(self._stderr, 2)

    def written(self) -> bytes:
        """Return all output on stdout since `connect` or `load`."""
        return channel.read_all(self.files()[1], self.written_size())

    def written_size(self) -> int:
        """Return the size in bytes of the output on stdout: the file position of the descriptor."""
        return os.lseek(self.files()[1], 0, os.SEEK_CUR)

    def forget(self) -> None:
        """Discard the recorded output on stderr and stdout."""
        os.ftruncate(self._stderr, 0)
        self._flush()
        self._tail.end = b""

    def _flush(self) -> None:
        with suppress(OSError, ValueError):  # a program may close it, or what is behind it
            io.TextIOWrapper.flush(self._printed)

    def stdout_tail(self) -> str:
        """Return the end of the text printed since `forget`, without a script's protocol answer."""
        self._flush()
        return channel.as_text(self._tail.end)

    def stderr_tail(self) -> str:
        """Return the end of the output on stderr."""
        return channel.tail(self._stderr)


# The script protocol: tensors as JSON with base64 data, read strictly.


_PRINT_HINT = "stdout must hold one JSON object and nothing else; print messages to stderr"


def _fail(slug: str, message: str, hint: str = "") -> OpError:
    return OpError(RunError(slug, message, hint))


def kwarg_text(value: Json) -> str:
    """Return a keyword argument as the string that protocol v1 sends."""
    if isinstance(value, (list, dict)):
        return json.dumps(value)
    return str(value)


def encode_request(inputs: Mapping[str, np.ndarray], kwargs: Mapping[str, Json]) -> bytes:
    """Return the request for one call; keyword arguments become strings, as in protocol v1."""
    tensors = {
        name: {
            "shape": list(array.shape),
            "strides": [stride // array.itemsize for stride in array.strides],
            "dtype": element_type(array),
            "data": base64.b64encode(bytes_of(array).data).decode(),
        }
        for name, array in inputs.items()
    }
    texts = {key: kwarg_text(value) for key, value in kwargs.items()}
    return json.dumps({"inputs": tensors, "kwargs": texts}, separators=(",", ":")).encode()


def _first_line(data: bytes) -> str:
    return data[:200].decode("utf-8", "replace").strip().partition("\n")[0][:80]


def _parse(data: bytes) -> Json:
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _fail(
            "op-output-junk",
            f"stdout is not one JSON object; it begins {_first_line(data)!r}",
            _PRINT_HINT,
        ) from None
    if not isinstance(value, dict):
        raise _fail(
            "op-output-junk", f"stdout holds a JSON {type(value).__name__}, not an object",
            _PRINT_HINT,
        )  # fmt: skip
    return value


def _shape(value: Json, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(map(is_size, value)):
        raise _fail("op-output-shape", f"output {name!r} has no valid shape: {value!r:.80}")
    if len(value) > MAX_DIMS:
        raise _fail("op-output-shape", f"output {name!r} has {len(value)} dims, over {MAX_DIMS}")
    return tuple(value)


def _dtype(value: Json, name: str) -> str:
    if value is None:
        return "float32"  # protocol v1's default for scripts that leave it out
    dtype = canonical_dtype(value) if isinstance(value, str) else None
    if dtype is None:
        raise _fail(
            "op-output-dtype",
            f"output {name!r} has the unknown dtype {value!r:.60}",
            f"known: {', '.join(DTYPES)}",
        )
    return dtype


def _b64(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise _fail("op-output-junk", f"output {name!r}: its data is not base64") from None


def _tensor(value: Json, name: str) -> np.ndarray:
    if not isinstance(value, dict):
        raise _fail("op-output-missing", f"output {name!r} is not a tensor object")
    for key in ("shape", "data"):
        if key not in value:
            raise _fail("op-output-missing", f"output {name!r} has no {key!r}")
    shape, dtype = _shape(value["shape"], name), _dtype(value.get("dtype"), name)
    text = value["data"]
    if not isinstance(text, str):
        raise _fail("op-output-junk", f"output {name!r}: its data is not a base64 string")
    nbytes = DTYPES[dtype].itemsize
    for dim in shape:
        nbytes *= dim
    if nbytes > MAX_OUTPUT_BYTES:
        raise _fail("op-output-shape", f"output {name!r} of {nbytes} bytes is over the limit")
    data = _b64(text, name)
    if len(data) != nbytes:
        raise _fail(
            "op-output-length",
            f"output {name!r} of shape {list(shape)} and dtype {dtype} takes {nbytes} bytes; "
            f"its data holds {len(data)}",
        )
    try:
        return tensor_of(np.frombuffer(data, dtype=np.uint8), shape, dtype)
    except ImpossibleShapeError as error:
        raise _fail("op-output-shape", f"output {name!r} {error}") from None
    except TensorBytesError as error:
        raise _fail("op-output-junk", f"output {name!r} {error}") from None


def _named(document: Mapping[str, Json]) -> dict[str, Json]:
    """Return the tensor objects of a response by name; the name of an unnamed tensor is ""."""
    if "outputs" in document:
        outputs = document["outputs"]
        if not isinstance(outputs, dict) or not outputs:
            raise _fail("op-output-missing", "'outputs' is not an object of named tensors")
        if len(outputs) > MAX_OUTPUTS:
            raise _fail("op-output-junk", f"{len(outputs)} outputs are over {MAX_OUTPUTS}")
        return outputs
    if "output" in document:
        return {"": document["output"]}
    if "data" in document or "shape" in document:
        return {"": document}
    keys = ", ".join(sorted(document)[:5])
    raise _fail(
        "op-output-missing",
        f"stdout holds no tensor, only: {keys or 'an empty object'}",
        'write {"shape": ..., "dtype": ..., "data": ...} or {"outputs": {name: tensor}}',
    )


def _rename(named: dict[str, Json], output_names: Sequence[str]) -> dict[str, Json]:
    wanted = tuple(output_names)
    if len(named) == 1 and len(wanted) <= 1:
        (value,) = named.values()
        return {wanted[0] if wanted else DEFAULT_OUTPUT: value}
    if wanted and set(named) != set(wanted):
        found = ", ".join(name or "one unnamed" for name in sorted(named))
        raise _fail(
            "op-output-missing", f"the outputs are {found}, but {', '.join(wanted)} are declared"
        )
    return {name: named[name] for name in wanted or sorted(named)}


def decode_response(data: bytes, output_names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Return the tensors that a script wrote. Raises OpError: ``op-output-junk``,
    ``op-output-missing``, ``op-output-shape``, ``op-output- dtype``, ``op-output-length``."""
    if not data or data.isspace():
        raise _fail("op-output-missing", "the program wrote nothing to stdout")
    named = _rename(_named(_parse(data)), output_names)
    return {name: _tensor(value, name) for name, value in named.items()}


# Run executables that speak the script protocol, in a new process for each call.


class CommandRunner:
    """Starts an executable for each call, in the worker's own process group."""

    hint = ""

    def __init__(self, program: Program, streams: StandardStreams, argv: Sequence[str]) -> None:
        self._program = program
        self._streams = streams
        self._argv = list(argv)
        self._limits = resource.getrlimit(resource.RLIMIT_AS)
        self._killed_again = False

    def call(self, inputs: Mapping[str, np.ndarray], watch: Watch) -> dict[str, np.ndarray]:
        """Return the outputs by name. Raises OpError: ``op-not-loadable``, ``op-crashed`` or
        ``op-exit-code``; if stdout is no valid response, the error that `codec.decode_response`
        raises."""
        tensors, rest = for_protocol(self._program, inputs)
        request = encode_request(tensors, {**self._program.kwargs, **rest})
        code = self._called(request, watch)
        if code == -signal.SIGKILL and not self._killed_again:
            # This may not be the program's fault: the system may have killed it for other
            # processes' memory.
            code = self._called(request, watch)
            self._killed_again = code == -signal.SIGKILL
        if code < 0:
            message = f"the program was killed by {signal_name(-code)}"
            raise OpError(RunError("op-crashed", message))
        if code:
            raise OpError(RunError("op-exit-code", f"the program exited with code {code}"))
        check_size(self._streams, output_limit(len(request)))
        return decode_response(self._streams.written(), self._program.output_names)

    def _called(self, request: bytes, watch: Watch) -> int:
        stdin, stdout = self._streams.load(request)
        with watch:
            return self._run(stdin, stdout)

    def violations(self) -> Sequence[Failure]:
        """Return nothing, since the actions of another process are not observed."""
        return ()

    def _run(self, stdin: int, stdout: int) -> int:
        limit = self._program.memory_limit

        def limit_memory() -> None:
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_AS, (limit, self._limits[1]))

        try:
            # The worker has one thread, so that preexec_fn is safe here.
            return subprocess.run(
                self._argv,
                stdin=stdin,
                stdout=stdout,
                stderr=2,
                env={**os.environ},
                preexec_fn=limit_memory if limit is not None else None,
                check=False,
            ).returncode
        except (OSError, subprocess.SubprocessError) as error:
            message = f"cannot start {self._argv[0]}: {error}"
            hint = "make it executable, with a #! line if it is a script"
            if isinstance(error, PermissionError) and os.access(self._argv[0], os.X_OK):
                hint = "its sandbox hides it, or the program that its #! line names"
            raise OpError(RunError("op-not-loadable", message, hint, file=self._argv[0])) from None

"""Run programs with CUDA host code on the emulated GPU: PyTorch extensions, and C functions.

The worker runs the host code. A process that is forked from it, before the program is loaded, runs
the kernels; so both are behind the same wall, and their time counts.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from gpuemu_flow.emulator.described import DescribedLaunches, ScalarText, StructText, read_host_call
from gpuemu_flow.emulator.host import build as host_build
from gpuemu_flow.emulator.host import torch_device
from gpuemu_flow.emulator.host.build import (
    BUILD_FOLDER,
    Ran,
    build_program,
    find_toolkit,
    run_by,
    run_here,
    runtime_folder,
    runtime_library,
)
from gpuemu_flow.emulator.host.run import serve
from gpuemu_flow.emulator.host.session import HostReport, Options
from gpuemu_flow.emulator.host.torch_device import make_home
from gpuemu_flow.emulator.memory import GLOBAL_BASE, UNINITIALISED, WRITTEN
from gpuemu_flow.model.decoding import convert, known
from gpuemu_flow.model.errors import FlowError
from gpuemu_flow.model.let_through import keep_user_cache
from gpuemu_flow.model.syntax import CParameter, ExpressionError, compute, read_signature
from gpuemu_flow.model.types import CodePlace, Failure, FailureKind
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.workers import limits
from gpuemu_flow.workers.api import DEFAULT_OUTPUT, OpError, Program, RunError, op_error
from gpuemu_flow.workers.callable import CallableRunner
from gpuemu_flow.workers.channel import Watch
from gpuemu_flow.workers.emulated import kernel_failure, near
from gpuemu_flow.workers.process import BUILD_SECONDS
from gpuemu_flow.workers.script import keep_high
from gpuemu_flow.workers.tensors import name_outputs
from gpuemu_flow.workers.torch_runner import TorchHost, TorchRunner, as_torch, framework

Inputs = Mapping[str, np.ndarray]
_SHADOW = GLOBAL_BASE + (1 << 37)
"""Where a byte for each byte of the device says whether it was written; see ``gpuemu.h``."""
_ALIGNED = 16
_COMPILERS_ERROR = re.compile(r"(\S+?)[:(](\d+)\)?(?::\d+)?: (?:fatal )?error: (.+)")
_UNSUPPORTED = "emulator-unsupported"


def build(*, torch: bool) -> None:
    """Build what the emulated GPU consists of; raise FlowError if that is impossible."""
    runtime_folder(find_toolkit())
    spec = importlib.util.find_spec("torch") if torch else None
    if spec is not None and spec.origin is not None:
        make_home(Path(spec.origin).parent)


def start_gpu(program: Program) -> None:
    """Give this process the emulated GPU, before it loads the program. Raises OpError: there is no
    toolkit or compiler, or PyTorch is one for CUDA."""
    Path(program.gpu_folder).mkdir(parents=True, exist_ok=True)
    os.environ[BUILD_FOLDER] = program.gpu_folder
    try:
        if program.kind != "cuda-host":
            framework("torch", "torch")
            torch_device.import_torch()
        libraries = runtime_library(runtime_folder(find_toolkit()))
    except FlowError as error:
        raise op_error(error) from None
    run_by.append(_Builder().run)
    options = Options(
        quiet=True, arch=int(os.environ.get("GPUEMU_ARCH", "80")),
        planted=os.environ.get("GPUEMU_PLANTED", ""),
    )  # fmt: skip
    _serve_in_child(options, program)
    libraries[1].gpuemu_share_all()  # now: the program's memory may be limited later


def _serve_in_child(options: Options, program: Program) -> None:
    def answer(ours: socket.socket) -> None:
        keep_user_cache(program.gpu_folder)  # an op must not write what others load
        serve(ours, options)

    os.environ["GPUEMU_FD"] = str(keep_high(_child(answer).detach()))


def _child(answer: Callable[[socket.socket], None]) -> socket.socket:
    """Fork a process that answers at the other end of a socket, and ends with this one."""
    theirs, ours = socket.socketpair()
    parent = os.getpid()
    if os.fork():
        ours.close()
        return theirs
    try:
        limits.die_with_parent(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        fd = ours.detach()
        limits.close_all_but({0, 1, 2, fd})
        answer(socket.socket(fileno=fd))
    except BaseException as error:
        print(f"gpuemu-flow: the emulated GPU failed: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(0)


class _Builder:
    """Runs compilers behind the same wall, in a process whose files are not recorded. A compiler
    opens thousands of headers, and each would wait for the record. The worker reads what matters of
    them afterwards: `Kept` lists it."""

    def __init__(self) -> None:
        self._socket = _child(self._answer)
        os.set_inheritable(self._socket.fileno(), False)

    @staticmethod
    def _answer(ours: socket.socket) -> None:
        host_build.COMPILE_SECONDS = int(BUILD_SECONDS)  # the limit of loading, which ends both
        stream = ours.makefile("rwb")
        while line := stream.readline():
            command, folder, environ = msgspec.json.decode(line)
            os.environ.update(environ)
            stream.write(msgspec.json.encode(run_here(command, folder)) + b"\n")
            stream.flush()

    def run(self, command: Sequence[str], folder: str | None) -> Ran:
        """Run a compiler in a folder, with this process's environment."""
        request = (list(command), folder or str(Path.cwd()), dict(os.environ))
        stream = self._socket.makefile("rwb")
        stream.write(msgspec.json.encode(request) + b"\n")
        stream.flush()
        return convert(msgspec.json.decode(stream.readline()), Ran)


class Gpu:
    """The emulated GPU of this process: what it found since the last question."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._core = runtime_library(runtime_folder(find_toolkit()))[1]

    def report(self) -> HostReport:
        size = ctypes.c_size_t()
        at = self._core.gpuemu_report(ctypes.byref(size))
        if not size.value:
            raise OpError(RunError("op-broke-runner", "the process that runs kernels has ended"))
        return msgspec.msgpack.decode(ctypes.string_at(at, size.value), type=known(HostReport))

    def failures(self) -> list[Failure]:
        """Return the findings as failures; raise OpError if something could not be run."""
        report = self.report()
        if report.problems:
            raise OpError(_unsupported(report))
        return [kernel_failure(finding.moved(self._near)) for finding in report.findings]

    def _near(self, place: CodePlace) -> CodePlace:
        return near(place, self._root)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Add what was found to an exception of the program, which may be due to it."""
        try:
            yield
        except OpError:
            raise
        except FlowError as error:
            raise op_error(error) from None
        except Exception as error:
            report = self.report()
            if report.problems:
                raise OpError(_unsupported(report)) from error
            built = _COMPILERS_ERROR.search(str(error))
            if "building extension" in str(error) and built is not None:
                place = self._near(CodePlace(built[1], int(built[2])))
                text = f"the extension cannot be built: {built[3]}"
                raise OpError(
                    RunError("op-not-loadable", text, file=place.file, line=place.line)
                ) from error
            if not report.findings:
                raise
            finding = report.findings[0].moved(self._near)
            said = str(error).strip().splitlines()
            text = f"{type(error).__name__}: {said[0] if said else ''}"
            raise OpError(
                RunError(
                    "op-exception", f"{text:.300}; {finding}", file=finding.place.file,
                    line=finding.place.line, exception=type(error).__name__,
                )
            ) from error  # fmt: skip


def _unsupported(report: HostReport) -> RunError:
    slug, _, text = report.problems[0].partition(": ")
    if " " in slug:
        slug, text = _UNSUPPORTED, report.problems[0]
    return RunError(_UNSUPPORTED if slug.startswith("exec") else slug, text)


# -------------------------------------------------------------------- extensions of PyTorch
class EmulatedTorch:
    """PyTorch with the emulated GPU as its device ``cuda``."""

    def __init__(self, program: Program) -> None:
        self.torch: Any = framework("torch", "torch")
        self.device: Any = SimpleNamespace(made_uninitialised=False)
        self._gpu = Gpu(program.root)
        self._names = program.output_names or (DEFAULT_OUTPUT,)
        self._given: list[tuple[np.ndarray, Any, Any]] = []
        self._unwritten: list[Failure] = []

    @contextmanager
    def running(self, seed: int = 0, run: int = 0) -> Iterator[None]:
        """Explain exceptions inside the context by what was found."""
        self._given.clear()
        self._unwritten = []
        with self._gpu.explaining():
            yield

    def tensor(self, array: np.ndarray) -> Any:
        """Copy an array to the device: same strides, same distance from an aligned address."""
        host = as_torch(self.torch, array)
        if not host.numel():
            return host.to("cuda")
        pairs = list(zip(host.shape, host.stride(), strict=True))
        shift = array.ctypes.data % _ALIGNED // host.element_size()
        extent = shift + 1 + sum((size - 1) * step for size, step in pairs)
        memory = self.torch.empty(extent, dtype=host.dtype, device="cuda")
        tensor = memory.as_strided(host.shape, host.stride(), shift)
        once = tuple(slice(0, 1 if size and not step else None) for size, step in pairs)
        tensor[once].copy_(host[once])
        self._given.append((array, tensor, tensor._version))
        return tensor

    def returned(self, result: Any) -> None:
        """Look who wrote the outputs, and let the inputs' arrays follow their tensors."""
        values = result if isinstance(result, (tuple, list)) else [result]
        named = result.items() if isinstance(result, Mapping) else zip(self._names, values)  # noqa: B905
        for name, value in named:
            if isinstance(value, self.torch.Tensor) and value.is_cuda and value.numel():
                self._look_for_unwritten(name, value.detach())
        for array, tensor, _ in self._given:
            after = tensor.detach().cpu()
            before = as_torch(self.torch, array)
            if array.flags.writeable and not self.torch.equal(
                after.contiguous().view(self.torch.uint8),
                before.contiguous().view(self.torch.uint8),
            ):
                before.copy_(after)

    def _look_for_unwritten(self, name: str, tensor: Any) -> None:
        item, start = tensor.element_size(), tensor.data_ptr()
        if not GLOBAL_BASE <= start < _SHADOW:
            return
        pairs = list(zip(tensor.shape, tensor.stride(), strict=True))
        extent = item * (1 + sum((size - 1) * step for size, step in pairs))
        memory = (ctypes.c_uint8 * extent).from_address(start - GLOBAL_BASE + _SHADOW)
        states = np.lib.stride_tricks.as_strided(
            np.frombuffer(memory, np.uint8), (*tensor.shape, item),
            (*(step * item for _, step in pairs), 1), writeable=True,
        )  # fmt: skip
        unwritten = (states == UNINITIALISED).any(axis=-1)
        if not unwritten.any():
            return
        states[states == UNINITIALISED] = WRITTEN  # said once
        index = tuple(int(i) for i in np.argwhere(unwritten)[0])
        count = int(unwritten.sum())
        text = f"{count} of {unwritten.size} elements of output {name!r} were never written"
        self._unwritten.append(Failure(FailureKind.UNWRITTEN, text, name, index))

    def failures(self) -> list[Failure]:
        """Return what was found since the last call."""
        return [*self._unwritten, *self._gpu.failures()]


class ExtensionRunner(TorchRunner):
    """Calls a function or module of PyTorch with tensors on the emulated GPU."""

    def _make_host(self, program: Program) -> TorchHost:
        return EmulatedTorch(program)


class HostCallable(CallableRunner):
    """Calls a function of arrays whose own code brings them to the emulated GPU."""

    def __init__(self, program: Program) -> None:
        self._gpu = Gpu(program.root)
        with self._gpu.explaining():
            super().__init__(program)

    def call(self, inputs: Inputs, watch: Watch) -> dict[str, np.ndarray]:
        """Call the function; see `CallableRunner.call`."""
        with self._gpu.explaining():
            outputs = super().call(inputs, watch)
        self._changed += self._gpu.failures()
        return outputs


# -------------------------------------------------------------------- host functions in C
_C_TYPES = {
    "int8": ctypes.c_int8, "uint8": ctypes.c_uint8, "int16": ctypes.c_int16, "bool": ctypes.c_bool,
    "uint16": ctypes.c_uint16, "int32": ctypes.c_int32, "uint32": ctypes.c_uint32,
    "int64": ctypes.c_int64, "uint64": ctypes.c_uint64, "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}  # fmt: skip


class HostFunctionRunner:
    """Calls an ``extern "C"`` function of a ``.cu`` file with pointers to host memory and numbers.
    Raises OpError: the file cannot be compiled, or the arguments do not fit the function."""

    hint = ""

    def __init__(self, program: Program) -> None:
        self._program = program
        text, dims = program.argv
        described = read_host_call(json.loads(text), lambda *_: None)
        assert described is not None  # noqa: S101 - the configuration was checked
        self._described: DescribedLaunches = described
        self._dims: dict[str, list[str | int]] = json.loads(dims)
        self._gpu = Gpu(program.root)
        self._found: list[Failure] = []
        path = Path(program.path)
        flags = ["-shared", "-Xcompiler", "-fPIC", *json.loads(text).get("flags", ())]
        try:
            library = build_program([path], flags, int(os.environ.get("GPUEMU_ARCH", "80")))
        except FlowError as error:
            said = _COMPILERS_ERROR.search(str(error))
            if said is None:
                raise op_error(error) from None
            place = near(CodePlace(said[1], int(said[2])), program.root)
            words = f"{path.name} cannot be compiled: {said[3]}"
            raise OpError(
                RunError("op-not-loadable", words, file=place.file, line=place.line)
            ) from None
        signature = read_signature(path.read_text(errors="replace"), program.function)
        try:
            self._function = ctypes.CDLL(str(library))[program.function]
        except AttributeError:
            words = f"{path.name} has no function {program.function!r} that C can call"
            hint = (
                "correct `function` of the op"
                if signature is None
                else 'write extern "C" before it'
            )
            raise OpError(RunError("op-not-loadable", words, hint, program.path)) from None
        except OSError as error:  # a symbol that nothing defines
            reason = str(error).rpartition(": ")[2][:200]
            words = f"{path.name} cannot be loaded: {reason}"
            raise OpError(RunError("op-not-loadable", words, file=program.path)) from None
        self._function.restype = None
        self._signature = signature

    def call(self, inputs: Inputs, watch: Watch) -> dict[str, np.ndarray]:
        """Call the function, and return its outputs by name."""
        shapes = {name: tuple(array.shape) for name, array in inputs.items()}
        names: dict[str, int] = {}
        for tensor, dims in self._dims.items():
            for dim, extent in zip(dims, shapes.get(tensor, ()), strict=False):
                if isinstance(dim, str):
                    names.setdefault(dim, extent)
        numbers = {n: v for n, v in inputs.items() if n in self._program.scalars}
        names.update((n, int(v.item())) for n, v in numbers.items() if v.dtype.kind in "iub")
        buffers = {n: np.ascontiguousarray(a).copy() for n, a in inputs.items()}
        try:
            for made in (*self._described.outputs, *self._described.scratch):
                if made.name not in buffers:
                    shape = tuple(compute(text, names, shapes) for text in made.dims)
                    default = next(iter(inputs.values())).dtype
                    dtype = numpy_dtype(made.dtype) if made.dtype else default
                    buffers[made.name] = _unset(shape, dtype)
            values = self._values(buffers, names, shapes)
        except ExpressionError as error:
            raise OpError(
                RunError("emulator-launch", str(error), file=self._program.path)
            ) from None
        with watch:
            self._function(*values)
        self._found = self._gpu.failures()
        for name, array in inputs.items():
            if array.flags.writeable and buffers[name].tobytes() != array.tobytes():
                array[...] = buffers[name]
        made_names = [made.name for made in self._described.outputs] or self._program.mutates
        outputs = {n: a for n, a in buffers.items() if n in made_names or n not in inputs}
        only = next(iter(outputs.values())) if len(outputs) == 1 else outputs
        return name_outputs(only, self._program.output_names)

    def _values(
        self, buffers: dict[str, np.ndarray], names: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> list[Any]:  # fmt: skip
        """Return the call's arguments: as `args` says, else by the names of the parameters."""
        if self._described.launches:
            values: list[Any] = []
            for text in self._described.launches[0].arguments:
                if isinstance(text, StructText):
                    raise ExpressionError(
                        "a host function gets no structs by value here: wrap it in one that takes "
                        "their members"
                    )
                if isinstance(text, ScalarText):
                    values.append(_scalar(text, names, shapes))
                else:
                    values.append(_pointer(buffers, text))
            return values
        if self._signature is None:
            raise ExpressionError(
                f"{self._program.function} has no plain definition in C: write args"
            )
        values = []
        for given in self._signature:
            if given.pointer:
                if given.name not in buffers:
                    self._make_output(given, buffers, shapes)
                values.append(_pointer(buffers, given.name))
                continue
            kind: Any = _C_TYPES.get(given.dtype)
            number = buffers.get(given.name)
            value = None if number is None or number.size != 1 else number.item()
            if value is None:
                value = self._program.kwargs.get(given.name, _of_dim(names, given.name))
            if kind is None or value is None:
                raise ExpressionError(
                    f"the parameter {given.name} of {self._program.function} is no input, no "
                    "keyword and no size of the schema: name it so, or write args"
                )
            values.append(kind(value))
        return values

    def _make_output(
        self, given: CParameter, buffers: dict[str, np.ndarray],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:  # fmt: skip
        """Make a pointer's output, in the shape of the first input, if nothing describes it."""
        if given.constant or self._described.outputs or not given.dtype:
            raise ExpressionError(f"no input or output is named {given.name}")
        buffers[given.name] = _unset(next(iter(shapes.values())), numpy_dtype(given.dtype))

    def violations(self) -> Sequence[Failure]:
        """Return what was found in the latest call."""
        return self._found


def _unset(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Return memory that no result looks like: NaN, or a pattern."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[...] = 0xFF if dtype.kind not in "iub" else 0xA5
    return array


def _pointer(buffers: Mapping[str, np.ndarray], name: str) -> ctypes.c_void_p:
    if name not in buffers:
        raise ExpressionError(f"args name {name!r}, which is no input, output or scratch")
    return ctypes.c_void_p(buffers[name].ctypes.data)


def _scalar(
    text: ScalarText, names: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> Any:
    kind = {"i": "int", "u": "uint", "f": "float"}[text.type[0]] + text.type[1:]
    if kind not in _C_TYPES:
        raise ExpressionError(f"a C function takes no {text.type} here")
    value: Any = text.value if isinstance(text.value, float) else compute(text.value, names, shapes)
    made: Any = _C_TYPES[kind]
    return made(value)


def _of_dim(names: Mapping[str, int], wanted: str) -> int | None:
    """Return the size that a parameter names, such as ``n`` for the dim ``N``."""
    return next((v for n, v in names.items() if n.lower() == wanted.lower()), None)
